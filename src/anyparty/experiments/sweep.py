"""``sweep``: train one federation with many configurations of settings, which Optuna chooses and stores as trials.

A file describes the sweep:

    settings = "federation.toml"
    sampler = "grid"                  # grid, random or tpe
    [space]
    optimizer.lr = [0.001, 0.01]
    method.name = ["laser", "plug"]
    train.seed = [0, 1, 2]

Each configuration is an ordinary run in its own folder in the sweep's folder. The name of a run's folder contains a
hash of the settings. An Optuna journal in the sweep's folder has a trial for each configuration. Processes, also on
several machines, share a sweep through this journal: each takes the next waiting trial. A trial that a killed process
left open is enqueued again, and its run continues from the last checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, cast

import joblib
import numpy as np
import polars as pl
from filelock import FileLock
from pydantic import model_validator

from anyparty.api import runs
from anyparty.api.federation import Federation
from anyparty.artifacts import run_folder
from anyparty.artifacts.record import FILE, RunRecord
from anyparty.config import Config, Settings, load
from anyparty.config.loader import changed
from anyparty.errors import AnypartyError, ConfigError, ModelError, RunError, Stopped, needing
from anyparty.metrics import METRICS, headline
from anyparty.training.callbacks import Callback

PRUNED = "pruned by the median rule"
CONFIGURATION, ERROR = "configuration", "error"  # attributes of a trial: its number in the sweep, why its run failed


class SweepSettings(Settings):
    """The settings of a sweep.

    Attributes:
        settings: the federation's settings file, relative to the sweep's file.
        sampler: "grid" tries all combinations, "random" draws them, "tpe" is Optuna's tree-structured Parzen estimator.
        trials: number of configurations that "random" and "tpe" try.
        seed: seed of the sampler.
        pruner: "median" stops a run whose validation score is worse than the median of earlier runs at the same epoch.
        space: for each setting, its values or its range, as ``search_space`` reads them.
    """

    settings: Path
    sampler: Literal["grid", "random", "tpe"] = "grid"
    trials: int | None = None
    seed: int = 0
    pruner: Literal["none", "median"] = "none"
    space: dict[str, Any]


@needing("tune", "anyparty sweep")
def sweep(
    file: Path | str, *, jobs: int = 1, if_done: Literal["skip", "repeat", "error"] = "skip",
    folder: Path | str | None = None,
) -> pl.DataFrame:  # fmt: skip
    """Train all configurations of a sweep that are not finished, and return a frame with one row for each run.

    The same call in another process, or on another machine that sees ``folder``, shares the work.

    Args:
        file: the file with the sweep's settings, which ``SweepSettings`` describes.
        jobs: number of parallel runs.
        if_done: the reaction to a configuration with a finished run: "skip" it, "repeat" it, or end with an "error".
        folder: folder of the runs; by default ``file`` without its suffix.

    Returns:
        The columns of ``api.runs.frame``: status, settings, scores and costs of each run.

    Raises:
        ConfigError: a setting is unknown or out of range, the folder has a sweep with other settings, or a finished run
            exists and ``if_done`` is "error".
        TableError: a table cannot be read, or its ids, columns or labels cannot be used.
        AlignmentError: the tables share no ids.
        MissingExtra: Optuna is not installed.
    """
    import optuna  # noqa: F401, PLC0415 - an extra

    settings, space = load_sweep(file)
    root = Path(folder) if folder is not None else Path(file).with_suffix("")
    base = load(settings.settings)
    federation = Federation.from_config(base)
    metric, _ = headline(federation.task(federation.split(base.train)), base.train.metric)
    plan = SweepPlan(folder=root, settings=settings, space=space, base=base, metric=metric)
    plan.enqueue(if_done)
    with joblib.parallel_config(backend="loky", inner_max_num_threads=1 if jobs > 1 else None):
        joblib.Parallel(n_jobs=jobs)(joblib.delayed(plan.train_waiting)(os.getpid()) for _ in range(jobs))
    return runs.frame(root / "*")


def load_sweep(file: Path | str) -> tuple[SweepSettings, dict[str, NumberRange | tuple[Any, ...]]]:
    """Return the settings and the search space of a sweep, read from its file.

    Raises:
        ConfigError: the file does not exist or is not TOML, or a setting is unknown or out of range.
    """
    path = Path(file)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: this is not TOML: {error}") from None
    settings: SweepSettings = SweepSettings.of(values, str(path))
    space = search_space(dict(_flat(settings.space)))
    if settings.sampler == "grid" and any(isinstance(entry, NumberRange) for entry in space.values()):
        key = next(key for key, entry in space.items() if isinstance(entry, NumberRange))
        raise ConfigError(
            f"{path}: a grid needs a list of values for {key}; for a range use sampler = 'random' or 'tpe'"
        )
    if (settings.trials is None) != (settings.sampler == "grid"):
        raise ConfigError(f"{path}: trials is the number of configurations of the samplers random and tpe: "
                          f"{'leave it out for a grid' if settings.sampler == 'grid' else 'set it'}")  # fmt: skip
    if settings.trials is not None and settings.trials < 1:
        raise ConfigError(f"{path}: trials must be at least 1, got {settings.trials}")
    return settings.model_copy(update={"settings": path.parent / settings.settings}), space


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and value of each entry in nested tables; a table with the key ``low`` is a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and "low" not in value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """A sweep in the form in which a worker process gets it.

    Attributes:
        folder: the folder of the journal and of the runs.
        settings: the settings of the sweep.
        space: the values or the range of each setting.
        base: the federation's settings, which each configuration changes.
        metric: the validation metric that chooses and prunes.
    """

    folder: Path
    settings: SweepSettings
    space: SearchSpace
    base: Config
    metric: str

    def open_study(self) -> tuple[Any, FileLock]:
        """Return the sweep's Optuna study and the lock of its journal.

        The operating system frees the lock at once if the process is killed. Optuna's own lock would stay for 30 s.

        Raises:
            ConfigError: the study in the folder belongs to a sweep with other settings.
        """
        import optuna  # noqa: PLC0415 - an extra
        from optuna.storages.journal import JournalFileBackend  # noqa: PLC0415

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.folder.mkdir(parents=True, exist_ok=True)
        journal = self.folder.resolve() / "study.journal"
        lock = FileLock(f"{journal}.lock", thread_local=False)
        with lock:
            if journal.exists() and not (written := journal.read_bytes()).endswith(b"\n"):
                os.truncate(journal, written.rfind(b"\n") + 1)  # a killed process wrote a part of a line
            study = optuna.create_study(
                storage=optuna.storages.JournalStorage(JournalFileBackend(str(journal), lock_obj=lock)),
                study_name="sweep", load_if_exists=True,
                direction="maximize" if METRICS[self.metric].greater else "minimize",
                pruner=optuna.pruners.MedianPruner() if self._can_prune else optuna.pruners.NopPruner(),
            )  # fmt: skip
            asked = self.settings.model_dump(mode="json", exclude={"settings", "trials", "pruner"})
            asked |= {"federation": self.base.model_dump(mode="json", exclude={"run", "track"})}
            earlier = study.user_attrs.get("settings", asked)
            for key in asked:
                if earlier[key] != asked[key]:
                    what = self.settings.settings if key == "federation" else f"the sweep's {key}"
                    raise ConfigError(f"{self.folder}: {what} changed since this sweep began; name another folder for "
                                      "the changed sweep (--folder), or restore the settings to continue")  # fmt: skip
            if "settings" not in study.user_attrs:
                study.set_user_attr("settings", asked)
        return study, lock

    @property
    def _can_prune(self) -> bool:
        return self.settings.pruner == "median"

    def configurations(self) -> list[dict[str, Any]]:
        """Return the parameters of all trials, the same in every process; with TPE, they are empty until drawn."""
        import optuna  # noqa: PLC0415

        if self.settings.sampler == "grid":
            each = [[_encoded(value) for value in cast("tuple[Any, ...]", entry)] for entry in self.space.values()]
            return [dict(zip(self.space, values, strict=True)) for values in product(*each)]
        if self.settings.sampler == "tpe":
            return [{} for _ in range(self.settings.trials or 0)]
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=self.settings.seed))
        return [self._parameters(study.ask()) for _ in range(self.settings.trials or 0)]

    def enqueue(self, if_done: Literal["skip", "repeat", "error"]) -> None:
        """Enqueue a trial for each configuration without one, or whose trial a stopped process left open.

        Raises:
            ConfigError: the settings changed; a configuration is finished, and ``if_done`` is "error"; or another
                process trains a configuration, and ``if_done`` is "repeat".
        """
        study, lock = self.open_study()
        with lock:
            latest = {trial.user_attrs[CONFIGURATION]: trial for trial in study.get_trials(deepcopy=False)
                      if CONFIGURATION in trial.user_attrs}  # fmt: skip
            for number, given in enumerate(self.configurations()):
                trial = latest.get(number)
                parameters = given or (trial.params if trial else {})
                folder = self._run(parameters)[0] if parameters.keys() == self.space.keys() else None
                if folder is not None and if_done != "skip":
                    if if_done == "repeat" and _is_locked(folder):
                        raise ConfigError(f"{folder}: another process trains this configuration; wait for its end")
                    if _result(folder, self.metric) is not None:
                        if if_done == "error":
                            raise ConfigError(f"{folder}: this configuration is finished; use if_done = 'skip' or "
                                              "'repeat'")  # fmt: skip
                        shutil.rmtree(folder)
                        trial = None
                if trial is None or _is_abandoned(trial, folder):
                    study.enqueue_trial(parameters, user_attrs={CONFIGURATION: number})

    def train_waiting(self, parent: int) -> None:
        """Train the waiting trials one after the other, until none is left; ``parent`` is the sweep's process."""
        from optuna.trial import TrialState  # noqa: PLC0415 - an extra

        study, lock = self.open_study()
        while study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            study.optimize(lambda trial: self._train(trial, study, lock, parent), n_trials=1, catch=(AnypartyError,))

    def _train(self, trial: Any, study: Any, lock: FileLock, parent: int) -> float:
        """Train a trial's run, or continue it from its last checkpoint; return the best validation score.

        Raises:
            AnypartyError: the run failed, or another process has taken the trial's configuration.
            TrialPruned: Optuna stopped the run.
        """
        from optuna import TrialPruned  # noqa: PLC0415
        from optuna.samplers import TPESampler  # noqa: PLC0415

        with lock:  # ``enqueue`` in another process sees the trial with all of its parameters or with none
            number = trial.user_attrs.get(CONFIGURATION)
            taken = [other.number for other in study.get_trials(deepcopy=False)
                     if other.user_attrs.get(CONFIGURATION) == number]  # fmt: skip
            if number is None or max(taken) > trial.number:
                raise RunError("another process has taken this configuration")
            # A seed for each configuration: a continued sweep draws as one that was not stopped, and no two processes
            # draw the same numbers.
            seed = np.random.SeedSequence([self.settings.seed, number]).generate_state(1)
            study.sampler = TPESampler(seed=int(seed[0]))
            folder, config = self._run(self._parameters(trial))
        watch = SweepCallback(trial if self._can_prune else None, self.metric, parent)
        while (result := _result(folder, self.metric)) is None:
            try:
                resume = (folder / FILE).exists() and (folder / "config.toml").exists()
                Federation.from_config(config).train(folder=folder, resume=resume, watch=watch)
            except AnypartyError as error:
                if watch.is_orphan:
                    os._exit(1)  # the trial stays open, so that a continued sweep enqueues it again
                if run_folder.LOCK_HELD in str(error):  # another process trains it, or ends after its last batch
                    time.sleep(0.5)
                elif _result(folder, self.metric) is None:
                    trial.set_user_attr(ERROR, str(error))
                    raise
        if result == PRUNED:
            raise TrialPruned
        if math.isnan(score := float(result)):
            trial.set_user_attr(ERROR, "no score")
            raise RunError(f"{folder}: no epoch has a validation score")
        return score

    def _parameters(self, trial: Any) -> dict[str, Any]:
        """Return Optuna's parameters of a trial, which Optuna draws unless they are given."""
        for key, entry in self.space.items():
            if isinstance(entry, tuple):
                trial.suggest_categorical(key, [_encoded(value) for value in entry])
            elif entry.is_whole:
                trial.suggest_int(key, int(entry.low), int(entry.high), log=entry.log)
            else:
                trial.suggest_float(key, entry.low, entry.high, log=entry.log)
        return dict(trial.params)

    def _run(self, parameters: Mapping[str, Any]) -> tuple[Path, Config]:
        """Return the folder and the settings of the run with Optuna's parameters."""
        changes = {key: parameters[key] if isinstance(entry, NumberRange) else
                   next(value for value in entry if _encoded(value) == parameters[key])
                   for key, entry in self.space.items()}  # fmt: skip
        config = changed(self.base, changes)
        resolved = config.model_dump(mode="json", exclude={"run", "track"})
        code = hashlib.sha256(json.dumps(resolved, sort_keys=True).encode()).hexdigest()[:8]
        readable = "-".join(f"{key.rpartition('.')[2]}={f'{value:.3g}' if isinstance(value, float) else value}"
                            for key, value in changes.items())  # fmt: skip
        name = "".join(c if c.isalnum() or c in "-_.=" else "-" for c in readable)[:80]
        return self.folder / f"{name}-{code}", config


