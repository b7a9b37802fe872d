"""The suites that ship with the package: published tables as TOML, each of one kind.

One that says ``base = "NAME"`` is another view of that suite's runs: what it does not say itself is as there.
"""

from __future__ import annotations

import tomllib
from importlib import import_module
from importlib.resources import files
from typing import Any

from anyparty.errors import ConfigError, nearest
from anyparty.experiments.suite import Suite

KINDS = {  # kind: where its Suite is
    "clock": "anyparty.experiments.schedules.suite",
    "folds": "anyparty.experiments.one_exchange.suite",
    "missing": "anyparty.experiments.missing_blocks.suite",
}


def names() -> list[str]:
    """Return the suites' names."""
    return sorted(
        entry.name.removesuffix(".toml") for entry in files(__name__).iterdir() if entry.name.endswith(".toml")
    )


def load(name: str) -> Suite:
    """Return a suite by name.

    Raises:
        ConfigError: there is no such suite.
    """
    if name not in names():
        raise ConfigError(f"no suite {name!r}{nearest(name, names())}")
    values = _read(name)
    if "base" in values:
        base = values.pop("base")
        values = _read(base) | values | {"runs_of": base}
    kind = import_module(KINDS[values.pop("kind")]).Suite
    made: Suite = kind.model_validate({"name": name, **values})
    return made


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((files(__name__) / f"{name}.toml").read_text(encoding="utf-8"))
