"""Real processes: kits, mutual TLS, private alignment, training; the same weights as in one process."""

import _thread
import time
import tomllib
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from anyparty import config as settings
from anyparty.artifacts.record import FILE
from anyparty.cli import doctor
from anyparty.core.storage import read_json, write_json
from anyparty.deployment import coordinator
from anyparty.deployment.site.site_training import train_at_site
from anyparty.errors import AnypartyWarning, ConfigError, ResumeError, RunError
from anyparty.transport import memory
from tests.artifacts.test_trackers import RecordingCallback
from tests.deployment.test_site_training import NAMES, weights, with_two_id_columns, world
from tests.ports import free_port

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")

from anyparty.deployment.flare import federation_folder as flare
from anyparty.deployment.flare.site_config import SiteConfig


def written(home: Path) -> Path:
    """Write the settings of three parties and their tables."""
    world(home)
    groups = [f'[parties.{name}]\ntable = "{name}/table.csv"' for name in NAMES]
    text = '[federation]\nlabel = "y"\nactive = "bank"\n[method]\nname = "laser"\nembedding = 8\n[train]\nepochs = 3\n'
    path = home / "federation.toml"
    path.write_text(text + "\n".join(groups))
    return path


def test_a_federation_of_separate_sites_must_name_its_active_party(tmp_path):
    path = written(tmp_path)
    path.write_text(path.read_text().replace('active = "bank"\n', ""))
    with pytest.raises(ConfigError, match=r"name the active party, federation\.active"):
        coordinator.init(path, tmp_path / "house")


def test_a_clock_trace_is_sent_as_numbers_without_its_path(tmp_path, monkeypatch):
    path, sent = written(tmp_path), []
    (tmp_path / "cpu.csv").write_text("shop\n0.5\n")
    path.write_text(path.read_text() + '\n[schedule]\nname = "flex"\n[clock]\ntrace = "cpu.csv"\n')
    monkeypatch.setattr(flare, "read_federation", lambda _: {"active": "bank"})
    monkeypatch.setattr(flare, "status", lambda _: {"sites": NAMES})

    def submit(_, text, **__):
        sent.append(text)
        raise RunError("not sent")

    monkeypatch.setattr(flare, "submit", submit)
    with pytest.raises(RunError, match="not sent"):
        coordinator.train(tmp_path, path)
    assert "cpu.csv" not in sent[0]
    assert tomllib.loads(sent[0])["clock"]["use"] == {"shop": [0.5]}


@pytest.mark.parametrize("work", ["train", "predict"])
def test_a_job_without_an_outcome_raises_an_error(tmp_path, monkeypatch, work):
    """The process may be killed before its part begins, or still run at the time limit."""
    path = written(tmp_path)
    stand_in = {"read_federation": lambda _: {"active": "bank"}, "status": lambda _: {"sites": NAMES},
                "submit": lambda *_, **__: "job 1", "keeps": lambda *_: None, "outcome": lambda *_: None,
                "wait": lambda *_, **__: "FINISHED:EXECUTION_EXCEPTION"}  # fmt: skip
    for name, instead in stand_in.items():
        monkeypatch.setattr(flare, name, instead)
    with pytest.raises(
        RunError, match="has the status FINISHED:EXECUTION_EXCEPTION, and the active party 'bank' has left no"
    ):
        getattr(coordinator, work)(tmp_path, path)


def test_an_existing_model_is_replaced_only_on_request(tmp_path, monkeypatch):
    path, asked = written(tmp_path), []
    record = {"history": [{"stage": "train", "epoch": 1}], "began": "2026-11-25T12:00:00+00:00"}
    write_json(tmp_path / FILE, record)
    monkeypatch.setattr(flare, "read_federation", lambda _: {"active": "bank"})
    monkeypatch.setattr(flare, "keeps", lambda *_: tmp_path)
    monkeypatch.setattr(flare, "status", lambda folder: asked.append(folder) or {"sites": []})
    said = r"already have a model, of the training that began 2026-11-25T12:00:00\+00:00 \(1 epochs\): resume it"
    with pytest.raises(ResumeError, match=said):
        coordinator.train(tmp_path, path)
    assert not asked
    for how in ({"resume": True}, {"again": True}):
        with pytest.raises(RunError, match="is not connected"):
            coordinator.train(tmp_path, path, **how)
    write_json(tmp_path / FILE, record | {"history": []})  # a training that failed at once
    with pytest.raises(RunError, match="is not connected"):
        coordinator.train(tmp_path, path)


