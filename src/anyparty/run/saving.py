"""Saving a model where nothing of another lies, or in its place.

A folder's model.json has the mark of every party's weights: two saved models are the same where these files are.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from anyparty.errors import ModelError
from anyparty.run.alone import ID_HASHES, LOCK, take
from anyparty.run.files import About, save_member, write_manifest
from anyparty.storage import refuse_file

if TYPE_CHECKING:
    from anyparty.run.model import Model

ABOUT, RECORD = "model.json", "record.json"
OF_RUNS = (RECORD, "config.toml", ID_HASHES)  # what a run says of the model beside them


def save(folder: Path, model: Model, *, replace: bool) -> None:
    """Write a model where nothing else lies; with ``replace`` also in the place of another model, or of a run.

    What a run says of its model goes then: it would be said of this one.

    Raises:
        ConfigError: a run is at work there.
        ModelError: a run or a model lies there that is not this one.
        StorageError: it cannot be written, or the folder is a file.
    """
    refuse_file(folder)
    with ExitStack() as held:
        if (folder / LOCK).exists():  # else no run was ever there
            held.callback(take(folder).release)
        _save(folder, model, replace=replace)


def _save(folder: Path, model: Model, *, replace: bool) -> None:
    there = [name for name in (RECORD, ABOUT) if (folder / name).exists()]
    other = bool(there) and not _lies_in(folder, model)
    if other and not replace:
        what = "a run" if there[0] == RECORD else "a model"
        raise ModelError(f"{folder} holds {what} already ({there[0]}), and not this model: name another folder, or "
                         f"write over it with save(..., replace=True)")  # fmt: skip
    write(folder, model)
    for name in OF_RUNS if other and RECORD in there else ():
        (folder / name).unlink(missing_ok=True)


def write(folder: Path, model: Model) -> None:
    """Write every party's part, then what all share, over what is there.

    Raises:
        StorageError: it cannot be written.
    """
    parts = {name: save_member(folder / "parties" / name, member) for name, member in model.members.items()}
    about = About(
        method=model.named, roster=model.roster, task=model.task, seed=model.seed, best_epoch=model.best_epoch,
        parts=parts, own=model.own,
    )  # fmt: skip
    about.save(folder / ABOUT)
    write_manifest(folder, model.members)


def _lies_in(folder: Path, model: Model) -> bool:
    """Say whether the model that lies in a folder is this one, to the bit."""
    if not (folder / ABOUT).is_file():
        return False
    with TemporaryDirectory() as beside:
        write(Path(beside), model)
        return (Path(beside) / ABOUT).read_bytes() == (folder / ABOUT).read_bytes()
