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
from anyparty.alignment.alignment import PartyAlignment
from anyparty.alignment.overlap import Overlap
from anyparty.api.federation import read_party
from anyparty.api.training_run import TrainingRun
from anyparty.artifacts.model_files import write_model
from anyparty.artifacts.recorder import SiteRecorder, counted_costs, sizes_of
from anyparty.artifacts.run_folder import alone
from anyparty.config import Config
from anyparty.config.label_columns import check_features, columns_of, labels_asked
from anyparty.config.method_factory import scheduled
from anyparty.core.seeds import Seeds
from anyparty.core.types import Channel, MessageSpec, Party, Roster
from anyparty.data.splits import TEST
from anyparty.data.task import labeled_rows, predicted, teaching
from anyparty.deployment.site import alignment_cache
from anyparty.deployment.site.alignment_cache import ALIGNMENT, aligned, welcome
from anyparty.deployment.site.policy import (
    SiteSettings,
    check_columns,
    encoder_at,
    method_at,
    secret_in,
    with_own_reading,
)
from anyparty.errors import ENDED, ConfigError, Stopped, remark
from anyparty.methods.method import Method
from anyparty.networks.encoders import Factory
from anyparty.tables import summary
from anyparty.tables.table import Table, row_number_notes
from anyparty.training import control_messages
from anyparty.training.loop import predict_rows
from anyparty.training.party import PartyResult, agreed_on
from anyparty.training.party_run import Attendance, RunHooks, membership_of
from anyparty.transport.contract import ContractChannel
from anyparty.transport.ledger import Flow


@dataclass(frozen=True)
class SiteParty:
    """One party at its site: its table, its encoder, and the run that it takes part in."""

    site: SiteSettings
    table: Table
    encoder: Factory
    run: TrainingRun

    @classmethod
    def of(cls, site: SiteSettings, config: Config, *, resume: bool = False) -> SiteParty:
        """Return the party, with its table read from the file and its run prepared.

        Raises:
            ConfigError: the party's own settings have no table, or do not allow a column or code that the job uses; or
                the job's settings have no label, or an unknown party.
            TableError: the table cannot be used, or has the label column among its features.
        """
        config = with_own_reading(site, config)
        roster, encoder = roster_of(site, config), encoder_at(site, config)
        run = TrainingRun.of(config, scheduled(method_at(site, config), config), roster, resume=resume)
        if site.table is None:
            raise ConfigError(f'party {site.party!r}: its own settings name no table; write table = "file.csv"')
        label = labels_asked(config, site.active).get(site.party)
        own = {site.party: site.table}
        check_features(config, site.active, own, columns_of(config, own))
        leads = site.party == site.active
        table = read_party(config, site.party, site.table, label, leads=leads)
        read = [*table.columns.columns, *([config.split.column] if leads and config.split.column else [])]
        check_columns(site, config.reading(site.party)["id"], label, read)
        return cls(site, table, encoder, run)


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
    site_party, membership, leads = (
        SiteParty.of(site, config, resume=resume),
        membership_of(net),
        site.party == site.active,
    )
    run = site_party.run
    recorder = SiteRecorder.begin(
        site.folder, party=site.party, active=site.active, parties=run.roster.names, settings=config.to_toml(),
        table=site_party.table.fingerprint, can=run.method.can, job=membership.run, resume=resume,
    )  # fmt: skip
    with recorder.open():
        if not leads:  # the active party reports its notes later, with the overlap
            remarked(site_party.table, *summary.notes(site_party.table))
        lose = membership.lose if config.train.extreme == "drop" else None
        wired = ContractChannel(net, run.roster, declared(run.method), lose, ledger=recorder.ledger)
        known, number = await aligned(
            site.folder / ALIGNMENT,
            wired,
            run.roster,
            site_party.table,
            salt=config.federation.salt,
            normalize=config.federation.id_normalize,
            resume=resume,
            incremental=config.federation.incremental,
            progress=recorder.on_align_progress,
        )
        agreed = agreed_on(config, run.method, run.roster, len(known.position))
        recorder.aligned(number.numpy().tobytes(), agreed, len(known.position), *_overview(site_party, known))
        hooks = RunHooks(
            callback=recorder, membership=membership, welcome=partial(welcome, number), secret=secret_in(site.folder),
            on_checkpoint=recorder.on_checkpoint,
        )  # fmt: skip
        party = run.party(
            site.party,
            site_party.table,
            known,
            folder=site.folder / "checkpoints",
            hooks=hooks,
            encoder=site_party.encoder,
        )
        outcome = await party(wired)
        unsaved = await _keep(site_party, outcome, wired)
        scores = await _score(site_party, outcome, wired)
        recorder.finish(outcome.trained, scores)
        recorder.record.shape = dict(vars(sizes_of(outcome)))
        result: dict[str, Any] = {"epochs": len(outcome.trained.history), "evaluation": scores}
        if leads:
            own = {site.party: outcome}
            recorder.record.costs = counted_costs(run.method, own, config.train.batch_size, recorder.ledger)
            result["attendance"] = await _attendance(site_party, outcome, wired, unsaved, recorder)
        else:
            # Count the message "finished" now: it is sent after the record was written.
            recorder.ledger.add(Flow(site.party, site.active, "finished"), 0)
    if not leads:
        await ContractChannel(net, run.roster, control_messages.PART_MESSAGES).send(site.active, "finished", {})
    return result


