import copy
import json
import re
import warnings

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

from anyparty.errors import AnypartyWarning, ModelError, TableError
from anyparty.tables.preprocessing import Prepare
from anyparty.tables.table import read_table


def table_of(columns, **options):
    frame = pl.DataFrame(columns, strict=False)
    return read_table(frame.with_columns(pl.int_range(frame.height).alias("id")), party="clinic", id="id", **options)


def rows(*which):
    return np.array(which, dtype=np.int64)


MIXED = {"age": [1.0, 3.0, None, 100.0], "town": ["Ulm", None, "Ulm", "Bonn"], "sick": [True, False, False, True]}


class TestFit:
    def test_by_hand(self):
        """Training rows 0, 1, 2: ages 1, 3 and none, so mean 2 and scale 1; sick 1, 0, 0."""
        prepare = Prepare.fit(table_of(MIXED), rows(0, 1, 2))
        assert prepare.names == ("age", "sick", "town=Ulm", "town=(missing)")
        assert prepare.width == 4
        assert prepare.numeric.fill == pytest.approx((2, 1 / 3))
        assert prepare.numeric.mean == pytest.approx((2, 1 / 3))
        assert prepare.numeric.scale == pytest.approx((1, np.sqrt(2) / 3))
        out = prepare.apply(table_of(MIXED), new=False)
        assert out.dtype == np.float32
        assert out[:, 0] == pytest.approx([-1, 1, 0, 98])
        assert out[:, 2:].tolist() == [[1, 0], [0, 1], [1, 0], [0, 0]]  # Bonn was never seen

    def test_rows_outside_training_teach_nothing(self):
        other = {name: [*values[:3], None if name == "town" else 7] for name, values in MIXED.items()}
        assert Prepare.fit(table_of(MIXED), rows(0, 1, 2)) == Prepare.fit(table_of(other), rows(0, 1, 2))
        assert Prepare.fit(table_of(MIXED), rows(0, 1, 3)) != Prepare.fit(table_of(other), rows(0, 1, 3))

    @pytest.mark.parametrize("impute", ["mean", "median"])
    @pytest.mark.parametrize("empty", [0.0, 0.3, 0.99])
    def test_a_column_is_measured_by_its_known_cells(self, empty, impute):
        random = np.random.default_rng(0)
        x = np.where(random.random(4000) < empty, np.nan, random.exponential(50, 4000))
        table = table_of({"x": x, "y": random.normal(size=4000)})
        out = Prepare.fit(table, np.arange(4000), impute=impute).apply(table)[:, 0]
        assert out[~np.isnan(x)] == pytest.approx((x - np.nanmean(x))[~np.isnan(x)] / np.nanstd(x), abs=1e-5)
        if empty and impute == "mean":
            assert (out[np.isnan(x)] == 0).all()

    @pytest.mark.parametrize("impute", ["mean", "median"])
    def test_numbers_are_those_of_scikit_learn_bit_for_bit(self, impute):
        random = np.random.default_rng(1)
        x = random.exponential([1e-3, 1, 1e6], (500, 3)).astype(np.float64)
        x[random.random(x.shape) < 0.3] = np.nan
        imputer, scaler = SimpleImputer(strategy=impute).fit(x[:300]), StandardScaler().fit(x[:300])
        table = table_of({f"c{j}": x[:, j] for j in range(3)})
        out = Prepare.fit(table, np.arange(300), impute=impute).apply(table, new=False)
        assert out.tobytes() == scaler.transform(imputer.transform(x)).astype(np.float32).tobytes()

    def test_median_and_raw(self):
        table = table_of({"x": [1.0, 2.0, 30.0, None], "n": [5, 6, 7, 8]})
        prepare = Prepare.fit(table, rows(0, 1, 2, 3), scale=False, impute="median")
        assert prepare.apply(table).tolist() == [[1, 5], [2, 6], [30, 7], [2, 8]]

    def test_many_columns_are_fitted_a_few_at_a_time(self, monkeypatch):
        table = table_of({f"c{j}": np.random.default_rng(j).normal(size=9) for j in range(7)})
        whole = Prepare.fit(table, np.arange(9))
        expected = whole.apply(table)
        monkeypatch.setattr("anyparty.tables.preprocessing.CHUNK", 20)
        monkeypatch.setattr("anyparty.tables.preprocessing.CHUNK", 20)
        assert Prepare.fit(table, np.arange(9)) == whole
        assert (whole.apply(table) == expected).all()

    def test_constant_columns_become_zeros(self):
        table = table_of({"x": [3.3, 3.3, None], "big": [1e30, 1e30, 1e30]})
        assert (Prepare.fit(table, rows(0, 1, 2)).apply(table) == 0).all()

    def test_a_column_that_was_constant_in_training_is_zeros_later_and_reported(self):
        """Training has no scale for such a column."""
        table = table_of({"x": [1.0, 2.0, 3.0, 4.0], "fine": [0, 0, None, 30000], "fee": [2.5, 2.5, 2.5, 7.0]})
        prepare = Prepare.fit(table, rows(0, 1, 2))
        said = ("party 'clinic', data frame: column 'fine' was 0 in all training rows and is another number in 1 here: "
                "the model could not learn from it and treats it as 0; the same applies to 'fee'")  # fmt: skip
        for each in (prepare, Prepare.from_json(prepare.to_json())):
            with pytest.warns(AnypartyWarning, match=said):
                assert (each.apply(table)[:, 1:] == 0).all()
        assert prepare.numeric.constant == ("fine", "fee")
        unscaled = Prepare.fit(table, rows(0, 1, 2), scale=False)
        assert unscaled.apply(table)[:, 1].tolist() == [0, 0, 0, 30000]

    def test_no_columns(self):
        table = table_of({"y": [1, 2]}, label="y")
        assert Prepare.fit(table, rows(0, 1)).apply(table).shape == (2, 0)

    @pytest.mark.parametrize("empty", [[None, None, 1.0], [None, "", "x"]])
    def test_column_that_is_empty_in_training(self, empty):
        said = "'clinic', data frame: 'age' is empty in all 2 training rows"
        table = table_of({"age": empty, "other": [1, 2, 3]})
        with pytest.warns(AnypartyWarning, match=f"{said}, and is left out"):
            made = Prepare.fit(table, rows(0, 1))
        assert made.names == ("other",)
        assert made.apply(table).shape == (3, 1)
        with pytest.raises(TableError, match=f"{said}, and there is no other column: leave the party out"):
            Prepare.fit(table_of({"age": empty}), rows(0, 1))

    def test_no_training_rows(self):
        with pytest.raises(TableError, match="none of its rows is for training"):
            Prepare.fit(table_of(MIXED), rows())

    def test_rare_levels_are_grouped(self):
        """20,000 categories give 256 outputs; new categories have the output of the rare ones."""
        towns = [f"town {i}" for i in range(20_000)] * 2 + ["Ulm"] * 30 + [None]
        table = table_of({"town": towns})
        said = r"column 'town' has 20,001 categories .*; the 19,746 rarest, in 39,492 of 40,031 rows, are one category"
        with pytest.warns(AnypartyWarning, match=said):
            made = Prepare.fit(table, np.arange(40_031))
        assert made.width == 257
        new = table_of({"town": ["Ulm", "unheard of", None]})
        assert [made.names[k] for k in made.apply(new).argmax(axis=1)] == ["town=Ulm", "town=(rare)", "town=(missing)"]
        assert Prepare.from_json(made.to_json()) == made


