"""Batches of one presence pattern: steps are weighted by rows, so rare patterns weigh as much as their rows."""

import pytest
import torch

from anyparty.methods.method_registry import method
from anyparty.methods.split.local import Local
from anyparty.methods.split.split_method import Split
from anyparty.networks.optimizer import Optimizer
from tests import worlds
from tests.worlds import world

UNEVEN = torch.tensor([[True, True]] * 20 + [[True, False]] * 3)


@pytest.mark.parametrize(("batches", "rows"), [("mixed", [7, 8, 8]), ("by-pattern", [3, 4, 8, 8])])
def test_weights_of_steps_are_proportional_to_their_rows(batches, rows):
    seen = []

    class RecordingSplit(Split):
        async def step(self, net, state, rows, batch):
            if net.me == "a":
                seen.append((len(batch.rows), batch.share))
            return await super().step(net, state, rows, batch)

    worlds.train(RecordingSplit(rule=Local()), world(K=2, observed=UNEVEN), epochs=1, batch_size=8, batches=batches)
    assert sorted(count for count, _ in seen) == rows
    means = [1.0] * 3 if batches == "mixed" else [count / (23 / 4) for count, _ in seen]
    assert [share for _, share in seen] == pytest.approx(means)


UNCUT = {"pretrain_lr": 0.01, "pretrain_weight_decay": 0.0, "pretrain_clip": 1e6}


@pytest.mark.parametrize(
    ("name", "stage", "parameters"),
    [
        ("local", "train", {}), ("laser", "train", {}), ("plug", "train", {}), ("apc", "represent", {}),
        ("fedhssl", "train", {}), ("fedhssl", "pretrain", UNCUT),
        ("laser", "pretrain", {"pretrain": "simsiam", **UNCUT}),
        ("false-vfl-1", "pretrain", {}), ("false-vfl-1", "train", {}),
    ],
)  # fmt: skip
def test_the_size_of_a_step_is_proportional_to_its_share(name, stage, parameters):
    of, made = world(K=2, N=12), method(name, **parameters)
    ways = []
    for share in (1.0, 0.25):
        states = worlds.begin(made, of, optimizer=Optimizer(name="sgd", lr=0.01))
        before = {key: value.clone() for key, value in worlds.weights(states).items()}
        worlds.step(
            made, of, states, torch.arange(12), stage=stage, share=share, number=1
        )  # 0 if separate parts are averaged
        after = worlds.weights(states)
        kinds = {key for key, value in before.items() if value.is_floating_point() and "running" not in key}
        ways.append({key: after[key] - before[key] for key in kinds})
    assert any(way.any() for way in ways[0].values())
    for key, way in ways[0].items():
        assert (way / 4 - ways[1][key]).norm() <= 0.02 * way.norm() / 4 + 1e-6, key
