"""Run training as one party, from the party's own table to its trained networks.

The same coroutine runs for every party, in one process or at the party's site.  A party can access its own table and
the messages that it receives, but not the memory of another party.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import anyparty
from anyparty.config import Config, PartySettings
from anyparty.core.draws import DRAWS
from anyparty.core.object_description import described
from anyparty.core.types import Channel, Roster
from anyparty.methods.method import Method, PartyContext, hosts_of
from anyparty.metrics import headline
from anyparty.networks.encoders import Factory
from anyparty.networks.objective import Loss
from anyparty.networks.optimizer import Optimizer
from anyparty.problem.party_view import LabelView, LeadView, PartyView, view_of_setup
from anyparty.problem.problem import Problem
from anyparty.problem.rows import Rows
from anyparty.problem.splits import TRAIN, VALIDATION
from anyparty.tables.preprocessing import Prepare
from anyparty.tables.table import Table
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
class PartyResult:
    """A party's result of a training run.

    Attributes:
        view: the party's view of the problem: its table, and the use of each row.
        trained: the party's networks; at the active party also the run's history.
        prepare: the fitted preprocessing of the party's table; ``None`` if the party has no columns.
        rows: the party's own data of the aligned rows.

    """

    view: PartyView
    trained: TrainedParty
    prepare: Prepare | None
    rows: Rows


def context_of(
    config: Config, roster: Roster, name: str, *,
    encoder: Factory | None = None, optimizer: Optimizer | None = None, loss: Loss | None = None,
) -> PartyContext:  # fmt: skip
    """Return a party's context before its table is prepared; ``take_part`` adds the task and the width of its rows.

    ``encoder`` and ``optimizer`` replace those of the settings. ``loss`` is a user's loss.

    Raises:
        ConfigError: the encoder of the settings cannot be made.
    """
    return PartyContext(
        me=name, roster=roster, encoder=encoder or config.encoder_of(name),
        optimizer=optimizer or config.optimizer_of(name), loss=loss,
    )  # fmt: skip


async def take_part(
    net: Channel,
    *,
    context: PartyContext,
    table: Table,
    position: NDArray[np.int64],
    config: Config,
    method: Method,
    problem: Problem | None = None,
    folder: Path | None = None,
    resume: bool = False,
    hooks: RunHooks | None = None,
) -> PartyResult:
    """Run one party and return its result: share the problem, preprocess the party's table, then train.

    Args:
        net: the party's channel.
        context: the party's context, from ``context_of``.
        table: the party's validated table.
        position: [N], the index of each aligned row in the party's table; -1 if the table lacks the row.
        config: the settings.
        method: the method to train.
        problem: the problem, at the active party. All other parties receive their part of it.
        folder: the party's checkpoint folder; if ``None``, no checkpoints are kept.
        resume: whether to resume from checkpoints that all parties have.
        hooks: callbacks and values from outside training.  At the active party, ``hooks.welcome`` is called before the
            setup is sent to a party that rejoins.

    Raises:
        TableError: the party's table cannot be used.
        ConfigError: the parties' settings differ, or do not fit the task or the method.
        AlignmentError: a stage has no rows to train on.
        PartyLost: a party left or did not answer in time, and the training cannot continue without this party.
        MessageError: a received message does not match its declaration.
        Diverged: the loss, a weight or a prediction is NaN or infinite.
    """
    settings, roster, own = config.train, context.roster, config.parties.get(context.me, PartySettings())
    hooks = hooks or RunHooks()
    lead = None if problem is None else LeadView.of(problem)
    view = await share_setup(net, roster, table, position, lead)
    if lead is not None:
        warn_of_idle(method, roster)
        headline(lead.task, settings.metric)  # rejects a metric that does not fit the task, before the first epoch
        hooks = replace(hooks, welcome=partial(_welcome, hooks.welcome, method, lead))
    prepare, features = view.prepare(scale=own.scale, max_levels=own.max_levels)
    fitted = features if getattr(context.encoder, "fitted", False) else None
    seat = replace(
        context, sample=None if fitted is None else torch.from_numpy(fitted.x[view.training_rows]),
        task=view.task if isinstance(view, LabelView) else None, inputs=prepare.width if prepare else 0,
        device=device_of(settings.device),
    )  # fmt: skip
    rows = await share_labelled(net, method, roster, view.rows(features, seat.device))
    part = PartyRun(
        seat=seat,
        method=method,
        rows=rows,
        settings=settings,
        agreed=agreed_on(config, method, roster, rows.n),
        validation=torch.from_numpy(np.flatnonzero(view.use == VALIDATION)),
        training=torch.from_numpy(view.use == TRAIN),
        joined=None if lead is None else torch.from_numpy(lead.problem.joined),
        checkpoints=None if folder is None else Checkpoints(folder),
        resume=resume,
        hooks=hooks,
    )
    return PartyResult(view=view, trained=await play(part, net), prepare=prepare, rows=rows)


async def share_setup(
    net: Channel, roster: Roster, table: Table, position: NDArray[np.int64], lead: LeadView | None
) -> PartyView:
    """At the active party, send the setup to all other parties; at those, receive it. Return the party's view.

    Every party receives the use of each row, such as training or test.  Label holders also receive the task, and which
    parties have each row.

    Raises:
        MessageError: the active party's message does not describe a task, or does not fit the number of rows.
    """
    if lead is None:
        setup = await net.recv(roster.active, "setup", control_messages.SETUP)
        return view_of_setup(net.me, roster, table, position, setup)
    for name in roster.names:
        if name != net.me:
            await net.send(name, "setup", lead.setup_for(name))
    return lead


async def _welcome(
    before: Callable[[Channel, str], Awaitable[None]] | None, method: Method, lead: LeadView, net: Channel, name: str
) -> None:
    if before is not None:
        await before(net, name)
    await set_up_again(net, method, lead, name)


async def set_up_again(net: Channel, method: Method, lead: LeadView, name: str) -> None:
    """Send the setup again to a party that rejoins; called at the active party."""
    await net.send(name, "setup", lead.setup_for(name))
    if name in hosts_of(method, lead.roster):
        # The rejoining party sends its mask of labelled rows again. The active party already has this mask.
        await labelled_at(net, name, len(lead.drawn))


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
