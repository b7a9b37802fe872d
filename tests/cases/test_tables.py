"""Cases 1 to 7, and 9 to 11: tables with mistakes that users report again and again, read as a user reads them.

A mistake that can be repaired safely is repaired, with a remark that counts the cells. Any other mistake stops with a
sentence that says what to write. Nothing is guessed in silence.
"""

import bz2
import gzip
import io
import math
import re
import zipfile
from collections.abc import Sequence

import openpyxl
import polars as pl
import pytest
import zstandard

from anyparty import config
from anyparty.api.federation import Federation
from anyparty.errors import AnypartyWarning, TableError
from anyparty.tables.cells import fold
from tests.cases.conftest import EVERY, ROWS, clean

MARKED = ROWS // EVERY
ONES = clean()["bank"]["default"].to_list().count("1")
CLEAN = {"0": ROWS - ONES, "1": ONES}


class TestCase01OneClassSpelledTwoWays:
    @pytest.mark.parametrize(
        ("zero", "one", "names"),
        [
            (["0", "0.0"], ["1", "1.00"], ("0", "1")),
            (["no", " No "], ["yes", "yes\u200b"], ("no", "yes")),
            # further inputs
            (["0", "0e0", "-0"], ["1", "1e0", "1.000"], ("0", "1")),
            (["False", "FALSE"], ["True", "true"], ("false", "true")),
            (["nein", "NEIN"], ["müde", "mu\u0308de"], ("müde", "nein")),
            (["good", "good\u00a0"], ["bad", "ｂａｄ"], ("bad", "good")),
            (["👎"], ["👍", "👍\ufe0f"], ("👍", "👎")),
        ],
    )
    def test_is_one_class_with_a_remark_that_counts(self, trial, zero, one, names):
        spelled = {"0": zero, "1": one}
        trial.respell("bank", "default", spelled)
        counts = {text: trial.bank["default"].to_list().count(text) for text in (*zero, *one)}
        said = trial.align()
        assert "spellings of one class are read as one" in said
        for text in {text for text in counts if text.strip() != text or text not in names} - {" No ", "good\u00a0"}:
            assert f"({counts[text]})" in said
        found = trial.classes()
        assert tuple(sorted(map(fold, found))) == names
        assert sorted(found.values()) == sorted(CLEAN.values())

    def test_scores_are_those_of_clean_labels(self, trial):
        expected = trial.federation().train("laser", epochs=2, seed=1).evaluate().overall
        trial.respell("bank", "default", {"0": ["0", "0.0"], "1": ["1", "1.00"]})
        with pytest.warns(AnypartyWarning, match="spellings of one class"):
            assert trial.federation().train("laser", epochs=2, seed=1).evaluate().overall == expected

    @pytest.mark.parametrize(
        ("zero", "one"),
        [
            (["false", "0"], ["true", "True"]),
            (["no", "0"], ["yes"]),
            (["0"], ["1", "t"]),
            (["no", "F"], ["yes"]),
            (["off"], ["on", "1"]),
        ],
    )
    def test_a_mixture_stops_and_offers_classes(self, trial, zero, one):
        trial.respell("bank", "default", {"0": zero, "1": one})
        said = trial.align(fails=True)
        assert "federation.classes = {yes = [" in said
        for text in (*zero, *one):
            assert text.lower() in said.lower()
        trial.settings = {"federation": {"classes": {"no": zero, "yes": one}}}
        assert trial.classes() == {"no": CLEAN["0"], "yes": CLEAN["1"]}

    @pytest.mark.parametrize(
        ("zero", "one"),
        [
            (["<=50K", "<=50K."], [">50K"]),
            (["bad"], ["good", "'good'"]),
            (["0", "'0'"], ["1"]),
            (["do"], ["don't", "don’t"]),
            (["Weg"], ["Straße", "STRASSE"]),
            (["0"], ["1", "1,0"]),
            (["paid"], ["not-paid", "not_paid"]),
            (["b"], ["a", "а"]),
            (["low"], ["top", "τορ"]),
        ],
    )
    def test_marks_that_may_have_no_meaning_stop(self, trial, zero, one):
        trial.respell("bank", "default", {"0": zero, "1": one})
        said = trial.align(fails=True)
        assert "may be one class or two" in said
        assert "federation.classes = {" in said
        trial.settings = {"federation": {"classes": {"no": zero, "yes": one}}}
        assert trial.classes() == {"no": CLEAN["0"], "yes": CLEAN["1"]}

    @pytest.mark.parametrize(
        "pair", [("A", "A+"), ("-1", "1"), ("<5", ">5"), ("C", "C#"), ("1-2", "12"), ("да", "нет")]
    )
    def test_marks_that_have_a_meaning_are_two_classes(self, trial, pair):
        trial.respell("bank", "default", {"0": [pair[0]], "1": [pair[1]]})
        assert sorted(trial.classes().values()) == sorted(CLEAN.values())


