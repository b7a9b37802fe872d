"""The interface of a method, which has one coroutine for each party, and checks of a user's own method.

A method is a set of fixed parameters. It has no loop over epochs and writes no file, because the package ``training``
does both. It opens no socket, because channels send its messages. The coroutines do not depend on the code that runs
them, so a test can run one party's coroutine.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from anyparty.core.predictions import NO_ANSWER, Predictions
from anyparty.core.seeds import Seeds
from anyparty.core.types import Capabilities, Channel, Roster, Task
from anyparty.errors import ConfigError
from anyparty.networks.encoders import MLP, Factory
from anyparty.networks.objective import Loss as RowLoss
from anyparty.networks.optimizer import Optimizer
from anyparty.problem.rows import Rows


@dataclass(frozen=True, kw_only=True)
class PartyContext:
    """One party's identity and settings in a run.

    Attributes:
        me: the party's name in the roster.
        roster: all parties.
        task: the prediction task, at parties that hold labels.
        inputs: width of the party's prepared block; 0 if the party holds no columns.
        encoder: factory of the party's encoder.
        sample: [n, inputs], the party's prepared training rows, if the encoder is fitted to them when it is made.
        optimizer: settings of the optimizer of the party's networks.
        loss: a user's loss, at parties that hold labels; ``None`` for the cross-entropy or the squared error.
        device: the device on which the party computes.

    """

    me: str
    roster: Roster
    task: Task | None = None
    inputs: int = 0
    encoder: Factory = MLP()
    sample: Tensor | None = field(default=None, repr=False, compare=False)
    optimizer: Optimizer = Optimizer()
    loss: RowLoss | None = None
    device: torch.device = torch.device("cpu")

    @cached_property
    def draws(self) -> bool:
        """True if the encoder may draw random numbers: a built-in encoder with dropout, or any encoder of a user."""
        return not isinstance(self.encoder, MLP) or self.encoder.dropout > 0


@dataclass
class State:
    """A party's data that training changes.

    ``modules`` and ``optimizers`` are the party's networks and their optimizers, by name; checkpoints save and restore
    both. ``kept`` holds tensors that one stage of training stores for a later stage. These tensors are saved in
    checkpoints, not in the trained model.
    """

    seat: PartyContext
    modules: dict[str, nn.Module] = field(default_factory=dict)
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)

    def train(self, mode: bool) -> None:
        """Set all networks to training mode, or to evaluation mode if ``mode`` is False."""
        for module in self.modules.values():
            module.train(mode)


@dataclass(frozen=True)
class Batch:
    """A group of rows that all parties process together in one step, with the seeds of the step's random numbers.

    Attributes:
        rows: [B] int64, indices of the rows among the N aligned rows; all parties have equal indices in equal order.
        seeds: the run's root seed.
        step_id: the position of the batch in the run, (stage, epoch, step).
        number: number of earlier batches in the stage, including batches from which this party was absent.
        share: factor of the batch's mean loss in an optimizer step; 1 by default. If each batch has only rows of one
            set of parties, batches differ in size. The factor is then the number of the batch's rows divided by the
            mean number of rows per batch, so that all rows of an epoch have the same weight.
        noise: the rule's random numbers of this batch, if they were drawn for several batches at once; ``None`` if they
            have not been drawn.
        held_out: [b] int64, indices of the validation rows among the N rows. Given only in a stage of a single step,
            which may process validation rows too.

    """

    rows: Tensor
    seeds: Seeds
    step_id: tuple[str | int, ...] = ()
    number: int = 0
    share: float = 1.0
    noise: Mapping[str, Tensor] | None = None
    held_out: Tensor | None = None

    def __str__(self) -> str:
        """Return the stage, epoch and number of the batch, for an error message."""
        if len(self.step_id) != 3:
            return "prediction"
        stage, epoch, step = self.step_id
        return f"stage {stage!r}, epoch {int(epoch) + 1}, batch {int(step) + 1}"

    def key(self, name: str) -> int:
        """Return this batch's key of the random numbers ``name`` (see ``core.draws``), equal at all parties."""
        return self.seeds.number(name, *self.step_id)

    def own_key(self, *name: str) -> int:
        """Return this batch's private key of the random numbers ``name``; no other party can compute it."""
        return self.seeds.own.number(*name, *self.step_id)

    def generator(self, name: str) -> torch.Generator:
        """Return this batch's random stream ``name``, which gives all parties equal numbers."""
        return self.seeds.torch(name, *self.step_id)

    def own(self, name: str) -> torch.Generator:
        """Return the party's private random stream ``name`` for this batch; no other party can reproduce it."""
        return self.seeds.own.torch(name, *self.step_id)

    def drawing(self, *name: str, device: torch.device) -> AbstractContextManager[None]:
        """Let modules draw random numbers (for example for dropout) from a private stream of the party.

        Each batch has its own streams; ``name`` selects one.

        The body of the ``with`` statement must not contain an ``await``, because other coroutines would draw from this
        stream too.
        """
        return self.seeds.own.drawing(*name, *self.step_id, device=device)


