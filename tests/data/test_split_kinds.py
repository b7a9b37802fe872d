"""The kinds of split: the parts of the active party's rows."""

from contextlib import nullcontext

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyparty.core.seeds import Seeds
from anyparty.errors import AnypartyWarning, TableError
from anyparty.problem.splits import TEST, TRAIN, UNUSED, VALIDATION, ProblemPlan, assign, counts_of
from anyparty.tables.reading_rules import AS_WRITTEN, ReadingRules
from anyparty.tables.table import read_table

SHARES = st.floats(0, 0.49)


def table(label, part_by=None, rules=AS_WRITTEN, **columns):
    n = len(label)
    frame = pl.DataFrame({"id": [f"p{i}" for i in range(n)], "x": np.arange(n) * 1.0, "y": label, **columns})
    return read_table(frame, party="bank", id="id", label="y", part_by=part_by, rules=rules)


def parts(of, seed=0, observed=None, position=None, secret=b"", **plan):
    n = len(of)
    position = np.arange(n) if position is None else position
    observed = np.ones((len(position), 2), dtype=bool) if observed is None else observed
    return assign(of, position, observed, ProblemPlan(**plan), Seeds(seed, secret))


def count(use, *numbers):
    return [int((use == number).sum()) for number in numbers]


class TestStratified:
    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 300), st.integers(0, 60), SHARES, SHARES, st.integers(0, 5))
    def test_each_class_has_its_share_of_each_part(self, many, few, test, validation, seed):
        label = np.array(["a"] * (many + 3) + ["b"] * (few + 3))
        use = parts(table(label), seed, test=test, validation=validation)
        for name in "ab":
            n = int((label == name).sum())
            for number, share in ((TEST, test), (VALIDATION, validation)):
                found = int((use[label == name] == number).sum())
                assert abs(found - share * n) <= 1 or found == 1
                assert bool(found) == (share > 0)
            assert (use[label == name] == TRAIN).any()

    def test_a_class_with_fewer_rows_than_parts(self):
        rare = table(["no"] * 30 + ["yes"] * 2)
        with pytest.raises(TableError, match=r"class 'yes' has 2 labelled rows.*3 parts.*label 1 more"):
            parts(rare)
        assert count(parts(rare, validation=0.0)[30:], TRAIN, TEST) == [1, 1]
        parts(rare, kind="random")

    def test_numbers_have_no_classes(self):
        assert count(parts(table(np.arange(100) + 0.5)), TEST, VALIDATION) == [20, 15]

    def test_the_sets_of_parties_too(self):
        observed = np.ones((200, 2), dtype=bool)
        observed[::5, 1] = False
        label = np.arange(200) // 5 % 2
        use = parts(table(label), observed=observed, parties=True)
        for there in (True, False):
            for name in (0, 1):
                some = (observed[:, 1] == there) & (label == name)
                assert abs((use[some] == TEST).sum() - 0.2 * some.sum()) <= 1

    def test_totals(self):
        tests, validations = counts_of(np.array([3, 3, 94]), 0.5, 0.49)
        assert (tests + validations).tolist() == [2, 2, 93]
        assert tests.min() >= 1
        assert validations.min() >= 1

    def test_the_classes_with_the_largest_remainders_get_one_more_row(self):
        tests, _ = counts_of(np.array([7, 8, 10]), 0.2, 0.0)  # shares of 1.4, 1.6 and 2 rows, of 5 in total
        assert tests.tolist() == [1, 2, 2]

    def test_a_secret_gives_other_parts(self):
        same = table(np.arange(200) % 2)
        assert not np.array_equal(parts(same), parts(same, secret=bytes(32)))
        assert np.array_equal(parts(same, secret=bytes(32)), parts(same, secret=bytes(32)))

    def test_no_row_is_preferred(self):
        """Over 300 seeds, each of 20 rows is a test row about 60 times, sd 7."""
        of = table(np.arange(20) % 2)
        tested = sum(parts(of, seed) == TEST for seed in range(300))
        assert tested.min() > 60 - 28
        assert tested.max() < 60 + 28


class TestMasksAndOrder:
    """Test rows depend on ids, labels and the seed alone."""

    label = np.random.default_rng(0).integers(2, size=200)

    def test_not_on_masks(self):
        of = table(self.label)
        full = parts(of)
        for seed in range(3):
            observed = np.random.default_rng(seed).random((200, 2)) > 0.5
            there = observed.any(axis=1)
            use = parts(of, observed=observed)
            assert np.array_equal(use[there], full[there])
            assert (use[~there] == TRAIN).all()

    def test_not_on_rows_that_others_add_or_on_their_order(self):
        of = table(self.label)
        position = np.full(500, -1)
        position[np.random.default_rng(1).permutation(500)[:200]] = np.arange(200)
        use = parts(of, position=position)
        assert np.array_equal(use[position >= 0][np.argsort(position[position >= 0])], parts(of))
        assert (use[position < 0] == TRAIN).all()

    def test_a_class_that_masks_would_remove_from_a_part(self):
        of = table(["no"] * 40 + ["yes"] * 4)
        full = parts(of)
        observed = np.ones((44, 2), dtype=bool)
        observed[(full == TEST) & (np.arange(44) >= 40)] = False
        assert count(parts(of, observed=observed)[40:], TEST) == [1]


