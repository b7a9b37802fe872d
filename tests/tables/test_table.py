import ast
import datetime as dt
import re
import string
import tomllib
from datetime import timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyparty.errors import TableError
from anyparty.tables import cells
from anyparty.tables.table import read_table


def read(columns, **settings):
    """Read a data frame; add ids if it has none."""
    frame = pl.DataFrame(columns)
    if "id" not in frame.columns:
        frame = frame.with_columns(pl.int_range(frame.height).alias("id"))
    return read_table(frame, party="clinic", **{"id": "id"} | settings)


def refuses(sentence: str, columns, **settings):
    with pytest.raises(TableError, match=sentence) as caught:
        read(columns, **settings)
    assert str(caught.value).startswith("party 'clinic', data frame")


class TestIds:
    def test_the_same_id_in_every_notation(self):
        for ids in ([7, 12], [7.0, 12.0], [" 7", "12 "], ["7", "12"], ["7.0", "12.0"]):
            assert read({"id": ids}).ids.to_list() == ["7", "12"], ids

    def test_other_ids_stay(self):
        ids = ["007", "7.5", "7.00", "v7.0", "-3", "x y"]
        assert read({"id": ids}).ids.to_list() == ids
        assert read({"id": [7.5, 3.0]}).ids.to_list() == ["7.5", "3"]

    def test_large_whole_floats_are_not_written_with_an_exponent(self):
        assert read({"id": [9007199254740991.0, 1e15]}).ids.to_list() == ["9007199254740991", "1000000000000000"]

    @given(st.lists(st.integers(-(2**53), 2**53), min_size=1, unique=True))
    def test_whole_numbers_round_trip_as_any_type(self, ids):
        expected = [str(i) for i in ids]
        assert read({"id": pl.Series(ids, dtype=pl.Int64)}).ids.to_list() == expected
        assert read({"id": pl.Series([f" {i}\t" for i in ids])}).ids.to_list() == expected
        if max(map(abs, ids)) < 2**53:
            assert read({"id": pl.Series(ids, dtype=pl.Float64)}).ids.to_list() == expected

    @given(st.lists(st.text(string.ascii_letters + "-_é漢", min_size=1), min_size=1, unique=True))
    def test_text_round_trips(self, ids):
        ids = [i for i in ids if i not in cells.MISSING] or ["x"]
        assert read({"id": ids}).ids.to_list() == ids

    def test_duplicates(self):
        refuses(
            r"id column 'id' must name each row once, but 9 rows share an id .*'7' in rows 1, 3, 4; 'b' in rows 2, 5;",
            {"id": ["7", "b", "7 ", "7.0", "b", "c", "c", "d", "d"]},
        )

    @pytest.mark.parametrize(
        ("empty", "said"),
        [
            (None, ""),
            ("", ""),
            ("  ", ""),
            ("NA", r" \('NA' stands for missing\)"),
            (" nan", r" \('nan' stands for missing\)"),
        ],
    )
    def test_missing_ids(self, empty, said):
        refuses(rf"id column 'id' has no id in rows 2, 4{said}; give", {"id": ["a", empty, "b", empty]})

    def test_nan_id(self):
        refuses(r"has no id in row 2", {"id": [1.0, float("nan")]})

    def test_invisible_characters(self):
        refuses(r"id column 'id' has invisible characters: '2.x00' in row 2; remove them", {"id": ["1", "2\x00"]})

    def test_a_time_of_day_keeps_its_fraction(self):
        times = [dt.time(8, 30), dt.time(8, 30, 0, 500_000)]
        assert read({"id": times, "age": [1, 2]}).ids.to_list() == ["08:30:00", "08:30:00.5"]

    @pytest.mark.parametrize(("dtype", "first"), [(pl.Float16, 2**11 + 2), (pl.Float32, 2**24 + 2)])
    def test_short_floats_too_large_to_be_ids(self, dtype, first):
        refuses(
            r"id column 'id' holds numbers that are too large for Float", {"id": pl.Series([float(first)], dtype=dtype)}
        )

    def test_floats_too_large_to_be_ids(self):
        refuses(
            r"id column 'id' holds numbers that are too large for Float64 .*; read the ids as text", {"id": [2.0**60]}
        )

    def test_ids_of_an_unusable_type(self):
        refuses(r"id column 'id' is of type List\(Int64\); expected text or numbers", {"id": [[1], [2]]})
        refuses("id column 'id' is of type Duration", {"id": [timedelta(days=1), timedelta(days=2)]})


