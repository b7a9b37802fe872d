"""Test a full disk: a clear error, and no file is lost."""

import resource
import signal
from contextlib import contextmanager

import pytest
import torch

from anyparty.core.storage import read_json, write_json, writing
from anyparty.errors import StorageError
from anyparty.training import checkpoint
from tests.deployment.test_site_training import run, settings, world


@contextmanager
def room_for(size):
    """Limit files to ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_file_that_does_not_fit_leaves_the_one_before(tmp_path):
    path = tmp_path / "record.json"
    write_json(path, {"epochs": 1})
    with (
        room_for(1000),
        pytest.raises(StorageError, match=r"record\.json: cannot be written \(.+\); the previous version"),
    ):
        write_json(path, {"epochs": list(range(1000))})
    assert read_json(path) == {"epochs": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["record.json"]


def test_only_its_user_reads_what_is_written(tmp_path):
    write_json(tmp_path / "record.json", {})
    assert (tmp_path / "record.json").stat().st_mode & 0o777 == 0o600


def test_two_files_of_one_stem_are_written_at_once(tmp_path):
    with writing(tmp_path / "model.json") as one, writing(tmp_path / "model.safetensors") as two:
        one.write_text("{}")
        two.write_text("weights")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "model.json": "{}", "model.safetensors": "weights",
    }  # fmt: skip


def test_two_writers_of_one_file_leave_one_of_theirs_whole(tmp_path):
    path = tmp_path / "record.json"
    with writing(path) as one:
        one.write_text("one, long")
        with writing(path) as two:
            two.write_text("two")
        assert path.read_text() == "two"
    assert path.read_text() == "one, long"
    assert [each.name for each in tmp_path.iterdir()] == ["record.json"]


def test_a_writer_that_is_stopped_leaves_nothing_beside(tmp_path):
    def stopped():
        with writing(tmp_path / "record.json") as beside:
            beside.write_text("half of")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_half_written_is_taken_away(tmp_path):
    for name in ("00-000001.safetensors.0a1b2c3d.part", "mine.part"):
        (tmp_path / name).write_text("half of")
    checkpoint.Checkpoints(tmp_path).begin("", resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.part", "run.txt"]


def test_tensors_that_do_not_fit_leave_the_ones_before(tmp_path):
    path = tmp_path / "00-000001.safetensors"
    checkpoint.write(path, {"x": torch.zeros(3)}, {"epoch": 1})
    with room_for(1000), pytest.raises(StorageError, match="cannot be written"):
        checkpoint.write(path, {"x": torch.zeros(1000)}, {"epoch": 2})
    assert checkpoint.read(path)[1] == {"epoch": 1}
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(StorageError, match="cannot be written"):
        write_json(tmp_path / "runs" / "record.json", {})
    assert (tmp_path / "runs").read_text() == "mine"


def test_a_run_stops_with_the_sentence_and_keeps_its_last_checkpoint(tmp_path):
    sites = world(tmp_path)
    run(sites, settings(epochs=3, checkpoint_every=1))
    for site in sites.values():  # as after a crash in the third epoch
        (site.folder / "checkpoints" / "00-000003.safetensors").unlink()
    before = {name: sorted((site.folder / "checkpoints").iterdir()) for name, site in sites.items()}
    with room_for(6_000), pytest.raises(StorageError, match="cannot be written"):
        run(sites, settings(epochs=3, checkpoint_every=1), resume=True)
    for name, site in sites.items():
        assert set(before[name]) & set((site.folder / "checkpoints").iterdir())
