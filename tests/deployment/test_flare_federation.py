"""A federation of real processes with mutual TLS on loopback: messages, failures and their outcomes.

The parts below run in the parties' own processes, which find them by ``PYTHONPATH``.
"""

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomli_w
import torch
from torch import nn

from anyparty.config import Config
from anyparty.core.types import Party, Roster
from anyparty.deployment.flare import federation_folder, site_process
from anyparty.deployment.flare.admin import read_federation
from anyparty.deployment.flare.provisioning import write_site_files
from anyparty.deployment.flare.site_config import SiteConfig
from anyparty.deployment.flare.site_process import environment, site_command
from anyparty.deployment.site.policy import encoder_at, method_at
from anyparty.errors import ConfigError, PartyLost, RunError, StorageError, TableError
from anyparty.methods.method_registry import method
from anyparty.networks.encoders import MLP

NAMES = ["bank", "shop", "clinic"]
ROSTER = Roster(tuple(Party(name=name) for name in NAMES), "bank")
SILENT_S = 3.0
SHAPE = (128, 64)


def flare():
    return pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")


# ---- parts


def block(name, number):
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1000 * len(name) + number))


async def echo(site, config, net, *, resume=False):
    """Send embeddings up and gradients down for 40 rounds, then a message between the two passive parties."""
    sums = {}
    for number in range(40):
        for name in site.parties:
            if net.me == site.active and name != net.me:
                got = (await net.recv(name, "embedding", {}))["h"]
                sums[name] = sums.get(name, 0) + float(got.double().sum())
                await net.send(name, "gradient", {"g": got * 2})
        if net.me != site.active:
            await net.send(site.active, "embedding", {"h": block(net.me, number)})
            assert torch.equal((await net.recv(site.active, "gradient", {}))["g"], 2 * block(net.me, number))
    if net.me == site.active:
        return {"sums": sums, "seed": config.train.seed, "resume": resume}
    other = next(name for name in site.parties if name not in {net.me, site.active})
    await net.send(other, "greeting", {"large": torch.full((1_000_000,), 7.0)})
    return float((await net.recv(other, "greeting", {}))["large"].sum())


async def shop_dies(site, config, net, *, resume=False):
    """Kill the shop's process in round 10 of 20; the others continue."""
    there, lost = [name for name in site.parties if name != site.active], {}
    for number in range(20):
        if net.me == "shop" and number == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        if net.me != site.active:
            await net.send(site.active, "embedding", {"h": block(net.me, number)})
            await net.recv(site.active, "gradient", {})
            continue
        for name in list(there):
            began = time.monotonic()
            try:
                await net.recv(name, "embedding", {})
            except PartyLost as error:
                there.remove(name)
                lost[name] = [number, time.monotonic() - began, str(error)]
        for name in there:
            await net.send(name, "gradient", {})
    return {"lost": lost, "there": there}


async def shop_stops(site, config, net, *, resume=False):
    """Let the shop fail because of an error in its table."""
    if net.me == "shop":
        raise TableError("row 7: 'secret' is not a number")
    if net.me == site.active:
        try:
            await net.recv("shop", "embedding", {})
        except PartyLost as error:
            await net.send("clinic", "end", {})
            return str(error)
    return await net.recv(site.active, "end", {})


async def bank_dies(site, config, net, *, resume=False):
    """Kill the active party's process."""
    if net.me == site.active:
        await net.recv("shop", "ready", {})
        await net.recv("clinic", "ready", {})
        os.kill(os.getpid(), signal.SIGKILL)
    await net.send(site.active, "ready", {})
    (site.folder / "waits").write_text(str(time.time()))
    await net.recv(site.active, "gradient", {})


