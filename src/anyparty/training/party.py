"""Run training as one party, from the party's own table to its trained networks.

The same coroutine runs for every party, in one process or at the party's site.  A party can access its own table and
the messages that it receives, but not the memory of another party.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import anyparty
from anyparty.alignment.alignment import PartyAlignment, rows_of
from anyparty.config import Config
from anyparty.core.draws import DRAWS
from anyparty.core.object_description import described
from anyparty.core.seeds import Seeds
from anyparty.core.storage import tuples
from anyparty.core.types import Capabilities, Channel, Roster, Task
from anyparty.data.blocks import Rows, own_rows
from anyparty.data.splits import TRAIN, VALIDATION, assign, restricted
from anyparty.data.task import balanced, check_training_labels, task_of, teaching
from anyparty.errors import ConfigError, MessageError
from anyparty.methods.method import Method, PartyContext, hosts_of
from anyparty.metrics import headline
from anyparty.networks.encoders import Factory
from anyparty.networks.objective import Loss
from anyparty.networks.optimizer import Optimizer
from anyparty.tables.preprocessing import MANY_LEVELS, Prepare
from anyparty.tables.reading_rules import AS_WRITTEN, ReadingRules
from anyparty.tables.table import Table
from anyparty.tables.target import encode
from anyparty.training import control_messages
from anyparty.training.checkpoint import Checkpoints
from anyparty.training.loop import device_of, play
from anyparty.training.party_run import (
    PartyRun,
    RunHooks,
    TrainedParty,
    labelled_at,
    share_labelled,
    warn_of_idle,
)


@dataclass(frozen=True, kw_only=True)
class PartyInputs:
    """A party's inputs to a training run.

    Attributes:
        name: the party.
        table: the party's validated table.
        known: the alignment, as far as the party knows it.
        encoder: the factory of the party's network.
        optimizer: the optimizer of the party's network.
        loss: a user's loss; ``None`` for the cross-entropy or the squared error.
        scale: True if the party's numeric columns are standardised.
        max_levels: the largest number of categories of a column; rarer categories are grouped into one.
        folder: the party's checkpoint folder; if ``None``, no checkpoints are kept.
        hooks: callbacks and values from outside training.  At the active party, ``hooks.welcome`` is called before
            the setup is sent to a party that rejoins.

    """

    name: str
    table: Table
    known: PartyAlignment
    encoder: Factory
    optimizer: Optimizer
    loss: Loss | None = None
    scale: bool = True
    max_levels: int = MANY_LEVELS
    folder: Path | None = None
    hooks: RunHooks = field(default_factory=RunHooks)


@dataclass(frozen=True, kw_only=True)
class PartyResult:
    """A party's result of a training run.

    Attributes:
        seat: the context in which the party trained: its name, the roster, the task and the settings of its network.
        trained: the party's networks; at the active party also the run's history.
        prepare: the fitted preprocessing of the party's table; ``None`` if the party has no columns.
        rows: the party's own data of the aligned rows.
        use: [N] int8, the use of each row: training, validation, test or none.
        label: the name of the party's label column, if it has one.
        rules: how the cells of the party's table were read.

    """

    seat: PartyContext
    trained: TrainedParty
    prepare: Prepare | None
    rows: Rows
    use: NDArray[np.int8]
    label: str | None = None
    rules: ReadingRules = AS_WRITTEN


async def take_part(
    net: Channel, *, inputs: PartyInputs, roster: Roster, config: Config, method: Method, resume: bool = False
) -> PartyResult:
    """Run one party and return its result: receive or make the setup, preprocess the party's table, then train.

    The active party makes the setup: it splits the rows, and infers the task from its labels.

    Raises:
        TableError: the party's table cannot be used.
        ConfigError: the parties' settings differ, or do not fit the task or the method.
        AlignmentError: a stage has no rows to train on.
        PartyLost: a party left or did not answer in time, and the training cannot continue without this party.
        MessageError: a received message does not match its declaration.
        Diverged: the loss, a weight or a prediction is NaN or infinite.
    """
    settings, known, table, leads = config.train, inputs.known, inputs.table, inputs.name == roster.active
    setup = await share_setup(net, roster, _setup(inputs, config, method.can) if leads else None)
    use, task, observed = setup
    if len(use) != len(known.position):
        raise MessageError(f"message 'setup' from {roster.active!r} to {inputs.name!r}: it has {len(use)} rows, but "
                           f"the alignment here has {len(known.position)}")  # fmt: skip
    if observed is not None:
        table = teaching(table, known.position, observed.numpy())

    async def welcome(net: Channel, name: str) -> None:
        if inputs.hooks.welcome is not None:
            await inputs.hooks.welcome(net, name)
        await set_up_again(net, roster, method, name, setup)

    if leads:
        warn_of_idle(method, roster)
    if leads and task is not None:
        headline(task, settings.metric)  # rejects a metric that does not fit the task, before the first epoch
    joined = None
    if leads and observed is not None:
        joined = rows_of(settings.rows, observed.numpy(), known.position >= 0)
    at = table.blocks_at(known.position)
    prepare = features = None
    if inputs.name in roster.blocks:
        prepare = Prepare.fit(table, at[(at >= 0) & (use == TRAIN)], scale=inputs.scale, max_levels=inputs.max_levels)
        features = prepare.features(table, new=False)
    seat = PartyContext(
        me=inputs.name,
        roster=roster,
        task=task,
        inputs=prepare.width if prepare else 0,
        encoder=inputs.encoder,
        sample=torch.from_numpy(features.x[at[(at >= 0) & (use == TRAIN)]])
        if features is not None and getattr(inputs.encoder, "fitted", False)
        else None,
        optimizer=inputs.optimizer,
        loss=inputs.loss,
        device=device_of(settings.device),
    )
    labels = None if task is None or table.label is None else encode(table.label, task, inputs.name)
    rows = own_rows(
        known.position, blocks=at, features=features, labels=labels, observed=observed, key=known.key,
        ids=table.ids if leads else None, device=seat.device,
    )  # fmt: skip
    rows = await share_labelled(net, method, roster, rows)
    part = PartyRun(
        seat=seat,
        method=method,
        rows=rows,
        settings=settings,
        agreed=agreed_on(config, method, roster, rows.n),
        validation=torch.from_numpy(np.flatnonzero(use == VALIDATION)) if leads else None,
        training=None if joined is None else torch.from_numpy((use == TRAIN) & joined),
        joined=None if joined is None else torch.from_numpy(joined),
        checkpoints=None if inputs.folder is None else Checkpoints(inputs.folder),
        resume=resume,
        hooks=replace(inputs.hooks, welcome=welcome),
    )
    trained = await play(part, net)
    label = None if inputs.table.label is None else inputs.table.label.name
    return PartyResult(
        seat=seat, trained=trained, prepare=prepare, rows=rows, use=use if joined is None else restricted(use, joined),
        label=label, rules=table.rules,
    )  # fmt: skip


Setup = tuple[NDArray[np.int8], Task | None, Tensor | None]


def _setup(inputs: PartyInputs, config: Config, can: Capabilities) -> Setup:
    """Return the setup: the use of each row, the task, and which party has which row; called at the active party."""
    known = inputs.known
    assert inputs.table.label is not None
    assert known.observed is not None
    table = teaching(inputs.table, known.position, known.observed.numpy())
    seeds = Seeds(config.train.seed, inputs.hooks.secret)
    settings = config.federation
    plan = config.split.plan(config.train, settings.task)
    use = assign(inputs.table, known.position, known.observed.numpy(), plan, seeds)
    task = task_of(table, known.position, use, settings.task, settings.positive, without=can.without_labels)
    if config.train.balance and task.kind == "regression":
        raise ConfigError("train.balance = true weighs classes, and numbers are predicted here: leave it out")
    used = restricted(use, rows_of(config.train.rows, known.observed.numpy(), known.position >= 0))
    if config.train.rows != "any":
        check_training_labels(table, known.position, used, task, config.train.rows)
    if config.train.balance:
        task = replace(task, weights=balanced(table, known.position, used, task))
    return use, task, known.observed


async def share_setup(net: Channel, roster: Roster, setup: Setup | None) -> Setup:
    """At the active party, send the setup; at other parties, receive the setup. Return the setup.

    Every party receives the use of each row, such as training or test.  Label holders also receive the task, and which
    parties have each row.

    Raises:
        MessageError: the active party's message does not describe a task, or does not fit the number of rows.
    """
    if setup is not None:
        for name in roster.names:
            if name != net.me:
                await send_setup(net, roster, name, setup)
        return setup
    got = await net.recv(roster.active, "setup", control_messages.SETUP)
    if not len(got["task"]):
        return got["use"].numpy(), None, None
    try:
        task = Task(**tuples(json.loads(got["task"].numpy().tobytes())))
        return got["use"].numpy(), task, got["observed"].bool().view(len(got["use"]), roster.K)
    except (ValueError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise MessageError(f"message 'setup' from {roster.active!r} to {net.me!r}: expected a task and which "
                           f"parties have each of {len(got['use'])} rows "
                           f"({str(error).splitlines()[0][:80]})") from None  # fmt: skip


def public(task: Task) -> dict[str, Any]:
    """Return the fields of the task that all label holders receive: every field except the type of the labels."""
    return {name: value for name, value in asdict(task).items() if name != "label_type"}


async def set_up_again(net: Channel, roster: Roster, method: Method, name: str, setup: Setup) -> None:
    """Send the setup again to a party that rejoins; called at the active party."""
    await send_setup(net, roster, name, setup)
    if name in hosts_of(method, roster):
        # The rejoining party sends its mask of labelled rows again. The active party already has this mask.
        await labelled_at(net, name, len(setup[0]))


async def send_setup(net: Channel, roster: Roster, name: str, setup: Setup) -> None:
    """Send a party the use of each row; a label holder also gets the task and which party has which row."""
    use, task, observed = setup
    assert task is not None
    assert observed is not None
    nothing = torch.empty(0, dtype=torch.uint8)
    message = {"use": torch.from_numpy(use), "task": nothing, "observed": nothing}
    if name in roster.labelers:
        task_bytes = torch.frombuffer(bytearray(json.dumps(public(task)).encode()), dtype=torch.uint8)
        message |= {"task": task_bytes, "observed": observed.flatten().byte()}
    await net.send(name, "setup", message)


def agreed_on(config: Config, method: Method, roster: Roster, n: int) -> Mapping[str, str]:
    """Return the groups of settings that all parties must share, as text by name; ``n`` is the number of rows."""
    return {
        "version": anyparty.__version__,
        "method": json.dumps(described(method), sort_keys=True),
        "train": config.train.model_dump_json(exclude={"device", "execution"}),
        "roster": repr(roster),
        "number of rows": str(n),
        "format of random numbers": str(DRAWS),
    }
