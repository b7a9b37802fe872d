"""What a party keeps of its part in a run at home: its own record.json, from the first message on.

Written when the part begins, when the alignment is known, after every checkpoint and when the part ends, well or not:
a process that is killed leaves the record of its last checkpoint.  A part that goes on, after ``--resume`` or when the
party comes back to a run, goes on in the same ledger.

    party, active, parties   whose record, and who took part          job        the run's name at its carrier
    status, error            running, done, stopped, failed; why       alignment  its number, the same at all parties
    settings                 those that all share, as text            agreed     a hash of each group of settings
    table, rows              the table's fingerprint; N
    overlap, predicted       who has which rows, and what is predicted, at the active party
    stages                   by name: how many epochs, of how many rows, after how many
    history, best_epoch, evaluation   at the active party             ledger     what this party sent
    remarks                  what was remarked there
    title, declared          the method's name for people, and its messages with what can be learnt from each
    attendance               at the active party: warnings of parties that missed epochs (``run.attendance``)
    costs                    at the active party: what formulas say (``run.costs``)
    shape                    of its block and encoder, what these formulas ask
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyparty.errors import ModelError
from anyparty.run.kept_record import FILE, FORMAT, read_record, told_of
from anyparty.run.record import same_settings, versions
from anyparty.run.watch import Watch, before, noted, now
from anyparty.storage import write_json
from anyparty.terms import Capabilities
from anyparty.wire.ledger import Ledger


@dataclass
class Journal(Watch):
    """A party's record.json, and what goes into it; it watches the run for how long stages are."""

    path: Path
    values: dict[str, Any]
    ledger: Ledger = field(default_factory=Ledger)

    @classmethod
    def begin(
        cls,
        folder: Path,
        *,
        party: str,
        active: str,
        parties: Sequence[str],
        settings: str,
        table: str,
        can: Capabilities,
        job: str = "",
        resume: bool = False,
    ) -> Journal:
        """Open a party's record; the ledger of a part that goes on is taken over.

        Args:
            folder: where the party keeps what it keeps.
            party: whose record it is.
            active: who leads.
            parties: all of them, in the roster's order.
            settings: the run's settings as TOML, without anybody's paths.
            table: the fingerprint of the party's table.
            can: what the method declares.
            job: the carrier's name for the run, where it has one.
            resume: whether the run goes on from checkpoints.

        Raises:
            ResumeError: it was begun with other settings.

        """
        old = _kept(folder / FILE)
        if old.get("party") != party or not (resume or (job and old.get("job") == job)):
            old = {}
        if old:
            same_settings(str(old.get("settings", "")), settings)
        values = {
            "format": FORMAT, "party": party, "active": active, "parties": list(parties), "job": job,
            "status": "running", "error": "", "began": old.get("began", now()), "versions": versions(),
            "settings": settings, "table": table, "ledger": old.get("ledger", []),
            "stages": old.get("stages", {}), "history": old.get("history", []), "remarks": old.get("remarks", []),
            **told_of(can),
        }  # fmt: skip
        journal = cls(folder / FILE, values, Ledger.of(values["ledger"]))
        journal.write()
        return journal

    def aligned(self, number: bytes, agreed: Mapping[str, str], *, rows: int, more: Mapping[str, Any]) -> None:
        """Note the alignment, the settings that all must share, and at the active party ``more``.

        That is who has which rows, and in a line what is predicted.
        """
        self.values |= {
            "alignment": number.hex(),
            "agreed": {group: hashlib.sha256(text.encode()).hexdigest() for group, text in agreed.items()},
            "rows": rows,
        }
        self.values |= more
        self.write()

    def on_stage_begin(self, stage: str, epochs: int, rows: int, first_epoch: int) -> None:
        """Note how long a stage will be; drop the epochs that one which goes on does anew."""
        self.values["history"] = before(self.values["history"], stage, first_epoch)
        self.values["stages"][stage] = {"epochs": epochs, "rows": rows, "first_epoch": first_epoch}
        self.write()

    def kept(self, history: Sequence[Mapping[str, Any]], best_epoch: int) -> None:
        """Write what there is, after a checkpoint; ``best_epoch`` is its place in the history, from 0."""
        self.values |= {"history": list(history), "best_epoch": best_epoch + 1}
        self.write()

    def ended(
        self, history: Sequence[Mapping[str, Any]], best_epoch: int, evaluation: Mapping[str, Any] | None
    ) -> None:
        """Note how the part ended; ``best_epoch`` counts from 0."""
        self.values |= {"history": list(history), "best_epoch": best_epoch + 1}
        if evaluation is not None:
            self.values["evaluation"] = dict(evaluation)

    @contextmanager
    def open(self) -> Iterator[Journal]:
        """Write at the end of the part, whatever it is."""
        try:
            with noted(self.values):
                yield self
        finally:
            self.write()

    def write(self) -> None:
        """Write the record in one move."""
        self.values["ledger"] = self.ledger.rows()
        write_json(self.path, self.values)


def _kept(path: Path) -> dict[str, Any]:
    """Return the record of an earlier part, if there is one that can be read."""
    try:
        return read_record(path)
    except ModelError:
        return {}
