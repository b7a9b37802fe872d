"""The service over HTTP: answers, refusals and their texts."""

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
from anyparty.api.runs import predict_run
from anyparty.core.storage import writing
from anyparty.errors import ConfigError, ModelError, PredictionError
from anyparty.serving import application, backends, serve
from anyparty.serving.admission_middleware import AdmissionMiddleware, ServiceMetrics
from anyparty.serving.http_app import PredictionResponse
from anyparty.serving.http_server import listening_socket
from anyparty.serving.service_settings import BearerTokens, ServiceLimits, check_clients_authenticate, tls_files
from tests.conftest import adopt

TOKENS = ("a-token-of-the-tests", "another-token-of-theirs")
PATIENT = ServiceLimits(budget_ms=10_000, batch_budget_ms=10_000)  # for busy machines; no test waits so long


def run_client(app, work, client=("127.0.0.1", 9)):
    """Run ``work(client)`` against the running application, from the address ``client``."""

    async def whole():
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app=app, client=client)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
                return await work(http)

    return asyncio.run(asyncio.wait_for(whole(), 60))


def ask(app, path="/predict", method="POST", client=("127.0.0.1", 9), **how):
    async def work(http):
        return await http.request(method, path, **how)

    return run_client(app, work, client)


@pytest.fixture
def app(run):
    return application(run, limits=PATIENT)


# ---- answers


def test_answers_equal_the_predictions_of_the_run(app, run):
    frame = predict_run(run).frame()
    answer = ask(app, "/predict/batch", json={"ids": frame["id"].to_list()})
    assert answer.status_code == 200
    got = PredictionResponse.model_validate_json(answer.content).answers
    assert [each.id for each in got] == frame["id"].to_list()
    assert [each.prediction for each in got] == frame["prediction"].to_list()
    assert [" ".join(each.took_part) for each in got] == frame["parties"].to_list()
    assert [each.probabilities["yes"] for each in got] == pytest.approx(frame["p(yes)"].to_list(), abs=1e-6)
    assert {len(each.took_part) for each in got} == {1, 2}


def test_an_unknown_id_gets_a_reason(app):
    (got,) = ask(app, json={"ids": ["nobody"]}).json()["answers"]
    assert got["prediction"] is None
    assert got["probabilities"] is None
    assert got["reason"] == "no party here has a row with this id"


