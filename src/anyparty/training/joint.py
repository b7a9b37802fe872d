"""Joint execution: all parties of one process meet for each epoch, which one of them computes for all.

Planning, validation, early stopping and checkpoints are those of the protocol: each party still runs its own loop
(``loop.play``). Only the steps of an epoch are computed together, by the method's joint form of the stage
(``Stage.joint``). Messages that the protocol would have sent are counted in the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from anyparty.errors import ConfigError
from anyparty.methods.method import Batch, JointStage, Stage, State
from anyparty.problem.rows import Rows
from anyparty.transport.ledger import Flow, Ledger

Execution = Literal["auto", "protocol", "joint"]
JOINT, PROTOCOL = "joint", "protocol"


@dataclass
class _Meeting:
    """A point that all parties reach before the active party goes on, and after which all go on."""

    states: dict[str, State] = field(default_factory=dict)
    rows: dict[str, Rows] = field(default_factory=dict)
    full: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class JointExecution:
    """The joint execution of a run.

    Attributes:
        parties: all parties; they run in this process, in one event loop.
        active: the active party, which computes for all.
        ledger: the ledger of the run.
        wanted: "auto" uses the protocol for stages that cannot be computed jointly; "joint" refuses them.
        ran: for each stage, "joint", or "protocol" with the reason.

    """

    parties: Sequence[str]
    active: str
    ledger: Ledger
    wanted: Execution = "auto"
    ran: dict[str, str] = field(default_factory=dict)
    _meeting: _Meeting = field(default_factory=_Meeting)
    _steps: JointStage | None = None

    def check(self, stages: Sequence[Stage]) -> None:
        """Note the stages that have no joint form.

        Raises:
            ConfigError: a stage sends messages and has no joint form, and ``wanted`` is "joint".
        """
        for stage in stages:
            if stage.is_local:
                self.ran[stage.name] = "local: no messages are sent"
            elif stage.joint is None:
                self._refuse(stage, "the method has no joint form of it")

    def _refuse(self, stage: Stage, reason: str) -> None:
        self.ran[stage.name] = f"{PROTOCOL}: {reason}"
        if self.wanted == JOINT:
            raise ConfigError(f"train.execution = 'joint': stage {stage.name!r} cannot be computed jointly, because "
                              f"{reason}; use 'auto' or 'protocol'")  # fmt: skip

    async def enter(self, me: str, stage: Stage, state: State, rows: Rows) -> bool:
        """Decide, together with all other parties, whether a stage is computed jointly.

        Raises:
            ConfigError: it cannot be, and ``wanted`` is "joint".
        """
        meeting = await self._meet(me, state, rows)
        if me == self.active:
            self._steps = None  # frees the memory of an earlier stage
            made = stage.joint(stage.step, meeting.states, meeting.rows) if stage.joint is not None else ""
            self._steps = None if isinstance(made, str) else made
            if self._steps is not None:
                self.ran[stage.name] = JOINT
            elif isinstance(made, str) and made:
                self._refuse(stage, made)
        await self._part(me, meeting)
        return self._steps is not None

    async def epoch(
        self, me: str, state: State, rows: Rows, batches: Sequence[Batch], done: Callable[[Batch, float | None], None]
    ) -> None:
        """Compute an epoch for all parties; at the active party, call ``done`` after each batch with its loss.

        Raises:
            Diverged: an embedding or the loss is not a number.
        """
        meeting = await self._meet(me, state, rows)
        if me == self.active:
            steps = self._steps
            assert steps is not None
            for batch in steps.begin_epoch(batches):
                done(batch, steps.step(batch))
                await asyncio.sleep(0)  # lets Ctrl-C stop the run
            steps.end_epoch()
            for sender, receiver, tag, messages, size in steps.take_sent():
                self.ledger.add(Flow(sender, receiver, tag), size, messages)
        await self._part(me, meeting)

    async def _meet(self, me: str, state: State, rows: Rows) -> _Meeting:
        meeting = self._meeting
        meeting.states[me], meeting.rows[me] = state, rows
        if len(meeting.states) == len(self.parties):
            meeting.full.set()
        if me == self.active:
            await meeting.full.wait()
        return meeting

    async def _part(self, me: str, meeting: _Meeting) -> None:
        if me == self.active:
            self._meeting = _Meeting()
            meeting.over.set()
        else:
            await meeting.over.wait()
