"""The coordinator follows a federation's run by its growing record."""

import math
from concurrent.futures import Future

import numpy as np
import pytest

from anyparty.alignment.overlap import Overlap
from anyparty.artifacts.trackers import numbers
from anyparty.core.storage import write_json
from anyparty.deployment.coordinator import _Reported, follow
from anyparty.training.callbacks import Absences, Bar, Callback, CallbackList


class RecordingCallback(Callback):
    def __init__(self):
        self.said = []

    def on_aligned(self, overlap, predicted):
        self.said.append((overlap, predicted))

    def on_stage_begin(self, stage, epochs, rows, first_epoch):
        self.said.append(("begin", stage, epochs, rows, first_epoch))

    def on_epoch_end(self, record):
        self.said.append(record["epoch"])

    def on_stage_end(self, stage, reason):
        self.said.append(("end", stage, reason))


class NumberCollector(Callback):
    """Collects numbers as a tracker does."""

    def __init__(self):
        self.numbers = []

    def on_epoch_end(self, record):
        self.numbers += numbers(record)


def epochs(stage, *numbers):
    return [{"stage": stage, "epoch": number, "loss": 0.5} for number in numbers]


def stages(**lengths):
    return {stage: {"epochs": length, "rows": 10, "first_epoch": 0} for stage, length in lengths.items()}


def followed_events(path, job="now"):
    heard, ended = RecordingCallback(), Future()
    ended.set_result("FINISHED")
    follow(path, job, ended, heard)
    return heard.said


def test_every_epoch_is_reported_once(tmp_path):
    path = tmp_path / "record.json"
    history = epochs("pretrain", 1, 2) + epochs("train", 1)
    write_json(path, {"job": "now", "status": "done", "stages": stages(pretrain=2, train=3), "history": history})
    assert followed_events(path) == [
        ("begin", "pretrain", 2, 10, 0), 1, 2, ("end", "pretrain", "all epochs done"),
        ("begin", "train", 3, 10, 0), 1, ("end", "train", "done"),
    ]  # fmt: skip


@pytest.mark.parametrize(("status", "said"), [("failed", "failed"), ("stopped", "stopped"), ("running", "cut off")])
def test_an_unfinished_stage_ends_with_the_status_of_the_run(tmp_path, status, said):
    path = tmp_path / "record.json"
    write_json(path, {"job": "now", "status": status, "stages": stages(train=3), "history": epochs("train", 1)})
    assert followed_events(path)[-1] == ("end", "train", said)


def test_an_epoch_reported_twice_counts_once_as_an_absence():
    absences = Absences()
    for epoch, absent in ((1, {}), (2, {"shop": "left"}), (3, {"shop": "left"}), (2, {}), (3, {"shop": "left"})):
        absences.on_epoch_end({"stage": "train", "epoch": epoch, "loss": 0.5, "absent": absent})
    assert absences.count() == {"shop": 1}
    assert len(absences.epochs) == 3


def test_a_stage_is_reported_before_its_first_epoch_ends(tmp_path):
    path = tmp_path / "record.json"
    write_json(path, {"job": "now", "stages": stages(pretrain=2), "history": []})
    assert followed_events(path)[0] == ("begin", "pretrain", 2, 10, 0)


def test_the_overlap_is_reported_first(tmp_path):
    path, observed = tmp_path / "record.json", np.array([[True, True], [True, False]])
    overlap = Overlap.count(observed, ["a", "b"], np.array([True, False]), ["look here"])
    write_json(path, {"job": "now", "overlap": overlap.to_json(), "predicted": "task: none"})
    assert followed_events(path) == [(overlap, "task: none")]


def test_a_resumed_run_reports_its_first_epoch(tmp_path):
    path = tmp_path / "record.json"
    write_json(path, {"job": "now", "stages": stages(train=7), "history": epochs("train", 5, 6)})
    assert followed_events(path)[0] == ("begin", "train", 7, 10, 4)


def test_a_missing_record_and_that_of_another_run_report_nothing(tmp_path):
    assert followed_events(tmp_path / "record.json") == []
    write_json(tmp_path / "record.json", {"job": "before", "history": epochs("train", 1)})
    assert followed_events(tmp_path / "record.json") == []


def test_a_run_that_resumes_from_an_earlier_epoch_is_followed_from_there():
    heard = _Reported(RecordingCallback())
    heard.report({"stages": stages(train=9), "history": epochs("train", 1, 2, 3, 4, 5)})
    heard.report({"stages": {"train": {"epochs": 9, "rows": 10, "first_epoch": 2}}, "history": epochs("train", 1, 2)})
    heard.report(
        {"stages": {"train": {"epochs": 9, "rows": 10, "first_epoch": 2}}, "history": epochs("train", 1, 2, 3)}
    )
    assert heard.watch.said[-2:] == [("begin", "train", 9, 10, 2), 3]


def test_epochs_repeated_between_two_reads_are_reported_again():
    """A resumed, quick training may pass its former last epoch between two reads of the record."""
    former = [{**each, "absent": {"shop": "it left"} if each["epoch"] > 2 else {}} for each in epochs("train", 1, 2, 3)]
    heard = _Reported(absences := Absences())
    heard.report({"stages": stages(train=4), "history": former})
    assert absences.count() == {"shop": 1}
    heard.report({"stages": stages(train=4), "history": [*former[:2], *epochs("train", 3, 4)]})
    assert absences.count() == {}
    assert len(absences.epochs) == 4


class MembershipCallback(Callback):
    """Records the parties that left and rejoined."""

    def __init__(self):
        self.said = []

    def on_party_lost(self, party, why):
        self.said.append(f"{party} left after {why}")

    def on_party_joined(self, party):
        self.said.append(f"{party} came")


def test_a_party_that_is_present_again_on_resume_is_reported_as_rejoined():
    """Otherwise the party would count as absent, and its next departure would not be reported."""
    absent = [{}, {"shop": "1"}, {}, {}, {"shop": "4"}, {"shop": "4"}, {}]
    back = [[], [], [], [], [], ["shop"], []]
    said = zip(epochs("train", *range(1, 8)), absent, back, strict=True)
    history = [{**each, "absent": gone, "back": came} for each, gone, came in said]
    heard = _Reported(CallbackList([moves := MembershipCallback()]))
    heard.report({"stages": stages(train=9), "history": history[:2]})
    heard.report({"stages": stages(train=9), "history": history})
    assert moves.said == ["shop left after 1", "shop came", "shop left after 4", "shop came"]


@pytest.mark.parametrize("watch", [Bar, NumberCollector])
def test_an_undefined_score_is_reported_as_nan(tmp_path, watch):
    """Standard VFL may have no validation row that all parties hold."""
    path, ended, told = tmp_path / "record.json", Future(), watch()
    epoch = {"stage": "train", "epoch": 1, "loss": math.nan, "validation": {"accuracy": math.nan}}
    write_json(path, {"job": "now", "stages": stages(train=1), "history": [epoch]})
    ended.set_result("FINISHED")
    follow(path, "now", ended, told)
    if watch is NumberCollector:
        assert [name for name, value in told.numbers if math.isnan(value)] == [
            "train/loss",
            "train/validation/accuracy",
        ]


def test_a_stage_missing_from_the_record_is_skipped(tmp_path):
    path = tmp_path / "record.json"
    write_json(path, {"job": "now", "stages": stages(train=2), "history": epochs("pretrain", 1) + epochs("train", 1)})
    assert followed_events(path) == [1, ("begin", "train", 2, 10, 0), 1, ("end", "train", "cut off")]
