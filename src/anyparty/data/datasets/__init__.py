"""Load the data sets of the published experiments by name.

    >>> load("breast-cancer").X_train.shape
    (569, 30)

The module ``registry`` lists the data sets, ``downloads`` finds and downloads their files, and ``dataset_readers``
reads these files.
"""

from __future__ import annotations

import inspect
import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path

import polars as pl

from anyparty.data.datasets import downloads
from anyparty.data.datasets.dataset import Dataset
from anyparty.data.datasets.registry import CATALOGUE, CatalogueEntry, DatasetForm
from anyparty.errors import ConfigError, TableError, nearest

__all__ = ["CATALOGUE", "NAMES", "Dataset", "load"]

NAMES = tuple(CATALOGUE)

_BROKEN = (ValueError, OSError, EOFError, KeyError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, tarfile.TarError,
           pl.exceptions.PolarsError)  # fmt: skip


def load(
    name: str, *, data_dir: Path | None = None, download: bool = True, verify: bool = True, progress: bool = True
) -> Dataset:
    """Load a data set from files on disk, or download it if its publisher offers a plain download.

    Args:
        name: one of ``NAMES``.
        data_dir: the only folder in which files are looked up. By default, they are looked up first in the folder given
            by the environment variable ANYPARTY_DATA, then in the cache.
        download: whether to download missing files to the cache; has no effect if ``data_dir`` is given.
        verify: whether to reject files whose SHA-256 is not the known one.
        progress: whether to show a progress bar while downloading.

    Raises:
        ConfigError: the data set is unknown.
        TableError: its files are absent (the message names their source), incomplete, damaged or malformed.
    """
    if name not in CATALOGUE:
        raise ConfigError(f"no data set {name!r}{nearest(name, CATALOGUE)}")
    entry = CATALOGUE[name]
    form, paths = _found(entry, data_dir) or _fetched(
        name, entry, data_dir, wanted=download and data_dir is None, verify=verify, progress=progress
    )
    if verify:
        for file, path in zip(form.files, paths, strict=True):
            if file.sha256:
                downloads.check(path, file.sha256)
    try:
        fields = {"classes": entry.classes, **form.read(paths)}
        return Dataset(
            name=name, title=entry.title, task=entry.task, source=entry.source, licence=entry.licence, **fields
        )
    except _BROKEN as error:
        where = str(paths[0]) if len(paths) == 1 else f"the files in {paths[0].parent}"
        raise TableError(f"data set {name!r}: {where} cannot be read: {_reason(error)}; expected\n"
                         f"{_described(form)}\nget them again from {entry.source}") from error  # fmt: skip


def _found(entry: CatalogueEntry, data_dir: Path | None) -> tuple[DatasetForm, list[Path]] | None:
    """Return the first form of a data set whose files are all in one folder, and the files' paths, or ``None``."""
    for folder in downloads.folders(data_dir):
        for form in entry.forms:
            paths = [folder / file.path for file in form.files]
            if all(path.is_file() for path in paths):
                return form, paths
    return None


def _fetched(
    name: str, entry: CatalogueEntry, data_dir: Path | None, *, wanted: bool, verify: bool, progress: bool
) -> tuple[DatasetForm, list[Path]]:
    form = next((form for form in entry.forms if all(file.url for file in form.files)), None)
    if form is None or not wanted:
        looked = " and ".join(str(folder) for folder in downloads.folders(data_dir))
        ways = "\nor\n".join(_described(each) for each in entry.forms)
        get = f"Get it from {entry.source}"
        if form is not None:
            get += (", or let it be fetched: on the command line leave out --data-dir, in Python data_dir and "
                    "download=False")  # fmt: skip
        raise TableError(
            f"data set {name!r} ({entry.title}) is not there: looked in {looked}. {get}; licence: {entry.licence}. Put "
            f"it below one of these folders, or the one that ANYPARTY_DATA names, as\n{ways}"
        )
    target = downloads.cache_folder()
    return form, [
        downloads.download(file.url, target / file.path, sha256=file.sha256, verify=verify, progress=progress)
        for file in form.files
    ]


def _described(form: DatasetForm) -> str:
    """Return the names of the files in ``form``, and the docstring of ``form.read``, which describes the files."""
    listed = ", ".join(file.path for file in form.files)
    return f"{listed}\n    " + (inspect.getdoc(form.read) or "").replace("\n", "\n    ")


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return str(error).strip().split("\n")[0].rstrip(":") or type(error).__name__
