"""Ids in, answers with their provenance out: from whoever is there, whatever the others do."""

import asyncio
import contextlib
from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest
import torch

from anyparty.config import Config
from anyparty.errors import AnypartyWarning, ModelError, PartyLost, PredictionError
from anyparty.serving import predictor as service_module
from anyparty.serving import serving_protocol as asking
from anyparty.serving.circuit_breaker import Breaker
from anyparty.serving.loaded_party import open_kept
from anyparty.serving.multiplexer import NUMBER, Lanes
from anyparty.serving.responder import serve_at_home
from anyparty.terms import Expect
from tests import unhurried
from tests.run.test_house import run, settings, trained_again, world
from tests.serving.trained_parties import LONG_S, SHORT_S, Door, Houses, serving

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
def houses(tmp_path_factory):
    return Houses.trained(tmp_path_factory.mktemp("houses"))


@pytest.mark.parametrize("comes", [True, False])
def test_a_deadline_that_a_busy_loop_hears_of_late_is_held_against_nobody(comes):
    """What came in time stands in a socket, some turns of the loop away, when the loop has time again."""

    async def busy():
        loop = asyncio.get_running_loop()
        lanes = Lanes(net=SimpleNamespace(me="bank"), lanes=[])
        request = lanes.open(0, loop.time() + 0.01, 0.01)
        answer = asyncio.create_task(request.recv("shop", "embedding", {"x": Expect((1,))}))
        await asyncio.sleep(0)

        def reads(turns):
            if turns:
                loop.call_soon(reads, turns - 1)
            elif comes:
                request.put(("shop", "embedding"), {"x": torch.ones(1)})

        loop.call_soon(reads, 6)
        loop.now += 0.1  # as a batch works on this loop
        with contextlib.nullcontext() if comes else pytest.raises(PartyLost, match="did not answer within 10 ms"):
            assert float((await answer)["x"]) == 1
        return request.late

    assert play(busy()) == (set() if comes else {"shop"})


def play(work):
    """Play on a clock that stands while any party is at work: who is late is late on every machine."""
    return unhurried.run(asyncio.wait_for(work, LONG_S))


def numbers(answers):
    return {each.id: each.probabilities for each in answers}


def same(one, other):
    return one.keys() == other.keys() and all(
        (p is None and q is None) or (p is not None and q is not None and p == pytest.approx(q, abs=1e-5))
        for p, q in ((one[name], other[name]) for name in one)
    )


async def answered(houses, ids, budget_s=LONG_S, parties=None, service=None, **how):
    service = service or houses.service()
    async with serving(houses, service, **how):
        return await service.predict(ids, parties, budget_s=budget_s)


def without(houses, *absent, ids=None):
    """What is right where these parties are absent."""
    ids = ids or houses.ids("bank")
    parties = [name for name in ("bank", "shop", "clinic") if name not in absent]
    return numbers(play(answered(houses, ids, parties=parties)))


# ---- everybody is there


@pytest.mark.parametrize("name", METHODS)
def test_the_numbers_are_those_of_the_model(tmp_path, name):
    houses = Houses.trained(tmp_path / "houses", **METHODS[name])
    said = play(answered(houses, houses.ids("bank")))
    model = houses.model(tmp_path / "model")
    tables = {name: site.table for name, site in houses.sites.items()}
    frame = model.predict(tables).frame().filter(pl.col("id").is_in(houses.ids("bank")))
    expected = {row["id"]: row for row in frame.iter_rows(named=True)}
    assert len(said) == len(expected) == 48
    for each in said:
        row = expected[each.id]
        if name == "ensemble" and row["parties"].count(" ") == 1:
            continue  # two voters may be of two minds: lots are drawn by keys, which private alignment makes anew
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
    """The shop has labels, too, and hosts heads."""
    sites = world(folder, n=60)
    shop = pl.read_csv(sites["shop"].table).with_columns(y=pl.Series([0, 1] * 24))
    shop.write_csv(sites["shop"].table)
    values = settings(epochs=2).model_dump(exclude_none=True)
    values["parties"]["shop"]["label"] = "y"
    values["method"] = {"embedding": 8, "hosting": "labelers"}
    run(sites, Config.of(values))
    return Houses(sites)


