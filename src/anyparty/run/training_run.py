"""The steps that a run in one process and a run at a site share: prepare, run, save.

1. ``TrainingRun.of`` validates and describes the method.
2. ``party`` prepares one party, and returns the coroutine function that runs it.
3. ``about`` and ``member`` return the shared and the party's own part of the model, for saving.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from anyparty.align.alignment import Known
from anyparty.config import Config
from anyparty.methods.method import Method
from anyparty.methods.table import settings_of
from anyparty.nets.mlp import Factory
from anyparty.nets.optimizer import Optimizer
from anyparty.run import agree
from anyparty.run.attendance import check_require
from anyparty.run.files import About, Member
from anyparty.run.own_method import described
from anyparty.run.part import RunHooks
from anyparty.run.party import House, Outcome, take_part
from anyparty.schedules.scheduled import Scheduled
from anyparty.tables.table import Table
from anyparty.terms import Channel, Declared, Roster


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """One training run, as each of its parties sees it.

    Attributes:
        config: the settings.
        method: the method to train, under its schedule if it has one.
        roster: the parties.
        resume: whether to resume from checkpoints.
        answers: the method without its schedule, which predicts.
        own: the description of ``answers`` before training, if it is the user's own method.

    """

    config: Config
    method: Method
    roster: Roster
    resume: bool
    answers: Method
    own: Mapping[str, Any] | None = field(repr=False)

    @classmethod
    def of(cls, config: Config, method: Method, roster: Roster, *, resume: bool = False) -> TrainingRun:
        """Prepare a run.

        Raises:
            ConfigError: ``train.require`` asks for more parties than there are.
        """
        check_require(config.train.require, roster.names)
        answers = method.split if isinstance(method, Scheduled) else method
        own = described(answers) if settings_of(answers) is None else None
        return cls(config=config, method=method, roster=roster, resume=resume, answers=answers, own=own)

    @property
    def messages(self) -> tuple[Declared, ...]:
        """All messages that parties may send in training."""
        return (*self.method.can.messages, *agree.MESSAGES)

    def party(
        self, name: str, table: Table, known: Known, *, folder: Path | None = None, hooks: RunHooks | None = None,
        encoder: Factory | None = None, optimizer: Optimizer | None = None,
    ) -> Callable[[Channel], Coroutine[Any, Any, Outcome]]:  # fmt: skip
        """Return one party's coroutine function, which takes its channel: see ``take_part``.

        Args:
            name: the party.
            table: its validated table.
            known: its knowledge of the alignment.
            folder: its checkpoint folder; ``None`` keeps no checkpoints.
            hooks: callbacks and values from outside training.
            encoder: makes its network; by default as the settings describe.
            optimizer: trains its network; by default as the settings describe.

        Raises:
            ConfigError: the encoder or the optimizer of the settings cannot be made.

        """
        own = self.config.parties.get(name)
        house = House(
            name=name, table=table, known=known, encoder=encoder or self.config.encoder_of(name),
            optimizer=optimizer or self.config.optimizer_of(name), scale=own is None or own.scale, folder=folder,
            hooks=hooks or RunHooks(),
        )  # fmt: skip
        return partial(
            take_part, house=house, roster=self.roster, config=self.config, method=self.method, resume=self.resume
        )

    def member(self, outcome: Outcome) -> Member:
        """Return a party's part of the model."""
        own = self.config.parties.get(outcome.seat.me)
        return Member(
            state=outcome.trained.state, prepare=outcome.prepare, id=(own and own.id) or self.config.federation.id,
            label=outcome.label, max_cell_bytes=self.config.federation.max_cell_bytes,
        )  # fmt: skip

    def about(self, outcome: Outcome) -> About:
        """Return the part of the model that all parties share, as the party of ``outcome`` knows it."""
        return About(
            method=settings_of(self.answers, whole=True), roster=self.roster, task=outcome.seat.task,
            seed=self.config.train.seed, best_epoch=outcome.trained.best_epoch, parts={},
            own=None if self.own is None else dict(self.own),
        )  # fmt: skip
