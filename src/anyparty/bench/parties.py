"""A data set as the parties have it: columns cut into blocks, rows that a party lacks left out, labels apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from anyparty.blocks.missing import MCAR, Drawn, Missing, missing
from anyparty.config import Config
from anyparty.run.federation import Federation
from anyparty.seeds import Seeds
from anyparty.tables.partition import cut

LABELS = "server"  # holds every row's label and no columns: a row's label does not go missing with a block


def blocks_of(X: NDArray[Any], how: str, parties: int) -> list[NDArray[Any]]:
    """Cut rows into the parties' blocks, flat: [n, ...] -> K times [n, d_k]; images are scaled to [0, 1]."""
    if X.dtype == np.uint8:
        X = X.astype(np.float32) / 255
    return [np.ascontiguousarray(block.reshape(len(block), -1)) for block in cut(X, how, parties)]


def mechanism_of(text: str) -> Missing:
    """Return the mechanism that a suite names: a number is MCAR's p, ``beta:2,2`` has its parameters in order.

    >>> mechanism_of("0.1"), mechanism_of("beta")
    (MCAR(p=0.1), BetaMCAR(a=2.0, b=2.0))
    """
    try:
        return MCAR(p=float(text))
    except ValueError:
        return missing(text)


def draw(mechanism: str, seeds: Seeds, name: str, blocks: Sequence[NDArray[Any]]) -> Drawn:
    """Return who observes which row: the same for every method of a seed."""
    how = mechanism_of(mechanism)
    return how.draw(seeds, f"{name} {mechanism}", len(blocks[0]), len(blocks), blocks)


def tables(
    blocks: Sequence[NDArray[Any]], y: NDArray[Any], observed: NDArray[np.bool_], *, shared: bool = False
) -> dict[str, pl.DataFrame]:
    """Return each party's table of the rows that it observes, and the labels' own; ``shared`` labels stand in all."""
    ids = np.char.zfill(np.arange(len(y)).astype(str), 7)
    made = {}
    for k, block in enumerate(blocks):
        rows = observed[:, k]
        columns = pl.from_numpy(block[rows], schema=[f"x{c}" for c in range(block.shape[1])])
        own = columns.insert_column(0, pl.Series("id", ids[rows]))
        made[f"party{k + 1}"] = own.with_columns(label=y[rows]) if shared else own
    return made | {LABELS: pl.DataFrame({"id": ids, "label": y})}


def federation(frames: dict[str, pl.DataFrame], *, scale: bool) -> Federation:
    """Return the federation of these tables; the labels' own party leads."""
    parties = {
        name: {"scale": scale} | ({"label": "label"} if "label" in frame.columns else {})
        for name, frame in frames.items()
    }
    return Federation.from_config(
        Config.of({"federation": {"label": "label", "active": LABELS}, "parties": parties}), frames
    )
