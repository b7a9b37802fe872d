"""A data set as the parties have it: columns in blocks, or by name; rows that a party lacks left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from anyparty.blocks.missing import MCAR, Drawn, Missing, missing
from anyparty.config import Config
from anyparty.errors import ConfigError, nearest
from anyparty.run.federation import Federation
from anyparty.seeds import Seeds
from anyparty.tables.datasets import Dataset
from anyparty.tables.partition import cut

LABELS = "server"  # holds every row's label and no columns: a row's label does not go missing with a block


def blocks_of(X: NDArray[Any], how: str, parties: int) -> list[NDArray[Any]]:
    """Cut rows into the parties' blocks, flat: [n, ...] -> K times [n, d_k]; images are scaled to [0, 1]."""
    if X.dtype == np.uint8:
        X = X.astype(np.float32) / 255
    return [np.ascontiguousarray(block.reshape(len(block), -1)) for block in cut(X, how, parties)]


def mechanism_of(text: str, named: Mapping[str, Mapping[str, Any]] | None = None) -> Missing:
    """Return the mechanism that a suite names: one of those ``named`` in it, a number, which is MCAR's p, or a name.

    >>> mechanism_of("0.1"), mechanism_of("beta"), mechanism_of("MNAR 9", {"MNAR 9": {"name": "mnar", "p": 0.9}})
    (MCAR(p=0.1), BetaMCAR(a=2.0, b=2.0), MNAR(p=0.9))
    """
    if named and text in named:
        return missing(named[text])
    try:
        return MCAR(p=float(text))
    except ValueError:
        return missing(text)


def draw(mechanism: str, seeds: Seeds, name: str, blocks: Sequence[NDArray[Any]], how: Missing | None = None) -> Drawn:
    """Return who observes which row, by what ``mechanism`` names or by ``how``: the same for every method of a seed."""
    how = how or mechanism_of(mechanism)
    return how.draw(seeds, f"{name} {mechanism}", len(blocks[0]), len(blocks), blocks)


def tables(
    blocks: Sequence[NDArray[Any]],
    y: NDArray[Any],
    observed: NDArray[np.bool_],
    *,
    labeled: NDArray[np.bool_] | None = None,
    at: str = LABELS,
    shared: bool = False,
) -> dict[str, pl.DataFrame]:
    """Return each party's table of the rows that it observes, and the labels: in a table of their own, or ``at`` one.

    A party with columns knows the labels of the rows that it has, all parties do where labels are ``shared``; of those
    that are not ``labeled``, nobody does.
    """
    ids = np.char.zfill(np.arange(len(y)).astype(str), 7)
    label = pl.Series("label", y)
    if labeled is not None:
        label = pl.select(pl.when(pl.Series(labeled)).then(label).alias("label")).to_series()
    made = {}
    for k, block in enumerate(blocks):
        rows = observed[:, k]
        columns = pl.from_numpy(block[rows], schema=[f"x{c}" for c in range(block.shape[1])])
        own = columns.insert_column(0, pl.Series("id", ids[rows]))
        knows = shared or at == f"party{k + 1}"
        made[f"party{k + 1}"] = own.with_columns(label.filter(pl.Series(rows))) if knows else own
    return made if at in made else made | {LABELS: pl.DataFrame([pl.Series("id", ids), label])}


def federation(frames: dict[str, pl.DataFrame], *, scale: bool, at: str = LABELS, task: str = "auto") -> Federation:
    """Return the federation of these tables; the party ``at``, which has the labels, leads."""
    parties = {
        name: {"scale": scale} | ({"label": "label"} if name != at and "label" in frame.columns else {})
        for name, frame in frames.items()
    }
    about = {"label": "label", "active": at, "task": task}
    return Federation.from_config(Config.of({"federation": about, "parties": parties}), frames)


def by_columns(
    data: Dataset, places: NDArray[np.int64], columns: Mapping[str, Sequence[str]], held: Mapping[str, int], *,
    labels: str,
) -> dict[str, pl.DataFrame]:  # fmt: skip
    """Return each party's table: named columns at named parties, and the rest at the one that is not named.

    Args:
        data: a data set without test rows of its own, or whose test rows do not matter.
        places: rows of it, in the order in which they are held.
        columns: by party, the columns' names.
        held: by party, how many of these rows it has: the first ones.
        labels: who holds the labels.

    Raises:
        ConfigError: the data set has no such column, or more than one party would get the rest.

    """
    named = [name for names in columns.values() for name in names]
    for name in named:
        if name not in data.features:
            raise ConfigError(f"data set {data.name!r} has no column {name!r}{nearest(name, data.features)}")
    rest, ids = (
        [name for name in data.features if name not in named],
        np.char.zfill(np.arange(len(places)).astype(str), 7),
    )
    unnamed = [party for party in held if party not in columns]
    if len(unnamed) > 1:
        raise ConfigError(f"parties {unnamed} are to have the rest of the columns: name those of all but one")
    made = {}
    for party, count in held.items():
        names = list(columns.get(party, rest))
        block = data.X_train[places[:count]][:, [data.features.index(name) for name in names]]
        table = pl.from_numpy(np.ascontiguousarray(block, dtype=np.float64), schema=names)
        made[party] = table.insert_column(0, pl.Series("id", ids[:count]))
    made[labels] = made[labels].with_columns(label=pl.Series(data.y_train[places[: held[labels]]]))
    return made