@pytest.mark.parametrize("name", ["^.*$", "*", "count", "text"])
def test_column_names_are_taken_literally(name):
    """Polars reads ``^.*$`` as a pattern, and calls its own column of frequencies "count"."""
    numbers = [1.0, None, 1.0, 5.0]
    plain = table_of({"a": ["x", "y", None, "y"], "age": [*map(float, range(4))], "b": numbers})
    named = table_of({"a": ["x", "y", None, "y"], "age": [*map(float, range(4))], name: numbers})
    assert named.columns.columns == ["a", "age", name]
    prepare = Prepare.fit(named, rows(0, 1, 2))
    assert prepare.numeric.columns == ("age", name)
    assert prepare.numeric.constant == (name,)
    with pytest.warns(AnypartyWarning, match="column 'b' was 1 in all training rows"):
        expected = Prepare.fit(plain, rows(0, 1, 2)).features(plain)
    with pytest.warns(AnypartyWarning, match=rf"column {re.escape(repr(name))} was 1 in all training rows"):
        found = prepare.features(named)
    assert np.array_equal(found.x, expected.x)
    assert np.array_equal(found.gaps, expected.gaps)
    with pytest.warns(AnypartyWarning, match="most numbers of column 'age'"):
        prepare.apply(table_of({"a": ["x"], "age": [1e6], name: [1.0]}))


