"""Labels as people write them: spellings of one class, marks of missing labels, and what stops."""

import re
from itertools import cycle

import numpy as np
import polars as pl
import pytest

from anyparty import Federation
from anyparty.core.types import Task
from anyparty.errors import AnypartyWarning, TableError, remarks_to
from anyparty.tables.reading_rules import ReadingRules, classes
from anyparty.tables.table import read_table
from anyparty.tables.target import encode, infer_task, unseen

YES_NO = {"y": ["yes", 1], "n": ["no"]}
CLEAN = ["0", "1", "0", "0", "1", "0", "0", "1", "0", "0"] * 24  # 240 labels of two classes


def read(labels, **rules):
    frame = pl.DataFrame({"customer": range(len(labels)), "default": pl.Series(labels, strict=False)})
    return read_table(frame, party="bank", id="customer", label="default", rules=ReadingRules(**rules))


def classes_of(labels, **rules):
    return infer_task(read(labels, **rules).label, party="bank").classes


def notes_of(labels, **rules):
    return " ".join(read(labels, **rules).notes)


def written(*spellings):
    """Return the clean labels, in which every label is written in the next of its class's spellings."""
    zero, one = map(cycle, spellings)
    return [next(one if label == "1" else zero) for label in CLEAN]


def missing(mark, every=12):
    return [mark if place % every == 0 else label for place, label in enumerate(CLEAN)]


class TestSpellings:
    @pytest.mark.parametrize(
        ("zero", "one", "names"),
        [
            (["0", "0.0"], ["1", "1.00"], ("0", "1")),
            (["0", "0e0", "0.000"], ["1", "1e0", "+1"], ("0", "1")),
            (["false", "False", "FALSE"], ["true", "TRUE"], ("false", "true")),
            (["no", " No ", "no"], ["yes", "yes\u200b", "yes"], ("no", "yes")),
            (["no", "NO", "no\u00a0"], ["yes", "Yes", "\ufeffyes"], ("no", "yes")),
            (["caf\u00e9"], ["th\u00e9", "the\u0301", "th\u00e9"], ("caf\u00e9", "th\u00e9")),
            (["no", "\uff4e\uff4f", "no"], ["yes", "\uff59\uff45\uff53", "yes"], ("no", "yes")),
            (["not paid", "not  paid", "Not paid"], ["paid"], ("not paid", "paid")),
            (["N", "n", "N"], ["Y", "y", "Y"], ("N", "Y")),
        ],
    )
    def test_one_class_whatever_its_spelling(self, zero, one, names):
        table = read(labels := written(zero, one))
        task = infer_task(table.label, party="bank")
        assert task.classes == names
        y, _ = encode(table.label, task, "bank")
        assert y.tolist() == [int(label) for label in CLEAN]
        assert "spellings of one class are read as one" in " ".join(table.notes)
        for text in {*(zero if len(zero) > 1 else []), *(one if len(one) > 1 else [])}:
            assert re.search(rf"\({labels.count(text)}\)", notes_of(labels)), text

    def test_invisible_characters_are_shown(self):
        assert r"'yes\u200b' (36)" in notes_of(written(["no"], ["yes", "yes\u200b"]))

    def test_clean_labels_need_no_note(self):
        assert read(CLEAN).notes == ()
        assert read(written(["No"], ["Yes"])).notes == ()
        assert classes_of(written(["No"], ["Yes"])) == ("No", "Yes")

    @pytest.mark.parametrize(
        ("zero", "one"),
        [
            (["false", "False", "0"], ["true", "True"]),
            (["0"], ["true", "1", "yes"]),
            (["no", "0"], ["yes", "1"]),
            (["f", "no"], ["t"]),
        ],
    )
    def test_several_ways_to_write_yes_and_no_stop(self, zero, one):
        table = read(written(zero, one))
        with pytest.raises(TableError, match=r"mix several ways to write yes and no: write federation.classes = \{yes"):
            infer_task(table.label, party="bank")
        told = classes({"yes": one, "no": zero})
        assert classes_of(written(zero, one), classes=told) == ("no", "yes")

    @pytest.mark.parametrize("labels", [["1.1", "1.10", "1.2"], ["01", "1", "02"], ["a", "A", "b"], ["Ab", "ab"]])
    def test_what_may_be_two_classes_stops(self, labels):
        table = read(labels * 20)
        with pytest.raises(TableError, match=r"may be one class or two: write federation.classes = \{"):
            infer_task(table.label, party="bank", kind="classification")
        declared = read(labels * 20, classes=classes(sorted(set(labels))))
        assert set(infer_task(declared.label, party="bank").classes) == set(labels)

    def test_a_label_that_is_not_among_the_classes_stops(self):
        with pytest.raises(
            TableError, match=r"'late' \(20\), which federation.classes does not list \('late' in row 1"
        ):
            read(missing("late"), classes=classes([0, 1]))

    def test_later_labels_may_be_spelled_in_another_way(self):
        task = Task(kind="classification", classes=("no", "yes"))
        label = read(["YES", "No ", "yes\u200b", None]).label
        assert encode(label, task, "bank")[0].tolist() == [1, 0, 1, -1]
        assert unseen(label, task) == ()
        assert unseen(read(["YES", "late"]).label, task) == ("late",)


