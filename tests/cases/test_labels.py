"""Cases 24 and 27: -1 among other labels, and features that determine the label."""

import numpy as np
import polars as pl
import pytest

from anyparty.api.federation import Federation
from anyparty.errors import AnypartyWarning, TableError
from tests.cases.conftest import ROWS, clean

RANDOM = np.random.default_rng(1)


def federation(bank, **settings):
    """Return a federation of a changed bank and the clean shop."""
    tables = clean() | {"bank": bank}
    return Federation.from_tables(tables, **{"id": "customer", "label": "default"} | settings)


class TestCase24MinusOneAmongOtherLabels:
    @pytest.mark.parametrize("every", [3, 2])
    @pytest.mark.parametrize(
        ("mark", "others", "kind"),
        [
            ("-1", ["0", "1"], pl.String),
            # further inputs
            ("-1", ["0", "1"], pl.Int64),
            ("-1", ["0", "1"], pl.Float64),
            ("-1", ["0", "1", "2", "3"], pl.Int8),
            ("-1.0", ["1", "2"], pl.String),
            ("-2", ["0", "1"], pl.Int64),
            ("-1", ["a", "b"], pl.String),
            ("-1", ["no", "yes"], pl.String),
        ],
    )
    def test_many_get_a_remark(self, trial, every, mark, others, kind):
        cells = pl.Series([mark if row % every == 0 else others[row // 2 % len(others)] for row in range(ROWS)])
        trial.bank = trial.bank.with_columns(default=cells if kind == pl.String else cells.cast(pl.Float64).cast(kind))
        made, marked = trial.in_python(), f"'{mark.removesuffix('.0')}' in {ROWS // every} of {ROWS} labels"
        with pytest.warns(AnypartyWarning, match=f"{marked} .* may stand for a missing"):
            task = made.task(made.split())
        assert len(task.classes) == len(others) + 1

    def test_few_stop_and_other_classes_are_silent(self, trial):
        trial.mark("bank", "default", "-1")
        with pytest.raises(TableError, match="may stand for a missing label"):
            trial.in_python().predicted()
        for classes in (["-1", "1"], ["-1", "-2", "0", "1"], ["-1", "-2"]):
            trial.replace("bank", "default", [classes[row % len(classes)] for row in range(ROWS)])
            assert set(trial.classes()) == set(classes)

    @pytest.mark.filterwarnings("default::anyparty.errors.AnypartyWarning")
    def test_arrays_and_the_command_line(self, trial):
        y = np.where(np.arange(ROWS) % 3 == 0, -1, np.arange(ROWS) % 2)
        u = RANDOM.normal(size=(ROWS, 2))
        for labels in (y, y.astype(float), y.tolist()):
            with pytest.warns(AnypartyWarning, match="'-1' in 80 of 240 labels"):
                Federation.from_arrays({"a": u}, labels).predicted()
        trial.replace("bank", "default", [str(label) for label in y])
        assert "'-1' in 80 of 240 labels beside '0', '1' may stand for a missing label" in trial.align()
        trial.settings = {"parties": {"bank": {"missing": {"default": ["-1"]}}}}
        assert sum(trial.classes().values()) == 160


class TestCase27AFeatureThatDeterminesTheLabel:
    LABEL = clean()["bank"]["default"].cast(pl.Int64)
    COPIES = {
        "the same": LABEL,
        "other words": LABEL.replace_strict({0: "ok", 1: "bad"}),
        "an amount": LABEL * 1000 + pl.Series(RANDOM.normal(size=ROWS)),
        # further inputs
        "booleans": LABEL == 1,
        "several levels of a class": pl.Series([f"{'AB'[label]}{row % 5}" for row, label in enumerate(LABEL)]),
        "a date that only one class has": pl.select(
            pl.when(LABEL == 1).then(pl.date(2024, 1, 1) + pl.duration(days=pl.Series(range(ROWS))))
        ).to_series(),
        "a number that only one class has": pl.Series([7.0 * row if one else None for row, one in enumerate(LABEL)]),
        "text that only one class has": pl.Series([f"note {row % 40}" if y else None for row, y in enumerate(LABEL)]),
        "a threshold": LABEL * 90 + pl.Series(RANDOM.integers(0, 80, ROWS)),
        "all but two rows": pl.Series([str(1 - one if row in {7, 9} else one) for row, one in enumerate(LABEL)]),
    }  # fmt: skip

    @pytest.mark.parametrize("name", COPIES)
    def test_gets_a_remark(self, name):
        made = federation(clean()["bank"].with_columns(copy=self.COPIES[name]))
        (note,) = [note for note in made.overlap.notes if "agrees with the label" in note]
        rows = "238 of 240" if name == "all but two rows" else "all 240"
        assert f"column 'copy' agrees with the label in {rows} labelled rows: leave it out" in note
        assert 'parties.bank.drop = ["copy"]' in note

    def test_three_classes_and_labels_of_some_rows(self):
        bank = clean()["bank"]
        town = pl.Series([str(row % 3) if row % 4 else None for row in range(ROWS)])
        grade = pl.Series([row % 3 * 10 + row % 7 for row in range(ROWS)])
        for copy in (town.replace({"0": "x"}), grade):
            made = federation(bank.with_columns(default=town, copy=copy))
            assert any("in all 180 labelled rows" in note for note in made.overlap.notes)

    def test_numbers(self):
        bank = clean()["bank"]
        income = bank["income"].cast(pl.Float64)
        for copy in (income * 1000, income.exp(), -income + pl.Series(RANDOM.normal(size=ROWS)) * 1e-3):
            made = federation(bank.with_columns(default=income, copy=copy).drop("income"))
            assert any("'copy' agrees with the label in all 240" in note for note in made.overlap.notes)
        made = federation(bank.with_columns(default=income + pl.Series(RANDOM.normal(size=ROWS))))
        assert not any("agrees" in note for note in made.overlap.notes)

    def test_a_name_in_another_spelling(self):
        made = federation(clean()["bank"].with_columns(pl.Series("Default", RANDOM.normal(size=ROWS))))
        assert any("column 'Default' has the name of the label column 'default' in another spelling" in note
                   for note in made.overlap.notes)  # fmt: skip

    def test_other_columns_and_parties_get_none(self, trial):
        rare = pl.Series(["yes" if row in {3, 50, 90} else "no" for row in range(ROWS)])
        for change in ({"a": pl.Series(RANDOM.normal(size=ROWS))}, {"default": rare, "a": rare}):
            notes = federation(clean()["bank"].with_columns(**change)).overlap.notes
            assert not any("agrees" in note for note in notes)
        trial.shop = trial.shop.with_columns(copy=trial.bank["default"])
        assert "agrees" not in trial.align()
        trial.bank = trial.bank.with_columns(copy=trial.bank["default"])
        assert "column 'copy' agrees with the label in all 240 labelled rows" in trial.align()

    def test_truth_values_among_numbers_are_no_class(self, trial):
        trial.replace("bank", "default", ["True" if row % 4 == 0 else str(2 + row % 3) for row in range(ROWS)])
        assert "mix truth values and numbers" in trial.align(fails=True)
        trial.replace("bank", "default", ["True" if row % 9 == 0 else str(row) for row in range(ROWS)])
        assert "it has numbers except for 'true' (27 cells)" in trial.align(fails=True)
