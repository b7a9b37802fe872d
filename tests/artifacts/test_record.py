"""Reading and writing a record does not change it; errors name the damaged files of a run."""

import json
import shutil

import pytest

from anyparty import config
from anyparty.api.federation import Federation
from anyparty.api.runs import evaluate_run, model_for_run, predict_run
from anyparty.artifacts.record import RunRecord
from anyparty.errors import ModelError, ResumeError
from anyparty.training.checkpoint import PROGRESS, read, write
from tests.conftest import adopt


@pytest.fixture
def copy(trained, tmp_path):
    """Copy a finished run and its tables, so that a test may damage them."""
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder)
    return adopt(folder / "runs" / "credit-laser-seed1")


def change(run, **values):
    path = run / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


SCORES = {"task": "classification", "classes": ["no", "yes"], "overall": {}, "by_count": {}, "by_pattern": {}}
DAMAGES = [
    ({"history": None}, "history: expected a list"),
    ({"history": [{"epoch": 1}]}, "history.0.stage: expected a value"),
    ({"history": [{"stage": "train", "epoch": "x"}]}, "history.0.epoch: "),
    ({"ledger": [{"sender": "a"}]}, "ledger.0.receiver: expected a value"),
    ({"overlap": {"rows": 3}}, "overlap.blocks: expected a value"),
    ({"evaluation": SCORES | {"overall": {"accuracy": "much"}}}, "evaluation.overall.accuracy: "),
    ({"tables": []}, "tables: expected a dict"),
    ({"versions": None}, "versions: expected a dict"),
    ({"format": 99}, "a record in the newer format 99; this version reads format 1; install the version of anyparty"),
    (
        {"format": 0},
        "a record in the older format 0; this version reads format 1; use the version of anyparty that wrote ",
    ),
    ({"format": "1"}, "a record in the unknown format '1'; this version reads format 1; the file was changed"),
    ({"format": True}, "a record in the unknown format True"),
    ({"format": 99, "versions": 3}, "a record in the newer format 99"),
]


def test_writing_a_record_preserves_all_fields(copy, tmp_path):
    change(copy, written_by="a later version", history=[{"stage": "train", "epoch": 1, "loss": None, "clock": 3}])
    RunRecord.read(copy / "record.json").write(tmp_path / "record.json")
    before, after = (json.loads((folder / "record.json").read_text()) for folder in (copy, tmp_path))
    assert json.dumps(after, sort_keys=True) == json.dumps(before, sort_keys=True)  # an integer stays an integer


@pytest.mark.parametrize(("values", "said"), DAMAGES)
def test_a_damaged_field_of_a_record_is_reported(copy, values, said):
    assert RunRecord.read(copy / "record.json").to_json() == json.loads((copy / "record.json").read_text())
    change(copy, **values)
    with pytest.raises(ModelError) as caught:
        RunRecord.read(copy / "record.json")
    assert f"{copy / 'record.json'}: {said}" in str(caught.value)


@pytest.mark.parametrize(("found", "age"), [(0, "older"), (2, "newer")])
def test_a_run_whose_record_has_another_format_is_not_used(copy, found, age):
    """Such a run was scored in silence, because an unreadable record counted as finished."""
    change(copy, format=found)
    said = rf"record\.json: a record in the {age} format {found}; this version reads format 1"
    for use in (model_for_run, evaluate_run, predict_run):
        with pytest.raises(ModelError, match=said):
            use(copy)


@pytest.mark.parametrize("words", [("report",), ("evaluate",), ("train", "--resume")])
def test_commands_report_a_damaged_record(copy, call, words):
    change(copy, history=None, tables=[])
    last = copy.parents[1] / "credit.toml" if words[0] == "train" else copy
    ended = call(*words, last)
    assert ended.exit_code == 2, ended.stdout
    assert "record.json: " in ended.stderr
    assert "history: expected a list" in ended.stderr


def test_commands_report_damaged_settings(copy, call):
    change(copy, status="stopped")
    (copy / "config.toml").write_text("[train\n")
    for words in (("train", "--resume", copy.parents[1] / "credit.toml"), ("evaluate", copy)):
        ended = call(*words)
        assert ended.exit_code == 2
        assert "config.toml: this is not TOML" in ended.stderr


def test_a_checkpoint_with_damaged_metadata_is_reported(copy, call):
    (last, *_) = sorted((copy / "parties" / "bank" / "checkpoints").glob("*.safetensors"), reverse=True)
    tensors, about = read(last)
    assert PROGRESS.validate_python(about).history == about["history"]
    for damaged in ({**about, "epoch": "x"}, {**about, "history": None}, {"more": 1}):
        write(last, tensors, damaged)
        ended = call("train", "--resume", copy.parents[1] / "credit.toml")
        assert ended.exit_code == 2, (damaged, ended.stdout, ended.stderr)
        assert f"{last.name}: its description of the run is damaged" in ended.stderr


def test_python_reports_damaged_settings(copy):
    (copy / "config.toml").write_text("[train\n")
    with pytest.raises(ResumeError, match=r"config.toml: this is not TOML"):
        Federation.from_config(config.load(copy.parents[1] / "credit.toml")).train(folder=copy, resume=True)
