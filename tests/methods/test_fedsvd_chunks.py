"""Matrices with more rows than a message may hold arrive completely, in as few messages as necessary."""

import pytest
import torch

from anyparty.core.types import TensorSpec
from anyparty.errors import MessageError
from anyparty.methods.one_exchange import fedsvd
from anyparty.methods.one_exchange.apc import Apc
from anyparty.transport import memory
from tests.methods.test_apc import SMALL
from tests.methods.test_vfedtrans import APART, blocks, decompose
from tests.methods.two_party_data import ADAM, split
from tests.worlds import Table, Wiretap, same_bits, train, weights, world


def over(x, expect, monkeypatch, most=5):
    """Send x [m, 3] in chunks of at most ``most`` rows; return it and the messages' lengths."""
    monkeypatch.setattr(fedsvd, "LOT_BYTES", most * 3 * 4)
    notes = []

    async def give(net):
        await fedsvd.send(net, "b", "masked", "x", x)

    async def take(net):
        return await fedsvd.recv(net, "a", "masked", "x", expect)

    got = memory.play({"a": give, "b": take}, lambda channel: Wiretap(channel, notes))["b"]
    return got, [len(tensors["x"]) for _, _, _, tensors in notes]


@pytest.mark.parametrize(("m", "lengths"), [(0, [0]), (4, [4]), (5, [5, 0]), (12, [5, 5, 2])])
@pytest.mark.parametrize("rows_are_known", [True, False])
def test_sent_rows_arrive_in_all_chunk_sizes(m, lengths, rows_are_known, monkeypatch):
    x = torch.arange(3.0 * m).view(m, 3)
    got, sent = over(x, TensorSpec((m if rows_are_known else -1, -1)), monkeypatch)
    assert got.equal(x)
    assert sent == lengths


@pytest.mark.parametrize("m", [3, 5, 11, 14])
def test_an_unexpected_number_of_rows_is_refused(m, monkeypatch):
    with pytest.raises(MessageError, match="message 'masked' from 'a' to 'b': 'x' should have 12 rows, got"):
        over(torch.zeros(m, 3), TensorSpec((12, 3)), monkeypatch)


def test_more_rows_than_a_chunk_holds_are_refused(monkeypatch):
    monkeypatch.setattr(fedsvd, "LOT_BYTES", 5 * 3 * 4)

    async def give(net):
        await net.send("b", "masked", {"x": torch.zeros(6, 3)})

    async def take(net):
        await fedsvd.recv(net, "a", "masked", "x", TensorSpec((-1, -1)))

    with pytest.raises(MessageError, match="'x' has 6 rows at once, expected at most 5"):
        memory.play({"a": give, "b": take})


def test_a_decomposition_in_chunks_is_the_same(monkeypatch):
    whole = decompose(*blocks(), APART)
    notes = []
    monkeypatch.setattr(fedsvd, "LOT_BYTES", 4096)
    torch.testing.assert_close(decompose(*blocks(), APART, notes=notes), whole, atol=1e-6, rtol=0)
    tags = [tag for _, _, tag, _ in notes]
    assert min(tags.count("masked"), tags.count("factor")) > 2


def test_apc_learns_the_same_in_chunks(monkeypatch):
    found = []
    for most in (fedsvd.LOT_BYTES, 8 * 5 * 4):
        monkeypatch.setattr(fedsvd, "LOT_BYTES", most)
        of, at = world(K=3, N=60), Table()
        trained = train(Apc(**SMALL), of, at=at, optimizer=ADAM, epochs=2, **split(60))
        sizes = [len(tensors["z"]) for _, _, tag, tensors in at.notes if tag == "representation"]
        found.append((weights({"a": trained["a"].state}), sizes))
    (whole, once), (parts, often) = found
    assert len(once) == 2
    assert max(often) == 8
    assert sum(often) == sum(once)
    assert same_bits(whole, parts)
