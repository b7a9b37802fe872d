"""The service over HTTP: what it answers, what it refuses, and in which words."""

import asyncio
import hmac
import json
import shutil
import socket
import time

import polars as pl
import pytest
import torch

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("httpx")

import httpx

from anyparty import Federation
from anyparty.errors import ConfigError, ModelError, PredictionError
from anyparty.run.runs import predict_run
from anyparty.serving import application, serve
from anyparty.serving import staleness as newer
from anyparty.serving.admission_middleware import Gate
from anyparty.serving.http_schemas import Answers
from anyparty.serving.http_server import listening
from anyparty.serving.service_metrics import Meter
from anyparty.serving.service_settings import Limits, Tokens, certificates, check_open_to
from anyparty.storage import writing

TOKEN, OTHER = "a token of the tests", "another token of theirs"
TOKENS = tuple(word.replace(" ", "-") for word in (TOKEN, OTHER))
PATIENT = Limits(budget_ms=10_000, batch_budget_ms=10_000)  # where all answer nobody waits; a busy machine takes long


def talk(app, work, client=("127.0.0.1", 9)):
    """Let ``work`` talk to an application that has begun, from the address ``client``; it is ended afterwards."""

    async def whole():
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app=app, client=client)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as asking:
                return await work(asking)

    return asyncio.run(asyncio.wait_for(whole(), 60))


def ask(app, path="/predict", method="POST", client=("127.0.0.1", 9), **how):
    async def work(asking):
        return await asking.request(method, path, **how)

    return talk(app, work, client)


@pytest.fixture
def app(run):
    return application(run, limits=PATIENT)


# ---- answers


def test_every_row_of_a_run_is_answered_as_predict_answers_it(app, run):
    frame = predict_run(run).frame()
    answer = ask(app, "/predict/batch", json={"ids": frame["id"].to_list()})
    assert answer.status_code == 200
    said = Answers.model_validate_json(answer.content).answers
    assert [each.id for each in said] == frame["id"].to_list()
    assert [each.prediction for each in said] == frame["prediction"].to_list()
    assert [" ".join(each.took_part) for each in said] == frame["parties"].to_list()
    assert [each.probabilities["yes"] for each in said] == pytest.approx(frame["p(yes)"].to_list(), abs=1e-6)
    assert {len(each.took_part) for each in said} == {1, 2}


def test_an_id_that_nobody_has_gets_no_number_and_a_reason(app):
    (said,) = ask(app, json={"ids": ["nobody"]}).json()["answers"]
    assert said["prediction"] is None
    assert said["probabilities"] is None
    assert said["reason"] == "no party here has a row with this id"


