"""A split method of your own: one head on the elementwise maximum of the available embeddings.

    python examples/your_own_method.py [FOLDER]

A ``Rule`` says which encoders and heads exist, and computes the loss and the answer.  ``Split`` provides encoders,
messages, optimizers, checkpoints, prediction without some parties, and the refusal of undeclared messages.
"""

import sys
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from anyparty import Federation, config
from anyparty.demo import data
from anyparty.methods.fusion import EMBEDDING, GRADIENT, Answer, Fusion, Given, all_blocks, joint
from anyparty.methods.method import Batch, Method
from anyparty.methods.split import Split
from anyparty.nets.objective import losses
from anyparty.terms import Capabilities, Roster


@dataclass(frozen=True, kw_only=True)
class Maximum:
    """One predictor on the maximum of the embeddings h [B, K, H] of the parties that have a row."""

    @property
    def can(self) -> Capabilities:
        return Capabilities(
            title="Maximum", paper="none yet", trains_on="all labelled rows", predicts_for="any row",
            needs="any", messages=(EMBEDDING, GRADIENT),
        )  # fmt: skip

    def copies(self, roster: Roster) -> int:
        return 1  # encoder for each party

    def owners(self, roster: Roster) -> None:
        return None  # the head belongs to no party

    def reads(self, roster: Roster, owners: tuple[int, ...]) -> tuple[int, ...]:
        return all_blocks(roster)

    def head(self, roster: Roster, width: int) -> tuple[int, int]:
        return 1, width  # one head, on H inputs

    def trains_on(self, roster: Roster, observed: Tensor) -> Tensor:
        return observed.any(dim=1)

    def loss(self, fusion: Fusion, h: Tensor, observed: Tensor, y: Tensor, batch: Batch) -> Tensor:
        draws = torch.rand(observed.shape, generator=batch.generator("stays"))  # on the CPU, like every generator
        keep = observed & (draws.to(h.device) > 0.3)  # drop parties at random, so that the head learns to do without
        fused = maximum(h, torch.where(keep.any(dim=1, keepdim=True), keep, observed))
        return losses(fusion.task, fusion.heads(fused).squeeze(1), y).mean()

    def outputs(self, fusion: Fusion, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        return fusion.heads(maximum(h, observed)), observed.any(dim=1, keepdim=True)

    def answer(self, given: Given) -> Answer:
        return joint(given)


def maximum(h: Tensor, present: Tensor) -> Tensor:
    """Return the maximum over the present parties, zero without any: [B, K, H], [B, K] -> [B, 1, H]."""
    most = h.masked_fill(~present.unsqueeze(2), -torch.inf).amax(dim=1, keepdim=True)
    return torch.where(present.any(dim=1).view(-1, 1, 1), most, 0.0)


def main(folder: Path) -> None:
    """Train it and LASER-VFL on the demo's tables; print accuracies on the test rows for every set of parties."""
    data.write(folder)
    federation = Federation.from_config(config.load(folder / "federation.toml"))
    tests = {name: folder / "test" / f"{name}.csv" for name in data.PARTIES}
    methods: tuple[Method | None, ...] = (Split(rule=Maximum(), embedding=32), None)  # None: the method of the settings
    for method in methods:
        model = federation.train(method)
        print(model.method.can.title)
        for present in (3, 2, 1):
            for parties in combinations(tests, present):
                print(f"  {model.evaluate(tests, parties).overall['accuracy']:.1%}  {' + '.join(parties)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "anyparty-demo"))
