"""Cases 22, 23, 26 and 29: cells are judged by what their column was in training, and by the other cells.

Dates do not replace times, truth values do not replace numbers, numbers in an unusual notation stop, and numbers that
rounding made equal get a remark.
"""

import datetime as dt
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest

from anyparty.api.federation import Federation
from anyparty.errors import AnypartyWarning, TableError
from anyparty.tables.column_types import FEW_LEVELS
from anyparty.tables.table import Table, read_table
from tests.cases.conftest import ROWS, clean

RANDOM = np.random.default_rng(2)
TIMES = pl.Series([dt.datetime(2024, 1, 1 + row % 28, 6 + row % 16, row % 60) for row in range(ROWS)])


def read(cells, kind=None, trained: Table | None = None):
    """Read a column "x" as training does or, if ``trained`` is a table, as prediction does after this training."""
    frame = pd.DataFrame({"id": range(len(cells)), "x": cells}) if isinstance(cells, pd.Series) else pl.DataFrame(
        {"id": range(len(cells)), "x": cells})  # fmt: skip
    if trained is None:
        return read_table(frame, party="bank", id="id", types={"x": kind} if kind else None)
    return read_table(frame, party="bank", id="id", expect=trained.kinds, rules=trained.rules)


class TestCase22TimesInTrainingDatesAtPrediction:
    TEXTS = {
        "dates in text": TIMES.dt.strftime("%Y-%m-%d"),
        "midnight": TIMES.dt.truncate("1d"),
        # further inputs
        "type Date": TIMES.cast(pl.Date),
        "midnight in text": TIMES.dt.strftime("%Y-%m-%d 00:00:00"),
        "one row": TIMES[:1].cast(pl.Date),
        "nanoseconds": TIMES.dt.truncate("1d").cast(pl.Datetime("ns")),
    }

    @pytest.mark.parametrize("name", TEXTS)
    def test_no_times_get_a_remark(self, name):
        for seen in (TIMES, TIMES.dt.strftime("%Y-%m-%dT%H:%M")):
            cells = self.TEXTS[name]
            (note,) = read(cells, trained=read(seen)).notes
            assert (
                f"column 'x' has no time of day in {len(cells)} of {len(cells)} cells, and training had times" in note
            )
            assert "the hour is read as 0" in note

    def test_some_cells_without_times(self):
        days, times = TIMES.dt.strftime("%Y-%m-%d"), TIMES.dt.strftime("%Y-%m-%d %H:%M")
        mixed = pl.Series([days[row] if row % 4 == 0 else times[row] for row in range(ROWS)])
        for table in (read(mixed), read(mixed, trained=read(TIMES))):
            assert any("column 'x' has no time of day in 60 of 240 cells" in note for note in table.notes)

    def test_times_where_training_had_dates(self):
        for seen in (TIMES.cast(pl.Date), TIMES.dt.truncate("1d"), TIMES.dt.strftime("%Y-%m-%d")):
            assert read(TIMES.cast(pl.Date), trained=read(seen)).notes == ()
            (note,) = read(TIMES, trained=read(seen)).notes
            assert "has a time of day in 240 cells, and training had dates only: the times are not used" in note

    def test_times_as_in_training_have_no_remark(self):
        midnight = pl.Series([dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, 8)])
        for cells in (TIMES, midnight, midnight.dt.strftime("%Y-%m-%d %H:%M:%S")):
            assert read(cells, trained=read(TIMES)).notes == ()

    def test_a_model_and_its_predictions(self):
        tables = clean()
        bank = tables["bank"].with_columns(seen=TIMES)
        model = Federation.from_tables(tables | {"bank": bank}, id="customer", label="default").train("laser", epochs=1)
        with pytest.warns(
            AnypartyWarning, match="'seen' has no time of day in 240 of 240 cells, and training had times"
        ):
            model.predict({"bank": bank.with_columns(pl.col("seen").dt.date())})


