"""Every carrier of messages passes these tests; a new one adds itself to ``CARRIERS``."""

import threading
from functools import partial

import pytest
import torch

from anyparty.core.types import TensorSpec
from anyparty.errors import Deadlock, PartyLost
from anyparty.transport import memory
from anyparty.transport.ledger import Flow, Ledger, MeteredChannel, Tally
from tests.worlds import by_hand

CARRIERS = {
    "in process": memory.play,
    "by hand": by_hand,
    "by hand, in another order": partial(by_hand, seed=3),
}
ANY = {"x": TensorSpec((-1,), torch.float32)}


@pytest.fixture(params=sorted(CARRIERS))
def play(request):
    """Return a carrier, which runs every party's part."""
    return CARRIERS[request.param]


def x(*numbers):
    return {"x": torch.tensor(numbers, dtype=torch.float32)}


async def nothing(net):
    """Leave at once."""


class TestDelivery:
    def test_messages_arrive_unchanged(self, play):
        """Test every dtype, an empty tensor, a scalar, a transposed tensor, and names."""
        sent = {
            "f": torch.randn(3, 2).T, "i": torch.tensor([2**40, -1]), "u": torch.arange(5, dtype=torch.uint8),
            "b": torch.tensor([True, False]), "none": torch.empty(0, 4), "one": torch.tensor(3.5),
        }  # fmt: skip

        async def a(net):
            await net.send("b", "tag", sent)

        async def b(net):
            return await net.recv("a", "tag", {})

        got = play({"a": a, "b": b})["b"]
        assert got.keys() == sent.keys()
        for name, tensor in sent.items():
            assert got[name].dtype == tensor.dtype
            assert torch.equal(got[name], tensor)

    def test_each_lane_keeps_its_order_independently_of_others(self, play):
        async def a(net):
            for i in range(5):
                await net.send("b", "even" if i % 2 == 0 else "odd", x(i))

        async def b(net):
            odd = [float((await net.recv("a", "odd", ANY))["x"]) for _ in range(2)]
            even = [float((await net.recv("a", "even", ANY))["x"]) for _ in range(3)]
            late = float((await net.recv("c", "even", ANY))["x"])
            return odd, even, late

        async def c(net):
            await net.send("b", "even", x(9))

        assert play({"a": a, "b": b, "c": c})["b"] == ([1, 3], [0, 2, 4], 9)

    def test_messages_are_copies(self, play):
        """Later changes of a tensor at the sender or the receiver do not affect the other."""
        mine = torch.zeros(2)

        async def a(net):
            await net.send("b", "tag", {"x": mine})
            mine.fill_(7)
            await net.recv("b", "done", ANY)
            return mine

        async def b(net):
            got = (await net.recv("a", "tag", ANY))["x"]
            seen = got.tolist()
            got.fill_(-1)
            await net.send("a", "done", {"x": got})
            return seen

        results = play({"a": a, "b": b})
        assert results["b"] == [0, 0]
        assert results["a"].tolist() == [7, 7]

    def test_received_tensors_have_no_autograd_graph(self, play):
        async def a(net):
            await net.send("b", "tag", {"x": torch.ones(2, requires_grad=True) * 2})

        async def b(net):
            return (await net.recv("a", "tag", ANY))["x"].requires_grad

        assert play({"a": a, "b": b})["b"] is False

    def test_both_may_send_before_either_reads(self, play):
        async def part(net, other):
            for i in range(100):
                await net.send(other, "tag", x(i))
            return [float((await net.recv(other, "tag", ANY))["x"]) for _ in range(100)]

        results = play({"a": partial(part, other="b"), "b": partial(part, other="a")})
        assert results["a"] == results["b"] == list(range(100))

    def test_a_party_knows_its_name(self, play):
        async def part(net):
            return net.me

        assert play({"a": part, "b": part}) == {"a": "a", "b": "b"}


