"""Read the public tables and image data sets from prepared files or from the official archives.

Each reader takes the paths of its files, in the order of the catalogue, and returns fields of ``Dataset``.
"""

from __future__ import annotations

import tarfile
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from unlzw3 import unlzw

from anyparty.data.datasets import downloads
from anyparty.data.datasets.dataset import Array, Fields

CREDIT = ("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", "PAY_0", *(f"PAY_{i}" for i in range(2, 7)),
          *(f"BILL_AMT{i}" for i in range(1, 7)), *(f"PAY_AMT{i}" for i in range(1, 7)))  # fmt: skip

_HAPT = {"tBodyAcc": 0, "tGravityAcc": 40, "tBodyAccJerk": 80, "tBodyGyro": 120, "tBodyGyroJerk": 160,
         "time magnitudes": 200, "fBodyAcc": 265, "fBodyAccJerk": 344, "fBodyGyro": 423,
         "frequency magnitudes": 502, "angles": 554, "": 561}  # fmt: skip


def credit(paths: Sequence[Path]) -> Fields:
    """Read UCI data set 350 from a CSV file of an ID, 23 features (by their names, or X1 to X23), and the label."""
    # cells are read as text first, because one number is written as 1e+05
    cells = pl.read_csv(paths[0], infer_schema=False, glob=False).cast(pl.Float64).to_numpy()
    if cells.shape[1] != len(CREDIT) + 2:
        raise ValueError(f"{cells.shape[1]} columns, expected {len(CREDIT) + 2}")
    return {
        "X_train": cells[:, 1:-1].astype(np.float32),
        "y_train": cells[:, -1].astype(np.int64),
        "features": CREDIT,
        "blocks": {"person": slice(0, 5), "payment status": slice(5, 11), "bills": slice(11, 17),
                   "payments": slice(17, 23)},
        "note": "No official split.",
    }  # fmt: skip


def hapt(paths: Sequence[Path]) -> Fields:
    """Read HAPT (UCI 341) from the prepared hapt.npz, and the names of columns from features.txt beside it."""
    arrays = downloads.npz(paths)
    names = paths[0].with_name("features.txt")
    return _hapt(arrays, names.read_text("utf-8").split("\n") if names.exists() else ())


def hapt_zip(paths: Sequence[Path]) -> Fields:
    """Read HAPT (UCI 341) from the official archive (Train/X_train.txt and so on, in or below its root)."""

    def make() -> dict[str, Array]:
        with zipfile.ZipFile(paths[0]) as archive:
            listed = archive.namelist()

            def read(end: str, columns: int) -> NDArray[np.float32]:
                return downloads.numbers(archive.read(_ending(listed, end)), columns)

            names = archive.read(_ending(listed, "features.txt")).decode().split("\n")
            arrays: dict[str, Array] = {"names": np.array(names)}
            for part, folder in (("train", "Train"), ("test", "Test")):
                arrays[f"X_{part}"] = read(f"{folder}/X_{part}.txt", 561)
                arrays[f"y_{part}"] = read(f"{folder}/y_{part}.txt", 1)[:, 0]
                arrays[f"subject_{part}"] = read(f"{folder}/subject_id_{part}.txt", 1)[:, 0].astype(np.uint8)
            return arrays

    arrays = downloads.unpacked(paths, make)
    return _hapt(arrays, arrays["names"].tolist())


def _hapt(arrays: Mapping[str, Array], names: Sequence[str]) -> Fields:
    named = [name.strip() for name in names if name.strip()] or [f"x{j}" for j in range(561)]
    groups = {
        part: {name: arrays[f"{name}_{part}"] for name in ("subject", "window") if f"{name}_{part}" in arrays}
        for part in ("train", "test")
    }
    return {
        "X_train": _wide(arrays["X_train"], 561),
        "y_train": _from_one(arrays["y_train"], 12),
        "X_test": _wide(arrays["X_test"], 561),
        "y_test": _from_one(arrays["y_test"], 12),
        "features": _different(named),
        "blocks": {name: slice(start, end) for (name, start), (_, end) in pairwise(_HAPT.items())},
        "groups_train": groups["train"],
        "groups_test": groups["test"],
        "note": "Official split: 21 and 9 persons. Scaled to [-1, 1] by its authors, over all rows.",
    }


def isolet(paths: Sequence[Path]) -> Fields:
    """Read ISOLET (UCI 54) from the prepared isolet.npz."""
    known = downloads.npz(paths)
    X, y, test, speaker = known["X"], known["y"], known["part"] == 5, known["speaker"]
    return _isolet(X[~test], y[~test], X[test], y[test]) | {
        "groups_train": {"speaker": speaker[~test]},
        "groups_test": {"speaker": speaker[test]},
    }


def isolet_zip(paths: Sequence[Path]) -> Fields:
    """Read ISOLET (UCI 54) from the official archive, whose two tables are packed with Unix compress."""

    def make() -> dict[str, Array]:
        with zipfile.ZipFile(paths[0]) as archive:
            packed = {
                name: archive.read(_ending(archive.namelist(), f"{end}.data.Z"))
                for name, end in (("train", "isolet1+2+3+4"), ("test", "isolet5"))
            }
        return {name: downloads.numbers(unlzw(raw), 618, ",") for name, raw in packed.items()}

    tables = downloads.unpacked(paths, make)
    train, test = tables["train"], tables["test"]
    return _isolet(train[:, :617], train[:, 617], test[:, :617], test[:, 617])


def _isolet(X_train: Array, y_train: Array, X_test: Array, y_test: Array) -> dict[str, Any]:
    return {
        "X_train": _wide(X_train, 617),
        "y_train": _from_one(y_train, 26),
        "X_test": _wide(X_test, 617),
        "y_test": _from_one(y_test, 26),
        "features": tuple(f"x{j}" for j in range(617)),
        "note": "Official split: Isolet 1 to 4 train, Isolet 5 (other speakers) tests.",
    }