def test_an_id_with_a_lone_surrogate_is_unknown(app):
    asked = ["\ud800", "c050", "c050\udfff", "\ud800c050", " c050 "]
    answer = ask(app, content=json.dumps({"ids": asked}), headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    got = json.loads(answer.content)["answers"]
    assert [each["id"] for each in got] == asked
    assert [each["reason"] for each in got] == [
        reason and "no party here has a row with this id" for reason in (True, None, True, True, None)
    ]
    assert [each["prediction"] is None for each in got] == [True, False, True, True, False]


def test_tables_can_be_replaced(run, tmp_path):
    shop = pl.read_csv(run.parents[1] / "shop.csv").head(5)
    shop.with_columns(customer=pl.Series([f"n{i}" for i in range(5)])).write_csv(tmp_path / "new.csv")
    app = application(run, tables={"shop": tmp_path / "new.csv"})
    got = ask(app, json={"ids": ["n0", "c050"], "budget_ms": 10_000}).json()["answers"]
    assert got[0]["took_part"] == ["shop"]
    assert got[1]["reason"] == "no party here has a row with this id"
    with pytest.raises(PredictionError, match="no party 'shap'; did you mean 'shop'"):
        application(run, tables={"shap": tmp_path / "new.csv"})


@pytest.mark.filterwarnings("ignore::anyparty.errors.AnypartyWarning")
def test_cells_that_differ_from_training_are_remarked_on(run):
    folder = run.parents[1]
    bank = pl.read_csv(folder / "bank.csv", schema_overrides={"age": pl.Float64})
    row = pl.int_range(pl.len())
    odd = bank.with_columns(
        income=pl.when(row == 2).then(1e6).when(row == 4).then(None).otherwise("income"),
        age=pl.when(row == 4).then(None).otherwise("age"),
    )
    shop = pl.read_csv(folder / "shop.csv").with_columns(visits=pl.lit(1e6), town=pl.lit("Paris"))

    def remarks(bank, **how):
        app = application(run, tables={"bank": bank, "shop": shop}, limits=PATIENT)
        return [each["remarks"] for each in ask(app, json={"ids": ["c002", "c003", "c004"], **how}).json()["answers"]]

    far, usual, empty = remarks(odd)
    assert far[0].startswith("column 'income' is 1000000.0, more than 10 standard deviations from its mean in training")
    assert (len(far), usual, empty) == (1, [], ["the table of 'bank' has no cell in this row"])
    assert remarks(odd, parties=["shop"]) == [[], [], []]
    (sentence,) = remarks(odd.with_columns(age=None))[1]
    assert sentence.startswith(
        "more cells are empty than in training: column 'age' in 99 of 99 rows (in training in 0.0%)"
    )


def test_a_replaced_model_is_reported_and_not_served(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(backends, "CHECK_EVERY_S", 0.01)
    got, folder = [], tmp_path / "copy"
    shutil.copytree(trained, folder)
    run = adopt(folder / "runs" / "credit-laser-seed1")
    app = application(run, say=got.append, limits=PATIENT)
    weights = run / "parties" / "bank" / "model.safetensors"
    sentence = f"{run} now holds another model or alignment than the one served; restart the service"

    async def work(http):
        before = (await http.post("/predict", json={"ids": ["c050"]})).json()
        assert ((await http.get("/ready")).json()["model"], got) == ("", [])
        with writing(weights) as temporary:
            temporary.write_bytes(weights.read_bytes())
        assert (await http.get("/ready")).json()["model"] == sentence
        assert (await http.post("/predict", json={"ids": ["c050"]})).json() == before
        while not got:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert got == [sentence]

    run_client(app, work)


def test_a_replaced_alignment_is_reported(tmp_path):
    kept = tmp_path / "alignment.safetensors"
    kept.write_bytes(b"of training")
    check_staleness = backends.StalenessCheck(tmp_path)
    assert check_staleness() == ""
    with writing(kept) as temporary:
        temporary.write_bytes(b"of a prediction, after a table had changed")
    assert "now holds another model or alignment" in check_staleness()


def test_a_folder_without_a_run_or_federation_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"neither a run .* nor a federation's folder .* nor a party's kit"):
        application(tmp_path)
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(ModelError):
        application(tmp_path)


def test_a_regression_has_no_probabilities(tmp_path):
    rows = pl.DataFrame({"id": list("abcdefghij"), "x": list(range(10)), "y": [2.5 * i for i in range(10)]})
    other = rows.select("id", z=pl.col("x") ** 2)
    federation = Federation.from_tables({"a": rows, "b": other}, id="id", label="y")
    federation.train("laser", epochs=1, folder=tmp_path / "run", progress=False)
    with pytest.raises(ModelError, match="give tables"):
        application(tmp_path / "run")
    (got,) = ask(application(tmp_path / "run", tables={"a": rows, "b": other}), json={"ids": ["a"]}).json()["answers"]
    assert isinstance(got["prediction"], float)
    assert got["probabilities"] is None


# ---- state


def test_state_paths(app):
    async def work(client):
        await client.post("/predict", json={"ids": ["c050", "nobody"], "budget_ms": 10_000})
        return [await client.get(f"/{path}") for path in ("health", "ready", "about", "metrics", "openapi.json")]

    health, ready, about, metrics, described = run_client(app, work)
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
    ("body", "status", "text"),
    [
        (b"", 422, "the request should be a JSON object like"),
        (b"{", 400, "the request is not JSON"),
        (b"[]", 422, "the request should be a JSON object like"),
        (b"{}", 422, "ids: expected a value; got {}"),
        (b'{"ids": []}', 422, "ids: expected at least 1 of them"),
        (b'{"ids": "a"}', 422, "ids: expected a list, such as ['a']; got 'a'"),
        (b'{"ids": [9007199254740993.0]}', 422, "ids.0: numbers with a point or an exponent are rounded above 2^53"),
        (b'{"ids": ["a", 9.007199254740993e15]}', 422, "ids.1: numbers with a point or an exponent are rounded"),
        (b'{"ids": [-1e300]}', 422, "ids.0: numbers with a point or an exponent are rounded above 2^53"),
        (b'{"ids": [{"a": 1, "b": 1e16}]}', 422, "ids.0: numbers with a point or an exponent are rounded above 2^53"),
        (b'{"ids": ["9007199254740992.0"]}', 400, "ids.0: '9007199254740992.0' was rounded to a float"),
        (b'{"ids": ["a", "1e+16"]}', 400, "ids.1: '1e+16' was rounded to a float"),
        (b'{"ids": [true]}', 422, "ids.0: expected text, a number, or an object with these by id column; got True"),
        (b'{"ids": ["a", null]}', 422, "ids.1: expected text, a number, or an object with these by id"),
        (b'{"ids": ["a", {"town": "b"}]}', 400, "ids.1: expected the id column 'customer', got the columns 'town'"),
        (b'{"ids": ["a"], "party": ["shop"]}', 422, "unknown key 'party'; expected ids, parties or budget_ms"),
        (b'{"ids": ["a"], "parties": ["shap"]}', 400, "no party 'shap' with columns; did you mean 'shop'?"),
        (b'{"ids": ["a"], "parties": []}', 400, "'parties' is empty"),
        (b'{"ids": ["a"], "budget_ms": 0}', 422, "budget_ms: expected more than 0; got 0"),
        (b'{"ids": ["a"], "budget_ms": 1e9}', 422, "budget_ms is 1e+09, expected at most 10000"),
        (b'{"ids": ["a"], "budget_ms": NaN}', 422, "budget_ms: "),
        (b'{"ids": ["a"], "budget_ms": true}', 422, "budget_ms: expected a number; got True"),
        (b'{"ids": ["a"], "budget_ms": "50"}', 422, "budget_ms: expected a number; got '50'"),
        (b'{"ids": ["a"], "budget_ms": 1' + 400 * b"0" + b"}", 422, "budget_ms: expected a number"),
        (b'{"ids": ["a"], "budget_ms": 1' + 5000 * b"0" + b"}", 400, "a number in the request, such as"),
        (b'{"ids": ["\xff"]}', 400, "the request is not JSON"),
    ],
)  # fmt: skip
def test_an_invalid_request_gets_one_sentence(app, body, status, text):
    answer = ask(app, content=body, headers={"content-type": "application/json"})
    assert text in answer.json()["error"]
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"ids": [' + b"[], " * 200_000 + b"[]]}", "ids.0: expected text, a number"),
        (b'{"ids": ["a"], "parties": [' + b"7, " * 200_000 + b"7]}", "parties.0: expected text"),
        (b"{" + b", ".join(b'"k%d": 1' % n for n in range(100_000)) + b"}", "unknown key 'k0'"),
        (b'{"ids": ["a"], "parties": ["' + b"x" * 10**6 + b'"]}', "the model has no party 'xxx"),
        (b'{"' + b"x" * 10**6 + b'": 1}', "unknown key 'xxx"),
    ],
    ids=["ids", "parties", "keys", "a long party", "a long key"],
)
def test_only_the_first_of_many_mistakes_is_reported(app, body, text):
    answer = ask(app, "/predict/batch", content=body, headers={"content-type": "application/json"})
    assert text in answer.json()["error"]
    assert len(answer.content) < 1000


