"""What an exchange costs by the formulas of the APC-VFL paper (appendix E), to stand beside what the ledger counts.

Letters   D rows that both parties have, z_p width of what the passive party sends of a row, p parameters of the last
          layer of its encoder, x_t and x_d columns of the task and the data party, 4 bytes a number.

The paper counts two parties, and what it takes to be sent: in split learning the gradient of the passive encoder's last
layer where this package sends the gradient of the embeddings, for FedSVD masks of [D, D] where here a seed crosses.
Its table 2 follows from these functions; the tests redo it, and say which of its rows do not.

    >>> apc(9500, 256).bytes_sent / 1e6
    9.728
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from anyparty.terms import Roster

NUMBER = 4  # bytes of a float32
LAST_LAYER = 128 * 256 + 256  # the paper's p: a linear layer from 128 to 256


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What crosses in training.

    Attributes:
        rounds: exchanges of information, as the paper counts them: each way on its own.
        bytes_sent: of tensors.

    """

    rounds: int
    bytes_sent: int


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a run was, as far as the formulas ask; ``run.costs`` says it.

    Attributes:
        roster: the parties.
        observed: [N, K] bool, who has which row.
        labelled: [N] bool, whose label is known.
        training: [N] bool, which rows trained.
        shared: by passive party, how many rows it and the active party have, those left out that test.
        epochs: by stage, how many it had.
        batch_size: rows of a batch.
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
class Shape:
    """What a formula asks of a passive party that it alone knows.

    Attributes:
        columns: x_d, the width of its prepared block.
        last_layer: p, the numbers of its encoder's last linear layer; 0 without one.

    """

    columns: int
    last_layer: int


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What a formula counts of a run with one passive party: all but that party's ``Shape``.

    Attributes:
        party: which.
        equation: the formula's number in the paper.
        counts: its letters, by name.

    """

    party: str
    equation: str
    counts: Mapping[str, int]

    def cost(self, shape: Shape | None) -> Cost | None:
        """Return what the formula comes to; ``None`` where it asks for what is not known of the party."""
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


def published(counted: Sequence[Mapping[str, Any]], shapes: Mapping[str, Shape]) -> list[dict[str, Any]]:
    """Return a record's entries for formulas, with rounds and bytes where the party's ``Shape`` is known.

    Args:
        counted: entries of a record; those that have their bytes already are kept as they are.
        shapes: by party, what the formulas ask of it.

    """
    made = []
    for each in counted:
        formula = Counted(party=each["party"], equation=each["equation"], counts=each.get("counts", {}))
        cost = None if "bytes_sent" in each else formula.cost(shapes.get(formula.party))
        made.append({**each, **(vars(cost) if cost else {})})
    return made


@runtime_checkable
class Costed(Protocol):
    """A method that a formula covers."""

    def published_costs(self, ran: Ran) -> list[Counted]:
        """Return what the formula counts of a run, for every passive party."""


def apc(aligned: int, z_p: int) -> Cost:
    """Return the cost of APC-VFL: D z_p 4 bytes, once (6)."""
    return Cost(rounds=1, bytes_sent=aligned * z_p * NUMBER)


def forward(epochs: float, aligned: int, z_p: int) -> float:
    """Return the bytes of split learning's embeddings: epochs D z_p 4 (7).  Epochs may be a mean over runs."""
    return epochs * aligned * z_p * NUMBER


def backprop(epochs: float, aligned: int, batch_size: int, p: int = LAST_LAYER) -> float:
    """Return the bytes of split learning's gradients: epochs ceil(D / batch size) p 4 (8)."""
    return epochs * ceil(aligned / batch_size) * p * NUMBER


def splitnn(epochs: int, aligned: int, z_p: int, batch_size: int, p: int = LAST_LAYER) -> Cost:
    """Return the cost of split learning: forward and back in every batch of every epoch (9)."""
    total = forward(epochs, aligned, z_p) + backprop(epochs, aligned, batch_size, p)
    return Cost(rounds=2 * epochs * ceil(aligned / batch_size), bytes_sent=round(total))


def split_learning(ran: Ran, rows: Tensor, z_p: int) -> list[Counted]:
    """Return (9) for every passive party, of rows [N] that take part: D are those it has."""
    roster, rows = ran.roster, rows & ran.training
    batches = ceil(int(rows.sum()) / ran.batch_size)
    return [
        Counted(party=name, equation="(9)", counts={
            "epochs": ran.epochs.get("train", 0), "aligned": int((rows & ran.observed[:, k]).sum()), "z_p": z_p,
            "batches": batches,
        })
        for k, name in enumerate(roster.blocks) if name != roster.active
    ]  # fmt: skip


def vfedtrans(aligned: int, x_t: int, x_d: int) -> Cost:
    """Return the cost of VFedTrans with FedSVD: masks A to both, B_t, B_d, masked blocks, and U (10)."""
    total = x_t + x_d
    masks = 2 * aligned**2 + x_t * total + x_d * total
    return Cost(rounds=5, bytes_sent=(masks + aligned * (x_t + x_d) + aligned * total) * NUMBER)


def vfedtrans_sent(aligned: int, x_t: int, x_d: int, rank: int, *, apart: bool) -> int:
    """Return the bytes that this package's VFedTrans sends for one data party, as the ledger should count them.

    ``apart``: the key generator and the server are parties of their own.  The row mask crosses as a key, masked blocks
    have x_t + x_d columns in double precision, U has ``rank`` columns in single precision.
    """
    total = x_t + x_d
    widths, keys, masked = 8, 64, aligned * total * 8
    if not apart:  # the data party draws the keys, the task party is the server
        return widths + keys + x_t * total * 8 + masked
    return 2 * (widths + keys + masked) + total * total * 8 + aligned * min(rank, aligned, total) * NUMBER
