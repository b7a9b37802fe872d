"""The files of the demo: handwritten digits, cut into quadrants for four parties; each party lacks some images.

The data set, Optical Recognition of Handwritten Digits, comes with scikit-learn: 1,797 images of 8 x 8 pixels.  A
party's table contains one quadrant of each image: up to 16 pixels with values from 0 to 16.  Pixels that are blank in
more than 90 % of the images are left out.  Party ``top_left`` also has the digits, and is the active party.

A third of the images are test rows, and all parties have them.  Each party lacks a random half of the training images.
Images that ``top_left`` lacks are unlabelled.  Ids are random, and each table has its own order of rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from anyparty.core.seeds import Seeds
from anyparty.core.storage import writing
from anyparty.errors import ConfigError
from anyparty.tables.partition import quadrants

PARTIES = ("top_left", "top_right", "bottom_left", "bottom_right")
ACTIVE = "top_left"
LABEL = "digit"
MANIFEST = ".anyparty-demo.json"
HELD_OUT, ABSENT = 1 / 3, 1 / 2
INKED = 0.1  # a pixel is kept if it is not blank in at least this share of the images

SETTINGS = """\
# Four parties' tables with gaps, written by `anyparty demo`.  Change any setting, then run
#     anyparty align {folder}/federation.toml
#     anyparty train {folder}/federation.toml

[federation]
id = "image"
label = "digit"           # in the table of the active party, top_left

[parties.top_left]
table = "top_left.csv"

[parties.top_right]
table = "top_right.csv"

[parties.bottom_left]
table = "bottom_left.csv"

[parties.bottom_right]
table = "bottom_right.csv"

[method]
name = "laser"            # or another method of `anyparty methods`
embedding = 32

[encoder]                 # of every party; [parties.NAME.encoder] sets the encoder of one party
hidden = [64]

[optimizer]
name = "adam"
lr = 0.003

[train]
epochs = 40
batch_size = 64
validation = 0.2
test = 0.2                # share of labelled rows that are scored at the end; test/ has others, without gaps
seed = 0
"""


def write(folder: Path) -> None:
    """Write the parties' training tables, their tables of test rows, and the settings file.

    Raises:
        ConfigError: the folder has other files, or files that were changed since the demo wrote them.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; name another folder: anyparty demo FOLDER")
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise ConfigError(f"{folder} has other files; name another folder: anyparty demo FOLDER")
    write_files(folder, dict(_files(folder)))


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Write ``files``, a mapping from names to contents, into ``folder``, and list their hashes in a manifest.

    Raises:
        ConfigError: the demo did not write an existing file, or the file was changed after the demo wrote it.
        StorageError: the disk is full, or the folder cannot be written to.
    """
    manifest = folder / MANIFEST
    written = json.loads(manifest.read_text(encoding="utf-8")) if manifest.exists() else {}
    for name in files:
        path = folder / name
        if path.exists() and _hash(path.read_bytes()) != written.get(name):
            raise ConfigError(f"{path} was changed since the demo wrote it and is not overwritten; to run the demo "
                              f"again, name another folder: anyparty demo FOLDER")  # fmt: skip
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as unfinished:
            unfinished.write_bytes(content)
    with writing(manifest) as unfinished:
        hashes = written | {name: _hash(files[name]) for name in files}
        unfinished.write_text(json.dumps(hashes, indent=1), encoding="utf-8")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def training_tables(seed: int) -> dict[str, pl.DataFrame]:
    """Return each party's training table; ``seed`` selects the rows that a party lacks (0 for the demo's files)."""
    whole, digit = _tables()
    tables = {}
    for name, table in whole.items():
        order = Seeds(seed).numpy("demo", "gaps", name).permutation(table.height)
        own = order[~_held_out(table.height)[order]]
        rows = own[round(ABSENT * len(own)) :]
        tables[name] = (table.with_columns(digit) if name == ACTIVE else table)[rows]
    return tables


def whole_tables() -> dict[str, pl.DataFrame]:
    """Return each party's table of all images; no party lacks a row."""
    whole, digit = _tables()
    return {name: table.with_columns(digit) if name == ACTIVE else table for name, table in whole.items()}


def held_out_tables() -> dict[str, pl.DataFrame]:
    """Return each party's table of the test rows, which are the same rows for all seeds."""
    whole, digit = _tables()
    tables = {}
    for name, table in whole.items():
        order = Seeds(0).numpy("demo", "order", name).permutation(table.height)
        tables[name] = (table.with_columns(digit) if name == ACTIVE else table)[order[_held_out(table.height)[order]]]
    return tables


def _held_out(n: int) -> NDArray[np.bool_]:
    return np.isin(np.arange(n), Seeds(0).numpy("demo", "test").permutation(n)[: round(HELD_OUT * n)])


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    yield "federation.toml", SETTINGS.format(folder=folder.as_posix()).encode()
    for name, table in training_tables(0).items():
        yield f"{name}.csv", table.write_csv().encode()
    for name, table in held_out_tables().items():
        yield f"test/{name}.csv", table.write_csv().encode()


@cache
def _tables() -> tuple[dict[str, pl.DataFrame], pl.Series]:
    """Return each party's table of ids and pixels for all 1,797 images, and the labels, which are the digits."""
    data = load_digits()
    numbers = Seeds(0).numpy("demo", "ids").choice(16**6, size=len(data.target), replace=False)
    ids = pl.Series("image", [f"D{number:06x}" for number in numbers.tolist()])
    names = [f"row{r}_column{c}" for r in range(4) for c in range(4)]
    tables = {}
    for party, pixels in zip(PARTIES, quadrants(data.images.astype(np.int64)), strict=True):
        table = pl.from_numpy(pixels.reshape(len(pixels), -1), schema=names)
        inked = [name for name in names if (table[name] > 0).sum() >= INKED * len(table)]
        tables[party] = table.select(inked).insert_column(0, ids)
    return tables, pl.Series(LABEL, data.target)