class TestCase02MissingMarksAmongLabels:
    @pytest.mark.parametrize("mark", ["-", ".", "\\N", "?", "N/A", "#N/A", "NaN", "null", "None", "*", " - ", "—"])
    def test_a_mark_is_no_label(self, trial, mark):
        trial.mark("bank", "default", mark)
        said = trial.align()
        assert f"{MARKED} of {ROWS} cells of label column 'default' are '{mark.strip()}' ({MARKED})" in said
        assert "unlabelled" in said
        assert sum(trial.classes().values()) == ROWS - MARKED
        assert trial.federation().overlap.labelled == ROWS - MARKED

    @pytest.mark.parametrize("mark", ["unknown", "-9", "(none)", "999", "-1", "tbd", "#REF!", "99"])
    def test_what_could_be_a_class_stops(self, trial, mark):
        trial.mark("bank", "default", mark)
        said = trial.align(fails=True)
        assert f"in {MARKED} of {ROWS} labels" in said
        assert "missing = {default = [" in said
        assert "federation.classes = [" in said
        assert trial.train(fails=True).endswith(said[said.index("party 'bank', label") :])
        trial.settings = {"parties": {"bank": {"missing": {"default": [mark]}}}}
        assert sum(trial.classes().values()) == ROWS - MARKED
        trial.settings = {"federation": {"classes": ["0", "1", mark]}}
        assert trial.classes()[mark] == MARKED


class TestCase03IdsWrittenDifferently:
    @pytest.mark.parametrize(
        ("write", "changes"),
        [
            (lambda text: f"00{text}", ["strip-zeros"]),
            (lambda text: f"{int(text):,}", ["strip-separators"]),
            (lambda text: f"{text[:2]}-{text[2:]}", ["strip-hyphens"]),
            # further inputs
            (lambda text: f"0{text[:2]}/{text[2:]}", ["strip-separators", "strip-zeros"]),
            (lambda text: f"{text[:1]} {text[1:]}", ["strip-spaces"]),
            (lambda text: text.translate({48 + digit: 0xFF10 + digit for digit in range(10)}), ["unicode"]),
            (lambda text: f"{text}.50", None),
        ],
    )
    def test_counts_what_would_match_and_changes_nothing_unasked(self, trial, write, changes):
        trial.replace("shop", "customer", [write(text) for text in trial.shop["customer"]])
        said = trial.align(fails=True)
        assert "no id is known to two parties" in said
        if changes is None:
            assert "id_normalize" not in said
            return
        listed = ", ".join(f'"{change}"' for change in changes)
        assert f"{ROWS} would be equal but for" in said
        assert f"id_normalize = [{listed}]" in said
        trial.settings = {"federation": {"id_normalize": changes}}
        assert trial.federation().overlap.by_all == ROWS

    @pytest.mark.parametrize("form", ["C{}", "{}%", "#{}", '="{}"', "{{{}}}"])
    def test_signs_around_numbers_are_named(self, trial, form):
        trial.replace("shop", "customer", [form.format(text) for text in trial.shop["customer"]])
        assert "letters or signs around the numbers" in trial.align(fails=True)

    @pytest.mark.parametrize(("empty", "rows"), [([3], "row 4"), ([0, 1], "rows 1, 2"), (range(9), "4, 5 and 4 more")])
    def test_rows_without_an_id_are_listed(self, trial, empty, rows):
        trial.replace("shop", "customer", lambda text, row: "" if row in empty else text)
        assert f"{rows};" in trial.align(fails=True)

    def test_the_overlap_table_counts_ids_that_differ_in_part(self, trial):
        trial.replace("shop", "customer", lambda text, row: text if row % 2 else f"0{text}")
        said = trial.align()
        assert f"{ROWS // 2} rows more but for leading zeros" in said
        assert 'id_normalize = ["strip-zeros"]' in said

    def test_letters(self, trial):
        numbers = [int(text) * 7919 for text in trial.bank["customer"]]
        trial.replace("bank", "customer", [f"{number:07x}-af" for number in numbers])
        trial.replace("shop", "customer", [f"{number:07X}AF" for number in numbers])
        assert 'id_normalize = ["lower-case", "strip-hyphens"]' in trial.align(fails=True)

    @pytest.mark.parametrize("form", ["{}.0", " {} ", "\u00a0{}", "{}\t"])
    def test_what_needs_no_setting(self, trial, form):
        trial.replace("shop", "customer", [form.format(text) for text in trial.shop["customer"]])
        assert trial.federation().overlap.by_all == ROWS