class TestFeatures:
    def test_numbers_that_stand_for_an_empty_cell(self):
        """Gaps mark imputed numbers only: missing cells of a category are a level. Columns are matched by name."""
        table = table_of({"age": [1.0, None, 3.0], "town": ["Ulm", None, "Ulm"], "sick": [None, 0, 1]})
        found = Prepare.fit(table, rows(0, 1, 2)).features(
            table_of({"sick": [1, None], "town": [None, "Ulm"], "age": [None, 2.0]})
        )
        assert found.x.shape == found.gaps.shape == (2, 4)
        assert found.gaps.tolist() == [[True, False, False, False], [False, True, False, False]]

    def test_without_any(self):
        table = table_of(MIXED | {"age": [1.0, 2.0, 3.0, 4.0]})
        prepare = Prepare.fit(table, rows(0, 1, 2))
        found = prepare.features(table, new=False)
        assert found.gaps is None
        assert (found.x == prepare.apply(table, new=False)).all()


class TestApply:
    PREPARE = Prepare.fit(table_of(MIXED), rows(0, 1, 2, 3))

    def test_columns_are_matched_by_name(self):
        shuffled = table_of({"extra": ["x"] * 4, **dict(reversed(MIXED.items()))})
        assert (self.PREPARE.apply(shuffled) == self.PREPARE.apply(table_of(MIXED))).all()

    def test_rows_do_not_depend_on_each_other(self):
        whole = self.PREPARE.apply(table_of(MIXED))
        for i in range(4):
            one = table_of(
                {name: values[i : i + 1] for name, values in MIXED.items()},
                types=dict.fromkeys(["town"], "categorical"),
            )
            assert (self.PREPARE.apply(one) == whole[i]).all()

    def test_kinds_are_what_read_table_expects(self):
        assert self.PREPARE.kinds == {"age": "numeric", "sick": "numeric", "town": "categorical"}
        again = table_of({**MIXED, "note": [[1]] * 4}, expect=self.PREPARE.kinds)
        assert (self.PREPARE.apply(again) == self.PREPARE.apply(table_of(MIXED))).all()

    def test_missing_column(self):
        table = table_of({"agee": [1], "town": ["Ulm"], "sick": [True]})
        with pytest.raises(
            TableError, match=r"'clinic', data frame: .* trained on 'age', .* did you mean 'agee'\? Add"
        ):
            self.PREPARE.apply(table)

    def test_text_where_numbers_were(self):
        with pytest.raises(
            TableError, match=r"column 'age' holds text, such as 'old' in row 1, 'new' in row 2, where numbers were"
        ):
            self.PREPARE.apply(table_of({"age": ["old", "new"], "town": ["Ulm", "x"], "sick": [1, 0]}))

    def test_numbers_where_categories_were_are_their_names(self):
        prepare = Prepare.fit(table_of({"code": ["1", "b"]}, types={"code": "categorical"}), rows(0, 1))
        assert prepare.apply(table_of({"code": [1.0, 2.0]}), new=False).tolist() == [[1, 0], [0, 0]]

    def test_a_number_that_no_float32_holds(self):
        table = table_of({"x": [0.0, 1e-30]})
        with pytest.raises(TableError, match="column 'x' has a number too far from those of training"):
            Prepare.fit(table, rows(0, 1)).apply(table_of({"x": [1e30]}))


