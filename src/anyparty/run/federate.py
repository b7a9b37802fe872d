"""A federation of real parties, over NVIDIA FLARE: from settings to kits, from kits to a run, from a run to its end.

init("federation.toml", "house")        one kit an organisation, with certificates
wire.flare.federation.start("house")              all of them on this machine, for trying out
train("house", "federation.toml")       every party plays its part at home
wire.flare.federation.stop("house")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyparty import config as settings
from anyparty.errors import ConfigError, RunError
from anyparty.terms import Party, Roster
from anyparty.wire.flare import federation as flare


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run of a federation ended.

    Attributes:
        job: its name.
        status: FLARE's word for how it ended.
        outcomes: by party, for those whose kit is on this machine, how its own part ended.

    """

    job: str
    status: str
    outcomes: Mapping[str, Mapping[str, Any]]


def init(config: Path | str, folder: Path | str, *, host: str = "127.0.0.1", port: int = 8002) -> dict[str, Path]:
    """Write one start-up kit for each party that the settings name; return where they are.

    A party whose table is named in the settings gets it named in its own kit; a job never carries it.

    Raises:
        ConfigError: no active party is named, or the folder holds a federation already.
    """
    resolved = settings.load(config)
    active = resolved.federation.active
    if active is None:
        raise ConfigError(
            f"{config}: name the party that leads, federation.active: parties apart cannot look for labels"
        )
    roster = Roster(tuple(Party(name=name) for name in resolved.parties), active)
    tables = {name: party.table for name, party in resolved.parties.items() if party.table is not None}
    return flare.init(Path(folder), roster, host, port, tables=tables)


def train(
    folder: Path | str,
    config: Path | str,
    changes: Sequence[str] = (),
    *,
    resume: bool = False,
    timeout_s: float = 86_400.0,
) -> Ended:
    """Run a training with the parties that are connected, and wait for its end.

    Raises:
        ConfigError: the settings are wrong.
        RunError: the federation cannot be reached, or the active party's part ended with an error.
    """
    folder = Path(folder)
    resolved = settings.load(config, changes)
    job = flare.submit(folder, resolved.to_toml(), asked={"resume": resume})
    status = flare.wait(folder, job, timeout_s)
    found = {name: flare.outcome(folder, name, job) for name in resolved.parties}
    outcomes = {name: outcome for name, outcome in found.items() if outcome is not None}
    for name, outcome in outcomes.items():
        if name == resolved.federation.active and outcome["error"]:
            raise RunError(f"job {job}: {name!r}, which leads, ended with {outcome['error']}: {outcome['sentence']}")
    return Ended(job=job, status=status, outcomes=outcomes)
