"""Small runs, trained from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tomli_w

from anyparty import config
from anyparty.api.federation import Federation
from anyparty.training.callbacks import Callback

FIVE = ("bank", "shop", "clinic", "insurer", "town")
LONG = tuple(
    f"{what} of the {place} <district> & $county$"
    for place in ("northern", "southern", "eastern", "western")
    for what in ("department of internal medicine", "public library", "savings bank")
)


class Fails(Callback):
    """Interrupt a training after some epochs."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        if record["epoch"] >= self.after:
            raise KeyboardInterrupt


def write(folder: Path, names: Sequence[str], *, rows: int = 160, kind: str = "two", seed: int = 0) -> Path:
    """Write each party's table and the settings, and return the settings' path; the first party has the labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, len(names)))
    ids = pl.Series("id", [f"i{row:04d}" for row in range(rows)])
    score = x.sum(axis=1) + rng.normal(scale=0.4, size=rows)
    labels = {
        "two": np.where(score > 0, "yes", "no"),
        "four": np.array(["north", "east", "south", "west"])[np.digitize(score, [-1, 0, 1])],
        "number": score,
    }[kind]
    folder.mkdir(parents=True, exist_ok=True)
    parties = {}
    for k, name in enumerate(names):
        frame = pl.DataFrame([ids, pl.Series("x", x[:, k]), pl.Series("noise", rng.normal(size=rows))])
        frame = frame.with_columns(pl.Series("y", labels)) if k == 0 else frame
        there = frame if k == 0 else frame.sample(fraction=0.75, seed=k)
        there.write_csv(folder / f"party{k}.csv")
        parties[name] = {"table": f"party{k}.csv"}
    values = {
        "federation": {"id": "id", "label": "y", "active": names[0]}, "parties": parties,
        "encoder": {"hidden": [4]}, "method": {"name": "laser", "embedding": 4}, "optimizer": {"lr": 0.02},
        "train": {"epochs": 4, "batch_size": 32, "test": 0.3, "checkpoint_every": 1},
    }  # fmt: skip
    (folder / "federation.toml").write_text(tomli_w.dumps(values))
    return folder / "federation.toml"


def train(settings: Path, name: str, *changes: str, fail_after: int | None = None) -> Path:
    """Train from settings into a folder of this name beside them."""
    folder = settings.parent / name
    federation = Federation.from_config(config.load(settings, changes))
    try:
        federation.train(folder=folder, watch=None if fail_after is None else Fails(fail_after))
    except KeyboardInterrupt:
        assert fail_after is not None
    return folder