def test_too_many_ids_are_refused_with_the_limit(run):
    app = application(run, limits=ServiceLimits(ids=3, batch_ids=5))
    answer = ask(app, json={"ids": ["a"] * 4})
    assert (answer.status_code, answer.json()["error"]) == (413, "4 ids in one request; /predict takes at most 3")
    answer = ask(app, "/predict/batch", json={"ids": ["a"] * 6})
    assert answer.json()["error"] == "6 ids in one request; /predict/batch takes at most 5"
    assert ask(app, "/predict/batch", json={"ids": ["a"] * 5}).status_code == 200


def test_ten_million_ids_are_refused_unread(app):
    body = len(json.dumps({"ids": [f"{i:08d}" for i in range(1000)]})) * 10_000
    for path, limit in (("/predict", "100 ids"), ("/predict/batch", "10,000 ids")):
        status, got, read = raw(app, path, {"content-length": str(body)}, iter(()))
        assert status == 413
        assert f"{path} takes at most {limit}" in got
        assert read == 0


def test_a_body_without_a_length_is_read_up_to_the_limit(app):
    """Endless chunks, as with ``Transfer-Encoding: chunked``."""
    chunk = b'"1234567890",' * 8192
    status, got, read = raw(app, "/predict/batch", {"transfer-encoding": "chunked"}, iter(lambda: chunk, None))
    assert status == 413
    assert "at most 10,000 ids and 2,564,096 bytes" in got
    assert read <= 2_564_096 + 2 * len(chunk)