class TestJson:
    @settings(max_examples=25, deadline=None)
    @given(
        numbers=hnp.arrays(np.float64, st.tuples(st.integers(2, 8), st.just(3)), elements=st.floats(-1e6, 1e6)),
        towns=st.lists(st.none() | st.text(max_size=3), min_size=8, max_size=8),
        scale=st.booleans(),
    )
    def test_round_trip_gives_the_same_bits(self, numbers, towns, scale):
        n = len(numbers)
        columns = {f"c{j}": numbers[:, j] for j in range(3)} | {"town": ["x", *towns[1:n]]}
        table = table_of(columns, types={"town": "categorical"})
        prepare = Prepare.fit(table, np.arange(n), scale=scale)
        again = Prepare.from_json(json.loads(json.dumps(prepare.to_json())))
        assert again == prepare
        assert again.apply(table).tobytes() == prepare.apply(table).tobytes()
        assert again == prepare  # values cached by apply do not count

    @pytest.mark.parametrize(
        ("place", "value", "sentence"),
        [
            (["format"], "anyparty.prepare.9", r"format: Input should be 'anyparty\.prepare\.1'"),
            (["party"], 3, "party: Input should be a valid string"),
            (["class"], "os.system", "class: Extra inputs are not permitted"),
            (["numeric", "fill"], [1.0], "numeric: .* one value for each numeric column"),
            (["numeric", "fill", 0], "1.0", r"numeric\.fill\.0: Input should be a valid number"),
            (["numeric", "mean", 0], float("nan"), r"numeric\.mean\.0: Input should be a finite number"),
            (["numeric", "mean"], None, "numeric: .* one value for each numeric column"),
            (["numeric", "scale", 0], 0.0, r"numeric\.scale\.0: Input should be greater than 0"),
            (["categorical", "levels", 0], [], r"categorical\.levels\.0: Tuple should have at least 1 item"),
            (["categorical", "levels", 0], ["a", "a"], "categorical: .* levels must be different"),
            (["categorical", "levels", 0, 0], b"x", "bytes is not JSON serializable"),
        ],
    )
    def test_what_is_not_a_preparation(self, place, value, sentence):
        saved = copy.deepcopy(TestApply.PREPARE.to_json())
        inner = saved
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        with pytest.raises(ModelError, match=f"the saved preprocessing of a table is invalid: .*{sentence}"):
            Prepare.from_json(saved)

    def test_truncated(self):
        with pytest.raises(ModelError, match="numeric: Field required"):
            Prepare.from_json({"format": "anyparty.prepare.1", "party": "a"})


def test_categories_that_training_never_saw_are_named_where_most_are_such():
    prepare = Prepare.fit(table_of(MIXED), rows(0, 1, 2, 3))
    said = r"training saw none of the categories of column 'town', such as 'BONN', 'ULM'; it saw 'Bonn', 'Ulm'"
    with pytest.warns(UserWarning, match=said):
        prepare.apply(table_of(MIXED | {"town": ["ULM", None, "ULM", "BONN"]}))
    with pytest.warns(UserWarning, match="categories of column 'town' in 2 of 3 cells, such as 'BONN', 'ULM'; it saw"):
        prepare.apply(table_of(MIXED | {"town": ["ULM", None, "Ulm", "BONN"]}))
    half = table_of(MIXED | {"town": ["ULM", None, "Ulm", None]})
    prepare.apply(half, new=False)
    few = "there are categories that training never saw, .*: column 'town', 1 of 2 cells, such as 'ULM'$"
    with pytest.warns(UserWarning, match=few):
        prepare.apply(half)
    prepare.apply(table_of(MIXED | {"town": [None] * 4}))


