"""Missingness mechanisms: sets of parameters that draw a mask ``observed`` [N, K] from a named random stream.

Notation  N rows, K parties, k a party; x_k the block of party k [N, ...]; p a probability of being missing.

A drawn row that no party holds is empty. An empty row is redrawn from the distribution of rows that are not empty, so
that at least one party holds each row. ``DrawnMask.redrawn`` counts the redrawn rows. Redrawing lowers the share of
missing blocks. For MCAR with probability p and K parties, the share is (p - p^K) / (1 - p^K), which is .467 and not .5
for p = .5 and K = 4 (``MCAR.expected_rate``). With ``keep_empty=True``, MCAR, Beta and MNAR keep empty rows instead.
The other mechanisms never draw an empty row.

MAR 1, MAR 2 and MNAR depend on values. They expect blocks that ``normalised`` has scaled as in the paper: the mean and
the standard deviation of the training rows scale the test rows too. Masks for training and test are drawn from two
random streams:

    >>> from anyparty.core.seeds import Seeds
    >>> seeds = Seeds(0)
    >>> train, test = (MCAR(p=0.5).draw(seeds, name, 1000, 4) for name in ("train", "test"))
    >>> print(train)
    46.6 % of 1000 x 4 blocks missing, 61 empty rows redrawn

Sources: "Vertical Federated Learning with Missing Features During Training and Inference" (LASER-VFL, ICLR 2025),
section 5 and appendix E (MCAR, Beta); FALSE-VFL, section 5.1 and appendix D.3 (MAR, MNAR, scarce labels), whose
pseudo-code we do not have: thresholds, step and budget are our choices; APC-VFL, section 6 (alignment of two parties).

MAR (FALSE-VFL, D.3) selects the blocks of a row one by one, depending on the blocks that it has already selected. The
paper describes it for normalised features: "If its variance exceeds a predefined threshold, we consider it sufficiently
informative and do not observe any additional pieces. Otherwise, we slightly lower the threshold and randomly select
another piece" (type 1). Type 2 subtracts the excess over the threshold from a budget, and stops when the budget is
below zero. We do not have the paper's numbers, so the defaults here are our choices. At least one block of a row is
always observed, so no row is redrawn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from anyparty.core.declared_types import as_declared, assign_parameters
from anyparty.core.seeds import Seeds
from anyparty.errors import ConfigError, nearest

__all__ = [
    "MAR1",
    "MAR2",
    "MCAR",
    "MECHANISMS",
    "MNAR",
    "BetaMCAR",
    "DrawnMask",
    "Mechanism",
    "ScarceLabels",
    "ScarceOverlap",
    "described",
    "missing",
    "normalised",
]

BlockArrays = Sequence[NDArray[Any]]
Mask = NDArray[np.bool_]
Numbers = NDArray[np.float64]
Finite = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, eq=False, repr=False)
class DrawnMask:
    """A drawn mask of the rows that each party holds.

    Attributes:
        observed: [N, K] bool, True if party k holds row n.
        rate: the share of missing cells in ``observed``.
        redrawn: the number of empty rows that were drawn again.
        labeled: [N] bool, True if the row keeps its label; ``None`` if the mechanism does not remove labels.
    """

    observed: Mask
    redrawn: int
    labeled: Mask | None = None
    rate: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", float(1 - self.observed.mean()) if self.observed.size else 0.0)

    @property
    def rates(self) -> tuple[float, ...]:
        """For each party, the share of rows that it lacks."""
        return tuple((1 - self.observed.mean(axis=0)).tolist())

    @property
    def empty(self) -> int:
        """The number of rows that no party holds; 0 unless the mechanism keeps empty rows."""
        return int((~self.observed.any(axis=1)).sum())

    def __repr__(self) -> str:
        """Describe the share of missing blocks and the number of empty rows."""
        n, K = self.observed.shape
        rows = f"{empty} rows without any block" if (empty := self.empty) else f"{self.redrawn} empty rows redrawn"
        text = f"{100 * self.rate:.1f} % of {n} x {K} blocks missing, {rows}"
        return text if self.labeled is None else f"{text}, {int(self.labeled.sum())} labelled"


@runtime_checkable
class Mechanism(Protocol):
    """A missingness mechanism: fixed parameters, and a function that draws a mask."""

    name: ClassVar[str]

    def draw(self, seeds: Seeds, name: str, n: int, K: int, blocks: BlockArrays | None = None) -> DrawnMask:
        """Draw a mask for n rows and K parties from the random stream ("missing", ``name``).

        ``blocks`` has the K parties' features [n, ...]. Mechanisms that do not depend on values ignore ``blocks``.

        Raises:
            ConfigError: the mechanism does not fit n, K or the blocks.
        """


def stream(seeds: Seeds, name: str) -> np.random.Generator:
    """Return the random stream from which the mask with the given name is drawn.

    Raises:
        ConfigError: ``seeds`` is not a :class:`Seeds`.
    """
    if not isinstance(seeds, Seeds):
        raise ConfigError(f"missingness: expected seeds, such as anyparty.core.seeds.Seeds(0), got {seeds!r}")
    return seeds.numpy("missing", name)


def independent(rng: np.random.Generator, p: Numbers, *, keep_empty: bool = False) -> DrawnMask:
    """Draw a mask of cells that are missing independently with probabilities ``p`` [N, K] < 1.

    Unless ``keep_empty`` is true, rows that no party holds are redrawn from the distribution of all other rows: the
    first party that holds the row is drawn, then the parties after this one.
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
    """Check the numbers of rows and parties and, if blocks are given, that there are K blocks of n rows.

    Raises:
        ConfigError: n or K is out of range, or the blocks have other sizes.
    """
    if n < 0 or K < 1:
        raise ConfigError(f"a mask needs at least 0 rows and 1 party, not {n} and {K}")
    if blocks is not None and (len(blocks) != K or any(len(block) != n for block in blocks)):
        sizes = ", ".join(str(len(block)) for block in blocks)
        raise ConfigError(f"blocks of {sizes} rows do not fit a mask of {n} rows and {K} parties")