async def shop_is_stopped(site, config, net, *, resume=False):
    """Stop the shop's site as Ctrl-C at its terminal does, while the others wait for it."""
    if net.me == "shop":
        for name in ("bank", "clinic"):
            await net.recv(name, "ready", {})
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        await net.send("shop", "ready", {})
    began = time.monotonic()
    try:
        await net.recv("shop" if net.me != "shop" else site.active, "embedding", {})
    except PartyLost as error:
        return [str(error), time.monotonic() - began]


async def bank_is_stopped(site, config, net, *, resume=False):
    """Stop the active party's site."""
    if net.me == site.active:
        for name in ("shop", "clinic"):
            await net.recv(name, "ready", {})
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        await net.send(site.active, "ready", {})
    await net.recv("shop" if net.me == site.active else site.active, "gradient", {})


async def endless(site, config, net, *, resume=False):
    """Let each party wait for messages that are never sent."""
    (site.folder / "waits").write_text("")
    for name in site.parties:
        if name != net.me:
            await net.recv(name, "never", {})


# ---- the federation


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    flare()
    from tests.ports import free_port  # noqa: PLC0415 - the parties' processes, which import this file, have no tests

    folder = tmp_path_factory.mktemp("federation") / "fed"
    port = free_port()
    site = {"parts": {"train": f"{Path(__file__).stem}:echo"}, "threads": 1, "patience": {"silent_s": SILENT_S}}
    federation_folder.init(folder, ROSTER, port=port, site=site)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        try:
            federation_folder.start(folder, 240.0)
            yield folder
        finally:
            federation_folder.stop(folder)
    assert federation_folder.processes(folder) == []
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


def run_job(folder, part, config="", timeout_s=300, **more):
    """Run a job in which every party plays ``part``; return its status and each party's outcome."""
    for name in NAMES:
        path = folder / "kits" / name / "local" / "anyparty.toml"
        own = tomllib.loads(path.read_text())
        path.write_text(tomli_w.dumps(own | {"parts": {"train": f"{Path(__file__).stem}:{part.__name__}"}}))
        (folder / "kits" / name / "runs").mkdir(exist_ok=True)
        (folder / "kits" / name / "runs" / "waits").unlink(missing_ok=True)
    job = federation_folder.submit(folder, config, **more)
    status = federation_folder.wait(folder, job, timeout_s)
    return status, {name: federation_folder.outcome(folder, name, job) for name in NAMES}


def wait_for(happens, timeout_s=150.0):
    end = time.monotonic() + timeout_s
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.net
def test_parties_exchange_messages(folder):
    status, ended = run_job(folder, echo, "[train]\nseed = 5\n", asked={"resume": True})
    assert status == "FINISHED:COMPLETED"
    assert not any(each["error"] for each in ended.values())
    sums = {name: sum(float(block(name, number).double().sum()) for number in range(40)) for name in NAMES[1:]}
    assert ended["bank"]["result"] == {"sums": sums, "seed": 5, "resume": True}
    assert ended["shop"]["result"] == ended["clinic"]["result"] == 7_000_000.0
    traffic = ended["shop"]["traffic"]["bank"]
    assert traffic["messages"] == 40 + traffic["repeated"]
    assert traffic["bytes_sent"] / traffic["messages"] <= 1.02 * 4 * SHAPE[0] * SHAPE[1]


def test_class_names_in_kits_and_jobs_can_be_imported(folder, tmp_path):
    """FLARE imports them by their names, which are strings in our code."""
    federation_folder._write_job(tmp_path / "job", read_federation(folder), "", work="train", asked={}, least=1)
    files = [*folder.glob("kits/*/local/*.json"), *tmp_path.glob("job/app/config/*.json")]
    named = {name for file in files for name in re.findall(r'"path": "(anyparty[.\w]+)"', file.read_text())}
    assert {name.rpartition(".")[2] for name in named} >= {"ActiveJobParty", "PassiveJobParty", "AdmissionController"}
    for name in named:
        module, _, kind = name.rpartition(".")
        assert isinstance(getattr(import_module(module), kind), type), name


