"""Run the commands of docs/how-to/two-machines.md on two machines with their own addresses.

A machine here is a network namespace and a mount namespace: it has its own interfaces and ports, and cannot see the
other one's files.  Both exist as long as a process that waits for the end of its input, so that nothing is left
behind however this test ends.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from anyparty import config as settings
from anyparty.deployment.site.site_training import train_at_site
from anyparty.transport import memory
from tests.conftest import write_tables
from tests.deployment.test_site_training import weights

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")

from anyparty.deployment.flare import site_process
from anyparty.deployment.flare.site_config import SiteConfig

pytestmark = pytest.mark.net
DOC = (Path(__file__).parents[2] / "docs" / "how-to" / "two-machines.md").read_text(encoding="utf-8")
MARKED = re.compile(r"<!-- (?P<how>run|file): (?P<where>\S+) -->\n```\w+\n(?P<text>.*?)```", re.DOTALL)
ADDRESSES = {"bank": "10.20.0.1", "shop": "10.20.0.2"}
START = "anyparty party start"


class Machine:
    """One organisation's machine, with its own network and files."""

    def __init__(self, name: str, home: Path) -> None:
        self.name, self.home, self.terminal = name, home, home / "terminal"
        self.site: subprocess.Popen[bytes] | None = None
        words = ["unshare", "--net", "--mount", "cat"]
        self.life = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE)  # noqa: S603

    @property
    def inside(self) -> list[str]:
        return ["nsenter", "--target", str(self.life.pid), "--net", "--mount", "--"]

    def shell(self, line: str, **more) -> subprocess.CompletedProcess[str]:
        words = [*self.inside, "bash", "-ec", f"cd {self.home}; {line}"]
        return subprocess.run(words, env=environment(), capture_output=True, text=True, check=False, **more)  # noqa: S603

    def do(self, line: str) -> str:
        done = self.shell(line, timeout=300)
        assert done.returncode == 0, f"{self.name}$ {line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, line: str) -> None:
        with self.terminal.open("ab") as out:
            words = [*self.inside, "bash", "-ec", f"cd {self.home}; exec {line}"]
            self.site = subprocess.Popen(words, env=environment(), stdout=out, stderr=out)  # noqa: S603

    @property
    def said(self) -> str:
        return self.terminal.read_text() if self.terminal.exists() else ""

    def stop(self) -> int:
        """Send Ctrl-C; return the exit code."""
        assert self.site is not None
        self.site.send_signal(signal.SIGINT)
        code, self.site = self.site.wait(60), None
        return code

    def end(self) -> None:
        if self.site is not None:
            self.site.terminate()
            self.site.wait(60)
        site_process.end(site_process.at_kit(self.home))
        self.life.communicate(timeout=60)


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def joined(machines: dict[str, Machine]) -> str:
    """Connect the machines, and hide each one's files from the other; return an error if this is not possible."""
    bank, shop = machines.values()
    up = "ip address add {address}/24 dev line; ip link set line up; ip link set lo up; mount -t tmpfs none {other}"
    lines = [
        (bank, f"ip link add line type veth peer name line netns {shop.life.pid}"),
        (bank, up.format(address=ADDRESSES["bank"], other=shop.home)),
        (shop, up.format(address=ADDRESSES["shop"], other=bank.home)),
    ]
    for machine in machines.values():
        wait_for(lambda machine=machine: machine.life.poll() is not None or apart(machine))
        if machine.life.poll() is not None:
            return machine.life.stderr.read().decode().strip()
    for machine, line in lines:
        done = machine.shell(line)
        if done.returncode:
            return done.stderr.strip()
    return ""


def apart(machine: Machine) -> bool:
    try:
        own, mine = (Path(f"/proc/{pid}/ns/mnt").readlink() for pid in (machine.life.pid, "self"))
    except OSError:
        return False
    return own != mine


@pytest.fixture
def machines(tmp_path):
    if sys.platform != "linux" or not all(shutil.which(name) for name in ("unshare", "nsenter", "ip", "openssl")):
        pytest.skip("network namespaces need Linux, with unshare, nsenter and ip")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell and their children ignore it
    write_tables(tmp_path / "tables", rows=400)
    every = {}
    try:
        for name in ADDRESSES:
            (tmp_path / name).mkdir()
            shutil.copy(tmp_path / "tables" / f"{name}.csv", tmp_path / name)
            every[name] = Machine(name, tmp_path / name)
        if why := joined(every):
            pytest.skip(f"network namespaces are not permitted here: {why}")
        yield every
    finally:
        for machine in every.values():
            machine.end()
    assert site_process.at_kit(tmp_path) == []
    assert [machine for machine in every.values() if Path(f"/proc/{machine.life.pid}").exists()] == []


def wait_for(happens, timeout_s=150.0):
    end = time.monotonic() + timeout_s
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.1)


def follow(machines: dict[str, Machine], text: str) -> dict[str, str]:
    """Run the commands of a part of the page on the machines that it names; return each command's output."""
    said, fingerprint = {}, ""
    for block in MARKED.finditer(text):
        if block["how"] == "file":
            (machines["bank"].home / block["where"]).write_text(block["text"], encoding="utf-8")
            continue
        machine = machines[block["where"]]
        for line in block["text"].splitlines():
            if line.startswith(START):
                machine.start(line)
            else:
                said[line] = machine.do(line.replace("FINGERPRINT", fingerprint))
                told = re.search(r"telephone: (\S+)", said[line])  # printed by one machine, and typed at the other
                fingerprint = told[1] if told else fingerprint
        for frm, to, parcels in (("shop", "bank", "*.request.zip"), ("bank", "shop", "*.approved.zip")):
            for parcel in machines[frm].home.glob(parcels):
                parcel.rename(machines[to].home / parcel.name)
    return said