def row_statistic(mechanism: str, n: int, K: int, blocks: BlockArrays | None, of: str) -> Numbers:
    """Return the mean or the variance of the features of each block in each row: [N, K]; ``of`` is "mean" or "var".

    Raises:
        ConfigError: there are no blocks, they do not fit n and K, or a value is not a number.
    """
    if blocks is None:
        raise ConfigError(f"{mechanism} looks at values: give draw the blocks, normalised")
    check_sizes(n, K, blocks)
    blocks = [np.asarray(block) for block in blocks]  # blocks may be data frames or tensors
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
    """Scale the features of blocks by the mean and standard deviation of the same features in ``by``.

    By default, ``by`` is ``blocks``. A feature that is constant in ``by`` is only shifted by this constant.
    """
    out = []
    for block, fitted in zip(blocks, blocks if by is None else by, strict=True):
        mean, deviation = fitted.mean(axis=0, dtype=np.float64), fitted.std(axis=0, dtype=np.float64)
        scale = np.where(deviation > 1e-12, deviation, 1.0)
        out.append(((block - mean) / scale).astype(np.float32))
    return out


class _Parameters:
    """Base class of the mechanisms: it checks the parameters, and its ``repr`` leaves out options that are off."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        as_declared(self, type(self), self.name)

    def __repr__(self) -> str:
        values = [(each.name, getattr(self, each.name)) for each in fields(self)]  # type: ignore[arg-type]
        shown = ", ".join(f"{name}={value!r}" for name, value in values if value is not False)
        return f"{type(self).__name__}({shown})"


@dataclass(frozen=True, kw_only=True, repr=False)
class MCAR(_Parameters):
    """A mechanism in which each party misses each row with probability p, whatever the values (LASER-VFL, section 5).

    Attributes:
        p: the probability that a party misses a row.
        keep_empty: whether rows that all parties miss are kept; by default, such rows are redrawn. If they are kept,
            the expected share of missing blocks is p.
    """

    name: ClassVar[str] = "mcar"
    p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    keep_empty: bool = False

    def expected_rate(self, K: int) -> float:
        """Return the expected share of missing blocks: (p - p^K) / (1 - p^K), or p if empty rows are kept."""
        return self.p if self.keep_empty else (self.p - self.p**K) / (1 - self.p**K)

    def draw(self, seeds: Seeds, name: str, n: int, K: int, blocks: BlockArrays | None = None) -> DrawnMask:
        """Draw a mask from the stream ("missing", ``name``); the arguments are those of ``Mechanism.draw``."""
        check_sizes(n, K, blocks)
        p = np.broadcast_to(np.float64(self.p), (n, K))
        return independent(stream(seeds, name), p, keep_empty=self.keep_empty)


@dataclass(frozen=True, kw_only=True, repr=False)
class BetaMCAR(_Parameters):
    """A mechanism like MCAR, with one p per party, drawn from Beta(a, b) (LASER-VFL, appendix E: Beta(2, 2)).

    ``keep_empty`` has the same meaning as in ``MCAR``.
    """

    name: ClassVar[str] = "beta"
    a: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0
    b: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0
    keep_empty: bool = False

    def draw(self, seeds: Seeds, name: str, n: int, K: int, blocks: BlockArrays | None = None) -> DrawnMask:
        """Draw each party's p, then a mask; the arguments are those of ``Mechanism.draw``."""
        check_sizes(n, K, blocks)
        rng = stream(seeds, name)
        p = np.minimum(rng.beta(self.a, self.b, size=K), 1 - 1e-9)
        return independent(rng, np.broadcast_to(p, (n, K)), keep_empty=self.keep_empty)


