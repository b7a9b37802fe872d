"""Trackers: callbacks that write curves and scores to TensorBoard and MLflow.

    [track]
    tensorboard = true               # event files in RUN/tensorboard; show them: tensorboard --logdir runs
    mlflow = "http://localhost:5000" # a tracking server, or sqlite:///mlflow.db with the full package mlflow
    experiment = "credit"            # the name of the MLflow experiment

Both trackers need an extra: ``pip install "anyparty[track]"``.  If a tracker cannot be reached at the start, the run
ends with an error.  If a tracker fails later, a warning is shown, and the run continues without the tracker.
"""

from __future__ import annotations

import functools
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from anyparty.config import Config
from anyparty.core.storage import read_json, write_json
from anyparty.errors import ConfigError, ModelError, remark
from anyparty.training.callbacks import Callback, CallbackList

P = ParamSpec("P")
T = TypeVar("T", bound="Tracker")
TrackFunction = Callable[[dict[str, float]], object]
MOST_LETTERS = 500  # the largest number of characters of a parameter in MLflow
MOST_OF_A_CAUSE = 200  # the largest number of quoted characters of another package's error message
UNTRACKED = "To train without MLflow, remove mlflow from [track]"


def trackers(config: Config, folder: Path | None, *, resume: bool = False) -> list[Callback]:
    """Return the trackers that the group [track] of the settings enables.

    Args:
        config: the settings.
        folder: the run's folder; its name is the name of the MLflow run.
        resume: whether the run is resumed, so that it continues its earlier MLflow run.

    Raises:
        ConfigError: a tracker is not installed or cannot be reached, or TensorBoard has no folder.
    """
    settings, found = config.track, list[Callback]()
    if settings.tensorboard:
        if folder is None:
            raise ConfigError("track.tensorboard: event files go into the run's folder; name one, train(folder=...)")
        found.append(TensorBoard(folder / "tensorboard"))
    if settings.mlflow is not None:
        kept = None if folder is None else folder / "mlflow.json"
        found.append(
            MLflow(settings.mlflow, experiment=settings.experiment, name=folder.name if folder else config.method.name,
                   kept=kept, resume=resume)
        )  # fmt: skip
    return found


def requested(track: Any, config: Config) -> tuple[Config, CallbackList]:
    """Return the settings with the trackers that the argument ``track`` of ``train`` names, and those that it holds.

    Raises:
        ConfigError: a value is neither the name of a tracker nor a function.
    """
    named, found = dict[str, Any](), list[Callback]()
    for each in () if track is None else track if isinstance(track, list | tuple) else (track,):
        if each == "tensorboard":
            named["tensorboard"] = True
        elif each == "mlflow":
            named["mlflow"] = config.track.mlflow or "environment"
        elif isinstance(each, Callback):
            found.append(each)
        elif callable(each) and not isinstance(each, type):
            found.append(FunctionTracker(each))
        else:
            raise ConfigError(f'track: expected "tensorboard", "mlflow", a function of a dict, such as '
                              f"wandb.init().log, or a Callback, got {each!r}")  # fmt: skip
    if named:
        settings = type(config.track).of(config.track.model_dump() | named, "track")
        config = config.model_copy(update={"track": settings})
    return config, CallbackList(found)


class Tracker(Callback):
    """Base class of trackers: after an error, a tracker does nothing for the rest of the run."""

    failed = False


