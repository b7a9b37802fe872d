"""A federation's run is followed by its record, as it grows."""

from concurrent.futures import Future

from anyparty.run.files import write_json
from anyparty.run.follow import follow
from anyparty.run.watch import Watch


class Heard(Watch):
    def __init__(self):
        self.said = []

    def on_stage_begin(self, stage, epochs, rows, first_epoch):
        self.said.append(("begin", stage, epochs, first_epoch))

    def on_epoch_end(self, record):
        self.said.append(record["epoch"])

    def on_stage_end(self, stage, reason):
        self.said.append(("end", stage))


def epochs(stage, *numbers):
    return [{"stage": stage, "epoch": number, "loss": 0.5} for number in numbers]


def follows(path, job="now"):
    heard, ended = Heard(), Future()
    ended.set_result("FINISHED")
    follow(path, job, 3, ended, heard)
    return heard.said


def test_every_epoch_is_told_once(tmp_path):
    path = tmp_path / "record.json"
    write_json(path, {"job": "now", "history": epochs("pretrain", 1, 2) + epochs("train", 1)})
    assert follows(path) == [
        ("begin", "pretrain", 3, 0), 1, 2, ("end", "pretrain"), ("begin", "train", 3, 0), 1, ("end", "train"),
    ]  # fmt: skip


def test_a_run_that_goes_on_begins_where_it_stands(tmp_path):
    path = tmp_path / "record.json"
    write_json(path, {"job": "now", "history": epochs("train", 5, 6)})
    assert follows(path)[0] == ("begin", "train", 3, 4)


def test_another_runs_record_and_none_say_nothing(tmp_path):
    assert follows(tmp_path / "record.json") == []
    write_json(tmp_path / "record.json", {"job": "before", "history": epochs("train", 1)})
    assert follows(tmp_path / "record.json") == []
