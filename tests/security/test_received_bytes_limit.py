"""The bytes that a sender can make a receiver keep are bounded over all lanes; assembling pieces takes linear time."""

import asyncio
import contextlib

import pytest
import torch

from anyparty.errors import MessageError
from anyparty.transport import reliable_buffers
from anyparty.transport.codec import MOST_HEADER_BYTES, Header, encode
from anyparty.transport.reliable_buffers import HELD_MESSAGES, OVERHEAD_BYTES, PIECE_BYTES, Envelope, Incoming, bytes_of
from anyparty.transport.reliable_endpoint import ReliableEndpoint
from anyparty.transport.reliable_session import Timeouts
from tests.transport.test_reliable import CALM, Air, run

MOST_BYTES = 100_000
LIMIT = MOST_BYTES + MOST_HEADER_BYTES
BUDGET = HELD_MESSAGES * LIMIT


class End:
    """The endpoint of party a alone; tests decide what arrives from party b."""

    def __init__(self, most_bytes=MOST_BYTES):
        self.endpoint = ReliableEndpoint(
            "a", ["a", "b"], "run", self, Timeouts(), clock=lambda: 0.0, most_bytes=most_bytes
        )
        self.come, self.items = self.endpoint.sessions["b"].incoming, []

    def put(self, to, envelope, data):
        """Discard what is sent."""

    def piece(self, data, tag="x", number=0, piece=0, pieces=1):
        envelope = Envelope(life="b1", tag=tag, number=number, piece=piece, pieces=pieces)
        self.endpoint.arrived("b", envelope.write(), data)

    def message(self, size=0, tag="x", number=0):
        header = Header(run="run", frm="b", to="a", tag=tag, number=number)
        self.piece(encode(header, {"i": torch.zeros(size, dtype=torch.uint8)}), tag, number)

    def read(self, tag="x"):
        self.endpoint.collect("b", tag, self.items, list)
        return self.items[-1] if self.items else None

    def held(self):
        """Count the bytes that are kept, independently."""
        messages = [*self.come.early.values(), *(item for lane in self.come.inbox.values() for item in lane)]
        pieces = [piece for message in self.come.pieces.values() for piece in message.values()]
        return sum(map(bytes_of, messages)) + sum(len(piece) + OVERHEAD_BYTES for piece in pieces)


def test_the_budget_is_of_all_lanes_together():
    end = End()
    for number in range(5):
        for lane in range(20):
            end.message(50_000, f"lane {lane}", number)
            assert end.come.held_bytes == end.held() <= BUDGET
    assert end.come.held_bytes > BUDGET - 60_000


def test_empty_messages_count_too():
    end = End()
    for number in range(400):
        end.message(0, number=number)
    assert end.come.held_bytes == end.held() <= BUDGET + OVERHEAD_BYTES  # the last tensor, after decoding
    assert 100 < len(end.come.inbox["x"]) <= BUDGET / OVERHEAD_BYTES


def test_messages_before_their_turn_count_too_and_take_no_more_lanes(monkeypatch):
    monkeypatch.setattr(reliable_buffers, "MOST_TAGS", 4)
    end = End()
    for lane in range(9):
        end.message(0, f"lane {lane}", number=1)
    assert len(end.come.early) == 4
    for number in range(2, 300):
        end.message(1000, "lane 0", number)
    assert end.come.held_bytes == end.held() <= BUDGET + OVERHEAD_BYTES


def test_what_is_read_makes_room_and_what_had_none_is_taken_when_it_comes_again():
    end = End()
    for number in range(10):
        end.message(50_000, number=number)
    came = end.come.expected["x"]
    assert came < 10
    for number in range(10):
        end.message(50_000, number=number)  # messages that were not acknowledged are sent again
        assert len(end.read()["i"]) == 50_000
    assert end.come.expected["x"] == 10
    assert not end.come.rejected
    assert end.come.held_bytes == end.come.rejected_bytes == 0


def test_the_message_that_is_waited_for_has_room_behind_a_flood():
    end = End()
    for number in range(100):
        end.message(50_000, "flood", number)
    end.message(90_000, "x")
    assert end.read("x") is None  # no receive was pending when it arrived
    end.message(90_000, "x")
    assert len(end.items[0]["i"]) == 90_000
    assert end.come.held_bytes == end.held() <= BUDGET


def test_who_does_not_wait_for_room_is_refused_and_named(monkeypatch):
    monkeypatch.setattr(reliable_buffers, "MOST_ON_THE_WAY", 0)
    end = End()
    for number in range(50):
        end.message(50_000, "flood", number)
    with pytest.raises(MessageError, match=r"'b' sent \d+ bytes more while \d+ bytes of its messages wait to be read"):
        raise end.read("x")
    assert len(end.come.rejected) < 10