def test_an_id_that_is_no_unicode_is_unknown_and_the_others_are_answered(app):
    asked = ["\ud800", "c050", "c050\udfff", "\ud800c050", " c050 "]
    answer = ask(app, content=json.dumps({"ids": asked}), headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    said = json.loads(answer.content)["answers"]
    assert [each["id"] for each in said] == asked
    assert [each["reason"] for each in said] == [
        reason and "no party here has a row with this id" for reason in (True, None, True, True, None)
    ]
    assert [each["prediction"] is None for each in said] == [True, False, True, True, False]


def test_tables_may_be_others_than_the_runs(run, tmp_path):
    shop = pl.read_csv(run.parents[1] / "shop.csv").head(5)
    shop.with_columns(customer=pl.Series([f"n{i}" for i in range(5)])).write_csv(tmp_path / "new.csv")
    app = application(run, tables={"shop": tmp_path / "new.csv"})
    said = ask(app, json={"ids": ["n0", "c050"], "budget_ms": 10_000}).json()["answers"]
    assert said[0]["took_part"] == ["shop"]
    assert said[1]["reason"] == "no party here has a row with this id"
    with pytest.raises(PredictionError, match="no party 'shap'; did you mean 'shop'"):
        application(run, tables={"shap": tmp_path / "new.csv"})


def test_a_model_that_is_trained_anew_is_told_of_and_not_served(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(newer, "LOOK_S", 0.01)
    said, folder = [], tmp_path / "copy"
    shutil.copytree(trained, folder)
    run = folder / "runs" / "credit-laser-seed1"
    app = application(run, say=said.append, limits=PATIENT)
    weights = run / "parties" / "bank" / "model.safetensors"
    sentence = f"{run} holds another model or alignment by now than what is served; start the service again"

    async def work(asking):
        before = (await asking.post("/predict", json={"ids": ["c050"]})).json()
        assert ((await asking.get("/ready")).json()["model"], said) == ("", [])
        with writing(weights) as beside:
            beside.write_bytes(weights.read_bytes())
        assert (await asking.get("/ready")).json()["model"] == sentence
        assert (await asking.post("/predict", json={"ids": ["c050"]})).json() == before
        while not said:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert said == [sentence]

    talk(app, work)


def test_an_alignment_that_a_prediction_made_anew_is_told_of(tmp_path):
    kept = tmp_path / "alignment.safetensors"
    kept.write_bytes(b"of training")
    look = newer.Newer(tmp_path)
    assert look() == ""
    with writing(kept) as beside:
        beside.write_bytes(b"of a prediction, after a table had changed")
    assert "holds another model or alignment by now" in look()


def test_what_is_no_run_and_no_federation_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"neither a run .* nor a federation's folder .* nor a party's kit"):
        application(tmp_path)
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(ModelError):
        application(tmp_path)


def test_a_number_is_predicted_without_probabilities(tmp_path):
    rows = pl.DataFrame({"id": list("abcdefghij"), "x": list(range(10)), "y": [2.5 * i for i in range(10)]})
    other = rows.select("id", z=pl.col("x") ** 2)
    federation = Federation.from_tables({"a": rows, "b": other}, id="id", label="y")
    federation.train("laser", epochs=1, folder=tmp_path / "run", progress=False)
    with pytest.raises(ModelError, match="give tables"):
        application(tmp_path / "run")
    (said,) = ask(application(tmp_path / "run", tables={"a": rows, "b": other}), json={"ids": ["a"]}).json()["answers"]
    assert isinstance(said["prediction"], float)
    assert said["probabilities"] is None


# ---- state


def test_state_is_told(app):
    async def work(client):
        await client.post("/predict", json={"ids": ["c050", "nobody"], "budget_ms": 10_000})
        return [await client.get(f"/{path}") for path in ("health", "ready", "about", "metrics", "openapi.json")]

    health, ready, about, metrics, described = talk(app, work)
    assert health.json() == {"status": "alive"}
    assert ready.json() == {"status": "ready", "parties": {"shop": "connected"}, "federation": "", "model": ""}
    assert about.json()["method"]["name"] == "laser"
    assert about.json()["classes"] == ["no", "yes"]
    assert set(about.json()["fingerprints"]) == {"model", "version of anyparty", "part of the model"}
    for line in (
        'anyparty_requests_total{path="/predict",status="200"} 1.0',
        'anyparty_ids_total{answer="number"} 1.0',
        'anyparty_ids_total{answer="none"} 1.0',
        'anyparty_party_requests_total{outcome="answered",party="shop"} 1.0',
        'anyparty_party_requests_total{outcome="silent",party="shop"} 0.0',
        "anyparty_own_block_only_ids_total 0.0",
        'anyparty_party_connected{party="shop"} 1.0',
        'anyparty_request_seconds_count{path="/predict"} 1.0',
    ):
        assert line in metrics.text.splitlines()
    paths = described.json()["paths"]
    assert set(paths) == {"/predict", "/predict/batch", "/health", "/ready", "/about", "/metrics"}
    assert all(way.get("summary") for path in paths.values() for way in path.values())


# ---- refusals


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 422, "the request should be a JSON object like"),
        (b"{", 400, "the request is not JSON"),
        (b"[]", 422, "the request should be a JSON object like"),
        (b"{}", 422, "'ids' is missing; expected a request like"),
        (b'{"ids": []}', 422, "'ids' is empty; name at least one"),
        (b'{"ids": "a"}', 422, "ids: input should be a valid list; got 'a'"),
        (b'{"ids": [7]}', 422, 'ids.0 should be text, like "7"; got 7'),
        (b'{"ids": ["a", null]}', 422, 'ids.1 should be text, like "7"; got None'),
        (b'{"ids": ["a"], "party": ["shop"]}', 422, "there is no 'party' in a request; known are: ids"),
        (b'{"ids": ["a"], "parties": ["shap"]}', 400, "no party 'shap' with columns; did you mean 'shop'?"),
        (b'{"ids": ["a"], "parties": []}', 400, "'parties' is empty"),
        (b'{"ids": ["a"], "budget_ms": 0}', 422, "budget_ms: input should be greater than 0; got 0"),
        (b'{"ids": ["a"], "budget_ms": 1e9}', 422, "budget_ms is 1e+09, expected at most 10000"),
        (b'{"ids": ["a"], "budget_ms": NaN}', 422, "budget_ms: "),
        (b'{"ids": ["a"], "budget_ms": true}', 422, "budget_ms should be a number of milliseconds; got True"),
        (b'{"ids": ["a"], "budget_ms": "50"}', 422, "budget_ms should be a number of milliseconds; got '50'"),
        (b'{"ids": ["a"], "budget_ms": 1' + 400 * b"0" + b"}", 422, "budget_ms: input should be less than or equal to"),
        (b'{"ids": ["a"], "budget_ms": 1' + 5000 * b"0" + b"}", 400, "the request is not JSON"),
        (b'{"ids": ["\xff"]}', 400, "the request is not JSON"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_answered_with_a_sentence(app, body, status, said):
    answer = ask(app, content=body, headers={"content-type": "application/json"})
    assert said in answer.json()["error"]
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"ids": [' + b"7, " * 200_000 + b"7]}", "ids.0 should be text"),
        (b'{"ids": ["a"], "parties": [' + b"7, " * 200_000 + b"7]}", "parties.0 should be text"),
        (b"{" + b", ".join(b'"k%d": 1' % n for n in range(100_000)) + b"}", "there is no 'k0' in a request"),
        (b'{"ids": ["a"], "parties": ["' + b"x" * 10**6 + b'"]}', "the model has no party 'xxx"),
        (b'{"' + b"x" * 10**6 + b'": 1}', "there is no 'xxx"),
    ],
    ids=["ids", "parties", "keys", "a long party", "a long key"],
)
def test_one_mistake_of_very_many_is_said_and_shortly(app, body, said):
    answer = ask(app, "/predict/batch", content=body, headers={"content-type": "application/json"})
    assert said in answer.json()["error"]
    assert len(answer.content) < 1000


