"""The contract of a missingness mechanism, the mask that it draws, and shared functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from anyparty.core.seeds import Seeds
from anyparty.errors import ConfigError

BlockArrays = Sequence[NDArray[Any]]
Mask = NDArray[np.bool_]
Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class DrawnMask:
    """A drawn mask, with the rate that it achieves.

    Attributes:
        observed: [N, K] bool, True if party k holds row n.
        rate: the share of missing cells in ``observed``.
        redrawn: the number of empty rows that were drawn again.
        labeled: [N] bool, True if the label is known; ``None`` if the mechanism does not change labels.
    """

    observed: Mask
    redrawn: int
    labeled: Mask | None = None
    rate: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", float(1 - self.observed.mean()) if self.observed.size else 0.0)

    @property
    def rates(self) -> tuple[float, ...]:
        """The share of rows that each party misses."""
        return tuple((1 - self.observed.mean(axis=0)).tolist())

    @property
    def empty(self) -> int:
        """The number of rows that no party holds; 0 unless the mechanism keeps them."""
        return int((~self.observed.any(axis=1)).sum())

    def __repr__(self) -> str:
        """Describe the achieved rate and the empty rows."""
        n, K = self.observed.shape
        rows = f"{empty} rows without any block" if (empty := self.empty) else f"{self.redrawn} empty rows redrawn"
        text = f"{100 * self.rate:.1f} % of {n} x {K} blocks missing, {rows}"
        return text if self.labeled is None else f"{text}, {int(self.labeled.sum())} labelled"


class Mechanism(Protocol):
    """A mechanism: frozen parameters, and a function that draws a mask."""

    name: ClassVar[str]

    def draw(self, seeds: Seeds, name: str, n: int, K: int, blocks: BlockArrays | None = None) -> DrawnMask:
        """Draw a mask for n rows and K parties from the stream ("missing", ``name``), given the blocks [n, ...].

        Raises:
            ConfigError: the mechanism does not fit n, K or the blocks.
        """


def stream(seeds: Seeds, name: str) -> np.random.Generator:
    """Return the random stream of the mask ``name``.

    Raises:
        ConfigError: ``seeds`` is not a :class:`Seeds`.
    """
    if not isinstance(seeds, Seeds):
        raise ConfigError(f"missingness: expected seeds, such as anyparty.core.seeds.Seeds(0), got {seeds!r}")
    return seeds.numpy("missing", name)


def independent(rng: np.random.Generator, p: Numbers, *, keep_empty: bool = False) -> DrawnMask:
    """Draw a mask of cells that are missing independently with probabilities ``p`` [N, K] < 1.

    An empty row is redrawn from the distribution of rows that are not empty. At first, the smallest index j of a party
    that holds the row is drawn; its probability is proportional to (1 - p_j) times the product of p_i over i < j. The
    parties after j are then drawn independently. With ``keep_empty``, empty rows stay.
    """
    observed = rng.random(p.shape) >= p
    empty = np.flatnonzero(~observed.any(axis=1) & (not keep_empty))
    if len(empty):
        q = p[empty]
        before = np.cumprod(np.concatenate([np.ones((len(q), 1)), q[:, :-1]], axis=1), axis=1)
        first = ((1 - q) * before).cumsum(axis=1)
        j = (first[:, :-1] <= rng.random((len(q), 1)) * first[:, -1:]).sum(axis=1, keepdims=True)
        k = np.arange(p.shape[1])
        observed[empty] = (k == j) | ((k > j) & (rng.random(q.shape) >= q))
    return DrawnMask(observed, len(empty))


def check_sizes(n: int, K: int, blocks: BlockArrays | None) -> None:
    """Check the numbers of rows and parties, and that there are K blocks of n rows.

    Raises:
        ConfigError: n or K is out of range, or the blocks have other sizes.
    """
    if n < 0 or K < 1:
        raise ConfigError(f"a mask needs at least 0 rows and 1 party, not {n} and {K}")
    if blocks is not None and (len(blocks) != K or any(len(block) != n for block in blocks)):
        sizes = ", ".join(str(len(block)) for block in blocks)
        raise ConfigError(f"blocks of {sizes} rows do not fit a mask of {n} rows and {K} parties")


def row_statistic(mechanism: str, n: int, K: int, blocks: BlockArrays | None, of: str) -> Numbers:
    """Return the statistic ``of``, "mean" or "var", of every block's features in every row: [N, K].

    Raises:
        ConfigError: there are no blocks, they do not fit n and K, or a value is not a number.
    """
    if blocks is None:
        raise ConfigError(f"{mechanism} looks at values: give draw the blocks, normalised")
    check_sizes(n, K, blocks)
    blocks = [np.asarray(block) for block in blocks]  # they may also be data frames or tensors
    if any(block.dtype.kind not in "fiub" for block in blocks):
        raise ConfigError(f"{mechanism} looks at values: a block has cells that are not numbers, such as ids or text; "
                          f"leave such columns out, or turn them into numbers")  # fmt: skip
    if any(block.ndim < 2 or block.size == 0 < n for block in blocks):
        raise ConfigError(f"{mechanism}: every block needs the shape [n, features], with at least one feature")
    flat = [block.reshape(n, -1) if n else np.zeros((0, 1)) for block in blocks]
    found = np.stack([getattr(np, of)(block, axis=1, dtype=np.float64) for block in flat], axis=1)
    if not np.isfinite(found).all():
        raise ConfigError(f"{mechanism}: blocks hold cells that are not finite numbers; impute them first")
    return found


def normalised(blocks: BlockArrays, by: BlockArrays | None = None) -> list[NDArray[np.float32]]:
    """Scale every feature to mean 0 and standard deviation 1 over the rows of ``by`` (default: ``blocks``).

    A feature that is constant in ``by`` is only shifted by that constant.
    """
    out = []
    for block, fitted in zip(blocks, blocks if by is None else by, strict=True):
        mean, deviation = fitted.mean(axis=0, dtype=np.float64), fitted.std(axis=0, dtype=np.float64)
        scale = np.where(deviation > 1e-12, deviation, 1.0)
        out.append(((block - mean) / scale).astype(np.float32))
    return out
