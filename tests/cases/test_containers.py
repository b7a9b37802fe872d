"""Cases 21 and 30: arrays and frames of other libraries, whose containers say more than their numbers.

Masked cells are missing cells. A type that cannot be converted is refused with a sentence.
"""

import datetime as dt
import uuid
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from anyparty.api.federation import Federation
from anyparty.errors import AnypartyError, TableError
from anyparty.sklearn import VerticalClassifier

ROWS = 60
IDS = range(100, 100 + ROWS)  # whose order as text is their order as numbers
RANDOM = np.random.default_rng(0)
A, B = RANDOM.normal(size=(ROWS, 3)), RANDOM.normal(size=(ROWS, 2))
Y = (A[:, 0] + RANDOM.normal(size=ROWS) > 0).astype(int)
HIDDEN = np.arange(ROWS) % 4 == 0  # 15 of 60 rows
HIDDEN_ROWS = np.repeat(HIDDEN[:, None], 2, axis=1)
WORDS = np.where(Y, "yes", "no")


def masked(values, mask=HIDDEN):
    return np.ma.masked_array(values, mask=mask)


def in_list(values):
    return [None if gone else value for gone, value in zip(HIDDEN, values, strict=True)]


class TestCase21MaskedCells:
    LABELS = {
        "whole numbers": masked(Y),
        # further inputs
        "numbers": masked(Y * 1.0),
        "booleans": masked(Y == 1),
        "texts": masked(WORDS),
        "objects": masked(WORDS.astype(object)),
        "elements in a list": list(masked(Y)),
        "torch.masked": lambda: torch.masked.masked_tensor(torch.tensor(Y * 1.0), torch.tensor(~HIDDEN)),
        "pandas array": pd.array(in_list(Y), dtype="Int64"),
        "pandas series": pd.Series(in_list(WORDS), dtype="string"),
        "pandas categories": pd.Series(in_list(WORDS)).astype("category"),
        "pandas NA in a list": [pd.NA if value is None else value for value in in_list(Y)],
        "pyarrow array": pa.array(in_list(Y)),
        "pyarrow chunks": pa.chunked_array([in_list(Y)]),
        "polars series": pl.Series(in_list(WORDS)),
    }

    @pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning")
    @pytest.mark.parametrize("name", LABELS)
    def test_a_masked_label_is_no_label(self, name):
        labels = self.LABELS[name]
        made = Federation.from_arrays({"a": A, "b": B}, labels() if callable(labels) else labels, ids=IDS)
        assert made.labeled.tolist() == (~HIDDEN).tolist()
        assert made.task(made.split()).classes in {("0", "1"), ("false", "true"), ("no", "yes")}

    @pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning")
    def test_a_masked_block_is_a_row_that_the_party_lacks(self):
        for block in (
            masked(B, HIDDEN_ROWS),
            masked((B * 9).astype(np.int8), HIDDEN_ROWS),
            masked(B > 0, HIDDEN_ROWS),
            masked(np.stack([B, B], axis=2), np.stack([HIDDEN_ROWS] * 2, axis=2)),
            torch.masked.masked_tensor(torch.tensor(B), torch.tensor(~HIDDEN_ROWS)),
        ):
            observed = Federation.from_arrays({"a": A, "b": block}, Y, ids=IDS).observed
            assert observed[:, 1].tolist() == (~HIDDEN).tolist()

    def test_a_masked_field_is_a_missing_cell(self):
        table = np.zeros(ROWS, dtype=[("id", "i8"), ("n", "i4"), ("x", "f8"), ("town", "U4")])
        table["id"], table["n"], table["x"], table["town"] = range(ROWS), range(ROWS), B[:, 0], WORDS
        rows = np.ma.masked_array(table, mask=[(False, bool(gone), bool(gone), bool(gone)) for gone in HIDDEN])
        bank = pl.DataFrame({"id": IDS, "u": A[:, 0], "y": Y})
        rows["id"] += 100
        columns = Federation.from_tables({"bank": bank, "shop": rows}, id="id", label="y").tables["shop"].columns
        assert columns.null_count().row(0) == (15, 15, 15)
        assert columns["n"][1] == 1
        rows["id"] = np.ma.masked
        with pytest.raises(TableError, match="has no id in rows 1, 2"):
            Federation.from_tables({"bank": bank, "shop": rows}, id="id", label="y")

    @pytest.mark.filterwarnings("ignore:the model was trained on")
    def test_prediction_and_evaluation(self):
        model = Federation.from_arrays({"a": A, "b": B}, Y).train("laser", epochs=2, seed=1)
        cells = RANDOM.random((ROWS, 2)) > 0.7
        nan, mask = np.where(cells, np.nan, B), masked(np.where(cells, 0.0, B), cells)
        expected, scored = model.predict({"a": A, "b": nan}), model.evaluate({"a": A, "b": nan}, y=Y)
        assert model.predict({"a": A, "b": mask}).scores.equal(expected.scores)
        assert model.evaluate({"a": A, "b": mask}, y=Y).overall == scored.overall
        assert "of 45 rows" in repr(model.evaluate({"a": A, "b": mask}, y=masked(Y)))

    def test_a_masked_observation_is_refused(self):
        with pytest.raises(TableError, match="observed: masked cells do not say"):
            Federation.from_arrays({"a": A, "b": B}, Y, observed=masked(np.ones((ROWS, 2), bool), HIDDEN_ROWS))

    def test_estimator(self):
        X = np.hstack([A, B])
        gone = np.hstack([np.zeros((ROWS, 3), bool), HIDDEN_ROWS])
        for blocks, given, plain in (
            ({"a": [0, 1, 2], "b": [3, 4]}, masked(X, gone), np.where(gone, np.nan, X)),
            (None, {"a": A, "b": masked(B, HIDDEN_ROWS)}, {"a": A, "b": np.where(HIDDEN_ROWS, np.nan, B)}),
        ):
            one, two = (
                VerticalClassifier(blocks=blocks, epochs=1, hidden=(4,), random_state=0).fit(X, Y)
                for X in (given, plain)
            )
            assert np.array_equal(one.predict_proba(given), two.predict_proba(plain))
        for labels in (masked(Y), pl.Series(in_list(WORDS)), in_list(WORDS)):
            with pytest.raises(TableError, match=r"15 (masked|missing) labels; each row needs a label"):
                VerticalClassifier(epochs=1).fit(X, labels)