def test_more_ids_than_a_request_takes_are_refused_with_the_limit(run):
    app = application(run, limits=Limits(ids=3, batch_ids=5))
    answer = ask(app, json={"ids": ["a"] * 4})
    assert (answer.status_code, answer.json()["error"]) == (413, "4 ids in one request; /predict takes at most 3")
    answer = ask(app, "/predict/batch", json={"ids": ["a"] * 6})
    assert answer.json()["error"] == "6 ids in one request; /predict/batch takes at most 5"
    assert ask(app, "/predict/batch", json={"ids": ["a"] * 5}).status_code == 200


def test_ten_million_ids_are_refused_unread(app):
    body = len(json.dumps({"ids": [f"{i:08d}" for i in range(1000)]})) * 10_000
    for path, limit in (("/predict", "100 ids"), ("/predict/batch", "10,000 ids")):
        status, said, read = raw(app, path, {"content-length": str(body)}, iter(()))
        assert status == 413
        assert f"{path} takes at most {limit}" in said
        assert read == 0


def test_a_body_without_a_length_is_read_up_to_the_limit(app):
    """Chunks without end, as ``Transfer-Encoding: chunked`` brings them."""
    chunk = b'"1234567890",' * 8192
    status, said, read = raw(app, "/predict/batch", {"transfer-encoding": "chunked"}, iter(lambda: chunk, None))
    assert status == 413
    assert "at most 10,000 ids and 2,564,096 bytes" in said
    assert read <= 2_564_096 + 2 * len(chunk)


