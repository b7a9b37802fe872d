"""How one party's table file is read, where the user replaces what is recognised."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from anyparty.errors import TableError


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """Settings of a table file; each replaces a guess. A setting that does not apply to the file's format is unused.

    Attributes:
        separator: the character between two cells of a CSV file.
        decimal: the decimal mark of numbers in a CSV file, "." or ",".
        quote: the character around cells of a CSV file that contain the separator.
        encoding: the text encoding of a CSV file, as Python names it, such as "cp1252" or "utf-16".
        sheet: the sheet of a workbook, by name or by number from 1.

    Raises:
        TableError: a value is not possible.
    """

    separator: str | None = None
    decimal: str | None = None
    quote: str | None = None
    encoding: str | None = None
    sheet: str | int | None = None

    def __post_init__(self) -> None:
        for name in ("separator", "quote"):
            mark = getattr(self, name)
            if mark is not None and (len(mark.encode()) != 1 or mark in "\r\n"):
                raise TableError(f"{name} = {mark!r}: expected one ASCII character, such as ';'")
        if self.decimal not in {None, ".", ","}:
            raise TableError(f"decimal = {self.decimal!r}: expected '.' or ','")
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise TableError(
                    f"encoding = {self.encoding!r}: Python does not know this encoding; known are 'utf-8', 'cp1252', "
                    "'utf-16' and others"
                ) from None
        if isinstance(self.sheet, int) and self.sheet < 1:
            raise TableError(f"sheet = {self.sheet}: expected a sheet's name, or its number from 1")


DETECT = FileSettings()