Step = Callable[[Channel, State, Rows, Batch], Awaitable[float | None]]
Loss = Callable[[State, Rows, Batch], float | None]

Count = Callable[[str, str, str, int], None]
"""A function that counts a message that was not sent: sender, receiver, tag, bytes."""


class JointStage(Protocol):
    """The steps of a stage for all parties in one process."""

    @property
    def predictor(self) -> Method | None:
        """The method whose predictions ``predict`` computes; ``None`` if predictions need messages."""

    def batches(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        """Yield the batches of an epoch, perhaps with random numbers.

        Before the first batch, networks and optimizers are read from the parties' states; after the last one,
        everything that checkpoints need is stored there.
        """

    def step(self, batch: Batch) -> float | None:
        """Train all parties on a batch; return the loss, or ``None`` if there is no row to learn from."""

    def predict(self, batch: Batch) -> Predictions:
        """Return the answers for ``batch.rows`` from all parties."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of training that the run repeats over batches and epochs.

    Attributes:
        name: name of the stage, shown with its progress.
        step: coroutine that runs one party's side of the training on a batch; at the active party, it returns the loss.
        rows: function of the active party that returns the rows on which the stage trains, [N] bool.
        validates: whether validation rows are scored after every epoch.
        epochs: number of epochs; by default the number in the settings. 0 means a single exchange: one step over all
            rows.
        batch_size: number of rows of a batch; by default the number in the settings.
        optimizer: optimizer settings that define the stage's learning rate; by default the party's own settings.
        parties: the parties that take part in the stage. All other parties continue without waiting for the stage to
            end.
        loss: function for stages in which each party trains alone and nothing is sent. It returns the party's loss on
            its validation rows, or ``None`` if the party has no such rows. This loss decides early stopping and which
            weights to keep; no answers are scored.
        with_validation: whether the stage also processes validation rows, which a stage may do if it does not learn
            from labels.
        optional: whether the active party skips the stage if there are no rows to train on.
        remark: function of the active party that returns a remark on the stage's rows, shown when the stage ends.
        finish: coroutine that each party runs after the last batch of an epoch.
        record: function that returns additional entries for the active party's record of an epoch, such as the time on
            a schedule's clock.
        joint: function that returns the steps of the stage for all parties together, from ``step``, each party's state
            and rows, and a function that counts messages, or the reason why the steps cannot be computed together;
            ``None`` if no stage of this kind can.
        continues: whether the stage goes on training the networks of the preceding stage. A run that keeps the best
            weights may then keep the weights with which this stage began.

    """

    name: str
    step: Step
    rows: Callable[[Rows], Tensor]
    validates: bool = True
    epochs: int | None = None
    batch_size: int | None = None
    optimizer: Optimizer | None = None
    parties: Literal["all", "active"] = "all"
    loss: Loss | None = None
    with_validation: bool = False
    optional: bool = False
    remark: Callable[[Rows], str] | None = None
    finish: Callable[[Channel, State, Rows], Awaitable[None]] | None = None
    record: Callable[[State], Mapping[str, float]] | None = None
    joint: Callable[[Step, Mapping[str, State], Mapping[str, Rows], Count], JointStage | str] | None = None
    continues: bool = False

    @cached_property
    def is_local(self) -> bool:
        """True if the parties send no messages in the stage."""
        return self.loss is not None or self.parties == "active"


class Method(Protocol):
    """The interface that every method implements."""

    @property
    def can(self) -> Capabilities:
        """The capabilities of the method, and the messages that it sends."""

    def begin(self, seat: PartyContext, seeds: Seeds) -> State:
        """Make a party's networks and optimizers.

        Raises:
            ConfigError: the method does not support this roster.
        """

    def stages(self, seat: PartyContext) -> Sequence[Stage]:
        """Return the stages of training, in order."""

    async def predict(
        self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]
    ) -> Predictions | None:
        """Run one party's side of the prediction of ``batch.rows``; at the active party, return the answers.

        The answers may use only the columns of the parties in ``asked``.
        """


