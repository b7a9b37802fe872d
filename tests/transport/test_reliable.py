"""Messages arrive once and in order over an unreliable carrier; lost parties are detected in time."""

import asyncio
import itertools
import queue
import random
import threading
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anyparty.deployment.flare.job import farewell
from anyparty.errors import ENDED, MessageError, PartyLost
from anyparty.transport.codec import MOST_HEADER_BYTES, MOST_NAME, Header, encode
from anyparty.transport.ledger import Flow, Ledger, MeteredChannel, Tally
from anyparty.transport.reliable_buffers import HELD_MESSAGES, MOST_TAGS, PIECE_BYTES, Envelope
from anyparty.transport.reliable_endpoint import ReliableEndpoint
from anyparty.transport.reliable_session import PendingReceive, Session, Timeouts
from tests.controlled_clocks import Steady

QUICK = Timeouts(join_s=0.6, silent_s=0.6, message_s=5, retry_s=0.05, receipt_s=0.02, flush_s=3)
CALM = replace(QUICK, join_s=20, silent_s=20, message_s=20)  # for tests of other things: machines are noisy


class Air:
    """A network in memory, with its own thread, that loses, doubles and reorders packets."""

    def __init__(self, seed=0, lose=0.0, double=0.0, reorder=False):
        self.random = random.Random(seed)  # noqa: S311 - a network's randomness is not a secret
        self.lose, self.double, self.reorder = lose, double, reorder
        self.endpoints, self.queue, self.cut, self.log, self.clock = {}, queue.Queue(), set(), [], Steady()
        self.thread = threading.Thread(target=self.carry, daemon=True)
        self.thread.start()

    def carry(self):
        while (first := self.queue.get()) is not None:
            batch = [first]
            while self.reorder and not self.queue.empty() and len(batch) < 5:
                batch.append(self.queue.get())
            self.random.shuffle(batch)
            for packet in batch:
                if packet is None:
                    return
                self.bring(*packet)
                self.queue.task_done()

    def bring(self, frm, to, envelope, data):
        if self.cut & {frm, to} or self.random.random() < self.lose:
            return
        for _ in range(2 if self.random.random() < self.double else 1):
            self.endpoints[to].arrived(frm, envelope, data)

    def endpoint(self, me, names=("a", "b"), patience=CALM, **more):
        air = self

        class Carrier:
            def put(self, to, envelope, data):
                air.log.append((me, to, envelope, len(data)))
                air.queue.put((me, to, envelope, data))

        self.endpoints[me] = ReliableEndpoint(me, names, "run", Carrier(), patience, clock=self.clock, **more)
        return self.endpoints[me]

    def close(self):
        self.queue.put(None)
        self.thread.join()


