"""Schedulers that take a step per batch, clipped gradients, and trackers from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR

from anyparty import Federation, Model, Optimizer
from anyparty.errors import AnypartyWarning, ConfigError
from anyparty.training.callbacks import Callback


@pytest.fixture(scope="module")
def federation() -> Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 4))
    return Federation.from_arrays({"a": x[:, :2], "b": x[:, 2:]}, (x.sum(axis=1) > 0).astype(int))


def weights(model: Model) -> list[torch.Tensor]:
    return [p.detach() for m in model.members.values() for each in m.state.modules.values() for p in each.parameters()]


def one_cycle(optimizer: torch.optim.Optimizer, steps: int) -> OneCycleLR:
    return OneCycleLR(optimizer, max_lr=0.05, total_steps=steps)


def recording(rates: list[float]) -> Any:
    def make(parameters: Any) -> torch.optim.Optimizer:
        made = torch.optim.SGD(parameters, lr=0.1)
        made.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
        return made

    return make


@pytest.mark.parametrize("execution", ["protocol", "joint"])
def test_a_scheduler_of_steps_sets_a_rate_per_batch(federation: Federation, execution: Any) -> None:
    rates: list[float] = []
    federation.train("laser", epochs=3, batch_size=16, patience=None, optimizer={"b": recording(rates)},
                     scheduler=one_cycle, execution=execution)  # fmt: skip
    bare = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    expected, scheduler = [], one_cycle(bare, len(rates))
    for place in range(len(rates)):
        expected.append(bare.param_groups[0]["lr"])
        if place + 1 < len(rates):
            bare.step()
            scheduler.step()
    assert len(rates) == 3 * 5  # 65 training rows in batches of 16
    assert rates == pytest.approx(expected)


def test_both_executions_and_a_resumed_run_have_the_same_rates(federation: Federation, tmp_path: Path) -> None:
    class Stop(Callback):
        def on_epoch_end(self, record: dict[str, Any]) -> None:
            if record["epoch"] == 2:
                raise KeyboardInterrupt

    own: dict[str, Any] = {"epochs": 4, "batch_size": 16, "scheduler": one_cycle, "checkpoint_every": 1, "clip": 0.1}
    protocol = federation.train("laser", execution="protocol", **own)
    joint = federation.train("laser", execution="joint", **own)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(weights(protocol), weights(joint), strict=True))
    with pytest.raises(KeyboardInterrupt):
        federation.train("laser", execution="protocol", folder=tmp_path / "run", watch=Stop(), **own)
    resumed = federation.train("laser", execution="protocol", folder=tmp_path / "run", resume=True, **own)
    assert all(torch.equal(a, b) for a, b in zip(weights(protocol), weights(resumed), strict=True))


@pytest.mark.parametrize("execution", ["protocol", "joint"])
def test_a_gradient_is_shortened_to_clip(federation: Federation, execution: Any) -> None:
    """With SGD at a rate of 1, a step is as long as its gradient."""
    plain = Optimizer(name="sgd", lr=1.0)
    own: dict[str, Any] = {"epochs": 1, "batch_size": 1000, "validation": 0.0, "keep": "last", "execution": execution}
    moved = {}
    for clip in (None, 1e-3):
        before = federation.train("laser", optimizer=Optimizer(name="sgd", lr=1e-30), **own)
        after = federation.train("laser", optimizer=plain, clip=clip, **own)
        moved[clip] = [
            float(torch.cat([(q - p).detach().flatten() for p, q in zip(one.parameters(), two.parameters(), strict=True)
                             ]).norm())
            for name, member in after.members.items()
            for one, two in ((before.members[name].state.modules[key], module)
                             for key, module in member.state.modules.items() if list(module.parameters()))
        ]  # fmt: skip
    assert all(each > 2e-3 for each in moved[None])
    assert moved[1e-3] == pytest.approx([1e-3] * len(moved[None]), rel=1e-2)


def test_clip_applies_to_a_user_s_optimizer_and_is_a_setting(federation: Federation) -> None:
    sgd: dict[str, Any] = {"epochs": 1, "batch_size": 1000, "validation": 0.0}
    norms: list[float] = []

    def make(parameters: Any) -> torch.optim.Optimizer:
        class Watched(torch.optim.SGD):
            def step(self, closure: Any = None) -> Any:
                gradients = [p.grad.flatten() for group in self.param_groups for p in group["params"]]
                norms.append(float(torch.cat(gradients).norm()))
                return super().step(closure)

        return Watched(parameters, lr=0.1)

    federation.train("laser", optimizer=make, **sgd)
    assert min(norms) > 0.01
    norms.clear()
    federation.train("laser", optimizer=make, clip=0.01, **sgd)
    assert norms == pytest.approx([0.01] * len(norms), rel=1e-2)
    with pytest.raises(ConfigError, match="clip"):
        federation.train("laser", epochs=1, clip=-1.0)
    assert federation.train("laser", epochs=1, optimizer=Optimizer(clip=0.5)).history


def test_a_function_gets_the_numbers_of_each_epoch(federation: Federation, tmp_path: Path) -> None:
    calls: list[dict[str, float]] = []
    federation.train("laser", epochs=2, track=[calls.append], folder=tmp_path / "run")
    assert [each.get("epoch") for each in calls] == [1, 2, None]
    assert {"train/loss", "train/validation/accuracy", "train/seconds"} <= calls[0].keys()
    assert "test/accuracy" in calls[2]


def test_a_failing_function_stops_tracking_alone(federation: Federation) -> None:
    with pytest.warns(AnypartyWarning, match=r"FunctionTracker failed, and tracking stopped .*: division by zero"):
        model = federation.train("laser", epochs=2, track=lambda numbers: numbers["epoch"] / 0)
    assert len(model.history) == 2


def test_tensorboard_by_name(federation: Federation, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    federation.train("laser", epochs=1, track="tensorboard", folder=tmp_path / "run")
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))
    with pytest.raises(ConfigError, match=r"track.tensorboard: event files go into the run's folder"):
        federation.train("laser", epochs=1, track="tensorboard")


def test_an_unknown_tracker_is_named(federation: Federation) -> None:
    with pytest.raises(ConfigError, match=r'track: expected "tensorboard", "mlflow", a function of a dict, .*wandb'):
        federation.train("laser", epochs=1, track="wandb")
