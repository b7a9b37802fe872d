"""A party's table, read again as it was read for training: to predict from it, or to see whether it is still the same.

What a model needs is not all that was read: a column that is empty in all training rows is left out of the model, and
yet it was there when the table was aligned.
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
    """Return a party's table as it was read for training; other columns are ignored.

    Args:
        member: its part of the model.
        me: the party.
        source: the table.
        aligned: the columns of the table that was aligned, in their order, and their kinds; without, those that the
            model needs, in the order of the file.

    Raises:
        TableError: the table cannot be used.
    """
    columns = readers.names(source, me)
    needed = NONE if member.prepare is None else member.prepare.kinds
    label = member.label if member.label in columns else None

    def read(names: Mapping[str, Kind]) -> Table:
        expect = {name: names[name] for name in names if name in columns} | dict(needed)
        return read_table(
            source, party=me, id=member.id, label=label, expect=expect, max_cell_bytes=member.max_cell_bytes
        )

    alone = {name: needed[name] for name in columns if name in needed}
    if not aligned:
        return read(alone)
    try:
        return read(aligned)
    except TableError:  # perhaps of a column that the model does without
        return read(alone)