def _is_abandoned(trial: Any, folder: Path | None) -> bool:
    """Return True if a stopped process left a trial open: it has no score, no error and no process that trains it."""
    if trial.state.name == "RUNNING":
        return folder is None or not _is_locked(folder)
    return trial.state.name == "FAIL" and ERROR not in trial.user_attrs


def _is_locked(folder: Path) -> bool:
    """Return True if a process trains in the folder of a run."""
    if not folder.exists():
        return False
    try:
        run_folder.take(folder).release()
    except ConfigError:
        return True
    return False


def _result(folder: Path, metric: str) -> float | str | None:
    """Return the best validation score of a finished run, ``PRUNED``, or ``None`` if the run has not ended.

    The score is NaN if the run has none.
    """
    try:
        record = RunRecord.read(folder / FILE)
    except ModelError:
        return None
    if record.status != "done":
        return PRUNED if PRUNED in record.error else None
    values = [value for each in record.history if (value := each.validation.get(metric)) is not None]
    return (max if METRICS[metric].greater else min)(values, default=math.nan)


def _encoded(value: Any) -> Any:
    """Return a value in a form that Optuna can store: a list as JSON text, any other value unchanged."""
    return json.dumps(value) if isinstance(value, list | tuple) else value


class SweepCallback(Callback):
    """A callback that stops a run if the sweep's process was killed, or if Optuna prunes the run.

    ``trial`` is the trial of the run, or ``None`` if runs are not pruned.
    """

    def __init__(self, trial: Any, metric: str, parent: int) -> None:
        self.trial, self.metric, self.epochs = trial, metric, 0
        self.parent = None if os.getpid() == parent else os.getppid()

    @property
    def is_orphan(self) -> bool:
        """True if this process is a worker, and the process of the sweep has ended."""
        return self.parent is not None and os.getppid() != self.parent

    def on_batch_end(self, rows: int, loss: float) -> None:  # noqa: ARG002
        """Stop the run if the sweep's process has ended, so that a continued sweep can take over the run."""
        if self.is_orphan:
            raise Stopped("the process of the sweep has ended")

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Report the epoch's validation score to Optuna, and stop the run if Optuna prunes it."""
        self.epochs += 1
        value = record.get("validation", {}).get(self.metric)
        if self.trial is not None and value is not None:
            self.trial.report(value, self.epochs)
            if self.trial.should_prune():
                raise Stopped(f"{PRUNED}, after {self.epochs} epochs")