class TestNames:
    def test_a_hint_after_a_question(self):
        frame = pl.DataFrame({"id": [1], "age": [1], "sick": [0]})
        with pytest.raises(TableError, match=r"did you mean 'sick'\? Rows are scored by their labels"):
            read_table(frame, party="clinic", id="id", label="sicc", expect={"age": "numeric"})

    def test_missing_id_column(self):
        refuses(r"there is no column 'ids', named as id; did you mean 'id'\? Rename the column, or name the ids of "
                r"this table alone: parties\.[a-z]+\.id = COLUMN \(in Python: id=\{'[a-z]+': COLUMN, \.\.\.\}\)",
                {"age": [1]}, id="ids")  # fmt: skip

    def test_missing_label_column(self):
        refuses(r"there is no column 'sicc', named as label; did you mean 'sick'\?", {"sick": [1]}, label="sicc")

    def test_drop_and_types_that_do_not_exist(self):
        refuses(r"there is no column 'agee', named as drop; did you mean 'age'\?", {"age": [1]}, drop=["agee"])
        refuses(r"there is no column 'zzz', named as types; known are: age, id", {"age": [1]}, types={"zzz": "numeric"})

    def test_a_column_with_two_roles(self):
        refuses(r"'id' is named both as id and as label", {"age": [1]}, label="id")
        refuses(r"'id' holds ids or labels; drop and types", {"age": [1]}, drop=["id"])
        refuses(r"'y' holds ids or labels; drop and types", {"y": [1]}, label="y", types={"y": "numeric"})

    def test_unknown_kind_and_drop_as_text(self):
        refuses(r"types says 'number' for column 'age'; known are", {"age": [1]}, types={"age": "number"})
        refuses(r"drop takes a list of column names, not the text 'age'", {"age": [1]}, drop="age")

    def test_column_without_a_name(self):
        refuses(r"column '' has no name \(pandas writes its index so\)", {"": [0, 1], "age": [1, 2]})
        assert read({"": [0, 1], "age": [1, 2]}, drop=[""]).columns.columns == ["age"]

    def test_no_rows(self):
        refuses("there are no rows; at least one was expected", {"id": [], "age": []})


@pytest.mark.parametrize("name", ["^.*$", "*", "count", "text"])
class TestNamesThatPolarsInterprets:
    def test_as_a_feature(self, name):
        table = read({"id": ["a", "b"], name: ["007", "8"], "town": ["Ulm", "Bonn"]})
        assert table.columns.columns == [name, "town"]
        assert table.columns[name].to_list() == [7, 8]
        (note,) = table.notes
        assert f"column {name!r} is read as numbers, and 1 of its cells begin with a zero" in note

    def test_as_id_and_label(self, name):
        table = read({name: ["a", "b"], "y": [1, 0]}, id=name, label="y")
        assert table.ids.to_list() == ["a", "b"]
        labelled = read({"age": range(20), name: ["None"] * 10 + ["yes"] * 10}, label=name)
        assert "10 of 20 cells of label column" in labelled.notes[0]

    def test_as_a_column_with_marks(self, name):
        marked = [*map(str, range(30)), *["x"] * 8]
        refuses(rf"column '{re.escape(name)}' has numbers except for 'x' \(8 cells\)", {name: marked})


