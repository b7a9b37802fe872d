"""``sweep``: train one federation with many configurations of settings, which Optuna chooses and stores as trials.

A file describes the sweep:

    settings = "federation.toml"
    sampler = "grid"                  # grid, random or tpe
    [space]
    optimizer.lr = [0.001, 0.01]
    method.name = ["laser", "plug"]
    train.seed = [0, 1, 2]

Each configuration is an ordinary run in its own folder in the sweep's folder.  The name of a run's folder contains a
hash of the settings, so every shard finds the finished runs, also after a crash, and does not repeat them.  A shard is
one of several calls of ``sweep`` that each train a share of the configurations, for example on different machines. Each
shard stores its trials in an Optuna journal in the sweep's folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
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

from anyparty.api import runs
from anyparty.api.federation import Federation
from anyparty.artifacts.record import FILE, RunRecord
from anyparty.artifacts.run_folder import LOCK_HELD
from anyparty.config import Config, Settings, load
from anyparty.config.loader import changed
from anyparty.core.storage import take
from anyparty.errors import AnypartyError, ConfigError, ModelError, Stopped, nearest, needing
from anyparty.metrics import METRICS, headline
from anyparty.training.callbacks import Callback

WAIT_S = 60.0  # time to wait for a run's lock, which a worker of a killed sweep may hold until its last batch ends
PRUNED = "pruned by the median rule"


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


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """One configuration to train, in the form in which a worker process gets it.

    Attributes:
        folder: the folder of the run.
        config: the settings of the run.
        journal: the file of the Optuna journal.
        trial: the number of the trial in the journal.
        metric: the validation metric to report to Optuna.
        prune: whether Optuna may stop the run early.
        parent: the id of the sweep's process, whose end also stops the run.

    """

    folder: Path
    config: Config
    journal: Path
    trial: int
    metric: str
    prune: bool
    parent: int


@needing("tune", "anyparty sweep")
def sweep(
    file: Path | str, *, jobs: int = 1, shard: str = "1/1",
    if_done: Literal["skip", "repeat", "error"] = "skip", folder: Path | str | None = None,
) -> pl.DataFrame:  # fmt: skip
    """Train all configurations of a sweep that are not finished, and return a frame with one row for each run.

    Args:
        file: the file with the sweep's settings, which ``SweepSettings`` describes.
        jobs: number of parallel runs.
        shard: "1/4" trains the first of four shares of the configurations.  Each share can run on a machine of its own;
            all machines must have access to ``folder``.
        if_done: the reaction to a configuration with a finished run: "skip" it, "repeat" it, or end with an "error".
        folder: folder of the runs; by default ``file`` without its suffix.

    Returns:
        The columns of ``api.runs.frame``: status, settings, scores and costs of each run.

    Raises:
        ConfigError: a setting is unknown or out of range, a finished run exists and ``if_done`` is "error", or the same
            shard is running.
        TableError: a table cannot be read, or its ids, columns or labels cannot be used.
        AlignmentError: the tables share no ids.
        MissingExtra: Optuna is not installed.
    """
    import optuna  # noqa: F401, PLC0415 - an extra

    settings, space = load_sweep(file)
    part, parts = _shard(shard)
    root = Path(folder) if folder is not None else Path(file).with_suffix("")
    base = load(settings.settings)
    federation = Federation.from_config(base)
    metric, greater = headline(federation.task(federation.split(base.train)), base.train.metric)
    lock = take(root / f".lock-{part}-of-{parts}", f"{root}: shard {shard} of this sweep is running; wait for its end")
    try:
        trials = _Trials(root, settings, space, base, metric, greater=greater, part=part, parts=parts, if_done=if_done)
        parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs")
        with joblib.parallel_config(backend="loky", inner_max_num_threads=1 if jobs > 1 else None):
            for number, value, state in parallel(joblib.delayed(_attempt)(run) for run in trials):
                trials.tell(number, value, state)
    finally:
        lock.release()
    return runs.frame(root / "*")


def load_sweep(file: Path | str) -> tuple[SweepSettings, dict[str, NumberRange | Choices]]:
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


def _shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise ConfigError(f"--shard {text}: write it as 1/4, which is the first of four parts")
    return int(part), int(parts)


class _Trials:
    """An iterator over the runs that one shard of a sweep has to train, backed by an Optuna study."""

    def __init__(
        self, root: Path, settings: SweepSettings, space: Mapping[str, NumberRange | Choices], base: Config,
        metric: str, *, greater: bool, part: int, parts: int, if_done: str,
    ) -> None:  # fmt: skip
        import optuna  # noqa: PLC0415

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder, self.base, self.metric, self.greater = root, base, metric, greater
        self.prune, self.if_done, self.lock = settings.pruner == "median", if_done, threading.Lock()
        self.distributions = {key: _distribution(entry) for key, entry in space.items()}
        self.space = space
        self.journal = root / (f"trials-{part}-of-{parts}.journal" if settings.sampler != "tpe" else "trials.journal")
        self.study = optuna.create_study(
            storage=_storage(self.journal), study_name="sweep", load_if_exists=True,
            direction="maximize" if greater else "minimize",
            pruner=optuna.pruners.MedianPruner() if self.prune else optuna.pruners.NopPruner(),
        )  # fmt: skip
        drawn = len(self.study.trials)  # changes the sampler's seed, so that a continued sweep draws new numbers
        self.study.sampler = optuna.samplers.TPESampler(seed=settings.seed + 1000 * drawn + part)
        states = optuna.trial.TrialState
        for trial in self.study.get_trials(states=(states.RUNNING,)):  # trials that a killed process did not finish
            if trial.user_attrs.get("part", part) == part:
                key = trial.user_attrs.get("key")  # ``None`` if the process was killed before it stored the parameters
                again = {"part": part} | ({"key": key} if key else {})
                self.study.enqueue_trial(json.loads(key) if key else trial.params, user_attrs=again)
                self.study.tell(trial.number, state=states.FAIL)
        self.part, self.left = part, 0
        if settings.sampler == "tpe":
            ended = [trial for trial in self.study.trials if trial.user_attrs.get("part") == part]
            finished = [trial for trial in ended if trial.state in {states.COMPLETE, states.PRUNED}]
            self.left = max(0, _share(settings.trials or 0, part, parts) - len(finished))
        else:
            for each in _configurations(settings, space, self.distributions)[part - 1 :: parts]:
                waiting = [trial.user_attrs.get("key") for trial in self.study.trials]
                key = json.dumps(each, sort_keys=True)
                if key not in waiting:
                    self.study.enqueue_trial(each, user_attrs={"key": key, "part": part})
            self.left = len(self.study.get_trials(states=(states.WAITING,)))

    def __iter__(self) -> Iterator[SweepRun]:
        """Yield the run of each trial whose configuration is not finished.

        By default, the results of finished configurations are reported to Optuna. If ``if_done`` is "repeat", finished
        configurations are trained again; if it is "error", the first of them raises ConfigError.
        """
        while self.left > 0:
            self.left -= 1
            with self.lock:
                trial = self.study.ask(self.distributions)
                trial.set_user_attr("part", self.part)
            run = self._run(trial)
            if (done := _finished(run)) is None:
                yield run
            elif self.if_done == "error":
                raise ConfigError(f"{run.folder}: this configuration is finished; use if_done = 'skip' or 'repeat'")
            elif self.if_done == "repeat":
                _remove(run.folder)
                yield run
            else:
                self.tell(trial.number, *done)

    def tell(self, number: int, value: float | None, state: str) -> None:
        """Report the result of a trial to Optuna.

        Args:
            number: the number of the trial.
            value: the best validation score; ``None`` if the run has no score.
            state: "complete", "pruned" or "fail".

        """
        from optuna.trial import TrialState  # noqa: PLC0415

        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "fail": TrialState.FAIL}
        with self.lock:
            self.study.tell(number, value if state == "complete" else None, state=states[state])

    def _run(self, trial: Any) -> SweepRun:
        changes = {key: _value(entry, trial.params[key]) for key, entry in self.space.items()}
        config = changed(self.base, changes)
        resolved = config.model_dump(mode="json", exclude={"run", "track"})
        code = hashlib.sha256(json.dumps(resolved, sort_keys=True).encode()).hexdigest()[:8]
        readable = "-".join(f"{key.rpartition('.')[2]}={_word(value)}" for key, value in changes.items())
        name = "".join(c if c.isalnum() or c in "-_.=" else "-" for c in readable)[:80]
        return SweepRun(folder=self.folder / f"{name}-{code}", config=config, journal=self.journal, trial=trial.number,
                        metric=self.metric, prune=self.prune, parent=os.getpid())  # fmt: skip


def _share(trials: int, part: int, parts: int) -> int:
    return trials // parts + (part <= trials % parts)


def _configurations(
    settings: SweepSettings, space: Mapping[str, NumberRange | Choices], distributions: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return all configurations of a grid or random search as Optuna's parameters, the same in every process."""
    import optuna  # noqa: PLC0415

    if settings.sampler == "grid":
        each = [[_encoded(value) for value in entry.values] for entry in space.values() if isinstance(entry, Choices)]
        return [dict(zip(space, values, strict=True)) for values in product(*each)]
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=settings.seed))
    return [study.ask(dict(distributions)).params for _ in range(settings.trials or 0)]