class TestLeaving:
    def test_messages_sent_before_leaving_still_arrive(self, play):
        async def a(net):
            await net.send("b", "tag", x(1))

        async def b(net):
            first = float((await net.recv("a", "tag", ANY))["x"])
            with pytest.raises(PartyLost, match="party 'a' is gone: it left while 'b' waited for 'tag'") as lost:
                await net.recv("a", "tag", ANY)
            return first, lost.value.party

        assert play({"a": a, "b": b})["b"] == (1, "a")

    def test_sending_to_a_party_that_left_raises_no_error(self, play):
        async def b(net):
            with pytest.raises(PartyLost):
                await net.recv("a", "tag", ANY)
            await net.send("a", "tag", x(1))
            return "went on"

        assert play({"a": nothing, "b": b})["b"] == "went on"

    def test_messages_to_a_party_that_left_are_not_counted(self, play):
        ledger = Ledger()

        async def b(net):
            wired = MeteredChannel(net, ledger)
            with pytest.raises(PartyLost):
                await wired.recv("a", "tag", ANY)
            await wired.send("a", "tag", x(1, 2))
            await wired.send("c", "tag", x(3))

        async def c(net):
            await net.recv("b", "tag", ANY)

        play({"a": nothing, "b": b, "c": c})
        assert ledger.flows == {Flow("b", "c", "tag"): Tally(1, 4)}

    def test_the_original_error_of_a_party_is_raised(self, play):
        async def a(net):
            raise ZeroDivisionError("a's own")

        async def b(net):
            await net.recv("a", "tag", ANY)

        for order in (("a", "b"), ("b", "a")):
            with pytest.raises(ZeroDivisionError, match="a's own"):
                play({name: {"a": a, "b": b}[name] for name in order})

    def test_an_error_at_one_party_stops_the_others(self, play):
        """This includes a party that could continue without it, whose work would be useless."""
        steps = []

        async def a(net):
            await net.recv("b", "tag", ANY)
            raise ZeroDivisionError("a's own")

        async def b(net):
            await net.send("a", "tag", x(1))
            for step in range(1000):
                try:
                    await net.recv("a", "answer", ANY)
                except PartyLost:
                    steps.append(step)

        with pytest.raises(ZeroDivisionError):
            play({"a": a, "b": b})
        assert not steps


class TestDeadlock:
    def test_a_cycle_of_waiting_parties_is_reported(self, play):
        async def part(net, frm):
            await net.recv(frm, "token", ANY)

        parts = {name: partial(part, frm=frm) for name, frm in zip("abc", "bca", strict=True)}
        sentence = (
            "no party can go on: c waits for 'token' from a; a waits for 'token' from b; b waits for 'token' from c"
        )
        with pytest.raises(Deadlock, match=sentence):
            play(parts)

    def test_a_deadlock_after_another_party_left_is_reported(self, play):
        async def part(net, frm):
            await net.recv(frm, "token", ANY)

        with pytest.raises(Deadlock, match="b waits for 'token' from a; a waits for 'token' from b"):
            play({"a": partial(part, frm="b"), "b": partial(part, frm="a"), "c": nothing})

    def test_a_receive_with_the_wrong_tag_is_reported(self, play):
        async def a(net):
            await net.send("b", "hello", x(1))
            await net.recv("b", "answer", ANY)

        async def b(net):
            await net.recv("a", "helo", ANY)

        with pytest.raises(Deadlock, match="b waits for 'helo' from a"):
            play({"a": a, "b": b})


def test_in_process_runs_inside_a_running_loop():
    """Notebooks have a running loop."""
    import asyncio  # noqa: PLC0415

    async def part(net):
        return net.me

    async def notebook():
        return memory.play({"a": part})

    assert asyncio.run(notebook()) == {"a": "a"}


def test_an_interrupt_in_a_notebook_ends_the_parts(monkeypatch):
    """The parts run on another thread, and Ctrl-C reaches the one that waits for them."""
    import asyncio  # noqa: PLC0415
    from concurrent.futures import Future  # noqa: PLC0415

    begun, steps = threading.Event(), []

    async def part(net):
        for step in range(2000):
            steps.append(step)
            begun.set()
            await asyncio.sleep(0.005)

    async def notebook():
        return memory.play({"a": part, "b": part})

    def interrupted(future):
        assert begun.wait(10)
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(notebook())
    assert len(steps) < 2000
