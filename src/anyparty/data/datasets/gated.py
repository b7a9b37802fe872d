"""Read the data sets that users must obtain and prepare themselves: gated (MIMIC, MOSEI) or large (ModelNet, ImageNet).

The docstring of each reader specifies the files and their form. ``load`` prints the docstring if the files are absent.
No data is copied to the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from anyparty.data.datasets import downloads
from anyparty.data.datasets.dataset import Array, Fields
from anyparty.errors import some
from anyparty.tables import cells


def mimic3(paths: Sequence[Path]) -> Fields:
    """mimic3/mimic3.csv: UTF-8, one line of column names, then one row for each admission.

    label      the class, any text or whole number (APC-VFL: 4 classes)
    test       optional, 1 for test rows and 0 for training rows
    id         optional, not used as a feature
    all other  one feature each, numbers without empty cells (APC-VFL: 15, among them Age, NumCallouts, NumDiagnosis,
               NumProcs, NumCPTevents; 58 976 rows)
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
    demographics. The blocks "chart", "condition" and "demographic" name their columns, and ``steps`` is T.
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

    The reader concatenates text, audio and video along the last axis: [n, T, d + e + f]. The blocks "text", "audio" and
    "video" name their columns.
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
