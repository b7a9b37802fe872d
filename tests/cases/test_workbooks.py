"""Case 28: workbooks with formulas that have no stored value, with errors, merged ranges and rounded numbers."""

import openpyxl
import polars as pl
import pytest

from anyparty.api.federation import Federation
from anyparty.errors import AnypartyWarning, TableError
from anyparty.tables.table import read_table
from tests.cases.conftest import ROWS, clean

EVERY_FIFTH = range(2, ROWS + 2, 5)


def formula(column, rows, text="=1+1"):
    def edit(sheet):
        for row in rows:
            sheet.cell(row, column).value = text

    return edit


def error(sheet):
    for row in (3, 7):
        sheet.cell(row, 3).value, sheet.cell(row, 3).data_type = "#DIV/0!", "e"


def written(path, edit):
    """Write the bank's table to a workbook, and edit its sheet."""
    book, bank = openpyxl.Workbook(), clean()["bank"].with_columns(pl.col("age", "default").cast(int))
    book.active.title = "A & B"
    for values in [bank.columns, *bank.iter_rows()]:
        book.active.append(values)
    edit(book.active)
    book.save(path)
    return path


class TestCase28WorkbookFormulasWithoutValues:
    @pytest.mark.parametrize(
        ("edit", "said"),
        [
            (formula(2, EVERY_FIFTH), "48 cells of column 'age' are formulas without a stored value: open the"),
            # further inputs
            (formula(2, range(2, ROWS + 2)), "240 cells of column 'age' are formulas without a stored value"),
            (formula(3, [4], '=IF(B4>1,"a","")'), "1 cell of column 'income' is among the formulas without a stored"),
            (error, "2 cells of column 'income' are errors, such as #DIV/0!, which are read as empty"),
            (lambda sheet: sheet.merge_cells("B5:C7"), "2 cells of column 'age' are cells that a merged range hides"),
            (lambda sheet: sheet.merge_cells("C2:C99"), "97 cells of column 'income' are cells that a merged range"),
        ],
    )  # fmt: skip
    def test_features_get_a_remark(self, tmp_path, edit, said):
        path = written(tmp_path / "bank.xlsx", edit)
        made = Federation.from_tables({"bank": path, "shop": clean()["shop"]}, id="customer", label="default")
        assert any(said in note for note in made.overlap.notes)
        assert made.overlap.labelled == ROWS
        dropped = Federation.from_tables({"bank": path, "shop": clean()["shop"]}, id="customer", label="default",
                                         drop={"bank": [said.split("'")[1]]})  # fmt: skip
        assert not any(said in note for note in dropped.overlap.notes)

    @pytest.mark.parametrize(
        ("edit", "said"),
        [
            (formula(1, EVERY_FIFTH, '="k"&1'), "48 cells of column 'customer' are formulas without a stored value"),
            (formula(4, EVERY_FIFTH), "48 cells of column 'default' are formulas without a stored value"),
            # further inputs
            (formula(4, range(2, ROWS + 2)), "240 cells of column 'default' are formulas without a stored value"),
            (lambda sheet: sheet.merge_cells("A5:A7"), "2 cells of column 'customer' are cells that a merged range"),
            (lambda sheet: sheet.merge_cells("D5:D6"), "1 cell of column 'default' is among the cells that a merged"),
            (formula(1, [2, 3], 2**53 + 1), "2 cells of column 'customer' are numbers such as 9007199254740992, which"),
        ],
    )  # fmt: skip
    def test_ids_and_labels_stop(self, tmp_path, edit, said):
        path = written(tmp_path / "bank.xlsx", edit)
        with pytest.raises(TableError) as stopped:
            Federation.from_tables({"bank": path, "shop": clean()["shop"]}, id="customer", label="default")
        assert said in str(stopped.value)

    def test_a_table_within_the_sheet(self, tmp_path):
        """The first column with cells is C, as after a margin."""

        def edit(sheet):
            sheet.insert_cols(1, 2)
            formula(5, [4, 5])(sheet)

        table = read_table(written(tmp_path / "bank.xlsx", edit), party="bank", id="customer", label="default")
        assert any("2 cells of column 'income' are formulas" in note for note in table.notes)
        assert table.columns["income"].null_count() == 2

    def test_prediction(self, tmp_path):
        model = Federation.from_tables(clean(), id="customer", label="default").train("laser", epochs=1)
        path = written(tmp_path / "bank.xlsx", formula(3, EVERY_FIFTH))
        with pytest.warns(AnypartyWarning, match="48 cells of column 'income' are formulas without a stored value"):
            model.predict({"bank": path, "shop": clean()["shop"]})
        with pytest.raises(TableError, match="48 cells of column 'customer' are formulas"):
            model.predict({"bank": written(path, formula(1, EVERY_FIFTH))})

    def test_a_workbook_with_stored_values_has_no_remark(self, tmp_path):
        """Long ids are text, and a feature may have large numbers."""
        path = written(tmp_path / "bank.xlsx", formula(1, [2, 3], "9007199254740993"))
        with pytest.raises(TableError, match="2 rows share an id"):
            read_table(path, party="bank", id="customer", label="default")
        notes = read_table(written(path, formula(2, [2, 3], 2**53)), party="bank", id="customer").notes
        assert notes == ()