class TestCase26BooleansAmongNumbers:
    MIXED = {
        "text": pl.Series(["True" if row % 9 == 0 else str(row) for row in range(ROWS)]),
        "objects": pd.Series([True if row % 9 == 0 else float(row) for row in range(ROWS)], dtype=object),
        # further inputs
        "few numbers": pl.Series(["true" if row % 9 == 0 else str(row % 5) for row in range(ROWS)]),
        "whole numbers": pd.Series([False if row % 9 == 0 else row % 5 for row in range(ROWS)], dtype=object),
        "upper case": pl.Series(["FALSE" if row % 50 == 0 else f"{row}.5" for row in range(ROWS)]),
        "both": pl.Series([("True", "False", str(row % 3))[row % 3] for row in range(ROWS)]),
        "mostly truth values": pl.Series(["5" if row % 50 == 0 else str(row % 2 == 0) for row in range(ROWS)]),
        "declared numbers": pl.Series(["True" if row % 9 == 0 else str(row) for row in range(ROWS)]),
    }

    @pytest.mark.parametrize("name", MIXED)
    def test_truth_values_beside_other_numbers_stop(self, name):
        with pytest.raises(TableError, match=r"column 'x' has (numbers, and|cells that are not numbers)") as stopped:
            read(self.MIXED[name], "numeric" if name.startswith("declared") else None)
        assert 'types = {x = "categorical"}' in str(stopped.value)

    def test_beside_0_and_1_they_are_numbers(self):
        for cells in (
            pl.Series([("True", "0", "1", "false")[row % 4] for row in range(ROWS)]),
            pd.Series([(True, 0, 1.0, None)[row % 4] for row in range(ROWS)], dtype=object),
            pl.Series(["TRUE", "FALSE"] * 120),
            pl.Series([True, None] * 120),
        ):
            table = read(cells)
            assert table.kinds == {"x": "numeric"}
            assert set(table.columns["x"].cast(pl.Float64).drop_nulls()) <= {0.0, 1.0}
            for other in (pl.Series([True, False]), pl.Series(["True", "0"]), pl.Series([0, 1]), pl.Series(["false"])):
                assert read(other, trained=table).notes == ()
            (note,) = read(pl.Series([0, 7]), trained=table).notes
            assert "has 1 numbers other than 0 and 1, such as 7, and training had none" in note

    @pytest.mark.parametrize(
        "seen", [pl.Series(range(20, 80)), pl.Series(["20.5", "80"]), pl.Series([0, 1, 2]), pl.Series([0.0, 0.5])]
    )
    def test_prediction_stops_where_training_had_other_numbers(self, seen):
        for cells in (
            pl.Series([True, False]),
            pl.Series(["True", "False"]),
            pl.Series(["1", "true"]),
            pd.Series([True, 30.0], dtype=object),
            pl.Series([None, True]),
            pl.Series(["FALSE"]),
        ):
            with pytest.raises(TableError, match=r"column 'x' has (truth values|cells that are not numbers)"):
                read(cells, trained=read(seen))

    def test_percent_signs_in_training_are_expected(self):
        table = read(pl.Series([f"{row / 10}%" for row in range(ROWS)]))
        for cells in (pl.Series([0.1, 0.2]), pl.Series([10]), pl.Series(["0.1"])):
            with pytest.raises(TableError, match="column 'x' has "):
                read(cells, trained=table)
        assert read(pl.Series(["1%", None]), trained=table).columns["x"].to_list() == [1.0, None]

    @pytest.mark.parametrize(
        "levels",
        [
            ["yes", "no", "1"],
            ["yes", "no", "0", "1"],
            ["Y", "N", "true"],
            ["t", "False", "F"],
            ["on", "off", "1", "?"],
            ["yes", "no", "1", "unknown"],
            ["Yes", "y", "no"],
        ],
    )
    def test_several_words_for_yes_get_a_remark(self, levels):
        cells = pl.Series([levels[row % len(levels)] for row in range(ROWS)])
        expected = "levels that say yes or no in several ways"
        assert any(expected in note for note in read(cells).notes)

    def test_other_levels_get_none(self):
        for levels in (["yes", "no"], ["yes", "no", "maybe"], ["1", "2", "yes"], ["A", "B", "Y", "N"], ["n", "s", "w"]):
            notes = read(pl.Series([levels[row % len(levels)] for row in range(ROWS)])).notes
            assert not any("yes or no" in note for note in notes)

    def test_a_model_and_its_predictions(self):
        tables = clean()
        made = Federation.from_tables(tables, id="customer", label="default")
        model = made.train("laser", epochs=1)
        for wrong in (pl.lit(value=True), pl.lit("True")):
            with pytest.raises(TableError, match="column 'age' has"):
                model.predict({"bank": tables["bank"].with_columns(age=wrong)})


