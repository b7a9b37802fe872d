"""The membership of a run: the parties that are gone, that wait to rejoin, and that took part.

A party that returns is a new process with the name of the lost party.  As at the start of a run, the process sends a
number that identifies its alignment, and the stages and epochs of its checkpoints.  The active party readmits the party
at the end of an epoch.  From the next epoch, the party takes part with its own last networks.  It does not repeat the
epochs that it missed.

A party counts as having taken part if it was present in at least half of the epochs and saved its part of the model.
Epochs of local stages are not counted, because parties send no messages there.  The active party always takes part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from anyparty.core.types import Channel
from anyparty.errors import ConfigError, Incomplete


class Membership(Protocol):
    """The interface by which a transport reports lost parties and readmits them."""

    run: str

    def gone(self) -> dict[str, str]:
        """Return the parties that are gone, each with the reason for its absence."""

    def waiting_to_rejoin(self) -> list[str]:
        """Return the lost parties whose new process waits to rejoin the run."""

    def admit(self, name: str) -> None:
        """Readmit the party ``name``, which was gone."""

    def lose(self, name: str, why: str) -> None:
        """Remove the party ``name`` from the run, and send it the reason ``why``."""

    def stop_reason(self) -> str:
        """Return the reason given with a request to this party to stop the run, or "" without such a request."""


class StaticMembership:
    """The membership of a transport whose parties run in one process."""

    run = ""

    def gone(self) -> dict[str, str]:
        """Return an empty dictionary: in one process, no party is lost."""
        return {}

    def waiting_to_rejoin(self) -> list[str]:
        """Return an empty list: in one process, no party rejoins."""
        return []

    def admit(self, name: str) -> None:
        """Do nothing."""

    def lose(self, name: str, why: str) -> None:
        """Do nothing."""

    def stop_reason(self) -> str:
        """Return an empty string: in one process, all parties stop together."""
        return ""


def door_of(net: Channel) -> Membership:
    """Return the membership of a channel's transport; a ``StaticMembership`` if the transport has none."""
    door: Membership = getattr(net, "door", None) or StaticMembership()
    return door


Require = Literal["all"] | int | None


@dataclass(frozen=True, kw_only=True)
class Attendance:
    """The attendance of the parties in a training run.

    Attributes:
        parties: all parties.
        epochs: the number of epochs in which messages were sent.
        missed: by party, the number of those epochs that it missed; parties that missed none are left out.
        why: by party, the reason for the party's last absence.
        gone: the parties that were absent in the last of those epochs.
        unsaved: by party, the reason why the party's part of the model was not saved.
        unfinished: by party, the reason why the party stopped after saving its part, but before writing all its files.

    """

    parties: Sequence[str]
    epochs: int
    missed: Mapping[str, int]
    why: Mapping[str, str]
    gone: Collection[str]
    unsaved: Mapping[str, str]
    unfinished: Mapping[str, str]

    @classmethod
    def of(
        cls, history: Sequence[Mapping[str, Any]], quiet: Collection[str], parties: Sequence[str],
        unsaved: Mapping[str, str], unfinished: Mapping[str, str],
    ) -> Attendance:  # fmt: skip
        """Return the counted absences in a run's history; ``quiet`` names the local stages, which send no messages."""
        absences: list[Mapping[str, str]] = [e.get("absent") or {} for e in history if e["stage"] not in quiet]
        missed = {name: sum(name in absent for absent in absences) for name in parties}
        return cls(
            parties=parties, epochs=len(absences), missed={name: n for name, n in missed.items() if n},
            why={name: why for absent in absences for name, why in absent.items()},
            gone=set(absences[-1]) if absences else set(), unsaved=unsaved, unfinished=unfinished,
        )  # fmt: skip

    def warnings(self) -> list[str]:
        """Return a warning for each party that missed epochs; it also says if the party's model was not saved."""
        return list(self._warnings())

    def _warnings(self) -> Iterator[str]:
        for name, n in self.missed.items():
            left = name in self.unsaved
            lacks = ", and the saved model lacks its part" if left else ""
            do = f". To add that part, start {name!r} and train with --resume" if left else ""
            yield f"party {name!r} took no part in {n} of {self.epochs} epochs ({self.why[name]}){lacks}{do}"

    def check(self, require: Require) -> None:
        """Check that all parties present at the end saved their parts, and that enough parties took part.

        Raises:
            Incomplete: a party present at the end did not save all its files, or too few parties took part.  The
                message names the parties, the missing parts and the next step.
        """
        said = [*self._failed(), *self._too_few(require)]
        if said:
            raise Incomplete("; ".join(said))

    def _failed(self) -> Iterator[str]:
        """Yield a message for each party that trained until the end but did not save all its files."""
        for name, why in self.unsaved.items():
            if name not in self.gone:
                yield (f"party {name!r} trained until the end but did not save its part of the model ({why}). The "
                       f"other parties' parts are saved. Correct the cause at {name!r}, then train with --resume: "
                       f"it saves the missing part")  # fmt: skip
        for name, why in self.unfinished.items():
            yield (f"party {name!r} saved its part of the model but stopped before it had finished ({why}): its "
                   f"record, and its share of the test scores, may be missing. Correct the cause at {name!r}, then "
                   f"train with --resume")  # fmt: skip

    def _too_few(self, require: Require) -> Iterator[str]:
        needed = len(self.parties) if require == "all" else require or 0
        failing = [name for name in self.parties if name in self.unsaved or 2 * self.missed.get(name, 0) > self.epochs]
        took_part, asked = len(self.parties) - len(failing), '"all"' if require == "all" else require
        if took_part >= needed:
            return
        those = ", ".join(
            f"{name!r} missed {self.missed.get(name, 0)} of {self.epochs} epochs"
            + (" and did not save its part of the model" if name in self.unsaved else "")
            for name in failing
        )
        yield (f"train.require = {asked}, and only {took_part} of {len(self.parties)} parties took part in at least "
               f"half of the epochs and saved their part of the model: {those}. Nothing that was trained is lost. To "
               f"save a missing part, start that party and train with --resume; to make up for missed epochs, train "
               f"again with --again; to accept the model as it is, change train.require and use --resume")  # fmt: skip


def check_require(require: Require, parties: Collection[str]) -> None:
    """Check that there are enough parties for ``train.require``.

    Raises:
        ConfigError: the setting requires more parties than there are.
    """
    if isinstance(require, int) and require > len(parties):
        raise ConfigError(f'train.require = {require}: there are {len(parties)} parties; write a number from 1 to '
                          f'{len(parties)}, or "all"')  # fmt: skip