@pytest.mark.parametrize("misses", [0, 3])
def test_hosts_that_are_not_the_active_party_answer_too(tmp_path, misses):
    """Heads at every label holder: embeddings also cross between passive parties, and outputs come back.

    For a party that has hung, and is asked in the background alone, another host does not wait, nor use it.
    """
    houses = two_hosts(tmp_path / "houses")
    service, sites = houses.service(), houses.sites
    service.breaker.misses["clinic"] = misses
    said = play(answered(houses, houses.ids("bank"), service=service))
    there = [name for name in sites if not misses or name != "clinic"]
    model, tables = houses.model(tmp_path / "model"), {name: sites[name].table for name in there}
    expected = {row["id"]: row["p(1)"] for row in model.predict(tables).frame().iter_rows(named=True)}
    for each in said:
        assert each.probabilities["1"] == pytest.approx(expected[each.id], abs=1e-6)
    assert any("shop" in each.took_part for each in said)
    assert any("clinic" in each.took_part for each in said) == (not misses)


@pytest.mark.parametrize("classify_on", ["own", "joint"])
def test_who_answers_alone_asks_nobody(tmp_path, classify_on):
    """Of a method without messages in prediction nobody hears which rows are asked for, nor that some are.

    The shop has labels, as hosts of heads have.
    """
    sites = world(tmp_path, n=60)
    shop = pl.read_csv(sites["shop"].table).with_columns(y=pl.Series([0, 1] * 24))
    shop.write_csv(sites["shop"].table)
    values = settings(epochs=2).model_dump(exclude_none=True)
    values["parties"]["shop"]["label"] = "y"
    config = Config.of(values | {"method": {"name": "apc", "embedding": 8, "classify_on": classify_on}})
    with pytest.warns(AnypartyWarning, match="the labels of party 'shop' are not used"):
        run(sites, config)
    houses = Houses(sites)
    asked = {"shop": [], "clinic": []}
    wrap = {name: lambda net, name=name: Overhears(net, asked[name]) for name in asked}
    said = play(answered(houses, houses.ids("bank"), wrap=wrap))
    alone = classify_on == "own"
    assert all(each.prediction is not None for each in said) == alone
    assert {each.asked for each in said} == {("bank",)} or not alone
    assert max(map(len, asked.values())) == (0 if alone else 1)


def test_an_estimator_is_fitted_again_before_the_first_request(tmp_path):
    houses = Houses.trained(tmp_path, name="apc", classifier="DecisionTreeClassifier")
    assert houses.service().kept.state.modules["classifier"].made is not None


def test_a_model_without_labels_is_not_served(tmp_path):
    sites = world(tmp_path, n=60)
    bank = pl.read_csv(sites["bank"].table)
    bank.with_columns(pl.lit(None, pl.String).alias("y")).write_csv(sites["bank"].table)
    values = settings(epochs=1).model_dump(exclude_none=True)
    run(sites, Config.of(values | {"method": {"name": "false-vfl-1", "embedding": 4}}))
    with pytest.raises(PredictionError, match="no row had a label in training"):
        Houses(sites).service()


class Overhears:
    """A channel that keeps what it is asked."""

    def __init__(self, channel, asked):
        self.channel, self.me, self.asked = channel, channel.me, asked
        self.send, self.close = channel.send, channel.close

    async def recv(self, frm, tag, expect):
        got = await self.channel.recv(frm, tag, expect)
        if tag == asking.ASK:
            self.asked.append(got["rows"].clone())
        return got


