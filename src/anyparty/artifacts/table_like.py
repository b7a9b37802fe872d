"""Read a party's table again as in training, to predict from it or to check whether it has changed.

A model may need fewer columns than were read in training: a column that is empty in all training rows is not part of
the model, but it was part of the table that was aligned.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from anyparty.artifacts.model_files import Member
from anyparty.errors import TableError
from anyparty.tables import readers
from anyparty.tables.column_types import Kind
from anyparty.tables.table import Table, read_table

NONE: Mapping[str, Kind] = MappingProxyType({})


def read_again(member: Member, me: str, source: Any, aligned: Mapping[str, Kind] = NONE) -> Table:
    """Read the columns of a party's table that training used; ignore all other columns.

    Args:
        member: the party's part of the model.
        me: the party.
        source: the table.
        aligned: the columns of the aligned table, in their order, with their kinds; if empty, the columns that the
            model needs are read, in the order of the file.

    Raises:
        TableError: the table cannot be used.
    """
    columns = readers.names(source, me, member.file)
    needed = NONE if member.prepare is None else member.prepare.kinds
    label = member.label if member.label in columns else None

    def read(names: Mapping[str, Kind]) -> Table:
        expect = {name: names[name] for name in names if name in columns} | dict(needed)
        return read_table(source, party=me, label=label, expect=expect, **member.reading)

    alone = {name: needed[name] for name in columns if name in needed}
    if not aligned:
        return read(alone)
    try:
        return read(aligned)
    except TableError:  # the error may be in a column that the model does not need
        return read(alone)
