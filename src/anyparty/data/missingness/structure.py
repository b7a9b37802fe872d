"""Mechanisms with a fixed number of aligned or labelled rows: scarce overlap of two parties, and scarce labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from anyparty.core.seeds import Seeds
from anyparty.data.missingness.independent import MCAR
from anyparty.data.missingness.mechanism import BlockArrays, DrawnMask, Mechanism, check_sizes, stream
from anyparty.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ScarceOverlap:
    """Two parties share only round(ratio * N) rows, drawn at random (APC-VFL, section 6 and appendix A).

    If R is the number of other rows, round(active_only * R) of them belong only to the active party, and the remaining
    ones only to the passive party. In the paper, the active party holds all 20000 rows, of which 10000 to 2500 are
    aligned.

    Attributes:
        ratio: the share of rows that both parties hold.
        active_only: the share of the other rows that only the active party holds.
        active: the index of the active party, 0 or 1.
    """

    name: ClassVar[str] = "alignment"
    ratio: float = 0.5
    active_only: float = 1.0
    active: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.ratio <= 1 and 0 <= self.active_only <= 1 and self.active in {0, 1}):
            raise ConfigError(f"alignment: ratio {self.ratio} and active_only {self.active_only} must lie between 0 "
                              f"and 1, active {self.active} must be 0 or 1")  # fmt: skip

    def draw(self, seeds: Seeds, name: str, n: int, K: int, blocks: BlockArrays | None = None) -> DrawnMask:
        """See ``Mechanism``."""
        if K != 2:
            raise ConfigError(f"alignment is for two parties, not {K}; mcar is for any number")
        check_sizes(n, K, blocks)
        both = round(self.ratio * n)
        alone = both + round(self.active_only * (n - both))
        rows = stream(seeds, name).permutation(n)
        observed = np.ones((n, 2), dtype=bool)
        observed[rows[both:alone], 1 - self.active] = False
        observed[rows[alone:], self.active] = False
        return DrawnMask(observed, 0)


@dataclass(frozen=True, kw_only=True)
class ScarceLabels:
    """Only n rows have labels, and all parties hold ``aligned`` of these rows (FALSE-VFL, section 5).

    For tables, the paper uses 500 labelled rows, of which 100 are aligned; for images, 1000 rows, of which 200 are
    aligned. The labelled rows are drawn independently of values and classes. All rows except the aligned ones follow
    ``rest``.

    Attributes:
        n: the number of labelled rows.
        aligned: the number of labelled rows that all parties hold.
        rest: the mechanism for all other rows.
    """

    name: ClassVar[str] = "labels"
    n: int = 500
    aligned: int = 100
    rest: Mechanism = field(default_factory=MCAR)

    def __post_init__(self) -> None:
        if not (isinstance(self.n, int) and isinstance(self.aligned, int)):
            raise ConfigError(f"labels: n and aligned are numbers of rows, not {self.n!r} and {self.aligned!r}")
        if not hasattr(self.rest, "draw"):
            raise ConfigError(f"labels: rest must be a mechanism, such as missing('mcar', p=.2), not {self.rest!r}")
        if not 0 <= self.aligned <= self.n:
            raise ConfigError(f"labels: aligned must lie between 0 and n = {self.n}, not {self.aligned}")

    def draw(self, seeds: Seeds, name: str, n: int, K: int, blocks: BlockArrays | None = None) -> DrawnMask:
        """See ``Mechanism``; ``DrawnMask.labeled`` marks the labelled rows."""
        if self.n > n:
            raise ConfigError(f"labels: n = {self.n} exceeds the number of rows, {n}")
        drawn = self.rest.draw(seeds, name, n, K, blocks)
        rows = seeds.numpy("missing", name, "labels").permutation(n)[: self.n]
        observed, labeled = drawn.observed.copy(), np.zeros(n, dtype=bool)
        observed[rows[: self.aligned]] = True
        labeled[rows] = True
        return DrawnMask(observed, drawn.redrawn, labeled)