def test_a_party_is_told_the_places_of_its_own_rows_alone(houses):
    asked = {"shop": [], "clinic": []}
    wrap = {name: lambda net, name=name: Overhears(net, asked[name]) for name in asked}
    service = houses.service()
    play(answered(houses, houses.ids("bank"), service=service, wrap=wrap))
    places = service.directory.aligned[torch.tensor(service.directory.find(houses.ids("bank")))]
    for name, told in asked.items():
        kept, _, _ = open_kept(houses.sites[name])
        has = kept.position[places] >= 0
        assert 0 < int(has.sum()) < len(places)
        (rows,) = [each for each in told if len(each)]  # the other is the end
        assert torch.equal(rows, torch.where(has, places, asking.NOWHERE))
        assert torch.equal(kept.own(rows), kept.own(places))


def test_an_id_is_compared_as_tables_compare_it(houses):
    first, second, *_ = houses.ids("bank")
    said = play(answered(houses, [second, f" {first} ", "nobody", "", second]))
    assert [each.id for each in said] == [second, f" {first} ", "nobody", "", second]
    assert [each.prediction is None for each in said] == [False, False, True, True, False]
    assert said[2].reason == "'bank', which is asked, has no row with this id"
    assert said[0] == said[4]


def test_many_ids_are_asked_for_in_turns(houses, monkeypatch):
    whole = without(houses)
    monkeypatch.setattr(service_module, "MOST_ROWS", 7)
    assert same(without(houses), whole)


def test_who_may_take_part_is_the_callers_choice(houses):
    said = play(answered(houses, houses.ids("bank"), parties=["shop"]))
    assert {each.took_part for each in said} == {("shop",), ()}
    assert all((each.prediction is None) == (each.took_part == ()) for each in said)
    with pytest.raises(PredictionError, match="the model has no party 'shopp' with columns; did you mean 'shop'"):
        play(answered(houses, ["a"], parties=["shopp"]))
    with pytest.raises(PredictionError, match="'parties' is empty"):
        play(answered(houses, ["a"], parties=[]))


def test_requests_that_overlap_do_not_mix(houses):
    """Twenty requests at once; each party answers them in an order of its own."""

    class Shuffled(Door):
        async def send(self, to, tag, tensors):
            if NUMBER in tensors and tag != asking.HELLO:
                for _ in range(int(tensors[NUMBER]) * 7919 % 13):
                    await asyncio.sleep(0)
            await self.channel.send(to, tag, tensors)

    async def many():
        service = houses.service()
        async with serving(houses, service, {"shop": Shuffled, "clinic": Shuffled}):
            return await asyncio.gather(*(service.predict([name], budget_s=LONG_S) for name in ids))

    ids = houses.ids("bank")[:20]
    assert same({each.id: each.probabilities for (each,) in play(many())}, without(houses, ids=ids))


# ---- somebody is not


def test_with_nobody_else_the_own_block_answers_at_once(houses):
    async def alone():
        return await houses.service().predict(houses.ids("bank"), budget_s=LONG_S), asyncio.get_running_loop().time()

    said, waited_s = play(alone())
    assert waited_s == 0
    assert {each.took_part for each in said} == {("bank",)}
    assert {each.silent.get("shop") for each in said} == {"it is not connected", None}
    assert all(set(each.silent) == set(each.asked) - {"bank"} for each in said)
    assert same(numbers(said), without(houses, "shop", "clinic"))


def test_a_party_that_is_late_is_left_out_and_its_answer_disturbs_nobody(houses):
    async def late():
        service, doors = houses.service(), {}

        def door(net):
            doors[net.me] = Door(net)
            return doors[net.me]

        async with serving(houses, service, {"shop": door}) as link:
            first = await service.predict(ids, budget_s=SHORT_S)
            doors["shop"].opened.set()
            second = await service.predict(ids, budget_s=LONG_S)
            return first, second, link.lanes.late

    ids = houses.ids("bank")
    first, second, dropped = play(late())
    assert {each.silent["shop"] for each in first if each.silent} == {"it did not answer within 50 ms"}
    assert same(numbers(first), without(houses, "shop"))
    assert same(numbers(second), without(houses))
    assert not any(each.silent for each in second)
    assert dropped == {"shop": 1}