def test_a_length_in_other_digits_is_refused(app):
    scope = {"content-length": "\xb2"}  # a superscript two, which is a digit and not decimal
    status, *_ = raw(app, "/predict", scope, iter(()))
    assert status == 413


def test_a_body_that_does_not_arrive_times_out(run):
    app = application(run, limits=ServiceLimits(body_s=0.05))
    status, got, _ = raw(app, "/predict", {"content-length": "100"}, None)
    assert (status, got) == (408, "the request did not arrive within 0.05 s")


def raw(app, path, headers, chunks):
    """Call an application without a client; return the status, the sentence and the number of bytes read."""
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


def test_requests_above_the_limit_are_asked_to_retry(run):
    app = application(run, limits=ServiceLimits(at_once=2))

    async def work(client):
        return await asyncio.gather(*(client.post("/predict", json={"ids": ["c050"] * 100}) for _ in range(12)))

    answers = run_client(app, work)
    busy = [each for each in answers if each.status_code == 503]
    assert busy
    assert busy[0].headers["retry-after"] == "1"
    assert "requests are open already" in busy[0].json()["error"]
    assert {each.status_code for each in answers} == {200, 503}


def middleware_around(work, **limits):
    """Return a middleware around ``work``, which sends no answer, a function to call it, and the list of statuses."""
    got = []

    async def app(scope, receive, send):
        await work(middleware)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        got.extend([message["status"]] if "status" in message else [])

    middleware = AdmissionMiddleware(
        app, limits=ServiceLimits(**limits), tokens=BearerTokens(()), metrics=ServiceMetrics([], set)
    )
    scope = {"type": "http", "path": "/predict", "headers": [], "client": None}
    return middleware, lambda: middleware(scope, receive, send), got


def test_concurrent_requests_are_limited():
    async def four():
        go, admitted = asyncio.Event(), []

        async def waits(middleware):
            admitted.append(middleware.open)
            await go.wait()

        _, send_request, got = middleware_around(waits, at_once=2)
        tasks = [asyncio.create_task(send_request()) for _ in range(4)]
        while len(admitted) + len(got) < 4:
            await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*tasks)
        return admitted, got

    assert asyncio.run(asyncio.wait_for(four(), 60)) == ([1, 2], [503, 503])


def test_a_failed_request_frees_its_place():
    async def fails(middleware):
        raise RuntimeError("it breaks")

    middleware, send_request, got = middleware_around(fails, at_once=1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="it breaks"):
            asyncio.run(send_request())
    assert (middleware.open, got) == (0, [])


# ---- authentication


def test_every_path_but_health_requires_a_token(run):
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
        admitted = [
            await client.post("/predict", json={"ids": ["c050"]}, headers={"authorization": f"bearer {token}"})
            for token in TOKENS
        ]
        return refused, admitted, await client.get("/health")

    refused, admitted, health = run_client(app, work)
    assert {each.status_code for each in refused} == {401}
    assert {each.headers["www-authenticate"] for each in refused} == {"Bearer"}
    assert "Authorization: Bearer TOKEN" in refused[0].json()["error"]
    assert [each.status_code for each in admitted] == [200, 200]
    assert health.status_code == 200