def test_a_party_missing_from_the_settings_participates_with_a_warning(tmp_path, monkeypatch):
    """The federation decides who takes part: a job cannot leave out a party that was agreed on."""
    path = written(tmp_path)
    path.write_text(path.read_text().replace('[parties.clinic]\ntable = "clinic/table.csv"', ""))
    monkeypatch.setattr(flare, "read_federation", lambda _: {"active": "bank", "parties": list(NAMES)})
    monkeypatch.setattr(flare, "status", lambda _: {"sites": ["shop"]})
    monkeypatch.setattr(flare, "keeps", lambda *_: None)
    with (
        pytest.warns(AnypartyWarning, match="do not name 'clinic', but all parties of the federation"),
        pytest.raises(RunError, match="'clinic' is not connected; start it"),
    ):
        coordinator.train(tmp_path, path)


def test_a_misspelt_party_is_reported_before_a_prediction_starts(tmp_path):
    path = written(tmp_path)
    with pytest.raises(ConfigError, match="parties: there is no party 'shap'; did you mean 'shop'"):
        coordinator.predict(tmp_path, path, ["bank", "shap"])


@pytest.mark.parametrize("refused", [False, True])
def test_ctrl_c_during_a_submission_aborts_the_job(tmp_path, monkeypatch, refused):
    path, aborted = written(tmp_path), []

    def submit(*_, **__):
        time.sleep(0.3)  # by then the coordinator waits for this call
        _thread.interrupt_main()
        time.sleep(0.3)
        if refused:
            raise RunError("no")
        return "job 1"

    monkeypatch.setattr(flare, "read_federation", lambda _: {"active": "bank"})
    monkeypatch.setattr(flare, "status", lambda _: {"sites": NAMES})
    monkeypatch.setattr(flare, "submit", submit)
    monkeypatch.setattr(flare, "abort", lambda _, job: aborted.append(job))
    with pytest.raises(KeyboardInterrupt):
        coordinator.train(tmp_path, path)
    assert aborted == ([] if refused else ["job 1"])


