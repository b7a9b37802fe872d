"""Read and write files: atomically, and never outside their folder.

Tables are written without formulas. A spreadsheet runs a CSV cell as a formula if it begins with one of a few
characters (OWASP, "CSV Injection", https://owasp.org/www-community/attacks/CSV_Injection). Ids, class names and column
names come from untrusted tables. Text that begins with one of these characters therefore gets a leading single quote. A
cell that is a number as a whole, such as -5, is not changed.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import polars as pl
from filelock import FileLock, Timeout
from polars.exceptions import ComputeError
from safetensors import SafetensorError

from anyparty.errors import ConfigError, ModelError, StorageError, remark

PART = ".part"  # the suffix of an incomplete file


def user_path(named: Path | str) -> Path:
    """Return a path that a user wrote, with ``~`` and ``~user`` replaced by the home folder.

    Raises:
        ConfigError: there is no such home folder.
    """
    try:
        return Path(named).expanduser()
    except RuntimeError:
        raise ConfigError(f"{named}: there is no home folder for this user; write the whole path") from None


def refuse_file(folder: Path) -> None:
    """Check that neither a folder nor one of its parents is a file.

    Raises:
        StorageError: one of them is a file.
    """
    for each in (folder, *folder.parents):
        if each.is_file():
            raise StorageError(f"{each}: this is a file; name a folder")


def inside(folder: Path, relative: Path | str) -> Path:
    """Return the path of a file in the folder of a run or a model.

    Raises:
        ModelError: a symbolic link leads out of the folder.
    """
    path = folder / relative
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ModelError(f"{path}: a symbolic link leads out of the folder, to {path.resolve()}; put the file itself "
                         f"there")  # fmt: skip
    return path


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically; NaN and infinity become null.

    Raises:
        StorageError: the file cannot be written.
    """
    with writing(path) as beside:
        beside.write_text(json.dumps(finite(value), indent=1, allow_nan=False), encoding="utf-8")


def finite(value: Any) -> Any:
    """Replace numbers that are not finite by ``None``, also inside lists and mappings."""
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ModelError: the file does not exist, is not a JSON object, or is nested too deeply.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; is {path.parent} a saved model or a run's folder?") from None
    except RecursionError:
        raise ModelError(f"{path}: its values are nested too deeply for a file of anyparty; copy the folder "
                         f"again") from None  # fmt: skip
    except (ValueError, OSError) as error:  # not JSON, not UTF-8, or a number of too many digits
        raise ModelError(f"{path}: not readable as JSON ({error}); copy the folder again") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the lists among the values to tuples, because JSON stores tuples as lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Write a file atomically: yield a temporary path beside ``path``, and move it to ``path`` at the end.

    The temporary name is unique, so that several writers do not collide. Only the user may read the file, because
    records name a table's categories, and errors may name ids.

    Raises:
        StorageError: the disk is full, or the folder is not writable.
    """
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.touch(mode=0o600)
        yield beside
        beside.chmod(0o600)
        beside.replace(path)
    except (OSError, SafetensorError, ComputeError) as error:  # polars raises ComputeError if the disk is full
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise StorageError(
            f"{path}: cannot be written ({reason}); the previous version of the file is intact. Free some space, or "
            "make the folder writable, and start again (resume a training with --resume, or resume=True)"
        ) from None
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def take(path: Path, otherwise: str) -> FileLock:
    """Acquire an exclusive lock on ``path`` without waiting.

    The lock's ``release`` frees it. If the process dies, the operating system frees the lock.

    Raises:
        ConfigError: another process holds the lock; the message is ``otherwise``.
        StorageError: the folder is not writable.
    """
    lock = FileLock(path, thread_local=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(otherwise) from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror or error}); make "
                           "the folder writable") from None  # fmt: skip
    return lock


def sweep(folder: Path, names: Collection[str]) -> None:
    """Delete the incomplete (.part) versions of the files ``names`` that killed processes left in a folder.

    No process may be writing these files.
    """
    for left in folder.glob(f"*{PART}"):
        name, _, mark = left.stem.rpartition(".")
        if name in names and re.fullmatch("[0-9a-f]{8}", mark):
            with suppress(OSError):
                left.unlink()


FRAME_KINDS = (".parquet", ".csv")
FORMULA_START = r"^[=+\-@\t\r\n＝＋－＠]"
PLAIN_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


def write_frame(frame: pl.DataFrame, path: Path | str, *, raw_csv: bool = False) -> None:
    """Write a frame to a .csv or .parquet file atomically.

    A CSV is escaped (``escape``); a warning counts the escaped cells.  Parquet keeps every cell as it is.

    Args:
        frame: the rows.
        path: the file; its suffix selects the format.
        raw_csv: do not escape a CSV.

    Raises:
        ConfigError: the suffix is neither .csv nor .parquet.
        StorageError: the disk is full, or the folder is not writable.
    """
    path = user_path(path)
    kind = path.suffix.lower()
    if kind not in FRAME_KINDS:
        raise ConfigError(f"{path}: name a file that ends in {' or '.join(FRAME_KINDS)}")
    escaped = 0
    with writing(path) as beside:
        if kind == ".parquet":
            frame.write_parquet(beside)
        else:
            safe, escaped = (frame, 0) if raw_csv else escape_formulas(frame)
            safe.write_csv(beside)
    if escaped:
        remark(
            f"{path}: {escaped:,} {'cell begins' if escaped == 1 else 'cells begin'} like a formula and got a single "
            f"quote (') in front, so that a spreadsheet does not run it. Such an id no longer equals the table's own: "
            f"write a .parquet file to join, or keep the text with --raw-csv (raw_csv=True in Python)"
        )


def escape_formulas(frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Put a single quote before each text cell and column name that a spreadsheet would run as a formula.

    Returns:
        The escaped frame, and the number of escaped cells and column names. Numbers are unchanged.

    >>> frame, count = escape_formulas(pl.DataFrame({"id": ["=1+1", "-5", "c1"], "@x": [-1.0, 2.0, None]}))
    >>> frame.columns, frame["id"].to_list(), count
    (['id', "'@x"], ["'=1+1", '-5', 'c1'], 2)
    """
    count, columns = 0, []
    for column in frame.iter_columns():
        cells, name = column, column.name
        if column.dtype in (pl.String, pl.Categorical, pl.Enum):
            text = column.cast(pl.String)
            formulas = (text.str.contains(FORMULA_START) & ~text.str.contains(PLAIN_NUMBER)).fill_null(value=False)
            if formulas.any():
                cells, count = text.zip_with(~formulas, "'" + text), count + int(formulas.sum())
        if re.match(FORMULA_START, name) and not re.match(PLAIN_NUMBER, name):
            count += 1
            while (name := f"'{name}") in frame.columns:
                pass
        columns.append(cells.alias(name))
    return pl.DataFrame(columns), count