def behind_doors(houses, *, fair_s):
    """A service that asks absent parties at once, the doors of those that ``door`` wraps, by name, and ``door``."""
    service, doors = houses.service(), {}
    service.breaker, service.fair_s = Breaker(after=3, every_s=0.0), fair_s

    def door(net):
        doors[net.me] = Door(net)
        return doors[net.me]

    return service, doors, door


def test_a_party_that_hangs_is_not_waited_for_for_ever(houses):
    async def hanging():
        service, doors, door = behind_doors(houses, fair_s=SHORT_S / 2)
        async with serving(houses, service, {"shop": door}):
            while service.breaker.waits("shop"):
                await service.predict(ids, budget_s=SHORT_S)
            fourth = await service.predict(ids, budget_s=LONG_S)  # nobody waits: it would be for a minute
            doors["shop"].opened.set()
            while not service.breaker.waits("shop"):
                await asyncio.sleep(0.001)
            return fourth, await service.predict(ids, budget_s=LONG_S)

    ids = houses.ids("bank")
    fourth, fifth = play(hanging())
    assert {each.silent["shop"][:29] for each in fourth if each.silent} == {"it missed its last 3 requests"}
    assert same(numbers(fourth), without(houses, "shop"))
    assert same(numbers(fifth), without(houses))


def test_what_a_client_does_not_wait_for_is_not_held_against_a_party(houses):
    """Otherwise one client with next to no time takes a party away from all others."""

    async def hurried():
        service, doors, door = behind_doors(houses, fair_s=4 * SHORT_S)
        async with serving(houses, service, {"shop": door}):
            for _ in range(5):
                await service.predict(ids, budget_s=SHORT_S)
            misses = service.breaker.misses["shop"]
            doors["shop"].opened.set()
            first = await service.predict(ids, budget_s=LONG_S)
            for _ in range(3):
                service.breaker.missed("shop")
            asked = await service.predict(ids, budget_s=1e-6)  # as short as it is, it asks in the background, with time
            while not service.breaker.waits("shop"):
                await asyncio.sleep(service.fair_s / 4)
                await service.predict(ids, budget_s=1e-6)  # anew once that time is over
            return misses, first, asked

    ids = houses.ids("bank")
    misses, first, asked = play(hurried())
    assert misses == 0
    assert same(numbers(first), without(houses))
    assert {each.silent["shop"][:29] for each in asked if "shop" in each.silent} == {"it missed its last 3 requests"}


def test_a_party_that_dies_is_named(houses):
    async def dying():
        service, nets = houses.service(), {}

        def kept(net):
            nets[net.me] = net
            return net

        async with serving(houses, service, {"clinic": kept}):
            first = await service.predict(ids, budget_s=LONG_S)
            await nets["clinic"].close()
            await asyncio.sleep(0)
            return first, await service.predict(ids, budget_s=LONG_S), service.there()

    ids = houses.ids("bank")
    first, second, there = play(dying())
    assert not any(each.silent for each in first)
    assert {each.silent["clinic"] for each in second if each.silent} == {"it left while 'bank' waited for 'embedding'"}
    assert same(numbers(second), without(houses, "clinic"))
    assert there == {"shop"}


def test_a_party_dies_while_it_is_waited_for(houses):
    async def dying():
        service, doors = houses.service(), {}

        def door(net):
            doors[net.me] = Door(net)
            return doors[net.me]

        async with serving(houses, service, {"clinic": door}):
            asked = asyncio.create_task(service.predict(ids, budget_s=LONG_S))
            await asyncio.sleep(SHORT_S)
            await doors["clinic"].channel.close()
            return await asked

    ids = houses.ids("bank")
    assert same(numbers(play(dying())), without(houses, "clinic"))


