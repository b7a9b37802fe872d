"""The predictor answers with all connected parties, and leaves out parties that are slow, lost or wrong."""

import asyncio
import contextlib
import re
from dataclasses import dataclass, replace
from types import SimpleNamespace

import polars as pl
import pytest
import torch

from anyparty.config import Config
from anyparty.core.types import ChannelWrapper, TensorSpec
from anyparty.errors import AnypartyWarning, ModelError, PartyLost, PredictionError
from anyparty.serving import predictor as predictor_module
from anyparty.serving import request_batcher
from anyparty.serving import serving_protocol as protocol
from anyparty.serving.loaded_party import load_party
from anyparty.serving.peer_group import CircuitBreaker
from anyparty.serving.responder import serve_at_site
from anyparty.serving.serving_protocol import NUMBER_KEY, Multiplexer
from tests import controlled_clocks
from tests.deployment.test_site_training import run, settings, trained_again, world
from tests.serving.trained_parties import LONG_S, SHORT_S, GatedChannel, TrainedParties, responding

METHODS = {
    "laser": {},
    "standard": {"name": "standard"},
    "ensemble": {"name": "ensemble"},
    "combinatorial": {"name": "combinatorial"},
    "plug": {"name": "plug"},
    "local": {"name": "local"},
    "false-vfl-1": {"name": "false-vfl-1", "top": 4, "hidden": [8], "head_hidden": [8], "predict_samples": 4},
    "apc, what crossed is kept": {"name": "apc", "classify_on": "either"},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return TrainedParties.train(tmp_path_factory.mktemp("houses"))


@pytest.mark.parametrize("comes", [True, False])
def test_a_busy_loop_does_not_count_a_message_in_time_as_late(comes):
    """A message that arrived in time is still in a socket, some turns of the loop away."""

    async def busy():
        loop = asyncio.get_running_loop()
        multiplexer = Multiplexer(channel=SimpleNamespace(me="bank"), routes=[])
        request = multiplexer.open(0, loop.time() + 0.01, 0.01)
        answer = asyncio.create_task(request.recv("shop", "embedding", {"x": TensorSpec((1,))}))
        await asyncio.sleep(0)

        def reads(turns):
            if turns:
                loop.call_soon(reads, turns - 1)
            elif comes:
                request.put(("shop", "embedding"), {"x": torch.ones(1)})

        loop.call_soon(reads, 6)
        loop.now += 0.1  # a batch blocks this loop
        with contextlib.nullcontext() if comes else pytest.raises(PartyLost, match="did not answer within 10 ms"):
            assert float((await answer)["x"]) == 1
        return request.late

    assert play(busy()) == (set() if comes else {"shop"})


def play(work):
    """Run on a clock that stands still while any party computes, so that slow machines change nothing."""
    return controlled_clocks.run(asyncio.wait_for(work, LONG_S))


def probabilities_of(answers):
    return {each.id: each.probabilities for each in answers}


def close(one, other):
    return one.keys() == other.keys() and all(
        (p is None and q is None) or (p is not None and q is not None and p == pytest.approx(q, abs=1e-5))
        for p, q in ((one[name], other[name]) for name in one)
    )


async def predict_ids(trained, ids, budget_s=LONG_S, parties=None, predictor=None, **how):
    predictor = predictor or trained.predictor()
    async with responding(trained, predictor, **how):
        return await predictor.predict(ids, parties, budget_s=budget_s)


def expected_without(trained, *absent, ids=None):
    """The expected probabilities if these parties are absent."""
    ids = ids or trained.ids("bank")
    parties = [name for name in ("bank", "shop", "clinic") if name not in absent]
    return probabilities_of(play(predict_ids(trained, ids, parties=parties)))


# ---- all parties are connected


@pytest.mark.parametrize("name", METHODS)
def test_predictions_equal_those_of_the_model(tmp_path, name):
    trained = TrainedParties.train(tmp_path / "houses", **METHODS[name])
    predictions = play(predict_ids(trained, trained.ids("bank")))
    model = trained.model(tmp_path / "model")
    tables = {name: site.table for name, site in trained.sites.items()}
    frame = model.predict(tables).frame().filter(pl.col("id").is_in(trained.ids("bank")))
    expected = {row["id"]: row for row in frame.iter_rows(named=True)}
    assert len(predictions) == len(expected) == 48
    for each in predictions:
        row = expected[each.id]
        if name == "ensemble" and row["parties"].count(" ") == 1:
            continue  # a tie of two voters is broken by the row keys, which differ after private alignment
        assert " ".join(each.took_part) == (row["parties"] or "")
        assert each.prediction == row["prediction"]
        if each.probabilities is None:
            assert row["p(0)"] is None
            assert each.reason == row["reason"]
        else:
            assert each.probabilities == pytest.approx({"0": row["p(0)"], "1": row["p(1)"]}, abs=1e-6)
        assert each.silent == {}
        assert each.aligned


def two_hosts(folder):
    """Train parties of which the shop also has labels and hosts heads."""
    sites = world(folder, n=60)
    shop = pl.read_csv(sites["shop"].table).with_columns(y=pl.Series([0, 1] * 24))
    shop.write_csv(sites["shop"].table)
    values = settings(epochs=2).model_dump(exclude_none=True)
    values["parties"]["shop"]["label"] = "y"
    values["method"] = {"name": "laser", "embedding": 8, "hosting": "labelers"}
    run(sites, Config.of(values))
    return TrainedParties(sites)


@pytest.mark.parametrize("misses", [0, 3])
def test_passive_hosts_answer_too(tmp_path, misses):
    """Every label holder hosts heads: passive parties exchange embeddings and return outputs.

    If a party hangs and is only probed, another host neither waits for it nor uses it.
    """
    trained = two_hosts(tmp_path / "houses")
    predictor, sites = trained.predictor(), trained.sites
    predictor.breaker.misses["clinic"] = misses
    predictions = play(predict_ids(trained, trained.ids("bank"), predictor=predictor))
    there = [name for name in sites if not misses or name != "clinic"]
    model, tables = trained.model(tmp_path / "model"), {name: sites[name].table for name in there}
    expected = {row["id"]: row["p(1)"] for row in model.predict(tables).frame().iter_rows(named=True)}
    for each in predictions:
        assert each.probabilities["1"] == pytest.approx(expected[each.id], abs=1e-6)
    assert any("shop" in each.took_part for each in predictions)
    assert any("clinic" in each.took_part for each in predictions) == (not misses)


@pytest.mark.parametrize("classify_on", ["own", "joint"])
def test_a_method_that_predicts_alone_sends_no_request(tmp_path, classify_on):
    """If prediction needs no messages, no other party learns of a request.

    The shop has labels, like a host of heads.
    """
    sites = world(tmp_path, n=60)
    shop = pl.read_csv(sites["shop"].table).with_columns(y=pl.Series([0, 1] * 24))
    shop.write_csv(sites["shop"].table)
    values = settings(epochs=2).model_dump(exclude_none=True)
    values["parties"]["shop"]["label"] = "y"
    config = Config.of(values | {"method": {"name": "apc", "embedding": 8, "classify_on": classify_on}})
    with pytest.warns(AnypartyWarning, match="the labels of party 'shop' are not used"):
        run(sites, config)
    trained = TrainedParties(sites)
    asked = {"shop": [], "clinic": []}
    wrap = {name: lambda net, name=name: RecordingChannel(net, asked[name]) for name in asked}
    predictions = play(predict_ids(trained, trained.ids("bank"), wrap=wrap))
    alone = classify_on == "own"
    assert all(each.prediction is not None for each in predictions) == alone
    assert {each.asked for each in predictions} == {("bank",)} or not alone
    assert max(map(len, asked.values())) == (0 if alone else 1)


def test_an_estimator_is_refitted_before_the_first_request(tmp_path):
    trained = TrainedParties.train(tmp_path, name="apc", classifier="DecisionTreeClassifier")
    assert trained.predictor().party.state.modules["classifier"].made is not None


def test_a_model_without_labels_is_not_served(tmp_path):
    sites = world(tmp_path, n=60)
    bank = pl.read_csv(sites["bank"].table)
    bank.with_columns(pl.lit(None, pl.String).alias("y")).write_csv(sites["bank"].table)
    values = settings(epochs=1).model_dump(exclude_none=True)
    run(sites, Config.of(values | {"method": {"name": "false-vfl-1", "embedding": 4}}))
    with pytest.raises(PredictionError, match="no row had a label in training"):
        TrainedParties(sites).predictor()


@dataclass
class RecordingChannel(ChannelWrapper):
    """A channel that records the requested rows."""

    asked: list

    async def recv(self, frm, tag, expect):
        got = await self.channel.recv(frm, tag, expect)
        if tag == protocol.ASK:
            self.asked.append(got["rows"].clone())
        return got


def test_a_request_names_only_rows_that_the_receiver_holds(trained):
    asked = {"shop": [], "clinic": []}
    wrap = {name: lambda net, name=name: RecordingChannel(net, asked[name]) for name in asked}
    predictor = trained.predictor()
    play(predict_ids(trained, trained.ids("bank"), predictor=predictor, wrap=wrap))
    places = predictor.index.aligned[torch.tensor(predictor.index.find(trained.ids("bank")))]
    for name, asked_rows in asked.items():
        kept, _, _ = load_party(trained.sites[name])
        has = kept.position[places] >= 0
        assert 0 < int(has.sum()) < len(places)
        (rows,) = [each for each in asked_rows if len(each)]  # the other message is the end
        assert torch.equal(rows, torch.where(has, places, protocol.NO_ROW))
        assert torch.equal(kept.own_rows(rows), kept.own_rows(places))


def test_ids_are_compared_as_tables_compare_them(trained):
    first, second, *_ = trained.ids("bank")
    predictions = play(predict_ids(trained, [second, f" {first} ", "nobody", "", second]))
    assert [each.id for each in predictions] == [second, f" {first} ", "nobody", "", second]
    assert [each.prediction is None for each in predictions] == [False, False, True, True, False]
    assert predictions[2].reason == "'bank', which is asked, has no row with this id"
    assert predictions[0] == predictions[4]


def test_many_ids_are_requested_in_chunks(trained, monkeypatch):
    whole = expected_without(trained)
    monkeypatch.setattr(predictor_module, "MAX_ROWS", 7)
    assert close(expected_without(trained), whole)


def test_the_caller_restricts_the_parties(trained):
    predictions = play(predict_ids(trained, trained.ids("bank"), parties=["shop"]))
    assert {each.took_part for each in predictions} == {("shop",), ()}
    assert all((each.prediction is None) == (each.took_part == ()) for each in predictions)
    with pytest.raises(PredictionError, match="the model has no party 'shopp' with columns; did you mean 'shop'"):
        play(predict_ids(trained, ["a"], parties=["shopp"]))
    with pytest.raises(PredictionError, match="'parties' is empty"):
        play(predict_ids(trained, ["a"], parties=[]))


def test_overlapping_requests_do_not_mix(trained, monkeypatch):
    """Twenty concurrent requests, each a batch of its own, which each party answers in another order."""
    monkeypatch.setattr(request_batcher, "INLINE_ROWS", 1)

    class Shuffled(GatedChannel):
        async def send(self, to, tag, tensors):
            if NUMBER_KEY in tensors and tag != protocol.HELLO:
                for _ in range(int(tensors[NUMBER_KEY]) * 7919 % 13):
                    await asyncio.sleep(0)
            await self.channel.send(to, tag, tensors)

    async def many():
        predictor = trained.predictor()
        async with responding(trained, predictor, {"shop": Shuffled, "clinic": Shuffled}):
            return await asyncio.gather(*(predictor.predict([name], budget_s=LONG_S) for name in ids))

    ids = trained.ids("bank")[:20]
    assert close({each.id: each.probabilities for (each,) in play(many())}, expected_without(trained, ids=ids))


def counting(tag, got):
    """Return a wrapper of channels that appends each sent message with a tag to ``got``."""

    class Counting(GatedChannel):
        async def send(self, to, sent, tensors):
            if sent == tag:
                got.append(tensors)
            await self.channel.send(to, sent, tensors)

    return Counting


def test_concurrent_requests_share_messages(trained):
    """Their answers and metrics are those of separate requests; a request for other parties shares none of them."""
    asked, outcomes, ids = [], [], trained.ids("bank")[:20]

    async def many():
        predictor = trained.predictor()
        predictor.on_outcome = outcomes.append
        async with responding(trained, predictor, channel=counting(protocol.ASK, asked)):
            return await asyncio.gather(
                *(predictor.predict([name, "nobody"], budget_s=LONG_S) for name in ids),
                predictor.predict(ids, ["bank", "shop"], budget_s=LONG_S),
            )

    *single, other = play(many())
    assert all(unknown.reason is not None and unknown.id == "nobody" for _, unknown in single)
    assert close({each.id: each.probabilities for each, _ in single}, expected_without(trained, ids=ids))
    assert close(probabilities_of(other), expected_without(trained, "clinic", ids=ids))
    assert len([each for each in asked if each[NUMBER_KEY] >= 0]) == 3  # shop and clinic, then the shop
    assert len(outcomes) == 21
    assert [set(each.answered) for each in outcomes[:20]] == [set(each.asked) - {"bank"} for each, _ in single]


def test_a_mistake_in_one_of_the_concurrent_requests_concerns_only_that_one(trained):
    async def many():
        predictor = trained.predictor()
        return await asyncio.gather(
            *(predictor.predict([name], budget_s=LONG_S) for name in (ids[0], {"branch": "1"}, ids[1])),
            return_exceptions=True,
        )

    ids = trained.ids("bank")
    first, wrong, last = play(many())
    assert (first[0].id, last[0].id) == (ids[0], ids[1])
    assert isinstance(wrong, PredictionError)
    assert str(wrong).startswith("ids.0: expected the id column 'id'")


def test_a_party_that_hangs_hardly_delays_other_requests(trained):
    """While both open batches wait for the shop, requests that do not need the shop are answered."""

    async def waiting():
        predictor = trained.predictor()
        async with responding(trained, predictor, {"shop": GatedChannel}):
            ids = trained.ids("bank")
            slow = [asyncio.create_task(predictor.predict(ids[:5], budget_s=LONG_S + n)) for n in range(2)]
            await asyncio.sleep(SHORT_S)
            assert len(predictor.batcher._open) == request_batcher.MAX_OPEN
            async with asyncio.timeout(LONG_S / 2):
                (own,) = await predictor.predict(ids[:1], ["bank"], budget_s=LONG_S)
            assert not any(task.done() for task in slow)
            for task in slow:
                task.cancel()
            return own.took_part

    assert play(waiting()) == ("bank",)


def test_a_request_that_waited_longer_than_its_budget_is_answered_by_the_active_party_alone(trained):
    asked, outcomes, ids = [], [], trained.ids("bank")[:5]

    async def late():
        predictor, now = trained.predictor(), asyncio.get_running_loop().time()
        predictor.on_outcome = outcomes.append
        async with responding(trained, predictor, channel=counting(protocol.ASK, asked)):
            return await predictor.predict(ids, budget_s=SHORT_S, arrived=now - 1.0)

    predictions = play(late())
    assert {each.took_part for each in predictions} == {("bank",)}
    (reason,) = {reason for each in predictions for reason in each.silent.values()}
    assert re.fullmatch(r"the request had waited 1\d\d\d ms in the service, longer than its budget", reason)
    assert [each for each in asked if each[NUMBER_KEY] >= 0] == []
    assert [(each.overdue, each.silent) for each in outcomes] == [(True, ())]


def test_the_time_in_the_queue_counts_towards_the_budget(trained):
    """A request that arrived earlier waits for the other parties only for the rest of its budget."""
    asked = []

    async def queued():
        predictor, loop = trained.predictor(), asyncio.get_running_loop()
        predictor.min_wait_s = LONG_S
        async with responding(trained, predictor, {"shop": GatedChannel}, channel=counting(protocol.ASK, asked)):
            began = loop.time()
            await predictor.predict(trained.ids("bank"), budget_s=LONG_S, arrived=began - LONG_S + SHORT_S)
            return loop.time() - began

    assert play(queued()) < LONG_S / 2
    assert 0 < float(asked[0]["within_s"]) < 1.1 * SHORT_S


# ---- a party is missing


def test_without_other_parties_the_own_block_answers_at_once(trained):
    async def alone():
        return await trained.predictor().predict(
            trained.ids("bank"), budget_s=LONG_S
        ), asyncio.get_running_loop().time()

    predictions, waited_s = play(alone())
    assert waited_s == 0
    assert {each.took_part for each in predictions} == {("bank",)}
    assert {each.silent.get("shop") for each in predictions} == {"it is not connected", None}
    assert all(set(each.silent) == set(each.asked) - {"bank"} for each in predictions)
    assert close(probabilities_of(predictions), expected_without(trained, "shop", "clinic"))


def test_a_late_party_is_left_out_and_its_answer_is_dropped(trained):
    async def late():
        predictor, gates = trained.predictor(), {}

        def gated(net):
            gates[net.me] = GatedChannel(net)
            return gates[net.me]

        async with responding(trained, predictor, {"shop": gated}) as peers:
            first = await predictor.predict(ids, budget_s=SHORT_S)
            gates["shop"].opened.set()
            second = await predictor.predict(ids, budget_s=LONG_S)
            return first, second, peers.multiplexer.late

    ids = trained.ids("bank")
    first, second, dropped = play(late())
    assert {each.silent["shop"] for each in first if each.silent} == {"it did not answer within 50 ms"}
    assert close(probabilities_of(first), expected_without(trained, "shop"))
    assert close(probabilities_of(second), expected_without(trained))
    assert not any(each.silent for each in second)
    assert dropped == {"shop": 1}


def with_gates(trained, *, min_wait_s):
    """Return a predictor that probes without a pause, the gates by party, and a function that adds a gate."""
    predictor, gates = trained.predictor(), {}
    predictor.breaker, predictor.min_wait_s = CircuitBreaker(after=3, every_s=0.0), min_wait_s

    def gated(net):
        gates[net.me] = GatedChannel(net)
        return gates[net.me]

    return predictor, gates, gated


def test_requests_stop_waiting_for_a_party_that_hangs(trained):
    async def hanging():
        predictor, gates, gated = with_gates(trained, min_wait_s=SHORT_S / 2)
        async with responding(trained, predictor, {"shop": gated}):
            while predictor.breaker.waits_for("shop"):
                await predictor.predict(ids, budget_s=SHORT_S)
            fourth = await predictor.predict(ids, budget_s=LONG_S)  # returns without waiting
            gates["shop"].opened.set()
            while not predictor.breaker.waits_for("shop"):
                await asyncio.sleep(0.001)
            return fourth, await predictor.predict(ids, budget_s=LONG_S)

    ids = trained.ids("bank")
    fourth, fifth = play(hanging())
    assert {each.silent["shop"][:29] for each in fourth if each.silent} == {"it missed its last 3 requests"}
    assert close(probabilities_of(fourth), expected_without(trained, "shop"))
    assert close(probabilities_of(fifth), expected_without(trained))


def test_a_short_budget_does_not_count_as_a_miss(trained):
    """Otherwise one client with tiny budgets would exclude a party for all clients."""

    async def hurried():
        predictor, gates, gated = with_gates(trained, min_wait_s=4 * SHORT_S)
        async with responding(trained, predictor, {"shop": gated}):
            for _ in range(5):
                await predictor.predict(ids, budget_s=SHORT_S)
            misses = predictor.breaker.misses["shop"]
            gates["shop"].opened.set()
            first = await predictor.predict(ids, budget_s=LONG_S)
            for _ in range(3):
                predictor.breaker.missed("shop")
            asked = await predictor.predict(ids, budget_s=1e-6)  # still probes, with enough time
            while not predictor.breaker.waits_for("shop"):
                await asyncio.sleep(predictor.min_wait_s / 4)
                await predictor.predict(ids, budget_s=1e-6)  # probes again after that time
            return misses, first, asked

    ids = trained.ids("bank")
    misses, first, asked = play(hurried())
    assert misses == 0
    assert close(probabilities_of(first), expected_without(trained))
    assert {each.silent["shop"][:29] for each in asked if "shop" in each.silent} == {"it missed its last 3 requests"}


def test_a_lost_party_is_named(trained):
    async def dying():
        predictor, nets = trained.predictor(), {}

        def kept(net):
            nets[net.me] = net
            return net

        async with responding(trained, predictor, {"clinic": kept}):
            first = await predictor.predict(ids, budget_s=LONG_S)
            await nets["clinic"].close()
            await asyncio.sleep(0)
            return first, await predictor.predict(ids, budget_s=LONG_S), predictor.connected()

    ids = trained.ids("bank")
    first, second, there = play(dying())
    assert not any(each.silent for each in first)
    assert {each.silent["clinic"] for each in second if each.silent} == {"it left while 'bank' waited for 'embedding'"}
    assert close(probabilities_of(second), expected_without(trained, "clinic"))
    assert there == {"shop"}


def test_a_party_is_lost_while_a_request_waits(trained):
    async def dying():
        predictor, gates = trained.predictor(), {}

        def gated(net):
            gates[net.me] = GatedChannel(net)
            return gates[net.me]

        async with responding(trained, predictor, {"clinic": gated}):
            asked = asyncio.create_task(predictor.predict(ids, budget_s=LONG_S))
            await asyncio.sleep(SHORT_S)
            await gates["clinic"].channel.close()
            return await asked

    ids = trained.ids("bank")
    assert close(probabilities_of(play(dying())), expected_without(trained, "clinic"))


def test_a_method_that_needs_a_missing_party_gives_a_reason(trained):
    """The answer names the party; it is not an error."""

    class Needs:
        can = trained.predictor().party.method.can

        async def predict(self, net, state, rows, batch, asked):
            return await net.recv("shop", "embedding", {})

    predictor = trained.predictor()
    predictor.party = replace(predictor.party, method=Needs())
    (predictions,) = asyncio.run(predictor.predict(trained.ids("bank")[:1], budget_s=LONG_S))
    assert predictions.prediction is None
    assert predictions.reason == "party 'shop' is gone: it is not connected"
    assert predictions.predictor == "LASER-VFL"


# ---- a party sends invalid messages


class Lying(GatedChannel):
    """A channel that replaces the embeddings that a party sends."""

    def __init__(self, channel, lie):
        super().__init__(channel)
        self.lie = lie

    async def send(self, to, tag, tensors):
        for each in self.lie(tensors) if tag == "embedding" else [tensors]:
            await self.channel.send(to, tag, each)


LIES = {
    "another shape": (lambda t: [t | {"h": t["h"][:, :3]}], "should be torch.float32"),
    "more rows": (lambda t: [t | {"h": torch.cat([t["h"], t["h"]])}], "should be torch.float32"),
    "not a number": (lambda t: [t | {"h": t["h"] * float("nan")}], "holds NaN or infinity"),
    "another tensor": (lambda t: [{"secret": t["h"], NUMBER_KEY: t[NUMBER_KEY]}], "expected tensors ['h']"),
    "no number": (lambda t: [{"h": t["h"]}], "it did not answer within 50 ms"),
    "a number of another kind": (lambda t: [t | {NUMBER_KEY: t[NUMBER_KEY].float()}], "it did not answer within 50 ms"),
    "a request to come": (lambda t: [t | {NUMBER_KEY: t[NUMBER_KEY] + 1}], "it did not answer within 50 ms"),
    "a request that never was": (lambda t: [t | {NUMBER_KEY: -t[NUMBER_KEY] - 7}], "it did not answer within 50 ms"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_invalid_message_is_refused_and_the_others_answer(trained, lie):
    async def lied():
        predictor = trained.predictor()
        async with responding(trained, predictor, {"shop": lambda net: Lying(net, LIES[lie][0])}):
            return [await predictor.predict(ids, budget_s=budget_s) for _ in range(2)]

    ids = trained.ids("bank")
    budget_s = SHORT_S if "did not answer" in LIES[lie][1] else LONG_S  # a dropped message never arrives
    for predictions in play(lied()):
        reasons = {each.silent["shop"] for each in predictions if each.silent}
        assert len(reasons) == 1
        assert LIES[lie][1] in reasons.pop()
        assert close(probabilities_of(predictions), expected_without(trained, "shop"))


class Cutting(GatedChannel):
    """A channel that drops the last column of what a party sends to the active party."""

    def __init__(self, channel, tag):
        super().__init__(channel)
        self.tag = tag

    async def send(self, to, tag, tensors):
        cut = {name: x if name == NUMBER_KEY else x[..., :-1] for name, x in tensors.items()}
        await self.channel.send(to, tag, cut if (to, tag) == ("bank", self.tag) else tensors)


def test_another_host_does_not_use_a_party_that_is_named_silent(tmp_path):
    """The clinic's embeddings reach the shop and not the bank, so the shop's heads skip the clinic's rows."""
    trained = two_hosts(tmp_path)
    ids, shop, clinic = (set(trained.ids(name)) for name in trained.sites)
    ids = sorted(ids)
    cut = {"clinic": lambda net: Cutting(net, "embedding")}
    predictions = play(predict_ids(trained, ids, wrap=cut))
    mute = play(predict_ids(trained, ids, wrap=cut | {"shop": lambda net: Cutting(net, "outputs")}))
    whole = expected_without(trained, "clinic")
    assert all("'outputs' should be" in each.silent["shop"] for each in mute if each.id in shop)
    expected = {each: (probabilities_of(mute) if each in clinic else whole)[each] for each in ids}
    assert close(probabilities_of(predictions), expected)
    assert not close(expected, whole)
    assert not any("clinic" in each.took_part for each in predictions)


def test_a_flood_of_answers_changes_nothing(trained):
    async def flooded():
        predictor = trained.predictor()
        flood = {"shop": lambda net: Lying(net, lambda t: [t] * 50)}
        async with responding(trained, predictor, flood) as peers:
            predictions = [await predictor.predict(ids, budget_s=LONG_S) for _ in range(3)]
            assert not peers.multiplexer.busy
            return predictions

    ids = trained.ids("bank")
    assert all(close(probabilities_of(each), expected_without(trained)) for each in play(flooded()))


def test_fingerprints_of_parties_in_a_federation(trained):
    shown = {name: load_party(site)[0].fingerprints for name, site in trained.sites.items()}
    assert {frozenset(each) for each in shown.values()} == {
        frozenset({"alignment", "model", "version of anyparty", "part of the model"})
    }
    assert len({each["alignment"] for each in shown.values()}) == 1
    assert len({each["part of the model"] for each in shown.values()}) == 3


def test_a_party_with_another_alignment_or_model_is_refused(trained, tmp_path):
    other = TrainedParties.train(tmp_path / "other", embedding=4)

    async def mixed():
        predictor = trained.predictor()
        mixture = TrainedParties({**trained.sites, "shop": other.sites["shop"]})
        async with responding(mixture, predictor) as peers:
            return await predictor.predict(ids, budget_s=LONG_S), peers.unavailable("shop")

    ids = trained.ids("bank")
    predictions, why = play(mixed())
    assert why == "its alignment and model and part of the model do not fit what 'bank' serves"
    assert {each.silent["shop"] for each in predictions if each.silent} == {why}
    assert close(probabilities_of(predictions), expected_without(trained, "shop"))


def test_a_party_with_weights_of_an_earlier_run_is_refused(tmp_path):
    """Rows, settings and alignment are equal; only the weights differ."""
    trained = TrainedParties.train(tmp_path)
    trained_again(trained.sites, "shop")

    async def mixed():
        predictor = trained.predictor()
        async with responding(trained, predictor) as peers:
            return await predictor.predict(ids, budget_s=LONG_S), peers.unavailable("shop"), peers.unavailable("clinic")

    ids = trained.ids("bank")
    predictions, *why = play(mixed())
    assert why == ["its part of the model does not fit what 'bank' serves", ""]
    assert close(probabilities_of(predictions), expected_without(trained, "shop"))


def test_a_request_for_invalid_rows_is_refused(trained, caplog):
    async def asked_wrongly():
        predictor = trained.predictor()
        async with responding(trained, predictor) as peers:
            for rows in (torch.tensor([10**6]), torch.tensor([-2]), torch.zeros(protocol.MAX_ROWS + 1).long()):
                ask = protocol.RowRequest(number=10**6, rows=rows, allowed=("shop",), within_s=1.0)
                await peers.ask(ask, ["shop"])
            return await predictor.predict(ids, budget_s=LONG_S)

    ids = trained.ids("bank")
    assert close(probabilities_of(play(asked_wrongly())), expected_without(trained))
    assert caplog.text.count("shop: refused: request 1000000 of 'bank' asks for") == 3


# ---- tables that have changed


def test_a_new_row_is_answered_from_the_own_block(trained, tmp_path):
    site = trained.sites["bank"]
    table = pl.read_csv(site.table)
    new = table.head(3).with_columns(id=pl.Series(["new 1", "new 2", "new 3"]))
    pl.concat([table, new]).write_csv(tmp_path / "bank.csv")
    grown = TrainedParties({**trained.sites, "bank": replace(site, table=tmp_path / "bank.csv")})
    ids = [*trained.ids("bank"), "new 1", "new 2", "new 3"]
    predictions = play(predict_ids(grown, ids))
    assert close(probabilities_of(predictions[:-3]), expected_without(trained))
    alone = expected_without(trained, "shop", "clinic", ids=ids[:3])
    assert [each.probabilities for each in predictions[-3:]] == [
        pytest.approx(alone[name], abs=1e-6) for name in ids[:3]
    ]
    assert {(each.took_part, each.asked, each.aligned) for each in predictions[-3:]} == {(("bank",), ("bank",), False)}


def test_a_table_with_changed_rows_does_not_fit_the_alignment(trained, tmp_path):
    site = trained.sites["shop"]
    pl.read_csv(site.table).reverse().write_csv(tmp_path / "shop.csv")
    _, table, alignment = load_party(replace(site, table=tmp_path / "shop.csv"))
    assert not alignment.fits(table)

    class Net:
        me = "shop"

    with pytest.raises(ModelError, match=r"shop.csv is not the table that was aligned .* train again"):
        asyncio.run(serve_at_site(replace(site, table=tmp_path / "shop.csv"), settings(), Net(), session="a"))


def with_column(site, name, value):
    pl.read_csv(site.table).with_columns(pl.lit(value).alias(name)).write_csv(site.table)


def test_a_column_that_training_ignored_does_not_matter(tmp_path):
    sites = world(tmp_path, n=60)
    for name in ("bank", "shop"):
        with_column(sites[name], "remark", None)
    with pytest.warns(AnypartyWarning, match="'remark' is empty in all .* and is left out"):
        run(sites, settings(epochs=1))
    for site in sites.values():
        _, table, alignment = load_party(site)
        assert alignment.fits(table)


@pytest.mark.filterwarnings("ignore::anyparty.errors.AnypartyWarning")
def test_a_party_logs_remarks_on_its_own_table(tmp_path, caplog):
    trained = TrainedParties.train(tmp_path)
    load_party(trained.sites["shop"])
    assert "visits" not in caplog.text
    with_column(trained.sites["shop"], "visits", 1e6)
    party, _, _ = load_party(trained.sites["shop"])
    assert "party 'shop', table.csv: most numbers of column 'visits' lie more than 10 standard" in caplog.text
    assert "column 'visits' is 1000000.0" in party.remarks.of(0)[0]


def test_an_added_column_is_ignored_at_any_position(tmp_path):
    trained = TrainedParties.train(tmp_path)
    with_column(trained.sites["shop"], "comment", "some words")
    table = pl.read_csv(trained.sites["shop"].table)
    table.select(sorted(table.columns, reverse=True)).write_csv(trained.sites["shop"].table)
    _, table, alignment = load_party(trained.sites["shop"])
    assert alignment.fits(table)
    pl.read_csv(trained.sites["shop"].table).with_columns(pl.col("visits") + 1).write_csv(trained.sites["shop"].table)
    _, table, alignment = load_party(trained.sites["shop"])
    assert not alignment.fits(table)


def test_text_in_an_unused_column_does_not_prevent_serving(tmp_path):
    sites = world(tmp_path, n=60)
    with_column(sites["shop"], "remark", None)
    with pytest.warns(AnypartyWarning, match="'remark' is empty in all .* and is left out"):
        run(sites, settings(epochs=1))
    with_column(sites["shop"], "remark", "words")
    _, table, alignment = load_party(sites["shop"])
    assert str(table.source) == "table.csv"
    assert table.columns.columns == ["spent", "visits"]
    assert not alignment.fits(table), "a cell was changed"


# ---- messages


def test_no_message_holds_an_id(trained):
    seen = []

    class Listening(GatedChannel):
        async def send(self, to, tag, tensors):
            seen.append((tag, tensors))
            await self.channel.send(to, tag, tensors)

    play(predict_ids(trained, trained.ids("bank"), wrap={"shop": Listening, "clinic": Listening}, channel=Listening))
    assert {tag for tag, _ in seen} == {protocol.HELLO, protocol.ASK, "embedding"}
    for _, tensors in seen:
        for tensor in tensors.values():
            assert b"person" not in tensor.contiguous().view(torch.uint8).numpy().tobytes()


# ---- the circuit breaker


def test_the_breaker_opens_and_closes():
    breaker = CircuitBreaker(after=2, every_s=1.0)
    assert breaker.waits_for("shop")
    breaker.missed("shop")
    breaker.answered("shop")
    breaker.missed("shop")
    assert breaker.waits_for("shop")
    breaker.missed("shop")
    assert not breaker.waits_for("shop")
    assert breaker.waits_for("clinic")
    assert breaker.probe_due("shop", 10.0)
    breaker.probe("shop", 7, 10.0, until=10.1)
    assert not breaker.probe_due("shop", 10.5)
    breaker.message_arrived("shop", 6, 10.05)  # an answer to another request
    breaker.message_arrived("shop", 7, 10.2)  # too late
    assert not breaker.waits_for("shop")
    assert breaker.probe_due("shop", 11.0)
    breaker.probe("shop", 8, 11.0, until=11.1)
    breaker.message_arrived("shop", 8, 11.05)
    assert breaker.waits_for("shop")
    breaker.missed("shop")  # one miss opens it again
    assert not breaker.waits_for("shop")


def test_a_party_is_not_probed_again_before_its_deadline():
    breaker = CircuitBreaker(after=1, every_s=1.0)
    breaker.missed("shop")
    breaker.probe("shop", 7, 10.0, until=15.0)
    assert not breaker.probe_due("shop", 12.0)
    breaker.message_arrived("shop", 7, 14.0)
    assert breaker.waits_for("shop")


def test_a_reset_forgets_the_probe():
    breaker = CircuitBreaker(after=2, every_s=1.0)
    breaker.probe("shop", 7, 10.0, until=15.0)
    breaker.reset("shop")
    breaker.message_arrived("shop", 7, 11.0)
    assert breaker.misses["shop"] == 0