class TestLabels:
    def test_a_class_called_none_is_missing_and_noted(self):
        table = read({"y": ["yes"] * 8 + ["None", " null ", "None", "", None]}, label="y")
        assert table.label.null_count() == 5
        (note,) = table.notes
        said = "party 'clinic', data frame: 3 of 13 cells of label column 'y' are 'None' (2), 'null' (1), which stands"
        assert note.startswith(said)
        assert note.endswith("If it is a class, list all classes, federation.classes = [...]")

    @pytest.mark.parametrize(("marked", "noted"), [(0, False), (1, True)])
    def test_every_mark_is_noted(self, marked, noted):
        cells_of = ["a"] * (100 - marked) + ["NA"] * marked + [""] * 50
        assert bool(read({"y": cells_of}, label="y").notes) == noted
        assert bool(read({"y": ["1.5"] * 5000 + ["?"] * marked}, label="y").notes) == noted

    def test_classes_that_differ_in_case_are_noted(self):
        (note,) = read({"y": ["Yes", "no", "yes "], "size": [1, 2, 3]}, label="y").notes
        assert "spellings of one class are read as one: 'Yes' (1), 'yes ' (1) as 'Yes'" in note

    def test_other_types_of_features_and_labels_are_not_noted(self):
        table = read({"y": [1.0, float("nan")], "town": ["NA", "Ulm"], "size": [1, 2]}, label="y")
        assert table.notes == ()


def test_all_unusable_columns_are_reported_at_once():
    rows = 60
    dates = [f"24-01-{day % 28 + 1:02d}" for day in range(rows)]
    with pytest.raises(TableError) as refused:
        read({"born": dates, "size": range(rows), "code": [*map(str, range(45)), *["x"] * 15]})
    born, code = str(refused.value).splitlines()
    assert "'born'" in born
    assert "looks like dates" in born
    assert "column 'code' has numbers except" in code


class TestRowsWithoutCells:
    def test_are_noted(self):
        (note,) = read({"y": [1, 0, 1], "town": ["n/a", "Ulm", ""], "size": [None, 2, None]}, label="y").notes
        assert "2 of 3 rows are empty except for the id and the label: there the party counts as absent" in note

    def test_none_are_without_columns(self):
        assert read({"y": [1, 0, 1]}, label="y").notes == ()


