"""Read data sets from prepared files, official archives or files that users must obtain themselves.

Each reader takes the paths of its files, in the order of the catalogue (``registry``), and returns fields of
``Dataset``. Data sets are public, gated (MIMIC, MOSEI) or large (ModelNet, ImageNet). The docstring of each reader of
gated and large data sets specifies the files and their form. ``load`` prints the docstring if the files are absent. No
data is copied to the cache.
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
from anyparty.errors import some
from anyparty.tables import cells


def mimic3(paths: Sequence[Path]) -> Fields:
    """mimic3/mimic3.csv: UTF-8, one line of column names, then one row for each admission.

    label      the class, any text or whole number (APC-VFL: 4 classes)
    test       optional, 1 for test rows and 0 for training rows
    id         optional, not used as a feature
    other columns are features, numbers without empty cells (APC-VFL: 15 features, such as Age, NumCallouts,
    NumDiagnosis, NumProcs, NumCPTevents; 58 976 rows)
    """
    frame = pl.read_csv(paths[0], infer_schema=False, glob=False)
    if "label" not in frame.columns:
        raise ValueError("there is no column 'label'")
    names = [name for name in frame.columns if name not in {"label", "test", "id"}]
    read = [cells.as_numbers(frame[name]) for name in names]
    gaps = [name for name, (column, _) in zip(names, read, strict=True) if column.null_count()]
    if gaps:
        raise ValueError(f"column {gaps[0]!r} has cells that are empty or no numbers")
    X = np.stack([column.to_numpy() for column, _ in read], axis=1).astype(np.float32)
    labels = cells.as_level(frame["label"])
    if labels.null_count():
        raise ValueError("column 'label' has empty cells")
    classes, y = np.unique(labels.to_numpy().astype(str), return_inverse=True)
    if not np.isfinite(X).all():
        raise ValueError(f"column {names[int((~np.isfinite(X)).any(axis=0).argmax())]!r} has cells that are infinite")
    test = _is_test(cells.as_text(frame["test"])) if "test" in frame.columns else None
    return _rows(X, y, test) | {"features": tuple(names), "classes": tuple(str(name) for name in classes)}


def mimic4(paths: Sequence[Path]) -> Fields:
    """mimic4/mimic4.npz: one row for each intensive-care stay; n rows, T time steps.

    chart        float32 [n, T, c]  labs and vital signs (LASER-VFL: c = 449)
    condition    uint8 [n, d]       diagnoses, 0 or 1 (LASER-VFL: d = 1419)
    demographic  float32 [n, e]     codes or numbers (LASER-VFL: e = 4)
    y            uint8 [n]          1: died in hospital
    test         bool [n]           optional, test rows
    subject      int64 [n]          optional, the patient

    The reader flattens each row: [n, T * c + d + e]. The charts come first, step by step, then the conditions, then the
    demographics. In ``Dataset.blocks``, "chart", "condition" and "demographic" are groups of columns; ``Dataset.steps``
    is T.
    """
    parts = downloads.arrays(paths[0])
    chart, condition, demographic = (_known(parts, name) for name in ("chart", "condition", "demographic"))
    if chart.ndim != 3 or condition.ndim != 2 or demographic.ndim != 2:
        raise ValueError("expected chart [n, T, c], condition [n, d], demographic [n, e]")
    n, steps, _ = chart.shape
    flat = [chart.reshape(n, -1), condition, demographic]
    ends = np.cumsum([part.shape[1] for part in flat]).tolist()
    X = np.concatenate([part.astype(np.float32, copy=False) for part in flat], axis=1)
    groups = {"subject": parts["subject"]} if "subject" in parts else {}
    return _rows(X, _known(parts, "y"), parts.get("test"), groups) | {
        "blocks": {"chart": slice(0, ends[0]), "condition": slice(*ends[:2]), "demographic": slice(*ends[1:])},
        "steps": steps,
    }


def views(paths: Sequence[Path]) -> Fields:
    """NAME/X_train.npy, y_train.npy, X_test.npy, y_test.npy, classes.txt: pictures of objects from V sides.

    X    uint8 [n, V, C, H, W], views in the order of the camera (12 in the papers; C is 1 or 3)
    y    whole numbers [n], the place of the class in classes.txt (UTF-8, one name a line)

    Write the arrays with numpy.save. They are opened memory-mapped, so that they may be larger than memory.
    """
    return _images(paths, 5)


def images(paths: Sequence[Path]) -> Fields:
    """NAME/X_train.npy, y_train.npy, X_test.npy, y_test.npy, classes.txt: images of one size.

    X    uint8 [n, C, H, W], red, green, blue
    y    whole numbers [n], the place of the class in classes.txt (UTF-8, one name a line)

    Write the arrays with numpy.save. They are opened memory-mapped, so that they may be larger than memory.
    """
    return _images(paths, 4)


def mosei(paths: Sequence[Path]) -> Fields:
    """cmu-mosei/mosei.npz: n sentences of T aligned steps, each with a sentiment between -3 and 3.

    text_train   float32 [n, T, d]    word vectors (GloVe: d = 300)
    audio_train  float32 [n, T, e]    (COVAREP: e = 74)
    video_train  float32 [n, T, f]    (FACET: f = 35)
    y_train      float32 [n]
    text_test, audio_test, video_test, y_test: the same for the test rows

    The reader concatenates text, audio and video along the last axis: [n, T, d + e + f]. In ``Dataset.blocks``, "text",
    "audio" and "video" are groups of columns.
    """
    parts = downloads.arrays(paths[0])
    fields: dict[str, Any] = {}
    for part in ("train", "test"):
        kinds = [_known(parts, f"{kind}_{part}") for kind in ("text", "audio", "video")]
        if len({kind.shape[:2] for kind in kinds}) > 1 or any(kind.ndim != 3 for kind in kinds):
            raise ValueError(f"text, audio and video of {part} differ in rows or steps; expected [n, T, width] each")
        fields[f"X_{part}"] = np.concatenate([kind.astype(np.float32, copy=False) for kind in kinds], axis=2)
        fields[f"y_{part}"] = _known(parts, f"y_{part}").astype(np.float32)
    ends = np.cumsum([kind.shape[2] for kind in kinds]).tolist()
    blocks = {"text": slice(0, ends[0]), "audio": slice(*ends[:2]), "video": slice(*ends[1:])}
    return fields | {"blocks": blocks, "note": "Split as prepared."}


def _is_test(column: pl.Series) -> Array:
    """Return the mask of test rows from a column of "0" and "1"."""
    if not column.is_in(["0", "1"]).fill_null(value=False).all() or column.n_unique() < 2:
        raise ValueError(f"column 'test' should hold 1 for test rows and 0 for training rows, and both of them; it has "
                         f"{some((str(cell) for cell in column.unique().sort()), 5)}")  # fmt: skip
    return np.asarray(column.to_numpy() == "1")


def _images(paths: Sequence[Path], dimensions: int) -> Fields:
    X_train, y_train, X_test, y_test = (np.load(path, mmap_mode="c") for path in paths[:4])
    names = tuple(name.strip() for name in paths[4].read_text("utf-8").splitlines() if name.strip())
    for path, X, y in ((paths[0], X_train, y_train), (paths[2], X_test, y_test)):
        if X.dtype != np.uint8 or X.ndim != dimensions or X.shape[1:] != X_train.shape[1:]:
            raise ValueError(f"{path.name} is {X.dtype} {X.shape}; expected uint8 of {dimensions} dimensions, of one "
                             f"size in both files")  # fmt: skip
        if len(X) != len(y) or (len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(names)):
            raise ValueError(f"{path.name}: its labels are not one for each image, from 0 to {len(names) - 1}")
    return {
        "X_train": X_train,
        "y_train": np.asarray(y_train).astype(np.int64),
        "X_test": X_test,
        "y_test": np.asarray(y_test).astype(np.int64),
        "classes": names,
        "note": "Split as prepared.",
    }


def _rows(X: Array, y: Array, test: Array | None, groups: Mapping[str, Array] | None = None) -> dict[str, Any]:
    groups = groups or {}
    if len(X) != len(y):
        raise ValueError(f"{len(X)} rows and {len(y)} labels")
    if test is None:
        return {"X_train": X, "y_train": y.astype(np.int64), "groups_train": groups, "note": "No split in the file."}
    test = test.astype(bool)
    return {
        "X_train": X[~test],
        "y_train": y[~test].astype(np.int64),
        "X_test": X[test],
        "y_test": y[test].astype(np.int64),
        "groups_train": {name: values[~test] for name, values in groups.items()},
        "groups_test": {name: values[test] for name, values in groups.items()},
        "note": "Split as prepared.",
    }


def _known(parts: Mapping[str, Array], name: str) -> Array:
    if name not in parts:
        raise ValueError(f"there is no array {name!r}")
    return parts[name]


CREDIT = ("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", "PAY_0", *(f"PAY_{i}" for i in range(2, 7)),
          *(f"BILL_AMT{i}" for i in range(1, 7)), *(f"PAY_AMT{i}" for i in range(1, 7)))  # fmt: skip

_HAPT = {"tBodyAcc": 0, "tGravityAcc": 40, "tBodyAccJerk": 80, "tBodyGyro": 120, "tBodyGyroJerk": 160,
         "time magnitudes": 200, "fBodyAcc": 265, "fBodyAccJerk": 344, "fBodyGyro": 423,
         "frequency magnitudes": 502, "angles": 554, "": 561}  # fmt: skip


def credit(paths: Sequence[Path]) -> Fields:
    """Read UCI data set 350 from a CSV file of an ID, 23 features (by their names, or X1 to X23), and the label."""
    # read cells as text, because one number is written as 1e+05
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
    """Read HAPT (UCI 341) from the prepared hapt.npz, and the names of columns from features.txt in the same folder."""
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
    """Read machines' CPU and memory use over a day; the task (our choice) is the mean CPU use of the last hour."""
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
    """Convert class indices that are counted from 1, as published, to indices from 0."""
    if len(y) and not (y.min() >= 1 and y.max() <= classes):
        raise ValueError(f"labels from {y.min()} to {y.max()}, expected 1 to {classes}")
    return y.astype(np.int64) - 1


def _different(names: Sequence[str]) -> tuple[str, ...]:
    """Make column names distinct: a second column ``a`` becomes ``a~2``. HAPT repeats 14 names."""
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
    """Read Fashion-MNIST from one prepared file, fashion_mnist.npz, or else from the four official idx files."""
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
    """Return the contents of a tar archive's files by name; the names have no folders."""
    with tarfile.open(path) as archive:
        return {
            Path(member.name).name: content.read() for member in archive if (content := archive.extractfile(member))
        }
