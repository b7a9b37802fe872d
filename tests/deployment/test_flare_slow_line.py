"""On a line that is slow for a message's size, no party is lost and nothing is sent twice."""

from collections import deque
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from anyparty.transport.reliable_buffers import PIECE_BYTES, Envelope, Outgoing
from anyparty.transport.reliable_endpoint import ReliableEndpoint
from anyparty.transport.reliable_session import Session, Timeouts

STEP_S = 0.05
RATES = [1e6, 0.5e6, 0.125e6]  # bytes per second: a piece takes one, two or eight seconds
PATIENCE = Timeouts()
SILENT_S, RETRY_S = PATIENCE.silent_s, PATIENCE.retry_s


def large(pieces):
    """Return a message of a given number of pieces, the last one almost full."""
    return {"x": torch.zeros(pieces * PIECE_BYTES // 4 - 1000)}


def nothing(frm, envelope):
    return False


class Line:
    """Two endpoints, ``a`` and ``b``, on a simulated clock.

    Each direction is an unbounded queue, like gRPC's, before a line with ``rate`` bytes per second, which keeps the
    order.  Packets that arrive while the line is ``cut``, and those for which ``lose_envelope`` returns true, are lost.
    The endpoints' threads do not run: ``run`` does their work.
    """

    def __init__(self, rate, lose_envelope=nothing, patience=PATIENCE):
        self.rate, self.lose_envelope, self.cut, self.now = rate, lose_envelope, False, 0.0
        self.queues, self.free, self.most, self.log, self.dead = {"a": deque(), "b": deque()}, {}, 0, [], set()
        carriers = {me: SimpleNamespace(put=partial(self.put, me)) for me in "ab"}
        self.endpoints = {
            me: ReliableEndpoint(me, "ab", "run", carriers[me], patience, clock=lambda: self.now) for me in "ab"
        }
        self.a, self.b = (self.endpoints[me].sessions[other] for me, other in ("ab", "ba"))  # sessions with the other
        self.a.report_due = self.b.report_due = True
        self.run(1)

    def put(self, frm, to, envelope, data):
        self.log.append((frm, Envelope.read(envelope, frm), len(data)))
        self.free[frm] = max(self.free.get(frm, 0.0), self.now) + (len(envelope) + len(data)) / self.rate
        self.queues[frm].append((self.free[frm], to, envelope, data))
        self.most = max(self.most, sum(len(data) for _, _, _, data in self.queues[frm]))

    def run(self, seconds, until=lambda: False):
        """Advance the clock by at most ``seconds``; return whether ``until`` has become true."""
        end = self.now + seconds
        while self.now < end and not until():
            self.now += STEP_S
            for frm, queue in self.queues.items():
                while queue and queue[0][0] <= self.now:
                    _, to, envelope, data = queue.popleft()
                    if (
                        not self.cut
                        and to not in self.dead
                        and not self.lose_envelope(frm, Envelope.read(envelope, frm))
                    ):
                        self.endpoints[to].arrived(frm, envelope, data)
            for me, endpoint in self.endpoints.items():
                for session in endpoint.sessions.values() if me not in self.dead else ():
                    session.check_silence(self.now)
                    for packet in () if session.gone else list(session.packets(endpoint.incarnation, self.now)):
                        endpoint._put(*packet)
        return until()

    def read(self, me, tag):
        """Wait for a message of the other endpoint; return the list that will hold it."""
        given = []
        self.endpoints[me].collect("ab".replace(me, ""), tag, given, list)
        return given

    def sent(self, frm="a"):
        """Return the bytes of messages that were put on the line."""
        return sum(size for name, _, size in self.log if name == frm)

    @property
    def gone(self):
        return self.a.gone or self.b.gone


def wait_for_answer(line, tag="gradient"):
    return line.read("a", tag)


def wait_for_room(line):
    line.a.blocked_since.append(line.now)


# ---- messages arrive once


@pytest.mark.parametrize(
    ("rate", "sender", "computes"),
    [(RATES[0], wait_for_answer, False), (RATES[1], wait_for_room, False), (RATES[2], wait_for_answer, True),
     (RATES[2], wait_for_room, True)],
)  # fmt: skip
def test_a_slow_message_arrives_and_is_sent_once(rate, sender, computes):
    """The receiver waits or computes meanwhile; the sender waits for an answer, or for room to send more."""
    line, message = Line(rate), large(24 if rate == 1e6 else 12)
    came = [] if computes else line.read("b", "embedding")
    line.endpoints["a"].enqueue("b", "embedding", message)
    size, notes = line.a.backlog, len(line.log)
    sender(line)
    assert line.run(3 * size / rate, lambda: line.gone or not line.a.outgoing)
    assert not line.gone
    assert line.now > 2 * SILENT_S
    assert torch.equal((came or line.read("b", "embedding"))[0]["x"], message["x"])
    assert line.sent() == size == line.most == line.a.traffic.bytes_sent
    assert line.a.traffic.repeated == 0
    for me in "ab":  # requests for reports and their answers: occasionally, not for every piece
        assert sum(frm == me and not data for frm, _, data in line.log[notes:]) <= 2 * line.now / RETRY_S + 1


def test_messages_after_a_slow_one_are_sent_once():
    """Small messages in both directions, and more large ones in the same and another lane."""
    line, message = Line(0.125e6), large(3)
    for number in range(3):
        line.endpoints["a"].enqueue("b", "embedding", message)
        line.endpoints["a"].enqueue("b", "more", message)
        line.endpoints["a"].enqueue("b", "small", {"x": torch.tensor([number])})
        line.endpoints["b"].enqueue("a", "small", {"x": torch.tensor([number])})
    size = line.a.backlog
    wait_for_answer(line)
    assert line.run(200, lambda: line.gone or not line.a.outgoing)
    assert not line.gone
    assert line.sent() == size == line.most
    assert line.a.traffic.repeated == line.b.traffic.repeated == 0
    assert [len(line.b.incoming.inbox[tag]) for tag in ("embedding", "more", "small")] == [3, 3, 3]


# ---- lost messages


def lost_once(*places):
    """Lose each of these pieces the first time."""
    left = list(places)

    def lose_envelope(frm, envelope):
        if envelope.tag and envelope.piece in left:
            left.remove(envelope.piece)
            return True
        return False

    return lose_envelope


@pytest.mark.parametrize("rate", [1e8, RATES[-1]])
@pytest.mark.parametrize(("places", "again"), [((4, 7), 8), ((0,), 12), ((11,), 1), (range(12), 12)])
def test_a_lost_piece_and_all_pieces_after_it_are_sent_again(rate, places, again):
    """It is sent again with all pieces after it, but without those before it."""
    line = Line(rate, lost_once(*places), Timeouts(silent_s=1000))  # if all are lost, the line is silent for long
    line.endpoints["a"].enqueue("b", "embedding", large(12))
    size = line.a.backlog
    came = line.read("b", "embedding")
    assert line.run(2 * size / rate + 2 * RETRY_S, lambda: not line.a.outgoing)
    assert came[0].keys() == {"x"}
    last = size - 11 * PIECE_BYTES
    assert line.sent() == size + (again - 1) * PIECE_BYTES + last == line.a.traffic.bytes_sent
    assert (line.a.traffic.messages, line.a.traffic.repeated) == (2, 1)


def test_a_lost_receipt_does_not_cause_a_resend():
    lost = []

    def lose_envelope(frm, envelope):
        if lost or not envelope.acks.get("embedding"):
            return False
        lost.append(envelope)
        return True

    line = Line(1e6, lose_envelope)
    line.endpoints["a"].enqueue("b", "embedding", large(3))
    size = line.a.backlog
    assert line.run(20, lambda: not line.a.outgoing)
    assert lost
    assert line.sent() == size


def test_a_reconnected_line_carries_the_rest_of_a_message():
    line = Line(1e6)
    line.endpoints["a"].enqueue("b", "embedding", large(24))
    size = line.a.backlog
    came = line.read("b", "embedding")
    line.run(8)
    line.cut = True
    line.run(SILENT_S / 2)
    line.cut = False
    assert line.run(60, lambda: line.gone or not line.a.outgoing)
    assert not line.gone
    assert came[0].keys() == {"x"}
    assert line.sent() < 2 * size - 6 * PIECE_BYTES


def test_an_answer_without_a_request_is_ignored():
    session = Session("b", Timeouts(), last_heard=0.0, asks_sent=1)
    session.outgoing["x", 0] = out = Outgoing(b"message", ready=False, attempts=1)
    session.read(Envelope(life="b", answers=2), 1.0)
    assert not out.ready
    session.read(Envelope(life="b", answers=1), 1.0)
    assert out.ready


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_message_that_is_still_being_read_is_not_sent_again(pieces):
    """A request for a report may overtake the message before it, which another thread still reads."""
    a, b = Session("b", Timeouts(), last_heard=0.0), Session("a", Timeouts(), last_heard=0.0)
    a.outgoing["x", 0] = out = Outgoing(bytes(pieces * PIECE_BYTES))
    whole = [b.add_piece(envelope, data, 1 << 30) for _, envelope, data in a.packets("a", 0.0)][-1]
    assert whole == out.data
    (ask,) = [envelope for _, envelope, _ in a.packets("a", 3.0)]
    b.read(ask, 3.0)
    (answer,) = [envelope for _, envelope, _ in b.packets("b", 3.0)]
    a.read(answer, 3.0)
    assert (answer.answers, answer.parts) == (1, {"x": pieces})
    assert not out.ready
    assert b.add_piece(Envelope(life="a", tag="x", pieces=pieces), b"doubled", 1 << 30) is None


# ---- parties that die


@pytest.mark.parametrize("sender", [wait_for_answer, wait_for_room])
@pytest.mark.parametrize("rate", RATES)
def test_a_receiver_that_dies_during_a_message_is_given_up_in_time(rate, sender):
    line = Line(rate)
    line.endpoints["a"].enqueue("b", "embedding", large(24))
    sender(line)
    line.run(SILENT_S + 8)
    assert not line.gone
    line.dead, died = {"b"}, line.now
    assert line.run(SILENT_S + 1, lambda: line.a.gone)
    assert line.a.gone == "it gave no sign of life for 10 s"
    assert line.now - died > SILENT_S - 3


@pytest.mark.parametrize("rate", RATES)
def test_a_sender_that_dies_during_a_message_is_given_up_in_time(rate):
    """Packets already on the line could still arrive; here they are lost."""
    line = Line(rate)
    line.endpoints["a"].enqueue("b", "embedding", large(24))
    line.read("b", "embedding")
    line.run(SILENT_S + 8)
    assert not line.gone
    line.dead, line.cut, died = {"a"}, True, line.now
    assert line.run(SILENT_S + 1, lambda: line.b.gone)
    assert line.b.gone == "it gave no sign of life for 10 s"
    assert line.now - died < SILENT_S + 1


# ---- leaving


def test_a_leaving_party_waits_while_its_last_message_makes_progress():
    line = Line(1e6)
    endpoint = line.endpoints["a"]
    closing = []

    def clock():
        if closing == ["now"]:
            closing.append("the line moves on")
            line.run(2)
            closing.pop()
        return line.now

    endpoint.clock = clock
    endpoint.enqueue("b", "last", large(24))
    begun = line.now
    closing.append("now")
    endpoint.leave()
    assert line.now - begun > 2 * PATIENCE.flush_s
    assert len(line.b.incoming.inbox["last"]) == 1


def test_a_leaving_party_does_not_wait_for_a_dead_party():
    line = Line(1e6)
    line.endpoints["a"].enqueue("b", "last", large(24))
    begun = line.now
    line.run(15)
    assert line.a.is_flushing(begun, line.now)
    line.dead, died = {"b"}, line.now
    assert line.run(PATIENCE.flush_s + 1, lambda: not line.a.is_flushing(begun, line.now))
    assert line.a.outgoing
    assert line.now - died > PATIENCE.flush_s - 3
