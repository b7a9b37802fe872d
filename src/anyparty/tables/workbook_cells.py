"""Find the cells of an Excel workbook (.xlsx) whose values readers lose.

A formula has no value until a spreadsheet program computes and stores it. Readers take such a cell, an error such as
#DIV/0! and a cell that a merged range hides for an empty cell, and round numbers of more than 15 digits.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from html import unescape
from typing import NamedTuple

_TAG = rb"<(?:\w+:)?"
_FORMULA = rb"(?:" + _TAG + rb"f\b[^>]*?(?:/>|>[^<]*</(?:\w+:)?f>)\s*)"
_CELL = _TAG + rb"c\s([^>]*)>\s*"
_EMPTY = re.compile(_CELL + _FORMULA + rb"(" + _TAG + rb"v\s*/>|" + _TAG + rb"v>\s*</(?:\w+:)?v>)?\s*</(?:\w+:)?c>")
_VALUE = re.compile(_CELL + _FORMULA + rb"?" + _TAG + rb"v>\s*(#[^<]+|[+-]?\d{16,}(?:\.\d*)?)\s*<")
_MERGED = re.compile(_TAG + rb'mergeCell\s[^>]*ref="([A-Z]+)(\d+):([A-Z]+)(\d+)"')
_PLACE = re.compile(rb'\br="([A-Z]+)(\d+)"')
_KIND = re.compile(rb'\bt="(\w+)"')
LARGEST_EXACT = 2**53
REASONS = {
    "formula": "formulas without a stored value: open the workbook in a spreadsheet program and save it",
    "error": "errors, such as {}, which are read as empty: correct their formulas",
    "merged": "cells that a merged range hides: unmerge it, and fill in the cells",
    "rounded": "numbers such as {}, which a workbook rounds: write them as text",
}


class LostCells(NamedTuple):
    """The cells of one column whose values are lost, in one of the ways in ``REASONS``."""

    column: str
    way: str
    number: int
    example: str

    def __str__(self) -> str:
        """Return the end of a sentence that begins with party and file."""
        cells = "1 cell" if self.number == 1 else f"{self.number:,} cells"
        are = "is among the" if self.number == 1 else "are"
        return f"{cells} of column {self.column!r} {are} {REASONS[self.way].format(self.example)}"


def lost_cells(workbook: bytes, sheet: str, header: Sequence[str]) -> tuple[LostCells, ...]:
    """Return the lost cells below the first row of a sheet, by column and way; () for another kind of workbook.

    Args:
        workbook: the file.
        sheet: the sheet's name.
        header: the names of the sheet's columns, from its first column with cells.
    """
    try:
        xml = _sheet_of(workbook, sheet)
    except (zipfile.BadZipFile, KeyError, StopIteration):
        return ()
    if not any(mark.search(xml) for mark in (_EMPTY, _VALUE, _MERGED)):
        return ()
    places = [(_index(letters), int(row)) for letters, row in _PLACE.findall(xml)]
    if not places:
        return ()
    left, top = (min(each) for each in zip(*places, strict=True))
    columns, rows = range(left, left + len(header)), range(top + 1, max(row for _, row in places) + 1)
    counts: dict[tuple[str, str], list[str]] = {}
    for column, row, way, example in (*_places(xml), *_hidden(xml, columns, rows)):
        if column in columns and row in rows:
            counts.setdefault((header[column - left], way), []).append(example)
    return tuple(LostCells(name, way, len(each), each[0]) for (name, way), each in counts.items())


def _places(xml: bytes) -> Iterator[tuple[int, int, str, str]]:
    """Yield the column's index, the row's number, the way and the value of each cell of a sheet that lost its value."""
    for match in _EMPTY.finditer(xml):
        # Excel stores an empty text as a value of type str
        if (place := _PLACE.search(match[1])) and not (match[2] and b't="str"' in match[1]):
            yield _index(place[1]), int(place[2]), "formula", ""
    for match in _VALUE.finditer(xml):
        place, kind = _PLACE.search(match[1]), _KIND.search(match[1])
        text = match[2].decode()
        is_error, is_number = kind is not None and kind[1] == b"e", kind is None or kind[1] == b"n"
        rounded = is_number and not text.startswith("#") and abs(float(text)) >= LARGEST_EXACT
        if place and (is_error or rounded):
            yield _index(place[1]), int(place[2]), "error" if is_error else "rounded", text


def _hidden(xml: bytes, columns: range, rows: range) -> Iterator[tuple[int, int, str, str]]:
    """Yield the cells that merged ranges hide, among some columns and rows, in the form of ``_places``."""
    for first, top, last, bottom in _MERGED.findall(xml):
        for column in range(max(_index(first), columns.start), min(_index(last) + 1, columns.stop)):
            for row in range(max(int(top), rows.start), min(int(bottom) + 1, rows.stop)):
                if (column, row) != (_index(first), int(top)):
                    yield column, row, "merged", ""


def _index(letters: bytes) -> int:
    """Return the index of a column from its letters.

    >>> _index(b"A"), _index(b"Z"), _index(b"AA")
    (0, 25, 26)
    """
    number = 0
    for letter in letters:
        number = number * 26 + letter - 64
    return number - 1


def _sheet_of(workbook: bytes, sheet: str) -> bytes:
    """Return the XML of a sheet."""
    with zipfile.ZipFile(io.BytesIO(workbook)) as archive:
        book, links = archive.read("xl/workbook.xml").decode(), archive.read("xl/_rels/workbook.xml.rels").decode()
        tag = next(tag for tag in re.findall(r"<(?:\w+:)?sheet\s[^>]*>", book)
                   if unescape(_attribute(tag, "name")) == sheet)  # fmt: skip
        key = _attribute(tag, r"\w+:id")
        link = next(tag for tag in re.findall(r"<Relationship\s[^>]*>", links) if _attribute(tag, "Id") == key)
        target = _attribute(link, "Target")
        return archive.read(target.lstrip("/") if target.startswith("/") else f"xl/{target}")


def _attribute(tag: str, name: str) -> str:
    found = re.search(rf"""\s{name}=(["'])(.*?)\1""", tag)
    return found[2] if found else ""
