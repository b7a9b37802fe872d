"""The service in a federation of real processes: parties answer, are killed, return, and leave no process."""

import asyncio
import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

import polars as pl
import psutil

from anyparty.deployment import coordinator
from anyparty.deployment.flare import federation_folder as flare
from anyparty.deployment.flare.site_config import SiteConfig
from anyparty.deployment.flare.site_process import environment, site_command
from anyparty.errors import ConfigError
from anyparty.serving import application
from tests.deployment.test_coordinator import written
from tests.deployment.test_site_training import NAMES
from tests.deployment.test_site_training import Site as Plain
from tests.ports import free_port
from tests.serving.trained_parties import TrainedParties

pytestmark = pytest.mark.net


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a running federation, trained for two epochs."""
    home = tmp_path_factory.mktemp("served")
    path, folder = written(home), home / "house"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        coordinator.init(path, folder, port=free_port())
        for name in NAMES:
            file = folder / "kits" / name / "local" / "anyparty.toml"
            file.write_text(file.read_text() + "threads = 1\n[patience]\nsilent_s = 4.0\n")
        try:
            flare.start(folder, 240.0)  # for busy machines
            ended = coordinator.train(folder, path, ["train.epochs=2"])
            assert {name: each["error"] for name, each in ended.outcomes.items()} == dict.fromkeys(NAMES, "")
            yield folder
        finally:
            flare.stop(folder)
    assert flare.processes(folder) == []


class ServiceProcess:
    """The command in its own process."""

    def __init__(self, place, *words, **env):
        command = [sys.executable, "-m", "anyparty", "serve", str(place), "--port", "0", *words]
        self.process = subprocess.Popen(  # noqa: S603
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **env}
        )
        line = ""
        while "Serving on" not in line:
            ready, _, _ = select.select([self.process.stdout], [], [], 300)  # imports take a minute on a busy machine
            line = self.process.stdout.readline() if ready else ""
            if not line:
                self.process.kill()
            assert line, self.process.communicate()[1]
        self.port = int(re.search(r":(\d+) ", line)[1])

    def get(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.load(answer)

    def predict(self, ids, **how):
        return self.get("/predict/batch", {"ids": ids, **how})["answers"]

    def until(self, happens, timeout_s=120.0):
        """Wait until the state of the other parties satisfies a condition."""
        end = time.monotonic() + timeout_s
        while not happens(got := self.get("/ready")["parties"]):
            assert time.monotonic() < end, got
            time.sleep(0.3)

    def stop(self):
        """Send Ctrl-C and check that nothing is left."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGINT)
        try:
            _, got = self.process.communicate(timeout=200)
        finally:
            self.process.kill()
        assert self.process.returncode == 130, got
        assert "Traceback" not in got, got
        _, left = psutil.wait_procs(children, timeout=120)
        assert left == []
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", self.port))


@contextlib.contextmanager
def served(place, *words, **env):
    service = ServiceProcess(place, *words, **env)
    try:
        yield service
    except BaseException:
        service.process.kill()
        service.process.communicate()
        raise
    service.stop()


def jobs_of(folder, party):
    """The processes of a party's jobs."""
    kit = str(folder / "kits" / party)
    started = {each: " ".join(each.info["cmdline"]) for each in flare.processes(folder)}
    return [each for each, words in started.items() if kit in words and re.search("(worker|runner)_process", words)]


def connected(*names):
    return lambda got: {name for name, why in got.items() if why == "connected"} == set(names)


