"""A split method of your own: the elementwise maximum of whatever embeddings are there, under one head.

    python examples/your_own_method.py [FOLDER]

A ``Rule`` defines the loss and the outputs of the heads. Encoders, messages, optimizers, checkpoints, prediction with
absent parties and the check of declared messages come from ``anyparty.methods.split``.
"""

import sys
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from anyparty import Federation, config
from anyparty.cli import demo_data
from anyparty.methods.fusion import EMBEDDING, GRADIENT, Fusion, Rule
from anyparty.methods.method import Batch, Method
from anyparty.methods.split import Split
from anyparty.nets.objective import losses
from anyparty.terms import Capabilities


@dataclass(frozen=True, kw_only=True)
class Maximum(Rule):
    """One predictor on the maximum of the embeddings h [B, K, H] of the parties that have a row."""

    @property
    def can(self) -> Capabilities:
        return Capabilities(
            title="Maximum", paper="none yet", trains_on="labelled rows that anybody has", predicts_for="any row",
            needs="any", messages=(EMBEDDING, GRADIENT),
        )  # fmt: skip

    def loss(self, fusion: Fusion, h: Tensor, observed: Tensor, y: Tensor, batch: Batch) -> Tensor:
        lots = torch.rand(observed.shape, generator=batch.generator("stays"))  # on the CPU, wherever h is
        stays = lots.to(h.device) > 0.3  # learn to miss parties
        fused = maximum(h, torch.where((observed & stays).any(dim=1, keepdim=True), observed & stays, observed))
        return losses(fusion.task, fusion.heads(fused).squeeze(1), y).mean()

    def outputs(self, fusion: Fusion, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        return fusion.heads(maximum(h, observed)), observed.any(dim=1, keepdim=True)


def maximum(h: Tensor, there: Tensor) -> Tensor:
    """Return the maximum over the parties that are there, zero where nobody is: [B, K, H], [B, K] -> [B, 1, H]."""
    most = h.masked_fill(~there.unsqueeze(2), -torch.inf).amax(dim=1, keepdim=True)
    return torch.where(there.any(dim=1).view(-1, 1, 1), most, 0.0)


def main(folder: Path) -> None:
    """Train it and LASER-VFL on the demo's tables; print accuracies on its test rows, by who is there."""
    demo_data.write(folder)
    federation = Federation.from_config(config.load(folder / "federation.toml"))
    tests = {name: folder / "test" / f"{name}.csv" for name in demo_data.PARTIES}
    methods: tuple[Method | None, ...] = (Split(rule=Maximum(), embedding=32), None)  # None: as the settings say
    for method in methods:
        model = federation.train(method)
        print(model.method.can.title)
        for present in (3, 2, 1):
            for parties in combinations(tests, present):
                print(f"  {model.evaluate(tests, parties).overall['accuracy']:.1%}  {' + '.join(parties)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "anyparty-demo"))