def _distribution(entry: NumberRange | Choices) -> Any:
    from optuna import distributions  # noqa: PLC0415

    if isinstance(entry, Choices):
        return distributions.CategoricalDistribution([_encoded(value) for value in entry.values])
    if entry.whole:
        return distributions.IntDistribution(int(entry.low), int(entry.high), log=entry.log)
    return distributions.FloatDistribution(entry.low, entry.high, log=entry.log)


def _encoded(value: Any) -> Any:
    """Return a value in a form that Optuna can store: a list as JSON text, any other value unchanged."""
    return json.dumps(value) if isinstance(value, list | tuple) else value


def _value(entry: NumberRange | Choices, stored: Any) -> Any:
    if isinstance(entry, NumberRange):
        return stored
    return next(value for value in entry.values if _encoded(value) == stored)


def _word(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _storage(journal: Path) -> Any:
    from optuna.storages import JournalStorage  # noqa: PLC0415
    from optuna.storages.journal import JournalFileBackend  # noqa: PLC0415

    journal.parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(str(journal)))


Result = tuple[float | None, str]


def _finished(run: SweepRun) -> Result | None:
    """Return the best validation score and the state of a run that is finished or was pruned, else ``None``."""
    try:
        record = RunRecord.read(run.folder / FILE)
    except ModelError:
        return None
    if record.status == "done":
        values = [value for each in record.history if (value := each.validation.get(run.metric)) is not None]
        best = max if METRICS[run.metric].greater else min
        return (best(values), "complete") if values else (None, "fail")
    return (None, "pruned") if PRUNED in record.error else None


