"""The suites of the package: each TOML file in this folder describes one published table.

A suite with ``base = "NAME"`` shows the runs of the suite NAME in another way.  It inherits from the suite NAME all
values that it does not set itself.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

from anyparty.errors import ConfigError, nearest
from anyparty.experiments.missing_blocks_suite import MissingBlocksSuite
from anyparty.experiments.one_exchange_suite import OneExchangeSuite
from anyparty.experiments.schedules_suite import SchedulesSuite
from anyparty.experiments.suite import Suite

KINDS: dict[str, type[Suite]] = {
    "missing_blocks": MissingBlocksSuite,
    "one_exchange": OneExchangeSuite,
    "schedules": SchedulesSuite,
}


def names() -> list[str]:
    """Return the names of all suites."""
    return sorted(
        entry.name.removesuffix(".toml") for entry in files(__name__).iterdir() if entry.name.endswith(".toml")
    )


def load(name: str) -> Suite:
    """Return the suite with this name, which is read from its TOML file.

    Raises:
        ConfigError: there is no such suite.
    """
    if name not in names():
        raise ConfigError(f"no suite {name!r}{nearest(name, names())}")
    values = _read(name)
    if "base" in values:
        base = values.pop("base")
        values = _read(base) | values | {"runs_of": base}
    return KINDS[values["kind"]].model_validate({"name": name, **values})


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((files(__name__) / f"{name}.toml").read_text(encoding="utf-8"))