@pytest.mark.net
def test_the_others_continue_after_a_passive_party_is_killed(folder):
    status, ended = run_job(folder, shop_dies)
    number, seconds, said = ended["bank"]["result"]["lost"]["shop"]
    assert number == 10
    assert seconds < SILENT_S + 30  # a busy machine is late; without the limit it would be an hour
    # the dead process says nothing; its next one, begun after half a second, may be heard before the 3 s are over
    silent, restarted = "it gave no sign of life for 3 s", "its process was restarted during the run"
    assert f"party 'shop' is gone: {silent}" in said or f"party 'shop' is gone: {restarted}" in said
    assert ended["bank"]["result"]["there"] == ["clinic"]
    assert ended["clinic"]["error"] == ""
    again = ended[
        "shop"
    ]  # the outcome of its next process, which waited to rejoin and was not readmitted; None if that never began
    assert again is None or "party 'bank' is gone: it left: its part is done" in again["sentence"]
    assert status == "FINISHED:COMPLETED"


@pytest.mark.net
def test_a_stopped_site_of_a_passive_party_informs_the_others(folder):
    status, ended = run_job(folder, shop_is_stopped)
    for name in ("bank", "clinic"):
        said, seconds = ended[name]["result"]
        assert said.startswith("party 'shop' is gone: it left: its site was stopped")
        assert seconds < SILENT_S + 100  # from its own start: the other processes may start later
    assert status == "FINISHED:COMPLETED"
    assert ended["shop"]["result"][0].startswith("party 'bank' is gone: its site was stopped")


@pytest.mark.net
def test_a_stopped_site_of_the_active_party_informs_the_others(folder):
    _, ended = run_job(folder, bank_is_stopped)
    for name in ("shop", "clinic"):
        assert "party 'bank' is gone: it left: its site was stopped" in ended[name]["sentence"]
    assert "its site was stopped" in ended["bank"]["sentence"]


@pytest.mark.net
def test_the_error_message_of_a_passive_party_stays_in_its_kit(folder):
    status, ended = run_job(folder, shop_stops)
    why = "party 'shop' is gone: it left: it stopped with TableError; site.log in its kit says why"
    assert why in ended["bank"]["result"]
    assert b"'secret' is not a number" in (folder / "kits" / "shop" / "site.log").read_bytes()
    assert "secret" not in str(ended["bank"])
    assert "'secret' is not a number" in ended["shop"]["sentence"]
    assert status == "FINISHED:COMPLETED"
    files = [path for path in (folder / "kits" / "bank").rglob("*") if path.is_file()]
    assert not [path for path in files if b"secret' is not a number" in path.read_bytes() and path.suffix != ".pyc"]


@pytest.mark.net
def test_the_others_stop_in_time_after_the_active_party_is_killed(folder):
    status, _ = run_job(folder, bank_dies)
    wait_for(lambda: all((folder / "kits" / name / "runs" / "waits").exists() for name in NAMES[1:]))
    job = federation_folder.status(folder)["jobs"][-1]["job_id"]
    wait_for(lambda: all(federation_folder.outcome(folder, name, job) for name in NAMES[1:]))
    assert status.startswith("FINISHED")
    assert status != "FINISHED:COMPLETED"
    homes = {name: folder / "kits" / name / "runs" for name in NAMES[1:]}
    killed = max(float((runs / "waits").read_text()) for runs in homes.values())  # after the last of them had started
    for name, runs in homes.items():
        assert (runs / f"{job}.json").stat().st_mtime - killed < SILENT_S + 30
        assert "party 'bank' is gone" in federation_folder.outcome(folder, name, job)["sentence"]