def run(air, *parts, names=("a", "b"), patience=CALM):
    """Run each party's coroutine on its own thread and loop, like separate processes."""
    endpoints = [air.endpoint(name, names, patience) for name in names]
    results = {}

    def run_party(endpoint, part):
        async def play():
            try:
                return await part(endpoint)
            finally:
                await endpoint.close()

        endpoint.start([name for name in names if name != endpoint.me])
        try:
            results[endpoint.me] = asyncio.run(play())
        except Exception as error:
            results[endpoint.me] = error

    threads = [threading.Thread(target=run_party, args=pair) for pair in zip(endpoints, parts, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    air.close()
    return results


def test_a_party_that_stopped_with_an_error_names_its_log():
    async def stops(net):
        await asyncio.to_thread(net.leave, farewell("TableError"))

    async def waits(net):
        await net.recv("b", "alignment", {})

    assert str(run(Air(), waits, stops)["a"]) == (
        "party 'b' is gone: it left: it stopped with TableError; site.log in its kit says why "
        "(message 'alignment' no. 0 did not come)"
    )
    assert farewell("") == "its part is done"
    assert farewell("PartyLost", ENDED) == ENDED
    assert farewell("Stopped", "its site was stopped") == "its site was stopped"


def test_messages_to_a_party_that_is_gone_are_not_counted():
    """Messages that cannot be sent are not counted; a sent one is, even if its sender is cancelled while it waits."""

    class Nowhere:
        def put(self, to, envelope, data):
            pass

    ledger, endpoint = Ledger(), ReliableEndpoint("a", ("a", "b", "c"), "run", Nowhere(), most_bytes=1 << 20)
    net = MeteredChannel(endpoint, ledger)

    async def talk():
        await net.send("b", "x", {"i": torch.zeros(10)})
        endpoint.lose("b", "it left")
        await net.send("b", "x", {"i": torch.zeros(10)})
        with pytest.raises(MessageError, match="the limit"):
            await net.send("c", "x", {"i": torch.zeros(1 << 20)})
        for _ in range(70):
            endpoint.enqueue("c", "w", {"i": torch.zeros(250_000)})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(net.send("c", "x", {"i": torch.zeros(5)}), 0.1)

    asyncio.run(talk())
    assert ledger.flows == {Flow("a", "b", "x"): Tally(1, 40), Flow("a", "c", "x"): Tally(1, 20)}


async def talk_as_a(net, rounds=20):
    got = []
    for i in range(rounds):
        await net.send("b", "x", {"i": torch.tensor([i])})
        got.append(int((await net.recv("b", "y", {}))["i"]))
    return got


async def talk_as_b(net, rounds=20):
    got = []
    for i in range(rounds):
        await net.send("a", "y", {"i": torch.tensor([100 + i])})
        got.append(int((await net.recv("a", "x", {}))["i"]))
    return got


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 0.3), st.floats(0, 0.5))
def test_every_message_arrives_once_and_in_order(seed, lose, double):
    patience = Timeouts(join_s=30, silent_s=30, retry_s=0.03, receipt_s=0.01, flush_s=6)
    results = run(Air(seed, lose, double, reorder=True), talk_as_a, talk_as_b, patience=patience)
    assert results == {"a": list(range(100, 120)), "b": list(range(20))}


def test_many_messages_in_one_direction_keep_their_order():
    async def send_200(net):
        for i in range(200):
            await net.send("b", "x", {"i": torch.tensor([i])})

    async def receive_200(net):
        return [int((await net.recv("a", "x", {}))["i"]) for _ in range(200)]

    assert run(Air(3, 0.1, 0.2, reorder=True), send_200, receive_200)["b"] == list(range(200))