def test_a_length_in_other_digits_is_no_length(app):
    scope = {"content-length": "\xb2"}  # a superscript two: a digit, and no number
    status, *_ = raw(app, "/predict", scope, iter(()))
    assert status == 413


def test_a_body_that_does_not_come_is_not_waited_for(run):
    app = application(run, limits=Limits(body_s=0.05))
    status, said, _ = raw(app, "/predict", {"content-length": "100"}, None)
    assert (status, said) == (408, "the request did not arrive whole within 0.05 s")


def raw(app, path, headers, chunks):
    """Speak to an application without a client; answers the status, the sentence, how many bytes it read."""
    read, answer = 0, []

    async def receive():
        nonlocal read
        if chunks is None:
            await asyncio.sleep(60)
        chunk = next(chunks)
        read += len(chunk)
        return {"type": "http.request", "body": chunk, "more_body": True}

    async def send(message):
        answer.append(message)

    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "scheme": "http", "http_version": "1.1", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 9),
        "headers": [(b"host", b"127.0.0.1"), *((k.encode(), v.encode("latin-1")) for k, v in headers.items())],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return answer[0]["status"], json.loads(answer[1]["body"])["error"], read


def test_more_requests_at_once_than_the_limit_are_told_to_come_again(run):
    app = application(run, limits=Limits(at_once=2))

    async def work(client):
        return await asyncio.gather(*(client.post("/predict", json={"ids": ["c050"] * 100}) for _ in range(12)))

    answers = talk(app, work)
    busy = [each for each in answers if each.status_code == 503]
    assert busy
    assert busy[0].headers["retry-after"] == "1"
    assert "requests are worked on already" in busy[0].json()["error"]
    assert {each.status_code for each in answers} == {200, 503}


def at_gate(work, **limits):
    """A gate before ``work(gate)``, which gives no answer, and how to ask there; ``said`` gets the statuses."""
    said = []

    async def app(scope, receive, send):
        await work(gate)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        said.extend([message["status"]] if "status" in message else [])

    gate = Gate(app, limits=Limits(**limits), tokens=Tokens(()), meter=Meter([], set))
    return gate, lambda: gate({"type": "http", "path": "/predict", "headers": [], "client": None}, receive, send), said


def test_no_more_than_the_limit_are_worked_on_at_once():
    async def four():
        go, inside = asyncio.Event(), []

        async def waits(gate):
            inside.append(gate.inside)
            await go.wait()

        _, ask_there, said = at_gate(waits, at_once=2)
        tasks = [asyncio.create_task(ask_there()) for _ in range(4)]
        while len(inside) + len(said) < 4:
            await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*tasks)
        return inside, said

    assert asyncio.run(asyncio.wait_for(four(), 60)) == ([1, 2], [503, 503])


def test_a_request_that_fails_leaves_its_place():
    async def fails(gate):
        raise RuntimeError("it breaks")

    gate, ask_there, said = at_gate(fails, at_once=1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="it breaks"):
            asyncio.run(ask_there())
    assert (gate.inside, said) == (0, [])


# ---- who is let in