@pytest.mark.net
def test_an_aborted_job_ends_and_sites_stay_connected(folder):
    for name in NAMES:
        path = folder / "kits" / name / "local" / "anyparty.toml"
        own = tomllib.loads(path.read_text())
        path.write_text(tomli_w.dumps(own | {"parts": {"train": f"{Path(__file__).stem}:endless"}}))
        (folder / "kits" / name / "runs" / "waits").unlink(missing_ok=True)
    job = federation_folder.submit(folder, "")
    wait_for(lambda: all((folder / "kits" / name / "runs" / "waits").exists() for name in NAMES))
    federation_folder.abort(folder, job)
    assert federation_folder.wait(folder, job, 150) == "FINISHED:ABORTED"
    assert federation_folder.status(folder)["sites"] == ["clinic", "shop"]


@pytest.mark.net
def test_a_running_federation_is_not_started_again(folder):
    with pytest.raises(ConfigError, match="run already"):
        federation_folder.start(folder)


@pytest.mark.net
def test_a_local_federation_listens_on_loopback_only(folder):
    psutil = pytest.importorskip("psutil")
    mine = {process.pid for process in federation_folder.processes(folder)}
    listens = [each for each in psutil.net_connections("inet") if each.pid in mine and each.status == "LISTEN"]
    assert listens
    assert {each.laddr.ip for each in listens} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.mark.net
def test_a_party_with_a_certificate_of_another_authority_is_not_admitted(folder, tmp_path):
    forged, port = tmp_path / "forged", read_federation(folder)["port"]
    kits = federation_folder.init(forged, Roster((Party(name="bank"), Party(name="mallory")), "bank"), port=port)
    with pytest.raises(ConfigError, match="has a certificate that does not match this kit"):
        federation_folder.status(forged)
    command = site_command(kits["mallory"])
    with subprocess.Popen(command, env=environment(), cwd=kits["mallory"], stdout=subprocess.DEVNULL) as mallory:  # noqa: S603
        try:
            time.sleep(8)  # the others were admitted within five seconds
            assert federation_folder.processes(forged)
            assert federation_folder.status(folder)["sites"] == ["clinic", "shop"]
        finally:
            federation_folder.stop(forged)
            mallory.kill()


# ---- without processes


def test_a_kit_holds_the_site_settings_and_no_log_streamer(tmp_path):
    flare()
    table = tmp_path / "shop.csv"
    kits = federation_folder.init(tmp_path / "fed", ROSTER, "vfl.bank.example", 8002, tables={"shop": table})
    assert set(kits) == {*NAMES, "admin"}
    site = SiteConfig.read(kits["shop"])
    assert (site.party, site.active, site.parties) == ("shop", "bank", tuple(NAMES))
    assert site.table == table
    assert site.folder == kits["shop"] / "runs"
    assert stat.S_IMODE(kits["shop"].stat().st_mode) == 0o700
    assert "vfl.bank.example:8002" in (kits["shop"] / "startup" / "fed_client.json").read_text()
    resources = (kits["shop"] / "local" / "resources.json").read_text()
    assert '"allow_log_streaming": false' in resources
    assert "LogStreamer" not in resources
    with pytest.raises(ConfigError, match="holds a federation already"):
        federation_folder.init(tmp_path / "fed", ROSTER)


@pytest.mark.parametrize(
    ("names", "active", "said"),
    [
        (["a", "b c"], "a", "party 'b c'"),
        (["a", "server"], "a", "party 'server'"),
        (["a", "b", "B"], "a", "two parties have one name"),
        (["a", "b"], "z", "'z' as active"),
        (["a"], "a", "two parties or more"),
    ],
)
def test_invalid_rosters_are_refused(tmp_path, names, active, said):
    roster = Roster(tuple(Party(name=name) for name in names), active)
    with pytest.raises(ConfigError, match=said):
        federation_folder.init(tmp_path / "fed", roster)
    assert not (tmp_path / "fed").exists()


