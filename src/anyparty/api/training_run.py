"""The steps that a run in one process and a run at a party's own site share: prepare, train, save.

1. ``TrainingRun.of`` validates the settings and describes the method.
2. ``TrainingRun.party`` prepares one party, and returns the coroutine function that trains as this party.
3. ``TrainingRun.about`` and ``member`` return what is saved: facts that all parties share, and one party's networks.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from anyparty.alignment.alignment import PartyAlignment
from anyparty.artifacts.model_files import Member, ModelSummary
from anyparty.config import Config, PartySettings
from anyparty.core.object_description import described
from anyparty.core.types import Channel, MessageSpec, Roster
from anyparty.methods.method import Method
from anyparty.methods.method_registry import settings_of
from anyparty.methods.schedules.scheduled import Scheduled
from anyparty.networks.encoders import Factory
from anyparty.networks.optimizer import Optimizer
from anyparty.tables.table import Table
from anyparty.training import control_messages
from anyparty.training.membership import check_require
from anyparty.training.party import PartyInputs, PartyResult, take_part
from anyparty.training.party_run import RunHooks


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """The facts of a training run that all its parties know.

    Attributes:
        config: the settings.
        method: the method to train, under its schedule if it has one.
        roster: the parties in their fixed order, and which of them is active.
        resume: whether to resume from checkpoints.
        answers: the method without its schedule; it makes the predictions.
        named: the name and all parameters of ``answers``; ``None`` if this method is user-defined.
        own: the description of the method ``answers`` before training, if this method is user-defined.

    """

    config: Config
    method: Method
    roster: Roster
    resume: bool
    answers: Method
    named: dict[str, Any] | None
    own: Mapping[str, Any] | None = field(repr=False)

    @classmethod
    def of(cls, config: Config, method: Method, roster: Roster, *, resume: bool = False) -> TrainingRun:
        """Build a run from its settings, its method and its parties.

        Raises:
            ConfigError: ``train.require`` is greater than the number of parties.
        """
        check_require(config.train.require, roster.names)
        answers = method.split if isinstance(method, Scheduled) else method
        named = settings_of(answers, whole=True)
        own = described(answers) if named is None else None
        return cls(config=config, method=method, roster=roster, resume=resume, answers=answers, named=named, own=own)

    @property
    def messages(self) -> tuple[MessageSpec, ...]:
        """All messages that parties may send in training."""
        return (*self.method.can.messages, *control_messages.MESSAGES)

    def party(
        self,
        name: str,
        table: Table,
        known: PartyAlignment,
        *,
        folder: Path | None = None,
        hooks: RunHooks | None = None,
        encoder: Factory | None = None,
        optimizer: Optimizer | None = None,
    ) -> Callable[[Channel], Coroutine[Any, Any, PartyResult]]:
        """Return the coroutine function that trains as one party; its only argument is the party's channel.

        Args:
            name: the party.
            table: the party's validated table.
            known: the index of each aligned row in the party's table; at the active party also which parties have it.
            folder: the party's checkpoint folder; ``None`` keeps no checkpoints.
            hooks: callbacks and values that this party's training gets from its caller, such as the party's secret.
            encoder: the function that makes the party's network; by default the encoder of the settings.
            optimizer: the optimizer of the party's network; by default the optimizer of the settings.

        Raises:
            ConfigError: the encoder or the optimizer of the settings cannot be made.

        """
        own = self.config.parties.get(name, PartySettings())
        house = PartyInputs(
            name=name,
            table=table,
            known=known,
            encoder=encoder or self.config.encoder_of(name),
            optimizer=optimizer or self.config.optimizer_of(name),
            scale=own.scale,
            max_levels=own.max_levels,
            folder=folder,
            hooks=hooks or RunHooks(),
        )
        return partial(
            take_part, house=house, roster=self.roster, config=self.config, method=self.method, resume=self.resume
        )

    def member(self, outcome: PartyResult) -> Member:
        """Return the data to save for one party: its networks, its preprocessing, and how its table is read."""
        return Member(
            state=outcome.trained.state, prepare=outcome.prepare, label=outcome.label, rules=outcome.rules,
            **self.config.reading(outcome.seat.me),
        )  # fmt: skip

    def about(self, outcome: PartyResult) -> ModelSummary:
        """Return the facts about the model that all parties may know, as far as the party of ``outcome`` knows them."""
        return ModelSummary(
            method=self.named,
            roster=self.roster,
            task=outcome.seat.task,
            seed=self.config.train.seed,
            best_epoch=outcome.trained.best_epoch,
            parts={},
            own=None if self.own is None else dict(self.own),
        )
