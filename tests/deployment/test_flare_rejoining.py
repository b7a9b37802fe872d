"""After its process died, a party rejoins with a new process when the run allows it."""

import asyncio
import threading
import time

import pytest
import torch

from anyparty.errors import PartyLost
from anyparty.transport.reliable_buffers import Envelope
from anyparty.transport.reliable_endpoint import ReliableEndpoint
from anyparty.transport.reliable_session import Timeouts
from tests.transport.test_reliable import Air

PATIENCE = Timeouts(join_s=5, silent_s=0.5, message_s=20, retry_s=0.05, receipt_s=0.02, flush_s=2)


def x(number):
    return {"x": torch.tensor([number])}


async def receive_number(net, frm, tag="x"):
    return int((await net.recv(frm, tag, {}))["x"])


class Absent:
    def arrived(self, frm, envelope, data):
        """Ignore messages: this party is not connected yet."""


def new_air():
    air = Air()
    air.endpoints = {"a": Absent(), "b": Absent()}
    return air


class Process:
    """One party's process: an endpoint and a thread with its coroutine, which can be killed."""

    def __init__(self, air, me, part, patience=PATIENCE):
        self.air, self.endpoint, self.result = air, air.endpoint(me, patience=patience), None
        self.endpoint.start([name for name in ("a", "b") if name != me])
        self.thread = threading.Thread(target=self.play, args=(part,), daemon=True)
        self.thread.start()

    def play(self, part):
        async def seat():
            try:
                return await part(self.endpoint, self.endpoint)
            finally:
                await self.endpoint.close()

        try:
            self.result = asyncio.run(seat())
        except Exception as error:
            self.result = error

    def kill(self):
        """Stop sending, even the farewell message."""
        self.air.cut.add(self.endpoint.me)

    def end(self):
        self.thread.join(120)
        assert not self.thread.is_alive()
        return self.result


def wait_for(happens, timeout_s=60.0):
    end = time.monotonic() + timeout_s
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.01)


async def receive_and_readmit(net, membership):
    """Receive numbers until the other party is lost, readmit its new process, and receive that one's numbers."""
    got, lost = [], None
    try:
        while True:
            got.append(await receive_number(net, "b"))
    except PartyLost as error:
        lost = str(error)
    while not membership.waiting_to_rejoin():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)  # it asks to rejoin and keeps waiting
    assert membership.waiting_to_rejoin() == ["b"]
    membership.admit("b")
    assert membership.waiting_to_rejoin() == []
    await net.send("b", "hello", x(99))
    return got, lost, [await receive_number(net, "b") for _ in range(3)]


def test_a_new_process_is_readmitted_and_its_messages_are_received():
    air = new_air()

    async def first(net, membership):
        for number in range(5):
            await net.send("a", "x", x(number))
        await net.recv("a", "never", {})

    async def second(net, membership):
        for number in range(10, 13):
            await net.send("a", "x", x(number))
        return await receive_number(net, "a", "hello")

    a = Process(air, "a", receive_and_readmit)
    b = Process(air, "b", first)
    wait_for(lambda: b.endpoint.sessions["a"].next_number["x"] == 5 and b.endpoint.backlog("a") == 0)
    b.kill()
    b.endpoint.lose("a", "killed")
    b.end()
    air.queue.join()  # its farewell is lost too
    air.cut.clear()
    again = Process(air, "b", second)
    got, lost, fresh = a.end()
    assert again.end() == 99
    assert (got, fresh) == ([0, 1, 2, 3, 4], [10, 11, 12])
    assert "gave no sign of life for 0.5 s" in lost or "was restarted" in lost
    air.close()


def test_late_messages_from_the_previous_process_are_ignored():
    air = new_air()
    endpoint = air.endpoint("a", patience=PATIENCE)
    endpoint.arrived("b", Envelope(life="old").write(), b"")
    endpoint.lose("b", "killed")
    endpoint.arrived("b", Envelope(life="new", ask=1).write(), b"")
    assert endpoint.waiting_to_rejoin() == ["b"]
    endpoint.admit("b")
    endpoint.arrived("b", Envelope(life="old", tag="x", number=0).write(), b"late")
    assert endpoint.gone() == {}
    assert not endpoint.sessions["b"].error
    air.close()


def test_late_messages_from_even_earlier_processes_are_ignored():
    air = new_air()
    endpoint = air.endpoint("a", patience=PATIENCE)
    endpoint.arrived("b", Envelope(life="first").write(), b"")
    for life in ("second", "third"):
        endpoint.lose("b", "killed")
        endpoint.arrived("b", Envelope(life=life, ask=1).write(), b"")
        endpoint.admit("b")
    endpoint.arrived("b", Envelope(life="first", tag="x", number=0).write(), b"late")
    assert endpoint.gone() == {}
    air.close()