def test_a_port_in_use_is_reported(tmp_path):
    flare()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        federation_folder.init(tmp_path / "fed", ROSTER, port=other.getsockname()[1])
        with pytest.raises(ConfigError, match=f"port {other.getsockname()[1]} cannot be used"):
            federation_folder.start(tmp_path / "fed")
    assert federation_folder.processes(tmp_path / "fed") == []


def test_a_zombie_process_is_not_listed(tmp_path):
    """A process that was killed but not yet waited for is a zombie; its command line is still known to the caller."""
    pytest.importorskip("psutil", reason="the extra 'flare' is not installed")
    kit = str(tmp_path / "fed" / "kits" / "shop")
    sleeps = [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)", "nvflare.private", kit]
    with subprocess.Popen(sleeps, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own command
        try:
            assert process.stdout.readline()
            (found,) = federation_folder.processes(tmp_path / "fed")
        finally:
            process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert found.info["cmdline"] == sleeps
        assert federation_folder.processes(tmp_path / "fed") == []


def test_a_kit_path_does_not_match_a_longer_path_with_the_same_prefix(tmp_path, monkeypatch):
    psutil = pytest.importorskip("psutil", reason="the extra 'flare' is not installed")
    words = ["python", "-m", "nvflare.private.fed.app.client.client_train", "-m"]
    bank, other = (SimpleNamespace(info={"cmdline": [*words, str(tmp_path / kit)]}) for kit in ("bank", "bank2"))
    monkeypatch.setattr(psutil, "process_iter", lambda _: [bank, other])
    assert site_process.at_kit(tmp_path / "bank") == [bank]
    assert site_process.at_kit(tmp_path) == [bank, other]


def test_two_simultaneous_starts_of_a_federation_are_refused(tmp_path, monkeypatch):
    flare()
    said = {"active": "bank", "parties": NAMES, "host": "127.0.0.1", "port": 9, "scheme": "grpc"}
    (tmp_path / "federation.toml").write_text(tomli_w.dumps(said), encoding="utf-8")
    for name in NAMES:
        (tmp_path / "kits" / name / "startup").mkdir(parents=True)
    told, refused = [], []

    def start_again(*_):  # the first call has checked that nothing runs yet: make the second call now
        if not told:
            told.append(tmp_path)
            with pytest.raises(ConfigError, match="are being started already; wait until they are"):
                federation_folder.start(tmp_path)
            refused.append(tmp_path)

    def stop_here(_):
        raise RunError("far enough")

    monkeypatch.setattr(site_process, "port_is_free", start_again)
    monkeypatch.setattr(site_process, "write_site_files", stop_here)
    with pytest.raises(RunError, match="far enough"):
        federation_folder.start(tmp_path)
    assert refused


def test_an_unwritable_folder_is_reported(tmp_path):
    (tmp_path / "fed").write_text("a file where a folder should be")
    said = r"fed/\.site\.lock: cannot be written \(.+\); make the folder writable"
    with pytest.raises(StorageError, match=said), site_process.alone(tmp_path / "fed", "nobody else"):
        pass


def test_an_unreachable_server_is_reported(tmp_path):
    flare()
    federation_folder.init(tmp_path / "fed", ROSTER, port=9)
    with pytest.raises(RunError, match=r"127.0.0.1:9 cannot be reached \(connection refused\)"):
        federation_folder.status(tmp_path / "fed")


def test_a_folder_without_a_federation_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="holds no federation"):
        federation_folder.submit(tmp_path, "")
    with pytest.raises(ConfigError, match="not a kit"):
        write_site_files(tmp_path)
    with pytest.raises(ConfigError, match=r"anyparty.toml: no such file"):
        SiteConfig.read(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("active = ", "not TOML"),
        ('parties = ["a"]\nhost = "h"\nport = 1\nscheme = "grpc"', "active: expected a value"),
        ('active = "a"\nparties = ["a"]\nhost = "h"\nport = "x"\nscheme = "grpc"', "port: .*'x'"),
        ("active = 'ä'", "not TOML"),
    ],
)
def test_an_invalid_federation_file_is_reported(tmp_path, text, said):
    (tmp_path / "federation.toml").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=rf"federation.toml: .*{said}"):
        read_federation(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("party = ", "not TOML"),
        ('party = "a"\nactive = "b"\nparties = ["b"]', "'a' is not among its parties"),
        ('party = "a"\nactive = "a"\nparties = ["a"]\ntabel = "x.csv"', "no setting 'tabel'; did you mean 'table'"),
        ('party = "a"\nactive = "a"\nparties = ["a"]\n[patience]\nsilent_s = "long"', "patience.silent_s"),
    ],
)
def test_an_invalid_site_file_is_reported(tmp_path, text, said):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "anyparty.toml").write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        SiteConfig.read(tmp_path)
    assert "anyparty.toml" in str(caught.value)


