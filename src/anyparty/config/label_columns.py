"""Check party names in the settings, and find the label column of each party."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from anyparty.errors import ConfigError, TableError, nearest, some
from anyparty.tables import readers
from anyparty.tables.file_content import DETECT

if TYPE_CHECKING:
    from anyparty.config import Config


def check_parties(given: Iterable[str], known: Collection[str], what: str) -> None:
    """Raise a ConfigError if a party in ``given`` is not in ``known``; the message begins with ``what``."""
    for name in given:
        if name not in known:
            raise ConfigError(f"{what}: there is no party {name!r}{nearest(name, known)}")


def label_columns(config: Config, found: Mapping[str, Any]) -> dict[str, str]:
    """Return the label column of each party that holds labels, the active party first.

    If the settings do not name the active party, it is the party whose table has the label column.

    Args:
        config: the settings.
        found: each party's table, or the name of its file.

    Raises:
        ConfigError: no label is set, several parties have labels and ``federation.active`` is not set, or no party
            uses ``federation.label``.
        TableError: no table has the label column, the active party's table lacks it, or a party would use the label
            column as a feature.
    """
    federation = config.federation
    own = {name: party.label for name, party in config.parties.items() if party.label}
    if federation.label is None and not own:
        raise ConfigError('no label: name the column to predict, federation.label = "column"')
    columns = columns_of(config, found)
    have = {name for name, held in columns.items() if federation.label in held}
    labels = dict.fromkeys(have, str(federation.label)) | own
    active = federation.active or _only(labels, federation.label, set().union(*columns.values()))
    if active not in labels:
        near = nearest(federation.label, columns[active]) if federation.label else ""
        where = f"party {some(sorted(have))} has it" if have else f"no party has it{near}"
        raise TableError(
            f"party {active!r} is the active party, but its table has no label column {federation.label!r}; {where}"
        )
    check_features(config, active, found, columns)
    return labels_asked(config, active)


def labels_asked(config: Config, active: str) -> dict[str, str]:
    """Return the label columns that the settings contain, by party, the active party first.

    ``parties.NAME.label`` is a party's label column. For the active party, ``federation.label`` is the default.

    Raises:
        ConfigError: the active party has no label column, or no party uses ``federation.label``, so that the setting
            would be ignored.
    """
    label, own = config.federation.label, {name: each.label for name, each in config.parties.items() if each.label}
    first = own.get(active) or label
    if first is None:
        raise ConfigError('no label: name the active party\'s column, federation.label = "column"')
    if label is not None and label not in {first, *own.values()}:
        raise ConfigError(
            f"federation.label = {label!r} has no effect: the active party {active!r} has its own label, {first!r}; "
            "remove one of the two settings"
        )
    return {active: first} | {name: column for name, column in own.items() if name != active}


def check_features(
    config: Config, active: str, found: Mapping[str, Any], columns: Mapping[str, Collection[str]]
) -> None:
    """Raise an error if a party would use the label column ``federation.label`` as a feature.

    Args:
        config: the settings.
        active: the active party.
        found: each party's table, or the name of its file.
        columns: the column names of each party's table, from ``columns_of``.

    Raises:
        TableError: a party's table has such a column; the message names the party.
    """
    label = config.federation.label
    for name in sorted(found):
        party = config.parties.get(name)
        own = (party and party.label) or (label if name == active else None)
        if label == own or label not in columns[name]:
            continue
        start = f"party {name!r} also holds the label column {label!r} ({readers.named(found[name])}), which would be"
        if own is not None:
            raise TableError(
                f"{start} a feature beside its own label {own!r}: drop it there, or set label = {label!r} in "
                f"[parties.{name}]"
            )
        raise TableError(
            f"{start} used as a feature: write label = {label!r} in [parties.{name}] if it holds labels (they are used "
            'if it hosts a head: method.hosting = "labelers"), or drop it there'
        )


def columns_of(config: Config, found: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the column names of each party's table, without columns that the settings drop.

    ``found`` has each party's table, or the name of its file.
    """
    columns = {}
    for name, source in found.items():
        party = config.parties.get(name)
        named = readers.names(source, name, DETECT if party is None else party.file)
        columns[name] = set(named) - set(party.drop if party else ())
    return columns


def _only(labels: Mapping[str, str], label: str | None, columns: Collection[str]) -> str:
    """Return the only party in ``labels``; raise an error if there is no party or more than one."""
    if len(labels) == 1:
        return next(iter(labels))
    if not labels:
        near = nearest(str(label), columns)
        raise TableError(f"no party's table has the label column {label!r}; check its name, federation.label{near}")
    by_column: dict[str, list[str]] = {}
    for name in sorted(labels):
        by_column.setdefault(labels[name], []).append(name)
    have = ", ".join(
        f"{'party' if len(names) == 1 else 'parties'} {some(names)} {'has' if len(names) == 1 else 'have'} the label "
        f"column {column!r}"
        for column, names in by_column.items()
    )
    raise ConfigError(f"{have}: name the active party, federation.active")