class TestColumns:
    def test_groups_stay_together(self):
        random = np.random.default_rng(0)
        patient, label = random.integers(40, size=300), random.integers(2, size=300)
        label = [None if i % 10 == 0 else int(y) for i, y in enumerate(label)]
        use = parts(table(label, patient=patient, part_by="patient"), kind="group")
        for one in range(40):
            assert len(set(use[patient == one]) - {UNUSED}) <= 1
        labelled = np.arange(300) % 10 > 0
        assert abs((use == TEST).sum() - 0.2 * labelled.sum()) < 15
        assert (use[~labelled] == UNUSED).any()
        assert not ((use == TEST) | (use == VALIDATION))[~labelled].any()

    def test_groups_that_cannot_be_split(self):
        with pytest.raises(TableError, match="of 100 ways to distribute the 2 groups of column 'g'"):
            parts(table([0, 1] * 20, g=["a", "b"] * 20, part_by="g"), kind="group")
        with pytest.raises(TableError, match=r"column 'g': row 2, 4 is empty"):
            parts(table([0, 1] * 2, g=["a", None] * 2, part_by="g"), kind="group")

    @pytest.mark.parametrize("form", ["date", "text", "number"])
    def test_the_latest_rows_are_for_test(self, form):
        days = np.random.default_rng(0).permutation(100)
        date = pl.Series(days).cast(pl.Int32).cast(pl.Date)
        column = {"date": date, "text": date.cast(pl.String), "number": pl.Series(days * 1.5)}[form]
        use = parts(table(np.arange(100) % 2, day=column, part_by="day"), kind="time")
        assert sorted(days[use == TEST]) == list(range(80, 100))
        assert sorted(days[use == VALIDATION]) == list(range(65, 80))

    def test_one_time_is_in_one_part(self):
        use = parts(table(np.arange(20) % 2, t=np.arange(20) // 7, part_by="t"), kind="time", validation=0.0)
        assert all(len(set(use[np.arange(20) // 7 == t])) == 1 for t in range(3))
        expected = r"'t' has cells that are not dates: 'soon' in row 1, 'late' in row 2\. Expected numbers, or dates"
        with pytest.raises(TableError, match=expected):
            parts(table([0, 1], t=["soon", "late"], part_by="t"), kind="time")

    @pytest.mark.parametrize("format_", ["%d.%m.%Y", "%m/%d/%Y", "%d %b %Y", "%Y/%m/%d", "%Y-%m-%dT%H:%M:%SZ"])
    def test_dates_are_read_as_in_features(self, format_):
        days = np.random.default_rng(0).permutation(100)
        date = pl.Series(days + 10).cast(pl.Int32).cast(pl.Date)
        of = table(np.arange(100) % 2, day=date.cast(pl.Datetime).dt.strftime(format_), part_by="day")
        order = {"%d.": "day-first", "%m/": "month-first"}.get(format_[:3])
        said = rf"'day', which splits the rows by time, is read as dates \({order}\), such as "
        with nullcontext() if order is None else pytest.warns(AnypartyWarning, match=said):
            assert sorted(days[parts(of, kind="time") == TEST]) == list(range(80, 100))

    @pytest.mark.parametrize(("order", "tested"), [("day-first", 1), ("month-first", 0), ("%d/%m/%Y", 1)])
    def test_a_doubtful_order_needs_a_setting(self, order, tested):
        day = ["03/04/2024", "02/05/2024", "01/01/2024", "01/02/2024"]
        plan = {"kind": "time", "test": 0.25, "validation": 0.0}
        with pytest.raises(
            TableError, match=r"'day' has dates whose order is not evident.*dates = \{day = \"day-first"
        ):
            parts(table([0, 1, 0, 1], day=day, part_by="day"), **plan)
        use = parts(table([0, 1, 0, 1], day=day, part_by="day", rules=ReadingRules(dates={"day": order})), **plan)
        assert (use == TEST).nonzero()[0].tolist() == [tested]

    def test_a_time_in_every_row(self):
        day, rules = ["2024-01-01", "-", "1900-01-01"], ReadingRules(missing={"day": ("1900-01-01",)})
        with pytest.raises(TableError, match=r"column 'day': row 2, 3 is empty"):
            parts(table([0, 1, 0], day=day, part_by="day", rules=rules), kind="time")
        with pytest.raises(TableError, match=r"column 'day': row 2 is empty"):
            parts(table([0, 1, 0], day=[3, -9, 5], part_by="day", rules=ReadingRules(missing={"day": ("-9",)})),
                  kind="time")  # fmt: skip

    def test_a_column_with_the_parts(self):
        column = ["train", "Test", "validation", "test", "train"]
        use = parts(table([0, 1, 0, None, None], part=column, part_by="part"), kind="file")
        assert use.tolist() == [TRAIN, TEST, VALIDATION, UNUSED, TRAIN]
        with pytest.raises(TableError, match="expected train, validation or test, found 'dev' in row 1"):
            parts(table([0, 1], part=["dev", "test"], part_by="part"), kind="file")
        with pytest.raises(TableError, match="row 2 has a label and no part"):
            parts(table([0, 1], part=["train", None], part_by="part"), kind="file")
