"""Joint execution: all parties of one process meet for each epoch, which one of them computes for all.

Planning and checkpoints are those of the protocol: each party still runs its own loop (``loop.play``). The active party
computes the steps of an epoch for all parties, by the method's joint form of the stage (``Stage.joint``), and the
validation, and tells all parties which weights to keep. Messages that the protocol would have sent are counted in the
ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from anyparty.errors import ConfigError
from anyparty.methods.method import JointStage, Stage, State
from anyparty.problem.rows import Rows
from anyparty.transport.ledger import Flow, Ledger

Execution = Literal["auto", "protocol", "joint"]
JOINT, PROTOCOL = "joint", "protocol"

T = TypeVar("T")


@dataclass
class _Meeting:
    """A point that all parties reach before the active party computes, and after which all go on with its result."""

    there: set[str] = field(default_factory=set)
    states: dict[str, State] = field(default_factory=dict)
    rows: dict[str, Rows] = field(default_factory=dict)
    full: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    result: Any = None


@dataclass
class JointExecution:
    """The joint execution of a run.

    Attributes:
        parties: all parties; they run in this process, in one event loop.
        active: the active party, which computes for all.
        ledger: the ledger of the run.
        wanted: "auto" uses the protocol for stages that cannot be computed jointly; "joint" refuses them.
        ran: for each stage, "joint", or "protocol" with the reason.
        steps: the joint form of the current stage; ``None`` if messages are sent.
        set_rates: for each party, a function that sets the learning rates of a step of the epoch.

    """

    parties: Sequence[str]
    active: str
    ledger: Ledger
    wanted: Execution = "auto"
    ran: dict[str, str] = field(default_factory=dict)
    steps: JointStage | None = None
    set_rates: dict[str, Callable[[int], None]] = field(default_factory=dict)
    _meeting: _Meeting = field(default_factory=_Meeting)

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

    async def enter(self, me: str, stage: Stage, state: State, rows: Rows) -> None:
        """Make the joint form ``steps`` of a stage together with all other parties, if there is one.

        Raises:
            ConfigError: there is no joint form, and ``wanted`` is "joint".
        """
        meeting = self._meeting
        meeting.states[me], meeting.rows[me] = state, rows

        async def make() -> None:
            self.steps = None  # frees the memory of an earlier stage
            made = None if stage.joint is None else stage.joint(stage.step, meeting.states, meeting.rows, self.count)
            if isinstance(made, str):
                self._refuse(stage, made)
            elif made is not None:
                self.steps, self.ran[stage.name] = made, JOINT

        await self.together(me, make)

    async def together(self, me: str, compute: Callable[[], Awaitable[T]]) -> T:
        """Wait for all parties, let the active party compute, and return its result at every party."""
        meeting = self._meeting
        meeting.there.add(me)
        if len(meeting.there) == len(self.parties):
            meeting.full.set()
        if me == self.active:
            await meeting.full.wait()
            meeting.result = await compute()
            self._meeting = _Meeting()
            meeting.over.set()
        else:
            await meeting.over.wait()
        result: T = meeting.result
        return result

    def count(self, sender: str, receiver: str, tag: str, size: int) -> None:
        """Count a message of ``size`` bytes that the protocol would have sent."""
        self.ledger.add(Flow(sender, receiver, tag), size)