def until(title: str) -> tuple[str, str]:
    """Split the page before a section."""
    at = DOC.index(f"\n## {title}")
    return DOC[:at], DOC[at:]


def connected(machines: dict[str, Machine], times: int = 1) -> None:
    bank, shop = machines.values()
    wait_for(lambda: bank.site is None or shop.said.count("shop is connected to 10.20.0.1:8002") == times)
    wait_for(lambda: bank.site is None or "shop is connected; there are 1 of 1 others: shop" in bank.said)


def parts_of(machines: dict[str, Machine]) -> dict[str, SiteConfig]:
    bank, shop = machines.values()
    return {"bank": SiteConfig.read(bank.home / "house" / "kits" / "bank"), "shop": SiteConfig.read(shop.home / "shop")}


def test_the_documented_steps_for_two_machines_work(machines, tmp_path):
    bank, shop = machines.values()
    recipe, rest = until("6. Train")
    said = follow(machines, recipe)
    assert "shop runs: anyparty party request shop" in said[next(line for line in said if "federate init" in line)]
    connected(machines)
    assert not (shop.home / "house").exists()
    key = (shop.home / "shop" / "startup" / "client.key").read_bytes().splitlines()[1]
    assert not [path for path in bank.home.rglob("*") if path.is_file() and key in path.read_bytes()]
    assert bank.do(f"ls {shop.home}") == shop.do(f"ls {bank.home}") == ""
    listens = {name: each.do("ss -ltnH | awk '{print $4}'").split() for name, each in machines.items()}
    assert [place for place in listens["bank"] if not place.startswith(("127.", "[::1]"))] == ["*:8002"]
    assert [place for place in listens["shop"] if not place.startswith(("127.", "[::1]"))] == []

    training, renewal = rest.split("\n## Certificates")
    said = follow(machines, training)
    assert '"shop"' in said["anyparty federate status house"]
    for command in ("anyparty federate train house credit.toml", "anyparty federate train house credit.toml --resume"):
        assert "FINISHED:COMPLETED" in said[command]
        assert "accuracy" in said[command]
        assert "rows of all tables together" in said[command]
        assert "task: classification" in said[command]
    alone = in_one_process(parts_of(machines), tmp_path)
    assert weights(parts_of(machines)) == alone

    assert [machine.stop() for machine in machines.values()] == [130, 130]
    assert site_process.at_kit(tmp_path) == []
    assert "expires" not in bank.said + shop.said

    said = follow(machines, renewal)
    assert said["openssl x509 -enddate -noout -in shop/startup/client.crt"].startswith("notAfter=")
    shop.start(f"{START} shop --wait 150")  # in the other order: the shop waits
    wait_for(lambda: "waiting for 10.20.0.1:8002 (connection refused)" in shop.said)
    bank.start(f"{START} house/kits/bank")
    connected(machines, times=2)
    assert '"shop"' in bank.do("anyparty federate status house")
    assert weights(parts_of(machines)) == alone


def test_an_unreachable_machine_is_given_up_in_time(machines):
    bank, shop = machines.values()
    follow(machines, until("5. Start")[0])
    assert bank.home.joinpath("house/kits/admin").exists()
    done = shop.shell(f"{START} shop --wait 2", timeout=120)
    assert done.returncode == 2
    assert "10.20.0.1:8002 cannot be reached (connection refused, tried for 2 s)" in done.stderr
    bank.do("ip link set line down")
    began = time.monotonic()
    done = shop.shell(f"{START} shop --wait 1", timeout=120)
    assert done.returncode == 2
    assert time.monotonic() - began < 60
    assert re.search(
        r"10.20.0.1:8002 cannot be reached \((no answer for 5 s: a firewall|no route to host)", done.stderr
    )


def in_one_process(apart: dict[str, SiteConfig], home: Path) -> dict[str, bytes]:
    """Train all parties in this process with the same tables, alignments and secrets; return the weights."""
    together = {}
    for name, site in apart.items():
        together[name] = site.model_copy(update={"folder": home / "together" / name})
        together[name].folder.mkdir(parents=True)
        for kept in ("alignment.safetensors", "secret"):
            shutil.copy(site.folder / kept, together[name].folder)
    resolved = settings.load(home / "bank" / "credit.toml").with_method_defaults()
    memory.play({name: partial(_part, site, resolved) for name, site in together.items()})
    return weights(together)


def _part(site, config, net):
    return train_at_site(site, config, net)


def test_every_documented_command_except_the_installation_is_run():
    """Only the installation and, here, the prediction of new rows are not run; ``tests/faults`` predicts new rows."""
    every = re.findall(r"```console\n(.*?)```", DOC, re.DOTALL)
    run = [block["text"] for block in MARKED.finditer(DOC) if block["how"] == "run"]
    assert [text for text in every if text not in run] == [
        'pip install "anyparty[flare]"\n', "anyparty federate predict house credit.toml --out answers.csv\n",
    ]  # fmt: skip