def test_a_method_that_cannot_do_without_a_party_gives_no_number_and_a_reason(houses):
    """Not an error: whoever asks hears which party it takes."""

    class Needs:
        can = houses.service().kept.method.can

        async def predict(self, net, state, rows, batch, asked):
            return await net.recv("shop", "embedding", {})

    service = houses.service()
    service.kept = replace(service.kept, method=Needs())
    (said,) = asyncio.run(service.predict(houses.ids("bank")[:1], budget_s=LONG_S))
    assert said.prediction is None
    assert said.reason == "party 'shop' is gone: it is not connected"
    assert said.predictor == "LASER-VFL"


# ---- somebody lies


class Lying(Door):
    """What a party sends is replaced."""

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
    "another tensor": (lambda t: [{"secret": t["h"], NUMBER: t[NUMBER]}], "expected tensors ['h']"),
    "no number": (lambda t: [{"h": t["h"]}], "it did not answer within 50 ms"),
    "a number of another kind": (lambda t: [t | {NUMBER: t[NUMBER].float()}], "it did not answer within 50 ms"),
    "a request to come": (lambda t: [t | {NUMBER: t[NUMBER] + 1}], "it did not answer within 50 ms"),
    "a request that never was": (lambda t: [t | {NUMBER: -t[NUMBER] - 7}], "it did not answer within 50 ms"),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_a_party_sends_wrongly_is_refused_and_the_others_answer(houses, lie):
    async def lied():
        service = houses.service()
        async with serving(houses, service, {"shop": lambda net: Lying(net, LIES[lie][0])}):
            return [await service.predict(ids, budget_s=budget_s) for _ in range(2)]

    ids = houses.ids("bank")
    budget_s = SHORT_S if "did not answer" in LIES[lie][1] else LONG_S  # what is dropped is waited for in vain
    for said in play(lied()):
        reasons = {each.silent["shop"] for each in said if each.silent}
        assert len(reasons) == 1
        assert LIES[lie][1] in reasons.pop()
        assert same(numbers(said), without(houses, "shop"))


class Cutting(Door):
    """What a party sends to the active party comes without its last column."""

    def __init__(self, channel, tag):
        super().__init__(channel)
        self.tag = tag

    async def send(self, to, tag, tensors):
        cut = {name: x if name == NUMBER else x[..., :-1] for name, x in tensors.items()}
        await self.channel.send(to, tag, cut if (to, tag) == ("bank", self.tag) else tensors)


def test_another_hosts_answer_does_not_rest_on_a_party_that_is_named_as_silent(tmp_path):
    """The clinic's embeddings reach the shop and not the bank: of its rows the shop's heads say nothing."""
    houses = two_hosts(tmp_path)
    ids, shop, clinic = (set(houses.ids(name)) for name in houses.sites)
    ids = sorted(ids)
    cut = {"clinic": lambda net: Cutting(net, "embedding")}
    said = play(answered(houses, ids, wrap=cut))
    mute = play(answered(houses, ids, wrap=cut | {"shop": lambda net: Cutting(net, "outputs")}))
    whole = without(houses, "clinic")
    assert all("'outputs' should be" in each.silent["shop"] for each in mute if each.id in shop)
    expected = {each: (numbers(mute) if each in clinic else whole)[each] for each in ids}
    assert same(numbers(said), expected)
    assert not same(expected, whole)
    assert not any("clinic" in each.took_part for each in said)


def test_a_flood_of_answers_changes_nothing(houses):
    async def flooded():
        service = houses.service()
        flood = {"shop": lambda net: Lying(net, lambda t: [t] * 50)}
        async with serving(houses, service, flood) as link:
            said = [await service.predict(ids, budget_s=LONG_S) for _ in range(3)]
            assert not link.lanes.busy
            return said

    ids = houses.ids("bank")
    assert all(same(numbers(each), without(houses)) for each in play(flooded()))


def test_what_a_party_apart_shows_of_itself(houses):
    shown = {name: open_kept(site)[0].fingerprints for name, site in houses.sites.items()}
    assert {frozenset(each) for each in shown.values()} == {
        frozenset({"alignment", "model", "version of anyparty", "part of the model"})
    }
    assert len({each["alignment"] for each in shown.values()}) == 1
    assert len({each["part of the model"] for each in shown.values()}) == 3


