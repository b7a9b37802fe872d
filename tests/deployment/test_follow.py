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


class Heard(Callback):
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


class Seen(Callback):
    """Collects numbers as a tracker does."""

    def __init__(self):
        self.numbers = []

    def on_epoch_end(self, record):
        self.numbers += numbers(record)


def epochs(stage, *numbers):
    return [{"stage": stage, "epoch": number, "loss": 0.5} for number in numbers]


def stages(**lengths):
    return {stage: {"epochs": length, "rows": 10, "first_epoch": 0} for stage, length in lengths.items()}


def follows(path, job="now"):
    heard, ended = Heard(), Future()
    ended.set_result("FINISHED")
    follow(path, job, ended, heard)
    return heard.said


def test_every_epoch_is_told_once(tmp_path):
    path = tmp_path / "record.json"
    history = epochs("pretrain", 1, 2) + epochs("train", 1)
    write_json(path, {"job": "now", "status": "done", "stages": stages(pretrain=2, train=3), "history": history})
    assert follows(path) == [
        ("begin", "pretrain", 2, 10, 0), 1, 2, ("end", "pretrain", "all epochs done"),
        ("begin", "train", 3, 10, 0), 1, ("end", "train", "done"),
    ]  # fmt: skip


@pytest.mark.parametrize(("status", "said"), [("failed", "failed"), ("stopped", "stopped"), ("running", "cut off")])
def test_a_stage_that_did_not_come_to_its_end_is_not_done(tmp_path, status, said):
    path = tmp_path / "record.json"
    write_json(path, {"job": "now", "status": status, "stages": stages(train=3), "history": epochs("train", 1)})
    assert follows(path)[-1] == ("end", "train", said)


def test_who_was_absent_is_counted_over_epochs_also_where_some_are_told_twice():
    absences = Absences()
    for epoch, absent in ((1, {}), (2, {"shop": "left"}), (3, {"shop": "left"}), (2, {}), (3, {"shop": "left"})):
        absences.on_epoch_end({"stage": "train", "epoch": epoch, "loss": 0.5, "absent": absent})
    assert absences.count() == {"shop": 1}
    assert len(absences.epochs) == 3


def test_a_stage_is_told_before_its_first_epoch_ends(tmp_path):
    path = tmp_path / "record.json"
    write_json(path, {"job": "now", "stages": stages(pretrain=2), "history": []})
    assert follows(path)[0] == ("begin", "pretrain", 2, 10, 0)


def test_who_has_which_rows_comes_first(tmp_path):
    path, observed = tmp_path / "record.json", np.array([[True, True], [True, False]])
    overlap = Overlap.count(observed, ["a", "b"], np.array([True, False]), ["look here"])
    write_json(path, {"job": "now", "overlap": overlap.to_json(), "predicted": "task: none"})
    assert follows(path) == [(overlap, "task: none")]


def test_a_run_that_goes_on_begins_where_it_stands(tmp_path):
    path = tmp_path / "record.json"
    write_json(path, {"job": "now", "stages": stages(train=7), "history": epochs("train", 5, 6)})
    assert follows(path)[0] == ("begin", "train", 7, 10, 4)


def test_another_runs_record_and_none_say_nothing(tmp_path):
    assert follows(tmp_path / "record.json") == []
    write_json(tmp_path / "record.json", {"job": "before", "history": epochs("train", 1)})
    assert follows(tmp_path / "record.json") == []


def test_a_record_that_had_come_further_than_the_checkpoints_is_followed_from_there():
    heard = _Reported(Heard())
    heard.report({"stages": stages(train=9), "history": epochs("train", 1, 2, 3, 4, 5)})
    heard.report({"stages": {"train": {"epochs": 9, "rows": 10, "first_epoch": 2}}, "history": epochs("train", 1, 2)})
    heard.report(
        {"stages": {"train": {"epochs": 9, "rows": 10, "first_epoch": 2}}, "history": epochs("train", 1, 2, 3)}
    )
    assert heard.watch.said[-2:] == [("begin", "train", 9, 10, 2), 3]


def test_epochs_that_were_done_anew_between_two_looks_are_told_again():
    """A resumed, quick training may pass its former last epoch between two reads of the record."""
    former = [{**each, "absent": {"shop": "it left"} if each["epoch"] > 2 else {}} for each in epochs("train", 1, 2, 3)]
    heard = _Reported(absences := Absences())
    heard.report({"stages": stages(train=4), "history": former})
    assert absences.count() == {"shop": 1}
    heard.report({"stages": stages(train=4), "history": [*former[:2], *epochs("train", 3, 4)]})
    assert absences.count() == {}
    assert len(absences.epochs) == 4


class Moves(Callback):
    """Records the parties that left and rejoined."""

    def __init__(self):
        self.said = []

    def on_party_lost(self, party, why):
        self.said.append(f"{party} left after {why}")

    def on_party_joined(self, party):
        self.said.append(f"{party} came")


def test_who_was_away_as_a_run_ended_and_is_there_as_it_goes_on_is_said_to_come():
    """Otherwise the party would count as absent, and its next departure would not be reported."""
    absent = [{}, {"shop": "1"}, {}, {}, {"shop": "4"}, {"shop": "4"}, {}]
    back = [[], [], [], [], [], ["shop"], []]
    said = zip(epochs("train", *range(1, 8)), absent, back, strict=True)
    history = [{**each, "absent": gone, "back": came} for each, gone, came in said]
    heard = _Reported(CallbackList([moves := Moves()]))
    heard.report({"stages": stages(train=9), "history": history[:2]})
    heard.report({"stages": stages(train=9), "history": history})
    assert moves.said == ["shop left after 1", "shop came", "shop left after 4", "shop came"]


@pytest.mark.parametrize("watch", [Bar, Seen])
def test_a_score_that_is_no_number_is_told_as_none(tmp_path, watch):
    """Standard VFL may have no validation row that all parties hold."""
    path, ended, told = tmp_path / "record.json", Future(), watch()
    epoch = {"stage": "train", "epoch": 1, "loss": math.nan, "validation": {"accuracy": math.nan}}
    write_json(path, {"job": "now", "stages": stages(train=1), "history": [epoch]})
    ended.set_result("FINISHED")
    follow(path, "now", ended, told)
    if watch is Seen:
        assert [name for name, value in told.numbers if math.isnan(value)] == [
            "train/loss",
            "train/validation/accuracy",
        ]


def test_a_stage_that_a_lost_record_does_not_know_is_passed_over(tmp_path):
    path = tmp_path / "record.json"
    write_json(path, {"job": "now", "stages": stages(train=2), "history": epochs("pretrain", 1) + epochs("train", 1)})
    assert follows(path) == [1, ("begin", "train", 2, 10, 0), 1, ("end", "train", "cut off")]