def google_cluster(paths: Sequence[Path]) -> Fields:
    """Read CPU and memory use of machines over a day; our task is to predict the mean CPU use of the last hour."""
    known = downloads.npz(paths)
    usage, machine = known["usage"], known["vm"]
    if usage.ndim != 3 or usage.shape[1] <= 12:
        raise ValueError(f"usage is {usage.shape}, expected (machines, 288, 2)")
    return {
        "X_train": np.ascontiguousarray(usage[:, :-12]),
        "y_train": usage[:, -12:, 0].mean(axis=1).astype(np.float32),
        "features": ("cpu", "memory"),
        "groups_train": {"machine": machine},
        "note": "No official split, and no published task: we predict the mean CPU per cent of the last hour (12 steps "
        "of 5 minutes) from CPU and memory of the steps before.",
    }


def breast_cancer(paths: Sequence[Path]) -> Fields:
    """Read the diagnostic Wisconsin data from scikit-learn; class 0 is malignant."""
    assert not paths
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415 - slow to import

    known = load_breast_cancer()
    return {
        "X_train": known.data.astype(np.float32),
        "y_train": known.target.astype(np.int64),
        "features": tuple(str(name) for name in known.feature_names),
        "blocks": {"mean": slice(0, 10), "error": slice(10, 20), "worst": slice(20, 30)},
        "note": "No official split.",
    }


def _wide(X: Array, columns: int) -> NDArray[np.float32]:
    if X.ndim != 2 or X.shape[1] != columns:
        raise ValueError(f"the features are {X.shape}, expected (rows, {columns})")
    return np.ascontiguousarray(X, dtype=np.float32)


def _from_one(y: Array, classes: int) -> NDArray[np.int64]:
    """Return classes counted from 0; the publisher counts them from 1."""
    if len(y) and not (y.min() >= 1 and y.max() <= classes):
        raise ValueError(f"labels from {y.min()} to {y.max()}, expected 1 to {classes}")
    return y.astype(np.int64) - 1


def _different(names: Sequence[str]) -> tuple[str, ...]:
    """Return distinct column names: a second column ``a`` becomes ``a~2``. HAPT repeats 14 names."""
    seen: Counter[str] = Counter()
    out = []
    for name in names:
        seen[name] += 1
        out.append(name if seen[name] == 1 else f"{name}~{seen[name]}")
    return tuple(out)


def _ending(names: Sequence[str], end: str) -> str:
    found = [name for name in names if name == end or name.endswith("/" + end)]
    if not found:
        raise ValueError(f"the archive has no {end}")
    return found[0]


def fashion_mnist(paths: Sequence[Path]) -> Fields:
    """Read Fashion-MNIST from the prepared fashion_mnist.npz, or from the four official idx files."""
    names = ("X_train", "y_train", "X_test", "y_test")
    if len(paths) == 1:
        known = downloads.npz(paths)
    else:
        known = downloads.unpacked(paths, lambda: dict(zip(names, map(downloads.idx, paths), strict=True)))
    X_train, y_train, X_test, y_test = (known[name] for name in names)
    return {
        "X_train": X_train[:, None],
        "y_train": y_train.astype(np.int64),
        "X_test": X_test[:, None],
        "y_test": y_test.astype(np.int64),
        "note": "Official split.",
    }


def cifar10(paths: Sequence[Path]) -> Fields:
    """Read CIFAR-10 from the official binary version."""

    def make() -> dict[str, Array]:
        parts = _members(paths[0])
        train = downloads.cifar(b"".join(parts[f"data_batch_{i}.bin"] for i in range(1, 6)), 1)
        test = downloads.cifar(parts["test_batch.bin"], 1)
        return {"X_train": train[0], "y_train": train[1], "X_test": test[0], "y_test": test[1]}

    return _split(downloads.unpacked(paths, make)) | {"note": "The whole of CIFAR-10, official split."}


def cifar10_subset(paths: Sequence[Path]) -> Fields:
    """Read a balanced subset of CIFAR-10 from the prepared cifar10_subset.npz."""
    known = downloads.npz(paths)
    counts = f"{len(known['y_train'])} of 50000 training and {len(known['y_test'])} of 10000 test images"
    return _split(known) | {"note": f"A SUBSET of CIFAR-10, balanced, from its official split: {counts}."}


def cifar100(paths: Sequence[Path]) -> Fields:
    """Read CIFAR-100 with its 100 fine classes from the official binary version."""

    def make() -> dict[str, Array]:
        parts = _members(paths[0])
        train, test = downloads.cifar(parts["train.bin"], 2), downloads.cifar(parts["test.bin"], 2)
        names = np.array(parts["fine_label_names.txt"].decode().split())
        return {"X_train": train[0], "y_train": train[1], "X_test": test[0], "y_test": test[1], "names": names}

    known = downloads.unpacked(paths, make)
    return _split(known) | {
        "classes": tuple(known["names"].tolist()),
        "note": "The whole of CIFAR-100, fine classes, official split.",
    }


def _split(arrays: Mapping[str, Array]) -> dict[str, Any]:
    return {name: arrays[name] for name in ("X_train", "X_test")} | {
        name: arrays[name].astype(np.int64) for name in ("y_train", "y_test")
    }


def _members(path: Path) -> dict[str, bytes]:
    """Return the files of a tar archive by name, without their folders."""
    with tarfile.open(path) as archive:
        return {
            Path(member.name).name: content.read() for member in archive if (content := archive.extractfile(member))
        }