@dataclass(frozen=True, kw_only=True, repr=False)
class MNAR(_Parameters):
    """A mechanism in which a party misses a row more often if its own features in the row are high.

    Let a_k be the mean of party k's features in the row. The block is missing with probability p if a_k > 0, else with
    probability 1 - p (FALSE-VFL, section 5.1: MNAR 7 is p = .7). We do not have the paper's condition; a_k > 0 is our
    choice. Except in redrawn rows, whether a block is missing depends only on its own values. ``keep_empty`` has the
    same meaning as in ``MCAR``.
    """

    name: ClassVar[str] = "mnar"
    p: Annotated[float, Field(gt=0, lt=1)] = 0.7
    keep_empty: bool = False

    def draw(self, seeds: Seeds, name: str, n: int, K: int, blocks: BlockArrays | None = None) -> DrawnMask:
        """Draw a mask that depends on each block's mean in a row; the arguments are those of ``Mechanism.draw``."""
        mean = row_statistic(self.name, n, K, blocks, "mean")
        p = np.where(mean > 0, self.p, 1 - self.p)
        return independent(stream(seeds, name), p, keep_empty=self.keep_empty)


@dataclass(frozen=True, kw_only=True, repr=False)
class ScarceOverlap(_Parameters):
    """A mechanism in which two parties share only round(ratio * N) random rows (APC-VFL, section 6 and appendix A).

    Only one party holds each of the R remaining rows: the active party holds round(active_only * R) of them, and the
    passive party holds the rest. In the paper, the active party holds all 20000 rows, of which 2500 to 10000 are
    aligned.

    Attributes:
        ratio: the share of rows that both parties hold.
        active_only: the share of the remaining rows that the active party holds.
        active: the index of the active party, 0 or 1.
    """

    name: ClassVar[str] = "alignment"
    ratio: Annotated[float, Field(ge=0, le=1)] = 0.5
    active_only: Annotated[float, Field(ge=0, le=1)] = 1.0
    active: Literal[0, 1] = 0

    def draw(self, seeds: Seeds, name: str, n: int, K: int, blocks: BlockArrays | None = None) -> DrawnMask:
        """Draw a mask for two parties; the arguments are those of ``Mechanism.draw``."""
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


