"""User functions in training: loss, optimizer, scheduler, and callbacks that read embeddings; typed keywords."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_type_hints

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from anyparty import Callback, Federation, Optimizer
from anyparty.artifacts.record import RunRecord
from anyparty.config import TrainSettings
from anyparty.config.schema import TrainOptions
from anyparty.core.object_description import name_of
from anyparty.core.types import Task
from anyparty.errors import ConfigError, ResumeError
from anyparty.networks.objective import losses

QUICK: dict[str, Any] = {"epochs": 3, "batch_size": 16, "patience": None}


@pytest.fixture(scope="module")
def federation() -> Federation:
    draw = np.random.default_rng(0)
    X, ids = draw.normal(size=(60, 2)), [f"r{n:02d}" for n in range(60)]
    tables = {"a": pl.DataFrame({"id": ids, "x": X[:, 0], "y": (X.sum(1) > 0).astype(int)}),
              "b": pl.DataFrame({"id": ids[:50], "x": X[:50, 1]})}  # fmt: skip
    return Federation.from_tables(tables, label="y")


def weights(model: Any) -> Tensor:
    modules = [module for member in model.members.values() for module in member.state.modules.values()]
    return torch.cat([parameter.detach().flatten() for module in modules for parameter in module.parameters()])


class Seen(Callback):
    """Keep the numbers of epochs that the callback receives."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        self.epochs.append(record["epoch"])


def test_epochs_count_from_1_everywhere(federation: Federation, tmp_path: Path) -> None:
    seen, folder = Seen(), tmp_path / "run"
    model = federation.train("laser", watch=seen, folder=folder, **QUICK)
    record = RunRecord.read(folder / "record.json")
    losses = [each.validation["log_loss"] for each in record.history]
    assert seen.epochs == [each.epoch for each in record.history] == [1, 2, 3]
    assert record.best_epoch == model.best_epoch == losses.index(min(losses)) + 1
    assert model.history[0]["epoch"] == 1


def test_the_usual_loss_as_a_function_trains_the_same_model(federation: Federation) -> None:
    plain = weights(federation.train("laser", **QUICK))
    rowwise = weights(federation.train("laser", loss=lambda out, y: functional.cross_entropy(out, y, reduction="none"),
                                       **QUICK))  # fmt: skip
    mean = weights(federation.train("laser", loss=functional.cross_entropy, **QUICK))
    torch.testing.assert_close(rowwise, plain, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(mean, plain, atol=1e-5, rtol=1e-4)
    other = weights(federation.train("laser", loss=partial(functional.cross_entropy, label_smoothing=0.5), **QUICK))
    assert (other - plain).abs().max() > 1e-3
    torch.testing.assert_close(
        weights(federation.train("laser", **QUICK)), plain, atol=0, rtol=0
    )  # it ends with the run


def test_a_loss_of_another_shape_is_refused() -> None:
    task, out, y = Task(kind="classification", classes=("a", "b")), torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ConfigError, match=r"each of 4 rows.*\[4, 2\]"):
        losses(task, out, y, lambda out, _: out)
    by_row = partial(functional.cross_entropy, reduction="none")
    weighted = losses(Task(kind="classification", classes=("a", "b"), weights=(3.0, 1.0)), out, y, by_row)
    torch.testing.assert_close(weighted, torch.full((4,), 3 * float(np.log(2))))
    squares = losses(Task(kind="regression"), torch.full((4, 1), 2.0), torch.zeros(4), lambda out, y: (out - y) ** 2)
    assert squares.tolist() == [4.0] * 4


def test_the_usual_optimizer_as_a_function_trains_the_same_model(federation: Federation) -> None:
    plain = weights(federation.train("plug", optimizer=Optimizer(name="sgd", lr=0.1), **QUICK))
    own = weights(federation.train("plug", optimizer=lambda params: torch.optim.SGD(params, lr=0.1), **QUICK))
    torch.testing.assert_close(own, plain, atol=1e-6, rtol=1e-5)
    step = Optimizer(name="sgd", lr=0.1, schedule="step", milestones=(2,), gamma=0.5)
    falling = weights(federation.train("plug", optimizer=step, **QUICK))
    scheduled = federation.train(
        "plug", optimizer=Optimizer(name="sgd", lr=0.1), scheduler=lambda o: StepLR(o, 2, 0.5), **QUICK
    )
    torch.testing.assert_close(weights(scheduled), falling, atol=1e-6, rtol=1e-5)
    assert (falling - plain).abs().max() > 1e-4
    assert federation.train("plug", optimizer={"a": torch.optim.RMSprop, "b": "sgd"}, **QUICK).test_rows


def rmsprop(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, lr=0.01)