def _attempt(run: SweepRun) -> tuple[int, float | None, str]:
    """Train a run, or continue it from its last checkpoint; return the trial's number, the best score and the state."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            resume = (run.folder / FILE).exists() and (run.folder / "config.toml").exists()
            watch = _Watch(run)
            Federation.from_config(run.config).train(folder=run.folder, resume=resume, watch=watch)
        except ConfigError as error:  # a worker of a killed sweep may still have the lock
            if LOCK_HELD not in str(error) or time.monotonic() > end:
                return run.trial, None, "fail"
            time.sleep(0.5)
            if (done := _finished(run)) is not None:
                return run.trial, *done
            continue
        except AnypartyError:  # the run's record has the error
            pass
        return run.trial, *(_finished(run) or (None, "fail"))


def _remove(folder: Path) -> None:
    """Delete the folder of a finished run that will be repeated."""
    import shutil  # noqa: PLC0415

    shutil.rmtree(folder)


class _Watch(Callback):
    """A callback that stops a run if the sweep's process was killed, or if Optuna prunes the run."""

    def __init__(self, run: SweepRun) -> None:
        self.run, self.parent, self.epochs = run, os.getppid(), 0
        self.trial: Any = None
        self.worker = os.getpid() != run.parent

    def on_batch_end(self, rows: int, loss: float) -> None:  # noqa: ARG002
        """Stop the run if the sweep's process has ended, so that a continued sweep can take over the run."""
        if self.worker and os.getppid() != self.parent:
            raise Stopped("the process of the sweep has ended")

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Report the epoch's validation score to Optuna, and stop the run if Optuna prunes it."""
        self.epochs += 1
        value = record.get("validation", {}).get(self.run.metric)
        if not self.run.prune or value is None:
            return
        if self.trial is None:
            import optuna  # noqa: PLC0415

            study = optuna.load_study(study_name="sweep", storage=_storage(self.run.journal),
                                      pruner=optuna.pruners.MedianPruner())  # fmt: skip
            numbered = next(trial for trial in study.trials if trial.number == self.run.trial)
            self.trial = optuna.Trial(study, numbered._trial_id)  # noqa: SLF001 - Optuna has no public function for this
        self.trial.report(value, self.epochs)
        if self.trial.should_prune():
            raise Stopped(f"{PRUNED}, after {self.epochs} epochs")


