"""Run one party's share of a training at its own site, in its own process, with its own table and folder.

``train_at_site`` aligns the rows privately if necessary, trains, and saves the party's share of the model.  The party's
folder contains:

    alignment.safetensors     positions of its own rows; at the active party also which party has which row
    model.json, parties/ME/   its share of the model; only at label holders also the task, such as the classes
    checkpoints/              the last two checkpoints
    secret                    32 bytes for the party's private random draws, such as its first weights
    record.json               the ledger of its messages and its status; at the active party history and test scores
    .lock                     held by a running job; a second job waits some seconds, then fails
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from anyparty import metrics
from anyparty.alignment import private
from anyparty.alignment.overlap import Overlap
from anyparty.api.federation import read_party
from anyparty.api.training_run import member_of, summary_before
from anyparty.api.verdict import BaselineComparison
from anyparty.artifacts.model_files import ModelSummary, write_model
from anyparty.artifacts.recorder import SiteRecorder, counted_costs, sizes_of
from anyparty.artifacts.run_folder import alone
from anyparty.config import Config
from anyparty.config.label_columns import check_features, columns_of, labels_asked
from anyparty.config.method_factory import scheduled
from anyparty.core.seeds import Seeds
from anyparty.core.types import Channel, MessageSpec, Party, Roster
from anyparty.deployment.site import alignment_cache
from anyparty.deployment.site.alignment_cache import ALIGNMENT, aligned, welcome
from anyparty.deployment.site.policy import (
    SiteSettings,
    check_columns,
    check_consent,
    encoder_at,
    method_at,
    secret_in,
    with_own_reading,
)
from anyparty.errors import ENDED, ConfigError, Stopped, remark
from anyparty.methods.method import Method
from anyparty.networks.encoders import Factory
from anyparty.problem.problem import Problem
from anyparty.problem.splits import TEST
from anyparty.tables import summary
from anyparty.tables.table import Table, row_number_notes
from anyparty.training import control_messages
from anyparty.training.loop import predict_rows
from anyparty.training.party import PartyResult, agreed_on, context_of, take_part
from anyparty.training.party_run import Attendance, RunHooks, membership_of
from anyparty.transport.contract import ContractChannel
from anyparty.transport.ledger import Flow


@dataclass(frozen=True)
class SiteParty:
    """One party at its site.

    Attributes:
        site: the party's own settings.
        config: the settings of the job.
        roster: the parties in their fixed order, and which of them is active.
        table: the party's table.
        encoder: the function that makes the party's encoder.
        method: the method to train, wrapped in its schedule if it has one.
        facts: the facts about the model that are known before training.
    """

    site: SiteSettings
    config: Config
    roster: Roster
    table: Table
    encoder: Factory
    method: Method
    facts: ModelSummary

    @classmethod
    def of(cls, site: SiteSettings, config: Config) -> SiteParty:
        """Return the party, with its table read from the file.

        Raises:
            ConfigError: the party's own settings have no table, or do not allow a column, code or message that the job
                uses; or the job's settings have no label, or an unknown party.
            TableError: the table cannot be used, or has the label column among its features.
        """
        config = with_own_reading(site, config)
        roster, encoder = roster_of(site, config), encoder_at(site, config)
        method = method_at(site, config)
        check_consent(site, method)
        method = scheduled(method, config)
        facts = summary_before(config, method, roster)
        if site.table is None:
            raise ConfigError(f'party {site.party!r}: its own settings name no table; write table = "file.csv"')
        label = labels_asked(config, site.active).get(site.party)
        own = {site.party: site.table}
        check_features(config, site.active, own, columns_of(config, own))
        leads = site.party == site.active
        table = read_party(config, site.party, site.table, label, leads=leads)
        read = [*table.columns.columns, *([config.split.column] if leads and config.split.column else [])]
        check_columns(site, config.reading(site.party)["id"], label, read)
        return cls(site, config, roster, table, encoder, method, facts)


def roster_of(site: SiteSettings, config: Config) -> Roster:
    """Return the parties, from the settings of the job and of the site; no table is read.

    Raises:
        ConfigError: the job's settings have no label, a label that no party has, or a party that is unknown to the
            site.
    """
    for name in config.parties:
        if name not in site.parties:
            raise ConfigError(f"the settings name party {name!r}, the federation has {list(site.parties)}")
    labels = labels_asked(config, site.active)

    def party(name: str) -> Party:
        own = config.parties.get(name)
        return Party(name=name, columns=own is None or own.columns, labels=name in labels)

    return Roster(tuple(party(name) for name in site.parties), site.active)


async def train_at_site(site: SiteSettings, config: Config, net: Channel, *, resume: bool = False) -> dict[str, Any]:
    """Train one party at its own site; return the epochs and scores that the coordinator may show.

    Raises:
        AnypartyError: training failed or was stopped.  Saved files remain, and ``resume`` continues from them.
    """
    async with alone(site.folder):
        return await _train(site, config, net, resume=resume)


async def _train(site: SiteSettings, config: Config, net: Channel, *, resume: bool) -> dict[str, Any]:
    party, membership, leads = SiteParty.of(site, config), membership_of(net), site.party == site.active
    config, roster, method = party.config, party.roster, party.method
    recorder = SiteRecorder.begin(
        site.folder, party=site.party, active=site.active, parties=roster.names, settings=config.to_toml(),
        table=party.table.fingerprint, can=method.can, job=membership.run, resume=resume,
    )  # fmt: skip
    with recorder.open():
        if not leads:  # the active party reports its notes later, with the overlap
            remarked(party.table, *summary.notes(party.table))
        lose = membership.lose if config.train.extreme == "drop" else None
        wired = ContractChannel(net, roster, declared(method), lose, ledger=recorder.ledger)
        share, number = await aligned(
            site.folder / ALIGNMENT,
            wired,
            roster,
            party.table,
            salt=config.federation.salt,
            normalize=config.federation.id_normalize,
            resume=resume,
            incremental=config.federation.incremental,
            progress=recorder.on_align_progress,
        )
        secret, n = secret_in(site.folder), len(share.position)
        problem = None if not leads or share.observed is None else Problem(
            roster=roster, table=party.table, position=share.position, observed=share.observed.numpy(),
            plan=config.plan, seeds=Seeds(config.train.seed, secret), without_labels=method.can.without_labels,
            key=share.key,
        )  # fmt: skip
        agreed = agreed_on(config, method, roster, n)
        recorder.aligned(number.numpy().tobytes(), agreed, n, *_overview(problem))
        outcome = await take_part(
            wired,
            context=context_of(config, roster, site.party, encoder=party.encoder),
            table=party.table,
            position=share.position,
            config=config,
            method=method,
            problem=problem,
            folder=site.folder / "checkpoints",
            resume=resume,
            hooks=RunHooks(
                callback=recorder, membership=membership, welcome=partial(welcome, number, roster), secret=secret,
                on_checkpoint=recorder.on_checkpoint,
            ),
        )  # fmt: skip
        unsaved = await _keep(party, outcome, wired)
        scores = await _score(party, outcome, wired)
        recorder.finish(outcome.trained, scores)
        recorder.record.shape = dict(vars(sizes_of(outcome)))
        result: dict[str, Any] = {"epochs": len(outcome.trained.history), "evaluation": scores}
        if leads:
            own = {site.party: outcome}
            recorder.record.costs = counted_costs(method, own, config.train, recorder.ledger)
            result |= await _attendance(party, outcome, wired, unsaved, recorder)
        else:
            # Count the message "finished" now: it is sent after the record was written.
            recorder.ledger.add(Flow(site.party, site.active, "finished"), 0)
    if not leads:
        await ContractChannel(net, roster, control_messages.PART_MESSAGES).send(site.active, "finished", {})
    return result


async def _attendance(
    party: SiteParty, outcome: PartyResult, net: Channel, unsaved: dict[str, str], recorder: SiteRecorder
) -> dict[str, list[str]]:
    """Wait until the other parties have finished; record and return warnings about parties that missed epochs.

    The result has the warnings under "attendance", and the parties whose part of the model is behind under "behind".

    Raises:
        Incomplete: a party failed at the end of training, or ``train.require`` is not met.
        Stopped: the job was ended during the wait.
    """
    names = [name for name in party.roster.names if name not in {party.site.party, *unsaved}]
    local = {stage.name for stage in party.method.stages(outcome.trained.state.seat) if stage.is_local}
    unfinished = await control_messages.unfinished(net, names)
    if any(ENDED in why for why in (*unsaved.values(), *unfinished.values())):
        raise Stopped(ENDED)
    found = Attendance.of(outcome.trained.history, local, party.roster.names, unsaved, unfinished)
    recorder.record.attendance = warnings = found.warnings()
    found.check(party.config.train.require)
    return {"attendance": warnings, "behind": found.behind(party.config.train.require)}


def declared(method: Method) -> tuple[MessageSpec, ...]:
    """Return the specifications of all messages that parties at their sites may send with ``method``."""
    return (
        *method.can.messages,
        *control_messages.MESSAGES,
        *control_messages.PART_MESSAGES,
        *private.MESSAGES,
        *alignment_cache.MESSAGES,
    )


def remarked(table: Table, *notes: str) -> Table:
    """Report ``notes`` as remarks on the party's table, by default the table's own notes; return the table."""
    for note in (*(notes or table.notes), *row_number_notes([table], private=True)):
        remark(note)
    return table


def _overview(problem: Problem | None) -> tuple[Overlap | None, str]:
    """Return the overlap and a one-line description of the task; at passive parties, ``None`` and an empty text."""
    if problem is None:
        return None, ""
    overlap = Overlap.count(
        problem.observed, problem.roster.blocks, problem.labeled, summary.notes(problem.table, problem.plan.task),
        held=problem.position >= 0,
    )  # fmt: skip
    return overlap, problem.describe()


async def _keep(party: SiteParty, outcome: PartyResult, net: Channel) -> dict[str, str]:
    """Save the party's share of the model; the active party also saves the hashes (SHA-256) of all other shares.

    Return the parties that were lost before they had saved their share, with the reasons; empty at a passive party.

    The weights and the files with their hashes are written without an await in between, so that a crash in between is
    unlikely.
    """
    site, roster = party.site, party.roster
    leads = site.party == site.active
    others, lost = await control_messages.gather_weights_hashes(
        net, [name for name in roster.names if leads and name != site.party]
    )
    facts = replace(
        party.facts, task=outcome.trained.state.seat.task, best_epoch=outcome.trained.best_epoch, parts=others
    )  # fmt: skip
    hashes = write_model(site.folder, facts, {site.party: member_of(party.config, outcome)})
    if not leads:
        await control_messages.send_weights_hash(net, roster, hashes[site.party])
    return lost


async def _score(party: SiteParty, outcome: PartyResult, net: Channel) -> dict[str, Any] | None:
    """Score the test rows with all parties; return the scores at the active party, ``None`` at the other parties."""
    wanted, seeds = torch.from_numpy(np.flatnonzero(outcome.view.use == TEST)), Seeds(party.config.train.seed)
    if not len(wanted):
        return None
    answered = await predict_rows(
        party.method, net, outcome.trained.state, outcome.rows, wanted, party.roster.blocks, seeds
    )
    if answered is None:
        return None
    rows = outcome.rows
    assert rows.y is not None
    assert rows.observed is not None
    seed = party.config.train.seed
    comparison = BaselineComparison.of({net.me: rows}, outcome.view.use, party.roster, answered.task, seed)
    return metrics.evaluate(
        answered, rows.y[wanted].cpu(), None, rows.observed[wanted].cpu(), seeds,
        compare=lambda whole: comparison.worth({net.me: rows}, wanted, party.roster.blocks, whole),
    ).to_json()  # fmt: skip
