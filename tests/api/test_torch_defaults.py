"""PyTorch's global settings in the user's program do not change training or prediction."""

from contextlib import contextmanager

import numpy as np
import polars as pl
import pytest
import torch

from anyparty import Federation, Model
from tests.slow_parameters import slow_but


@contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def default_device(name):
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


def tables(n=60):
    random = np.random.default_rng(0)
    ids, (u, v, w) = [f"k{i}" for i in range(n)], random.normal(size=(3, n))
    bank = pl.DataFrame({"id": ids, "u": u, "v": v, "y": (u > 0).astype(int)})
    return {"bank": bank, "shop": pl.DataFrame({"id": ids, "w": w, "town": random.choice(["a", "b"], n)})[:40]}


SETTINGS = {
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "meta": lambda: default_device("meta"),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


PAIRS = [
    *(("laser", setting) for setting in SETTINGS), ("apc", "meta"), ("apc", "no_grad"), ("false-vfl-2", "float64"),
    ("false-vfl-2", "meta"), ("fedhssl", "bfloat16"), ("vfedtrans", "inference_mode"), ("vfedtrans", "float64"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "setting"), slow_but(PAIRS, lambda pair: pair[0] in {"laser", "apc"}))
def test_training_and_prediction_are_the_same(tmp_path, method, setting):
    def results(folder):
        model = Federation.from_tables(tables(), label="y").train(method, epochs=1, seed=1)
        model.save(folder)
        again = Model.load(folder).predict(tables())
        return torch.cat([model.predict().scores, again.scores]), model.evaluate().overall

    plain, scores = results(tmp_path / "plain")
    with SETTINGS[setting]():
        before = torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()
        other, same = results(tmp_path / "other")
        assert before == (torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled())
    assert torch.equal(plain, other.to("cpu"))
    assert scores == same


def test_settings_of_the_caller_are_restored_after_an_error():
    with default_dtype(torch.float64):
        with pytest.raises(ValueError, match="epochs"):
            Federation.from_tables(tables(), label="y").train(epochs=0)
        assert torch.get_default_dtype() == torch.float64
