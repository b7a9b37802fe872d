"""Read the public image data sets from prepared files or from the official archives.

Each reader takes the paths of its files, in the order of the catalogue, and returns fields of ``Dataset``.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anyparty.data.datasets import downloads, formats
from anyparty.data.datasets.dataset import Array, Fields


def fashion_mnist(paths: Sequence[Path]) -> Fields:
    """Read Fashion-MNIST from the prepared fashion_mnist.npz, or from the four official idx files."""
    names = ("X_train", "y_train", "X_test", "y_test")
    if len(paths) == 1:
        known = downloads.npz(paths)
    else:
        known = downloads.unpacked(paths, lambda: dict(zip(names, map(formats.idx, paths), strict=True)))
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
        train = formats.cifar(b"".join(parts[f"data_batch_{i}.bin"] for i in range(1, 6)), 1)
        test = formats.cifar(parts["test_batch.bin"], 1)
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
        train, test = formats.cifar(parts["train.bin"], 2), formats.cifar(parts["test.bin"], 2)
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
