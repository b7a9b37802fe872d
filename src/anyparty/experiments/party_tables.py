"""Make the parties' tables from a data set: distribute its columns, and remove the rows that a party does not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from anyparty.api.federation import Federation
from anyparty.config import Config
from anyparty.core.seeds import Seeds
from anyparty.data.datasets import Dataset
from anyparty.data.missingness import MCAR, DrawnMask, Mechanism, missing
from anyparty.errors import ConfigError, nearest
from anyparty.tables.partition import cut

LABELS = "server"  # name of the party with the labels of all rows and without columns


def blocks_of(X: NDArray[Any], how: str, parties: int) -> list[NDArray[Any]]:
    """Return n rows X [n, ...] cut into K arrays [n, d_k], one for each party; pixels of images are scaled to [0, 1].

    ``how`` is the name of a way of cutting for ``tables.partition.cut``, such as "columns" or "quadrants".
    """
    if X.dtype == np.uint8:
        X = X.astype(np.float32) / 255
    return [np.ascontiguousarray(block.reshape(len(block), -1)) for block in cut(X, how, parties)]


def mechanism_of(text: str, defined: Mapping[str, Mapping[str, Any]] | None = None) -> Mechanism:
    """Convert a text to a mechanism of missingness.

    The text is a name in ``defined``, a number p for MCAR(p), or the name of a built-in mechanism.

    >>> mechanism_of("0.1"), mechanism_of("MNAR 9", {"MNAR 9": {"name": "mnar", "p": 0.9}})
    (MCAR(p=0.1), MNAR(p=0.9))
    """
    if defined and text in defined:
        return missing(defined[text])
    try:
        return MCAR(p=float(text))
    except ValueError:
        return missing(text)


def draw(
    mechanism: str, seeds: Seeds, name: str, blocks: Sequence[NDArray[Any]], how: Mechanism | None = None
) -> DrawnMask:
    """Return a random mask of the rows that each party has, drawn by a mechanism of missingness.

    ``how`` is the mechanism; by default the mechanism with the name ``mechanism``. ``name`` is "train" or "test", the
    part of the data set to which ``blocks`` belong. The result is the same for all methods with the same seed.
    """
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
    """Return a table for each party, with the rows that the party has.

    Args:
        blocks: the parties' columns, K arrays [n, d_k].
        y: labels [n].
        observed: [n, K] bool, True if party k has row n.
        labeled: [n] bool, True if the label of the row is known; by default all.
        at: name of the party that has the labels of its rows; by default a further party, which has all labels and no
            columns.
        shared: whether every party gets the labels of its own rows.

    """
    ids = np.char.zfill(np.arange(len(y)).astype(str), 7)
    label = pl.Series("label", y)
    if labeled is not None:
        label = pl.select(pl.when(pl.Series(labeled)).then(label).alias("label")).to_series()
    frames = {}
    for k, block in enumerate(blocks):
        rows = observed[:, k]
        columns = pl.from_numpy(block[rows], schema=[f"x{c}" for c in range(block.shape[1])])
        own = columns.insert_column(0, pl.Series("id", ids[rows]))
        has_labels = shared or at == f"party{k + 1}"
        frames[f"party{k + 1}"] = own.with_columns(label.filter(pl.Series(rows))) if has_labels else own
    return frames if at in frames else frames | {LABELS: pl.DataFrame([pl.Series("id", ids), label])}


def federation(frames: dict[str, pl.DataFrame], *, scale: bool, at: str = LABELS, task: str = "auto") -> Federation:
    """Build a federation from the parties' tables; the active party ``at`` has the labels."""
    parties = {
        name: {"scale": scale} | ({"label": "label"} if name != at and "label" in frame.columns else {})
        for name, frame in frames.items()
    }
    about = {"label": "label", "active": at, "task": task}
    settings = {
        "federation": about,
        "parties": parties,
        "split": {"kind": "random"},  # as in the published experiments
    }
    return Federation.from_config(Config.of(settings), frames)


def by_columns(
    data: Dataset, places: NDArray[np.int64], columns: Mapping[str, Sequence[str]], held: Mapping[str, int], *,
    labels: str,
) -> dict[str, pl.DataFrame]:  # fmt: skip
    """Return a table for each party, with the columns that ``columns`` lists for this party.

    A party that ``columns`` does not list gets all columns that are not listed.

    Args:
        data: a data set; only its training rows are used.
        places: [n], indices of the rows to use.
        columns: for each party, the names of its columns.
        held: for each party, its number m of rows; the party has the first m rows of ``places``.
        labels: name of the party that has the labels.

    Raises:
        ConfigError: the data set does not have a column, or more than one party would get the remaining columns.

    """
    named = [name for names in columns.values() for name in names]
    for name in named:
        if name not in data.features:
            raise ConfigError(f"data set {data.name!r} has no column {name!r}{nearest(name, data.features)}")
    rest = [name for name in data.features if name not in named]
    ids = np.char.zfill(np.arange(len(places)).astype(str), 7)
    unnamed = [party for party in held if party not in columns]
    if len(unnamed) > 1:
        raise ConfigError(f"the columns of the parties {unnamed} are not named; at most one party can get the rest")
    frames = {}
    for party, count in held.items():
        names = list(columns.get(party, rest))
        block = data.X_train[places[:count]][:, [data.features.index(name) for name in names]]
        table = pl.from_numpy(np.ascontiguousarray(block, dtype=np.float64), schema=names)
        frames[party] = table.insert_column(0, pl.Series("id", ids[:count]))
    frames[labels] = frames[labels].with_columns(label=pl.Series(data.y_train[places[: held[labels]]]))
    return frames
