"""A method of your own, attention over the present parties' embeddings, compared with LASER-VFL.

Run ``python examples/attention.py``.
"""

from pathlib import Path

import rich
import torch
from torch import Tensor, nn

import anyparty
from anyparty.cli import demo_data
from anyparty.methods.split.module_method import module_method
from anyparty.testing import check_method


class Attention(nn.Module):
    """A learned query attends to the embeddings h [B, K, H] of the parties that have a row, observed [B, K]."""

    def __init__(self, parties: int, width: int, outputs: int) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(parties, width))  # a learned vector for each party
        self.query = nn.Linear(width, 1)
        self.out = nn.Linear(width, outputs)

    def forward(self, h: Tensor, observed: Tensor) -> Tensor:
        h = h + self.place
        scores = self.query(h).squeeze(2).masked_fill(~observed, -1e9)  # [B, K]; absent parties get no weight
        return self.out((scores.softmax(dim=1).unsqueeze(2) * h).sum(dim=1))  # [B, C]


attention = module_method(Attention, embedding=32, drop=0.3)

if __name__ == "__main__":
    check_method(attention)
    demo_data.write(Path("anyparty-demo"))
    methods = {"attention": attention, "laser": "laser"}
    rich.print(anyparty.compare("anyparty-demo/federation.toml", methods, seeds=2, missing=0.3, test=0.3, epochs=10))