def test_a_site_file_may_start_with_a_byte_order_mark_but_must_be_utf_8(tmp_path):
    (tmp_path / "local").mkdir()
    own, text = tmp_path / "local" / "anyparty.toml", 'party = "ä"\nactive = "ä"\nparties = ["ä"]\n'
    own.write_text(text, encoding="utf-8-sig")
    assert SiteConfig.read(tmp_path).party == "ä"
    own.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"anyparty\.toml: this is not TOML"):
        SiteConfig.read(tmp_path)


def test_a_job_may_name_only_encoder_code_that_the_kit_lists(tmp_path):
    (tmp_path / "local").mkdir()
    own = 'party = "a"\nactive = "a"\nparties = ["a"]\n'
    (tmp_path / "local" / "anyparty.toml").write_text(own)
    config = Config.of({"encoder": {"factory": "torch.nn:Linear"}})
    with pytest.raises(ConfigError, match=r'write encoders = \["torch.nn:Linear"\] into local/anyparty.toml'):
        encoder_at(SiteConfig.read(tmp_path), config)
    (tmp_path / "local" / "anyparty.toml").write_text(own + 'encoders = ["torch.nn:Linear"]\n')
    assert encoder_at(SiteConfig.read(tmp_path), config) is nn.Linear
    assert encoder_at(SiteConfig.read(tmp_path), Config()) == MLP()


def test_a_job_may_name_only_user_defined_methods_that_the_kit_lists(tmp_path):
    (tmp_path / "local").mkdir()
    own = 'party = "a"\nactive = "a"\nparties = ["a"]\n'
    (tmp_path / "local" / "anyparty.toml").write_text(own)
    config = Config.of({"method": {"factory": "anyparty.methods.split.plug:Plug", "name": "ours"}})
    with pytest.raises(
        ConfigError, match=r'write methods = \["anyparty.methods.split.plug:Plug"\] into local/anyparty.toml'
    ):
        method_at(SiteConfig.read(tmp_path), config)
    (tmp_path / "local" / "anyparty.toml").write_text(own + 'methods = ["anyparty.methods.split.plug:Plug"]\n')
    assert method_at(SiteConfig.read(tmp_path), config) == method("plug")
    assert method_at(SiteConfig.read(tmp_path), Config()) == method("sum")


def test_a_part_that_cannot_be_imported_is_reported():
    site = SiteConfig(party="a", active="a", parties=("a",), parts={"train": "anyparty.training.party:nobody"})
    with pytest.raises(ConfigError, match=r"cannot import 'anyparty.training.party:nobody', its part in 'train'"):
        site.load_part("train")
    with pytest.raises(ConfigError, match=r"a job asks for 'serve', its own settings \(parts\) allow \['train'\]"):
        site.load_part("serve")


def test_paths_are_removed_from_settings_before_they_are_sent():
    sent = federation_folder.public(
        '[parties.shop]\ntable = "/home/ann/shop.csv"\nid = "id"\n[run]\nfolder = "/tmp/x"\n'
    )
    assert "/" not in sent
    assert 'id = "id"' in sent