class NumberRange(Settings):
    """A range of numbers from ``low`` to ``high``, both included, from which numbers are drawn uniformly.

    If both limits are whole, whole numbers are drawn.  With ``log``, the logarithm is drawn uniformly.
    """

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _check_limits(self) -> NumberRange:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"expected low < high, above 0 if log is true, got {self.low} and {self.high}")
        return self

    def draw(self, rng: np.random.Generator) -> float | int:
        """Draw a number of the range at random."""
        if self.log:
            number = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
            return round(number) if self.is_whole else number
        return (
            int(rng.integers(int(self.low), int(self.high) + 1)) if self.is_whole else rng.uniform(self.low, self.high)
        )

    @property
    def is_whole(self) -> bool:
        """True if both limits are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


SearchSpace = Mapping[str, NumberRange | tuple[Any, ...]]
"""For each setting, its range, or its choices, which have equal probabilities."""

TUNED: Mapping[str, Any] = {
    "optimizer.lr": {"low": 3e-4, "high": 3e-2, "log": True},
    "optimizer.weight_decay": [0.0, 1e-4, 1e-3],
    "train.batch_size": [32, 64, 128],
}
"""The search space of ``compare(tune=...)`` by default."""


def search_space(values: Mapping[str, Any]) -> dict[str, NumberRange | tuple[Any, ...]]:
    """Return the search space that settings describe.

    Args:
        values: for each setting, a list of choices, or a table with "low", "high" and optionally "log".

    Raises:
        ConfigError: the space is empty, or an entry is neither a list of choices nor such a table.
    """
    if not isinstance(values, Mapping) or not values:
        raise ConfigError('space: expected settings with choices or ranges, such as {"optimizer.lr": [0.001, 0.01]}, '
                          f"got {values!r}")  # fmt: skip
    return {key: _entry(key, value) for key, value in values.items()}


def _entry(key: str, value: Any) -> NumberRange | tuple[Any, ...]:
    if "." not in key:
        raise ConfigError(f"space: {key!r} is not the name of a setting; write group.key, such as optimizer.lr")
    if isinstance(value, list | tuple) and value:
        return tuple(value)
    if not isinstance(value, Mapping):
        raise ConfigError(f"space: {key}: expected a list of values, or a table with low and high, got {value!r}")
    found: NumberRange = NumberRange.of(value, f"space: {key}")
    return found


def draw_configurations(space: SearchSpace, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
    """Return ``n`` random configurations: each has one value for every setting of the space."""
    return [{key: entry.draw(rng) if isinstance(entry, NumberRange) else entry[int(rng.integers(len(entry)))]
             for key, entry in space.items()} for _ in range(n)]  # fmt: skip
