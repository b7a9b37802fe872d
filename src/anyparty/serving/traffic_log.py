"""What a party sent while serving, in a file of its folder: over all jobs, also of those that ended badly.

    party, began     whose, since when          ledger      what it sent, as in a run's record

Two jobs may be at work at once, in two processes: each adds what it sent since it last did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from anyparty.errors import ModelError, StorageError, remark
from anyparty.run.watch import now
from anyparty.storage import read_json, write_json
from anyparty.wire.ledger import Flow, Ledger, Tally

RECORD = "served.json"
PATIENCE_S = 5.0  # for another process to have written


@dataclass
class Tab:
    """One process's account of what it sends, entered into its party's.

    Attributes:
        folder: where the party keeps what it keeps.
        party: whose it is.
        ledger: what this process sent.

    """

    folder: Path
    party: str
    ledger: Ledger = field(default_factory=Ledger)
    _entered: dict[Flow, Tally] = field(default_factory=dict)

    def write(self) -> None:
        """Add what was sent since the last time.

        Raises:
            StorageError: it cannot be written, or another process holds the file for long.
        """
        new = self._new()
        if not new.flows:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / f".{RECORD}.lock", timeout=PATIENCE_S):
                self._add(new)
        except (Timeout, OSError) as error:
            raise StorageError(f"{self.folder / RECORD}: cannot be written ({error})") from None
        self._entered = {flow: Tally(tally.messages, tally.bytes_sent) for flow, tally in self.ledger.flows.items()}

    def _new(self) -> Ledger:
        new = Ledger()
        for flow, tally in self.ledger.flows.items():
            before = self._entered.get(flow, Tally())
            if tally != before:
                new.flows[flow] = Tally(tally.messages - before.messages, tally.bytes_sent - before.bytes_sent)
        return new

    def _add(self, new: Ledger) -> None:
        path = self.folder / RECORD
        old: dict[str, Any] = {}
        whole = Ledger()
        if path.exists():
            try:
                old = read_json(path)
                if not isinstance(old["ledger"], list):
                    raise TypeError("no list of rows")
                whole = Ledger.of(old["ledger"])
            except (ModelError, KeyError, TypeError, ValueError):
                aside = path.with_suffix(f".{now().replace(':', '')}.json")
                path.replace(aside)
                remark(
                    f"{path}: not readable as an account of what was sent; it is kept as {aside.name}, and a "
                    f"new one begins"
                )
                old, whole = {}, Ledger()
        whole.merge(new)
        write_json(path, {"party": self.party, "began": old.get("began", now()), "ledger": whole.rows()})
