"""Many rows are computed in a thread: the same numbers, and a request for a few does not wait for them."""

import asyncio
import threading
import time
from dataclasses import dataclass, replace

import pytest
import torch

from anyparty.errors import PartyLost
from anyparty.methods.method import Batch
from anyparty.seeds import Seeds
from anyparty.serving import batch_executor as worker_module
from anyparty.serving.batch_executor import FEW, Worker
from anyparty.terms import Expect
from anyparty.wire import inproc
from tests.serving.trained_parties import LONG_S, Houses, play, serving

METHODS = {
    "laser": {},
    "plug": {"name": "plug"},
    "combinatorial": {"name": "combinatorial"},
    "false-vfl-2": {"name": "false-vfl-2", "top": 4, "hidden": [8], "head_hidden": [8], "predict_samples": 4},
}
MANY = FEW + 1


@pytest.fixture(scope="module")
def houses(tmp_path_factory):
    return Houses.trained(tmp_path_factory.mktemp("houses"))


@pytest.fixture(autouse=True)
def _no_thread_stays():
    yield
    for thread in threading.enumerate():
        if thread.name == "anyparty-worker":
            thread.join(LONG_S)
            assert not thread.is_alive()


# ---- the service and the parties that answer it


@pytest.mark.parametrize("name", METHODS)
def test_the_numbers_are_the_same_in_a_thread(tmp_path, monkeypatch, name):
    houses, played = Houses.trained(tmp_path, **METHODS[name]), []
    begin = worker_module._played
    monkeypatch.setattr(worker_module, "_played", lambda *what: played.append(what) or begin(*what))

    async def answered():
        async with serving(houses, service := houses.service()):
            return await service.predict(houses.ids("bank"), budget_s=LONG_S)

    here = play(answered())
    assert not played
    monkeypatch.setattr(worker_module, "FEW", 0)
    assert play(answered()) == here
    assert len(played) == 3  # at every party
    assert any(len(each.took_part) > 1 for each in here)


@dataclass(frozen=True)
class Slow:
    """A method whose products for many rows last until somebody lets them go."""

    method: object
    begun: threading.Event
    go: threading.Event

    @property
    def can(self):
        return self.method.can

    async def predict(self, net, state, rows, batch, asked):
        if len(batch.rows) > FEW:
            self.begun.set()
            assert self.go.wait(LONG_S)
        return await self.method.predict(net, state, rows, batch, asked)


@pytest.mark.parametrize("at", ["bank", "shop"])
def test_a_few_rows_do_not_wait_for_many(houses, monkeypatch, at):
    begun, go = threading.Event(), threading.Event()
    ids = houses.ids("bank")
    real = Houses.service

    def slow(kept):
        return replace(kept, method=Slow(kept.method, begun, go)) if kept.me == at else kept

    monkeypatch.setattr(Houses, "service", lambda self: _with(real(self), slow))
    monkeypatch.setattr("tests.serving.trained_parties.open_kept", _opening(slow))

    async def both():
        async with serving(houses, service := houses.service()):
            many = asyncio.create_task(service.predict(ids * 3, budget_s=LONG_S))
            while not begun.is_set():
                await asyncio.sleep(0.001)
            few = await service.predict(ids[:5], budget_s=LONG_S)
            assert not many.done()
            go.set()
            return few, await many

    few, many = play(both())
    assert len(ids) * 3 > FEW
    assert [(each.id, each.prediction, each.took_part) for each in few] == [
        (each.id, each.prediction, each.took_part) for each in many[:5]
    ]
    assert any("shop" in each.took_part for each in few)


def _with(service, change):
    service.kept = change(service.kept)
    return service


def _opening(change):
    from anyparty.serving.loaded_party import open_kept  # noqa: PLC0415 - the real one

    def opened(*what):
        kept, *rest = open_kept(*what)
        return change(kept), *rest

    return opened


# ---- the thread


async def over(net):
    """Send a number to oneself, and hear it."""
    await net.send("bank", "number", {"x": torch.ones(1)})
    return float((await net.recv("bank", "number", {"x": Expect((1,))}))["x"]), threading.current_thread().name


def test_few_rows_stay_and_many_go_to_the_thread():
    async def main():
        net, worker = inproc.Hub(("bank", "outside")).channel("bank"), Worker()
        return await worker.play(over, net, FEW), await worker.play(over, net, MANY), await worker.play(over, net, MANY)

    assert play(main()) == ((1, "MainThread"), (1, "anyparty-worker"), (1, "anyparty-worker"))


def test_while_one_waits_for_a_party_another_goes_on():
    async def main():
        hub, worker = inproc.Hub(("bank", "shop", "outside")), Worker()
        net = hub.channel("bank")
        first = asyncio.create_task(worker.play(lambda way: way.recv("shop", "late", {"x": Expect((1,))}), net, MANY))
        second = await worker.play(over, net, MANY)
        assert not first.done()
        await hub.channel("shop").send("bank", "late", {"x": torch.zeros(1)})
        return second[0], float((await first)["x"])

    assert play(main()) == (1, 0)


def test_what_goes_wrong_in_the_thread_is_raised_here():
    async def breaks(net):
        raise PartyLost("shop", "for a test")

    async def main():
        with pytest.raises(PartyLost, match="for a test"):
            await Worker().play(breaks, inproc.Hub(("bank", "outside")).channel("bank"), MANY)

    play(main())


def test_who_cancels_a_request_waits_until_its_thread_has_let_go():
    begun, said = threading.Event(), []

    async def hangs(net):
        begun.set()
        try:
            await net.recv("shop", "never", {})
        finally:
            said.append(threading.current_thread().name)

    async def main():
        hub, worker = inproc.Hub(("bank", "shop", "outside")), Worker()
        task = asyncio.create_task(worker.play(hangs, hub.channel("bank"), MANY))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert said == ["anyparty-worker"]
        return await worker.play(over, hub.channel("bank"), MANY)  # and the next has a thread again

    assert play(main()) == (1, "anyparty-worker")


def test_a_request_that_is_cancelled_at_once_ends():
    async def main():
        task = asyncio.create_task(Worker().play(over, inproc.Hub(("bank", "outside")).channel("bank"), MANY))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    play(main())


def test_modules_that_draw_in_two_threads_draw_each_from_its_own_stream():
    batch, begun, alone, got = Batch(torch.arange(1), Seeds(0), moment=("train", 0, 0)), threading.Event(), {}, {}

    def drawn(name, wait_s=0.0):
        with batch.drawing(name, device=torch.device("cpu")):
            begun.set()
            time.sleep(wait_s)  # the other would seed torch's one stream, or draw from it, between these two
            return torch.rand(3).tolist()

    for name in ("mine", "other"):
        alone[name] = drawn(name)
    begun.clear()
    other = threading.Thread(target=lambda: got.update(other=drawn("other", 0.1)))
    other.start()
    assert begun.wait(LONG_S)
    got["mine"] = drawn("mine", 0.2)
    other.join(LONG_S)
    assert got == alone