class TestMissing:
    @pytest.mark.parametrize(
        "mark", ["-", ".", "\\N", "?", "*", "NA", "N/A", "#N/A", "NaN", "null", "None", "\u2013", " - "]
    )
    def test_a_mark_means_no_label(self, mark):
        table = read(missing(mark))
        assert table.label.null_count() == 20
        assert infer_task(table.label, party="bank").classes == ("0", "1")
        assert f"20 of 240 cells of label column 'default' are '{mark.strip()}' (20)" in " ".join(table.notes)

    def test_an_empty_cell_needs_no_note(self):
        table = read(missing("  "))
        assert table.label.null_count() == 20
        assert table.notes == ()

    def test_minus_beside_plus_is_a_class(self):
        assert classes_of(written(["-"], ["+"])) == ("+", "-")

    @pytest.mark.parametrize(
        "mark", ["unknown", "Unknown", "(none)", "none", "-9", "999", "9", "-1", "refused", "n.a.", "pending"]
    )
    def test_what_could_be_a_class_stops(self, mark):
        with pytest.raises(TableError) as stopped:
            classes_of(missing(mark))
        for part in (
            f"'{mark}' in 20 of 240 labels beside '0', '1'",
            "in row 1,",
            f'missing = {{default = ["{mark}"]}}',
            "federation.classes = [",
        ):
            assert part in str(stopped.value)
        assert str(stopped.value).count(" in row ") == 5
        assert classes_of(missing(mark), missing={"default": (mark,)}) == ("0", "1")
        assert len(classes_of(missing(mark), classes=classes([0, 1, mark]))) == 3

    @pytest.mark.parametrize("mark", [-9, 999, -9.0])
    def test_numbers_of_a_data_frame_stop_too(self, mark):
        labels = [mark if each == str(mark) else type(mark)(each) for each in missing(str(mark))]
        with pytest.raises(TableError, match=rf"'{mark:.0f}' in 20 of 240 labels beside '0', '1'"):
            classes_of(labels)
        assert classes_of(labels, missing={"default": (f"{mark:.0f}",)}) == ("0", "1")

    @pytest.mark.parametrize(
        "labels",
        [
            ["-1", "-2", "0", "1"] * 30,  # a quarter of the rows each
            ["1", "2", "3", "4", "5"] * 40 + ["6"],
            [str(n) for n in range(10)] * 20,
            ["mild", "severe", "unclear"] * 40,
        ],
    )
    def test_classes_that_are_evident_do_not_stop(self, labels):
        with remarks_to(pytest.fail):
            assert set(classes_of(labels)) == set(labels)

    @pytest.mark.parametrize(
        ("labels", "mark"),
        [
            (["setosa", "virginica", "unknown"] * 40, "unknown"),
            (["yes", "no", "no", "Refused"] * 40, "Refused"),
            (["0", "1", "999"] * 40, "999"),
            (["mild", "severe", "-9"] * 40, "-9"),
            (["spam", "(none)"] * 40, "(none)"),
            ([0, 1, 99] * 40, "99"),
        ],
    )
    def test_a_frequent_mark_is_a_class_with_a_remark(self, labels, mark):
        said = (
            rf"'{re.escape(mark)}' in \d+ of \d+ labels.*missing = {{default = \[\"{re.escape(mark)}\"\]}}.*as a class"
        )
        with pytest.warns(AnypartyWarning, match=said):
            assert set(classes_of(labels)) == set(map(str, labels))
        with remarks_to(pytest.fail):
            assert mark in classes_of(labels, classes=classes(sorted(set(map(str, labels)))))

    def test_a_mark_can_be_declared_a_class(self):
        labels = ["None", "mild", "severe"] * 20
        assert classes_of(labels, classes=classes(["None", "mild", "severe"])) == ("mild", "None", "severe")


class TestSettings:
    """The same settings decide in Python, on the command line and at prediction."""

    def tables(self, labels):
        x = np.random.default_rng(0).normal(size=len(labels))
        bank = pl.DataFrame({"customer": range(len(labels)), "age": x, "default": labels})
        shop = pl.DataFrame({"customer": range(len(labels)), "sum": x[::-1]})
        return {"bank": bank, "shop": shop}

    def test_python(self):
        tables = self.tables(missing("-9"))
        federation = Federation.from_tables(tables, id="customer", label="default", missing={"bank": {"default": [-9]}})
        assert federation.labeled.sum() == 220
        assert federation.predicted().startswith("task: classification, classes 0, 1")
        federation = Federation.from_tables(
            self.tables(written(["no"], ["yes", "1"])),
            id="customer",
            label="default",
            classes=YES_NO,
        )
        model = federation.train("local", epochs=1, validation=0)
        assert model.task.classes == ("n", "y")

    @pytest.mark.filterwarnings("ignore:the model was trained on")
    def test_a_saved_model_reads_labels_as_training_did(self, tmp_path):
        tables = self.tables(written(["no"], ["yes", "1"]))
        federation = Federation.from_tables(tables, id="customer", label="default", classes=YES_NO)
        model = federation.train("local", epochs=1, validation=0, folder=tmp_path / "run")
        again = type(model).load(tmp_path / "run")
        found = model.evaluate(tables).to_json()
        assert again.evaluate(tables).to_json() == {**found, "worth": None}  # a stored model has no training rows


@pytest.mark.parametrize(("bad", "good"), [("bad", "GOOD"), ("BAD", "good"), ("Bad", "Good")])
def test_the_commonest_spelling_does_not_decide_which_class_is_positive(bad, good):
    assert classes_of(written([bad], [good])) == (bad, good)


def test_a_negative_number_among_codes_of_numbers_and_words_stops():
    with pytest.raises(TableError, match="may stand for a missing label"):
        classes_of(["-9", *["0.5", "x", "y"] * 10])
    assert "9" in classes_of(["9", *["7", "x", "y"] * 10])