async def _attendance(
    site_party: SiteParty, outcome: PartyResult, net: Channel, unsaved: dict[str, str], recorder: SiteRecorder
) -> list[str]:
    """Wait until the other parties have finished; return and record warnings about parties that missed epochs.

    Raises:
        Incomplete: a party failed at the end of training, or ``train.require`` is not met.
        Stopped: the job was ended during the wait.
    """
    run = site_party.run
    names = [name for name in run.roster.names if name not in {site_party.site.party, *unsaved}]
    local = {stage.name for stage in run.method.stages(outcome.seat) if stage.is_local}
    unfinished = await control_messages.unfinished(net, names)
    if any(ENDED in why for why in (*unsaved.values(), *unfinished.values())):
        raise Stopped(ENDED)
    found = Attendance.of(outcome.trained.history, local, run.roster.names, unsaved, unfinished)
    recorder.record.attendance = warnings = found.warnings()
    found.check(run.config.train.require)
    return warnings


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


def _overview(site_party: SiteParty, known: PartyAlignment) -> tuple[Overlap | None, str]:
    """Return the overlap and a one-line description of the task; at passive parties, ``None`` and an empty text."""
    if known.observed is None:
        return None, ""
    observed = known.observed.numpy()
    overlap = Overlap.count(
        observed, site_party.run.roster.blocks, labeled_rows(site_party.table, known.position),
        summary.notes(site_party.table, site_party.run.config.federation.task), held=known.position >= 0,
    )  # fmt: skip
    settings = site_party.run.config.federation
    return overlap, predicted(teaching(site_party.table, known.position, observed), settings.task, settings.positive)


async def _keep(site_party: SiteParty, outcome: PartyResult, net: Channel) -> dict[str, str]:
    """Save the party's share of the model; the active party also saves the hashes (SHA-256) of all other shares.

    Return the parties that were lost before they had saved their share, with the reasons; empty at a passive party.

    The weights and the files with their hashes are written without an await in between, so that a crash in between is
    unlikely.
    """
    site, run = site_party.site, site_party.run
    leads = site.party == site.active
    others, lost = await control_messages.gather_weights_hashes(
        net, [name for name in run.roster.names if leads and name != site.party]
    )
    model_summary = replace(run.about(outcome), parts=others)
    hashes = write_model(site.folder, model_summary, {site.party: run.member(outcome)})
    if not leads:
        await control_messages.send_weights_hash(net, run.roster, hashes[site.party])
    return lost


async def _score(site_party: SiteParty, outcome: PartyResult, net: Channel) -> dict[str, Any] | None:
    """Score the test rows with all parties; return the scores at the active party, ``None`` at the other parties."""
    wanted, seeds = torch.from_numpy(np.flatnonzero(outcome.use == TEST)), Seeds(site_party.run.config.train.seed)
    if not len(wanted):
        return None
    answered = await predict_rows(
        site_party.run.method, net, outcome.trained.state, outcome.rows, wanted, site_party.run.roster.blocks, seeds
    )
    if answered is None:
        return None
    rows = outcome.rows
    assert rows.y is not None
    assert rows.observed is not None
    return metrics.evaluate(answered, rows.y[wanted].cpu(), None, rows.observed[wanted].cpu(), seeds).to_json()