class TestCase04RareClass:
    @pytest.mark.parametrize("rare", [4, 3, 6])
    @pytest.mark.parametrize("seed", [0, 1])
    def test_each_part_has_every_class(self, trial, rare, seed):
        trial.replace("bank", "default", ["1" if row % (ROWS // rare) == 7 else "0" for row in range(ROWS)])
        federation = trial.federation()
        use = federation.split(config.TrainSettings(seed=seed))
        label = federation.label("bank").to_numpy()
        position = federation.alignment.position["bank"]
        for part in range(3):
            assert set(label[position[use == part]]) == {"0", "1"}

    def test_of_three_classes_two_are_rare(self, trial):
        trial.replace("bank", "default", ["a" if row < 3 else "b" if row < 6 else "c" for row in range(ROWS)])
        federation = trial.federation()
        use = federation.split(config.TrainSettings())
        label, position = federation.label("bank").to_numpy(), federation.alignment.position["bank"]
        assert all(set(label[position[use == part]]) == {"a", "b", "c"} for part in range(3))

    @pytest.mark.parametrize("rare", [1, 2])
    def test_too_few_rows_stop_with_the_number_that_is_needed(self, trial, rare):
        trial.replace("bank", "default", ["1" if row < rare else "0" for row in range(ROWS)])
        said = trial.train(fails=True)
        assert f"class '1' has {rare}" in said
        assert "3" in said

    def test_a_class_at_rows_of_one_party_only(self, trial):
        trial.replace("bank", "default", ["1" if row >= ROWS - 4 else "0" for row in range(ROWS)])
        trial.shop = trial.shop.head(ROWS - 4)
        federation = trial.federation()
        use = federation.split(config.TrainSettings())
        label, position = federation.label("bank").to_numpy(), federation.alignment.position["bank"]
        assert all("1" in set(label[position[use == part]]) for part in range(3))

    def test_an_undefined_metric_is_empty(self, trial):
        """A split at random leaves the test rows without positives, so that F1 and AUROC have no value."""
        trial.replace("bank", "default", ["1" if row < 3 else "0" for row in range(ROWS)])
        federation = trial.in_python(split="random")
        for seed in range(20):
            use = federation.split(config.TrainSettings(seed=seed))
            label, position = federation.label("bank").to_numpy(), federation.alignment.position["bank"]
            if set(label[position[use == 2]]) == {"0"} and set(label[position[use == 0]]) == {"0", "1"}:
                break
        scores = federation.train("laser", epochs=1, seed=seed).evaluate().overall
        assert math.isnan(scores["f1"])
        assert math.isnan(scores["auroc"])
        assert scores["macro_f1"] != 1.0
        trial.settings = {"split": {"kind": "random"}, "train": {"epochs": 1, "seed": seed}}
        said = trial.train()
        assert "nan" not in said
        assert not re.search(r"│ (auroc|f1|macro_f1) │ [01]\.0", said)


class TestCase05CategorySpellings:
    @pytest.mark.parametrize(
        ("spelled", "levels"),
        [
            ({"east": ["Yes", "yes", "YES "], "north": ["No", "no"], "south": ["maybe"]}, ["maybe", "no", "yes"]),
            ({"east": ["São", "Sa\u0303o"], "north": ["n"], "south": ["s"]}, ["n", "s", "são"]),
            ({"east": ["New  York", "New York"], "north": ["n"], "south": ["s"]}, ["n", "new york", "s"]),
            (
                {"east": ["east\u200b", "east"], "north": ["ＮＯＲＴＨ", "NORTH"], "south": ["s"]},
                ["east", "north", "s"],
            ),
        ],
    )
    def test_all_spellings_are_counted_and_merged_on_request(self, trial, spelled, levels):
        trial.respell("shop", "town", spelled)
        counts = trial.shop["town"].to_list()
        said = trial.align()
        assert "levels that differ only in their spelling" in said
        assert "merge_spellings = true" in said
        for texts in spelled.values():
            for text in texts if len(texts) > 1 else ():
                assert f"({counts.count(text)})" in said
        assert trial.federation().tables["shop"].columns["town"].n_unique() > len(levels)
        trial.settings = {"federation": {"merge_spellings": True}}
        merged = trial.federation().tables["shop"].columns["town"]
        assert merged.unique().sort().to_list() == levels

    def test_other_levels_have_no_remark(self, trial):
        trial.respell("shop", "town", {"east": ["A1", "A-1"], "north": ["n"], "south": ["s", "ss"]})
        assert "spelling" not in trial.align()


class TestCase06NumbersWithMarks:
    @pytest.mark.parametrize(
        ("write", "factor"),
        [
            (lambda text: f"{text}%", 1),
            (lambda text: f"${text}", 1),
            (lambda text: f"{float(text) * 1000:,.0f}", 1000),
            # further inputs
            (lambda text: f"{text} EUR", 1),
            (lambda text: f"£ {text}", 1),
            (lambda text: text.replace(".", ","), 1),
            (lambda text: f"{float(text) * 1000:,.0f}".replace(",", "'"), 1000),
            (lambda text: f"{float(text) * 1000:,.2f}".replace(",", "\u202f"), 1000),
            (lambda text: f"\u2212{text}", -1),
            (lambda text: f"{text}-", -1),
            (lambda text: f"'{text}", 1),
            (lambda text: f"{text}\u200b", 1),
            (lambda text: text.translate({48 + digit: 0xFF10 + digit for digit in range(10)}), 1),
            (lambda text: text.translate({48 + digit: 0x0660 + digit for digit in range(10)}), 1),
        ],
    )
    def test_numbers_are_read_with_a_remark(self, trial, write, factor):
        expected = trial.federation().tables["bank"].columns["income"].cast(pl.Float64) * factor
        trial.replace("bank", "income", [write(text) for text in trial.bank["income"]])
        said = trial.align()
        assert f"column 'income' is read as numbers: {ROWS} cells are written with marks" in said
        read = trial.federation().tables["bank"].columns["income"]
        assert (read - expected).abs().max() < 1e-6

    @pytest.mark.filterwarnings("ignore::anyparty.errors.AnypartyWarning")
    @pytest.mark.parametrize("write", ["{}-", "'{}", "{}\u200b", "{}"])
    def test_prediction_reads_marks_as_training_did(self, trial, write):
        plain = [f"-{text}" if write.endswith("-") else text for text in trial.bank["income"]]
        trial.replace("bank", "income", [write.format(text) for text in trial.bank["income"]])
        model = trial.federation().train("laser", epochs=1, seed=1)
        marked = {"bank": trial.bank.drop("default"), "shop": trial.shop}
        expected = model.predict(marked).scores
        assert model.predict(marked | {"bank": marked["bank"].with_columns(income=pl.Series(plain))}).scores.equal(
            expected
        )

    @pytest.mark.parametrize(
        ("mark", "value"), [("<25", 12.5), ("<=25", 12.5), (">90", 90), ("10-20", 15), ("≥ 65", 65), ("10 to 20", 15)]
    )
    def test_limits_stop_and_offer_the_setting(self, trial, mark, value):
        trial.mark("bank", "income", mark)
        said = trial.align(fails=True)
        assert f"column 'income' has numbers, and {MARKED} limits or ranges: '{mark}' in row 1" in said
        assert 'limits = {income = "half"}' in said
        trial.settings = {"parties": {"bank": {"limits": {"income": "half"}}}}
        assert trial.federation().tables["bank"].columns["income"][0] == value

    @pytest.mark.parametrize("every", [40, 10, 12])  # a tenth is the limit itself
    @pytest.mark.parametrize("word", ["refused", "n.k.", "see note"])
    def test_few_words_stop_and_offer_the_setting(self, trial, every, word):
        trial.mark("bank", "income", word, every=every)
        said = trial.align(fails=True)
        assert f"'{word}' in row 1, '{word}' in row {every + 1}" in said
        assert f'missing = {{income = ["{word}"]}}' in said
        trial.settings = {"parties": {"bank": {"missing": {"income": [word]}}}}
        assert trial.federation().tables["bank"].columns["income"].null_count() == ROWS // every

    @pytest.mark.parametrize("sentinel", ["-999", "9999", "-1000", "99999"])
    def test_a_sentinel_gets_a_remark_and_a_setting(self, trial, sentinel):
        trial.mark("bank", "income", sentinel)
        said = trial.align()
        assert sentinel in said
        assert "missing" in said
        trial.settings = {"parties": {"bank": {"missing": {"income": [int(sentinel)]}}}}
        assert trial.federation().tables["bank"].columns["income"].null_count() == MARKED

    @pytest.mark.parametrize(
        "write",
        [
            lambda n, row: f"{n}%" if row % 2 else f"{n / 100:.3f}",
            lambda n, row: f"${n}" if row % 2 else f"{n} €",
            lambda n, row: f"{n / 10:.3f}" if row % 2 else f"{n * 1000:,.0f}",
            lambda n, row: f"{n * 100:,.1f}" if row % 2 else f"{n * 10:.1f}".replace(".", ","),
        ],
    )
    def test_what_would_be_a_guess_stops(self, trial, write):
        trial.replace("bank", "income", lambda cell, row: write(float(cell), row))
        assert "column 'income'" in trial.align(fails=True)


class TestCase07NumbersToPredict:
    @pytest.mark.parametrize(
        "number",
        [
            lambda row: str(100_000 + row * 700 % 140_000),
            lambda row: f"{row % 21}",
            lambda row: f"{row % 50}.0",
            lambda row: f"{row % 5 + 0.5}",
            lambda row: f"{row % 97}e2",
        ],
    )
    def test_many_different_numbers_are_a_regression_everywhere(self, trial, number):
        trial.replace("bank", "default", [number(row) for row in range(ROWS)])
        assert "task: regression" in trial.align()
        assert "regression" in trial.in_python().predicted()
        typed = trial.bank.with_columns(pl.col("default").cast(pl.Float64))
        assert (
            "regression"
            in Federation.from_tables({"bank": typed, "shop": trial.shop}, id="customer", label="default").predicted()
        )
        scores = trial.in_python().train("laser", epochs=1).evaluate().overall
        assert "rmse" in scores
        assert "rmse" in trial.train()

    def test_few_different_numbers_are_classes_with_a_hint(self, trial):
        trial.replace("bank", "default", [str(row % 20) for row in range(ROWS)])
        assert (
            'task: classification, classes 0, 1, 2 and 17 more; federation.task = "regression" for numbers'
            in trial.align()
        )


def workbook(frame: pl.DataFrame, above: Sequence[str] = ()) -> bytes:
    """Return a table as a workbook, below a row of other cells."""
    book = openpyxl.Workbook()
    for row in [*([above] if above else []), frame.columns, *frame.iter_rows()]:
        book.active.append(row)
    written = io.BytesIO()
    book.save(written)
    return written.getvalue()


def zipped(content: bytes, *others: str) -> bytes:
    """Return a zip archive with a table, and other members."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name in ("shop.csv", *others):
            archive.writestr(name, content)
    return written.getvalue()


def written(frame: pl.DataFrame, kind: str) -> bytes:
    """Return a table as Parquet or Feather."""
    buffer = io.BytesIO()
    getattr(frame, f"write_{kind}")(buffer)
    return buffer.getvalue()


class TestCase09FilesThatAreSomethingElse:
    @pytest.mark.parametrize(
        ("change", "remark"),
        [
            (gzip.compress, "is compressed with gzip"),
            (lambda text: b"sep=,\n" + text, "the first line 'sep=,' is read as the separator"),
            (lambda text: text.replace(b"\n", b"\r"), "bare carriage returns"),
            (lambda text: text.replace(b"\n", b",,\n"), "2 columns without a name and without a cell: left out"),
            # further inputs
            (bz2.compress, "is compressed with bz2"),
            (zstandard.compress, "is compressed with zstd"),
            (zipped, "is compressed with zip"),
            (lambda text: zipped(text, "d/.DS_Store", "__MACOSX/d/._shop.csv"), "is compressed with zip"),
            (lambda text: b'"sep=;"\r\n' + text.replace(b",", b";").replace(b"\n", b"\r\n"), "the first line 'sep=;'"),
        ],
    )
    def test_is_read_with_a_remark(self, trial, change, remark):
        assert remark in trial.align(shop=change(trial.shop.write_csv().encode()))
        read = trial.federation(shop=change(trial.shop.write_csv().encode()))
        assert read.overlap.by_all == ROWS
        assert read.tables["shop"].columns.equals(trial.federation().tables["shop"].columns)

    @pytest.mark.parametrize(
        ("content", "named"),
        [
            (b"<!DOCTYPE html>\n<html><body>Please sign in</body></html>\n", "is an HTML page"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n", "is a Git LFS pointer"),
            (b'[{"customer": "1000", "visits": 22}]', "is JSON"),
            # further inputs
            (b'{"data": [{"customer": 1}]}', "is JSON"),
            (b"  <html lang='en'><head></head></html>", "is an HTML page"),
            (b"%PDF-1.7\n", "is a PDF"),
            (b'<?xml version="1.0"?><rows/>', "is XML"),
            (b"\x80\x04\x95rest", "is a Python pickle"),
            (b"\xfd7zXZ\0rest", "is an xz archive"),
            (b"ORC\x08rest", "is an ORC file"),
            (b"PK\x05\x06" + bytes(18), "is an empty zip archive"),
            (zipped(b"", "[Content_Types].xml", "word/document.xml"), "is a document"),
            (bytes(257) + b"ustar" + bytes(250), "is a tar archive"),
            (b"customer,visits\n1000,1\n10\x0001,2\n", "is text with NUL characters, the first in line 3"),
        ],
    )
    def test_is_named(self, trial, content, named):
        said = trial.align(fails=True, shop=content)
        assert named in said
        assert "shop.csv" in said
        assert "not a table" in said

    @pytest.mark.parametrize(
        ("above", "hint"),
        [
            ("# export of 2024\n# by the shop\n", "line 3 has 3 cells, where 1 are expected"),
            ("report,2024,\n", "if the column names are in a later line, remove the lines above them"),
            ("report,2024,x\n", "line 2 has this name: remove the lines above it"),
            ("\n", "begins with a blank line"),
        ],
    )
    def test_column_names_below_the_first_line(self, trial, above, hint):
        said = trial.align(fails=True, shop=above + trial.shop.write_csv())
        assert hint in said
        assert "column names" in said

    def test_column_names_below_the_first_row_of_a_workbook(self, trial, caplog):
        content = workbook(trial.shop, above=["Report 2024"])
        assert "if the column names are in a later line" in trial.align(fails=True, shop=content)
        (trial.folder / "shop.xlsx").write_bytes(workbook(trial.shop.select("customer"), above=["Report 2024"]))
        result = trial.call("align", "bank.csv", "shop.xlsx", "--id", "customer", "--label", "default")
        assert "line 2 has this name" in result.output
        assert not caplog.records

    @pytest.mark.parametrize("change", [
        lambda text: b"\xef\xbb\xbf\xef\xbb\xbf" + text,
        lambda text: text.replace(b"customer", "\ufeffcustomer\t".encode()),
    ])  # fmt: skip
    def test_marks_around_column_names_are_left_out(self, trial, change):
        assert trial.federation(shop=change(trial.shop.write_csv().encode())).overlap.by_all == ROWS

    def test_line_ends_of_two_kinds_are_named(self, trial):
        said = trial.align(fails=True, shop=trial.shop.write_csv().replace("\n12", "\r12"))
        assert "ends in a carriage return (CR) alone" in said
        assert "line 201" in said

    @pytest.mark.parametrize("address", ["https://example.org/shop.csv", "s3://shop/shop.csv", "file:///shop.csv"])
    def test_an_address_is_no_path(self, trial, address):
        trial.settings = {"parties": {"shop": {"table": address}}}
        path = trial.write()
        path.write_text(path.read_text(encoding="utf-8").replace('"shop.csv"', f'"{address}"'), encoding="utf-8")
        assert "this is an address; give a path on this machine" in " ".join(trial.call("align", path).output.split())

    @pytest.mark.parametrize("cells", [
        pl.Series("x", [[1]] * ROWS),
        pl.Series("x", [[1]] * ROWS, dtype=pl.Array(pl.Int64, 1)),
        pl.Series("x", range(ROWS), dtype=pl.Duration("us")),
        pl.Series("x", [b"a"] * ROWS),
        pl.Series("x", [{"a": 1}] * ROWS),
    ], ids=lambda cells: str(cells.dtype))  # fmt: skip
    @pytest.mark.parametrize("label", ["default", "x"])
    def test_columns_of_another_type_in_parquet(self, trial, cells, label):
        trial.bank.with_columns(cells).write_parquet("bank.parquet")
        trial.shop.write_parquet("shop.parquet")
        result = trial.call("align", "bank.parquet", "shop.parquet", "--id", "customer", "--label", label)
        assert result.exit_code == 2, result.output
        assert "column 'x' is of type" in result.output

    @pytest.mark.parametrize(
        "path", ["C:\\data\\shop.csv", "D:\\new\\users\\x.csv", "\\\\server\\share\\s.csv", "..\\ü.csv"]
    )
    def test_a_path_of_windows(self, trial, path):
        text = trial.write().read_text(encoding="utf-8").replace('"shop.csv"', f'"{path}"')
        (trial.folder / "case.toml").write_text(text, encoding="utf-8")
        result = trial.call("align", "case.toml")
        assert result.exit_code != 0
        said = " ".join(result.output.split())
        assert "write / for each \\ or use single quotes" in said


class TestCase10OtherFormats:
    TOWNS = {"east": ["Málaga"], "north": ["Köln"], "south": ["Orléans"]}

    @pytest.mark.parametrize(
        ("write", "shown"),
        [
            (lambda text: text.replace(",", ";").encode(), "separator ';'"),
            (lambda text: text.replace(",", "\t").encode(), "separator tab"),
            (lambda text: text.replace(",", "|").encode(), "separator '|'"),
            (lambda text: text.encode("latin-1"), "encoding cp1252"),
            (lambda text: text.encode("utf-16"), "encoding utf-16"),
            (lambda text: text.replace("\n", "\r\n").encode(), "encoding utf-8"),
            (lambda text: text.encode("utf-8-sig"), "encoding utf-8"),
            # further inputs
            (lambda text: text.replace(",", ";").replace("\n", "\r\n").encode("utf-16-le"), "encoding utf-16-le"),
            (lambda text: text.replace(",", "\t").encode("utf-16-be"), "encoding utf-16-be"),
            (lambda text: gzip.compress(text.replace(",", ";").encode("cp1252")), "separator ';', encoding cp1252"),
            (
                lambda text: "\n".join(",".join(f"'{c}'" for c in line.split(",")) for line in text.split()).encode(),
                'quote "\'"',
            ),
        ],
    )
    def test_is_recognised_and_shown(self, trial, write, shown):
        trial.respell("shop", "town", self.TOWNS)
        expected = trial.federation().tables["shop"]
        content = write(trial.shop.write_csv())
        assert shown in trial.align(shop=content)
        read = trial.federation(shop=content).tables["shop"]
        assert read.columns.equals(expected.columns)
        assert read.ids.equals(expected.ids)

    @pytest.mark.parametrize(
        ("write", "shown"),
        [
            (workbook, "Excel, sheet 'Sheet'"),
            (lambda frame: written(frame, "parquet"), "Parquet"),
            (lambda frame: written(frame, "ipc"), "Feather"),
        ],
    )
    @pytest.mark.parametrize("typed", [True, False])
    def test_other_formats(self, trial, write, shown, typed):
        frame = trial.shop.with_columns(pl.col("customer", "visits").cast(pl.Int64)) if typed else trial.shop
        expected = trial.federation().tables["shop"]
        assert shown in trial.align(shop=write(frame))
        read = trial.federation(shop=write(frame)).tables["shop"]
        assert read.ids.to_list() == expected.ids.to_list()
        assert read.columns.cast({"visits": pl.Float64}).equals(expected.columns.cast({"visits": pl.Float64}))

    @pytest.mark.parametrize("write", [lambda n: f"{n / 3:.2f}", lambda n: f"{n * 1000 / 7:,.2f}", lambda n: f"{-n}.5"])
    def test_a_decimal_comma(self, trial, write):
        spend = [write(int(n)) for n in trial.shop["visits"]]
        swapped = [text.translate({ord(","): ".", ord("."): ","}) for text in spend]
        plain = [float(text.replace(",", "")) for text in spend]
        trial.replace("shop", "visits", swapped)
        content = trial.shop.write_csv(separator=";")
        assert "decimal ','" in trial.align(shop=content)
        assert trial.federation(shop=content).tables["shop"].columns["visits"].to_list() == plain

    def test_a_setting_of_one_party_replaces_a_guess(self, trial):
        trial.respell("shop", "town", {"east": ["Łódź"], "north": ["Zażółć"], "south": ["Kraków"]})
        content = trial.shop.write_csv(separator=";").encode("cp1250")
        trial.settings = {"parties": {"shop": {"encoding": "cp1250", "separator": ";"}}}
        assert "encoding cp1250" in trial.align(shop=content)
        assert set(trial.federation(shop=content).tables["shop"].columns["town"]) == {"Łódź", "Zażółć", "Kraków"}
        trial.settings = {"parties": {"shop": {"encoding": "cp1250", "separator": "|"}}}
        assert "seems to be separated by ';'" in trial.align(fails=True, shop=content)

    @pytest.mark.parametrize("separator", [" ", ":", "^"])
    def test_a_separator_that_is_not_recognised(self, trial, separator):
        content = trial.shop.write_csv(separator=separator)
        assert f'beside {separator!r}: write separator = "..." in [parties.shop]' in trial.align(
            fails=True, shop=content
        )
        trial.settings = {"parties": {"shop": {"separator": separator}}}
        assert trial.federation(shop=content).overlap.by_all == ROWS

    @pytest.mark.parametrize("beside", [[], ["~$a.xlsx", ".a.csv.crc", "_SUCCESS"], ["a.csv~"]])
    def test_a_folder_of_parts(self, trial, beside):
        folder = trial.folder / "parts"
        folder.mkdir()
        for name, part in (("a.csv", trial.shop.head(100)), ("b.csv", trial.shop.tail(-100))):
            part.write_csv(folder / name)
        for name in beside:
            (folder / name).write_text("x\n", encoding="utf-8")
        federation = Federation.from_tables({"bank": trial.bank, "shop": "parts"}, id="customer", label="default")
        assert federation.overlap.by_all == ROWS

    def test_a_folder_of_folders(self, trial):
        (trial.folder / "parts" / "year=2024").mkdir(parents=True)
        trial.shop.write_csv(trial.folder / "parts" / "year=2024" / "a.csv")
        with pytest.raises(TableError, match=r"it has folders, whose files the pattern parts/\*/\* names"):
            Federation.from_tables({"bank": trial.bank, "shop": "parts"}, id="customer", label="default")
        tables = {"bank": trial.bank, "shop": "parts/*/*"}
        assert Federation.from_tables(tables, id="customer", label="default").overlap.by_all == ROWS


class TestCase11IdsOfTwoColumnsAndDoubledIds:
    @pytest.mark.parametrize(
        "split",
        [
            lambda n: (str(n % 3), str(n)),
            lambda n: (f"B{n % 3}", f"{n:07}"),
            lambda n: (str(n // 10), str(n % 10)),  # 10, 01 and 1, 001 would run together
            lambda n: (["x|y", "x"][n % 2], str(n)),
        ],
    )
    def test_ids_of_two_columns(self, trial, split):
        for party in ("bank", "shop"):
            ids = [split(int(text)) for text in getattr(trial, party)["customer"]]
            frame = getattr(trial, party).drop("customer")
            branch, account = ([each[k] for each in ids] for k in (0, 1))
            setattr(trial, party, frame.with_columns(branch=pl.Series(branch), account=pl.Series(account)))
        trial.shop = trial.shop.sample(fraction=1, shuffle=True, seed=0)
        trial.settings = {"federation": {"id": ["branch", "account"]}}
        assert f"{ROWS}" in trial.align()
        federation = trial.federation()
        assert federation.overlap.by_all == ROWS
        answers = federation.train("laser", epochs=1).predict({"bank": trial.bank, "shop": trial.shop}).frame()
        assert answers.columns[:2] == ["branch", "account"]
        assert set(answers.select("branch", "account").rows()) == {split(n) for n in range(1000, 1000 + ROWS)}

    @pytest.mark.parametrize("copies", [1, 5, 40])
    def test_doubled_ids_stop_and_offer_the_setting(self, trial, copies):
        again = trial.shop.head(copies).with_columns(visits=pl.lit("1000"))
        first = trial.shop["visits"][:copies].to_list()
        trial.shop = pl.concat([trial.shop, again])
        said = trial.align(fails=True)
        assert f"{2 * copies} rows share an id" in said
        assert f"'1000' in rows 1, {ROWS + 1}" in said
        assert said.count("' in rows ") == min(copies, 5)
        assert 'duplicates = "first", "last" or "mean" in [parties.shop]' in said
        expected = {"first": list(map(float, first)), "last": [1000.0] * copies,
                    "mean": [(float(n) + 1000) / 2 for n in first]}  # fmt: skip
        for duplicates, visits in expected.items():
            trial.settings = {"parties": {"shop": {"duplicates": duplicates}}}
            table = trial.federation().tables["shop"]
            at = dict(zip(table.ids, table.columns["visits"].cast(pl.Float64), strict=True))
            assert [at[text] for text in trial.shop["customer"][:copies]] == visits
            assert any("rows have the id of another row" in note for note in table.notes)

    def test_python_offers_its_own_argument(self, trial):
        trial.shop = pl.concat([trial.shop, trial.shop.head(2)])
        with pytest.raises(TableError, match='duplicates = "first"'):
            trial.in_python()
        assert trial.in_python(duplicates="first").overlap.by_all == ROWS

    def test_columns_in_another_order_are_named(self, trial):
        for party, order in (("bank", ("branch", "account")), ("shop", ("account", "branch"))):
            frame = getattr(trial, party)
            parts = {order[0]: [str(n % 3) for n in range(ROWS)], order[1]: frame["customer"]}
            setattr(trial, party, frame.drop("customer").with_columns(**{k: pl.Series(v) for k, v in parts.items()}))
        trial.settings = {"federation": {"id": ["branch", "account"]}}
        assert f"{ROWS} would be equal with the id columns in another order" in trial.align(fails=True)

    @pytest.mark.parametrize("duplicates", ["first", "last"])
    @pytest.mark.parametrize("differ", [True, False])
    def test_labels_that_differ_are_counted(self, trial, duplicates, differ):
        again = trial.bank.head(3)
        if differ:
            again = again.with_columns(default=(1 - pl.col("default").cast(pl.Int64)).cast(pl.String))
        trial.bank = pl.concat([trial.bank, again])
        trial.settings = {"parties": {"bank": {"duplicates": duplicates}}}
        assert ("the rows of 3 of these ids have different labels in column 'default'" in trial.align()) == differ
