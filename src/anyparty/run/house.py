"""A party at home: its own process, its own table, its own folder.

    train_at_home   aligns privately (once), takes part in training, keeps its part of the model

What a party keeps, in its folder:

    alignment.safetensors     places of its own rows; at the active party also who has which
    model.json, parties/ME/   its part of the model; the task at label holders alone
    checkpoints/              the last two
    secret                    32 bytes, with which it draws its first weights: nobody else ever sees them
    record.json               what it sent, how it ended; at the active party history and test scores
    .lock                     held while a run is at work: another one waits some seconds, then gives up
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from anyparty import metrics
from anyparty.align import private
from anyparty.align.alignment import Known
from anyparty.align.overlap import Overlap
from anyparty.blocks.splits import TEST
from anyparty.config import Config
from anyparty.errors import ENDED, ConfigError, Stopped, remark
from anyparty.methods.method import Method
from anyparty.methods.table import settings_of
from anyparty.nets.mlp import Factory
from anyparty.run import agree, costs, kept_alignment, parts, quiet
from anyparty.run.allowed import check_columns, encoder_at, method_at
from anyparty.run.alone import alone
from anyparty.run.attendance import Attendance, check_require
from anyparty.run.door import Door, door_of
from anyparty.run.federation import read_party
from anyparty.run.files import About, Member, save_member, write_manifest
from anyparty.run.holders import check_features, labels_asked
from anyparty.run.journal import Journal
from anyparty.run.kept_alignment import ALIGNMENT, aligned, welcome
from anyparty.run.own_method import described
from anyparty.run.party import House, Outcome, agreed_on, take_part
from anyparty.run.predict import predict_rows
from anyparty.run.secret import secret_in
from anyparty.run.task import labeled_rows, predicted, teaching
from anyparty.schedules.scheduled import Scheduled
from anyparty.schedules.table import scheduled
from anyparty.seeds import Seeds
from anyparty.tables.table import Table
from anyparty.terms import Channel, Declared, Party, Roster
from anyparty.wire.guard import Guarded
from anyparty.wire.ledger import Flow


class Site(Protocol):
    """What a party says at home about itself."""

    @property
    def party(self) -> str:
        """Its name."""

    @property
    def active(self) -> str:
        """Who leads."""

    @property
    def parties(self) -> tuple[str, ...]:
        """All parties, in the order that all share."""

    @property
    def table(self) -> Path | None:
        """Its table."""

    @property
    def folder(self) -> Path:
        """Where it keeps what it keeps."""


@dataclass(frozen=True)
class Home:
    """One party at home."""

    site: Site
    config: Config
    roster: Roster
    table: Table
    method: Method
    encoder: Factory

    @classmethod
    def of(cls, site: Site, config: Config) -> Home:
        """Read the party's table.

        Raises:
            ConfigError: the settings name no table, no label, other parties than the site; or a factory or a
                column that the party's own settings do not allow.
            TableError: the table cannot be used, or has the column of labels among its features.
        """
        roster, encoder = roster_of(site, config), encoder_at(site, config)
        check_require(config.train.require, roster.names)
        method = scheduled(method_at(site, config), config)
        if site.table is None:
            raise ConfigError(f'party {site.party!r}: its own settings name no table; write table = "file.csv"')
        own, label = config.parties.get(site.party), labels_asked(config, site.active).get(site.party)
        check_features(config, site.active, {site.party: site.table})
        table = read_party(config, site.party, site.table, label)
        check_columns(site, (own and own.id) or config.federation.id, label, table.columns.columns)
        return cls(site, config, roster, table, method, encoder)


def roster_of(site: Site, config: Config) -> Roster:
    """Return the parties as settings and site describe them: nobody sees another's table.

    Raises:
        ConfigError: the settings name parties that the site does not know, or no label, or one that is nobody's.
    """
    for name in config.parties:
        if name not in site.parties:
            raise ConfigError(f"the settings name party {name!r}, the federation has {list(site.parties)}")
    labels = labels_asked(config, site.active)

    def party(name: str) -> Party:
        own = config.parties.get(name)
        return Party(name=name, columns=own is None or own.columns, labels=name in labels)

    return Roster(tuple(party(name) for name in site.parties), site.active)


async def train_at_home(site: Site, config: Config, net: Channel, *, resume: bool = False) -> dict[str, Any]:
    """Play one party's whole part of a run at its own machine; return what may be told of it.

    Raises:
        AnypartyError: see ``anyparty.errors``; what was kept stays, and ``resume`` goes on from it.
    """
    async with alone(site.folder):
        return await _train(site, config, net, resume=resume)


async def _train(site: Site, config: Config, net: Channel, *, resume: bool) -> dict[str, Any]:
    home, door, leads = Home.of(site, config), door_of(net), site.party == site.active
    journal = Journal.begin(
        site.folder, party=site.party, active=site.active, parties=home.roster.names, settings=config.to_toml(),
        table=home.table.fingerprint, can=home.method.can, job=door.run, resume=resume,
    )  # fmt: skip
    with journal.open():
        if not leads:  # whose remarks are in the overlap
            remarked(home.table)
        lose = door.lose if config.train.extreme == "drop" else None
        wired = Guarded(net, home.roster, declared(home.method), lose, ledger=journal.ledger)
        known, number = await aligned(
            site.folder / ALIGNMENT, wired, home.roster, home.table, salt=config.federation.salt, resume=resume
        )
        journal.aligned(
            number.numpy().tobytes(), agreed_on(config, home.method, home.roster, len(known.position)),
            rows=len(known.position), more=_known(home, known),
        )  # fmt: skip
        house = _house(home, known, number, door, journal)
        outcome = await take_part(
            wired, house=house, roster=home.roster, config=config, method=home.method, resume=resume
        )
        unsaved = await _keep(home, outcome, wired)
        scores = await _score(home, outcome, wired)
        journal.ended(outcome.trained.history, outcome.trained.best_epoch, scores)
        journal.values["shape"] = vars(costs.shape(outcome))
        told: dict[str, Any] = {"epochs": len(outcome.trained.history), "evaluation": scores}
        if leads:  # the others' shapes stay there
            own = {outcome.seat.me: outcome}
            journal.values["costs"] = costs.of(home.method, own, config.train.batch_size, journal.ledger)
            told["attendance"] = await _attendance(home, outcome, wired, unsaved, journal)
        else:
            journal.ledger.add(Flow(site.party, site.active, "finished"), 0)  # sent below, once the record is written
    if not leads:
        await Guarded(net, home.roster, parts.MESSAGES).send(site.active, "finished", {})
    return told


async def _attendance(
    home: Home, outcome: Outcome, net: Channel, unsaved: dict[str, str], journal: Journal
) -> list[str]:
    """Wait until the other parties have finished; return warnings of those that missed epochs, as the record has them.

    Raises:
        Incomplete: a party failed at the end of training, or ``train.require`` is not met.
        Stopped: somebody ended the job meanwhile.
    """
    names = [name for name in home.roster.names if name not in {home.site.party, *unsaved}]
    stages = {stage.name for stage in home.method.stages(outcome.seat) if quiet.is_quiet(stage)}
    unfinished = await parts.unfinished(net, names)
    if any(ENDED in why for why in (*unsaved.values(), *unfinished.values())):
        raise Stopped(ENDED)
    found = Attendance.of(outcome.trained.history, stages, home.roster.names, unsaved, unfinished)
    journal.values["attendance"] = warnings = found.warnings()
    found.check(home.config.train.require)
    return warnings


def declared(method: Method) -> tuple[Declared, ...]:
    """Return all messages that a party at home may send with a method."""
    return (*method.can.messages, *agree.MESSAGES, *parts.MESSAGES, *private.MESSAGES, *kept_alignment.MESSAGES)


def remarked(table: Table) -> Table:
    """Return the party's table; what may be a mistake in it is said at home."""
    for note in table.notes:
        remark(note)
    return table