def test_a_party_with_another_alignment_or_model_is_refused(houses, tmp_path):
    other = Houses.trained(tmp_path / "other", embedding=4)

    async def mixed():
        service = houses.service()
        mixture = Houses({**houses.sites, "shop": other.sites["shop"]})
        async with serving(mixture, service) as link:
            return await service.predict(ids, budget_s=LONG_S), link.why_not("shop")

    ids = houses.ids("bank")
    said, why = play(mixed())
    assert why == "its alignment and model and part of the model do not fit what 'bank' serves"
    assert {each.silent["shop"] for each in said if each.silent} == {why}
    assert same(numbers(said), without(houses, "shop"))


def test_a_party_with_a_part_of_an_earlier_run_is_refused(tmp_path):
    """The same rows, settings and alignment: its weights alone tell."""
    houses = Houses.trained(tmp_path)
    trained_again(houses.sites, "shop")

    async def mixed():
        service = houses.service()
        async with serving(houses, service) as link:
            return await service.predict(ids, budget_s=LONG_S), link.why_not("shop"), link.why_not("clinic")

    ids = houses.ids("bank")
    said, *why = play(mixed())
    assert why == ["its part of the model does not fit what 'bank' serves", ""]
    assert same(numbers(said), without(houses, "shop"))


def test_an_active_party_that_asks_for_what_is_not_there_is_refused(houses, caplog):
    async def asked_wrongly():
        service = houses.service()
        async with serving(houses, service) as link:
            for rows in (torch.tensor([10**6]), torch.tensor([-2]), torch.zeros(asking.MOST_ROWS + 1).long()):
                ask = asking.Ask(number=10**6, rows=rows, asked=("shop",), within_s=1.0)
                await link.ask(ask, ["shop"])
            return await service.predict(ids, budget_s=LONG_S)

    ids = houses.ids("bank")
    assert same(numbers(play(asked_wrongly())), without(houses))
    assert caplog.text.count("shop: refused: request 1000000 of 'bank' asks for") == 3


# ---- tables that have changed


def test_a_new_customer_is_answered_from_the_own_block(houses, tmp_path):
    site = houses.sites["bank"]
    table = pl.read_csv(site.table)
    new = table.head(3).with_columns(id=pl.Series(["new 1", "new 2", "new 3"]))
    pl.concat([table, new]).write_csv(tmp_path / "bank.csv")
    grown = Houses({**houses.sites, "bank": replace(site, table=tmp_path / "bank.csv")})
    ids = [*houses.ids("bank"), "new 1", "new 2", "new 3"]
    said = play(answered(grown, ids))
    assert same(numbers(said[:-3]), without(houses))
    alone = without(houses, "shop", "clinic", ids=ids[:3])
    assert [each.probabilities for each in said[-3:]] == [pytest.approx(alone[name], abs=1e-6) for name in ids[:3]]
    assert {(each.took_part, each.asked, each.aligned) for each in said[-3:]} == {(("bank",), ("bank",), False)}


def test_a_table_whose_rows_changed_is_not_the_one_that_was_aligned(houses, tmp_path):
    site = houses.sites["shop"]
    pl.read_csv(site.table).reverse().write_csv(tmp_path / "shop.csv")
    _, table, alignment = open_kept(replace(site, table=tmp_path / "shop.csv"))
    assert not alignment.fits(table)

    class Net:
        me = "shop"

    with pytest.raises(ModelError, match=r"shop.csv is not the table that was aligned .* train again"):
        asyncio.run(serve_at_home(replace(site, table=tmp_path / "shop.csv"), settings(), Net(), session="a"))


def with_column(site, name, value):
    pl.read_csv(site.table).with_columns(pl.lit(value).alias(name)).write_csv(site.table)