@dataclass(frozen=True, kw_only=True)
class NumberRange:
    """A range of numbers from ``low`` to ``high``, both included, from which numbers are drawn uniformly.

    If both limits are whole, whole numbers are drawn.  With ``log``, the logarithm is drawn uniformly.
    """

    low: float
    high: float
    log: bool = False

    def draw(self, rng: np.random.Generator) -> float | int:
        """Draw a number of the range at random."""
        if self.log:
            drawn = float(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
            return round(drawn) if self.whole else drawn
        if self.whole:
            return int(rng.integers(int(self.low), int(self.high) + 1))
        return float(rng.uniform(self.low, self.high))

    @property
    def whole(self) -> bool:
        """True if both limits are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A list of values, from which each is drawn with the same probability."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw one of the values at random."""
        return self.values[int(rng.integers(len(self.values)))]


SearchSpace = Mapping[str, NumberRange | Choices]

TUNED: Mapping[str, Any] = {
    "optimizer.lr": {"low": 3e-4, "high": 3e-2, "log": True},
    "optimizer.weight_decay": [0.0, 1e-4, 1e-3],
    "train.batch_size": [32, 64, 128],
}
"""The search space of ``compare(tune=...)`` by default."""


def search_space(values: Mapping[str, Any]) -> dict[str, NumberRange | Choices]:
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


def _entry(key: str, value: Any) -> NumberRange | Choices:
    if "." not in key:
        raise ConfigError(f"space: {key!r} is not the name of a setting; write group.key, such as optimizer.lr")
    if isinstance(value, list | tuple) and value:
        return Choices(values=tuple(value))
    if not isinstance(value, Mapping):
        raise ConfigError(f"space: {key}: expected a list of values, or a table with low and high, got {value!r}")
    known = ("low", "high", "log")
    for name in value:
        if name not in known:
            raise ConfigError(f"space: {key}: there is no {name!r}{nearest(name, known)}")
    low, high = value.get("low"), value.get("high")
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (low, high))
    if not numbers or not cast("float", low) < cast("float", high) or (value.get("log") and cast("float", low) <= 0):
        raise ConfigError(f"space: {key}: expected two numbers low < high, above 0 if log is true, got {dict(value)!r}")
    return NumberRange(low=cast("float", low), high=cast("float", high), log=bool(value.get("log", False)))


def drawn(space: SearchSpace, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
    """Return ``n`` random configurations: each has one value for every setting of the space."""
    return [{key: entry.draw(rng) for key, entry in space.items()} for _ in range(n)]