def test_columns_in_another_unit_are_named():
    ages, sizes = [30.0, 40, 50, 60], [1.0, 2, 3, 4]
    prepare = Prepare.fit(table_of({"age": ages, "size": sizes, "fix": [1.0] * 4}), rows(0, 1, 2, 3))
    same = {"size": sizes, "fix": [1.0] * 4}
    prepare.apply(table_of(same | {"age": [None, None, 500, 45]}))  # one outlier is not a majority
    one = r"1 of 2 numbers of column 'age' lie more than 50 standard deviations .* such as 1e\+06 \(mean 45"
    with pytest.warns(UserWarning, match=one):
        prepare.apply(table_of(same | {"age": [None, None, 1e6, 45]}))
    prepare.apply(table_of(same | {"age": [None] * 4}))
    said = (r"most numbers of column 'age' lie more than 10 standard deviations from their mean in training, such as "
            r"10950 \(mean 45, standard deviation 11.1803\): are they in another unit\?$")  # fmt: skip
    with pytest.warns(UserWarning, match=said):
        prepare.apply(table_of(same | {"age": [None, 10950, 18250, 45]}))
    with pytest.warns(UserWarning, match=r"unit\? The same applies to 'size'$"):
        prepare.apply(table_of(same | {"age": [365 * age for age in ages], "size": [1000 * size for size in sizes]}))
    raw = Prepare.fit(table_of({"age": ages}), rows(0, 1, 2, 3), scale=False)
    raw.apply(table_of({"age": [365 * age for age in ages]}))


def test_a_column_that_varies_little_beside_its_size_is_standardised():
    moments = [1.7e15 + k for k in range(100)]
    sizes = [1e9 + 2.0**-16 * (k % 2) for k in range(100)]
    prepare = Prepare.fit(table_of({"moment": moments, "size": sizes}), np.arange(100))
    out = prepare.apply(table_of({"moment": moments, "size": sizes}))
    assert out.mean(axis=0) == pytest.approx([0, 0], abs=1e-3)
    assert out.std(axis=0) == pytest.approx([1, 1], abs=1e-3)


class TestLevelsDrawn:
    """Levels are drawn by probability: the maximum of noisy probabilities would rarely choose a rare level."""

    made = Prepare.fit(table_of({
        "age": [1.0, 2.0, 4.0, 6.0], "vip": [True, False, True, False], "kind": ["common", "some", "rare", "common"]
    }), rows(0, 1, 2, 3))  # fmt: skip
    CENTERS = {"age": 3.0, "vip": 0.1, "kind=common": 0.90, "kind=some": 0.07, "kind=rare": 0.03}

    def drawn(self, changed=None, n=20000, seed=0, **values):
        draw = np.random.default_rng(1)
        centers = np.tile([(self.CENTERS | (changed or {}))[name] for name in self.made.names], (2, n, 1))
        samples = centers + 0.3 * draw.normal(size=centers.shape)
        for name, value in values.items():
            samples[:, 0, self.made.names.index(name)] = value
        return samples, self.made.with_levels(samples, centers, ["vip"], np.random.default_rng(seed))

    def test_as_often_as_the_model_has_them(self):
        samples, found = self.drawn()
        kinds = [self.made.names.index(name) for name in ("kind=common", "kind=some", "kind=rare")]
        often = found[..., kinds].mean(axis=(0, 1))
        assert np.abs(often - [0.90, 0.07, 0.03]).max() < 0.006  # 4 of sqrt(.09 / 40000)
        assert (found[..., kinds].sum(axis=-1) == 1).all()
        assert abs(found[..., self.made.names.index("vip")].mean() - 0.1) < 0.006
        assert set(np.unique(found[..., self.made.names.index("vip")])) == {0.0, 1.0}
        age = self.made.names.index("age")
        assert np.array_equal(found[..., age], samples[..., age]), "numbers stay"
        table = self.made.table(found[0])["kind"].value_counts(normalize=True)
        assert dict(table.iter_rows())["rare"] == pytest.approx(0.03, abs=0.006)

    def test_what_is_below_zero_never_and_the_rest_in_proportion(self):
        _, found = self.drawn({"kind=common": 0.6, "kind=some": 0.2, "kind=rare": -0.3, "vip": 1.2})
        often = dict(zip(self.made.names, found.mean(axis=(0, 1)), strict=True))
        assert often["kind=common"] == pytest.approx(0.75, abs=0.01)
        assert (often["kind=rare"], often["vip"]) == (0, 1)

    def test_where_nothing_is_above_zero_the_greatest(self):
        _, found = self.drawn({"kind=common": -0.5, "kind=some": 0.0, "kind=rare": -0.3}, n=9)
        assert (found[..., self.made.names.index("kind=some")] == 1).all()

    def test_what_nobody_knows_stays_empty(self):
        names = dict.fromkeys(self.made.names, np.nan)
        _, found = self.drawn(n=3, **names)
        assert np.isnan(found[:, 0]).all()
        assert not np.isnan(found[:, 1:]).any()

    def test_the_same_again(self):
        one, two, other = (self.drawn(n=50, seed=seed)[1] for seed in (3, 3, 4))
        assert np.array_equal(one, two)
        assert not np.array_equal(one, other)


