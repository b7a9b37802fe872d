"""Count the messages that a party sends while it serves, over all jobs, in a file of the party's folder.

    party, began     the party's name and the time of the first entry
    ledger           the messages sent, in the form of a run's record

Two jobs may run at the same time in two processes.  Each process adds the messages that it sent since its last entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from anyparty.core.storage import read_json, write_json
from anyparty.errors import ModelError, StorageError, remark
from anyparty.training.callbacks import now
from anyparty.transport.ledger import Flow, Ledger, Tally

FILE_NAME = "served.json"
LOCK_TIMEOUT_S = 5.0  # how long to wait for another process to write


@dataclass
class TrafficLog:
    """The messages that one process sent, and which of them are already counted in the party's file.

    Attributes:
        folder: the party's folder.
        party: the party's name.
        ledger: the messages that this process sent.

    """

    folder: Path
    party: str
    ledger: Ledger = field(default_factory=Ledger)
    _written: dict[Flow, Tally] = field(default_factory=dict)

    def write(self) -> None:
        """Add the messages sent since the last call to the party's file.

        Raises:
            StorageError: the file cannot be written, or another process holds its lock for too long.
        """
        new = self._unwritten()
        if not new.flows:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / f".{FILE_NAME}.lock", timeout=LOCK_TIMEOUT_S):
                self._add(new)
        except (Timeout, OSError) as error:
            raise StorageError(f"{self.folder / FILE_NAME}: cannot be written ({error})") from None
        self._written = {flow: Tally(tally.messages, tally.bytes_sent) for flow, tally in self.ledger.flows.items()}

    def _unwritten(self) -> Ledger:
        new = Ledger()
        for flow, tally in self.ledger.flows.items():
            before = self._written.get(flow, Tally())
            if tally != before:
                new.flows[flow] = Tally(tally.messages - before.messages, tally.bytes_sent - before.bytes_sent)
        return new

    def _add(self, new: Ledger) -> None:
        path = self.folder / FILE_NAME
        old: dict[str, Any] = {}
        total = Ledger()
        if path.exists():
            try:
                old = read_json(path)
                if not isinstance(old["ledger"], list):
                    raise TypeError("the ledger is not a list of rows")
                total = Ledger.of(old["ledger"])
            except (ModelError, KeyError, TypeError, ValueError):
                aside = path.with_suffix(f".{now().replace(':', '')}.json")
                path.replace(aside)
                remark(f"{path}: not readable as a log of what was sent; it is renamed to {aside.name}, and a new one "
                       f"begins")  # fmt: skip
                old, total = {}, Ledger()
        total.merge(new)
        write_json(path, {"party": self.party, "began": old.get("began", now()), "ledger": total.rows()})