@runtime_checkable
class HasEmbeddings(Protocol):
    """A method in which parties compute embeddings of their rows."""

    def embed(self, state: State, rows: Rows, places: Tensor) -> tuple[Tensor, Tensor] | None:
        """Compute embeddings of the party's rows among the aligned rows ``places`` [B], without a gradient.

        Returns:
            A pair: the positions [B_k] of these rows in ``places``, and their embeddings [B_k, ...]. ``None`` if the
            party has no encoder or none of these rows.
        """


@runtime_checkable
class HasHosts(Protocol):
    """A method with heads that several parties may host: a split method, also with pretraining or a schedule."""

    def hosts(self, roster: Roster) -> tuple[str, ...]:
        """Return the parties that host heads and train them with their own labels, the active party first."""

    def label_users(self, roster: Roster) -> tuple[str, ...]:
        """Return the parties whose labels training uses, the active party first."""


@runtime_checkable
class HasRemarks(Protocol):
    """A method that can tell which of its networks training did not reach."""

    def remarks(self, state: State, rows: Rows, training: Tensor) -> Iterable[str]:
        """Return remarks on the networks after the last stage; called at the active party.

        ``training`` [N] bool marks the rows that training may use.
        """


@runtime_checkable
class HasPredictor(Protocol):
    """A method whose predictions another method makes, such as a split method with a schedule."""

    @property
    def predictor(self) -> Method:
        """The method that predicts, and that a trained model saves."""


def predictor_of(method: Method) -> Method:
    """Return the method that makes the predictions of a trained model: by default the method itself."""
    return method.predictor if isinstance(method, HasPredictor) else method


def hosts_of(method: Method, roster: Roster) -> tuple[str, ...]:
    """Return the parties whose labels train a method's heads, with the active party first."""
    return method.hosts(roster) if isinstance(method, HasHosts) else (roster.active,)


# Calls of a method's functions, with checks of the results, because a user may have written the method


def checked_begin(method: Method, seat: PartyContext, seeds: Seeds) -> State:
    """Return a party's untrained networks and optimizers.

    Raises:
        ConfigError: ``begin`` does not return a ``State``.
    """
    state: object = method.begin(seat, seeds)
    if not hasattr(state, "modules"):
        raise ConfigError(f"{method.can.title}: expected a State from begin, got a {type(state).__name__}")
    return state  # type: ignore[return-value]


async def checked_step(
    method: Method, stage: Stage, net: Channel, state: State, rows: Rows, batch: Batch
) -> float | None:
    """Run one party's side of the training on a batch; at the active party, return the loss.

    Raises:
        ConfigError: the step is not a coroutine.
    """
    played: object = stage.step(net, state, rows, batch)
    if not inspect.isawaitable(played):
        raise ConfigError(f"{method.can.title}: the step of stage {stage.name!r} must be a coroutine, async def, as "
                          f"it waits for other parties; it gives a {type(played).__name__}")  # fmt: skip
    loss: float | None = await played
    return loss


def checked_answer(method: Method, state: State, answer: object) -> Predictions | None:
    """Check a party's answer for a batch, and detach its scores from the autograd graph.

    A row without a prediction gets a default reason if the method gave no reason.

    Raises:
        ConfigError: the answer is not of type ``Predictions``; ``None`` is allowed at a passive party.
    """
    leads = state.seat.me == state.seat.roster.active
    if answer is None and not leads:
        return None
    if not isinstance(answer, Predictions):
        raise ConfigError(f"{method.can.title}: expected predict to give Predictions at the active party"
                          f"{'' if leads else ', and None elsewhere'}, got a {type(answer).__name__}")  # fmt: skip
    by_party, lacking = answer.by_party, (~answer.answered).nonzero().squeeze(1).tolist()
    if lacking:
        answer = replace(answer, reasons=dict.fromkeys(lacking, NO_ANSWER) | answer.reasons)
    if not answer.scores.requires_grad and (by_party is None or not by_party.requires_grad):
        return answer
    return replace(answer, scores=answer.scores.detach(), by_party=None if by_party is None else by_party.detach())
