"""Collect many runs in one data frame, with their settings and scores."""

from __future__ import annotations

import glob
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import polars as pl

from anyparty.artifacts.record import FILE, RunRecord
from anyparty.core.declared_types import checked
from anyparty.errors import ConfigError, ModelError
from anyparty.metrics import METRICS

ALWAYS = ("method.name", "train.seed")


@checked()
def frame(
    paths: Path | str | Iterable[Path | str], *, settings: Literal["differing", "all"] = "differing"
) -> pl.DataFrame:
    """Return a frame with one row for each run: its status, settings, scores and costs.

    Args:
        paths: a pattern such as ``"sweep/*"``, or the runs' folders.  Folders without a record are left out.
        settings: the settings that become columns: "differing" for the method, the seed and all settings in which the
            runs differ; "all" for all settings.

    Returns:
        The columns run, status, error, epochs, best_epoch (from 1; 0 if none was chosen) and seconds of training; one
        column for each setting, such as ``train.seed``; the best validation scores, such as ``validation.log_loss``;
        the test scores, such as ``test.accuracy``; and bytes_sent by all parties in training.

    Raises:
        ConfigError: no folder has the record of a run.
        ModelError: a record is damaged.
    """
    folders = sorted(map(Path, glob.glob(str(paths)) if isinstance(paths, str | Path) else paths))  # noqa: PTH207
    found = [(folder, RunRecord.read(folder / FILE)) for folder in folders if (folder / FILE).is_file()]
    if not found:
        raise ConfigError(f"{paths}: there is no folder of a run; name them as in frame('sweep/*')")
    each = [dict(_flat(_settings(folder, record))) for folder, record in found]
    keys = dict.fromkeys(key for values in each for key in values)
    differing = [key for key in keys if len({repr(values.get(key)) for values in each}) > 1]
    chosen = list(keys) if settings == "all" else [*ALWAYS, *(key for key in differing if key not in ALWAYS)]
    rows = [
        {**_about(folder, record), **{key: values.get(key) for key in chosen}, **_scores(record)}
        for (folder, record), values in zip(found, each, strict=True)
    ]
    return pl.DataFrame(rows, infer_schema_length=None, strict=False)


def _settings(folder: Path, record: RunRecord) -> dict[str, Any]:
    if record.settings:
        return tomllib.loads(record.settings)
    try:
        return tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}: its settings cannot be read: {error}") from None


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value) if isinstance(value, list) else value


def _about(folder: Path, record: RunRecord) -> dict[str, Any]:
    seconds = sum(entry.seconds or 0.0 for entry in record.history)
    return {"run": folder.name, "status": record.status, "error": record.error or None, "epochs": len(record.history),
            "best_epoch": record.best_epoch, "seconds": seconds}  # fmt: skip


def _scores(record: RunRecord) -> dict[str, Any]:
    scores: dict[str, Any] = {}
    for name in dict.fromkeys(name for entry in record.history for name in entry.validation):
        values = [value for entry in record.history if (value := entry.validation.get(name)) is not None]
        best = max if name in METRICS and METRICS[name].greater else min
        scores[f"validation.{name}"] = best(values) if values else None
    if record.evaluation is not None:
        scores |= {f"test.{name}": value for name, value in record.evaluation.overall.items()}
    return scores | {"bytes_sent": sum(entry.bytes_sent for entry in record.ledger)}