class TestCase30InputsOfOtherLibraries:
    FRAME = pd.DataFrame(np.hstack([A[:, :2], B[:, :1]]), columns=["u", "v", "w"])

    def test_frames_of_the_estimator(self):
        frame = self.FRAME
        estimator = VerticalClassifier(blocks={"p": ["u", "v"], "q": ["w"]}, epochs=1, hidden=(4,), random_state=0)
        expected = estimator.fit(frame, Y).predict_proba(frame)
        table = pa.Table.from_pandas(frame)
        for given in (table, table.to_batches()[0], pl.from_pandas(frame).lazy(), frame.to_records(index=False)):
            assert np.array_equal(estimator.predict_proba(given), expected)
        assert np.array_equal(estimator.fit(table, pa.array(Y)).predict_proba(table), expected)
        by_party = {"p": frame[["u", "v"]], "q": pa.table({"w": frame["w"]})}
        assert np.array_equal(VerticalClassifier(epochs=1, hidden=(4,), random_state=0).fit(by_party, Y)
                              .predict_proba(by_party), expected)  # fmt: skip

    def test_tensors(self):
        plain = Federation.from_arrays({"a": A, "b": B}, Y)
        for block in (
            torch.tensor(B).to(torch.bfloat16),
            torch.tensor(B).half(),
            torch.tensor(B).to(torch.float8_e4m3fn),
            torch.tensor(B, requires_grad=True),
            torch.complex(torch.tensor(B), torch.tensor(B)).conj().imag,
        ):
            made = Federation.from_arrays({"a": torch.tensor(A), "b": block}, torch.tensor(Y).to(torch.bfloat16))
            assert made.alignment.n == plain.alignment.n
            expected = block.detach().to(torch.float32).numpy()
            assert np.allclose(made.tables["b"].columns.to_numpy(), expected, rtol=1e-6)

    def test_arrays_of_another_library(self):
        class Array:
            """An array such as those of jax."""

            def __init__(self, array):
                self.array, self.ndim, self.shape = array, array.ndim, array.shape

            def __array__(self, dtype=None, copy=None):
                return np.array(self.array, dtype=dtype)

        made = Federation.from_arrays({"a": Array(A), "b": B}, list(Y))
        assert np.array_equal(made.tables["a"].columns.to_numpy(), A)
        assert made.train("laser", epochs=1).predict({"a": Array(A), "b": B}).scores.shape == (ROWS, 2)

    @pytest.mark.parametrize(
        ("block", "words"),
        [
            (torch.tensor(B).to_sparse(), "to_dense()"),
            (torch.ones(ROWS, 2, device="meta"), "meta tensor"),
            (torch.complex(torch.tensor(B), torch.tensor(B)), "complex"),
            (pa.table({"x": B[:, 0]}), "from_tables"),
            (np.array([["2024-01-01"] * 2] * ROWS, dtype="datetime64[D]"), "datetime64"),
        ],
    )
    def test_what_cannot_be_converted_is_refused_with_a_sentence(self, block, words):
        with pytest.raises(TableError, match=r"party 'b'") as stopped:
            Federation.from_arrays({"a": A, "b": block}, Y)
        assert words in str(stopped.value)

    def test_other_arguments_are_refused_with_a_sentence(self):
        bank = pl.DataFrame({"id": IDS, "u": A[:, 0], "y": Y})
        reader = pa.table({"id": IDS, "w": B[:, 0]}).to_reader()
        shop = pd.Series(Y)
        for call, words in (
            (lambda: Federation.from_arrays({"a": A}, 3), "y: expected a list"),
            (lambda: Federation.from_arrays({"a": A}, torch.tensor(Y).to_sparse()), "to_dense()"),
            (lambda: Federation.from_arrays({"a": A}, Y[:, None]), "y: expected the shape (60,)"),
            (lambda: Federation.from_arrays({"a": A}, [[1]] * ROWS), "of type List"),
            (lambda: Federation.from_tables({"bank": bank, "shop": reader}, id="id", label="y"), "reader.read_all()"),
            (lambda: Federation.from_tables({"bank": bank, "shop": shop}, id="id", label="y"), "not from Series"),
            (lambda: VerticalClassifier(epochs=1).fit(torch.tensor(A).to_sparse(), Y), "to_dense()"),
            (lambda: VerticalClassifier(epochs=1).fit({"a": torch.tensor(A).to_sparse()}, Y), "to_dense()"),
        ):  # fmt: skip
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with pytest.raises(AnypartyError) as stopped:
                    call()
            assert words in str(stopped.value)

    def test_ids_of_other_libraries(self):
        days = pd.date_range("2024-01-01", periods=ROWS)
        for ids, text in (
            (torch.arange(ROWS) + 100, "100"),
            (pd.Index([f"k{row}" for row in range(ROWS)]), "k0"),
            (days, "2024-01-01"),
            (days.to_numpy().astype("datetime64[D]"), "2024-01-01"),
            ([day.date() for day in days], "2024-01-01"),
            (pa.array([f"k{row}" for row in range(ROWS)]), "k0"),
            ([row if row % 2 else f"k{row}" for row in range(ROWS)], "k0"),
            ([uuid.UUID(int=row) for row in range(ROWS)], str(uuid.UUID(int=0))),
            ([dt.datetime(2024, 1, 1, 8, row) for row in range(ROWS)], "2024-01-01 08:00:00"),
        ):
            assert text in Federation.from_arrays({"a": A, "b": B}, Y, ids=ids).alignment.ids.to_list()
        with pytest.raises(TableError, match="has no id in rows 1, 5, 9"):
            Federation.from_arrays({"a": A, "b": B}, Y, ids=masked(np.arange(ROWS)))
