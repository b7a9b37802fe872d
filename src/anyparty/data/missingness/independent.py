"""Mechanisms in which blocks are missing independently of each other: MCAR, MCAR with p ~ Beta, MNAR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from anyparty.core.seeds import Seeds
from anyparty.data.missingness.mechanism import BlockArrays, DrawnMask, check_sizes, independent, row_statistic, stream
from anyparty.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class MCAR:
    """Each party misses each row with probability p, independently of values (LASER-VFL, section 5).

    Attributes:
        p: the probability.
        keep_empty: whether a row that all parties miss stays so. Then the share of missing blocks is p. Such a row
            contributes nothing to a loss, and its prediction is empty, with a reason. By default it is redrawn.
    """

    name: ClassVar[str] = "mcar"
    p: float = 0.0
    keep_empty: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.p < 1:
            raise ConfigError(f"mcar: p must be at least 0 and below 1, not {self.p}")

    def expected_rate(self, K: int) -> float:
        """Return the expected share of missing blocks: (p - p^K) / (1 - p^K), or p if empty rows stay."""
        return self.p if self.keep_empty else (self.p - self.p**K) / (1 - self.p**K)

    def draw(self, seeds: Seeds, name: str, n: int, K: int, blocks: BlockArrays | None = None) -> DrawnMask:
        """See ``Mechanism``."""
        check_sizes(n, K, blocks)
        p = np.broadcast_to(np.float64(self.p), (n, K))
        return independent(stream(seeds, name), p, keep_empty=self.keep_empty)


@dataclass(frozen=True, kw_only=True)
class BetaMCAR:
    """MCAR with a separate p for each party, drawn from Beta(a, b) (LASER-VFL, appendix E: Beta(2, 2))."""

    name: ClassVar[str] = "beta"
    a: float = 2.0
    b: float = 2.0

    def __post_init__(self) -> None:
        if not (0 < self.a < np.inf and 0 < self.b < np.inf):
            raise ConfigError(f"beta: a and b must be positive numbers, not {self.a} and {self.b}")

    def draw(self, seeds: Seeds, name: str, n: int, K: int, blocks: BlockArrays | None = None) -> DrawnMask:
        """See ``Mechanism``."""
        check_sizes(n, K, blocks)
        rng = stream(seeds, name)
        p = np.minimum(rng.beta(self.a, self.b, size=K), 1 - 1e-9)
        return independent(rng, np.broadcast_to(p, (n, K)))


@dataclass(frozen=True, kw_only=True)
class MNAR:
    """A party misses a row more often if its own features in the row are high.

    Let a_k be the mean of party k's features in the row. The block is missing with probability p if a_k > 0, else with
    probability 1 - p (FALSE-VFL, section 5.1: MNAR 7 is p = .7). The paper's condition is lost; > 0 is ours. With p =
    .3, blocks with a low mean are missing with probability .7. Except in redrawn rows, only the block's own values
    matter.
    """

    name: ClassVar[str] = "mnar"
    p: float = 0.7

    def __post_init__(self) -> None:
        if not 0 < self.p < 1:
            raise ConfigError(f"mnar: p must lie between 0 and 1, both excluded, not {self.p}")

    def draw(self, seeds: Seeds, name: str, n: int, K: int, blocks: BlockArrays | None = None) -> DrawnMask:
        """See ``Mechanism``."""
        mean = row_statistic(self.name, n, K, blocks, "mean")
        return independent(stream(seeds, name), np.where(mean > 0, self.p, 1 - self.p))