def test_tokens_come_from_a_file_and_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "tokens"
    file.write_text(f"# for the tests\n{TOKENS[0]}\n\n")
    with pytest.warns(UserWarning, match=r"others on this machine can read these tokens: chmod 600"):
        BearerTokens.read(file)
    file.chmod(0o600)
    monkeypatch.setenv("ANYPARTY_SERVE_TOKEN", TOKENS[1])
    tokens = BearerTokens.read(file)
    assert all(tokens.accepts(f"Bearer {token}") for token in TOKENS)
    assert not tokens.accepts(f"Bearer {TOKENS[0]}x")
    monkeypatch.delenv("ANYPARTY_SERVE_TOKEN")
    assert not BearerTokens.read(file).accepts(f"Bearer {TOKENS[1]}")
    file.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="there is no token in it"):
        BearerTokens.read(file)
    file.write_text("short\n")
    with pytest.raises(ConfigError, match="16 letters or more"):
        BearerTokens.read(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        BearerTokens.read(tmp_path / "absent")


def test_tokens_that_the_group_can_read_are_reported(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(TOKENS[0])
    file.chmod(0o640)
    with pytest.warns(UserWarning, match="others on this machine can read these tokens"):
        BearerTokens.read(file)


def test_every_token_is_compared_in_constant_time(monkeypatch):
    real, compared = hmac.compare_digest, []
    monkeypatch.setattr(hmac, "compare_digest", lambda one, other: compared.append(other) or real(one, other))
    tokens = BearerTokens.of(TOKENS)
    assert tokens.accepts(f"Bearer {TOKENS[0]}")
    assert compared == list(tokens.hashes)


def test_other_machines_need_a_token_or_a_certificate(tmp_path):
    for name in ("cert.pem", "key.pem", "ca.pem"):
        (tmp_path / name).write_text("")
    tls = tls_files(tmp_path / "cert.pem", tmp_path / "key.pem", None)
    both = tls_files(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem")
    check_clients_authenticate("127.0.0.1", BearerTokens(()), None)
    check_clients_authenticate("0.0.0.0", BearerTokens.of(TOKENS), None)  # noqa: S104
    check_clients_authenticate("0.0.0.0", BearerTokens(()), both)  # noqa: S104
    for host in ("0.0.0.0", "vfl.bank.example"):  # noqa: S104
        with pytest.raises(ConfigError, match="other machines could ask"):
            check_clients_authenticate(host, BearerTokens(()), tls)
    with pytest.raises(ConfigError, match="both --tls-cert and --tls-key"):
        tls_files(tmp_path / "cert.pem", None, None)
    with pytest.raises(ConfigError, match=r"absent.pem: no such file"):
        tls_files(tmp_path / "absent.pem", tmp_path / "key.pem", None)


def test_an_unknown_host_name_is_refused(run):
    answer = ask(application(run), json={"ids": ["c050"]}, headers={"host": "evil.example"})
    assert answer.status_code == 400
    assert answer.json() == {
        "error": "the host name of this service is one of 127.0.0.1, localhost, [::1], not 'evil.example'"
    }
    for host in ("localhost:8080", "LocalHost", "[::1]:8080", "127.0.0.1"):
        assert ask(application(run), json={"ids": ["c050"]}, headers={"host": host}).status_code == 200
    there = {"host": "127.0.0.2:8080"}
    assert ask(application(run), json={"ids": ["c050"]}, headers=there).status_code == 400
    assert ask(application(run, host="127.0.0.2"), json={"ids": ["c050"]}, headers=there).status_code == 200


@pytest.mark.parametrize(
    ("client", "admitted"),
    [
        (("127.0.0.1", 9), True), (("127.8.0.1", 9), True), (("::1", 9), True), (("::ffff:127.0.0.1", 9), True),
        (None, True), (("", 0), True),  # behind a Unix socket
        (("10.9.8.7", 9), False), (("::ffff:10.9.8.7", 9), False), (("2001:db8::1", 9), False), (("a name", 9), False),
    ],
)  # fmt: skip
def test_without_a_token_other_machines_are_refused(run, client, admitted):
    """The application checks it, under any server and host name."""

    def asked(path, method="GET", **how):
        return ask(application(run, **how), path, method, client=client, json={"ids": ["c050"]})

    answers = [asked("/predict", "POST"), asked("/ready"), asked("/health")]
    assert {each.status_code for each in answers} == {200 if admitted else 403}
    if not admitted:
        text = f"without a token this service answers its own machine only, and this request comes from {client[0]!r}"
        assert answers[0].json()["error"].startswith(text)
    assert asked("/predict", "POST", anywhere=True).status_code == 200
    assert asked("/predict", "POST", tokens=TOKENS).status_code == 401


def test_the_time_that_counts_as_a_miss_depends_on_the_services_budget(run):
    """Not on the budget of a request; see ``test_predictor``."""
    for budget_ms, min_wait_s in [(400, 0.3), (2_000, 1.5)]:
        served = application(run, limits=ServiceLimits(budget_ms=budget_ms))
        assert served.state.predictor.min_wait_s == pytest.approx(min_wait_s)


def test_invalid_limits_are_refused():
    with pytest.raises(ConfigError, match="limit ids must be above 0, got 0"):
        ServiceLimits(ids=0)
    with pytest.raises(ConfigError, match="above the most that a request may ask for"):
        ServiceLimits(budget_ms=60_000)


# ---- queues, monitors and headers


def test_a_request_that_was_read_too_late_is_refused(app, run):
    """The server stores in the request's state when the request arrived."""

    async def late(scope, receive, send):
        if scope["type"] == "http":
            scope["state"] = {"arrived": asyncio.get_running_loop().time() - 1.0}
        await app(scope, receive, send)

    late.router, app = app.router, application(run)
    answer = ask(late, json={"ids": ["c050"]})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"].startswith("the service is busy: the request waited 1")
    assert ask(late, "/predict/batch", json={"ids": ["c050"]}).status_code == 200  # its budget is 2 s
    assert ask(late, "/health", "GET").status_code == 200
    assert app.state.metrics.overdue._value.get() == 1


@pytest.mark.parametrize("needs_parties", [False, True])
def test_ready_tells_that_the_active_party_is_alone(run, needs_parties):
    served = application(run, needs_parties=needs_parties)

    async def leaving(http):
        before = await http.get("/ready")
        served.state.predictor.best_peers().multiplexer.lose("shop", "it left")
        return before, await http.get("/ready")

    before, after = run_client(served, leaving)
    assert (before.status_code, before.json()["status"]) == (200, "ready")
    assert (after.status_code, after.json()["status"]) == (503 if needs_parties else 200, "alone")
    assert after.json()["parties"] == {"shop": "it left"}


def test_the_port_for_monitors_has_no_other_path(run):
    served = application(run, admin_ports=[81])
    for port, expected in ((80, 200), (81, 404)):

        def there(scope, receive, send, port=port):
            return served(scope | {"server": ("127.0.0.1", port)}, receive, send)

        there.router = served.router
        assert ask(there, json={"ids": ["c050"]}).status_code == expected
        assert ask(there, "/about", "GET").status_code == expected
        assert {ask(there, path, "GET").status_code for path in ("/health", "/ready", "/metrics")} == {200}


def test_two_lengths_of_a_body_are_refused(app):
    """A proxy could see another end of the request than the service (request smuggling)."""
    headers = {"content-length": "16", "transfer-encoding": "chunked"}
    answer = ask(app, content=b'{"ids": ["c050"]}', headers=headers)
    assert answer.status_code == 400
    assert "either the header Transfer-Encoding or Content-Length" in answer.json()["error"]
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("size", [15_000, 17_000])
def test_headers_end_at_16_kib(app, size):
    expected = 200 if size < 16 << 10 else 431
    assert ask(app, "/health", "GET", headers={"x-long": "a" * size}).status_code == expected
    assert ask(app, "/health?" + "a" * size, "GET").status_code == expected
    assert (
        ask(app, "/health", "GET", headers=[(f"x-{n}", "a" * 96) for n in range(size // 100)]).status_code == expected
    )


# ---- the command


def test_the_command_reports_errors(call, run, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    shown = call("serve", run, "--host", "0.0.0.0")  # noqa: S104
    assert shown.exit_code == 2
    assert "other machines could ask" in shown.stderr
    shown = call("serve", tmp_path)
    assert shown.exit_code == 2
    assert "neither a run" in shown.stderr


def test_a_second_service_fails_before_it_announces_its_address(run, monkeypatch):
    app, got = application(run), []

    async def check():
        raise ConfigError("a prediction service runs for it already")

    app.state.check = check
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr("anyparty.serving.http_server.application", lambda *_, **__: app)
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    with pytest.raises(ConfigError, match="runs for it already"):
        serve(run, port=0, say=got.append)
    assert got == []


def test_the_listening_socket_names_its_protocol():
    """Asyncio then disables Nagle's algorithm, which would delay an answer in two packets by 40 ms."""
    with listening_socket("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_a_port_in_use_is_reported(call, run, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        shown = call("serve", run, "--port", other.getsockname()[1])
    assert shown.exit_code == 2
    assert "(Address already in use); free the port" in shown.stderr


def test_a_long_budget_is_not_used_up(run):
    """A request ends when all parties have answered."""
    opened, began = application(run, limits=ServiceLimits(most_budget_ms=600_000)), time.monotonic()
    assert ask(opened, json={"ids": ["c050"], "budget_ms": 600_000}).status_code == 200
    assert time.monotonic() - began < 60  # a tenth of the budget, on busy machines too


# ---- ids of several columns, and ids with a type


def folder_of(home, frames, **how):
    """Train on the frames as Parquet files, which keep types; return the run's folder."""
    tables = {}
    for name, frame in frames.items():
        tables[name] = home / f"{name}.parquet"
        frame.write_parquet(tables[name])
    Federation.from_tables(tables, label="y", **how).train(epochs=1, balance=True, folder=home / "run")
    return home / "run"


def two_tables(*ids):
    """Return tables of two parties with the id columns ``ids``; the shop lacks the last ten rows."""
    own = pl.DataFrame({"x": range(40), "y": ["no", "yes", "no", "no"] * 10})
    shop = pl.DataFrame(ids).with_columns(z=pl.row_index() * 1.5)
    return {"bank": pl.DataFrame(ids).hstack(own), "shop": shop[:30].reverse()}


@pytest.fixture(scope="module")
def branches(tmp_path_factory):
    """A service for branches, which are texts with leading zeros, and accounts, which are whole numbers."""
    branch = pl.Series("branch", [f"{n % 4:03}" for n in range(40)])
    account = pl.Series("account", [10 + n // 4 for n in range(40)])
    run = folder_of(tmp_path_factory.mktemp("branches"), two_tables(branch, account), id=["branch", "account"])
    app = application(run, limits=PATIENT)
    app.state.folder = run
    return app


def test_ids_of_several_columns_are_named_and_returned_with_their_types(branches):
    asked = [{"branch": "001", "account": 12}, {"account": "12", "branch": " 001 "}, {"branch": "003", "account": 19.0}]
    answer = ask(branches, json={"ids": asked})
    assert answer.status_code == 200
    first, same, last = PredictionResponse.model_validate_json(answer.content).answers
    assert first.id == same.id == {"branch": "001", "account": 12}
    assert first.prediction == same.prediction is not None
    assert first.took_part == ["bank", "shop"]
    assert (last.id, last.took_part) == ({"branch": "003", "account": 19}, ["bank"])
    assert list(json.loads(answer.content)["answers"][0]["id"]) == ["branch", "account"]
    assert type(json.loads(answer.content)["answers"][1]["id"]["account"]) is int


def test_answers_by_columns_equal_the_predictions_of_the_run(branches):
    frame = predict_run(branches.state.folder).frame()
    ids = frame.select("branch", "account").to_dicts()
    got = ask(branches, "/predict/batch", json={"ids": ids}).json()["answers"]
    assert [each["id"] for each in got] == ids
    assert [each["probabilities"]["yes"] for each in got] == pytest.approx(frame["p(yes)"].to_list(), abs=1e-6)


@pytest.mark.parametrize(("branch", "account"), [("1", 12), ("001", 99), ("001\x1f12", 12), ("", 12)])
def test_an_unknown_id_of_several_columns_is_returned_as_requested(branches, branch, account):
    known, unknown = {"branch": "001", "account": 12}, {"branch": branch, "account": account}
    first, got = ask(branches, json={"ids": [known, unknown]}).json()["answers"]
    assert got["id"] == unknown
    assert got["prediction"] is None
    assert first["reason"] is None
    assert got["reason"] == "no party here has a row with this id"


@pytest.mark.parametrize(
    ("wrong", "status", "sentence"),
    [
        ("001", 400, """an object with the id columns, such as {"branch": "...", "account": "..."}, got '001'"""),
        ("001\x1f12", 400, "ids.1: expected an object with the id columns"),
        (12, 400, "ids.1: expected an object with the id columns"),
        ({"branch": "001"}, 400, "got the columns 'branch'"),
        ({"branch": "001", "account": 12, "town": "x"}, 400, "got the columns 'branch', 'account', 'town'"),
        ({}, 422, "ids.1: expected text, a number, or an object with these by id column; got {}"),
        ({"branch": "001", "account": None}, 422, "ids.1: expected text, a number, or an object"),
        ({"branch": ["001"], "account": 12}, 422, "ids.1: expected text, a number, or an object"),
        ([["001", 12]], 422, "ids.1: expected text, a number, or an object"),
        (True, 422, "ids.1: expected text, a number, or an object"),
    ],
)  # fmt: skip
def test_an_id_of_another_shape_gets_a_sentence(branches, wrong, status, sentence):
    answer = ask(branches, json={"ids": [{"branch": "001", "account": 12}, wrong]})
    assert answer.status_code == status
    assert sentence in answer.json()["error"]


def test_the_interface_names_the_id_columns(branches):
    assert ask(branches, "/about", "GET").json()["id_columns"] == ["branch", "account"]
    schemas = ask(branches, "/openapi.json", "GET").json()["components"]["schemas"]
    for kinds in (schemas["PredictionRequest"]["properties"]["ids"]["items"], schemas["RowAnswer"]["properties"]["id"]):
        assert {each["type"] for each in kinds["anyOf"]} == {"string", "integer", "number", "object"}
    assert {"ids": [{"branch": "1", "account": 2}]} in schemas["PredictionRequest"]["examples"]


@pytest.mark.parametrize(
    ("ids", "known", "unknown", "returned"),
    [
        (pl.Series("id", range(40)), [7, "7", 7.0], ["07", 7.5], [7, 7, 7]),
        (pl.Series("id", [n + 0.5 for n in range(40)]), [7.5, "7.5"], [7], [7.5, 7.5]),
        (pl.Series("id", [f"{n:02}" for n in range(40)]), [" 07", "07", {"id": "07"}], [7], [" 07", "07", "07"]),
        (pl.date_range(pl.date(2020, 1, 1), pl.date(2020, 2, 9), eager=True).alias("id"), ["2020-01-08"], [20],
         ["2020-01-08"]),
    ],
)  # fmt: skip
def test_ids_come_back_with_the_type_of_the_table(tmp_path, ids, known, unknown, returned):
    app = application(folder_of(tmp_path, two_tables(ids), id="id"), limits=PATIENT)
    got = json.loads(ask(app, json={"ids": known + unknown}).content)["answers"]
    expected = returned + unknown
    assert [(type(each["id"]), each["id"]) for each in got] == [(type(each), each) for each in expected]
    assert [each["prediction"] is not None for each in got] == [True] * len(known) + [False] * len(unknown)


def test_a_number_that_no_column_can_hold_is_unknown(tmp_path):
    app = application(folder_of(tmp_path, two_tables(pl.Series("id", range(40))), id="id"), limits=PATIENT)
    huge = 10**30
    (got,) = json.loads(ask(app, json={"ids": [huge]}).content)["answers"]
    assert got["reason"] == "no party here has a row with this id"
    answer = ask(app, content='{"ids": [NaN]}', headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("ids.0: expected text, a number")
