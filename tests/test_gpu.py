"""Training, prediction and resuming on a GPU, compared with the CPU; skipped without a GPU.

Both use the same initial numbers and steps, and differ only in the order of summation.
"""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from anyparty.api.federation import Federation
from anyparty.api.imputation import impute, log_likelihood
from anyparty.api.model import Model
from anyparty.api.runs import model_for_run
from anyparty.networks.encoders import LSTM, MLP, ResNet
from anyparty.networks.optimizer import Optimizer
from tests import worlds
from tests.api.test_imputation import PARAMETERS, tables
from tests.methods.cases import CASES
from tests.methods.checks import CHECKS
from tests.methods.schedules.test_checks import ALSO, NAMED
from tests.methods.schedules.test_checks import CASES as TIMED
from tests.methods.test_checks import EXCEPTIONS

if not torch.cuda.is_available():
    pytest.skip("this machine has no GPU", allow_module_level=True)

GPU = "cuda"
FAR = 0.01  # batch normalisation over a few rows amplifies rounding
HOLDS = (
    "same seed same bits", "resumed equals uninterrupted", "same over another carrier",
    "unobserved cells do not matter", "prediction ignores batching and row order", "one row at a time", "one party",
    "rows that nobody has get no number", "absent parties are not asked", "no labels in the batch",
    "a party that leaves is missed and not replaced",
)  # fmt: skip
FREE = {
    ("laser, encoders that draw", "mixed"): "dropout draws on the device, which has a stream of its own",
    ("laser, encoders that draw", "by-pattern"): "the same",
    **{(case.title, "by-pattern"): "among three rows a unit is constant: batch normalisation after batch normalisation "
       "multiplies its rounding by 300" for case in CASES if case.of == "fedhssl"},
}  # fmt: skip
"""(case, batches): why a GPU need not come to the same weights."""
SETTINGS = {"epochs": 4, "batch_size": 64, "patience": None, "keep": "last", "validation": 0.0, "test": 0.0, "seed": 3}


@pytest.mark.parametrize("batches", ["mixed", "by-pattern"])
@pytest.mark.parametrize("case", [*CASES, *TIMED], ids=lambda case: case.title)
def test_learns_what_it_learns_on_the_cpu(case, batches):
    if case in TIMED and batches != "mixed":
        pytest.skip("schedules say which batches there are")
    here, there = (_trained(case, of, batches=batches, epochs=1) for of in (case.draw(), case.draw().on(GPU)))
    assert here.keys() == there.keys()
    far = {name: _far(value, there[name]) for name, value in here.items()}
    assert (case.title, batches) in FREE or {name: how for name, how in far.items() if how > FAR} == {}


@pytest.mark.parametrize(
    ("check", "case"),
    [
        pytest.param(check, case, id=f"{check}-{case.title}")
        for case in (*CASES, *TIMED)
        for check in HOLDS
        if (check, case.title) not in EXCEPTIONS and (case in CASES or check in NAMED | ALSO.get(case.title, set()))
    ],
)
def test_holds_there_too(check, case, tmp_path):
    there = replace(case)
    object.__setattr__(there, "draw", lambda **changes: case.draw(**changes).on(GPU))
    CHECKS[check](there, tmp_path)


def _trained(case, of, **settings):
    """Return all weights after training, and the model's answers for all rows."""
    states = worlds.states_of(case.train(of, **settings))
    said = worlds.answers_of(worlds.predict(case.make(), of, states))
    assert {tensor.device.type for tensor in said.values()} == {"cpu"}
    return {name: tensor.cpu() for name, tensor in worlds.weights(states).items()} | said


def _far(one, other):
    """Return the distance of the two tensors relative to the size of the first."""
    assert torch.equal(one.isnan(), other.isnan())
    a, b = (each.double().nan_to_num() for each in (one, other))
    return float((a - b).norm() / a.norm().clamp(min=1.0))


@pytest.mark.parametrize(
    ("encoder", "width"),
    [(ResNet(shape=(1, 6, 4), widths=(4, 8), depths=(1, 1)), 24), (LSTM(steps=4, hidden=8), 24), (MLP(norm=True), 24)],
    ids=["resnet", "lstm", "mlp"],
)
@pytest.mark.parametrize("method", ["laser", "false-vfl-1", "false-vfl-2", "fedhssl"])
def test_every_kind_of_network(encoder, width, method):
    rng = np.random.default_rng(0)
    y, ids = rng.integers(0, 3, size=200), [str(n) for n in range(200)]
    made = {
        name: _frame(ids, rng.normal(size=(200, width)) + y[:, None], y if name == "bank" else None)
        for name in ("bank", "shop")
    }
    scores = []
    for device in ("cpu", GPU):
        model = Federation.from_tables(made, label="label").train(method, encoder=encoder, device=device, **SETTINGS)
        scores.append(model.predict(made).scores)
    assert float((scores[0] - scores[1]).abs().max()) < 0.05


def _frame(ids, X, y):
    columns = {f"x{k}": X[:, k] for k in range(X.shape[1])}
    return pl.DataFrame({"id": ids, **columns, **({} if y is None else {"label": [f"c{k}" for k in y]})})


def test_a_model_of_a_gpu_goes_to_a_cpu_and_back(tmp_path):
    given, spent = tables()
    federation = Federation.from_tables(given, label="bad")
    model = federation.train(
        "false-vfl-2", parameters=PARAMETERS, optimizer=Optimizer(lr=5e-3), device=GPU, folder=tmp_path / "run",
        **SETTINGS | {"epochs": 20},
    )  # fmt: skip
    said = model.predict(given)
    for device in ("cpu", GPU):
        again = Model.load(tmp_path / "run", device=device)
        assert float((again.predict(given).scores - said.scores).abs().max()) < 1e-4
        filled, likely = impute(again, given, "shop"), log_likelihood(again, given)
        assert np.corrcoef(filled.mean[:, 0], [spent[int(name)] for name in filled.ids])[0, 1] > 0.8
        assert likely["log_likelihood"].is_finite().all()
    assert model_for_run(tmp_path / "run").members["bank"].state.seat.device.type == GPU
    assert model_for_run(tmp_path / "run", device="cpu").members["bank"].state.seat.device.type == "cpu"


def test_the_command_line(work, call):
    for words in (
        ("train", "credit.toml", "--set", f"train.device={GPU}", "--run", "run"),
        ("evaluate", "run"),
        ("predict", "run", "--table", "shop=shop.csv", "--out", "scores.csv"),
        ("report", "run"),
    ):
        result = call(*words)
        assert result.exit_code == 0, result.output
    assert pl.read_csv("scores.csv").height == 90