class TestColumns:
    def test_kinds(self):
        table = read(
            {
                "whole": [1, None],
                "real": [0.5, float("nan")],
                "truth": [True, None],
                "number text": [" 1.5", "?"],
                "truth text": ["TRUE", "false"],
                "town": [" Ulm ", "N/A"],
                "category": pl.Series(["1", "2"], dtype=pl.Categorical),
                "empty": [None, None],
            }
        )
        assert table.columns.drop("category").rows() == [
            (1, 0.5, True, 1.5, 1.0, "Ulm", None),
            (None, None, None, None, 0.0, None, None),
        ]
        assert [name for name, kind in table.kinds.items() if kind == "categorical"] == ["town", "category"]
        assert len(table) == 2

    def test_labels_only(self):
        table = read({"y": [1, None]}, label="y")
        assert table.columns.width == 0
        assert table.kinds == {}
        assert len(table) == 2
        assert table.label.to_list() == [1, None]

    def test_drop_and_types(self):
        table = read({"zip": ["01234", "99999"], "code": [1.0, 2.5], "note": ["x", "y"]}, drop=["note"])
        assert table.kinds == {"zip": "numeric", "code": "numeric"}
        table = read(
            {"zip": ["01234", "99999"], "code": [1.0, 2.5]}, types={"zip": "categorical", "code": "categorical"}
        )
        assert table.columns.rows() == [("01234", "1"), ("99999", "2.5")]

    def test_a_cell_that_is_no_number_among_many_numbers(self):
        refuses(
            r"column 'age' has cells that are not numbers: 'old' in row 3\. Nearly all others are: correct them.* or "
            r'read the column as categories: parties\.clinic\.types = \{age = "categorical"\}',
            {"age": ["1", "2", "old", None, *map(str, range(20))]},
        )

    def test_below_nine_in_ten_it_is_a_category(self):
        assert read({"grade": [*map(str, range(8)), "A", "B"]}).kinds == {"grade": "categorical"}

    @pytest.mark.parametrize("marker", ["NULL", "n/a", "#N/A", "<NA>", "NaT"])
    def test_numbers_beside_a_marker_of_missing_are_numbers(self, marker):
        table = read({"sum": [marker if i % 7 == 0 else str(i) for i in range(1000)]})
        assert table.kinds == {"sum": "numeric"}
        assert table.columns["sum"].null_count() == 143

    def test_many_numbers_beside_one_or_two_texts_are_no_category(self):
        numbers = [str(i % 200) for i in range(857)]
        for texts, said in (
            (
                ["p"] * 143,
                r"has numbers except for 'p' \(143 cells\), 'p' in row .*: leave these cells empty, or read the column",
            ),
            (
                ["p"] * 120 + ["none"],
                r"has numbers except for 'p' \(120 cells\), 'none' \(1 cell\), 'p' in row .*: leave these",
            ),
        ):
            refuses(rf"column 'sum' {said}", {"sum": numbers + texts})
            assert read({"sum": numbers + texts}, types={"sum": "categorical"}).kinds == {"sum": "categorical"}

    @pytest.mark.parametrize("texts", [["p", "n.d.", "unk"], ["p"] * 5 + ["n.d.", "unk", "k.A.", "x"]])
    def test_up_to_five_texts_beside_mostly_numbers_are_no_category(self, texts):
        ages = [str(20 + i % 40) for i in range(850)]
        refuses(
            r"column 'age' has numbers except for .*'p' \(\d+ cells\).*: leave these",
            {"age": ages + texts * (150 // len(texts))},
        )

    @pytest.mark.parametrize(
        "codes",
        [
            [*map(str, range(40))] * 4 + [f"S{i}" for i in range(6)] * 5,  # more texts
            [*map(str, range(20))] * 8 + list("ABC") * 9,  # few numbers
            [*map(str, range(40))] * 2 + list("ABC") * 9,  # many cells
        ],
    )
    def test_codes_with_more_texts_are_a_category(self, codes):
        assert read({"code": codes}).kinds == {"code": "categorical"}

    @pytest.mark.parametrize("texts", [["A"], ["A", "B"], list("ABC")])
    def test_codes_are_a_category(self, texts):
        codes = [str(i) for i in range(1, 10 if len(texts) < 3 else 31)]
        assert read({"code": (codes + texts * 5) * 9}).kinds == {"code": "categorical"}

    def test_declared_numeric(self):
        refuses(
            r"column 'age' has cells that are not numbers: 'a' in row 1, 'b' in row 2, 'c' in row 3, 'd' in row 4",
            {"age": ["a", "b", "c", "d", "5"]},
            types={"age": "numeric"},
        )

    @pytest.mark.parametrize("cells_of", [[1.0, float("-inf")], ["1", "-inf"], [1.0, 1e39]])
    def test_infinity(self, cells_of):
        refuses(r"column 'age' has numbers that are infinite or too large .*'.*' in row 2; correct", {"age": cells_of})

    @pytest.mark.parametrize(
        ("cells_of", "kind"),
        [([dt.timedelta(1)], r"Duration.*"), ([dt.time(1)], "Time"), ([[1, 2]], r"List\(Int64\)"), ([b"x"], "Binary")],
    )
    @pytest.mark.parametrize("types", [None, {"day": "categorical"}])
    def test_unsupported_type(self, cells_of, kind, types):
        refuses(
            rf"column 'day' is of type {kind}; expected numbers, .*: convert it first, or leave it out: parties",
            {"day": cells_of},
            types=types,
        )
        assert read({"day": cells_of}, drop=["day"]).columns.width == 0

    @pytest.mark.parametrize("rows", [51, 300, 1001])
    def test_identifiers_and_free_text(self, rows):
        note = [f"note {i}" for i in range(rows)]
        refuses(
            rf"column 'note' is text with {rows} different values in {rows} rows, such as 'note 0', 'note 1': it looks "
            r"like an identifier or free text, and is left out; .*\n.* no other feature column remains",
            {"note": note},
        )
        table = read({"note": note, "size": range(rows)})
        assert table.kinds == {"size": "numeric"}
        assert (
            "an identifier or free text, and is left out; to keep it, write parties.clinic.types = " in table.notes[0]
        )
        refuses(r"is text with \d+ different values", {"note": [*note, None, *note[:-1]]})
        assert read({"note": note}, drop=["note"]).kinds == {}
        assert read({"note": note}, types={"note": "categorical"}).kinds == {"note": "categorical"}
        assert read({"note": note * 2, "id": range(2 * rows)}).kinds == {"note": "categorical"}

    def test_few_values_are_a_category_however_few_the_rows(self):
        assert read({"town": [f"town {i}" for i in range(50)]}).kinds == {"town": "categorical"}
        assert read({"answers": ["1,2", "2,3"] * 10, "band": ["<18", ">65"] * 10}).kinds == {
            "answers": "categorical",
            "band": "categorical",
        }
        assert read({"rate": ["5%", "10%", "20%"] * 90}).kinds == {"rate": "numeric"}

    @pytest.mark.parametrize("code", ["{}A", "E11.{}", "D-{:05}", "1.{}.0", "10.0.0.{}", "030 {}", "{}:1", "{}-9"])
    def test_codes_with_numbers_are_a_category(self, code):
        assert read({"code": [code.format(i) for i in range(30)] * 9}).kinds == {"code": "categorical"}

    @pytest.mark.parametrize(
        "levels",
        [
            [f"{i}{letter}" for i in range(30) for letter in "AB"],
            [f"{i}{letter}" for i in range(30) for letter in ["", "", "", "a"]],  # house numbers
            [f"{i} rooms" for i in range(1, 21)],
            [f"{10_115 + i} {town}" for i in range(30) for town in ("Berlin", "Bonn")],
            [f"{year} Q{quarter}" for year in range(1990, 2020) for quarter in range(1, 5)],
            [f"{i}-{i + 4} years" for i in range(0, 150, 5)],
            [f"({i})" for i in range(20)],
        ],
    )
    def test_levels_with_numbers_are_a_category(self, levels):
        assert read({"level": levels * 9}).kinds == {"level": "categorical"}

    @pytest.mark.parametrize(
        ("cells_of", "said"),
        [
            (
                [f"0,{i:03d}" for i in range(30)] + ["1.5"] * 9,
                r"numbers with decimal commas; write them with a decimal p",
            ),
            ([f"{i}.5" for i in range(30)] + ["<0.1"] * 9, r"has numbers, and \d+ limits or ranges: '<0.1' in row 31"),
            (
                [f"12/{i}/99" for i in range(1, 31)],
                r"it looks like dates; write parties.clinic.dates = {x = \"%m/%d/%y\"}",
            ),
            ([f"{i}kg" for i in range(30)] + [f"{i} g" for i in range(30)], r"it looks like numbers with a unit"),
            ([f"{i} years" for i in range(30)], r"it looks like numbers with a unit"),
            (
                [f"{i} mmHg" for i in range(30)] + ["high", "low"],
                r"'0 mmHg' in row 1, '1 mmHg' in row 2, .* with a unit; write the n",
            ),
            ([f"{i}mg/{d}" for i in range(30) for d in ("dL", "dl")], r"it looks like numbers with a unit"),
            ([f"{i}.5 mL/min/1.73 m²" for i in range(30)], r"it looks like numbers with a unit"),
            ([f"{i} rooms" for i in range(21)], r"it looks like numbers with a unit"),
            ([f"{i}.5A" for i in range(30)], r"it looks like numbers with a unit"),
            ([f"{i}k" for i in range(30)], r"it looks like numbers with a unit"),
            ([f"{i}.1k" for i in range(30)] + [f"{i}M" for i in range(9)], r"it looks like numbers with a unit"),
            ([f"\u2212{i} °C" for i in range(30)], r"it looks like numbers with a unit"),
            ([f"${i}" for i in range(30)] + [f"($\t{i})" for i in range(9)], r"it looks like numbers with a unit"),
            ([f"({i})" for i in range(9)] + [f"{i}" for i in range(30)], r"numbers in brackets; write .* a minus sign"),
            ([f"{i} days 00:00:00" for i in range(30)], r"durations; write a number instead, such as days, leave"),
            ([f"-{i} days +04:{i}:07.250000" for i in range(10, 40)], r"it looks like durations"),
            ([f"02:{i:02d}" for i in range(30)], r"it looks like times; write a number instead, such as minutes"),
            ([f"{i}:30:07 pm" for i in range(30)], r"it looks like times"),
        ],
    )
    def test_text_that_is_no_category_though_its_values_recur(self, cells_of, said):
        refuses(said, {"x": cells_of})
        refuses(said, {"x": cells_of * 9})
        assert read({"x": cells_of}, types={"x": "categorical"}).kinds == {"x": "categorical"}


def test_few_values_with_decimal_commas_are_told_of():
    cells = {"dose": ["2,3", "5,7", "2,3"], "town": ["Ulm", "Bonn", "Ulm"], "size": ["1.5", "2", None]}
    (said,) = read(cells).notes
    assert said == ("party 'clinic', data frame: column 'dose' is read as categories, and its cells look like numbers "
                    "with decimal commas, such as '2,3': write them with a decimal point and no mark between "
                    "thousands, or keep them: parties.clinic.types = {dose = \"categorical\"} (in Python: "
                    "types={'clinic': {'dose': 'categorical'}})")  # fmt: skip
    assert read(cells, types={"dose": "categorical"}).notes == ()
    assert read(cells | {"dose": pl.Series(cells["dose"], dtype=pl.Categorical)}).notes == ()


@pytest.mark.parametrize(
    ("cells_of", "said"),
    [
        (["10 mg", "20 mg", "10 mg"], "numbers with a unit, such as '10 mg': write the numbers alone, all in the"),
        (["5/1/2024", "5/2/2024"], "dates, such as '5/1/2024': write parties.clinic.dates = {x = \"day-first\"}"),
        (["08:30", "17:00"], "times, such as '08:30': write a number instead, such as minutes, or keep"),
        (["<5", "7", "<5"], "numbers that are known as limits, such as '<5': write a number for each limit, or"),
        (["1 200", "1 500"], "numbers with marks between thousands, such as '1 200': write them without these marks"),
    ],
)  # fmt: skip
def test_so_are_few_quantities_dates_and_times(cells_of, said):
    (note,) = read({"x": cells_of}).notes
    assert f"column 'x' is read as categories, and its cells look like {said}" in note
    assert read({"x": cells_of}, types={"x": "categorical"}).notes == ()


@pytest.mark.parametrize(
    "cells_of", [["7A", "7B"], ["18-25", "26-40"], ["S", "M"], ["yes", "no"], ["I", "II"], ["1a", "2"]]
)
def test_of_codes_and_names_nothing_is_said(cells_of):
    assert read({"x": cells_of}).notes == ()


class TestExpect:
    """Reading a table for a model that was trained on certain columns."""

    def test_others_are_ignored_and_kinds_are_the_models(self):
        frame = {"note": [[1], [2]], "zip": ["01", "02"], "day": [dt.date(2020, 1, 1)] * 2, "age": [None, None]}
        table = read(frame, expect={"age": "numeric", "zip": "categorical"})
        assert table.columns.rows() == [(None, "01"), (None, "02")]
        assert table.kinds == {"age": "numeric", "zip": "categorical"}

    def test_missing_column(self):
        refuses(
            r"the model was trained on 'age', which the table does not have; did you mean 'agee'\? Add the column",
            {"agee": [1]},
            expect={"age": "numeric"},
        )

    @pytest.mark.parametrize("cells_of", [["x", "y"], ["1", "x"], pl.Series(["x", "y"], dtype=pl.Categorical)])
    def test_text_where_numbers_were(self, cells_of):
        with pytest.raises(TableError) as caught:
            read({"age": cells_of}, expect={"age": "numeric"})
        said = str(caught.value)
        assert "column 'age' has cells that are not numbers: 'x' in row" in said
        assert "The model was trained on numbers there: correct them, or leave them empty" in said
        assert "types" not in said

    def test_a_number_where_categories_were(self):
        assert read({"zip": [7, 8]}, expect={"zip": "categorical"}).columns["zip"].to_list() == ["7", "8"]


BASE = {"id": ["a", "b"], "age": [1.5, None], "town": ["xy", "z"], "y": ["0", None]}


class TestFingerprint:
    def of(self, **changes):
        return read(BASE | changes, label="y").fingerprint

    @pytest.mark.parametrize(
        "changes",
        [
            {"id": ["a", "c"]},
            {"age": [1.5, 0.0]},
            {"age": [None, 1.5]},
            {"town": ["x", "yz"]},
            {"town": ["xy", None]},
            {"y": ["0", "1"]},
            {"more": [1, 2]},
        ],
    )
    def test_changes_with_any_cell(self, changes):
        assert self.of(**changes) != self.of()

    def test_tells_whole_numbers_that_floats_do_not(self):
        assert self.of(y=[2**53, 1]) != self.of(y=[2**53 + 1, 1])
        assert self.of(y=[-(2**53) - 1, 1]) != self.of(y=[-(2**53) - 2, 1])

    @pytest.mark.parametrize("dtype", [pl.Categorical, pl.Enum(["0", "1"])])
    def test_of_labels_that_are_categories(self, dtype):
        labels = [self.of(y=pl.Series(["0", last], dtype=dtype)) for last in ("1", None, "0")]
        assert len(set(labels)) == 3
        assert labels[1] == self.of()

    def test_changes_with_a_name_and_an_order(self):
        table = read(BASE, label="y")
        renamed = read({"tOwn" if k == "town" else k: v for k, v in BASE.items()}, label="y")
        assert renamed.fingerprint != table.fingerprint
        assert read(pl.DataFrame(BASE).reverse(), label="y").fingerprint != table.fingerprint

    def test_is_stable(self):
        assert self.of() == "f6884ea8378142869bc26a2dfbe034a6f37f77a479036771cac0b508241b697c"

    def test_missing_text_is_not_empty_text(self):
        assert self.of(town=["xyz", None]) != self.of(town=[None, "xyz"])


def test_numbers_that_begin_with_a_zero_may_be_codes(tmp_path):
    path = tmp_path / "shop.csv"
    path.write_text("id,zip,month,n\na,01067,01,0\nb,80331,12,0.5\nc,04109,02,00\n", encoding="utf-8")
    table = read_table(path, party="shop", id="id")
    assert table.kinds == dict.fromkeys(("zip", "month", "n"), "numeric")
    (note,) = table.notes
    assert "column 'zip' is read as numbers, and 2 of its cells begin with a zero, such as '01067': if these" in note
    line = re.search(
        r"write parties\.shop\.types = (.*) \(in Python: types=(.*)\); the same applies to 'month', 'n'$", note
    )
    assert line
    types = tomllib.loads(f"types = {line[1]}")["types"]
    assert ast.literal_eval(line[2]) == {"shop": types}
    (less,) = read_table(path, party="shop", id="id", types=types).notes
    assert "column 'month'" in less
    assert read_table(path, party="shop", id="id", drop=["zip", "month", "n"]).notes == ()
    declared = read_table(path, party="shop", id="id", types=dict.fromkeys(("zip", "month", "n"), "categorical"))
    assert declared.notes == ()
    assert declared.columns["zip"].to_list() == ["01067", "80331", "04109"]
    assert read_table(path, party="shop", id="id", types=dict.fromkeys(("zip", "month", "n"), "numeric")).notes == ()
