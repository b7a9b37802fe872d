"""Communication costs by the formulas of the APC-VFL paper (appendix E), for comparison with the ledger.

Notation  D    the number of rows that both parties have;
          z_p  the width of the passive party's message for a row;
          p    the number of parameters of the last layer of the passive party's encoder;
          x_t  the number of columns of the task party;
          x_d  the number of columns of the data party;
          4    the number of bytes of each number sent.

The paper assumes two parties, and its messages differ from those of this package. For split learning, the paper counts
the gradient of the last layer of the passive party's encoder; this package sends the gradient of the embeddings. For
FedSVD, the paper counts masks [D, D]; this package sends a seed. Tests recompute the paper's table 2 with these
functions and list the rows that differ.

    >>> apc(9500, 256).bytes_sent / 1e6
    9.728
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from anyparty.core.types import Roster

NUMBER = 4  # bytes of a float32
LAST_LAYER = 128 * 256 + 256  # p in the paper's experiments: a linear layer with 128 inputs, 256 outputs and biases


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The communication cost of one training.

    Attributes:
        rounds: the number of exchanges; as in the paper, each direction is a separate exchange.
        bytes_sent: the total size of all tensors sent, in bytes.

    """

    rounds: int
    bytes_sent: int


@dataclass(frozen=True, kw_only=True)
class RunShape:
    """The properties of a run that the formulas need.

    Attributes:
        roster: the parties.
        observed: [N, K] bool, True if party k holds row n.
        labelled: [N] bool, True for a row with a label.
        training: [N] bool, True for a training row.
        shared: for each passive party, the number of rows that it shares with the active party, without test rows.
        epochs: the number of epochs, by stage.
        batch_size: the number of rows in a batch.
        columns: x_t, the width of the active party's prepared block.
    """

    roster: Roster
    observed: Tensor
    labelled: Tensor
    training: Tensor
    shared: Mapping[str, int]
    epochs: Mapping[str, int]
    batch_size: int
    columns: int


@dataclass(frozen=True, kw_only=True)
class PartyShape:
    """The sizes of a passive party's networks that a formula needs.

    Attributes:
        columns: x_d, the width of the party's prepared block.
        last_layer: p, the number of parameters of the last linear layer of its encoder; 0 without such a layer.

    """

    columns: int
    last_layer: int


@dataclass(frozen=True, kw_only=True)
class FormulaTraffic:
    """The input of a cost formula for one passive party, except the sizes of its networks (``PartyShape``).

    Attributes:
        party: the passive party.
        equation: the formula's number in the paper.
        counts: the values of the formula's variables, by name.
    """

    party: str
    equation: str
    counts: Mapping[str, int]

    def cost(self, shape: PartyShape | None) -> Cost | None:
        """Return the cost by the formula; ``None`` if ``shape`` lacks a value that the formula needs."""
        counts = self.counts
        if self.equation == "(6)":
            return apc(counts["aligned"], counts["z_p"])
        if shape is None:
            return None
        if self.equation == "(10)":
            return vfedtrans(counts["aligned"], counts["x_t"], shape.columns)
        if not shape.last_layer:
            return None
        up = forward(counts["epochs"], counts["aligned"], counts["z_p"])
        batches = counts["epochs"] * counts["batches"]
        return Cost(rounds=2 * batches, bytes_sent=round(up + batches * shape.last_layer * NUMBER))


def published(counted: Sequence[Mapping[str, Any]], shapes: Mapping[str, PartyShape]) -> list[dict[str, Any]]:
    """Return entries of a run's record with rounds and bytes added, as computed by the cost formulas.

    Args:
        counted: the entries. An entry stays unchanged if it already has bytes, or if its formula needs an unknown size.
        shapes: for each passive party, the sizes of its networks; parties with unknown sizes are absent.
    """
    made = []
    for each in counted:
        formula = FormulaTraffic(party=each["party"], equation=each["equation"], counts=each.get("counts", {}))
        cost = None if "bytes_sent" in each else formula.cost(shapes.get(formula.party))
        made.append({**each, **(vars(cost) if cost else {})})
    return made


@runtime_checkable
class HasCosts(Protocol):
    """A method with a formula for its communication costs in the APC-VFL paper."""

    def published_costs(self, ran: RunShape) -> list[FormulaTraffic]:
        """Return the inputs of the cost formula for every passive party of a run."""


def apc(aligned: int, z_p: int) -> Cost:
    """Return the cost of APC-VFL by equation (6): D * z_p * 4 bytes in one exchange."""
    return Cost(rounds=1, bytes_sent=aligned * z_p * NUMBER)


def forward(epochs: float, aligned: int, z_p: int) -> float:
    """Return the number of bytes of the embeddings in split learning by equation (7): epochs * D * z_p * 4.

    ``epochs`` may be a fraction, because it may be the mean over several runs.
    """
    return epochs * aligned * z_p * NUMBER


def backprop(epochs: float, aligned: int, batch_size: int, p: int = LAST_LAYER) -> float:
    """Count the bytes of the gradients in split learning by equation (8): epochs * ceil(D / batch_size) * p * 4."""
    return epochs * ceil(aligned / batch_size) * p * NUMBER


def splitnn(epochs: int, aligned: int, z_p: int, batch_size: int, p: int = LAST_LAYER) -> Cost:
    """Return the cost of split learning by equation (9): ``forward`` plus ``backprop``.

    Each batch of each epoch takes two exchanges, one in each direction.
    """
    total = forward(epochs, aligned, z_p) + backprop(epochs, aligned, batch_size, p)
    return Cost(rounds=2 * epochs * ceil(aligned / batch_size), bytes_sent=round(total))


def split_learning(ran: RunShape, rows: Tensor, z_p: int) -> list[FormulaTraffic]:
    """Return the inputs of equation (9) for every passive party of a run.

    In the equation, D is the number of training rows that the method uses and the passive party holds; ``rows`` [N]
    bool marks the rows that the method uses.
    """
    roster, rows = ran.roster, rows & ran.training
    batches = ceil(int(rows.sum()) / ran.batch_size)
    return [
        FormulaTraffic(
            party=name,
            equation="(9)",
            counts={
                "epochs": ran.epochs.get("train", 0),
                "aligned": int((rows & ran.observed[:, k]).sum()),
                "z_p": z_p,
                "batches": batches,
            },
        )
        for k, name in enumerate(roster.blocks)
        if name != roster.active
    ]


def vfedtrans(aligned: int, x_t: int, x_d: int) -> Cost:
    """Return the cost of VFedTrans with FedSVD by equation (10).

    Both parties receive the left mask A [D, D]. The task party receives its rows B_t [x_t, x_t + x_d] of the right
    mask, and the data party receives its rows B_d [x_d, x_t + x_d]. The two masked blocks, which have D * (x_t + x_d)
    numbers in total, and the left singular vectors U [D, x_t + x_d] are sent too.
    """
    total = x_t + x_d
    masks = 2 * aligned**2 + x_t * total + x_d * total
    return Cost(rounds=5, bytes_sent=(masks + aligned * (x_t + x_d) + aligned * total) * NUMBER)
