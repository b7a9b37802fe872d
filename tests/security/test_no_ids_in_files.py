"""No file of a run holds an id or an unsalted hash of an id, so a list of names cannot be tested against it."""

import hashlib

import numpy as np
import polars as pl
import pytest

from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.artifacts.run_folder import ID_HASHES
from anyparty.report.page import write
from tests.report.site_runs import build, frames, play, settings
from tests.security.text_search import hashes, in_folder, occurring, raw
from tests.slow_parameters import slow_but

METHODS = ("laser", "apc", "vfedtrans", "fedhssl", "false-vfl-1")
SHORT = {"fedhssl": {"pretrain_epochs": 1}, "false-vfl-1": {"pretrain_epochs": 1, "top": 2, "samples": 2}}


def config(method: str):
    values = settings(method, epochs=1, checkpoint_every=1).model_dump(mode="json", exclude_none=True)
    values["method"] |= SHORT.get(method, {})
    return type(settings()).of(values)


@pytest.fixture(scope="module")
def searched():
    """Return the ids of all tables and their hashes."""
    ids = sorted(set().union(*(table["id"].to_list() for table in frames().values())))
    return raw(ids) | hashes(ids)


@pytest.mark.parametrize("form", ["raw", "blake2b-8 as int64", "sha256", "polars"])
def test_the_search_finds_what_is_planted(form):
    ids = ["person 1234567", "person 7654321"]
    planted = {
        "raw": ids[1].encode(),
        # as written by an earlier version
        "blake2b-8 as int64": np.array([int.from_bytes(_blake(ids[1]), signed=True)], dtype=np.int64).tobytes(),
        "sha256": hashlib.sha256(ids[1].encode()).hexdigest().encode(),
        "polars": pl.Series(ids).hash(seed=0).to_numpy()[1:].tobytes(),
    }[form]
    assert any(repr(ids[1]) in each for each in occurring(raw(ids) | hashes(ids), b"?" * 1003 + planted + b"!"))
    assert occurring(raw(ids) | hashes(ids), b"?" * 1003) == []


def _blake(text):
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


@pytest.mark.filterwarnings("ignore::anyparty.errors.AnypartyWarning")
@pytest.mark.parametrize("method", slow_but(METHODS, {"laser"}))
def test_a_run_in_one_process(tmp_path, searched, method):
    model = Federation.from_config(config(method), frames()).train(folder=tmp_path / "run")
    model.save(tmp_path / "model")
    write([tmp_path / "run"], tmp_path / "report")
    assert in_folder(searched, tmp_path) == {}
    assert Model.load(tmp_path / "model").roster.names == model.roster.names


@pytest.mark.filterwarnings("ignore::anyparty.errors.AnypartyWarning")
@pytest.mark.parametrize("method", slow_but(METHODS, {"laser"}))
def test_each_partys_own_folder(tmp_path, searched, method):
    sites = build(tmp_path, frames())
    play(sites, config(method))
    for name, site in sites.items():
        assert (site.folder / "alignment.safetensors").exists()
        assert in_folder(searched, site.folder) == {}, name
    write([site.folder for site in sites.values()], tmp_path / "report")
    assert in_folder(searched, tmp_path / "report") == {}


@pytest.mark.filterwarnings("ignore::anyparty.errors.AnypartyWarning")
def test_hashes_that_an_earlier_version_left_are_deleted(tmp_path):
    paths = {}
    for name, frame in frames().items():
        paths[name] = tmp_path / f"{name}.csv"
        frame.write_csv(paths[name])
    federation = Federation.from_config(config("laser"), paths)
    model = federation.train(folder=tmp_path / "run")
    (tmp_path / "run" / ID_HASHES).write_bytes(b"hashes")
    federation.train(folder=tmp_path / "run", resume=True)
    assert not (tmp_path / "run" / ID_HASHES).exists()
    (tmp_path / "run" / ID_HASHES).write_bytes(b"hashes")
    other = Federation.from_config(config("laser"), paths).train(seed=4)
    other.save(tmp_path / "run", replace=True)
    assert not (tmp_path / "run" / ID_HASHES).exists()
    assert model.roster == other.roster
