"""The missing blocks of a comparison: rates, mechanisms, and pairs of mechanisms for training and test."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from anyparty.api.federation import Federation
from anyparty.core.seeds import Seeds
from anyparty.data.missingness import MCAR, Mechanism, missing
from anyparty.errors import AnypartyWarning, ConfigError
from anyparty.problem.splits import TEST, TRAIN
from anyparty.tables.preprocessing import Prepare

Label = float | str
"""A missing rate; or a text, if one of the compared conditions is not a rate."""


@dataclass(frozen=True, kw_only=True)
class MissingBlocks:
    """The mechanisms that remove blocks.

    Attributes:
        train: the mechanism for training and validation rows.
        test: the mechanism for test rows; ``None`` if one mask is drawn for all rows.

    """

    train: Mechanism
    test: Mechanism | None = None

    @classmethod
    def of_rate(cls, p: float) -> MissingBlocks:
        """Remove each block with probability ``p``."""
        return cls(train=MCAR(p=p))


def conditions(given: Any) -> dict[Label, MissingBlocks]:
    """Return the conditions of a comparison by their labels: rates in ascending order, or texts in the given order.

    Args:
        given: a condition or a list of conditions. A condition is a rate; a mechanism, its name, or a mapping with its
            name and parameters; or a pair (training, test) of these.

    Raises:
        ConfigError: a rate is below 0, or not below 1; a mechanism does not exist; or the list is empty.
    """
    each = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if not each:
        raise ConfigError("missing: the list is empty; [0] adds no missing blocks")
    if all(isinstance(one, int | float) for one in each):
        return {float(rate): MissingBlocks(train=_mechanism(rate)) for rate in sorted(set(each))}
    found: dict[Label, MissingBlocks] = {}
    for one in each:
        if isinstance(one, tuple | list) and len(one) != 2:
            raise ConfigError(f"missing: expected a pair (training, test), got {len(one)} values, {one!r}")
        pair = one if isinstance(one, tuple | list) else (one,)
        label = " → ".join(_text(part) for part in pair)
        found[label] = MissingBlocks(**dict(zip(("train", "test"), map(_mechanism, pair), strict=False)))
    return found


def _mechanism(given: Any) -> Mechanism:
    if isinstance(given, int | float) and not isinstance(given, bool):
        if not 0 <= given < 1:
            raise ConfigError(
                f"missing: expected probabilities of at least 0 and below 1, such as [0, 0.3], got {given!r}"
            )
        return MCAR(p=float(given))
    if isinstance(given, str | Mapping):
        return missing(given)
    if isinstance(given, type) or not callable(getattr(given, "draw", None)):
        raise ConfigError("missing: expected rates, mechanisms such as MNAR(p=0.7), or pairs (training, test) of them, "
                          f"got {given!r}")  # fmt: skip
    made: Mechanism = given
    return made


def _text(given: Any) -> str:
    """Return a short label of a rate or mechanism, such as "0.3" or "MNAR(p=0.7)"."""
    return f"{given:g}" if isinstance(given, int | float) else repr(_mechanism(given))


def without_blocks(
    federation: Federation, blocks: MissingBlocks | float, seeds: Seeds
) -> tuple[Federation, float]:  # fmt: skip
    """Remove parties' cells of rows as the mechanisms draw them, or with a probability; labels and ids stay.

    A row that would lose the cells of all parties keeps the cells of one party, which is drawn at random. Mechanisms
    that depend on values see the parties' prepared columns, scaled by the training rows, and zeros for rows that a
    party does not have. Labels that a mechanism would remove stay.

    Returns:
        The federation without these cells, and the share of blocks that were removed.
    """
    chosen = blocks if isinstance(blocks, MissingBlocks) else MissingBlocks.of_rate(blocks)
    held, names = federation.observed, federation.roster.blocks
    if chosen.test is None and isinstance(chosen.train, MCAR) and chosen.train.p == 0:
        return federation, 0.0
    (n, K), use = held.shape, federation.split(federation.config.train)
    values = None if all(isinstance(each, MCAR) for each in (chosen.train, chosen.test or chosen.train)) else [
        _values(federation, k, use == TRAIN) for k in range(len(names))
    ]  # fmt: skip
    kept = held & chosen.train.draw(seeds, "compare", n, K, values).observed
    if chosen.test is not None:
        drawn = chosen.test.draw(seeds, "compare test", n, K, values).observed
        kept = np.where((use == TEST)[:, None], held & drawn, kept)
    empty = held.any(axis=1) & ~kept.any(axis=1)
    lots = seeds.numpy("missing", "compare", "one block").random(held.shape)
    kept[empty, np.where(held, lots, -1.0).argmax(axis=1)[empty]] = True
    tables = dict(federation.tables)
    for k, name in enumerate(names):
        table, position = tables[name], federation.alignment.position[name]
        stays = np.zeros(len(table), dtype=np.bool_)
        stays[position[kept[:, k]]] = True
        stays |= table.blank
        cells = [pl.select(pl.when(pl.Series(stays)).then(column).alias(column.name)).to_series()
                 for column in table.columns.iter_columns()]  # fmt: skip
        tables[name] = replace(table, columns=pl.DataFrame(cells), notes=())
    return replace(federation, tables=tables), float(1 - kept.sum() / held.sum())


def _values(federation: Federation, k: int, training: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the prepared columns of the k-th party for all aligned rows [N, F], zero where it has no row."""
    name = federation.roster.blocks[k]
    table = federation.tables[name]
    at = table.blocks_at(federation.alignment.position[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnypartyWarning)  # training shows the same remarks
        prepare = Prepare.fit(table, at[(at >= 0) & training])
        x = prepare.features(table, new=False).x
    return np.where((at >= 0)[:, None], x[np.maximum(at, 0)], np.float32(0))