def forgiven(hook: Callable[Concatenate[T, P], None]) -> Callable[Concatenate[T, P], None]:
    """Decorate a tracker's hook: if the hook raises an error, issue a warning and disable the tracker."""

    @functools.wraps(hook)
    def wrapper(self: T, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.failed:
            return
        try:
            hook(self, *args, **kwargs)
        except Exception as error:
            self.failed = True
            remark(f"{type(self).__name__} failed, and tracking stopped for the rest of this run: {error}")

    return cast("Callable[Concatenate[T, P], None]", wrapper)


def numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the name and the value of each number in an epoch's record, such as loss, seconds and scores.

    >>> list(numbers({"stage": "train", "epoch": 2, "loss": 0.5, "seconds": 0.1, "validation": {"accuracy": 0.9}}))
    [('train/loss', 0.5), ('train/seconds', 0.1), ('train/validation/accuracy', 0.9)]
    """
    stage = record["stage"]
    for key, value in record.items():
        if key in {"training", "validation"}:
            yield from ((f"{stage}/{key}/{name}", float(score)) for name, score in value.items())
        elif key != "epoch" and isinstance(value, int | float):
            yield f"{stage}/{key}", float(value)


def scores(evaluation: Mapping[str, Any] | None) -> Iterator[tuple[str, float]]:
    """Yield the name and the value of each test score; a score that is ``None`` is left out.

    >>> list(scores({"overall": {"accuracy": 0.75, "auroc": None}}))
    [('test/accuracy', 0.75)]
    """
    for name, value in (evaluation or {}).get("overall", {}).items():
        if value is not None:
            yield f"test/{name}", float(value)


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the value of each setting in nested ``values``, as text.

    >>> dict(flat({"train": {"epochs": 5}, "method": {"name": "laser"}}))
    {'train.epochs': '5', 'method.name': 'laser'}
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


class FunctionTracker(Tracker):
    """A tracker that calls a user's function with a dict of numbers after every epoch, and at the end of the run."""

    def __init__(self, function: TrackFunction) -> None:
        self.function = function

    @forgiven
    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Pass on the number of the epoch, the loss, the duration and the scores."""
        self.function({"epoch": record["epoch"], **dict(numbers(record))})

    @forgiven
    def on_run_end(self, status: str, evaluation: Mapping[str, Any] | None, error: str) -> None:  # noqa: ARG002
        """Pass on the test scores, if there are any."""
        if found := dict(scores(evaluation)):
            self.function(found)


class TensorBoard(Tracker):
    """A tracker that writes a run's curves as TensorBoard event files.

    Raises:
        ConfigError: the package tensorboard is not installed, or the folder cannot be written to.
    """

    def __init__(self, folder: Path | str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - in the extra "track"
        except ImportError:
            raise ConfigError(_absent("tensorboard", "TensorBoard")) from None
        try:
            self.writer = SummaryWriter(str(folder))
        except OSError as error:
            raise ConfigError(f"track.tensorboard: {folder} cannot be written to ({error.strerror or error}). Make "
                              f"room, or take tensorboard out of [track]") from None  # fmt: skip
        self.epochs = 0

    @forgiven
    def on_run_begin(self, settings: Mapping[str, Any]) -> None:
        """Write the settings to TensorBoard as a table in Markdown."""
        rows = "\n".join(f"| {key} | {value} |" for key, value in flat(settings))
        self.writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}")

    @forgiven
    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Write the loss, the duration and the scores of an epoch, and flush them to the file."""
        self.epochs = record["epoch"]
        for name, value in numbers(record):
            self.writer.add_scalar(name, value, self.epochs)
        self.writer.flush()

    @forgiven
    def on_party_lost(self, party: str, why: str) -> None:
        """Write the name of a lost party and the reason."""
        self.writer.add_text("parties", f"{party} is gone: {why}", self.epochs)

    @forgiven
    def on_party_joined(self, party: str) -> None:
        """Write the name of a party that came back."""
        self.writer.add_text("parties", f"{party} takes part again", self.epochs)

    @forgiven
    def on_run_end(self, status: str, evaluation: Mapping[str, Any] | None, error: str) -> None:
        """Write the test scores and the final status of the run."""
        for name, value in scores(evaluation):
            self.writer.add_scalar(name, value, self.epochs)
        self.writer.add_text("status", f"{status} {error}".strip(), self.epochs)
        self.writer.close()


class MLflow(Tracker):
    """A tracker that writes a run's settings, curves and scores to MLflow.

    Args:
        uri: MLflow's tracking URI; "environment" uses the variable MLFLOW_TRACKING_URI.
        experiment: the name of the experiment; a missing experiment is created.
        name: the name of the run.
        kept: the file that stores the id of the MLflow run, so that a resumed run can continue it.
        resume: whether to continue the MLflow run whose id is in ``kept``.

    Raises:
        ConfigError: MLflow is not installed, ``uri`` needs the full package mlflow, or ``uri`` cannot be reached.
    """

    def __init__(
        self, uri: str, *, experiment: str = "anyparty", name: str = "", kept: Path | None = None, resume: bool = False
    ) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # the default of 7 retries takes minutes
        try:
            from mlflow.tracking import MlflowClient  # noqa: PLC0415 - in the extra "track"
        except ImportError:
            raise ConfigError(_absent("mlflow", "MLflow")) from None
        self.epochs, self.run = 0, ""
        try:
            self.client = MlflowClient(tracking_uri=None if uri == "environment" else uri)
            found = self.client.get_experiment_by_name(experiment)
            number = found.experiment_id if found else self.client.create_experiment(experiment)
            if resume and kept is not None:
                with suppress(ModelError):  # the file is missing if MLflow did not track the run before
                    self.run = str(read_json(kept)["run"])
            self.goes_on = bool(self.run)
            if self.goes_on:
                self.client.update_run(self.run, status="RUNNING")
            else:
                self.run = self.client.create_run(number, run_name=name or None).info.run_id
        except ModuleNotFoundError as error:
            raise ConfigError(f"track.mlflow: {uri!r} needs all of MLflow: pip install mlflow ({_first(error)}). "
                              f"{UNTRACKED}") from None  # fmt: skip
        except Exception as error:
            named = os.environ.get("MLFLOW_TRACKING_URI", "") if uri == "environment" else uri
            ask = "; is the server running there?" if named.startswith(("http://", "https://")) else "."
            raise ConfigError(f"track.mlflow: {uri!r} cannot be used ({_first(error)}){ask} {UNTRACKED}") from None
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_json(kept, {"uri": uri, "experiment": experiment, "run": self.run})

    @forgiven
    def on_run_begin(self, settings: Mapping[str, Any]) -> None:
        """Write the settings of a new run as parameters.

        A resumed run writes no parameters, because MLflow accepts each parameter only once.
        """
        for key, value in () if self.goes_on else flat(settings):
            self.client.log_param(self.run, key, value[:MOST_LETTERS])

    @forgiven
    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Write the loss, the duration and the scores of an epoch."""
        self.epochs = record["epoch"]
        for name, value in numbers(record):
            self.client.log_metric(self.run, name, value, step=self.epochs)

    @forgiven
    def on_party_lost(self, party: str, why: str) -> None:
        """Tag the MLflow run with the name of a lost party and the reason."""
        self.client.set_tag(self.run, f"party.{party}", f"gone since epoch {self.epochs + 1}: {why}")

    @forgiven
    def on_party_joined(self, party: str) -> None:
        """Tag the MLflow run with the name of a party that came back."""
        self.client.set_tag(self.run, f"party.{party}", f"takes part again after epoch {self.epochs + 1}")

    @forgiven
    def on_run_end(self, status: str, evaluation: Mapping[str, Any] | None, error: str) -> None:
        """Write the test scores and the final status of the run."""
        for name, value in scores(evaluation):
            self.client.log_metric(self.run, name, value, step=self.epochs)
        if error:
            self.client.set_tag(self.run, "error", error)
        ended = {"done": "FINISHED", "stopped": "KILLED"}.get(status, "FAILED")
        self.client.set_terminated(self.run, ended)


def _absent(package: str, what: str) -> str:
    return f"track.{package}: {what} is not installed: pip install 'anyparty[track]', or take it out of [track]"


def _first(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return textwrap.shorten(first, MOST_OF_A_CAUSE, placeholder=" ...")