@pytest.mark.parametrize(("lose", "double"), [(0.0, 0.0), (0.2, 0.3)])
def test_a_large_message_is_sent_in_pieces(lose, double):
    big = torch.arange(3 * PIECE_BYTES // 4, dtype=torch.float32)

    async def give(net):
        await net.send("b", "x", {"big": big})

    async def take(net):
        return torch.equal((await net.recv("a", "x", {}))["big"], big)

    air = Air(5, lose, double, reorder=True)
    assert run(air, give, take)["b"] is True
    assert max(size for *_, size in air.log) <= PIECE_BYTES


def test_receipts_are_sent_with_the_next_message():
    patience = Timeouts(join_s=5, silent_s=5, retry_s=2, receipt_s=1)
    air = Air()
    run(air, talk_as_a, talk_as_b, patience=patience)
    assert len(air.log) <= 40 + 14, air.log  # twenty messages in each direction, hellos and farewells


def test_a_party_that_never_appears_is_lost():
    async def wait(net):
        await net.recv("b", "x", {})

    async def nobody(net):
        net.leave = lambda *_: None
        net.stop_reason = lambda: "cut off"

    air = Air()
    air.cut = {"b"}
    lost = run(air, wait, nobody, patience=QUICK)["a"]
    assert isinstance(lost, PartyLost)
    assert "'b' is gone: it did not appear for 0.6 s" in str(lost)


def test_a_silent_party_is_lost_in_time_at_both_sides():
    air = Air()
    times = {}

    async def a(net):
        await net.recv("b", "x", {})
        began = air.clock()
        air.cut = {"b"}
        try:
            await net.recv("b", "x", {})
        finally:
            times["a"] = air.clock() - began

    async def b(net):
        await net.send("a", "x", {})
        await net.recv("a", "never", {})

    results = run(air, a, b, patience=replace(QUICK, join_s=20))
    assert "'b' is gone: it gave no sign of life for 0.6 s (message 'x' no. 1 did not come)" in str(results["a"])
    assert isinstance(results["b"], PartyLost)
    assert 0.5 < times["a"] < 2


def test_a_party_that_computes_for_a_long_time_is_not_lost():
    async def a(net):
        return int((await net.recv("b", "x", {}))["i"])

    async def b(net):
        time.sleep(2)  # a training step blocks the loop for three times ``silent_s``
        await net.send("a", "x", {"i": torch.tensor([1])})

    assert run(Air(), a, b, patience=replace(QUICK, join_s=20))["a"] == 1


def test_a_short_interruption_of_the_line_is_recovered():
    air = Air()

    async def a(net):
        await net.recv("b", "x", {})
        air.cut = {"b"}
        await net.send("b", "y", {})
        asyncio.get_running_loop().call_later(0.3, air.cut.clear)
        await net.recv("b", "x", {})
        return "healed"

    async def b(net):
        await net.send("a", "x", {})
        await net.recv("a", "y", {})
        await net.send("a", "x", {})

    assert run(air, a, b, patience=replace(CALM, silent_s=3))["a"] == "healed"


def test_a_departure_is_known_at_once_and_earlier_messages_arrive():
    async def a(net):
        await asyncio.sleep(0.3)
        first = await net.recv("b", "x", {})
        try:
            await net.recv("b", "x", {})
        except PartyLost as lost:
            return int(first["i"]), str(lost)

    async def b(net):
        await net.send("a", "x", {"i": torch.tensor([7])})

    number, lost = run(Air(), a, b)["a"]
    assert number == 7
    assert "'b' is gone: it left: its part is done" in lost


def test_a_message_to_a_party_that_left_is_dropped():
    async def a(net):
        with pytest.raises(PartyLost):
            await net.recv("b", "x", {})
        await net.send("b", "y", {})
        return net.backlog("b")

    async def b(net):
        pass

    assert run(Air(), a, b)["a"] == 0


def test_a_party_that_was_given_up_is_informed():
    """This holds even if it has receipts for all its messages, because it asks whether the other is alive."""
    air, told = Air(), threading.Event()

    async def a(net):
        await net.recv("b", "x", {})
        net.lose("b", "too slow")
        await asyncio.to_thread(told.wait, 20)

    async def b(net):
        await net.send("a", "x", {})
        try:
            await net.recv("a", "y", {})
        finally:
            told.set()

    assert "it has given this party up: too slow" in str(run(air, a, b, patience=replace(CALM, silent_s=2))["b"])


def test_a_cancelled_receive_loses_no_message():
    async def a(net):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(net.recv("b", "x", {}), 0.1)
        await net.send("b", "go", {})
        return int((await net.recv("b", "x", {}))["i"])

    async def b(net):
        await net.recv("a", "go", {})
        await net.send("a", "x", {"i": torch.tensor([1])})

    assert run(Air(), a, b)["a"] == 1


@pytest.mark.parametrize("numbers", [[0], [0, 1]])
def test_a_message_that_arrives_during_a_cancellation_is_received_next(numbers):
    """It arrives on the carrier's thread before the loop handles it, as for the readers of ``serve``."""

    async def read():
        alone, loop = Alone(), asyncio.get_running_loop()
        net, end = alone.endpoint, loop.time() + 0.05

        def busy():
            carrier = threading.Thread(target=lambda: [alone.message(number) for number in numbers])
            carrier.start()
            carrier.join()

        for deadline in (end, end + 10):
            try:
                async with asyncio.timeout_at(deadline):
                    loop.call_at(end, busy)
                    return [int((await net.recv("b", "x", {}))["i"]) for _ in numbers]
            except TimeoutError:
                assert deadline == end
        raise AssertionError

    assert asyncio.run(read()) == numbers


def test_a_message_of_a_lost_process_is_not_returned_to_the_next_inbox():
    alone = Alone()
    withdraw = alone.endpoint.collect("b", "x", alone.items, list)
    alone.message()
    alone.endpoint.lose("b", "too slow")
    alone.endpoint.admit("b")
    withdraw()
    assert not alone.endpoint.sessions["b"].incoming.inbox


def test_a_blocked_send_ends_when_the_receiver_is_lost(monkeypatch):
    """The message exceeds the limit of bytes in transit, and no receive is pending from the killed party."""
    monkeypatch.setattr("anyparty.transport.reliable_endpoint.MOST_ON_THE_WAY", 1000)
    air, killed = Air(), threading.Event()

    async def a(net):
        await net.recv("b", "here", {})
        air.lose = 1.0
        killed.set()
        begun = air.clock()
        await net.send("b", "much", {"x": torch.zeros(1000)})
        assert "gave no sign of life" in net.gone()["b"]
        assert not net.sessions["b"].blocked_since
        return air.clock() - begun

    async def b(net):
        await net.send("a", "here", {})
        await asyncio.to_thread(killed.wait)

    assert run(air, a, b, patience=replace(CALM, silent_s=0.5, flush_s=0.1))["a"] < 5


def test_a_live_party_that_takes_no_messages_is_given_up_in_the_end():
    session = Session("b", Timeouts(silent_s=1, message_s=60), last_heard=59.5, blocked_since=[0.0])
    session.check_silence(60.0)
    assert not session.gone
    session.last_heard = 60.0
    session.check_silence(60.5)
    assert session.gone == "it is alive but did not take what was sent for 60 s"


def test_silence_is_measured_from_the_start_of_a_receive():
    """While no receive is pending, the party is not asked for a sign of life, and need not send any."""
    session, given_to_it = Session("b", Timeouts(silent_s=10), last_heard=0.0), []
    session.waiting["x"] = PendingReceive(given_to_it.append, since=100.0)
    session.check_silence(105.0)
    assert not session.gone
    session.check_silence(110.5)
    assert "gave no sign of life for 10 s" in session.gone
    assert [type(item) for item in given_to_it] == [PartyLost]


def test_an_aborted_job_ends_all_pending_receives():
    async def a(net):
        net.stop_reason = lambda: "the job was aborted"
        await net.recv("b", "x", {})

    async def b(net):
        await net.recv("a", "x", {})

    assert "the job was aborted" in str(run(Air(), a, b)["a"])


# ---- one endpoint alone; tests control its arrivals and its clock


class Alone:
    """An endpoint that sends nowhere, with a stopped clock."""

    def __init__(self, **more):
        self.sent, self.items, self.now = [], [], itertools.count(0).__next__
        self.endpoint = ReliableEndpoint("a", ["a", "b"], "run", self, Timeouts(), clock=lambda: 0.0, **more)

    def put(self, to, envelope, data):
        self.sent.append((to, envelope, data))

    def message(self, number=0, tag="x", life="b1", **changes):
        header = {"run": "run", "frm": "b", "to": "a", "tag": tag, "number": number} | changes
        envelope = Envelope(life=life, tag=tag, number=number).write()
        self.endpoint.arrived("b", envelope, encode(Header(**header), {"i": torch.tensor([number])}))

    def read(self, tag="x"):
        self.endpoint.collect("b", tag, self.items, list)
        return self.items[-1] if self.items else None


def test_duplicates_are_dropped_and_early_messages_wait():
    alone = Alone()
    alone.message(1)
    assert alone.read() is None
    for number in (0, 0, 1, 0):
        alone.message(number)
    alone.read()
    assert [int(item["i"]) for item in alone.items] == [0, 1]
    assert alone.endpoint.sessions["b"].incoming.inbox["x"] == type(alone.endpoint.sessions["b"].incoming.inbox["x"])()


@pytest.mark.parametrize("changes", [{"run": "another"}, {"frm": "c"}, {"to": "c"}, {"tag": "other"}, {"number": 5}])
def test_a_message_with_a_wrong_header_is_refused_with_its_sender(changes):
    alone = Alone()
    header = {"run": "run", "frm": "b", "to": "a", "tag": "x", "number": 0} | changes
    alone.endpoint.arrived("b", Envelope(life="b1", tag="x").write(), encode(Header(**header), {}))
    assert isinstance(alone.read(), MessageError)
    assert str(alone.read() or "").startswith("'b' sent") or str(alone.items[0]).startswith("'b' sent")


def test_a_truncated_message_is_refused_with_its_sender():
    alone = Alone()
    alone.endpoint.arrived("b", Envelope(life="b1", tag="x").write(), b"\x10\0\0\0\0\0\0\0{}")
    assert "'b' sent 10 bytes, expected one whole message" in str(alone.read())


def test_a_message_above_the_size_limit_is_refused():
    alone = Alone(most_bytes=1000)
    data = encode(Header(run="run", frm="b", to="a", tag="x", number=0), {"x": torch.zeros(50_000)})
    alone.endpoint.arrived("b", Envelope(life="b1", tag="x").write(), data)
    assert "limit is 1000" in str(alone.read())


@pytest.mark.parametrize(
    "envelope",
    [None, 7, "", "{", "[]", "{}", '{"life":3}', '{"life":"b","acks":{"x":"y"}}', '{"life":"b","number":-1}',
     '{"life":"b","piece":1}', '{"life":"b","wat":1}', '{"life":"b","ask":true}', '{"life":"b","ask":-1}',
     '{"life":"b","answers":-1}', '{"life":"b","parts":{"x":1}}', '{"life":"b","parts":{"x":"y"},"acks":{"x":1}}',
     '{"life":"b","parts":[]}', "[" * 5000, "x" * 200_000],
)  # fmt: skip
def test_an_invalid_envelope_is_refused_with_its_sender(envelope):
    alone = Alone()
    alone.endpoint.arrived("b", envelope, b"")
    refused = alone.read()
    assert isinstance(refused, MessageError)
    assert str(refused).startswith("'b' sent a packet with")


def test_an_answer_about_the_maximum_number_of_lanes_can_be_read():
    session = Session("b", CALM, last_heard=0.0, report_due=True)
    session.incoming.expected.update({f"{number:0{MOST_NAME}}": 10**6 for number in range(MOST_TAGS)})
    ((_, envelope, _),) = session.packets("a", 0.0)
    assert Envelope.read(envelope.write(), "a") == envelope


def test_packets_of_unknown_senders_are_ignored():
    alone = Alone()
    alone.endpoint.arrived("mallory", Envelope(life="m").write(), b"")
    assert alone.endpoint.refused == {"mallory": 1}
    assert not alone.sent


def test_a_party_whose_process_was_restarted_is_lost():
    alone = Alone()
    alone.message(0, life="b1")
    alone.message(1, life="b2")
    alone.read()
    assert "was restarted" in str(alone.read())


def test_a_message_to_an_unknown_party_is_refused():
    with pytest.raises(MessageError, match="has no party 'c' to talk to"):
        Alone().endpoint.enqueue("c", "x", {})


def test_unread_messages_are_bounded():
    alone = Alone()
    for number in range(1500):
        alone.message(number)
    assert len(alone.endpoint.sessions["b"].incoming.inbox["x"]) <= 1024


def test_the_number_of_lanes_is_bounded():
    alone = Alone()
    for number in range(MOST_TAGS + 50):
        alone.message(tag=f"t{number}")
    assert len(alone.endpoint.sessions["b"].incoming.inbox) == MOST_TAGS


def test_incomplete_messages_are_bounded():
    alone = Alone(most_bytes=2 * PIECE_BYTES)
    for number in range(100):
        alone.endpoint.arrived("b", Envelope(life="b1", tag="x", number=number, pieces=2).write(), bytes(PIECE_BYTES))
    held = sum(
        len(piece) for pieces in alone.endpoint.sessions["b"].incoming.pieces.values() for piece in pieces.values()
    )
    assert 0 < held <= HELD_MESSAGES * (2 * PIECE_BYTES + MOST_HEADER_BYTES)


def test_a_reason_for_leaving_is_shortened_and_has_no_control_characters():
    said = Envelope(life="a", bye="it left\x1b]0;mine\x07\n" + "x" * 50_000).write()
    heard = Envelope.read(said, "shop").bye
    assert heard.startswith("it left ]0;mine  xxx")
    assert len(heard) == 2000