@dataclass(frozen=True, kw_only=True, repr=False)
class ScarceLabels(_Parameters):
    """A mechanism in which only ``n`` rows have labels, and all parties hold ``aligned`` of them (FALSE-VFL, sec. 5).

    For tables, the paper uses 500 labelled rows, of which all parties hold 100. For images, it uses 1000 labelled rows,
    of which all parties hold 200. The labelled rows are drawn independently of values and classes. The mechanism
    ``rest`` draws which parties hold each of the other rows.

    Attributes:
        n: the number of labelled rows.
        aligned: the number of labelled rows that all parties hold.
        rest: the mechanism for all rows except the ``aligned`` rows.
    """

    name: ClassVar[str] = "labels"
    n: int = 500
    aligned: Annotated[int, Field(ge=0)] = 100
    rest: Mechanism = field(default_factory=MCAR)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aligned > self.n:
            raise ConfigError(f"labels: aligned must lie between 0 and n = {self.n}, not {self.aligned}")

    def draw(self, seeds: Seeds, name: str, n: int, K: int, blocks: BlockArrays | None = None) -> DrawnMask:
        """Draw a mask whose ``labeled`` marks the labelled rows; the arguments are those of ``Mechanism.draw``."""
        if self.n > n:
            raise ConfigError(f"labels: n = {self.n} exceeds the number of rows, {n}")
        drawn = self.rest.draw(seeds, name, n, K, blocks)
        rows = seeds.numpy("missing", name, "labels").permutation(n)[: self.n]
        observed, labeled = drawn.observed.copy(), np.zeros(n, dtype=bool)
        observed[rows[: self.aligned]] = True
        labeled[rows] = True
        return DrawnMask(observed, drawn.redrawn, labeled)


@dataclass(frozen=True, kw_only=True, repr=False)
class SequentialMAR(_Parameters, ABC):
    """Base class of ``MAR1`` and ``MAR2``, which select a row's blocks one by one until a condition holds.

    The blocks that were not selected are missing.

    Attributes:
        threshold: the threshold for the variance of a row's features in one block.
        step: the decrease of the threshold after each block.

    """

    threshold: Finite
    step: NotNegative

    @abstractmethod
    def stops(self, variance: Numbers) -> Mask:
        """Return the mask [N, K] of the blocks at which the selection of a row's blocks stops.

        ``variance`` [N, K] contains the variances of each row's blocks, in the order of selection.
        """

    def draw(self, seeds: Seeds, name: str, n: int, K: int, blocks: BlockArrays | None = None) -> DrawnMask:
        """Draw a mask that depends on each block's variance in a row; the arguments are those of ``Mechanism.draw``."""
        order, variance = self._ordered(seeds, name, n, K, blocks)
        return _until(self.stops(variance), order)

    def calibrated(self, seeds: Seeds, blocks: BlockArrays, *, rate: float = 0.5) -> Self:
        """Return the mechanism with a threshold for which about the share ``rate`` of ``blocks`` is missing.

        The threshold is found by bisection, because the number of selected blocks rises with the threshold.

        Raises:
            ConfigError: the rate is out of range, or the blocks have different numbers of rows.
        """
        K = len(blocks)
        if not 0 < rate < 1 - 1 / K:
            raise ConfigError(f"{self.name}: {K} parties of whom one is seen can miss more than 0 and less than "
                              f"{1 - 1 / K:.3f}, not {rate}")  # fmt: skip
        order, variance = self._ordered(seeds, "calibrate", len(blocks[0]), K, blocks)
        top = float(variance.max(initial=0.0)) + self.step * K
        low, high = -top, top
        for _ in range(40):
            middle = (low + high) / 2
            missed = _until(replace(self, threshold=middle).stops(variance), order).rate
            low, high = (middle, high) if missed > rate else (low, middle)
        return replace(self, threshold=high)

    def _ordered(
        self, seeds: Seeds, name: str, n: int, K: int, blocks: BlockArrays | None
    ) -> tuple[NDArray[np.int64], Numbers]:
        """Draw an order of the K blocks for each row [N, K]; also return the blocks' variances in this order [N, K].

        The variance of a block is taken over the features of the block in one row.
        """
        variance = row_statistic(self.name, n, K, blocks, "var")
        order = stream(seeds, name).random((n, K)).argsort(axis=1)
        return order, np.take_along_axis(variance, order, axis=1)


@dataclass(frozen=True, kw_only=True, repr=False)
class MAR1(SequentialMAR):
    """A mechanism that selects a row's blocks until an informative block is selected; all other blocks are missing.

    Blocks are selected one by one, in random order.
    A block is informative in a row if the variance of its features exceeds the threshold, which falls by ``step`` after
    each block (FALSE-VFL, appendix D.3, type 1). Only selected blocks determine which blocks are missing. With the
    defaults and standardized columns at K = 8, the share of missing blocks is .46 for HAPT, .66 for Isolet and .46 for
    Fashion-MNIST. ``calibrated`` sets the threshold for a given rate.
    """

    name: ClassVar[str] = "mar1"
    threshold: Finite = 1.0
    step: NotNegative = 0.1

    def stops(self, variance: Numbers) -> Mask:
        """Return the mask [N, K] of the blocks whose variance exceeds the falling threshold."""
        return np.asarray(variance > self.threshold - self.step * np.arange(variance.shape[1]))


