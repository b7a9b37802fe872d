"""The manifest of a model's folder: the SHA-256 of every file that the model consists of.

manifest.json     {"format": 1, "files": {"model.json": "…", "parties/bank/party.json": "…", …}}

The manifest is written last and checked before a file is parsed.  It reveals files that were cut short, mixed up or
edited after the model was saved.  It does not prove who saved the model: any user who can write to the folder can write
a new manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from anyparty.config.settings_group import Settings
from anyparty.core.storage import inside, read_json, write_json
from anyparty.errors import ModelError

NAME = "manifest.json"


class Manifest(Settings):
    """The hashes of a model's files.

    Attributes:
        format: the version of this file.
        files: the SHA-256 of each file in hexadecimal, by the file's path relative to the folder, with slashes.

    """

    format: Annotated[int, Field(ge=1, le=1)] = 1
    files: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]

    @classmethod
    def write(cls, folder: Path, names: Iterable[str]) -> None:
        """Hash the files ``names`` in ``folder`` and write the manifest.

        Raises:
            ModelError: a file does not exist.
            StorageError: the manifest cannot be written.
        """
        files = {name: sha256(folder / name) for name in sorted(names)}
        write_json(folder / NAME, {"format": 1, "files": files})

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of a model's folder.

        Raises:
            ModelError: the file does not exist, is not a manifest, or is a symbolic link that leads out of the folder.
        """
        path = inside(folder, NAME)
        values = read_json(path)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            found = error.errors()[0]
            where = ".".join(map(str, found["loc"]))
            raise ModelError(f"{path}: this is not a manifest of anyparty: {where}: {found['msg'].lower()}; copy the "
                             f"whole folder again") from None  # fmt: skip

    def check(self, folder: Path, name: str) -> None:
        """Check that a file is the one that was saved.

        Raises:
            ModelError: the manifest does not list the file, or the file does not exist, has other bytes, or is a
                symbolic link that leads out of the folder.
        """
        path = inside(folder, name)
        if name not in self.files:
            raise ModelError(
                f"{folder / NAME} does not list {name}, which the model needs; copy the whole folder again"
            )
        if sha256(path) != self.files[name]:
            raise ModelError(f"{path}: this is not the file that the model was saved with ({NAME} has another hash); "
                             f"copy the whole folder again")  # fmt: skip


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal.

    Raises:
        ModelError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; copy the whole folder again") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); copy the whole folder again") from None
