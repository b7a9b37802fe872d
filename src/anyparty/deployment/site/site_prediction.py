"""Run one party's share of a prediction at its own site, with its own table and its own share of the model.

The rows to predict are in the parties' tables. A party's own setting ``new`` can replace its table by another file. The
rows are aligned privately, as for training, among the connected parties whose columns may be used. The active party
gets predictions for the rows of its own table only, because it does not know the ids of any other rows.

While the prediction runs, the active party writes its current step, or the party that it waits for, into
``predicting.json``.

Every party that has sent a message writes ``predictions.json``, also if the prediction failed.  The file has the
status, the error and the ledger of the party's messages; after success also the number of rows and the table's
fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from anyparty.artifacts.model_files import Member, ModelSummary, check_weights_hash, load_member, read_again
from anyparty.artifacts.record import StatusEntry
from anyparty.artifacts.run_folder import alone, meanwhile
from anyparty.config import Config
from anyparty.core.predictions import Predictions
from anyparty.core.seeds import Seeds
from anyparty.core.storage import write_json, writing
from anyparty.core.types import Channel, MessageSpec, Roster, TensorSpec
from anyparty.deployment.site.alignment_cache import ALIGNMENT, aligned, kinds_in
from anyparty.deployment.site.policy import SiteSettings, check_columns, check_consent, encoder_at, method_at
from anyparty.deployment.site.site_training import SiteParty, declared, remarked, roster_of
from anyparty.errors import ConfigError, ModelError, NotGiven, PredictionError, nearest, some
from anyparty.methods.method import Method, PartyContext
from anyparty.problem.rows import Rows, own_rows
from anyparty.tables.table import Table, read_table
from anyparty.training import control_messages
from anyparty.training.loop import predict_rows
from anyparty.training.party_run import membership_of
from anyparty.transport.contract import ContractChannel
from anyparty.transport.ledger import Ledger, MeteredChannel

ANSWERS, RECORD, PROGRESS = "predictions.parquet", "predictions.json", "predicting.json"
NEW = "alignment-new.safetensors"
NOT_CONNECTED = "it was not connected when the prediction began"
FAILED = ("it left: it stopped with", "it left while")  # reasons if a party's part of the job ended with an error
MESSAGES = (
    MessageSpec(
        tag="wanted",
        frm="active",
        to="passive",
        holds="the aligned rows to predict, and the parties that may take part; to other label holders also which "
        "party has which row",
        learns="which of its own rows are predicted, and how many other rows are predicted; other label holders also "
        "which party has which row",
    ),
)


@dataclass(frozen=True)
class StoredPart:
    """One party's share of a trained model, with its method."""

    summary: ModelSummary
    member: Member
    method: Method
    weights_hash: str

    @classmethod
    def of(cls, site: SiteSettings, config: Config | None = None) -> StoredPart:
        """Load the party's share of the model from its site's folder.

        ``config`` may contain a user-defined method and encoder, if the party's own settings allow them.

        Raises:
            ConfigError: the party's settings do not allow the user-defined method or encoder, or a message of the
                method; or ``config`` does not contain it.
            ModelError: no model was trained here, or files are damaged.
        """
        summary, me = ModelSummary.load(site.folder / "model.json"), site.party
        party_folder, seat = site.folder / "parties" / me, PartyContext(me=me, roster=summary.roster, task=summary.task)
        try:
            method = summary.make(site.folder, method_at(site, config) if config and config.method.factory else None)
            check_consent(site, method)
            made = encoder_at(site, config) if config and config.encoder_settings(me).factory else None
            return cls(
                summary,
                load_member(party_folder, seat, method, made),
                method,
                check_weights_hash(summary, party_folder, me),
            )
        except NotGiven as error:
            raise ConfigError(f"{error.lacks}: give the settings that it was trained with, with their factory "
                              "(--config CONFIG.toml, or config=...)") from None  # fmt: skip


