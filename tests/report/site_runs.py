"""Three parties with overlapping rows that train as sites do, over the in-memory transport."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from anyparty.config import Config
from anyparty.core.types import Channel, ChannelWrapper
from anyparty.deployment.site.site_prediction import predict_at_site
from anyparty.deployment.site.site_training import train_at_site
from anyparty.errors import ConfigError
from anyparty.methods.method_registry import method as method_by_name
from anyparty.transport import memory

NAMES = ("bank", "shop", "clinic")
SHARE = 0.8


@dataclass(frozen=True)
class Site:
    """A party's own settings."""

    party: str
    table: Path | None
    folder: Path
    active: str = "bank"
    parties: tuple[str, ...] = NAMES


def frames(n: int = 200, seed: int = 3) -> dict[str, pl.DataFrame]:
    """Return each party's table; ids and cells are large numbers that messages do not contain by chance."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)) * 54_321.0 + 3e5
    y = np.where(x[:, 1] > 3e5, "defaulted", "repaid")
    ids = pl.Series("id", [f"person {i}" for i in rng.choice(90_000_000, n, replace=False) + 10_000_000])
    whole = {
        "bank": pl.DataFrame([ids, pl.Series("income", x[:, 0]), pl.Series("debt", x[:, 4]), pl.Series("y", y)]),
        "shop": pl.DataFrame([ids, pl.Series("spent", x[:, 1]), pl.Series("card", x[:, 2].astype(np.int64))]),
        "clinic": pl.DataFrame(
            [ids, pl.Series("cost", x[:, 3]), pl.Series("dose", x[:, 5].astype(np.float32)), pl.Series("y", y)]
        ),
    }
    return {
        name: frame.sample(fraction=SHARE, seed=place, shuffle=True)
        for place, (name, frame) in enumerate(whole.items())
    }


def build(folder: Path, tables: Mapping[str, pl.DataFrame] | None = None, names: tuple[str, ...] = NAMES):
    """Write each party's table into its own folder, and return the sites."""
    sites = {}
    for name, frame in (tables or frames()).items():
        (folder / name).mkdir(parents=True)
        frame.write_csv(folder / name / "table.csv")
        sites[name] = Site(name, folder / name / "table.csv", folder / name / "runs", names[0], names)
    return sites


def settings(method: str = "laser", *, two_label_holders: bool = False, schedule: str = "", clock: Any = None,
             **train: Any) -> Config:  # fmt: skip
    """Return the settings of a short run; each of two label holders hosts its own head if the method supports it."""
    clinic = {"label": "y"} if two_label_holders else {"drop": ("y",)}
    wanted = {"embedding": 8} | ({"hosting": "labelers"} if two_label_holders else {})
    return Config.of(
        {
            "federation": {"label": "y", "active": "bank"},
            "parties": {"bank": {}, "shop": {}, "clinic": clinic},
            "method": {"name": method, **{key: value for key, value in wanted.items() if takes(method, key, value)}},
            "encoder": {"hidden": [8]},
            "train": {"epochs": 2, "batch_size": 32, **train},
            **({"schedule": {"name": schedule}} if schedule else {}),
            **({"clock": clock} if clock else {}),
        }
    )


def takes(name: str, key: str, value: Any) -> bool:
    """Return whether a method has a parameter."""
    try:
        method_by_name(name, **{key: value})
    except ConfigError:
        return False
    return True


def play(
    sites: Mapping[str, Site], config: Config, wrap: Callable[[Channel], Channel] = lambda c: c, **how: Any
) -> dict[str, Any]:
    """Train at all sites."""
    return _all(train_at_site, sites, config, wrap, **how)


def predict(sites: Mapping[str, Site], config: Config, wrap: Callable[[Channel], Channel] = lambda c: c) -> Any:
    """Predict the rows of all sites together, after a training."""
    return _all(predict_at_site, sites, config, wrap)


def _all(work: Any, sites: Mapping[str, Site], config: Config, wrap: Any, **how: Any) -> dict[str, Any]:
    def part(site: Site, net: Channel) -> Any:
        return work(site, config, net, **how)

    return memory.play({name: partial(part, site) for name, site in sites.items()}, wrap)


def ledger(sites: Mapping[str, Site], file: str = "record.json") -> list[dict[str, Any]]:
    """Return the ledgers of all sites."""
    kept = [json.loads((site.folder / file).read_text(encoding="utf-8")) for site in sites.values()]
    return [row for record in kept for row in record["ledger"]]


@dataclass
class Look(ChannelWrapper):
    """A channel that counts what its party sends."""

    sent: dict[str, int] = field(default_factory=dict)

    def count(self, tag: str) -> int:
        self.sent[tag] = self.sent.get(tag, 0) + 1
        return self.sent[tag]
