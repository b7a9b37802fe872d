"""Each party's view of a problem, with one class for each role: any party, a party with labels, the active party.

A party builds its view from its own table, from its share of the alignment, and from the setup that the active party
sends. The view does not depend on whether the parties run in one process or at their own sites.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyparty.core.storage import tuples
from anyparty.core.types import Roster, Task
from anyparty.errors import MessageError
from anyparty.problem.problem import Problem, label_of, teaching
from anyparty.problem.rows import Rows, own_rows
from anyparty.problem.splits import TRAIN, Part
from anyparty.tables.preprocessing import Features, Prepare
from anyparty.tables.table import Table
from anyparty.tables.target import encode


@dataclass(frozen=True, kw_only=True)
class PartyView:
    """A party's view of a problem: its own table, and the use of each aligned row.

    Attributes:
        me: the party.
        roster: the parties in their fixed order, and which of them is active.
        table: the party's table; at label holders, without the labels of rows that are empty at all parties.
        position: [N], the index of each aligned row in the table; -1 if the table lacks the row.
        drawn: [N], the part that the split draws for each row: training, validation or test. Preprocessing is fitted
            on the training rows.
        use: [N], the use of each row as far as the party knows it. At the active party, training rows that
            ``train.rows`` does not select have none.
    """

    me: str
    roster: Roster
    table: Table
    position: NDArray[np.int64]
    drawn: Part
    use: Part

    @cached_property
    def blocks(self) -> NDArray[np.int64]:
        """The index [N] of each aligned row in the table; -1 also for rows whose cells are all empty."""
        return self.table.blocks_at(self.position)

    @property
    def training_rows(self) -> NDArray[np.int64]:
        """The indices [m] in the table of the party's rows for training that have a cell."""
        rows: NDArray[np.int64] = self.blocks[(self.blocks >= 0) & (self.drawn == TRAIN)]
        return rows

    def prepare(self, *, scale: bool, max_levels: int) -> tuple[Prepare, Features] | tuple[None, None]:
        """Fit the preprocessing on the party's training rows; return it with the features of all rows of the table.

        If ``scale`` is true, numeric columns are standardised. ``max_levels`` is the largest number of categories of a
        column; rarer categories are grouped into one. The result is twice ``None`` if the party has no columns.
        """
        if self.me not in self.roster.blocks:
            return None, None
        fitted = Prepare.fit(self.table, self.training_rows, scale=scale, max_levels=max_levels)
        return fitted, fitted.features(self.table, new=False)

    def rows(self, features: Features | None, device: torch.device) -> Rows:
        """Return the party's data of the aligned rows, with tensors on ``device``."""
        return own_rows(self.position, blocks=self.blocks, features=features, device=device)


@dataclass(frozen=True, kw_only=True)
class LabelView(PartyView):
    """A label holder's view of a problem.

    Attributes:
        task: the task.
        observed: [N, K], True if party k holds row n.
    """

    task: Task
    observed: Tensor

    def rows(self, features: Features | None, device: torch.device) -> Rows:
        """Return the party's data of the aligned rows, with labels."""
        return own_rows(
            self.position, blocks=self.blocks, features=features, observed=self.observed, device=device,
            labels=encode(label_of(self.table), self.task, self.me),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LeadView(LabelView):
    """The active party's view of a problem.

    Attributes:
        problem: the problem.
    """

    problem: Problem

    @classmethod
    def of(cls, problem: Problem) -> LeadView:
        """Return the view of the party that constructed the problem.

        Raises:
            TableError: the labels cannot be used, or a class has too few rows for training, validation and test.
            ConfigError: a setting does not fit the labels.
        """
        return cls(
            me=problem.roster.active, roster=problem.roster, position=problem.position, drawn=problem.drawn,
            use=problem.use, task=problem.task, table=problem.teaching, observed=torch.from_numpy(problem.observed),
            problem=problem,
        )  # fmt: skip

    def rows(self, features: Features | None, device: torch.device) -> Rows:
        """Return the active party's data of the aligned rows, with labels and ids."""
        return own_rows(
            self.position, blocks=self.blocks, features=features, observed=self.observed, device=device,
            labels=encode(label_of(self.table), self.task, self.me), key=self.problem.key, ids=self.table.ids,
        )  # fmt: skip

    def setup_for(self, name: str) -> dict[str, Tensor]:
        """Return the setup message to a party: the parts of the rows; to label holders also task and presence."""
        nothing = torch.empty(0, dtype=torch.uint8)
        message = {"use": torch.from_numpy(self.drawn), "task": nothing, "observed": nothing}
        if name in self.roster.labelers:
            task_bytes = torch.frombuffer(bytearray(json.dumps(public(self.task)).encode()), dtype=torch.uint8)
            message |= {"task": task_bytes, "observed": self.observed.flatten().byte()}
        return message


def public(task: Task) -> dict[str, Any]:
    """Return the fields of the task that all label holders receive: those that are known before the training.

    The type of the labels stays at the active party.
    """
    return {name: value for name, value in asdict(task).items() if name not in {"label_type", "temperature"}}


def view_of_setup(
    me: str, roster: Roster, table: Table, position: NDArray[np.int64], setup: Mapping[str, Tensor]
) -> PartyView:
    """Return a passive party's view of the problem from the active party's ``setup`` message.

    ``position`` [N] has the index of each aligned row in the party's table.

    Raises:
        MessageError: the message does not describe a task, or does not fit the number of aligned rows.
    """
    use = setup["use"].numpy()
    own: dict[str, Any] = {"me": me, "roster": roster, "position": position, "drawn": use, "use": use}
    task = observed = None
    if len(setup["task"]):
        try:
            task = Task(**tuples(json.loads(setup["task"].numpy().tobytes())))
            observed = setup["observed"].bool().view(len(use), roster.K)
        except (ValueError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
            raise MessageError(f"message 'setup' from {roster.active!r} to {me!r}: expected a task and which "
                               f"parties have each of {len(use)} rows "
                               f"({str(error).splitlines()[0][:80]})") from None  # fmt: skip
    if len(use) != len(position):
        raise MessageError(f"message 'setup' from {roster.active!r} to {me!r}: it has {len(use)} rows, but "
                           f"the alignment here has {len(position)}")  # fmt: skip
    if task is None or observed is None:
        return PartyView(table=table, **own)
    return LabelView(table=teaching(table, position, observed.numpy()), task=task, observed=observed, **own)