def _known(home: Home, known: Known) -> dict[str, Any]:
    """Return who has which rows, and in a line what is predicted, at the active party."""
    if known.observed is None:
        return {}
    labeled = labeled_rows(home.table, known.position)
    overlap = Overlap.count(known.observed.numpy(), home.roster.blocks, labeled, home.table.notes)
    told = teaching(home.table, known.position, known.observed.numpy())
    return {"overlap": overlap.to_json(), "predicted": predicted(told, home.config.federation)}


def _house(home: Home, known: Known, number: Tensor, door: Door, journal: Journal) -> House:
    name, own = home.site.party, home.config.parties.get(home.site.party)
    return House(
        name=name, table=home.table, known=known, encoder=home.encoder,
        optimizer=home.config.optimizer_of(name), scale=own is None or own.scale,
        folder=home.site.folder / "checkpoints", watch=journal, door=door, welcome=partial(welcome, number),
        secret=secret_in(home.site.folder), kept=journal.kept,
    )  # fmt: skip


async def _keep(home: Home, outcome: Outcome, net: Channel) -> dict[str, str]:
    """Keep the party's part of the model; the active party also keeps which part each of the others has.

    Return, at the active party, which parties were lost before they had saved their part, and why.

    Nobody is waited for between writing the weights and what names them, so that a process hardly dies there.
    """
    site, own = home.site, home.config.parties.get(home.site.party)
    label = None if home.table.label is None else home.table.label.name
    member = Member(
        state=outcome.trained.state,
        prepare=outcome.prepare,
        id=(own and own.id) or home.config.federation.id,
        label=label,
        max_cell_bytes=home.config.federation.max_cell_bytes,
    )
    leads = site.party == site.active
    others = [name for name in home.roster.names if name != site.party] if leads else []
    known, lost = await parts.gather(net, others)
    known[site.party] = save_member(site.folder / "parties" / site.party, member)
    answers = home.method.split if isinstance(home.method, Scheduled) else home.method  # a schedule only trains
    about = About(
        method=settings_of(answers, whole=True), roster=home.roster, task=outcome.seat.task,
        seed=home.config.train.seed, best_epoch=outcome.trained.best_epoch, parts=known,
        own=described(answers) if settings_of(answers) is None else None,
    )  # fmt: skip
    about.save(site.folder / "model.json")
    write_manifest(site.folder, [site.party])
    if not leads:
        await parts.tell(net, home.roster, known[site.party])
    return lost


async def _score(home: Home, outcome: Outcome, net: Channel) -> dict[str, Any] | None:
    """Score the test rows together; the active party gets the scores."""
    wanted, seeds = torch.from_numpy(np.flatnonzero(outcome.use == TEST)), Seeds(home.config.train.seed)
    if not len(wanted):
        return None
    answered = await predict_rows(
        home.method, net, outcome.trained.state, outcome.rows, wanted, home.roster.blocks, seeds
    )
    if answered is None:
        return None
    rows = outcome.rows
    assert rows.y is not None
    assert rows.observed is not None
    return metrics.evaluate(answered, rows.y[wanted].cpu(), None, rows.observed[wanted].cpu(), seeds).to_json()
