"""A split method of your own: one head on the elementwise maximum of the available embeddings.
Run ``python examples/your_own_method.py [FOLDER]``.  A ``Rule`` computes the losses and the outputs of the heads.
``Split`` provides encoders, messages, optimizers, checkpoints, and prediction without some parties.
"""

import sys
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch

from anyparty import Federation
from anyparty.cli import demo_data
from anyparty.methods.split.rule import HeadPlan, Rule, every_row
from anyparty.methods.split.split_method import Split


@dataclass(frozen=True, kw_only=True)
class Maximum(Rule):
    """One predictor on the maximum of the embeddings h [B, K, H] of the parties that have a row."""

    def plan(self, roster, task, width):
        return HeadPlan(inputs=width, noise={"stays": ("rows", "parties")})

    def losses(self, host, heads, h, observed, y, noise):
        keep = observed & (noise["stays"] > 0.3)  # drop parties at random, so that the head learns to do without
        fused = maximum(h, torch.where(keep.any(dim=1, keepdim=True), keep, observed))
        return every_row(host.loss(heads(fused).squeeze(1), y))

    def outputs(self, host, heads, h, observed):
        return heads(maximum(h, observed)), observed.any(dim=1, keepdim=True)


def maximum(h, present):
    """Return the maximum over the present parties, zero without any: [B, K, H], [B, K] -> [B, 1, H]."""
    most = h.masked_fill(~present.unsqueeze(2), -torch.inf).amax(dim=1, keepdim=True)
    return torch.where(present.any(dim=1).view(-1, 1, 1), most, 0.0)


def main(folder: Path) -> None:
    """Train this method and LASER-VFL on the demo's tables; print the test accuracy of every set of parties."""
    demo_data.write(folder)
    federation = Federation.from_config(folder / "federation.toml")
    tests = {name: folder / "test" / f"{name}.csv" for name in demo_data.PARTIES}
    for method in (Split(rule=Maximum(), embedding=32), None):  # None trains the method that the settings name
        model = federation.train(method)
        for parties in (subset for size in (4, 3, 2, 1) for subset in combinations(tests, size)):
            print(model.method.can.title, *parties, f"{model.evaluate(tests, parties).overall['accuracy']:.1%}")


if __name__ == "__main__":
    main(Path((*sys.argv, "anyparty-demo")[1]))