@dataclass(frozen=True, kw_only=True, repr=False)
class MAR2(SequentialMAR):
    """A mechanism that selects a row's blocks until their information exceeds a budget; all other blocks are missing.

    Blocks are selected one by one, in random order.
    A block of variance v costs max(v - threshold, 0) of the budget, and the threshold falls by ``step`` after each
    block. Selection stops when the rest of the budget is below zero (FALSE-VFL, appendix D.3, type 2). With the
    defaults and standardized columns at K = 8, the share of missing blocks is .50 for HAPT, .71 for Isolet and .48 for
    Fashion-MNIST. ``calibrated`` sets the threshold for a given rate.
    """

    name: ClassVar[str] = "mar2"
    threshold: Finite = 0.5
    budget: NotNegative = 0.5
    step: NotNegative = 0.05

    def stops(self, variance: Numbers) -> Mask:
        """Return the mask [N, K] of the blocks at which the sum of a row's costs exceeds the budget."""
        threshold = self.threshold - self.step * np.arange(variance.shape[1])
        return np.asarray(np.maximum(variance - threshold, 0).cumsum(axis=1) > self.budget)


def _until(stops: Mask, order: NDArray[np.int64]) -> DrawnMask:
    """Return the mask of the blocks that are selected before the selection stops.

    ``order`` [N, K] has the parties' indices in each row's order of selection. ``stops`` [N, K] is True for blocks at
    which the selection stops.
    """
    seen = np.ones_like(stops)
    seen[:, 1:] = ~np.logical_or.accumulate(stops, axis=1)[:, :-1]
    observed = np.empty_like(stops)
    np.put_along_axis(observed, order, seen, axis=1)
    return DrawnMask(observed, 0)


MECHANISMS: dict[str, Callable[..., Mechanism]] = {
    "mcar": MCAR,
    "beta": BetaMCAR,
    "mar1": MAR1,
    "mar2": MAR2,
    "mnar": MNAR,
    "alignment": ScarceOverlap,
    "labels": ScarceLabels,
}


def missing(mechanism: str | Mapping[str, Any], **parameters: Any) -> Mechanism:
    """Create a mechanism from its name, or from a mapping with the key "name" and its parameters.

    >>> missing("mcar", p=0.5)
    MCAR(p=0.5)
    >>> missing({"name": "labels", "n": 500, "aligned": 100, "rest": {"name": "mnar", "p": 0.9}})
    ScarceLabels(n=500, aligned=100, rest=MNAR(p=0.9))

    Raises:
        ConfigError: the mechanism or a parameter is unknown, or a value is out of range.
    """
    values = {**({"name": mechanism} if isinstance(mechanism, str) else mechanism), **parameters}
    name = values.pop("name", None)
    if not isinstance(name, str) or name not in MECHANISMS:
        known = nearest(str(name), MECHANISMS)
        raise ConfigError(f"missingness needs a name{known}" if name is None else f"no missingness {name!r}{known}")
    create = MECHANISMS[name]
    if "keep_empty" in values and not hasattr(create, "keep_empty"):
        why = "give it to rest" if name == "labels" else "it never draws a row that all parties miss"
        raise ConfigError(f"missingness {name!r} has no parameter 'keep_empty': {why}; mcar, beta and mnar have it")
    if isinstance(values.get("rest"), str | Mapping):
        values["rest"] = missing(values["rest"])
    return create(**assign_parameters(f"missingness {name!r}", (create,), values)[0])


def described(mechanism: Mechanism) -> dict[str, Any]:
    """Return the mapping from which ``missing`` creates the same mechanism, for the record of a run.

    >>> described(MCAR(p=0.5))
    {'name': 'mcar', 'p': 0.5, 'keep_empty': False}
    """
    values = {each.name: getattr(mechanism, each.name) for each in fields(mechanism)}  # type: ignore[arg-type]
    return {"name": mechanism.name} | {
        name: described(value) if hasattr(value, "draw") else value for name, value in values.items()
    }
