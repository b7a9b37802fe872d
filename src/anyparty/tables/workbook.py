"""Read one sheet of an Excel or OpenDocument workbook."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from anyparty.errors import TableError, some
from anyparty.tables.csv_file import UNNAMED, check_unique, without_unnamed
from anyparty.tables.file_content import FileContent, FileSettings, named

if TYPE_CHECKING:
    import fastexcel


def read_header(
    content: FileContent, settings: FileSettings, party: str
) -> tuple[fastexcel.ExcelReader, str, list[str]]:
    """Open a workbook, choose the sheet, and read its column names; "" for a column without a name.

    Raises:
        TableError: the sheet is not evident or does not exist, or a column name repeats.
    """
    import fastexcel  # noqa: PLC0415 - imported only for workbooks, which are rare

    where = f"party {party!r}: {named(content.path)}"
    try:
        book = fastexcel.read_excel(content.whole())
    except fastexcel.FastExcelError as error:
        raise ValueError(str(error)) from error  # a ValueError is reported like that of any damaged file
    sheet = _sheet(book, settings.sheet, where, party)
    first = book.load_sheet(sheet, header_row=None, n_rows=1, dtypes="string").to_polars()
    header = ["" if name is None else name.strip() for name in first.row(0)]
    whole = book.load_sheet(sheet, header_row=None, dtypes="string").width
    header += [""] * (whole - len(header))
    check_unique([name for name in header if name], where)
    return book, sheet, header


def read_workbook(
    content: FileContent, settings: FileSettings, party: str
) -> tuple[pl.DataFrame, str, tuple[str, ...]]:
    """Read a sheet with the cells' own types; a column of several types is text.

    Returns:
        The cells, the sheet's name, and remarks on columns that were left out.

    Raises:
        TableError: the sheet is not evident or does not exist, a column name repeats, or an unnamed column has cells.
    """
    book, sheet, header = read_header(content, settings, party)
    frame = book.load_sheet(sheet, header_row=None, skip_rows=1, schema_sample_rows=None).to_polars()
    header = header[: frame.width]
    frame.columns = [name or f"{UNNAMED}{place}" for place, name in enumerate(header)]
    frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))
    cells, notes = without_unnamed(frame, f"party {party!r}: {named(content.path)}")
    return cells, sheet, notes


def _sheet(book: fastexcel.ExcelReader, wanted: str | int | None, where: str, party: str) -> str:
    names = book.sheet_names
    if isinstance(wanted, int):
        if wanted > len(names):
            raise TableError(f"{where} has no sheet {wanted}; it has {len(names)}: {_listed(names)}")
        return names[wanted - 1]
    if wanted is not None:
        if wanted not in names:
            raise TableError(f"{where} has no sheet {wanted!r}; it has {_listed(names)}")
        return wanted
    filled = [name for name in names if book.load_sheet(name, header_row=None, n_rows=1).width]
    if len(filled) > 1:
        raise TableError(f"{where} has {len(filled)} sheets with cells, {_listed(filled)}; write sheet = "
                         f"{filled[0]!r} or another in [parties.{party}]")  # fmt: skip
    if not filled:
        raise TableError(f"{where}: every sheet is empty; a table with a line of column names was expected")
    return filled[0]


def _listed(names: list[str]) -> str:
    return " and ".join(map(repr, names)) if len(names) == 2 else some(names)
