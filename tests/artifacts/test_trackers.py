"""Callbacks of a run, and the files that TensorBoard and MLflow write from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anyparty import config
from anyparty.api.federation import Federation
from anyparty.artifacts import trackers
from anyparty.core.storage import read_json
from anyparty.errors import ConfigError
from anyparty.training.callbacks import Callback, CallbackList


class RecordingCallback(Callback):
    """Records all callbacks; may raise an error in the second epoch."""

    def __init__(self, fails_with: BaseException | None = None) -> None:
        self.said: list[tuple] = []
        self.fails_with = fails_with

    def on_run_begin(self, settings):
        self.said.append(("begin", settings["train"]["epochs"]))

    def on_stage_begin(self, stage, epochs, rows, first_epoch):
        self.said.append(("stage", stage, first_epoch))

    def on_party_lost(self, party, why):
        self.said.append(("lost", party, why))

    def on_party_joined(self, party):
        self.said.append(("joined", party))

    def on_epoch_end(self, record):
        self.said.append(("epoch", record["epoch"]))
        if self.fails_with is not None and record["epoch"] == 2:
            raise self.fails_with

    def on_run_end(self, status, evaluation, error):
        self.said.append(("end", status, evaluation, error))


def train(work: Path, *changes: str, **how):
    settings = config.load(work / "credit.toml", changes)
    return Federation.from_config(settings).train(folder=work / "run", **how)


def test_a_callback_receives_all_events_of_a_run(work):
    hears = RecordingCallback()
    model = train(work, watch=hears)
    assert [each[:2] for each in hears.said[:-1]] == [
        ("begin", 3), ("stage", "train"), ("epoch", 1), ("epoch", 2), ("epoch", 3),
    ]  # fmt: skip
    end, status, evaluation, error = hears.said[-1]
    assert (end, status, error) == ("end", "done", "")
    record = read_json(work / "run" / "record.json")
    assert record["evaluation"] == evaluation == json.loads(json.dumps(model.evaluate().to_json()))
    assert (record["status"], record["error"]) == ("done", "")


def test_a_callback_receives_the_overlap_of_the_parties(work):
    class Aligned(Callback):
        def on_aligned(self, overlap, predicted):
            heard.append((overlap, predicted))

    heard: list[tuple] = []
    train(work, "train.epochs=1", watch=Aligned())
    federation = Federation.from_config(config.load(work / "credit.toml"))
    assert heard == [(federation.overlap, federation.predicted())]


@pytest.mark.parametrize(
    ("raised", "status", "error"),
    [(KeyboardInterrupt(), "stopped", ""), (ValueError("no rows left"), "failed", "ValueError: no rows left")],
)
def test_a_run_that_ends_early_records_its_status_and_error(work, raised, status, error):
    hears = RecordingCallback(raised)
    with pytest.raises(type(raised)):
        train(work, "train.checkpoint_every=1", watch=hears)
    assert hears.said[-1] == ("end", status, None, error)
    record = read_json(work / "run" / "record.json")
    assert (record["status"], record["error"]) == (status, error)
    assert record["ended"]
    assert "evaluation" not in record
    train(work, "train.checkpoint_every=1", resume=True)
    record = read_json(work / "run" / "record.json")
    assert (record["status"], record["error"]) == ("done", "")
    assert [epoch["epoch"] for epoch in record["history"]] == [1, 2, 3]
    assert record["evaluation"]["overall"]


def test_a_run_without_test_rows_reports_no_scores(work):
    hears = RecordingCallback()
    train(work, "train.test=0", watch=hears)
    assert hears.said[-1] == ("end", "done", None, "")
    assert "evaluation" not in read_json(work / "run" / "record.json")


def test_lost_and_rejoined_parties_are_reported_once():
    hears, also = RecordingCallback(), RecordingCallback()
    every = CallbackList([hears, CallbackList([also])])
    for epoch, more in enumerate([{"absent": {"shop": "cut off"}}, {"absent": {"shop": "cut off"}, "back": ["shop"]},
                                  {}, {"absent": {"shop": "cut off again"}}], start=1):  # fmt: skip
        every.on_epoch_end({"epoch": epoch, **more})
    assert hears.said == also.said
    assert hears.said == [
        ("lost", "shop", "cut off"), ("epoch", 1), ("joined", "shop"), ("epoch", 2), ("epoch", 3),
        ("lost", "shop", "cut off again"), ("epoch", 4),
    ]  # fmt: skip


def test_a_failed_tracker_receives_no_more_events(recwarn):
    class Breaks(trackers.Tracker):
        calls = 0

        @trackers.forgiven
        def on_epoch_end(self, record):
            self.calls += 1
            raise OSError("the disk is full")

    breaks = Breaks()
    with pytest.warns(
        UserWarning, match="Breaks failed, and tracking stopped for the rest of this run: the disk is full"
    ):
        breaks.on_epoch_end({})
    breaks.on_epoch_end({})
    assert breaks.calls == 1


def test_a_tracker_that_is_not_installed_is_reported(work, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(__import__("sys").modules, "mlflow.tracking", None)
    with pytest.raises(ConfigError, match=r"TensorBoard is not installed: pip install 'anyparty\[track\]'"):
        train(work, "track.tensorboard=true")
    assert read_json(work / "run" / "record.json")["status"] == "failed"
    with pytest.raises(ConfigError, match=r"MLflow is not installed: pip install 'anyparty\[track\]'"):
        train(work, "track.mlflow=here")


def test_tensorboard_needs_a_run_folder(work):
    with pytest.raises(ConfigError, match="name one, train"):
        trackers.trackers(config.load(work / "credit.toml", ["track.tensorboard=true"]), None)


def test_tensorboard_records_the_losses_of_all_epochs(work):
    pytest.importorskip("tensorboard", reason="the extra 'track' is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    train(work, "track.tensorboard=true")
    record = read_json(work / "run" / "record.json")
    events = EventAccumulator(str(work / "run" / "tensorboard"))
    events.Reload()
    assert [(each.step, pytest.approx(each.value)) for each in events.Scalars("train/loss")] == [
        (epoch["epoch"], epoch["loss"]) for epoch in record["history"]
    ]
    assert [each.value for each in events.Scalars("train/validation/accuracy")] == pytest.approx(
        [epoch["validation"]["accuracy"] for epoch in record["history"]]
    )
    assert [each.value for each in events.Scalars("train/training/accuracy")] == pytest.approx(
        [epoch["training"]["accuracy"] for epoch in record["history"]]
    )
    (score,) = events.Scalars("test/accuracy")
    assert score.value == pytest.approx(record["evaluation"]["overall"]["accuracy"])
    assert {"settings/text_summary", "status/text_summary"} <= set(events.Tags()["tensors"])


@pytest.fixture
def mlflow():
    return pytest.importorskip("mlflow.tracking", reason="the extra 'track' is not installed")


@pytest.mark.filterwarnings("ignore")  # MLflow's own warnings
def test_mlflow_records_an_interrupted_and_resumed_run(work, mlflow, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (work / "mlruns").as_uri()
    asked = (f"track.mlflow={uri}", "track.experiment=credit", "train.checkpoint_every=1")
    with pytest.raises(KeyboardInterrupt):
        train(work, *asked, watch=RecordingCallback(KeyboardInterrupt()))
    kept = read_json(work / "run" / "mlflow.json")
    client = mlflow.MlflowClient(tracking_uri=uri)
    assert client.get_run(kept["run"]).info.status == "KILLED"
    train(work, *asked, resume=True)
    run, record = client.get_run(kept["run"]), read_json(work / "run" / "record.json")
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert run.data.params["method.name"] == "laser"
    losses = {each.step: each.value for each in client.get_metric_history(kept["run"], "train/loss")}
    assert losses == {epoch["epoch"]: pytest.approx(epoch["loss"]) for epoch in record["history"]}
    scores = {each.step: each.value for each in client.get_metric_history(kept["run"], "train/training/accuracy")}
    assert scores == {epoch["epoch"]: pytest.approx(epoch["training"]["accuracy"]) for epoch in record["history"]}
    assert run.data.metrics["test/accuracy"] == pytest.approx(record["evaluation"]["overall"]["accuracy"])
    experiment = client.get_experiment_by_name("credit")
    assert [each.info.run_id for each in client.search_runs([experiment.experiment_id])] == [kept["run"]]


@pytest.mark.filterwarnings("ignore")
def test_a_tracking_address_with_a_password_is_refused_and_not_shown(work, call):
    shown = call("train", "credit.toml", "--set", "track.mlflow=http://bob:hunter2@localhost:9")
    assert shown.exit_code == 2
    assert "MLFLOW_TRACKING_PASSWORD" in shown.stderr
    assert "hunter2" not in shown.output + shown.stderr


def test_an_unreachable_mlflow_server_is_reported(work, mlflow):
    with pytest.raises(ConfigError, match=r"track.mlflow: 'http://127.0.0.1:9' cannot be used .* server running"):
        train(work, "track.mlflow=http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("error", "said", "uri", "server"),
    [
        (ModuleNotFoundError("No module named 'alembic'", name="alembic"),
         "needs all of MLflow: pip install mlflow (No module named 'alembic'). To train without MLflow, remove",
         "https://h:1", True),
        (OSError("the disk is full\nat page 3"), "cannot be used (the disk is full). To train without",
         "sqlite:///mlflow.db", False),
        (OSError("the disk is full"), "cannot be used (the disk is full). To train without", "https://h:1", True),
        (OSError("a cause as long as can be, " * 20), "cannot be used (a cause as long as can be, a ",
         "environment", True),
    ],
)  # fmt: skip
def test_an_unusable_mlflow_causes_an_error_with_the_remedy(work, mlflow, monkeypatch, error, said, uri, server):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(mlflow, "MlflowClient", fails)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://h:1")
    with pytest.raises(ConfigError) as caught:
        train(work, f"track.mlflow={uri}")
    asks = server and isinstance(error, OSError)
    assert ("server running" in str(caught.value)) == asks
    said = said.replace("). T", "); is the server running there? T") if asks else said
    assert f"track.mlflow: {uri!r} {said}" in str(caught.value)
    assert "pip install" in said or len(str(caught.value)) < 400
    if "long" in said:
        assert " ...)" in str(caught.value)
        assert set(str(caught.value).partition("(")[2].partition(" ...")[0].split()) <= set(str(error).split())
