"""Read and write the files of a model: one folder per party, so that each party can keep its own files.

model.json                        method and parameters, roster, task, seed
parties/NAME/party.json           the party's preprocessing and the description of its network
parties/NAME/model.safetensors    the weights of this network
manifest.json                     the hash of each of these files: {"format": 1, "files": {"model.json": "…", …}}

No code named in these files is ever imported or called.

The manifest is written last and checked before a file is parsed.  It reveals files that were cut short, exchanged or
edited after the model was saved.  It does not prove who saved the model: any user who can write to the folder can write
a new manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from anyparty.artifacts.run_folder import ID_HASHES, LOCK, take
from anyparty.config.settings_group import Settings
from anyparty.core.seeds import Seeds
from anyparty.core.storage import (
    MAX_TEXT_BYTES,
    MAX_WEIGHTS_BYTES,
    check_format,
    inside,
    open_regular,
    read_json,
    refuse_file,
    tuples,
    write_json,
)
from anyparty.core.types import Roster, Task
from anyparty.errors import ModelError, NotGiven, TableError, nearest
from anyparty.methods.method import Method, PartyContext, State
from anyparty.methods.method_registry import check_description, made_again
from anyparty.networks.encoders import Factory, describe, restore
from anyparty.networks.modules import AllocationLimit
from anyparty.tables import readers
from anyparty.tables.cells import MAX_BYTES
from anyparty.tables.column_types import Kind
from anyparty.tables.file_content import DETECT, FileSettings
from anyparty.tables.ids import Duplicates
from anyparty.tables.preprocessing import Prepare
from anyparty.tables.reading_rules import AS_WRITTEN, ReadingRules
from anyparty.tables.table import Table, read_table
from anyparty.training import checkpoint

MANIFEST = "manifest.json"


def _relative(name: str) -> str:
    if "\\" in name or any(part in {"", ".", ".."} for part in name.split("/")):
        raise ValueError(f"expected the name of a file inside the folder, got {name[:80]!r}")
    return name


class Manifest(Settings):
    """The hashes of a model's files, as manifest.json stores them.

    Attributes:
        format: the version of the manifest's format.
        files: the SHA-256 of each file in hexadecimal, by the file's path relative to the folder, with slashes.

    """

    format: int = 1
    files: dict[Annotated[str, AfterValidator(_relative)], Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]

    @classmethod
    def write(cls, folder: Path, names: Iterable[str]) -> None:
        """Hash the listed files in ``folder`` and write the manifest.

        Raises:
            ModelError: a file does not exist.
            StorageError: the manifest cannot be written.
        """
        files = {name: sha256(folder / name) for name in sorted(names)}
        write_json(folder / MANIFEST, {"format": 1, "files": files})

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of a model's folder.

        Raises:
            ModelError: the file does not exist, is not a manifest, lists a file outside the folder, or is a symbolic
                link that leads out of the folder.
        """
        path = inside(folder, MANIFEST)
        values = read_json(path)
        check_format(path, values.get("format", 1), range(1, 2), "a manifest")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            found = error.errors()[0]
            where = ".".join(map(str, found["loc"]))
            raise ModelError(f"{path}: this is not a manifest of anyparty: {where}: {found['msg'].lower()}; copy the "
                             f"whole folder again") from None  # fmt: skip

    def check(self, folder: Path, name: str) -> None:
        """Check that a file in a model's folder has the hash that the manifest lists.

        Raises:
            ModelError: the manifest does not list the file, or the file does not exist, has other bytes, or is a
                symbolic link that leads out of the folder.
        """
        path = inside(folder, name)
        if name not in self.files:
            raise ModelError(
                f"{folder / MANIFEST} does not list {name}, which the model needs; copy the whole folder again"
            )
        if sha256(path) != self.files[name]:
            raise ModelError(f"{path}: this is not the file that the model was saved with ({MANIFEST} has another "
                             "hash); copy the whole folder again")  # fmt: skip


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal.

    Raises:
        ModelError: the file cannot be read, is not a regular file, or is larger than the limit for its kind.
    """
    try:
        with open_regular(path, MAX_WEIGHTS_BYTES if path.suffix == ".safetensors" else MAX_TEXT_BYTES) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; copy the whole folder again") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); copy the whole folder again") from None


FORMAT = 4
FROM_ZERO = 3  # in this format, ``best_epoch`` is counted from 0
SPARE = 1_000_000  # a loaded network may have at most 2 W + SPARE numbers, where W is the number of saved weights
WEIGHTS, ABOUT, RECORD = "model.safetensors", "model.json", "record.json"
OF_RUNS = (RECORD, "config.toml", ID_HASHES)  # deleted if another model replaces the model of a run


@dataclass(frozen=True, kw_only=True)
class ModelSummary:
    """The facts that all parties know about a model, as model.json stores them.

    Attributes:
        method: the method's name and parameters; ``None`` for a user-defined method.
        roster: the parties in their fixed order, and which of them is active.
        task: the prediction task; ``None`` at a party without labels.
        seed: the root seed of the training run.
        best_epoch: the place in the history, counted from 1, of the epoch whose weights were kept; 0 if no epoch was
            chosen by validation scores.
        parts: for each party, the SHA-256 of the file with its weights, in hexadecimal.  A passive party at its own
            site knows only its own hash.  A party that was lost before training ended has no hash.
        own: the description of a user-defined method, as returned by ``described``; ``None`` for a built-in method, or
            if an earlier version saved the model.
    """

    method: dict[str, Any] | None
    roster: Roster
    task: Task | None
    seed: int
    best_epoch: int
    parts: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]
    own: dict[str, Any] | None = None

    def save(self, path: Path) -> None:
        """Write the summary to ``path`` as JSON."""
        values = {key: value for key, value in asdict(self).items() if key != "own" or value is not None}
        write_json(path, {"format": FORMAT, **values})

    @classmethod
    def load(cls, path: Path) -> ModelSummary:
        """Read a summary from a file that ``save`` wrote.

        Raises:
            ModelError: the file does not exist, was not written by anyparty, has a format that this version does not
                read, or differs from the manifest.
        """
        contents = read_json(inside(path.parent, path.name))
        found = contents.get("format", FORMAT)
        check_format(path, found, range(FROM_ZERO, FORMAT + 1), "a model")
        Manifest.read(path.parent).check(path.parent, path.name)
        try:
            read = TypeAdapter(cls).validate_json(json.dumps(contents), strict=True)
        except ValidationError as error:
            raise ModelError(f"{path}: this is not a model file of anyparty: {_first(error)}") from None
        if found == FROM_ZERO:
            read = replace(read, best_epoch=read.best_epoch + 1)
        nameless = read.method is not None and not isinstance(read.method.get("name"), str)
        if nameless or read.roster.active not in read.roster.names:
            raise ModelError(
                f"{path}: this is not a model file of anyparty: its method or its active party has no name"
            )
        return read

    def make(self, source: Path, given: Method | None = None) -> Method:
        """Return the model's method: ``given`` or, if it is ``None``, a built-in method with the saved parameters.

        ``source`` is the model's folder, for error messages.

        Raises:
            NotGiven: the method is user-defined, and ``given`` is ``None``.
            ModelError: ``given`` is not the method that was trained.
        """
        shipped = None if self.method is None else made_again(**tuples(self.method))
        if given is not None:
            check_description(source, self.own, shipped, given)
            return given
        if shipped is None:
            raise NotGiven(f"{source}: trained with a user-defined method", "method=...")
        return shipped


@dataclass(frozen=True, kw_only=True)
class Member:
    """One party's share of a trained model: its networks, its preprocessing, and how its table is read.

    Attributes:
        state: the party's networks.
        prepare: the fitted preprocessing of the party's table; ``None`` if the party has no columns.
        id: the name of the id column, or the names of several id columns.
        label: the name of the label column, if the party has one.
        rules: the reading rules: how the cells of the party's table are read.
        max_cell_bytes: the maximum size of a text cell of the party's table, in bytes.
        id_normalize: the changes made to ids when the table is read, such as "strip-zeros".
        duplicates: the reaction to rows with the same id: "error", "first", "last" or "mean".
        file: the settings of the party's table file, such as its separator.

    """

    state: State
    prepare: Prepare | None
    id: str | tuple[str, ...]
    label: str | None = None
    rules: ReadingRules = AS_WRITTEN
    max_cell_bytes: int = MAX_BYTES
    id_normalize: tuple[str, ...] = ()
    duplicates: Duplicates = "error"
    file: FileSettings = DETECT

    @cached_property
    def reading(self) -> dict[str, Any]:
        """The settings for reading the party's table: keyword arguments of ``read_table``."""
        names = ("id", "id_normalize", "duplicates", "file", "rules", "max_cell_bytes")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class _PartyFile:
    """The contents of the file party.json: the preprocessing of a party's table and the description of its network."""

    inputs: Annotated[int, Field(ge=0)]
    encoder: dict[str, Any] | None
    prepare: dict[str, Any] | None
    id: str | tuple[str, ...]
    label: str | None
    rules: ReadingRules = AS_WRITTEN
    max_cell_bytes: Annotated[int, Field(ge=1)] = MAX_BYTES
    id_normalize: tuple[str, ...] = ()
    duplicates: Duplicates = "error"
    file: FileSettings = DETECT

    @classmethod
    def load(cls, path: Path) -> _PartyFile:
        try:
            return TypeAdapter(cls).validate_json(json.dumps(read_json(path)), strict=True)
        except ValidationError as error:
            raise ModelError(f"{path}: this is not a model file of anyparty: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"


def write_manifest(folder: Path, parties: Iterable[str]) -> None:
    """Write the manifest of a model's folder: the hashes of model.json and of every party's files.

    Raises:
        ModelError: a file of a party does not exist.
        StorageError: the manifest cannot be written.
    """
    parts = [f"parties/{name}/{file}" for name in parties for file in ("party.json", WEIGHTS)]
    Manifest.write(folder, ["model.json", *parts])


def check_weights_hash(summary: ModelSummary, party_folder: Path, name: str) -> str:
    """Return the SHA-256 of a party's weights, and check that it is the hash in the model's ``summary``.

    ``party_folder`` is the party's folder in the model. If ``summary`` lists no hash for the party, the weights are not
    checked.

    Raises:
        ModelError: the weights have another hash.
    """
    found = sha256(party_folder / WEIGHTS)
    if summary.parts.get(name, found) != found:
        raise ModelError(f"{party_folder / WEIGHTS}: these are not the weights of party {name!r} that the model was "
                         "saved "
                         "with: they are from another run, or were changed; copy the whole folder again")  # fmt: skip
    return found


def save_member(party_folder: Path, member: Member) -> str:
    """Write a party's networks and preprocessing to ``party_folder``; return the SHA-256 of the weights' file."""
    tensors = {
        f"{module}/{key}": tensor
        for module, network in member.state.modules.items()
        for key, tensor in checkpoint.tensors_of(network).items()
    }
    seat = member.state.seat
    checkpoint.write(party_folder / WEIGHTS, tensors, {"party": seat.me})
    contents = {
        "inputs": seat.inputs,
        "encoder": describe(seat.encoder),
        "prepare": member.prepare.to_json() if member.prepare else None,
        "label": member.label,
        **member.reading,
        "file": asdict(member.file),
        "rules": member.rules.to_json(),
    }
    write_json(party_folder / "party.json", contents)
    return sha256(party_folder / WEIGHTS)


def write_model(folder: Path, summary: ModelSummary, members: Mapping[str, Member]) -> dict[str, str]:
    """Write the files of each party in ``members``, then model.json and the manifest.

    ``summary.parts`` may already hold the hashes of parties that are not in ``members``.

    Returns:
        For each party in ``members``, the SHA-256 of the file with its weights.

    Raises:
        StorageError: a file cannot be written.
    """
    hashes = {name: save_member(folder / "parties" / name, member) for name, member in members.items()}
    replace(summary, parts=summary.parts | hashes).save(folder / ABOUT)
    write_manifest(folder, members)
    return hashes


def save_model(folder: Path, summary: ModelSummary, members: Mapping[str, Member], *, replace: bool) -> None:
    """Write a model into a folder; raise an error if this would overwrite another model or a run.

    If ``replace`` is true, another model or a run is overwritten.  The record and settings of that run are then
    deleted, because they describe another model.

    Raises:
        ConfigError: a run is in progress in the folder.
        ModelError: the folder holds another model, or a run that did not make this model, and ``replace`` is false.
        StorageError: a file cannot be written, or the folder is a file.
    """
    refuse_file(folder)
    with ExitStack() as held:
        if (folder / LOCK).exists():  # without a lock file, the folder never had a run
            held.callback(take(folder).release)
        existing = [name for name in (RECORD, ABOUT) if (folder / name).exists()]
        other = bool(existing) and not _is_in(folder, summary, members)
        if other and not replace:
            what = "a run" if existing[0] == RECORD else "a model"
            raise ModelError(f"{folder} already holds {what} ({existing[0]}) other than this model: name another "
                             "folder, or overwrite it with save(..., replace=True)")  # fmt: skip
        write_model(folder, summary, members)
        for name in OF_RUNS if other and RECORD in existing else ():
            (folder / name).unlink(missing_ok=True)


def _is_in(folder: Path, summary: ModelSummary, members: Mapping[str, Member]) -> bool:
    """Return True if the folder already holds this model, with bit-identical weights.

    Only model.json is compared, because it contains the SHA-256 of each party's weights.
    """
    if not (folder / ABOUT).is_file():
        return False
    with TemporaryDirectory() as beside:
        write_model(Path(beside), summary, members)
        return (Path(beside) / ABOUT).read_bytes() == (folder / ABOUT).read_bytes()


def load_member(party_folder: Path, seat: PartyContext, method: Method, encoder: Factory | None) -> Member:
    """Read one party's networks and preprocessing from ``party_folder``, the party's folder in a saved model.

    ``seat`` is the party's context.  ``encoder`` is the function that makes a user-defined network.

    Raises:
        NotGiven: the network is user-defined, and ``encoder`` is not given.
        ModelError: a file does not exist, is incomplete or was not written by anyparty, or the network cannot be made.
    """
    name = seat.me
    folder = party_folder.parent.parent
    manifest = Manifest.read(folder)
    for file in ("party.json", WEIGHTS):
        manifest.check(folder, f"{party_folder.parent.name}/{party_folder.name}/{file}")
    summary = _PartyFile.load(inside(folder, Path(party_folder.parent.name, party_folder.name, "party.json")))
    if encoder is None and summary.encoder is None:
        lacks = f"{party_folder}: party {name!r} was trained with a user-defined network"
        raise NotGiven(lacks, f"encoders={{{name!r}: ...}}")
    prepare = None if summary.prepare is None else Prepare.from_json(summary.prepare)
    if summary.inputs != (0 if prepare is None else prepare.width):
        raise ModelError(
            f"{party_folder}: party.json declares a block of width {summary.inputs}, but the columns in it give "
            "another width; copy the whole folder again"
        )
    labeler = name in seat.roster.labelers
    tensors, whose = checkpoint.read(inside(folder, Path(party_folder.parent.name, party_folder.name, WEIGHTS)))
    held = sum(tensor.numel() for tensor in tensors.values())
    limit = AllocationLimit(2 * held + SPARE)
    try:
        made = encoder or restore(summary.encoder or {})
        seat = replace(seat, inputs=summary.inputs, encoder=made, task=seat.task if labeler else None)
        with limit:
            state = method.begin(seat, Seeds(0))
    except Exception as error:
        if limit.exceeded:
            raise ModelError(f"{party_folder}: party.json and model.json describe networks that are far larger than "
                             f"the {held:,} numbers in {WEIGHTS}; copy the whole folder again") from None  # fmt: skip
        if isinstance(error, KeyError | TypeError | AttributeError):
            raise ModelError(
                f"{party_folder}: the network that party.json describes cannot be made: {error!r}"
            ) from None
        raise
    if whose.get("party") != name:
        raise ModelError(
            f"{party_folder / WEIGHTS}: these are the weights of party {whose.get('party')!r}, not of {name!r}; "
            "copy the whole folder again"
        )
    for module, network in state.modules.items():
        own = {key.removeprefix(f"{module}/"): t for key, t in tensors.items() if key.startswith(f"{module}/")}
        checkpoint.load_module(network, own, party_folder / WEIGHTS, module)
    state.train(False)
    return Member(
        state=state, prepare=prepare, id=summary.id, label=summary.label, rules=summary.rules,
        max_cell_bytes=summary.max_cell_bytes,
        id_normalize=summary.id_normalize, duplicates=summary.duplicates, file=summary.file,
    )  # fmt: skip


def load_members(
    folder: Path, summary: ModelSummary, method: Method, encoders: Mapping[str, Factory], device: torch.device
) -> dict[str, Member]:
    """Read the networks and the preprocessing of every party of a saved model.

    ``encoders`` has, for each party, the function that makes a user-defined network.

    Raises:
        NotGiven: a network is user-defined, and ``encoders`` does not have it.
        ModelError: a party's files do not exist, are damaged or belong to another model, or an encoder is given for an
            unknown party.
    """
    if not isinstance(encoders, Mapping):
        raise ModelError(f"{folder}: encoders: expected a dict by party, such as {{{summary.roster.active!r}: ...}}, "
                         f"got {encoders!r}")  # fmt: skip
    for name in encoders:
        if name not in summary.roster.names:
            raise ModelError(f"{folder}: an encoder is given for {name!r}, which is not a party of the model"
                             f"{nearest(name, summary.roster.names)}")  # fmt: skip
    seat = PartyContext(me="", roster=summary.roster, task=summary.task, device=device)
    members = {
        name: load_member(folder / "parties" / name, replace(seat, me=name), method, encoders.get(name))
        for name in summary.roster.names
    }
    for name in members:
        check_weights_hash(summary, folder / "parties" / name, name)
    return members


NONE: Mapping[str, Kind] = MappingProxyType({})


def read_again(member: Member, me: str, source: Any, aligned: Mapping[str, Kind] = NONE) -> Table:
    """Read from a party's table the columns that the model needs; ignore all other columns.

    Args:
        member: the party's share of the model, which has the names of the columns.
        me: the party's name.
        source: the table, or the name of its file.
        aligned: by name, the types of the columns that the alignment used. If possible, these columns are read too, in
            this order.

    Raises:
        TableError: the table cannot be used.
    """
    columns = readers.names(source, me, member.file)
    needed = NONE if member.prepare is None else member.prepare.kinds
    label = member.label if member.label in columns else None

    def read(names: Mapping[str, Kind]) -> Table:
        expect = {name: names[name] for name in names if name in columns} | dict(needed)
        return read_table(source, party=me, label=label, expect=expect, **member.reading)

    alone = {name: needed[name] for name in columns if name in needed}
    if not aligned:
        return read(alone)
    try:
        return read(aligned)
    except TableError:  # the cause may be a column that the model does not need
        return read(alone)
