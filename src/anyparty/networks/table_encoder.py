"""An encoder for business tables: each column is a piecewise-linear function, and the columns are added up.

Gorishniy, Rubachev, Babenko: "On Embeddings for Numerical Features in Tabular Deep Learning", NeurIPS 2022, section 3.2
(piecewise-linear encoding). The first layer, linear on these encodings, is computed without them: its value for a
column is interpolated between the column's knots, which are cumulative sums of the layer's weights.

Difference   Half of a column's bounds are quantiles of the party's training rows, and half are spread evenly over its
             distinct values. Quantiles alone lose the tail of a column that is zero in most rows.

Notation  B rows, F prepared columns, m bins of a column, D width of the hidden layer, H width of an embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from anyparty.core.declared_types import as_declared

ROWS_OF_BIN = 50  # few rows would overfit narrow bins
MOST_BINS = 4096  # of all columns of a party; wide tables would have too many weights


@dataclass(frozen=True, kw_only=True)
class TableEncoder:
    """An encoder whose first layer has a piecewise-linear function for each column.

    Attributes:
        units: D, the width of the hidden layer.
        bins: m, the number of bins of a column; fewer if the party has more than 4096 / m columns.
        drop: the probability with which a hidden number is set to zero in training.

    """

    units: Annotated[int, Field(ge=1)] = 64
    bins: Annotated[int, Field(ge=2)] = 64
    drop: Annotated[float, Field(ge=0, lt=1)] = 0.2

    fitted: ClassVar[bool] = True  # its bins are taken from the party's training rows

    def __post_init__(self) -> None:
        as_declared(self, TableEncoder, "encoder")

    def __call__(self, inputs: int, outputs: int) -> nn.Module:
        """Return a new network [B, inputs] -> [B, outputs], with bins for normally distributed columns."""
        bins = min(self.bins, max(2, MOST_BINS // inputs))
        return nn.Sequential(
            PiecewiseLinear(inputs, self.units, bins), nn.ReLU(), nn.Dropout(self.drop),
            nn.Linear(self.units, outputs),
        )  # fmt: skip


class PiecewiseLinear(nn.Module):
    """The sum over F columns of a piecewise-linear function of the column: [B, F] -> [B, D]."""

    bounds: Tensor
    last: Tensor

    def __init__(self, inputs: int, outputs: int, bins: int) -> None:
        super().__init__()
        self.bins = bins
        size = 1 / math.sqrt(inputs * (bins + 1))
        self.steps = nn.Parameter(torch.empty(inputs, bins, outputs).uniform_(-size, size))  # change over each bin
        self.linear = nn.Linear(inputs, outputs)
        normal = torch.special.ndtri(torch.linspace(0, 1, bins + 3)[1:-1])
        self.register_buffer("bounds", normal.repeat(inputs, 1))  # [F, m + 1]
        self.register_buffer("last", torch.full((inputs,), bins - 1))  # index of each column's last bin

    def fit(self, x: Tensor) -> None:
        """Take the bounds of the bins from prepared training rows: [n, F]; few rows have fewer bins."""
        bins = min(self.bins, max(4, len(x) // ROWS_OF_BIN))
        for column, values in enumerate(x.detach().cpu().double().numpy().T):
            found = bounds_of(values, bins)
            self.bounds[column] = float(found[-1])  # fills the places of bins that the column does not have
            self.bounds[column, : len(found)] = torch.from_numpy(found)
            self.last[column] = len(found) - 2

    def forward(self, x: Tensor) -> Tensor:
        """Interpolate each column between its knots, and add up the columns."""
        place = torch.searchsorted(self.bounds, x.T.contiguous(), right=True).T - 1  # [B, F]
        place = torch.minimum(place.clamp(min=0), self.last)
        low, high = (self.bounds.T.gather(0, each) for each in (place, place + 1))
        share = ((x - low) / (high - low)).clamp(0, 1)
        knots = functional.pad(self.steps.cumsum(dim=1), (0, 0, 1, 0))  # [F, m + 1, D]
        first = place + torch.arange(x.shape[1], device=x.device) * (self.bins + 1)
        added: Tensor = functional.embedding_bag(
            torch.cat([first, first + 1], dim=1), knots.flatten(0, 1),
            per_sample_weights=torch.cat([1 - share, share], dim=1), mode="sum",
        )  # fmt: skip
        straight: Tensor = self.linear(x)
        return added + straight


def bounds_of(values: NDArray[np.float64], bins: int) -> NDArray[np.float64]:
    """Return at most ``bins`` + 1 bounds of a column's bins, in ascending order: half quantiles, half distinct values.

    >>> bounds_of(np.array([0.0, 0, 0, 0, 0, 0, 5, 9]), 16).tolist()
    [0.0, 5.0, 9.0]
    >>> bounds_of(np.array([2.0, 2.0]), 16).tolist()
    [2.0, 3.0]
    """
    distinct = np.unique(values)
    if len(distinct) > bins + 1:
        half = (bins + 1) // 2
        spread = distinct[np.linspace(0, len(distinct) - 1, bins + 1 - half).round().astype(int)]
        distinct = np.unique(np.concatenate([np.quantile(values, np.linspace(0, 1, half)), spread]))
    return distinct if len(distinct) > 1 else np.array([distinct[0], distinct[0] + 1])