def test_without_a_token_nobody_is_let_in_but_to_the_pulse(run):
    app = application(run, tokens=TOKENS)

    async def work(client):
        ways = [("POST", "/predict"), ("POST", "/predict/batch"), ("GET", "/ready"), ("GET", "/about"),
                ("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/nowhere")]  # fmt: skip
        bad = ({}, {"authorization": "Bearer nonsense"}, {"authorization": TOKENS[0]},
               {"authorization": f"Basic {TOKENS[0]}"}, {"authorization": "Bearer "},
               {"authorization": "Bearer töken".encode()})  # fmt: skip
        refused = [
            await client.request(m, p, headers=h, json={"ids": ["c050"]} if m == "POST" else None)
            for m, p in ways
            for h in bad
        ]
        let_in = [
            await client.post("/predict", json={"ids": ["c050"]}, headers={"authorization": f"bearer {token}"})
            for token in TOKENS
        ]
        return refused, let_in, await client.get("/health")

    refused, let_in, health = talk(app, work)
    assert {each.status_code for each in refused} == {401}
    assert {each.headers["www-authenticate"] for each in refused} == {"Bearer"}
    assert "Authorization: Bearer TOKEN" in refused[0].json()["error"]
    assert [each.status_code for each in let_in] == [200, 200]
    assert health.status_code == 200