def test_a_resumed_run_repeats_the_scheduler(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = QUICK | {
        "optimizer": rmsprop,
        "scheduler": lambda o: StepLR(o, 1, 0.5),
        "checkpoint_every": 1,
    }
    whole = weights(federation.train("laser", folder=tmp_path / "whole", **options))

    class Stop(Callback):
        def on_epoch_end(self, record: dict[str, Any]) -> None:
            if record["epoch"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federation.train("laser", folder=tmp_path / "run", watch=Stop(), **options)
    resumed = federation.train("laser", folder=tmp_path / "run", resume=True, **options)
    torch.testing.assert_close(weights(resumed), whole, atol=0, rtol=0)
    assert "rmsprop with" in (tmp_path / "run" / "config.toml").read_text()


def doubled(outputs: Tensor, y: Tensor) -> Tensor:
    return 2 * torch.nn.functional.cross_entropy(outputs, y, reduction="none")


def faster(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, lr=0.1)


def test_a_resume_with_another_function_is_refused(federation: Federation, tmp_path: Path) -> None:
    options: dict[str, Any] = QUICK | {"loss": doubled, "optimizer": rmsprop, "scheduler": halved}
    federation.train("laser", folder=tmp_path, **options)
    assert RunRecord.read(tmp_path / "record.json").loss == f"{__name__}:doubled"
    for change, message in (
        (
            {"loss": torch.nn.CrossEntropyLoss()},
            "the run began with .*:doubled, and this call has torch.*EntropyLoss",
        ),
        ({"loss": None}, "this call has the built-in loss; pass the first one to train"),
        ({"optimizer": faster}, "setting parties.a.optimizer.name: was '.*rmsprop"),
        ({"scheduler": None}, "setting parties.a.optimizer.name: was "),
    ):
        with pytest.raises(ResumeError, match=message):
            federation.train("laser", folder=tmp_path, resume=True, **options | change)
    federation.train("laser", folder=tmp_path, resume=True, **options)


def smooth(share: float) -> Any:
    return lambda outputs, y: functional.cross_entropy(outputs, y, label_smoothing=share)


def scaled(times: float) -> Any:
    def local(outputs: Tensor, y: Tensor) -> Tensor:
        return times * functional.cross_entropy(outputs, y)

    return local


class Scaled:
    def __init__(self, times: float) -> None:
        self.times = times

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.times * functional.cross_entropy(outputs, y)


# pairs of functions with equal names
EITHER = (lambda out, y: functional.cross_entropy(out, y), lambda out, y: 2 * functional.cross_entropy(out, y))  # noqa: PLW0108
ALIKE: dict[str, tuple[Any, Any]] = {
    "two lambdas on one line": EITHER,
    "a lambda with another value from outside": (smooth(0.1), smooth(0.2)),
    "a local function with another value from outside": (scaled(1.0), scaled(2.0)),
    "an object": (nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss(label_smoothing=0.2)),
    "an object with a tensor": (nn.CrossEntropyLoss(torch.tensor([1.0, 2.0])), nn.CrossEntropyLoss(torch.ones(2))),
    "a method of an object": (Scaled(1.0).loss, Scaled(2.0).loss),
    "a partial": (partial(functional.cross_entropy, label_smoothing=0.1), partial(functional.cross_entropy)),
    "a partial of a lambda": (partial(EITHER[0]), partial(EITHER[1])),
}


@pytest.mark.parametrize("name", ALIKE)
def test_functions_with_equal_names_are_told_apart(name: str) -> None:
    one, two = ALIKE[name]
    assert name_of(one) == name_of(one)
    assert name_of(one) != name_of(two)
    assert " at 0x" not in name_of(one)


def test_the_name_of_a_function_depends_only_on_the_function() -> None:
    """The rest of a call may change between a run and its resume, and a module's function keeps its plain name."""

    def call(loss: Any, **_: Any) -> str:
        return name_of(loss)

    first = call(loss=lambda out, y: functional.cross_entropy(out, y, label_smoothing=0.1), resume=False)
    again = call(resume=True, loss=lambda out, y: functional.cross_entropy(out, y, label_smoothing=0.1))
    assert first == again
    assert name_of(doubled) == f"{__name__}:doubled"
    assert "label_smoothing=0.1" in name_of(nn.CrossEntropyLoss(label_smoothing=0.1))


def test_a_resume_with_another_function_of_the_same_name_is_refused(federation: Federation, tmp_path: Path) -> None:
    options: dict[str, Any] = QUICK | {"loss": smooth(0.1), "optimizer": lambda p: torch.optim.RMSprop(p, lr=0.01)}
    federation.train("laser", folder=tmp_path, **options)
    for change in ({"loss": smooth(0.2)}, {"optimizer": lambda p: torch.optim.RMSprop(p, lr=0.02)}):
        with pytest.raises(ResumeError, match=r"<lambda> \(code [0-9a-f]{12}\)"):
            federation.train("laser", folder=tmp_path, resume=True, **options | change)
    federation.train("laser", folder=tmp_path, resume=True, **options)


OWN = """
from torch import nn, optim
from torch.nn import functional

def net(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh())

def loss(outputs, y):
    return functional.cross_entropy(outputs, y)

def rule(parameters):
    return optim.RMSprop(parameters, lr=0.01)
"""


@pytest.mark.parametrize(
    ("was", "becomes", "use"),
    [
        ("nn.Tanh", "nn.ReLU", "encoder of a"),
        ("cross_entropy(outputs, y)", "cross_entropy(2 * outputs, y)", "loss"),
        ("lr=0.01", "lr=0.1", "optimizer of a"),
    ],
)
def test_a_resume_with_edited_code_is_refused(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was: str, becomes: str, use: str
) -> None:
    """A function of a module is recorded by name; a hash of its source shows that its body has changed."""
    file, run = tmp_path / f"edited_{use.replace(' ', '_')}.py", tmp_path / "run"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def train(text: str, *, resume: bool) -> None:
        file.write_text(text, encoding="utf-8")
        sys.modules.pop(file.stem, None)
        own = importlib.import_module(file.stem)
        federation.train("laser", folder=run, resume=resume, encoder=own.net, loss=own.loss, optimizer=own.rule,
                         **QUICK)  # fmt: skip

    train(OWN, resume=False)
    train(f"# another comment{OWN}", resume=True)
    with pytest.raises(ResumeError, match=f"functions changed since the run began: source of {use}: was '"):
        train(OWN.replace(was, becomes), resume=True)
    record = json.loads((run / "record.json").read_text(encoding="utf-8"))
    del record["code"]  # as in records of earlier versions
    (run / "record.json").write_text(json.dumps(record), encoding="utf-8")
    train(OWN.replace(was, becomes), resume=True)


def test_a_resume_with_another_lambda_as_encoder_is_refused(federation: Federation, tmp_path: Path) -> None:
    federation.train("laser", folder=tmp_path, encoder=lambda i, o: nn.Linear(i, o), **QUICK)  # noqa: PLW0108
    with pytest.raises(ResumeError, match="source of encoder of a"):
        federation.train("laser", folder=tmp_path, resume=True, **QUICK,
                         encoder=lambda i, o: nn.Linear(i, o, bias=False))  # fmt: skip


def halved(optimizer: torch.optim.Optimizer) -> StepLR:
    return StepLR(optimizer, 1, 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "rmsprop"}, r"adam, adamw, sgd.*lambda parameters: torch\.optim\.RMSprop"),
        ({"optimizer": 3}, "lambda parameters"),
        ({"optimizer": lambda _: None}, "expected a torch.optim.Optimizer"),
        ({"scheduler": ReduceLROnPlateau}, "epoch only"),
        ({"scheduler": 0.5}, "StepLR"),
        ({"loss": "focal"}, "cross_entropy"),
        ({"optimizer": rmsprop, "schedule": "flex"}, "which sets the rates"),
        ({"encoder": nn.Linear(1, 1)}, r"function of \(inputs, outputs\)"),
    ],
)
def test_mistakes_name_the_callable_form(federation: Federation, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        federation.train("laser", **options, **QUICK)


def test_false_vfl_takes_no_loss(federation: Federation) -> None:
    with pytest.raises(ConfigError, match="likelihood"):
        federation.train("false-vfl-1", loss=functional.cross_entropy, **QUICK)


def test_a_callback_reads_the_embeddings_of_every_epoch(federation: Federation) -> None:
    class Look(Callback):
        def __init__(self) -> None:
            self.seen: list[dict[str, pl.DataFrame]] = []

        def on_epoch_end(self, record: dict[str, Any]) -> None:
            self.seen.append(self.embeddings())

    look = Look()
    model = federation.train("laser", watch=look, keep="last", **QUICK)
    torch.testing.assert_close(weights(model), weights(federation.train("laser", keep="last", **QUICK)), atol=0, rtol=0)
    assert len(look.seen) == 3
    assert {name: len(frame) for name, frame in look.seen[0].items()} == {"a": 60, "b": 50}
    assert not look.seen[0]["b"].equals(look.seen[1]["b"])
    assert look.seen[2]["a"].equals(look.embeddings(["a"])["a"])
    with pytest.raises(ConfigError, match="no party 'c'"):
        look.embeddings(["c"])
    with pytest.raises(ConfigError, match="one process"):
        Callback().embeddings()


def test_the_typed_keywords_are_the_settings() -> None:
    checked, typed = get_type_hints(TrainSettings), get_type_hints(TrainOptions)
    assert typed.pop("patience") == int | Literal["none"] | None  # settings convert "none" to None
    assert typed == {name: checked[name] for name in TrainSettings.model_fields if name != "patience"}


@pytest.mark.slow
def test_mypy_rejects_a_misspelt_keyword(tmp_path: Path) -> None:
    script = tmp_path / "use.py"
    call = "from anyparty import Federation\ndef use(f: Federation) -> None:\n    f.train('laser', {}=3)\n"
    found = {}
    for word in ("epochs", "epohcs"):
        script.write_text(call.format(word))
        words = [sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=silent", "--ignore-missing-imports"]
        found[word] = subprocess.run([*words, str(script)], capture_output=True, text=True, check=False)  # noqa: S603
    assert found["epochs"].returncode == 0, found["epochs"].stdout
    assert 'Unexpected keyword argument "epohcs"' in found["epohcs"].stdout