class Held:
    """A process without threads; its packets wait until the test delivers them."""

    def __init__(self, me):
        self.endpoint, self.packets = ReliableEndpoint(me, ("a", "b"), "run", self, PATIENCE), []

    def put(self, _, envelope, data):
        self.packets.append((envelope, data))

    def announce(self, other):
        """Tell the other process that this one is there."""
        self.endpoint.sessions[other.endpoint.me].report_due = True
        self.deliver_due(other)

    def deliver_due(self, other):
        """Deliver the packets that are due now."""
        for packet in list(
            self.endpoint.sessions[other.endpoint.me].packets(self.endpoint.incarnation, time.monotonic())
        ):
            self.endpoint._put(*packet)
        self.deliver(other)

    def deliver(self, other, late=()):
        for envelope, data in [*late, *self.packets]:
            other.endpoint.arrived(self.endpoint.me, envelope, data)
        self.packets.clear()


def test_the_next_process_ignores_messages_to_the_previous_one():
    a, before, after = Held("a"), Held("b"), Held("b")
    before.announce(a)
    for number in (1, 2):
        a.endpoint.enqueue("b", "x", x(number))
    late = [a.packets.pop(0) for _ in range(2)]
    a.endpoint.lose("b", "killed")
    after.announce(a)
    a.endpoint.admit("b")
    a.announce(after)
    a.deliver(after, late)
    given = []
    for number in (10, 11):
        a.endpoint.enqueue("b", "x", x(number))
        a.deliver(after)
        after.endpoint.collect("a", "x", given, list)
    assert [int(item["x"]) for item in given] == [10, 11]


def test_the_next_process_ignores_receipts_for_the_previous_one():
    a, before, after = Held("a"), Held("b"), Held("b")
    before.announce(a)
    a.announce(before)
    before.endpoint.enqueue("a", "x", x(1))
    before.deliver(a)
    a.endpoint.enqueue("b", "y", x(2))
    late = [a.packets.pop()]
    after.endpoint.enqueue("a", "x", x(10))
    a.deliver(after, late)
    assert list(after.endpoint.sessions["a"].outgoing) == [("x", 0)]


def test_the_next_process_answers_requests_and_farewells_to_the_previous():
    a, before, after = Held("a"), Held("b"), Held("b")
    now, former = a.endpoint.incarnation, before.endpoint.incarnation
    before.announce(a)
    a.deliver(after, [(Envelope(life=now, to=former, ask=1).write(), b"")])
    after.deliver_due(a)
    assert a.endpoint.waiting_to_rejoin() == ["b"], "it is known that the former one is dead"
    a.deliver(
        after,
        [(Envelope(life=now, to=former, gone="it was silent").write(), b"")],
    )
    assert after.endpoint.gone() == {}
    a.deliver(
        after,
        [(Envelope(life=now, to=former, bye="its part is done").write(), b"")],
    )
    assert after.endpoint.gone() == {"a": "it left: its part is done"}


def test_answers_to_requests_before_readmission_do_not_cause_a_resend():
    air = new_air()
    endpoint = air.endpoint("a", patience=PATIENCE)

    def sends_and_asks():
        endpoint.enqueue("b", "x", x(1))
        later = air.clock() + 2 * PATIENCE.retry_s
        return [envelope.ask for _, envelope, _ in endpoint.sessions["b"].packets(endpoint.incarnation, later)]

    endpoint.arrived("b", Envelope(life="old").write(), b"")
    assert sends_and_asks() == [1]
    endpoint.lose("b", "killed")
    endpoint.arrived("b", Envelope(life="new", ask=1).write(), b"")
    endpoint.admit("b")
    assert sends_and_asks() == [2]
    for answers, lost in ((1, False), (2, True)):
        endpoint.arrived("b", Envelope(life="new", answers=answers).write(), b"")
        assert endpoint.sessions["b"].outgoing["x", 0].ready is lost
    air.close()


def test_a_waiting_process_sends_no_message_before_it_is_readmitted():
    air = new_air()
    endpoint = air.endpoint("a", patience=PATIENCE)
    endpoint.arrived("b", Envelope(life="old").write(), b"")
    endpoint.lose("b", "killed")
    endpoint.arrived("b", Envelope(life="new", ask=1).write(), b"")
    said = [Envelope.read(envelope, "a") for frm, _, envelope, _ in air.log if frm == "a"]
    assert said[-1].wait
    other = air.endpoint("b", patience=PATIENCE)
    other.enqueue("a", "x", x(1))
    other.arrived("a", said[-1].write(), b"")
    assert not list(other.sessions["a"].packets("new", 100.0)) or all(
        not envelope.tag for _, envelope, _ in other.sessions["a"].packets("new", 200.0)
    )
    other.arrived("a", Envelope(life=said[-1].life).write(), b"")
    assert [envelope.tag for _, envelope, _ in other.sessions["a"].packets("new", 300.0)] == ["x"]
    air.close()


@pytest.mark.parametrize(("words", "again"), [({"gone": "too slow"}, True), ({"bye": "done"}, False)])
def test_a_party_that_was_given_up_may_rejoin_unless_the_other_left(words, again):
    air = new_air()
    endpoint = air.endpoint("a", patience=PATIENCE)
    endpoint.arrived("b", Envelope(life="b1").write(), b"")
    endpoint.arrived("b", Envelope(life="b1", **words).write(), b"")
    assert endpoint.gone()["b"]
    assert endpoint.is_cut_off_from("b") is again
    air.close()