def test_tokens_come_from_a_file_and_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "tokens"
    file.write_text(f"# for the tests\n{TOKENS[0]}\n\n")
    with pytest.warns(UserWarning, match=r"others on this machine can read these tokens: chmod 600"):
        Tokens.read(file)
    file.chmod(0o600)
    monkeypatch.setenv("ANYPARTY_SERVE_TOKEN", TOKENS[1])
    tokens = Tokens.read(file)
    assert all(tokens.let_in(f"Bearer {token}") for token in TOKENS)
    assert not tokens.let_in(f"Bearer {TOKENS[0]}x")
    monkeypatch.delenv("ANYPARTY_SERVE_TOKEN")
    assert not Tokens.read(file).let_in(f"Bearer {TOKENS[1]}")
    file.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="there is no token in it"):
        Tokens.read(file)
    file.write_text("short\n")
    with pytest.raises(ConfigError, match="16 letters or more"):
        Tokens.read(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        Tokens.read(tmp_path / "absent")


def test_tokens_that_the_group_alone_can_read_are_said_too(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(TOKENS[0])
    file.chmod(0o640)
    with pytest.warns(UserWarning, match="others on this machine can read these tokens"):
        Tokens.read(file)


def test_every_token_is_compared_and_in_a_time_that_says_nothing(monkeypatch):
    real, compared = hmac.compare_digest, []
    monkeypatch.setattr(hmac, "compare_digest", lambda one, other: compared.append(other) or real(one, other))
    tokens = Tokens.of(TOKENS)
    assert tokens.let_in(f"Bearer {TOKENS[0]}")
    assert compared == list(tokens.hashes)


def test_strangers_are_not_served_without_a_token_or_a_certificate(tmp_path):
    for name in ("cert.pem", "key.pem", "ca.pem"):
        (tmp_path / name).write_text("")
    tls = certificates(tmp_path / "cert.pem", tmp_path / "key.pem", None)
    both = certificates(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem")
    check_open_to("127.0.0.1", Tokens(()), None)
    check_open_to("0.0.0.0", Tokens.of(TOKENS), None)  # noqa: S104
    check_open_to("0.0.0.0", Tokens(()), both)  # noqa: S104
    for host in ("0.0.0.0", "vfl.bank.example"):  # noqa: S104
        with pytest.raises(ConfigError, match="anybody could ask"):
            check_open_to(host, Tokens(()), tls)
    with pytest.raises(ConfigError, match="both --tls-cert and --tls-key"):
        certificates(tmp_path / "cert.pem", None, None)
    with pytest.raises(ConfigError, match=r"absent.pem: no such file"):
        certificates(tmp_path / "absent.pem", tmp_path / "key.pem", None)


def test_a_web_page_may_not_ask_under_a_name_of_its_own(run):
    answer = ask(application(run), json={"ids": ["c050"]}, headers={"host": "evil.example"})
    assert answer.status_code == 400
    assert answer.json() == {
        "error": "this service goes by 127.0.0.1 and localhost and [::1], not by the host 'evil.example'"
    }
    for host in ("localhost:8080", "LocalHost", "[::1]:8080", "127.0.0.1"):
        assert ask(application(run), json={"ids": ["c050"]}, headers={"host": host}).status_code == 200
    there = {"host": "127.0.0.2:8080"}
    assert ask(application(run), json={"ids": ["c050"]}, headers=there).status_code == 400
    assert ask(application(run, host="127.0.0.2"), json={"ids": ["c050"]}, headers=there).status_code == 200


@pytest.mark.parametrize(
    ("client", "let_in"),
    [
        (("127.0.0.1", 9), True), (("127.8.0.1", 9), True), (("::1", 9), True), (("::ffff:127.0.0.1", 9), True),
        (None, True), (("", 0), True),  # of a unix socket
        (("10.9.8.7", 9), False), (("::ffff:10.9.8.7", 9), False), (("2001:db8::1", 9), False), (("a name", 9), False),
    ],
)  # fmt: skip
def test_without_a_token_no_other_machine_is_let_in_under_any_server(run, client, let_in):
    """Whatever the server listens on, and whatever name is asked for."""

    def asked(path, method="GET", **how):
        return ask(application(run, **how), path, method, client=client, json={"ids": ["c050"]})

    answers = [asked("/predict", "POST"), asked("/ready"), asked("/health")]
    assert {each.status_code for each in answers} == {200 if let_in else 403}
    if not let_in:
        said = f"without a token this service answers its own machine alone, and this request comes from {client[0]!r}"
        assert answers[0].json()["error"].startswith(said)
    assert asked("/predict", "POST", anywhere=True).status_code == 200
    assert asked("/predict", "POST", tokens=TOKENS).status_code == 401


def test_what_is_a_fair_time_for_a_party_goes_by_the_services_own_budget(run):
    """Not by what a client grants: see ``test_service``."""
    for budget_ms, fair_s in [(400, 0.3), (2_000, 1.5)]:
        served = application(run, limits=Limits(budget_ms=budget_ms))
        assert served.state.service.fair_s == pytest.approx(fair_s)


def test_limits_make_sense():
    with pytest.raises(ConfigError, match="limit ids must be above 0, got 0"):
        Limits(ids=0)
    with pytest.raises(ConfigError, match="above the most that a request may ask for"):
        Limits(budget_ms=60_000)


# ---- the command


def test_the_command_refuses_with_a_sentence(call, run, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    shown = call("serve", run, "--host", "0.0.0.0")  # noqa: S104
    assert shown.exit_code == 2
    assert "anybody could ask" in shown.stderr
    shown = call("serve", tmp_path)
    assert shown.exit_code == 2
    assert "neither a run" in shown.stderr


def test_a_second_service_says_so_before_it_is_announced(run, monkeypatch):
    app, said = application(run), []

    async def check():
        raise ConfigError("a prediction service runs beside it already")

    app.state.check = check
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr("anyparty.serving.http_server.application", lambda *_, **__: app)
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    with pytest.raises(ConfigError, match="runs beside it already"):
        serve(run, port=0, say=said.append)
    assert said == []


def test_an_answer_is_not_held_back():
    """Asyncio turns Nagle's algorithm off where a socket says that it is TCP: 40 ms for an answer in two pieces."""
    with listening("127.0.0.1", 0) as door:
        assert door.proto == socket.IPPROTO_TCP


def test_a_port_in_use_is_named(call, run, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        shown = call("serve", run, "--port", other.getsockname()[1])
    assert shown.exit_code == 2
    assert "cannot be listened on (Address already in use); free the port" in shown.stderr


def test_the_budget_is_the_requests_own(run):
    """Nobody waits where everybody answers."""
    opened, began = application(run), time.monotonic()
    assert ask(opened, json={"ids": ["c050"], "budget_ms": 10_000}).status_code == 200
    assert time.monotonic() - began < 9
