"""Quantization: decoded values are within half a step, packing is lossless, and sizes are those of the messages."""

import pytest
import torch

from anyparty.errors import ConfigError, MessageError
from anyparty.methods.one_exchange import exchange_once
from anyparty.methods.one_exchange.apc import Apc
from tests import worlds
from tests.methods.two_party_data import ADAM, pair
from tests.worlds import Table


def rows(n=50, width=7):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, width)


@pytest.mark.parametrize(
    ("precision", "width"), [*((precision, 7) for precision in exchange_once.PRECISIONS), ("uint4", 1), ("uint4", 6)]
)
def test_decoded_values_are_close_to_the_originals(precision, width):
    z = rows(width=width)
    sent = exchange_once.encode_embeddings(z, precision)
    back = exchange_once.decode_embeddings(sent, width, precision)
    off, span = (back - z).abs().amax(dim=0), z.amax(dim=0) - z.amin(dim=0)
    worst = {"float32": torch.zeros(width), "float16": z.abs().amax(dim=0) * 2**-11,
             "uint8": span / 255 / 2, "uint4": span / 15 / 2}[precision]  # fmt: skip
    assert (off <= worst * 1.001 + 1e-6 * span).all()
    assert precision == "float32" or off.max() > 0


def test_four_bit_codes_equal_those_computed_by_hand():
    """One column has 0, 5, 15 of 15, the next is constant, one column pads: the first byte is 5 + 16 * 0."""
    sent = exchange_once.encode_embeddings(torch.tensor([[1.0, 7.0, 0.0], [6.0, 7.0, 30.0], [16.0, 7.0, 2.0]]), "uint4")
    assert sent["z"].tolist() == [[0, 0], [5, 15], [15, 1]]
    assert (sent["low"].tolist(), sent["step"].tolist()) == ([1.0, 7.0, 0.0], [1.0, 0.0, 2.0])


@pytest.mark.parametrize("precision", exchange_once.PRECISIONS)
def test_declared_sizes_and_shapes_equal_those_sent(precision):
    sent, expected = (
        exchange_once.encode_embeddings(rows(), precision),
        exchange_once.expected_tensors(50, 7, precision),
    )
    assert {name: (tuple(each.shape), each.dtype) for name, each in sent.items()} == {
        name: (each.shape, each.dtype) for name, each in expected.items()
    }
    whole = {"float32": 350 * 4, "float16": 350 * 2, "uint8": 350 + 7 * 8, "uint4": 50 * 4 + 7 * 8}[precision]
    assert sum(each.numel() * each.element_size() for each in sent.values()) == whole


def test_quantisation_of_single_rows_is_refused():
    with pytest.raises(ConfigError, match=r"apc: precision 'uint8' computes its quantization steps .*; use 'float16'"):
        Apc(classify_on="joint", precision="uint8")


def test_codes_with_extreme_scales_are_refused():
    of, made = pair(), Apc(embedding=6, active_embedding=4, passive_embedding=5, joint_hidden=(7,), precision="uint8")
    states = worlds.begin(made, of, optimizer=ADAM)
    stage, batch = worlds.stage_of(made, of.seat("a"), "share"), worlds.batch_of(torch.arange(30), stage="share")

    async def honest(net):
        return await stage.step(net, states["a"], of.rows["a"], batch)

    async def wrong(net):
        huge = torch.full((5,), 3e38)
        await net.send(
            "a", "representation", {"z": torch.full((30, 5), 255, dtype=torch.uint8), "low": huge, "step": huge}
        )

    with pytest.raises(
        MessageError,
        match=r"'representation' from 'b' to 'a': 'low' holds 3e\+38, the bound",
    ):
        Table().play(of.roster, made.can.messages, {"a": honest, "b": wrong})
