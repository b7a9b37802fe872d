"""Whole numbers as labels: each way to build a federation names the task that it chose, or asks."""

from html import unescape

import numpy as np
import polars as pl
import pytest

from anyparty.api.federation import Federation
from anyparty.api.runs import evaluate_run
from anyparty.errors import AnypartyWarning, TableError
from anyparty.sklearn import VerticalClassifier

ROWS = 26 * 20
LETTERS = np.arange(ROWS) % 26  # 20 rows of each letter
X = {name: np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32) for name in "ab"}
ASCII = (LETTERS + ord("a")).astype(np.uint8)
QUESTION = 'federation.task = "classification"\nfederation.task = "regression"'


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
def test_letters_as_numbers_are_classes_as_letters_as_text_are(dtype):
    federation = Federation.from_arrays(X, LETTERS.astype(dtype))
    assert repr(federation).endswith("; task: classification>")
    assert "reason: the 26 whole numbers from 0 to 25, each in at least 20 rows" in federation.predicted()
    with pytest.warns(AnypartyWarning, match=r'read as classes; write federation.task = "regression" if they are'):
        assert len(federation.train("laser", epochs=1).task.classes) == 26
    as_text = Federation.from_arrays(X, np.array([chr(code) for code in ASCII]))
    assert len(as_text.train("laser", epochs=1).task.classes) == 26


def test_a_named_task_needs_no_remark():
    federation = Federation.from_arrays(X, LETTERS, task="classification")
    assert "reason" not in federation.predicted()
    assert not federation.overlap.notes
    assert len(federation.train("laser", epochs=1).task.classes) == 26


def test_codes_that_may_be_numbers_ask_where_the_federation_is_built(tmp_path, call):
    with pytest.raises(TableError) as stopped:
        Federation.from_arrays(X, ASCII)
    assert "26 different whole numbers from 97 to 122 in 520 labels" in str(stopped.value)
    assert QUESTION in str(stopped.value)
    for task in ("classification", "regression"):
        assert Federation.from_arrays(X, ASCII, task=task).predicted().startswith(f"task: {task}")
    lines = [f"{row},{row % 7},{code}" for row, code in enumerate(ASCII)]
    (tmp_path / "a.csv").write_text("\n".join(["id,x,letter", *lines]))
    (tmp_path / "b.csv").write_text("\n".join(["id,z", *(f"{row},{row % 5}" for row in range(ROWS))]))
    tables = {name: tmp_path / f"{name}.csv" for name in "ab"}
    with pytest.raises(TableError, match="may be classes or numbers"):
        Federation.from_tables(tables, label="letter")
    stopped = call("align", *tables.values(), "--label", "letter")
    assert stopped.exit_code != 0
    assert QUESTION in stopped.output
    chosen = call("align", *tables.values(), "--label", "letter", "--set", "federation.task=classification")
    assert "task: classification, classes 97, 98, 99 and 23 more" in chosen.output


@pytest.mark.parametrize("labels", [ASCII, LETTERS])
def test_a_run_of_an_earlier_version_keeps_its_task_and_its_test_rows(tmp_path, labels):
    """Earlier versions read all labels with more than 20 whole numbers as numbers, with the setting "auto"."""
    for name in "ab":
        frame = pl.DataFrame({"id": np.arange(ROWS)} | {f"x{k}": X[name][:, k] for k in range(3)})
        frame = frame.with_columns(y=pl.Series(labels)) if name == "a" else frame
        frame.write_csv(tmp_path / f"{name}.csv")
    tables = {name: tmp_path / f"{name}.csv" for name in "ab"}
    trained = Federation.from_tables(tables, label="y", task="regression").train(
        "laser", epochs=1, folder=tmp_path / "run"
    )
    settings = tmp_path / "run" / "config.toml"
    settings.write_text(settings.read_text().replace('task = "regression"', 'task = "auto"'))
    assert evaluate_run(tmp_path / "run").to_json() == trained.evaluate().to_json()
    with pytest.warns(AnypartyWarning, match="only the rows that its run held out are scored"):
        assert evaluate_run(tmp_path / "run", tables).to_json() == trained.evaluate().to_json()


def test_a_quantity_is_named_with_the_reason_and_the_other_setting():
    federation = Federation.from_arrays(X, np.arange(ROWS) % 50)
    assert repr(federation).endswith("; task: regression>")
    said = federation.predicted()
    assert 'federation.task = "classification" for classes; reason: 50 different whole numbers from 0 to 49' in said
    assert said in " ".join(unescape(federation._repr_html_()).split())


def test_the_scikit_learn_classifier_needs_no_choice():
    blocks = {"a": [0, 1, 2], "b": [3, 4, 5]}
    fitted = VerticalClassifier(blocks=blocks, epochs=1, random_state=0).fit(np.hstack([X["a"], X["b"]]), ASCII)
    assert fitted.model_.task.kind == "classification"
    assert set(fitted.classes_) == set(ASCII.tolist())
