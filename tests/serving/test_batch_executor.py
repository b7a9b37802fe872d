"""Large requests run in a thread: with the same results, and without delaying small ones."""

import asyncio
import threading
import time
from dataclasses import dataclass, replace

import pytest
import torch

from anyparty.core.seeds import Seeds
from anyparty.core.types import TensorSpec
from anyparty.errors import PartyLost
from anyparty.methods.method import Batch
from anyparty.serving import batch_executor as executor_module
from anyparty.serving.batch_executor import INLINE_ROWS, BatchExecutor
from anyparty.transport import memory
from tests.serving.trained_parties import LONG_S, TrainedParties, play, responding

METHODS = {
    "laser": {},
    "plug": {"name": "plug"},
    "combinatorial": {"name": "combinatorial"},
    "false-vfl-2": {"name": "false-vfl-2", "top": 4, "hidden": [8], "head_hidden": [8], "predict_samples": 4},
}
MANY = INLINE_ROWS + 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return TrainedParties.train(tmp_path_factory.mktemp("houses"))


@pytest.fixture(autouse=True)
def _no_thread_stays():
    yield
    for thread in threading.enumerate():
        if thread.name == "anyparty-worker":
            thread.join(LONG_S)
            assert not thread.is_alive()


# ---- the predictor and the responders


@pytest.mark.parametrize("name", METHODS)
def test_results_are_the_same_in_a_thread(tmp_path, monkeypatch, name):
    trained, runs = TrainedParties.train(tmp_path, **METHODS[name]), []
    begin = executor_module._run_in
    monkeypatch.setattr(executor_module, "_run_in", lambda *what: runs.append(what) or begin(*what))

    async def predict():
        async with responding(trained, predictor := trained.predictor()):
            return await predictor.predict(trained.ids("bank"), budget_s=LONG_S)

    inline = play(predict())
    assert not runs
    monkeypatch.setattr(executor_module, "INLINE_ROWS", 0)
    assert play(predict()) == inline
    assert len(runs) == 3  # once per party
    assert any(len(each.took_part) > 1 for each in inline)


@dataclass(frozen=True)
class Slow:
    """A method whose computation of many rows blocks until ``go`` is set."""

    method: object
    begun: threading.Event
    go: threading.Event

    @property
    def can(self):
        return self.method.can

    async def predict(self, net, state, rows, batch, asked):
        if len(batch.rows) > INLINE_ROWS:
            self.begun.set()
            assert self.go.wait(LONG_S)
        return await self.method.predict(net, state, rows, batch, asked)


@pytest.mark.parametrize("at", ["bank", "shop"])
def test_a_small_request_does_not_wait_for_a_large_one(trained, monkeypatch, at):
    begun, go = threading.Event(), threading.Event()
    ids = trained.ids("bank")
    real = TrainedParties.predictor

    def slow(kept):
        return replace(kept, method=Slow(kept.method, begun, go)) if kept.me == at else kept

    monkeypatch.setattr(TrainedParties, "predictor", lambda self: _with(real(self), slow))
    monkeypatch.setattr("tests.serving.trained_parties.load_party", _opening(slow))

    async def both():
        async with responding(trained, predictor := trained.predictor()):
            many = asyncio.create_task(predictor.predict(ids * 3, budget_s=LONG_S))
            while not begun.is_set():
                await asyncio.sleep(0.001)
            few = await predictor.predict(ids[:5], budget_s=LONG_S)
            assert not many.done()
            go.set()
            return few, await many

    few, many = play(both())
    assert len(ids) * 3 > INLINE_ROWS
    assert [(each.id, each.prediction, each.took_part) for each in few] == [
        (each.id, each.prediction, each.took_part) for each in many[:5]
    ]
    assert any("shop" in each.took_part for each in few)


def _with(predictor, change):
    predictor.party = change(predictor.party)
    return predictor


def _opening(change):
    from anyparty.serving.loaded_party import load_party  # noqa: PLC0415 - not the replaced one

    def opened(*what):
        kept, *rest = load_party(*what)
        return change(kept), *rest

    return opened


# ---- the thread


async def over(net):
    """Send a number to oneself and receive it."""
    await net.send("bank", "number", {"x": torch.ones(1)})
    return float((await net.recv("bank", "number", {"x": TensorSpec((1,))}))["x"]), threading.current_thread().name


def test_only_large_requests_run_in_the_thread():
    async def main():
        net, executor = memory.MemoryHub(("bank", "outside")).channel("bank"), BatchExecutor()
        return [await executor.run(over, net, rows) for rows in (INLINE_ROWS, MANY, MANY)]

    assert play(main()) == [(1, "MainThread"), (1, "anyparty-worker"), (1, "anyparty-worker")]


def test_a_waiting_request_does_not_block_another():
    async def main():
        hub, executor = memory.MemoryHub(("bank", "shop", "outside")), BatchExecutor()
        net = hub.channel("bank")
        first = asyncio.create_task(
            executor.run(lambda way: way.recv("shop", "late", {"x": TensorSpec((1,))}), net, MANY)
        )
        second = await executor.run(over, net, MANY)
        assert not first.done()
        await hub.channel("shop").send("bank", "late", {"x": torch.zeros(1)})
        return second[0], float((await first)["x"])

    assert play(main()) == (1, 0)


def test_an_error_in_the_thread_is_raised_here():
    async def breaks(net):
        raise PartyLost("shop", "for a test")

    async def main():
        with pytest.raises(PartyLost, match="for a test"):
            await BatchExecutor().run(breaks, memory.MemoryHub(("bank", "outside")).channel("bank"), MANY)

    play(main())


def test_a_cancelled_request_waits_until_its_work_has_ended():
    begun, got = threading.Event(), []

    async def hangs(net):
        begun.set()
        try:
            await net.recv("shop", "never", {})
        finally:
            got.append(threading.current_thread().name)

    async def main():
        hub, executor = memory.MemoryHub(("bank", "shop", "outside")), BatchExecutor()
        task = asyncio.create_task(executor.run(hangs, hub.channel("bank"), MANY))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert got == ["anyparty-worker"]
        return await executor.run(over, hub.channel("bank"), MANY)  # the next request gets a new thread

    assert play(main()) == (1, "anyparty-worker")


def test_a_request_that_is_cancelled_immediately_ends():
    async def main():
        task = asyncio.create_task(
            BatchExecutor().run(over, memory.MemoryHub(("bank", "outside")).channel("bank"), MANY)
        )
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    play(main())


def test_two_threads_draw_from_separate_random_streams():
    batch, begun, alone, got = Batch(torch.arange(1), Seeds(0), step_id=("train", 0, 0)), threading.Event(), {}, {}

    def drawn(name, wait_s=0.0):
        with batch.drawing(name, device=torch.device("cpu")):
            begun.set()
            time.sleep(wait_s)  # time for the other thread to seed or use torch's global stream
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