async def predict_at_site(
    site: SiteSettings,
    config: Config,
    net: Channel,
    *,
    asked: Sequence[str] | None = None,
    there: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Run one party's share of a prediction at its own site; return facts that the coordinator may show.

    The active party saves the predictions in its folder.

    ``asked`` lists the parties whose columns may be used, and ``there`` lists the parties that are online.  By default,
    each list contains all parties.  No message is sent to the other parties, and the prediction does not wait for them.
    A party in ``there`` that does not appear counts as offline.

    Raises:
        ModelError: no model was trained here, files are damaged, or a party's share of the model is from another
            training.
        TableError: the party's table cannot be used.
        PredictionError: ``asked`` contains an unknown party, or all parties in ``asked`` that hold columns are offline.
        ConfigError: the job's settings or the active party's request do not fit this party.
        PartyLost: a party left while rows were aligned.  If a party leaves later, the result lists it as silent.
    """
    ledger, status, result = Ledger(), StatusEntry(status="running", error=""), dict[str, Any]()
    membership, leads = membership_of(net), site.party == site.active
    for name in site.parties:
        if there is not None and name not in {*there, site.party, site.active}:
            membership.lose(name, NOT_CONNECTED)

    def report(sentence: str) -> None:
        if leads:
            write_json(site.folder / PROGRESS, {"job": membership.run, "now": sentence})

    def write() -> None:
        if ledger.flows or status.status == "done":  # without messages, keep the earlier record
            write_json(site.folder / RECORD, {**status.to_json(), **result, "ledger": ledger.rows()})

    async with alone(site.folder), meanwhile(write):
        with status.noting():
            outcome, table = await _predict(site, config, MeteredChannel(net, ledger), asked, there, report)
            result |= {**outcome, "table": table.fingerprint}
    return outcome


async def _predict(
    site: SiteSettings, config: Config, net: Channel, asked: Sequence[str] | None, there: Sequence[str] | None,
    report: Callable[[str], None],
) -> tuple[dict[str, Any], Table]:  # fmt: skip
    """Predict; return the result that the coordinator may show, and the party's table."""
    part = StoredPart.of(site, config)
    roster, leads = part.summary.roster, site.party == site.active
    table, keep = _table(site, config, part)
    taking_part = (asked is None or site.party in {*asked, *roster.labelers}) and (there is None or site.party in there)
    if not leads and not taking_part:
        return {"rows": 0}, table  # the other parties predict without this one
    wired = ContractChannel(net, roster, (*declared(part.method), *MESSAGES))
    names = _asked(roster, asked, there) if leads else None
    if names is not None:
        online = {*(roster.names if there is None else there), site.party}
        up = [name for name in roster.names if name in online and name in {*names, *roster.labelers, site.party}]
        there = await _same_run(wired, part, names, up, report)
        names = _asked(roster, names, there)
        report(f"aligning {len(table):,} rows with {_listed(there, site.party)}")
    else:
        await control_messages.send_weights_hash(wired, roster, part.weights_hash)
    share, _ = await aligned(
        keep, wired, roster, table, salt=config.federation.salt, normalize=part.member.id_normalize, there=there,
        apart=True,
        incremental=config.federation.incremental and keep.name == ALIGNMENT,
    )  # fmt: skip
    prepare = part.member.prepare
    rows = own_rows(
        share.position, blocks=table.blocks_at(share.position), features=prepare.features(table) if prepare else None,
        observed=share.observed, key=share.key, ids=table.ids if leads else None,
    )  # fmt: skip
    if leads:
        report(f"predicting {len(table):,} rows with {_listed(there, site.party)}")
    names, wanted, observed = await _share(wired, roster, rows, names, there, share.position)
    if not leads and site.party in roster.labelers:
        rows = replace(rows, observed=observed)
    answered = await predict_rows(part.method, wired, part.member.state, rows, wanted, names, Seeds(part.summary.seed))
    outcome: dict[str, Any] = {"rows": len(wanted)}
    if answered is not None:
        places = torch.from_numpy(share.position)[wanted].numpy()
        silent = tuple(dict.fromkeys((*answered.silent, *_offline(part, asked, there))))
        named = replace(answered, silent=silent)
        if table.id_columns is not None:
            named = replace(named, id_columns=table.id_columns[places])
        outcome |= _keep_answers(site.folder / ANSWERS, named, places)
    return outcome, table


def _table(site: SiteSettings, config: Config, part: StoredPart) -> tuple[Table, Path]:
    """Return a table of the party's rows to predict, and the path at which the alignment of these rows is stored."""
    new: Path | None = getattr(site, "new", None)
    if new is None:
        return _table_aligned(site, config, part), site.folder / ALIGNMENT
    kinds = part.member.prepare.kinds if part.member.prepare else {}
    table = read_table(new, party=site.party, label=None, expect=kinds, **part.member.reading)
    return remarked(table), site.folder / NEW


def _table_aligned(site: SiteSettings, config: Config, part: StoredPart) -> Table:
    """Return the party's own table, read as for training; the table may now have more columns, or no label."""
    kinds = kinds_in(site.folder / ALIGNMENT)
    if not kinds or site.table is None:  # an old version stored the alignment, or the party has no table
        return remarked(SiteParty.of(site, config).table)
    roster_of(site, config)
    table = read_again(part.member, site.party, site.table, kinds)
    check_columns(site, part.member.id, None if table.label is None else table.label.name, table.columns.columns)
    return remarked(table)


def _listed(names: Sequence[str] | None, me: str) -> str:
    return ", ".join(name for name in names or () if name != me) or "no other party"


async def _same_run(
    net: Channel, part: StoredPart, asked: Sequence[str], up: Sequence[str], report: Callable[[str], None]
) -> list[str]:
    """Check that the other parties in ``up`` have shares of the model from the same training; at the active party.

    Return the parties in ``up`` that take part. A party in ``asked`` that does not appear takes no part.
    """
    hashes, lost = dict[str, str](), dict[str, str]()
    for name in (name for name in up if name != net.me):
        report(f"waiting for {name}, whose site starts its part of the job")
        found, gone = await control_messages.gather_weights_hashes(net, [name])
        hashes, lost = hashes | found, lost | gone
    for name in [name for name, why in lost.items() if name not in asked or why.startswith(FAILED)]:
        raise ModelError(f"party {name!r} cannot load its part of the model ({lost[name]}); if that part was never "
                         "saved, train with --resume, or predict without it (--parties)")  # fmt: skip
    unlike = control_messages.differing_weights(part.summary.parts, hashes)
    if unlike:
        raise ModelError(f"{some(unlike)} has a part of the model from another run than {net.me!r}: it was "
                         "disconnected before training ended, or its folder changed; predict without it (--parties), "
                         "or train again")  # fmt: skip
    return [name for name in up if name not in lost]


def _asked(roster: Roster, asked: Sequence[str] | None, there: Sequence[str] | None) -> list[str]:
    for name in asked or ():
        if name not in roster.names:
            raise PredictionError(f"the model has no party {name!r}{nearest(name, roster.names)}")
    up = roster.names if there is None else (*there, roster.active)
    names = [name for name in roster.blocks if name in up and (asked is None or name in asked)]
    if not names:
        raise PredictionError("no connected party with columns was selected; name at least one")
    return names


def _offline(part: StoredPart, asked: Sequence[str] | None, there: Sequence[str] | None) -> list[str]:
    """Return the parties that may take part in the prediction, but are not in ``there``, the connected parties."""
    roster = part.summary.roster
    if there is None or part.method.can.predicts_alone:
        return []
    return [name for name in roster.blocks if name not in {*there, roster.active} and (asked is None or name in asked)]


async def _share(
    net: Channel, roster: Roster, rows: Rows, asked: Sequence[str] | None, there: Sequence[str] | None, position: Any
) -> tuple[list[str], torch.Tensor, torch.Tensor | None]:
    """Exchange the rows to predict, the parties that may take part, and which party has which row; return all three.

    The active party sends these values, and every other party in ``there`` receives them.  Only hosts of heads receive
    which party has which row.
    """
    if asked is not None:
        assert there is not None
        assert rows.observed is not None
        wanted = torch.from_numpy(position >= 0).nonzero().squeeze(1)
        flags = torch.tensor([name in asked for name in roster.blocks], dtype=torch.uint8)
        for name in there:
            if name != net.me:
                host = name in roster.labelers
                observed = rows.observed.flatten().byte() if host else torch.empty(0, dtype=torch.uint8)
                await net.send(name, "wanted", {"rows": wanted, "asked": flags, "observed": observed})
        return list(asked), wanted, rows.observed
    expect = {
        "rows": TensorSpec((-1,), torch.int64),
        "asked": TensorSpec((roster.K,), torch.uint8),
        "observed": TensorSpec((-1,), torch.uint8),
    }
    got = await net.recv(roster.active, "wanted", expect)
    if len(got["rows"]) and not 0 <= int(got["rows"].min()) <= int(got["rows"].max()) < rows.n:
        raise ConfigError(f"{roster.active!r} asks for rows that the alignment of {rows.n} rows does not have")
    names = [name for name, flag in zip(roster.blocks, got["asked"].tolist(), strict=True) if flag]
    if len(got["observed"]) not in {0, rows.n * roster.K}:
        raise ConfigError(f"{roster.active!r} sent {len(got['observed'])} cells of presence (which party has which "
                          f"row); expected {rows.n} rows x {roster.K} parties")  # fmt: skip
    pattern = got["observed"].bool().view(-1, roster.K) if len(got["observed"]) else None
    return names, got["rows"], pattern


def _keep_answers(path: Path, answered: Predictions, places: NDArray[np.int64]) -> dict[str, Any]:
    """Write predictions in the order of the party's own table, and return facts for the coordinator.

    ``places`` holds each prediction's row in that table.  The facts are the number of answered rows, the silent parties
    and the name of the file.
    """
    with writing(path) as beside:
        answered.frame()[np.argsort(places)].write_parquet(beside)
    return {"answered": int(answered.answered.sum()), "silent": list(answered.silent), "file": path.name}