def test_an_honest_party_that_runs_ahead_only_waits(monkeypatch):
    """It sends twenty times the budget to a party that reads nothing for a while."""
    monkeypatch.setattr(reliable_buffers, "MOST_ON_THE_WAY", 2 * LIMIT)
    monkeypatch.setattr("anyparty.transport.reliable_endpoint.MOST_ON_THE_WAY", 2 * LIMIT)
    air, most, many = Air(), [], 80
    create = air.endpoint
    air.endpoint = lambda *words, **more: create(*words, **more, most_bytes=MOST_BYTES)

    async def a(net):
        come = net.sessions["b"].incoming
        while come.held_bytes < BUDGET - 2 * MOST_BYTES:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        for number in range(many):
            most.append(come.held_bytes)
            assert int((await net.recv("b", "big", {}))["i"][0]) == number
            assert int((await net.recv("b", "small", {}))["i"]) == number

    async def b(net):
        for number in range(many):
            await net.send("a", "big", {"i": torch.full((80_000,), number, dtype=torch.uint8)})
            await net.send("a", "small", {"i": torch.tensor([number])})

    assert run(air, a, b, patience=CALM) == {"a": None, "b": None}
    assert max(most) <= BUDGET + LIMIT


class Counting(dict):
    """Pieces of a message that count accesses to single pieces."""

    looks = 0

    def values(self):
        Counting.looks += len(self)
        return super().values()

    def __contains__(self, key):
        Counting.looks += 1
        return super().__contains__(key)


@pytest.mark.parametrize("many", [200, 400])
def test_assembling_looks_at_each_piece_a_few_times(monkeypatch, many):
    """This holds for any number of pieces, in reverse order, and with a report after each piece."""
    monkeypatch.setattr(reliable_buffers, "PIECE_BYTES", 10)
    for order in (range(many), reversed(range(many))):
        come, Counting.looks = Incoming(), 0
        come.pieces["x", 0] = Counting()
        for piece in order:
            envelope = Envelope(life="b1", tag="x", piece=piece, pieces=many)
            whole = come.add_piece(envelope, bytes([piece % 251]) * 10, 1 << 30, "'b'")
            come.progress()
        assert whole == b"".join(bytes([piece % 251]) * 10 for piece in range(many))
        assert Counting.looks <= 6 * many


@pytest.mark.parametrize(
    ("size", "piece", "pieces", "said"),
    [
        (0, 0, 2, f"piece 1 of 2 of message 'x' no. 0 with 0 bytes, expected {PIECE_BYTES}"),
        (0, 1, 2, f"piece 2 of 2 of message 'x' no. 0 with 0 bytes, expected 1 to {PIECE_BYTES}"),
        (500, 0, 2, f"with 500 bytes, expected {PIECE_BYTES}"),
        (PIECE_BYTES + 1, 0, 2, f"with {PIECE_BYTES + 1} bytes, expected {PIECE_BYTES}"),
        (PIECE_BYTES + 1, 1, 2, f"with {PIECE_BYTES + 1} bytes, expected 1 to {PIECE_BYTES}"),
        (PIECE_BYTES, 0, 40_000, "piece 1 of 40000 of message 'x' no. 0, which is too large: the limit is"),
        (PIECE_BYTES, 7, 10**15, "which is too large"),
    ],
)
def test_pieces_that_no_sender_cuts_are_refused_and_named(size, piece, pieces, said):
    end = End(most_bytes=4 * PIECE_BYTES)
    end.piece(bytes(size), piece=piece, pieces=pieces)
    refused = end.read()
    assert isinstance(refused, MessageError)
    assert str(refused).startswith("'b' sent piece")
    assert said in str(refused)
    assert end.come.held_bytes == end.held() == 0


def test_pieces_of_messages_that_are_never_whole_are_bounded():
    end = End(most_bytes=4 * PIECE_BYTES)
    for number in range(50):
        end.piece(bytes(PIECE_BYTES), number=number, pieces=2)
    assert end.come.held_bytes == end.held() <= HELD_MESSAGES * (4 * PIECE_BYTES + MOST_HEADER_BYTES)
    end.endpoint.lose("b", "too slow")
    assert end.come.held_bytes == 0


def test_what_is_given_back_is_held_again():
    end = End()

    async def read():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                asyncio.get_running_loop().call_at(asyncio.get_running_loop().time() + 0.05, end.message, 1000)
                await end.endpoint.recv("b", "x", {})

    asyncio.run(read())
    assert end.come.held_bytes == end.held()
