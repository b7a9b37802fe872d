"""Worlds and counts for methods with one exchange."""

from dataclasses import replace

import torch

from anyparty.core.types import Party, Roster
from anyparty.networks.optimizer import Optimizer
from anyparty.problem.rows import Rows
from tests.worlds import Table, World, world

ADAM = Optimizer(name="adam", lr=0.01)


def pair(N: int = 40, aligned: int = 30, **changes) -> World:
    """Create a world of two parties: the first has all rows, the other some of them."""
    observed = torch.ones(N, 2, dtype=torch.bool)
    observed[aligned:, 1] = False
    return world(K=2, observed=observed, **changes)


def helped(of: World) -> World:
    """Add two parties ``s`` and ``g`` that have neither columns nor labels."""
    more = tuple(Party(name=name, columns=False) for name in "sg")
    roster = Roster((*of.roster.parties, *more), of.roster.active)
    return replace(of, roster=roster, rows=of.rows | {party.name: Rows(n=of.n) for party in more})


def sent(at: Table, *tags: str) -> tuple[int, int]:
    """Return the number of messages of these tags, and their bytes."""
    rows = [row for row in at.ledger.rows() if row["tag"] in tags]
    return sum(row["messages"] for row in rows), sum(row["bytes_sent"] for row in rows)


def split(N: int) -> dict[str, torch.Tensor]:
    """Use a tenth of the rows for validation, the rest for training."""
    validation = torch.arange(0, N, 10)
    training = torch.ones(N, dtype=torch.bool).index_fill(0, validation, False)
    return {"validation": validation, "training": training}
