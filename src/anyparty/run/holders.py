"""Whose names settings name: parties that are there, and who of them holds the label column."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from anyparty.config import Config
from anyparty.errors import ConfigError, TableError, nearest, some
from anyparty.tables import sources


def check_parties(given: Iterable[str], known: Collection[str], what: str) -> None:
    """Refuse the name of a party that is not there: it would be ignored."""
    for name in given:
        if name not in known:
            raise ConfigError(f"{what}: there is no party {name!r}{nearest(name, known)}")


def label_columns(config: Config, found: Mapping[str, Any]) -> dict[str, str]:
    """Return the label column of each party that holds labels, the active one first.

    Raises:
        ConfigError: no label named, or nobody, or more than one party has it and none is named as active.
    """
    federation = config.federation
    own = {name: party.label for name, party in config.parties.items() if party.label}
    if federation.label is None and not own:
        raise ConfigError('no label: name the column to predict, federation.label = "column"')
    columns = {
        name: set(sources.names(source, name)) - set(config.parties[name].drop) for name, source in found.items()
    }
    have = {name for name, held in columns.items() if federation.label in held}
    active = federation.active or _only(have | own.keys(), federation.label, set().union(*columns.values()))
    if active not in have | own.keys():
        near = nearest(federation.label, columns[active]) if federation.label else ""
        where = f"party {some(sorted(have))} has it" if have else f"no party has it{near}"
        raise TableError(
            f"party {active!r} is to lead, but its table has no label column {federation.label!r}; {where}"
        )
    stray = have - own.keys() - {active}
    if stray:
        raise TableError(
            f"party {some(sorted(stray))} also holds the label column {federation.label!r}, which would be used as a "
            f"feature: write label = {federation.label!r} in [parties.{min(stray)}] if it holds labels (they teach "
            f'where it hosts a head: method.hosting = "labelers"), or drop it there'
        )
    first = {active: own.get(active) or str(federation.label)}
    return first | {name: column for name, column in own.items() if name != active}


def _only(have: set[str], label: str | None, columns: Collection[str]) -> str:
    if len(have) == 1:
        return next(iter(have))
    if not have:
        near = nearest(str(label), columns)
        raise TableError(f"no party's table has the label column {label!r}; check its name, federation.label{near}")
    raise ConfigError(
        f"parties {some(sorted(have))} have the label column {label!r}: say which leads, federation.active"
    )
