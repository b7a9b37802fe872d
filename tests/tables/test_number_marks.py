"""Numbers, categories and missing cells as people write them."""

import warnings

import polars as pl
import pytest

from anyparty import Federation
from anyparty.errors import AnypartyWarning, TableError
from anyparty.tables.reading_rules import NumberFormat, ReadingRules
from anyparty.tables.table import read_table
from anyparty.tables.target import infer_task

CLEAN = [round(10 + 1.3 * i, 1) for i in range(60)]  # 60 different numbers with one decimal
THOUSANDS = [round(1000 * each) for each in CLEAN]


def read(cells, *, expect=None, types=None, **rules):
    frame = pl.DataFrame({"id": range(len(cells)), "income": pl.Series(cells, dtype=pl.String)})
    return read_table(frame, party="bank", id="id", expect=expect, types=types, rules=ReadingRules(**rules))


def stops(cells, *parts, **rules):
    with pytest.raises(TableError) as stopped:
        read(cells, **rules)
    for part in ("column 'income'", *parts):
        assert part in str(stopped.value)


def with_some(texts, every=12):
    """Return the clean numbers, with texts in every twelfth cell, in turn."""
    return [texts[i // every % len(texts)] if i % every == 0 else str(each) for i, each in enumerate(CLEAN)]


class TestMarks:
    @pytest.mark.parametrize(
        "write",
        [
            lambda x: f"{x}%",
            lambda x: f"{x} %",
            lambda x: f"{x}‰",
            lambda x: f"${x}",
            lambda x: f"{x} €",
            lambda x: f"EUR {x}",
            lambda x: f"£ {x:.2f}",
            lambda x: f"{x}".replace(".", ","),
            lambda x: f"{x} €".replace(".", ","),
            lambda x: f"+{x}%",
        ],
    )
    def test_one_decimal(self, write):
        table = read([write(x) for x in CLEAN])
        assert table.columns["income"].to_list() == CLEAN
        (note,) = table.notes
        assert f"60 cells are written with marks, such as '{write(10.0)}' as 10" in note

    @pytest.mark.parametrize(
        "write",
        [
            lambda x: f"{x:,}",
            lambda x: f"{x:,}.00",
            lambda x: f"${x:,}",
            lambda x: f"{x:,}".replace(",", " "),
            lambda x: f"{x:,}".replace(",", "\u00a0"),
            lambda x: f"{x:,}".replace(",", "\u202f") + " €",
            lambda x: f"{x:,}".replace(",", "'"),
            lambda x: f"{x:,}".replace(",", ".") + ",00",
        ],
    )
    def test_thousands(self, write):
        table = read([write(x) for x in THOUSANDS])
        assert table.columns["income"].to_list() == THOUSANDS

    def test_minus(self):
        assert read([f"\u2212{x}" for x in CLEAN]).columns["income"].to_list() == [-x for x in CLEAN]
        assert read([f"-${x}" for x in CLEAN]).columns["income"].to_list() == [-x for x in CLEAN]

    def test_some_cells_without_marks(self):
        cells = [f"{x:,}" for x in THOUSANDS[:-2]] + ["950", "", "7"]
        assert read(cells).columns["income"].to_list()[-3:] == [950, None, 7]

    @pytest.mark.parametrize(
        "cells",
        [
            [f"{x}%" for x in CLEAN[:30]] + [str(x / 100) for x in CLEAN[30:]],  # percent and shares
            [f"${x}" for x in CLEAN[:30]] + [f"€{x}" for x in CLEAN[30:]],  # two currencies
            [f"{x},5" for x in range(30)] + [f"{x}.25" for x in range(30)],  # two decimal marks
            [f"{x}.500 €" for x in range(1, 31)],  # 500 thousandths, or a mark between thousands
            ["1.234", "12,345"] * 5 + [f"{x}.234" for x in range(1, 26)] + [f"{x},345" for x in range(1, 26)],
        ],
    )
    def test_what_would_be_a_guess_stops(self, cells):
        stops(cells)

    def test_prediction_reads_the_format_of_training(self):
        trained = read([f"{x:,}" for x in THOUSANDS])
        assert trained.rules.formats == {"income": NumberFormat()}
        again = read(
            ["39,400", "7"],
            expect=trained.kinds,
            **trained.rules.model_dump(exclude={"formats"}),
            formats=trained.rules.formats,
        )
        assert again.columns["income"].to_list() == [39400, 7]
        decimal = read([f"{x}".replace(".", ",") for x in CLEAN]).rules.formats
        assert read(["39,400", "1.234,5"], expect={"income": "numeric"}, formats=decimal).columns[
            "income"
        ].to_list() == [39.4, 1234.5]

    def test_another_unit_at_prediction_stops(self):
        euros = read([f"{x} €" for x in CLEAN]).rules.formats
        stops(["$5", "7"], "'$5' in row 1", expect={"income": "numeric"}, formats=euros)
        stops(["5%"], "'5%' in row 1", expect={"income": "numeric"})

    @pytest.mark.parametrize("cells", [["1,2", "2,3"] * 10, ["1 200", "1 500"] * 10])
    def test_few_values_may_be_answers(self, cells):
        table = read(cells)
        assert table.kinds == {"income": "categorical"}
        assert "is read as categories, and its cells look like numbers with" in table.notes[0]
        assert read(cells, types={"income": "numeric"}).kinds == {"income": "numeric"}


class TestMissing:
    @pytest.mark.parametrize("mark", ["-", ".", "*", "\\N", "\u2013"])
    def test_marks_that_are_no_words(self, mark):
        table = read(with_some([mark]))
        assert table.columns["income"].null_count() == 5
        assert f"'{mark}' (5) stand for missing cells" in table.notes[0]

    @pytest.mark.parametrize("words", [["refused"], ["n.k."], ["refused", "unknown"], ["#REF!"]])
    def test_words_stop(self, words):
        cells = with_some(words)
        stops(cells, f"'{words[0]}' in row 1", "missing = {income = [", f'"{words[-1]}"')
        assert read(cells, missing={"income": tuple(words)}).columns["income"].null_count() == 5

    @pytest.mark.parametrize("n", [10, 30, 110, 990])
    def test_nine_of_ten_are_counted_with_integers(self, n):
        words = [f"word {i}" for i in range(n // 10)]
        numbers = [str(i) for i in range(n - len(words))]
        stops(numbers + words, "has cells that are not numbers: 'word 0' in row")

    @pytest.mark.parametrize("mark", [-999, 9999, -1.5])
    def test_sentinels_are_named_in_the_settings(self, mark):
        cells = with_some([str(mark)])
        assert read(cells).columns["income"].null_count() == 0
        assert read(cells, missing={"income": (str(mark),)}).columns["income"].null_count() == 5
        frame = pl.DataFrame({"id": range(60), "income": [float(cell) for cell in cells]})
        rules = ReadingRules(missing={"income": (str(mark),)})
        assert read_table(frame, party="bank", id="id", rules=rules).columns["income"].null_count() == 5


class TestLimits:
    @pytest.mark.parametrize("limits", [["<25"], [">90"], ["<= 25", "> 90"], ["10-20"], ["10 to 20", "<5"], ["≥7.5"]])
    def test_limits_stop(self, limits):
        stops(with_some(limits), "limits or ranges", f"'{limits[0]}' in row 1", 'limits = {income = "half"}')

    @pytest.mark.parametrize(
        ("how", "read_as"), [("half", [12.5, 90, 15]), ("value", [25, 90, 15]), ("missing", [None] * 3)]
    )
    def test_the_setting(self, how, read_as):
        table = read(with_some(["<25", ">90", "10-20"]), limits={"income": how})
        assert table.columns["income"].gather([0, 12, 24]).to_list() == read_as
        assert table.columns["income"][1] == CLEAN[1]
        expected = read(["<25", "7"], limits={"income": how}, expect={"income": "numeric"}).columns["income"]
        assert expected.to_list() == [read_as[0], 7]

    def test_ranges_alone_are_categories(self):
        assert read(["10-20", "20-30", "30-40"] * 10).kinds == {"income": "categorical"}


class TestLevels:
    def test_spellings_are_listed_and_merged(self):
        cells = ["Yes", "yes", "YES ", "no", "No", "n\u200bo"] * 4
        table = read(cells)
        assert "differ only in their spelling" in table.notes[0]
        assert "'YES ' (4), 'Yes' (4), 'yes' (4)" in table.notes[0]
        assert r"'n\u200bo' (4)" in table.notes[0]
        merged = read(cells, merge_spellings=True)
        assert merged.columns["income"].unique().sort().to_list() == ["no", "yes"]
        assert merged.notes == ()

    @pytest.mark.parametrize(
        "pair", [("caf\u00e9", "cafe\u0301"), ("S\u00fcd", "s\u00dcd"), ("not  paid", "not paid"), ("\uff21", "A")]
    )
    def test_forms_of_unicode(self, pair):
        cells = [*pair, "other"] * 5
        assert f"'{pair[0]}' (5)" in read(cells).notes[0]
        assert read(cells, merge_spellings=True).columns["income"].n_unique() == 2

    def test_levels_that_differ_otherwise_are_not_listed(self):
        assert read(["S", "M", "L", "XL"] * 5).notes == ()

    @pytest.mark.parametrize("level", ["None", "NA"])
    def test_a_level_beside_empty_cells(self, level):
        table = read([level, "", "garage"] * 5)
        assert table.columns["income"].value_counts().sort("count", "income").height == 3
        assert table.columns["income"].null_count() == 5
        assert f"'{level}' (5) beside empty cells: these texts are levels of their own" in table.notes[0]
        again = read([level, ""], expect=table.kinds, literals=table.rules.literals)
        assert again.columns["income"].to_list() == [level, None]
        assert read([level, "", "garage"] * 5, missing={"income": (level,)}).columns["income"].null_count() == 10

    def test_without_empty_cells_it_marks_them(self):
        assert read(["NA", "garage"] * 5).columns["income"].null_count() == 5


def test_python_and_a_saved_model(tmp_path):
    cells = with_some(["<25", "refused"])
    tables = {
        "bank": pl.DataFrame({"id": range(60), "income": cells, "member": ["Yes", "yes", "no"] * 20, "y": [0, 1] * 30}),
        "shop": pl.DataFrame({"id": range(60), "sum": CLEAN}),
    }
    warnings.simplefilter("ignore", AnypartyWarning)
    federation = Federation.from_tables(
        tables, label="y", missing={"bank": {"income": ["refused"]}}, limits={"bank": {"income": "half"}},
        merge_spellings=True,
    )  # fmt: skip
    model = federation.train("local", epochs=1, validation=0, folder=tmp_path / "run")
    again = type(model).load(tmp_path / "run")
    assert again.members["bank"].prepare.names == ("income", "member=no", "member=yes")
    assert again.predict(tables).scores.tolist() == model.predict(tables).scores.tolist()


def labels(texts, *, expect=None, **rules):
    frame = pl.DataFrame({"id": range(len(texts)), "paid": pl.Series(texts, dtype=pl.String)})
    rules = ReadingRules(**rules)
    return read_table(frame, party="bank", id="id", label="paid", expect=expect, rules=rules)


class TestLabels:
    """Numbers to predict are read like the numbers of a feature."""

    @pytest.mark.parametrize(
        ("write", "clean"),
        [
            (lambda x: f"{x}%", CLEAN),
            (lambda x: f"$ {x}", CLEAN),
            (lambda x: f"{x} EUR", CLEAN),
            (lambda x: f"{x:,}", THOUSANDS),
            (lambda x: f"{x}".replace(".", ","), CLEAN),
            (lambda x: f"{x:,} €".replace(",", " "), THOUSANDS),
        ],
    )
    def test_numbers_with_marks(self, write, clean):
        table = labels([*map(write, clean), None, "NA"])
        assert table.label.to_list() == pytest.approx([*clean, None, None])
        assert infer_task(table.label, party="bank").kind == "regression"
        assert "label column 'paid' is read as numbers: " in table.notes[-1]
        assert table.notes[-1].endswith('set federation.task = "classification"')
        again = labels([write(clean[0])], expect={}, **dict(table.rules))
        assert again.label.to_list() == pytest.approx([clean[0]])
        assert again.notes == ()

    def test_few_values_are_classes_unless_regression_is_set(self):
        assert labels(["5%", "10%", "20%"] * 20).label.unique().sort().to_list() == ["10%", "20%", "5%"]
        read = labels(["5%", "10%", "20%"] * 20, task="regression")
        assert read.label.unique().sort().to_list() == [5, 10, 20]
        assert labels([f"{x}%" for x in CLEAN], task="classification").label[0] == f"{CLEAN[0]}%"

    def test_limits_stop_with_a_setting(self):
        texts = with_some(["<5", ">90"])
        with pytest.raises(TableError, match=r"label column 'paid' has numbers, and 5 limits or ranges: '<5' in row 1"):
            labels(texts)
        assert labels(texts, limits={"paid": "half"}).label[0] == 2.5
        assert labels(texts, limits={"paid": "missing"}).label[0] is None

    def test_words_stop_with_a_setting(self):
        table = labels(with_some(["refused"]))
        with pytest.raises(
            TableError, match=r'refused. in row 1.*write parties\.\w+\.missing = {paid = \["refused"\]}'
        ):
            infer_task(table.label, party="bank")

    def test_another_mark_at_prediction_stops(self):
        table = labels([f"{x}%" for x in CLEAN])
        with pytest.raises(TableError, match=r"label column 'paid' has cells that are not numbers: '\$5' in row 1"):
            labels(["$5"], expect={}, **dict(table.rules))

    @pytest.mark.filterwarnings("ignore:the model was trained on")
    def test_from_settings_to_predictions(self):
        bank = pl.DataFrame({"id": range(60), "paid": [f"{x}%" for x in CLEAN], "x": CLEAN})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AnypartyWarning)
            model = Federation.from_tables({"bank": bank, "shop": bank.drop("paid")}, label="paid").train(epochs=1)
        assert model.task.kind == "regression"
        assert model.evaluate({"bank": bank.head(2), "shop": bank.head(2).drop("paid")}) is not None


class TestWithoutASilentGuess:
    def test_a_mark_for_missing_among_plain_numbers(self):
        """12.345 with a dash beside it is read as 12.345 without a dash: as a decimal number."""
        cells = ["12.345", "14", "7.250", *map(str, range(40))]
        assert read([*cells, "-"]).columns["income"][:-1].equals(read(cells).columns["income"])

    def test_points_that_may_stand_between_thousands(self):
        (note,) = read(["12.345", "14", "7.250", *map(str, range(40))]).notes
        assert "read with a decimal point, such as '12.345' beside '14'" in note
        assert 'decimal = ","' in note

    def test_commas_that_may_be_decimal_marks(self):
        said = 'If the comma is a decimal mark, write parties.bank.decimal = ","'
        (note,) = read([f"{x},234" for x in range(1, 60)]).notes
        assert note.endswith(said)
        for cells in ([f"{x:,}" for x in range(900, 1_900_000, 50_000)] * 2, [f"${x},234.50" for x in range(1, 60)]):
            assert said not in " ".join(read(cells).notes)

    @pytest.mark.parametrize("cells", [["12.345", "0.512", "7"], ["12.345", "1.5", "7"], ["12.345", "7.250"]])
    def test_numbers_with_three_decimals_have_no_remark(self, cells):
        assert not read(cells * 30).notes

    @pytest.mark.parametrize("cells", [["5%", "12'345", "0"], ["$5", "1,5", "<7"], ["1,5", "5 kg", "."]])
    def test_few_numbers_in_several_notations(self, cells):
        notes = " ".join(read(cells * 5).notes)
        assert "read as categories, and its cells look like numbers in several notations" in notes

    @pytest.mark.parametrize("word", ["refused", "Unknown", "n.k."])
    def test_few_numbers_beside_a_word_for_missing(self, word):
        (note,) = read(["1", "2", "3", word] * 10).notes
        assert "read as categories, because of" in note
        assert f'missing = {{income = ["{word}"]}}' in note
        assert read(["1", "2", "3", word] * 10, missing={"income": (word,)}).columns["income"].dtype.is_numeric()

    def test_few_numbers_beside_a_word_and_a_dash(self):
        (note,) = read(["1", "2", "3", "refused", "—"] * 10).notes
        assert 'missing = {income = ["refused"]}' in note

    @pytest.mark.parametrize("cells", [["red", "unknown"], ["1", "2", "x"], ["A1", "2", "unknown"]])
    def test_other_categories_have_no_remark(self, cells):
        assert not read(cells * 10).notes

    @pytest.mark.parametrize(
        ("cells", "said"),
        [
            (["12 %", "15 %", "high", "low", "mid"], "30 of its cells are numbers with marks, such as '12 %', and 45"),
            (["$12", "$1,500.00", "free", "by agreement", "unknown"], "30 of its cells are numbers with marks"),
            ([*(f"{x} %" for x in range(20)), *(f"step {x % 7}" for x in range(40))], "20 of its cells are numbers"),
            ([*(f"1{x},5" for x in range(40)), *"abcdefgh"], "40 of its cells are numbers, such as '10,5', and 8"),
            ([*(f"{x} kg" for x in range(40)), *"abcdefgh"], "40 of its cells are numbers, such as '0 kg', and 8"),
        ],
    )
    def test_numbers_with_marks_beside_words_get_a_remark(self, cells, said):
        cells = cells * (75 // len(cells))
        (note,) = read(cells).notes
        assert f"column 'income' is read as categories: {said}" in note
        assert read(cells, types={"income": "categorical"}).notes == ()

    def test_the_advice_on_numbers_beside_words(self):
        cells = [*(f"{x} %" for x in range(1, 25)), *["high", "low", "unknown"] * 12]
        (note,) = read(cells).notes
        assert 'missing = {income = ["high", "low", "unknown"]}' in note
        assert read(cells, missing={"income": ("high", "low", "unknown")}).columns["income"].sum() == 300

    @pytest.mark.parametrize(
        "cells",
        [
            ["A-12", "2-3 years", "B-7"],
            ["1", "2", "3", "4+", "studio"],
            ["2 years", "3 years", "10+ years", "< 1 year"],
            ["1,2", "1,3", "1,2,3", "none of these"],
            ["0%", "cotton", "wool"],
            ["<10 %", "10-20 %", ">20 %"],
            ["250", "V45", "E885", "410.1"],
            ["100% cotton", "80% wool", "silk"],
        ],
    )
    def test_codes_and_levels_have_no_remark(self, cells):
        assert not read(cells * 20).notes
