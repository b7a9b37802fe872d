"""Run settings: one TOML file per federation, validated before any table is read.

[federation]            id and label columns, the active party
[parties.NAME]          one party's table, column types, encoder, optimizer
[encoder] [optimizer]   defaults for parties without an encoder or optimizer in [parties.NAME]
[method]                name, and the method's parameters
[schedule]              when parties update weights: name, and the schedule's parameters
[clock]                 durations that the schedule uses
[train]                 epochs, batches, shares of validation and test, early stopping
[split]                 which rows are for training, validation and test
[run]                   the folder for results
[track]                 experiment trackers
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyparty.config.loader import config_of, from_values, load
    from anyparty.config.schema import (
        ClockSettings,
        Config,
        Encoder,
        FederationSettings,
        MethodSettings,
        PartySettings,
        RunSettings,
        ScheduleSettings,
        SplitSettings,
        TrackSettings,
        TrainSettings,
    )
    from anyparty.config.settings_group import Settings

__all__ = [
    "ClockSettings", "Config", "Encoder", "FederationSettings", "MethodSettings", "PartySettings",
    "RunSettings", "ScheduleSettings", "Settings", "SplitSettings", "TrackSettings", "TrainSettings",
    "config_of", "from_values", "load",
]  # fmt: skip

_ELSEWHERE = {"Settings": "settings_group", "config_of": "loader", "from_values": "loader", "load": "loader"}


def __getattr__(name: str) -> Any:
    """Import a name on first use, because importing the encoders takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'schema')}"), name)
    return found
