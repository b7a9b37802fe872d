"""Random numbers by row: a counter-based generator, whose numbers depend on a key and on indices alone.

A row's numbers are the same in any subset and order of a batch, at every party, on the CPU and on a GPU. Numbers from a
stream such as ``torch.rand`` would depend on how many rows a party knows, and on their places in the batch.

The generator is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
OOPSLA 2014), applied once for each axis: the state of row n is mix(key + (n + 1) gamma), the state of its number j is
mix(state of row n + (j + 1) gamma). All arithmetic is modulo 2^64, on int64 tensors.

The finaliser can be inverted: numbers that must stay secret, such as initial weights, come from the keyed hash of
``anyparty.core.seeds``. A party's private draws use a key that depends on the party's secret.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # other functions import torch when they need it, because the import takes seconds
    from torch import Tensor

DRAWS = 2  # the format of all random numbers of a training; parties must agree on it, and a run is resumed with it


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def mix(z: Tensor) -> Tensor:
    """Return the 64 random bits of each state: int64 [...] -> int64 [...]."""
    z = (z ^ _shifted(z, 30)) * _FIRST
    z = (z ^ _shifted(z, 27)) * _SECOND
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Shift unsigned 64-bit numbers to the right; int64 alone would copy the sign bit."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def bits(key: int | Tensor, *axes: Tensor) -> Tensor:
    """Return 64 random bits for each combination of indices: int64 [len(axes[0]), ..., len(axes[-1])].

    Args:
        key: an integer of 64 bits, or an int64 tensor without axes, that selects the stream.
        axes: for each axis of the result, its indices, int64 and at least 0. A number depends on its own indices only.

    """
    state: int | Tensor = key
    for axis in axes:
        before = state if isinstance(state, int) else state.unsqueeze(-1)
        state = mix(before + (axis + 1) * _GAMMA)
    assert not isinstance(state, int)
    return state


def uniform(key: int | Tensor, *axes: Tensor) -> Tensor:
    """Return float32 numbers in [0, 1), multiples of 2^-24, for each combination of indices (see ``bits``)."""
    return _shifted(bits(key, *axes), 40).float() * 2.0**-24


def normal(key: int | Tensor, *axes: Tensor) -> Tensor:
    """Return standard normal float32 numbers for each combination of indices, by the Box-Muller transform.

    Every number uses 64 bits: 32 for the radius and 32 for the angle, so that the greatest absolute value is 6.7.
    """
    drawn = bits(key, *axes)
    radius = (_shifted(drawn, 32).double() + 0.5) * 2.0**-32  # in (0, 1)
    angle = (drawn & 0xFFFFFFFF).double() * (2 * math.pi * 2.0**-32)
    return ((-2 * radius.log()).sqrt() * angle.cos()).float()
