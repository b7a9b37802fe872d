"""Whom a model asks for answers: checked before any table is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anyparty.errors import PredictionError, nearest
from anyparty.terms import Roster


def whom_to_ask(roster: Roster, tables: Any, parties: Sequence[str] | None) -> list[str]:
    """Return the parties whose blocks take part: those of ``parties`` that have a table, in the roster's order.

    Raises:
        PredictionError: ``tables`` is no mapping, a name is no party's, or nobody is left to ask.
    """
    if not isinstance(tables, Mapping):
        one = roster.active
        raise PredictionError(f"tables: expected a table by the name of its party, {{{one!r}: ...}}, got "
                              f"{type(tables).__name__}")  # fmt: skip
    if isinstance(parties, str):
        raise PredictionError(f"parties: expected a list of names, got the text {parties!r}; write [{parties!r}]")
    for name in (*tables, *(parties or ())):
        if name not in roster.names:
            raise PredictionError(f"the model has no party {name!r}{nearest(name, roster.names)}")
    asked = [name for name in roster.blocks if name in tables and (parties is None or name in parties)]
    for name in parties or ():
        if name not in roster.blocks:
            raise PredictionError(f"party {name!r} holds no columns that could take part; leave it out of parties")
    lacking = [name for name in parties or () if name not in tables]
    if lacking:
        raise PredictionError(f"party {lacking[0]!r} is to take part, but there is no table of it")
    if not asked:
        raise PredictionError("no party with columns is to take part; name at least one, with its table")
    return asked
