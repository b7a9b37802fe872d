"""Run settings: one TOML file per federation, checked before anything is read.

[federation]            id and label columns, which party leads
[parties.NAME]          table, and whatever is this party's own: column types, encoder, optimizer
[encoder] [optimizer]   for all parties that name none of their own
[method]                name, and the method's parameters
[schedule]              when parties step: name, and the schedule's parameters
[clock]                 how long things take, in time units, for a schedule
[train]                 epochs, batches, splits, when to stop
[run]                   the folder for results
[track]                 trackers that hear of the run
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyparty.config.loader import load
    from anyparty.config.network_settings import Encoder
    from anyparty.config.schema import (
        ClockSettings,
        Config,
        FederationSettings,
        MethodSettings,
        PartySettings,
        RunSettings,
        ScheduleSettings,
        TrackSettings,
        TrainSettings,
    )
    from anyparty.config.settings_group import Settings

__all__ = [
    "ClockSettings", "Config", "Encoder", "FederationSettings", "MethodSettings", "PartySettings",
    "RunSettings", "ScheduleSettings", "Settings", "TrackSettings", "TrainSettings", "load",
]  # fmt: skip

_ELSEWHERE = {"Settings": "settings_group", "load": "loader", "Encoder": "network_settings"}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a command that reads records alone needs no encoder."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'schema')}"), name)