class TestCase29NumbersInOtherNotation:
    NOTATIONS = {
        "hexadecimal": hex,
        "underscores": lambda n: f"{1 + n % 30}_{n:03d}",
        "with an error": lambda n: f"{n} \u00b1 {n % 3}",
        "fractions": lambda n: f"{n}/{1 + n % 9}",
        "hours and minutes": lambda n: f"{n % 24}h{n % 60:02d}",
        "exponent": lambda n: f"{1 + n % 9},{n % 10}E+0{n % 4}",
        # further inputs
        "octal": oct,
        "binary": bin,
        "with an error, as +/-": lambda n: f"{n}.5+/-0.1 kg",
        "with an error, in brackets": lambda n: f"{n}.25({n % 9})",
        "fractions with spaces": lambda n: f"{n} 1/{2 + n % 7}",
        "fractions as a sign": lambda n: f"{n}\u00bd",
        "hours": lambda n: f"{n} h {n % 60} min",
        "minutes": lambda n: f"{n}m{n % 60}s",
        "durations": lambda n: f"PT{n}H{n % 60}M",
        "exponent, as x 10": lambda n: f"{n}.5 x 10^{n % 4}",
        "exponent, as a sign": lambda n: f"{n}.5\u00d710\u207b\u00b2",
        "exponent, as D": lambda n: f"{n}.5D+0{n % 4}",
        "angles": lambda n: f"{n}\u00b0{n % 60}'{n % 60}\"N",
        "ordinal": lambda n: f"{n}{'th' if n % 10 not in {1, 2, 3} else ['st', 'nd', 'rd'][n % 10 - 1]}",
        "approximate": lambda n: f"ca. {n}",
    }

    @pytest.mark.parametrize("name", NOTATIONS)
    def test_many_stop_few_get_a_remark_and_prediction_stops(self, name):
        write = self.NOTATIONS[name]
        with pytest.raises(TableError, match=r"it looks like .* write") as stopped:
            read(pl.Series([write(1 + row % 100) for row in range(ROWS)]))
        assert 'types = {x = "categorical"}' in str(stopped.value)
        few = read(pl.Series([write(1 + row % FEW_LEVELS) for row in range(ROWS)]))
        assert few.kinds == {"x": "categorical"}
        assert any("column 'x' is read as categories, and its cells look like" in note for note in few.notes)
        with pytest.raises(TableError, match="column 'x' has cells that are not numbers"):
            read(pl.Series([write(7)]), trained=read(pl.Series(range(ROWS))))

    @pytest.mark.parametrize(
        "write",
        [
            lambda n: f"A{n}",
            lambda n: f"{n}A",
            lambda n: f"{n:02d}-{n % 7}",
            lambda n: f"v{n}.{n % 3}",
            lambda n: f"{n}_{n % 9}",
        ],
    )
    def test_codes_are_categories(self, write):
        table = read(pl.Series([write(row % 40) for row in range(ROWS)]))
        assert table.kinds == {"x": "categorical"}
        assert table.notes == ()

    def test_labels(self, trial):
        trial.replace("bank", "default", [hex(row) for row in range(ROWS)])
        assert "look like hexadecimal, octal or binary numbers" in trial.align(fails=True)


class TestCase23NumbersThatCollapse:
    def test_numbers_beyond_the_precision_of_floats(self):
        large = [2**53 + row for row in range(ROWS)]
        for cells in (pl.Series(large), pl.Series(list(map(str, large))), pl.Series(large, dtype=pl.UInt64)):
            expected = "240 different numbers of 2^53 or more, which become 121 floating-point numbers"
            assert any(expected in note for note in read(cells).notes)
            assert any(expected in note for note in read(cells, trained=read(pl.Series([1, 2]))).notes)
        assert read(pl.Series([float(2 * number) for number in large])).notes == ()

    def test_numbers_that_were_rounded_before_prediction(self):
        tables = clean()
        exact = tables["bank"].with_columns(age=pl.Series(RANDOM.normal(size=ROWS)))
        model = Federation.from_tables(tables | {"bank": exact}, id="customer", label="default").train(
            "laser", epochs=1
        )
        said = "column 'age' has .* different numbers in 240 cells, and in training most numbers differed: were they"
        for rounded in (exact["age"].round(0), exact["age"] * 0, (exact["age"] / 1e3).cast(pl.Float32).round(3)):
            with pytest.warns(AnypartyWarning, match=said):
                model.predict({"bank": exact.with_columns(age=rounded)})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.predict({"bank": exact})
            model.predict({"bank": exact[:15].with_columns(age=0.1)})  # too few rows to tell
