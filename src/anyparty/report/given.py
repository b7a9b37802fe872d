"""What is given in Python for runs that no file can repeat: methods and networks of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from anyparty.errors import ConfigError, ModelError, nearest
from anyparty.report.records import Run

if TYPE_CHECKING:
    from anyparty.methods.method import Method

T = TypeVar("T")


def by_run(runs: Sequence[Run], given: Mapping[str, T] | None, what: str) -> dict[str, T]:
    """Return by the names of runs what is given by their names in the report, or by their folders.

    Raises:
        ConfigError: it is no mapping, or one is none of these runs; ``what`` is given, for the sentence.
    """
    if not isinstance(given, Mapping | None):
        raise ConfigError(f"{what}: expected what is given by the name of its run, {{{runs[0].name!r}: ...}}, got "
                          f"{type(given).__name__}")  # fmt: skip
    own = {run.name: run.folder for run in runs if run.folder is not None}
    found: dict[str, T] = {}
    for key, value in (given or {}).items():
        there = [name for name, folder in own.items() if name == str(key) or _same(folder, key)]
        if not there:
            raise ConfigError(f"{what}: {str(key)!r} is none of the runs on the page{nearest(str(key), own)}")
        found |= dict.fromkeys(there, value)
    return found


def _same(folder: Path, other: Path | str) -> bool:
    return folder.resolve() == Path(other).resolve()


def check(runs: Sequence[Run], methods: Mapping[str, Method]) -> None:
    """Hold methods that are given, by run, to those that were trained.

    Raises:
        ModelError: one is another.
    """
    for run in runs:
        if run.name in methods and run.folder is not None:
            from anyparty.run.files import About  # noqa: PLC0415 - a report without models imports no method

            try:
                about = About.load(run.folder / "model.json")
            except ModelError:  # the page says why
                continue
            about.make(run.folder, methods[run.name])