def test_parties_answer_are_killed_and_return(folder, tmp_path):
    sites = {name: SiteConfig.read((folder / "kits" / name).resolve()) for name in NAMES}
    trained = TrainedParties({name: Plain(name, site.table, site.folder) for name, site in sites.items()})
    ids = trained.ids("bank")
    model = trained.model(tmp_path)
    tables = {name: site.table for name, site in sites.items()}

    def expected(*parties):
        frame = model.predict(tables, parties or None).frame()
        found = {row["id"]: row for row in frame.iter_rows(named=True)}
        return {name: {c: found[name][f"p({c})"] for c in "01"} for name in ids}

    def same(got, *parties):
        right = expected(*parties)
        return all(each["probabilities"] == pytest.approx(right[each["id"]], abs=1e-5) for each in got)

    with served(folder) as service:
        # before other parties connect, the own block answers
        assert same(service.predict(ids, parties=["bank"]), "bank")
        service.until(connected("shop", "clinic"))
        got = service.predict(ids, budget_ms=10_000)
        assert same(got)
        assert not any(each["silent"] for each in got)
        assert {len(each["took_part"]) for each in got} == {1, 2, 3}
        with pytest.raises(ConfigError, match="already runs for"):
            _begin_and_end(application(folder))

        # a passive party's process is killed
        for process in jobs_of(folder, "shop"):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        got = service.predict(ids, budget_ms=10_000)
        assert {name for each in got for name in each["silent"]} == {"shop"}
        assert same(got, "bank", "clinic")
        # and rejoins
        all_connected = connected("shop", "clinic")
        service.until(lambda got: all_connected(got) and same(service.predict(ids, budget_ms=10_000)))

        # a whole site ends, and returns
        _kill_site(folder, "clinic")
        service.until(connected("shop"))
        assert same(service.predict(ids, budget_ms=10_000), "bank", "shop")
        with _running_site(folder, "clinic"):
            service.until(connected("shop", "clinic"))
            assert same(service.predict(ids, budget_ms=10_000))

            # all other parties end
            for name in ("shop", "clinic"):
                _kill_site(folder, name)
        service.until(connected())
        got = service.predict(ids)
        assert same(got, "bank")
        assert {each["took_part"][0] for each in got} == {"bank"}
        assert all(set(each["silent"]) == set(each["asked"]) - {"bank"} for each in got)
    assert not (sites["bank"].folder / "serve.json").exists()
    end = time.monotonic() + 150
    while jobs_of(folder, "bank"):
        assert time.monotonic() < end
        time.sleep(0.2)


def _begin_and_end(app):
    async def whole():
        async with app.router.lifespan_context(app):
            pass

    asyncio.run(whole())


def _kill_site(folder, party):
    """Kill a passive party's site and its jobs, as if its machine failed."""
    kit = str(folder / "kits" / party)
    found = [each for each in flare.processes(folder) if kit in " ".join(each.info["cmdline"])]
    assert found
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):  # a job ends with its site
            process.kill()
    psutil.wait_procs(found, timeout=60)


@contextlib.contextmanager
def _running_site(folder, party):
    """Restart a passive party's site."""
    kit = (folder / "kits" / party).resolve()
    with (kit / "site.log").open("ab") as out:
        site = subprocess.Popen(  # noqa: S603
            site_command(kit), env=environment(), cwd=kit, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        site.kill()
        site.wait()


def test_without_its_server_the_active_party_serves_alone(tmp_path, folder):
    """Without the federation's server, no party is asked, and ``/ready`` says why; its own rows still get remarks."""
    kits = tmp_path / "house" / "kits"
    for name in ("bank", "admin"):
        shutil.copytree(
            folder / "kits" / name, kits / name, ignore=shutil.ignore_patterns("serve.json", "internal", "*-*-*")
        )
    text = (folder / "federation.toml").read_text()
    (tmp_path / "house" / "federation.toml").write_text(text)
    admin = kits / "admin" / "startup" / "fed_admin.json"
    port = tomllib.loads(text)["port"]
    admin.write_text(admin.read_text().replace(str(port), str(free_port())))
    site = SiteConfig.read(kits / "bank")
    table = pl.read_csv(site.table)
    column = next(name for name, kind in table.schema.items() if kind.is_float())
    changed = table.with_columns(pl.when(pl.int_range(pl.len()) == 0).then(1e6).otherwise(column).alias(column))
    changed.write_csv(tmp_path / "changed.csv")
    settings = kits / "bank" / "local" / "anyparty.toml"
    settings.write_text(settings.read_text().replace(str(site.table), str(tmp_path / "changed.csv")))
    with served(tmp_path / "house") as service:
        ids = TrainedParties({"bank": Plain("bank", SiteConfig.read(kits / "bank").table, kits / "bank" / "runs")}).ids(
            "bank"
        )
        got = service.predict(ids)
        assert {tuple(each["took_part"]) for each in got} == {("bank",)}
        assert {each["id"] for each in got if each["remarks"]} == {table["id"][0]}
        end = time.monotonic() + 150
        while "cannot be reached" not in service.get("/ready")["federation"]:
            assert time.monotonic() < end
            time.sleep(0.3)


def test_a_passive_partys_kit_is_refused(folder):
    with pytest.raises(ConfigError, match="is the kit of 'shop'; predictions are served at the active party, 'bank'"):
        application(Path(folder) / "kits" / "shop")
