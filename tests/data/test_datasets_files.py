import os

import numpy as np
import pytest

from anyparty.data.datasets import downloads


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYPARTY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "unpacked"


@pytest.fixture
def source(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3), name=np.array(["b", "c"]))
    return tmp_path / "a.npz"


def test_unpacked_once(cache, source):
    first = downloads.npz([source])
    kept = {file: file.stat().st_mtime_ns for file in cache.glob("*/*.npy")}
    assert len(kept) == 2
    first["x"][:] = 9, 9, 9
    again = downloads.npz([source])
    assert again["x"].tolist() == [0, 1, 2], "what a caller does to its arrays stays with it"
    assert again["name"].tolist() == ["b", "c"]
    assert {file: file.stat().st_mtime_ns for file in cache.glob("*/*.npy")} == kept
    assert {file.parent.parent for file in kept} == {cache}, "no temporary folder remains"


def test_a_file_that_changed_is_read_again(cache, source):
    downloads.npz([source])
    np.savez(source, x=np.arange(4))
    os.utime(source, ns=(1, 1))
    assert downloads.npz([source])["x"].tolist() == [0, 1, 2, 3]


def test_a_damaged_cache_is_made_anew(cache, source):
    downloads.npz([source])
    for file in cache.glob("*/*.npy"):
        file.write_bytes(file.read_bytes()[:-4])
    assert downloads.npz([source])["x"].tolist() == [0, 1, 2]
    assert downloads.npz([source])["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("gone", ["x.npy", "name.npy", "names.json"])
def test_a_cache_of_which_a_file_is_gone_is_made_anew(cache, source, gone):
    """A cleaner of old files may delete a cached file; the user's own file is not damaged and not blamed."""
    downloads.npz([source])
    (lost,) = cache.glob(f"*/{gone}")
    lost.unlink()
    assert sorted(downloads.npz([source])) == ["name", "x"]
    assert lost.exists()


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch, source):
    (tmp_path / "cache").write_text("a file where a folder should be")
    monkeypatch.setenv("ANYPARTY_CACHE", str(tmp_path / "cache"))
    assert downloads.npz([source])["x"].tolist() == [0, 1, 2]


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("ANYPARTY_CACHE", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert downloads.cache_folder() == tmp_path / ".cache" / "anyparty"