@pytest.mark.net
def test_weights_equal_those_of_training_in_one_process(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path, house, hears = written(tmp_path), tmp_path / "house", RecordingCallback()
    tables = {name: with_two_id_columns(tmp_path / name / "table.csv") for name in NAMES}
    text = path.read_text().replace("table.csv", "table.parquet")
    path.write_text(text.replace("[federation]", '[federation]\nid = ["branch", "account"]'))
    coordinator.init(path, house, port=free_port())
    try:
        flare.start(house, 240.0)
        ended = coordinator.train(house, path, watch=hears)
        predicted, file = coordinator.predict(house, path)
        clocks = list(doctor.check_clocks((house / "kits" / "bank").resolve()))
    finally:
        flare.stop(house)
    assert ended.status == "FINISHED:COMPLETED"
    assert {name: outcome["error"] for name, outcome in ended.outcomes.items()} == dict.fromkeys(NAMES, "")
    assert not flare.processes(house)
    assert [each[:2] for each in hears.said if each[0] in {"begin", "epoch"}] == [
        ("begin", 3), ("epoch", 1), ("epoch", 2), ("epoch", 3),
    ]  # fmt: skip
    assert hears.said[-1] == ("end", "done", ended.outcomes["bank"]["result"]["evaluation"], "")
    assert sorted(each.check for each in clocks) == ["bank: clock of clinic", "bank: clock of shop"]
    assert {each.level for each in clocks} == {"fine"}

    assert predicted.status == "FINISHED:COMPLETED"
    ids = pl.read_parquet(file).select("branch", "account")
    assert ids.equals(pl.read_parquet(tables["bank"]).select("branch", "account"))
    assert ids.schema == {"branch": pl.String, "account": pl.Int64}

    apart = {name: SiteConfig.read((house / "kits" / name).resolve()) for name in NAMES}
    together = {}
    for name, site in apart.items():
        together[name] = site.model_copy(update={"folder": tmp_path / "together" / name})
        together[name].folder.mkdir(parents=True)
        for kept in ("alignment.safetensors", "secret"):
            (together[name].folder / kept).write_bytes((site.folder / kept).read_bytes())
    resolved = settings.load(path)
    memory.play({name: partial(_part, site, resolved) for name, site in together.items()})
    assert weights(together) == weights(apart)


@pytest.mark.net
def test_an_invalid_cell_is_shown_only_at_the_party_that_holds_it(tmp_path, monkeypatch):
    """The active party learns the kind of the error; the cells and the ids stay in the passive party's kit."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path, house, table = written(tmp_path), tmp_path / "house", tmp_path / "shop" / "table.csv"
    secrets = [f"{what}{48151623 + row}" for row in range(5) for what in ("cell ", "person ")]
    cells, ids = secrets[::2], secrets[1::2]
    header, *rows = table.read_text().splitlines()
    bad = [f"{name},{cell},0.5" for name, cell in zip(ids, cells, strict=True)]
    table.write_text("\n".join([header, *bad, *rows]) + "\n")
    outcome = flare.outcome
    # the coordinator of the active party's machine does not have the folders of other parties
    monkeypatch.setattr(flare, "outcome", lambda *at: outcome(*at) if at[1] == "bank" else None)
    coordinator.init(path, house, port=free_port())
    try:
        flare.start(house, 240.0)
        with pytest.raises(RunError, match=r"'bank' ended with PartyLost: .*'shop'.* stopped with TableError") as told:
            coordinator.train(house, path)
    finally:
        flare.stop(house)
    kept = {file: file.read_bytes() for file in house.rglob("*") if file.is_file()}
    own = (house / "kits" / "shop").resolve()
    assert all(cell.encode() in (own / "site.log").read_bytes() for cell in cells)
    others = [str(told.value).encode(), *(text for file, text in kept.items() if own not in file.resolve().parents)]
    assert (house / "kits" / "bank" / "site.log").read_bytes() in others
    assert not [secret for secret in secrets if any(secret.encode() in text for text in others)]


@pytest.mark.net
def test_schedules_with_the_real_clock_wait_for_their_timeout(tmp_path, monkeypatch):
    """Under Flex-VFL each process iterates until its own timeout, so a round takes at least that long."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path, house = written(tmp_path), tmp_path / "house"
    plain = path.read_text()
    coordinator.init(path, house, port=free_port())
    try:
        flare.start(house, 240.0)
        for schedule, least in (("flex", 0.05), ("vafl", 0.0)):
            path.write_text(plain + f'\n[schedule]\nname = "{schedule}"\n[clock]\nreal = true\ntimeout = 0.1\n')
            ended = coordinator.train(house, path, again=True)
            assert {name: outcome["error"] for name, outcome in ended.outcomes.items()} == dict.fromkeys(NAMES, "")
            history = read_json(flare.keeps(house, "bank") / FILE)["history"]
            assert all(epoch["time_s"] > least * epoch["rounds"] for epoch in history)
            assert [epoch["rounds"] for epoch in history] == [history[0]["rounds"] * epoch for epoch in (1, 2, 3)]
    finally:
        flare.stop(house)


def _part(site, config, net):
    return train_at_site(site, config, net)


def test_a_misspelt_parameter_is_reported_before_training_starts(tmp_path):
    path = written(tmp_path)
    with pytest.raises(ConfigError, match="no parameter 'hosts'"):
        coordinator.train(tmp_path / "house", path, ["method.hosts=3"])