def test_constants_are_imputed_as_themselves():
    """A column with one value in all training rows keeps it if it is missing, and if outputs are converted back."""
    table = table_of({"x": [1.0, 2.0, None], "rate": [0.1, 0.1, None], "town": ["Ulm", "Ulm", None]})
    prepare = Prepare.fit(table, rows(0, 1))
    out = prepare.apply(table, new=False)
    assert out[:, 1:].tolist() == [[0, 1]] * 3
    noisy = prepare.units(out + np.float32(0.3))
    assert noisy[:, 1].tolist() == [0.1] * 3
    assert noisy[:, 0] == pytest.approx([1.15, 2.15, 1.65])
    assert np.isnan(prepare.units(np.full((1, 3), np.nan, np.float32))).all()


def test_the_limit_of_categories_is_a_setting():
    table = table_of({"code": [f"c{k}" for k in range(40)] + ["c0", "c1"]}, types={"code": "categorical"})
    with pytest.warns(AnypartyWarning, match=r"the 37 rarest, .*: the limit is parties\.\w+\.max_levels = 4"):
        prepare = Prepare.fit(table, np.arange(42), max_levels=4)
    assert prepare.categorical.levels == (("c0", "c1", "c10", "(rare)"),)
    assert Prepare.fit(table, np.arange(42), max_levels=40).width == 40


class TestEmptyInMoreRowsThanInTraining:
    @staticmethod
    def warnings_of(then, now, n, rows=100):
        """Return the warnings if ``now`` of ``n`` cells are empty, and in training ``then`` of ``rows``."""
        ages = [None] * then + [30 + k % 40 for k in range(rows - then)]
        prepare = Prepare.fit(table_of({"age": ages, "size": range(rows)}), np.arange(rows))
        assert Prepare.from_json(prepare.to_json()).missing == {"age": then / rows, "size": 0}
        there = table_of({"age": [None] * now + [40] * (n - now), "size": range(n)})
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            prepare.features(there)
        return [str(each.message) for each in found]

    @pytest.mark.parametrize(
        ("then", "now", "n"),
        [(2, 80, 100), (0, 7, 12), (40, 91, 100), (0, 5, 5), (5, 10, 10), (50, 11, 11), (90, 100, 100), (45, 96, 100)],
    )
    def test_one_warning_has_both_shares(self, then, now, n):
        (said,) = self.warnings_of(then, now, n)
        assert f"column 'age' in {now:,} of {n:,} rows (in training in {then / 100:.1%})" in said

    @pytest.mark.parametrize(
        ("then", "now", "n"),
        [(2, 40, 100), (40, 90, 100), (0, 6, 12), (0, 4, 4), (0, 9, 10), (20, 10, 10), (90, 12, 12), (2, 1, 1)],
    )
    def test_no_warning(self, then, now, n):
        assert self.warnings_of(then, now, n) == []

    def test_rows_without_cells_are_not_counted(self):
        columns = {"age": [1.0, None, 2.0, None] * 30, "size": [1.0, None, 2.0, None] * 30}
        prepare = Prepare.fit(table_of(columns), np.arange(120))
        assert prepare.missing == {"age": 0, "size": 0}

    def test_models_of_earlier_versions(self):
        saved = Prepare.fit(table_of({"age": [1, 2, 3], "size": [1, 2, 3]}), np.arange(3)).to_json()
        del saved["missing"]
        with pytest.warns(AnypartyWarning, match="column 'age' in 20 of 20 rows: the model"):
            Prepare.from_json(saved).features(table_of({"age": [None] * 20, "size": range(20)}))
