"""What a mechanism is, what it returns, and what the mechanisms share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from anyparty.errors import ConfigError
from anyparty.seeds import Seeds

Blocks = Sequence[NDArray[Any]]
Mask = NDArray[np.bool_]
Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Drawn:
    """A mask, and what became of the rate that was asked for.

    Attributes:
        observed: [N, K] bool, party k has row n; no row is empty.
        rate: the share of cells of ``observed`` that are missing.
        redrawn: how many rows came out empty and were drawn anew.
        labeled: [N] bool, the label is known; None: the mechanism does not touch labels.
    """

    observed: Mask
    redrawn: int
    labeled: Mask | None = None
    rate: float = field(init=False)

    def __post_init__(self) -> None:
        assert self.observed.any(axis=1).all()
        object.__setattr__(self, "rate", float(1 - self.observed.mean()) if self.observed.size else 0.0)

    @property
    def rates(self) -> tuple[float, ...]:
        """The share of rows that each party misses."""
        return tuple((1 - self.observed.mean(axis=0)).tolist())

    def __str__(self) -> str:
        """Say the rate reached and the rows redrawn."""
        n, K = self.observed.shape
        text = f"{100 * self.rate:.1f} % of {n} x {K} blocks missing, {self.redrawn} empty rows redrawn"
        return text if self.labeled is None else f"{text}, {int(self.labeled.sum())} labelled"


class Missing(Protocol):
    """A mechanism: frozen parameters, and one function that draws."""

    name: ClassVar[str]

    def draw(self, seeds: Seeds, name: str, n: int, K: int, blocks: Blocks | None = None) -> Drawn:
        """Draw for n rows and K parties from the stream ("missing", ``name``); ``blocks`` [n, ...] are the values.

        Raises:
            ConfigError: the mechanism does not fit n, K or the blocks.
        """


def stream(seeds: Seeds, name: str) -> np.random.Generator:
    """Return the random stream of the mask ``name``.

    Raises:
        ConfigError: ``seeds`` are none.
    """
    if not isinstance(seeds, Seeds):
        raise ConfigError(f"missingness: expected seeds, such as anyparty.seeds.Seeds(0), got {seeds!r}")
    return seeds.numpy("missing", name)


def independent(rng: np.random.Generator, p: Numbers) -> Drawn:
    """Draw a mask whose cells are missing independently with probabilities p [N, K] below 1, given no row is empty.

    A row that came out empty is drawn from that condition: first who is the first party to have it, j with
    probability proportional to (1 - p_j) times the product of p_i over i < j, then those after j independently.
    """
    observed = rng.random(p.shape) >= p
    empty = np.flatnonzero(~observed.any(axis=1))
    if len(empty):
        q = p[empty]
        before = np.cumprod(np.concatenate([np.ones((len(q), 1)), q[:, :-1]], axis=1), axis=1)
        first = ((1 - q) * before).cumsum(axis=1)
        j = (first[:, :-1] <= rng.random((len(q), 1)) * first[:, -1:]).sum(axis=1, keepdims=True)
        k = np.arange(p.shape[1])
        observed[empty] = (k == j) | ((k > j) & (rng.random(q.shape) >= q))
    return Drawn(observed, len(empty))


def checked(n: int, K: int, blocks: Blocks | None) -> None:
    """Refuse numbers that no data set has, and blocks that are not K of n rows.

    Raises:
        ConfigError: n or K is out of range, or the blocks have other sizes.
    """
    if n < 0 or K < 1:
        raise ConfigError(f"a mask needs at least no rows and one party, not {n} and {K}")
    if blocks is not None and (len(blocks) != K or any(len(block) != n for block in blocks)):
        sizes = ", ".join(str(len(block)) for block in blocks)
        raise ConfigError(f"blocks of {sizes} rows do not fit a mask of {n} rows and {K} parties")


def each(mechanism: str, n: int, K: int, blocks: Blocks | None, of: str) -> Numbers:
    """Return the "mean" or the "var" of every block's features in every row: [N, K].

    Raises:
        ConfigError: there are no blocks, they do not fit n and K, or a value is no number.
    """
    if blocks is None:
        raise ConfigError(f"{mechanism} looks at values: give draw the blocks, normalised")
    checked(n, K, blocks)
    blocks = [np.asarray(block) for block in blocks]  # of data frames and tensors too
    if any(block.dtype.kind not in "fiub" for block in blocks):
        raise ConfigError(f"{mechanism} looks at values: a block has cells that are no numbers, such as ids or text; "
                          f"leave such columns out, or turn them into numbers")  # fmt: skip
    if any(block.ndim < 2 or block.size == 0 < n for block in blocks):
        raise ConfigError(f"{mechanism}: every block needs the shape [n, features], with at least one feature")
    flat = [block.reshape(n, -1) if n else np.zeros((0, 1)) for block in blocks]
    found = np.stack([getattr(np, of)(block, axis=1, dtype=np.float64) for block in flat], axis=1)
    if not np.isfinite(found).all():
        raise ConfigError(f"{mechanism}: blocks hold cells that are no finite number; impute them first")
    return found


def normalised(blocks: Blocks, by: Blocks | None = None) -> list[NDArray[np.float32]]:
    """Return the blocks with every feature at mean 0 and deviation 1 over the rows of ``by`` (default: themselves).

    A feature that is constant there becomes 0 + its difference from that constant.
    """
    out = []
    for block, fitted in zip(blocks, blocks if by is None else by, strict=True):
        mean, deviation = fitted.mean(axis=0, dtype=np.float64), fitted.std(axis=0, dtype=np.float64)
        scale = np.where(deviation > 1e-12, deviation, 1.0)
        out.append(((block - mean) / scale).astype(np.float32))
    return out
