"""A disk that is full: a sentence, and nothing lost."""

import resource
import signal
from contextlib import contextmanager

import pytest
import torch

from anyparty.errors import StorageError
from anyparty.run import checkpoint
from anyparty.run.files import read_json, write_json
from tests.run.test_house import run, settings, world


@contextmanager
def room_for(size):
    """Let no file grow beyond ``size`` bytes."""
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
    with room_for(1000), pytest.raises(StorageError, match=r"record\.json: cannot be written \(.+\); what was there"):
        write_json(path, {"epochs": list(range(1000))})
    assert read_json(path) == {"epochs": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["record.json"]


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