def test_a_table_with_a_column_that_training_leaves_out_is_the_one_that_was_aligned(tmp_path):
    sites = world(tmp_path, n=60)
    for name in ("bank", "shop"):
        with_column(sites[name], "remark", None)
    with pytest.warns(AnypartyWarning, match="'remark' is empty in all .* and is left out"):
        run(sites, settings(epochs=1))
    for site in sites.values():
        _, table, alignment = open_kept(site)
        assert alignment.fits(table)


def test_a_column_that_came_later_is_ignored_wherever_it_stands(tmp_path):
    houses = Houses.trained(tmp_path)
    with_column(houses.sites["shop"], "comment", "some words")
    table = pl.read_csv(houses.sites["shop"].table)
    table.select(sorted(table.columns, reverse=True)).write_csv(houses.sites["shop"].table)
    _, table, alignment = open_kept(houses.sites["shop"])
    assert alignment.fits(table)
    pl.read_csv(houses.sites["shop"].table).with_columns(visits=1.0).write_csv(houses.sites["shop"].table)
    _, table, alignment = open_kept(houses.sites["shop"])
    assert not alignment.fits(table)


def test_text_in_a_column_that_the_model_does_without_keeps_nobody_from_serving(tmp_path):
    sites = world(tmp_path, n=60)
    with_column(sites["shop"], "remark", None)
    with pytest.warns(AnypartyWarning, match="'remark' is empty in all .* and is left out"):
        run(sites, settings(epochs=1))
    with_column(sites["shop"], "remark", "words")
    _, table, alignment = open_kept(sites["shop"])
    assert str(table.source) == "table.csv"
    assert table.columns.columns == ["spent", "visits"]
    assert not alignment.fits(table), "a cell was changed"


# ---- what crosses


def test_nothing_that_crosses_holds_an_id(houses):
    seen = []

    class Ear(Door):
        async def send(self, to, tag, tensors):
            seen.append((tag, tensors))
            await self.channel.send(to, tag, tensors)

    play(answered(houses, houses.ids("bank"), wrap={"shop": Ear, "clinic": Ear}, channel=Ear))
    assert {tag for tag, _ in seen} == {asking.HELLO, asking.ASK, "embedding"}
    for _, tensors in seen:
        for tensor in tensors.values():
            assert b"person" not in tensor.contiguous().view(torch.uint8).numpy().tobytes()


# ---- whom to wait for


def test_the_breaker_opens_and_closes():
    breaker = Breaker(after=2, every_s=1.0)
    assert breaker.waits("shop")
    breaker.missed("shop")
    breaker.answered("shop")
    breaker.missed("shop")
    assert breaker.waits("shop")
    breaker.missed("shop")
    assert not breaker.waits("shop")
    assert breaker.waits("clinic")
    assert breaker.probes("shop", 10.0)
    breaker.probe("shop", 7, 10.0, until=10.1)
    assert not breaker.probes("shop", 10.5)
    breaker.heard("shop", 6, 10.05)  # an answer to another request
    breaker.heard("shop", 7, 10.2)  # too late
    assert not breaker.waits("shop")
    assert breaker.probes("shop", 11.0)
    breaker.probe("shop", 8, 11.0, until=11.1)
    breaker.heard("shop", 8, 11.05)
    assert breaker.waits("shop")
    breaker.missed("shop")  # one miss, and nobody waits again
    assert not breaker.waits("shop")


def test_a_party_is_not_asked_again_before_its_answer_would_be_late():
    breaker = Breaker(after=1, every_s=1.0)
    breaker.missed("shop")
    breaker.probe("shop", 7, 10.0, until=15.0)
    assert not breaker.probes("shop", 12.0)
    breaker.heard("shop", 7, 14.0)
    assert breaker.waits("shop")


def test_what_a_former_process_was_asked_is_forgotten():
    breaker = Breaker(after=2, every_s=1.0)
    breaker.probe("shop", 7, 10.0, until=15.0)
    breaker.forget("shop")
    breaker.heard("shop", 7, 11.0)
    assert breaker.misses["shop"] == 0
