"""The service beside a federation of real processes: all answer, some die, come back, all are gone; nothing is left."""

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

import psutil

from anyparty.errors import ConfigError
from anyparty.run import federate
from anyparty.serving import application
from anyparty.wire.flare import federation as flare
from anyparty.wire.flare.site import Site
from anyparty.wire.flare.sites import environment, site_command
from tests.ports import free_port
from tests.run.test_federate import written
from tests.run.test_house import NAMES
from tests.run.test_house import Site as Plain
from tests.serving.trained_parties import Houses

pytestmark = pytest.mark.net


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A federation's folder, trained for two epochs; its sites run."""
    home = tmp_path_factory.mktemp("served")
    path, house = written(home), home / "house"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        federate.init(path, house, port=free_port())
        for name in NAMES:
            file = house / "kits" / name / "local" / "anyparty.toml"
            file.write_text(file.read_text() + "threads = 1\n[patience]\nsilent_s = 4.0\n")
        try:
            flare.start(house, 240.0)  # busy machines
            ended = federate.train(house, path, ["train.epochs=2"])
            assert {name: each["error"] for name, each in ended.outcomes.items()} == dict.fromkeys(NAMES, "")
            yield house
        finally:
            flare.stop(house)
    assert flare.processes(house) == []


class Served:
    """The command, in a process of its own."""

    def __init__(self, place, *words, **env):
        command = [sys.executable, "-m", "anyparty", "serve", str(place), "--port", "0", *words]
        self.process = subprocess.Popen(  # noqa: S603
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **env}
        )
        line = ""
        while "Serving on" not in line:
            ready, _, _ = select.select([self.process.stdout], [], [], 300)  # imports alone take a minute if busy
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
        """Wait until the state of the other parties is so."""
        end = time.monotonic() + timeout_s
        while not happens(said := self.get("/ready")["parties"]):
            assert time.monotonic() < end, said
            time.sleep(0.3)

    def stop(self):
        """Ctrl-C."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGINT)
        try:
            _, said = self.process.communicate(timeout=200)
        finally:
            self.process.kill()
        assert self.process.returncode == 130, said
        assert "Traceback" not in said, said
        _, left = psutil.wait_procs(children, timeout=120)
        assert left == []
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", self.port))


@contextlib.contextmanager
def served(place, *words, **env):
    service = Served(place, *words, **env)
    try:
        yield service
    except BaseException:
        service.process.kill()
        service.process.communicate()
        raise
    service.stop()


def jobs_of(house, party):
    """The processes in which a party takes part in jobs."""
    kit = str(house / "kits" / party)
    started = {each: " ".join(each.info["cmdline"]) for each in flare.processes(house)}
    return [each for each, words in started.items() if kit in words and re.search("(worker|runner)_process", words)]


def connected(*names):
    return lambda said: {name for name, why in said.items() if why == "connected"} == set(names)


def test_parties_answer_die_come_back_and_are_all_gone(house, tmp_path):
    sites = {name: Site.read((house / "kits" / name).resolve()) for name in NAMES}
    homes = Houses({name: Plain(name, site.table, site.folder) for name, site in sites.items()})
    ids = homes.ids("bank")
    model = homes.model(tmp_path)
    tables = {name: site.table for name, site in sites.items()}

    def expected(*parties):
        frame = model.predict(tables, parties or None).frame()
        found = {row["id"]: row for row in frame.iter_rows(named=True)}
        return {name: {c: found[name][f"p({c})"] for c in "01"} for name in ids}

    def same(said, *parties):
        right = expected(*parties)
        return all(each["probabilities"] == pytest.approx(right[each["id"]], abs=1e-5) for each in said)

    with served(house) as service:
        # at first, and with nobody there, from the own block
        assert same(service.predict(ids, parties=["bank"]), "bank")
        service.until(connected("shop", "clinic"))
        said = service.predict(ids, budget_ms=10_000)
        assert same(said)
        assert not any(each["silent"] for each in said)
        assert {len(each["took_part"]) for each in said} == {1, 2, 3}
        with pytest.raises(ConfigError, match="runs beside"):
            _begin_and_end(application(house))

        # a passive party's process is killed
        for process in jobs_of(house, "shop"):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        said = service.predict(ids, budget_ms=10_000)
        assert {name for each in said for name in each["silent"]} == {"shop"}
        assert same(said, "bank", "clinic")
        # and is there again
        everybody = connected("shop", "clinic")
        service.until(lambda said: everybody(said) and same(service.predict(ids, budget_ms=10_000)))

        # a whole site goes, and comes back
        _end_site(house, "clinic")
        service.until(connected("shop"))
        assert same(service.predict(ids, budget_ms=10_000), "bank", "shop")
        with _site(house, "clinic"):
            service.until(connected("shop", "clinic"))
            assert same(service.predict(ids, budget_ms=10_000))

            # everybody else goes
            for name in ("shop", "clinic"):
                _end_site(house, name)
        service.until(connected())
        said = service.predict(ids)
        assert same(said, "bank")
        assert {each["took_part"][0] for each in said} == {"bank"}
        assert all(set(each["silent"]) == set(each["asked"]) - {"bank"} for each in said)
    assert not (sites["bank"].folder / "serve.json").exists()
    end = time.monotonic() + 150
    while jobs_of(house, "bank"):
        assert time.monotonic() < end
        time.sleep(0.2)


def _begin_and_end(app):
    async def whole():
        async with app.router.lifespan_context(app):
            pass

    asyncio.run(whole())


def _end_site(house, party):
    """End a passive party's site and its jobs, as when its machine goes down."""
    kit = str(house / "kits" / party)
    found = [each for each in flare.processes(house) if kit in " ".join(each.info["cmdline"])]
    assert found
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):  # a job ends with its site
            process.kill()
    psutil.wait_procs(found, timeout=60)


@contextlib.contextmanager
def _site(house, party):
    """Start a passive party's site anew."""
    kit = (house / "kits" / party).resolve()
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


def test_without_its_server_the_active_party_serves_alone(tmp_path, house):
    """The federation's server is not up: nothing is asked of anybody, and it is told why."""
    kits = tmp_path / "house" / "kits"
    for name in ("bank", "admin"):
        shutil.copytree(
            house / "kits" / name, kits / name, ignore=shutil.ignore_patterns("serve.json", "internal", "*-*-*")
        )
    text = (house / "federation.toml").read_text()
    (tmp_path / "house" / "federation.toml").write_text(text)
    admin = kits / "admin" / "startup" / "fed_admin.json"
    port = tomllib.loads(text)["port"]
    admin.write_text(admin.read_text().replace(str(port), str(free_port())))
    with served(tmp_path / "house") as service:
        ids = Houses({"bank": Plain("bank", Site.read(kits / "bank").table, kits / "bank" / "runs")}).ids("bank")
        said = service.predict(ids)
        assert {tuple(each["took_part"]) for each in said} == {("bank",)}
        end = time.monotonic() + 150
        while "cannot be reached" not in service.get("/ready")["federation"]:
            assert time.monotonic() < end
            time.sleep(0.3)


def test_a_passive_partys_kit_serves_nothing(house):
    with pytest.raises(ConfigError, match="is the kit of 'shop'; predictions are served at the active party, 'bank'"):
        application(Path(house) / "kits" / "shop")
