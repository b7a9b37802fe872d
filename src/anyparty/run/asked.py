"""Whom a model asks for answers: checked before any table is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anyparty.errors import PredictionError, nearest
from anyparty.methods.method import Seat
from anyparty.nets.table import describe
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


def no_test_rows(shipped: bool, seats: Iterable[Seat]) -> PredictionError:
    """Return what to say of a model that was loaded, so that no run's test rows are at hand.

    Args:
        shipped: whether its method is none of the user's own, which would have to be given again.
        seats: the parties', whose networks would have to be, too, where they are the user's own.
    """
    own = any(seat.inputs and describe(seat.encoder) is None for seat in seats)
    given = [*([] if shipped else ["method=..."]), *(["encoders=..."] if own else [])]
    also = f"; they take {' and '.join(given)}, too" if given else ""
    return PredictionError("this model has no test rows at hand: give tables; those of a run are read again by "
                           f"anyparty.run.runs.evaluate_run(folder), or predict_run(folder){also}")  # fmt: skip
