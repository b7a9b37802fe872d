"""A faulty kit, and a missing or foreign server, each cause one error message in time and no stack trace."""

import contextlib
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from anyparty.core.types import Party, Roster
from anyparty.deployment.flare import admin, federation_folder, preflight, provisioning, site_process
from anyparty.deployment.flare.preflight import ServerAddress, await_server, check_certificate, check_key, probe
from anyparty.errors import ConfigError, RunError
from tests.ports import free_port

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")

from cryptography.hazmat.primitives import serialization
from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert, serialize_pri_key

NAMES = ["bank", "shop"]
ROSTER = Roster(tuple(Party(name=name) for name in NAMES), "bank")
NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Create two federations on one port, each with its own authority."""
    home, port = tmp_path_factory.mktemp("made"), free_port()
    for name in ("ours", "theirs"):
        federation_folder.init(home / name, ROSTER, port=port)
    return home


@pytest.fixture
def home(made, tmp_path):
    """Copy both federations, so that a test may damage them."""
    return Path(shutil.copytree(made, tmp_path / "home"))


def point_at(kit: Path, host: str, port: int) -> ServerAddress:
    old = ServerAddress.of(kit)
    for path in kit.glob("startup/fed_*.json"):
        text = path.read_text().replace(old.place, f"{host}:{port}").replace(f'"port": {old.port}', f'"port": {port}')
        path.write_text(text.replace(f'"host": "{old.host}"', f'"host": "{host}"'))
    return ServerAddress.of(kit)


def reissue(folder: Path, party: str, begins: datetime, ends: datetime, name: str = "") -> Path:
    """Issue a new certificate with these dates to a party, by the federation's own authority; return its kit."""
    root = serialization.load_pem_private_key((folder / "authority" / "rootCA.key").read_bytes(), None)
    key, public = generate_keys()
    certificate = generate_cert(
        Identity(name or party, party),
        Identity("anyparty"),
        root,
        public,
        not_valid_before=begins,
        not_valid_after=ends,
    )
    kit = folder / "kits" / party
    gate = ServerAddress.of(kit)
    gate.certificate.write_bytes(serialize_cert(certificate))
    gate.key.write_bytes(serialize_pri_key(key))
    return kit


def never_answer(line):
    time.sleep(1)


def close_connection(line):
    pass


def answer_plain_http(line):
    line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@contextlib.contextmanager
def listening(answer=close_connection, port=0):
    """Listen on a port, and pass every connection to ``answer``."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("0.0.0.0", port))  # noqa: S104 - a test of addresses
        server.listen()

        def serve():
            while True:
                try:
                    line, _ = server.accept()
                except OSError:
                    return
                with line, contextlib.suppress(OSError):
                    answer(line)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def greeted_by(kit: Path, port: int = 0):
    """Listen with a party's certificate and request a client certificate of the same authority, as FLARE does."""
    context, gate = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ServerAddress.of(kit)
    context.load_cert_chain(gate.certificate, gate.key)
    context.load_verify_locations(gate.authority)
    context.verify_mode = ssl.CERT_REQUIRED

    def answer(line):
        with context.wrap_socket(line, server_side=True) as secure:
            secure.recv(1)

    return listening(answer, port)


# ---- certificates


def test_a_new_kit_passes_the_certificate_check_without_warnings(home):
    said = []
    for name in NAMES:
        check_certificate(ServerAddress.of(home / "ours" / "kits" / name, name), said.append)
    check_certificate(ServerAddress.of(home / "ours" / "kits" / "admin"), said.append)
    assert said == []


@pytest.mark.parametrize("party", NAMES)
def test_an_expired_certificate_is_reported_before_a_process_starts(home, call, party):
    kit = reissue(home / "ours", party, NOW - timedelta(days=20), NOW - timedelta(days=2))
    shown = call("party", "start", kit, "--wait", 1)
    assert shown.exit_code == 2
    assert f"the certificate expired on {NOW - timedelta(days=2):%Y-%m-%d %H:%M} UTC" in shown.stderr
    assert str(ServerAddress.of(kit).certificate) in shown.stderr
    assert "new kits for all parties, by 'anyparty federate init'" in shown.stderr
    shown = call("federate", "start", home / "ours")
    assert shown.exit_code == 2
    assert "the certificate expired on" in shown.stderr
    assert federation_folder.processes(home / "ours") == []


def test_an_expired_administrator_certificate_is_reported(home, call):
    reissue(home / "ours", "admin", NOW - timedelta(days=20), NOW - timedelta(days=2))
    shown = call("federate", "status", home / "ours")
    assert shown.exit_code == 2
    assert "admin/startup/client.crt: the certificate expired on" in shown.stderr


def test_a_certificate_that_is_not_valid_yet_suggests_a_wrong_clock(home):
    kit = reissue(home / "ours", "shop", NOW + timedelta(hours=3), NOW + timedelta(days=30))
    with pytest.raises(ConfigError, match=r"valid from .* UTC, and this machine's clock says .* UTC; set the clock"):
        federation_folder.run_site(kit, 0)


def test_a_certificate_that_expires_soon_causes_a_warning(home):
    kit, said = reissue(home / "ours", "shop", NOW - timedelta(days=300), NOW + timedelta(days=12, hours=9)), []
    with pytest.raises(RunError, match="cannot be reached"):
        federation_folder.run_site(kit, 0, said.append)
    assert f"the certificate ends on {NOW + timedelta(days=12, hours=9):%Y-%m-%d %H:%M} UTC, in 12 days" in said[0]


def test_an_expired_authority_invalidates_the_certificate(home, monkeypatch):
    def until(end):
        return SimpleNamespace(
            not_valid_before_utc=NOW - timedelta(days=9), not_valid_after_utc=end,
            verify_directly_issued_by=lambda _: None, subject=SimpleNamespace(get_attributes_for_oid=lambda _: []),
        )  # fmt: skip

    both = until(NOW + timedelta(days=99)), until(NOW - timedelta(days=1))
    monkeypatch.setattr(preflight, "_certificates", lambda _: both)
    with pytest.raises(ConfigError, match="the certificate expired on"):
        check_certificate(ServerAddress.of(home / "ours" / "kits" / "shop"))


@pytest.mark.parametrize(
    ("kit", "key", "told"),
    [(0o700, 0o644, False), (0o755, 0o600, False), (0o755, 0o644, True), (0o711, 0o644, True), (0o750, 0o640, True)],
)
def test_a_private_key_readable_by_others_causes_a_warning(home, kit, key, told):
    """A ZIP file may not keep file permissions."""
    gate, said = ServerAddress.of(home / "ours" / "kits" / "shop"), []
    gate.kit.chmod(kit)
    gate.key.chmod(key)
    check_key(gate, said.append)
    sentence = f"{gate.key}: others on this machine can read this private key: chmod -R go= {gate.kit}"
    assert said == ([sentence] if told else [])


def test_an_unreadable_private_key_is_reported(home, monkeypatch):
    def denied(*_):
        raise PermissionError

    gate = ServerAddress.of(home / "ours" / "kits" / "shop")
    monkeypatch.setattr(Path, "open", denied)  # root could read it with any permissions
    with pytest.raises(ConfigError, match=r"may not read the private key; .* chown -R USER"):
        check_key(gate)


def test_a_certificate_of_another_authority_is_reported(home):
    ours, theirs = (home / name / "kits" / "shop" for name in ("ours", "theirs"))
    for name in ("client.crt", "client.key"):
        shutil.copy(theirs / "startup" / name, ours / "startup" / name)
    with pytest.raises(
        ConfigError, match=r"client.crt: this certificate was not issued by the authority in rootCA.pem"
    ):
        federation_folder.run_site(ours, 0)


def test_a_certificate_with_another_partys_name_is_refused(home):
    kit = reissue(home / "ours", "shop", NOW - timedelta(days=1), NOW + timedelta(days=99), name="mallory")
    with pytest.raises(ConfigError, match=r"names \['mallory'\], but the kit's own settings say party = 'shop'"):
        federation_folder.run_site(kit, 0)


def test_a_party_that_is_not_in_the_roster_is_reported(home, call):
    path = home / "ours" / "kits" / "shop" / "local" / "anyparty.toml"
    path.write_text(path.read_text().replace('party = "shop"', 'party = "mallory"'))
    shown = call("party", "start", home / "ours" / "kits" / "shop")
    assert shown.exit_code == 2
    assert "'mallory' is not among its parties ['bank', 'shop']" in shown.stderr


@pytest.mark.parametrize("lost", ["client.crt", "client.key", "rootCA.pem"])
def test_a_kit_with_a_missing_file_is_reported(home, lost):
    kit = home / "ours" / "kits" / "shop"
    (kit / "startup" / lost).unlink()
    with pytest.raises(ConfigError, match=r"kits/shop.* cannot be (read|used) .*; copy the kit again"):
        federation_folder.run_site(kit, 0)


def test_a_folder_that_is_not_a_kit_is_reported(tmp_path, call):
    shown = call("party", "start", tmp_path)
    assert shown.exit_code == 2
    assert "is not a kit of 'anyparty federate init'" in shown.stderr


def test_a_kit_folder_may_be_renamed(home):
    kit = (home / "ours" / "kits" / "shop").rename(home / "Köln")
    assert {"uid=shop", "org=shop"} <= set(site_process.site_command(kit))
    provisioning.check_place(kit)


@pytest.mark.parametrize("name", ["my kit", "mother's", "no#1", "back\\slash"])
def test_a_path_from_which_flare_cannot_start_jobs_is_reported(home, call, name):
    kit = (home / "ours" / "kits" / "shop").rename(home / name)
    shown = call("party", "start", kit)
    assert shown.exit_code == 2
    assert f"{kit}: FLARE cannot start jobs from a path with blanks, quotes, '#' or backslashes" in shown.stderr
    with pytest.raises(ConfigError, match="cannot start jobs from a path"):
        federation_folder.init(home / name / "house", ROSTER)
    assert not (home / name / "house").exists()


@pytest.mark.parametrize("host", ["my_host", "::1", "shop"])
def test_an_invalid_host_is_reported_and_creates_no_folder(tmp_path, host):
    with pytest.raises(ConfigError, match=f"host '{host}': expected a name of letters"):
        federation_folder.init(tmp_path / "fed", ROSTER, host)
    assert set(federation_folder.init(tmp_path / "fed", ROSTER)) == {"admin", "bank", "shop"}


def test_an_incomplete_federation_folder_is_reported(tmp_path):
    (tmp_path / "fed" / "authority").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"fed holds an incomplete federation; remove it"):
        federation_folder.init(tmp_path / "fed", ROSTER)


def test_processes_that_do_not_end_are_reported(tmp_path, monkeypatch):
    """They may belong to another user, and then cannot be signalled; processes that have ended are not named."""
    theirs, over = SimpleNamespace(pid=4711), SimpleNamespace(pid=4712)
    looks = iter([[theirs, over], [theirs]])
    monkeypatch.setattr(site_process, "processes", lambda _: next(looks))
    monkeypatch.setattr(site_process, "end", lambda found, _: found)
    with pytest.raises(RunError, match=r"processes \[4711\] of this federation do not end; if another user"):
        federation_folder.stop(tmp_path)


# ---- servers


def test_a_server_of_the_federation_passes_the_probe(home):
    with greeted_by(home / "ours" / "kits" / "bank") as port:
        for name in ("shop", "admin"):
            assert probe(point_at(home / "ours" / "kits" / name, "127.0.0.1", port)) is None


class Clock:
    """Replaces ``time``: its clock advances only in ``sleep``."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_a_site_waits_for_a_server_that_starts_late(home, monkeypatch):
    monkeypatch.setattr(preflight, "time", Clock())
    bank, said, port = home / "ours" / "kits" / "bank", [], free_port()
    gate = point_at(home / "ours" / "kits" / "shop", "127.0.0.1", port)
    with contextlib.ExitStack() as late:

        def say(sentence):
            said.append(sentence)
            if len(said) == 3:
                late.enter_context(greeted_by(bank, port))

        await_server(gate, 10, say)
    assert len(said) == 3
    assert said[0] == f"waiting for 127.0.0.1:{port} (connection refused); next try in 1 s, giving up in 10 s"


def test_an_unreachable_server_is_given_up_at_the_time_limit(home, monkeypatch, call):
    monkeypatch.setattr(preflight, "time", clock := Clock())
    kit, port = home / "ours" / "kits" / "shop", free_port()
    point_at(kit, "127.0.0.1", port)
    shown = call("party", "start", kit, "--wait", 9)
    assert clock.now == 109.0
    assert shown.exit_code == 2
    *waits, last = shown.stderr.splitlines()
    assert [wait.partition("; ")[2] for wait in waits] == [
        f"next try in {pause} s, giving up in {left} s" for pause, left in ((1, 9), (2, 8), (4, 6), (2, 2))
    ]
    assert all(f"waiting for 127.0.0.1:{port} (connection refused)" in wait for wait in waits)
    assert f"127.0.0.1:{port} cannot be reached (connection refused, tried for 9 s)" in last
    assert "Is the active party's site running there (anyparty party start KIT)?" in last
    assert f"Does its firewall let port {port} in?" in last
    assert "Traceback" not in shown.output + shown.stderr
    assert federation_folder.processes(home / "ours") == []


@pytest.mark.parametrize("words", [("status",), ("train", "settings.toml")])
def test_administrator_commands_report_a_missing_server_immediately(home, call, words, tmp_path, monkeypatch):
    """The check precedes FLARE's own client, which would retry for long."""
    path = tmp_path / "settings.toml"
    monkeypatch.setattr(admin, "subprocess", None)
    path.write_text('[federation]\nlabel = "y"\nactive = "bank"\n[parties.bank]\n[parties.shop]\n')
    command, *rest = words
    shown = call("federate", command, home / "ours", *[tmp_path / each for each in rest])
    assert shown.exit_code == 2
    assert (
        f"127.0.0.1:{ServerAddress.of(home / 'ours' / 'kits' / 'admin').port} cannot be reached (connection refused)"
        in (shown.stderr)
    )


def test_a_server_that_stops_during_a_request_is_reported(home, monkeypatch):
    answer = '{"error": "NoConnection: cannot connect to server: ERROR"}'
    monkeypatch.setattr(admin, "await_server", lambda _: None)
    monkeypatch.setattr(admin, "command_line", lambda *_, **__: [sys.executable, "-c", f"print('{answer}')"])
    with pytest.raises(RunError, match=r"stopped answering: is the active party's site .* --resume"):
        admin.ask_server(home / "ours", "wait", job="7")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (never_answer, "no answer for 0.2 s: a firewall, or no machine has that address"),
        (close_connection, "it closes the connection during"),
    ],
)
def test_a_server_without_a_tls_handshake_gives_the_reason_for_waiting(home, monkeypatch, answer, said):
    if answer is never_answer:
        monkeypatch.setattr(preflight, "TRY_S", 0.2)
    with listening(answer) as port:
        gate = point_at(home / "ours" / "kits" / "shop", "127.0.0.1", port)
        assert probe(gate).startswith((said, "connection reset"))


def test_an_unknown_host_name_is_reported(home):
    gate = point_at(home / "ours" / "kits" / "shop", "vfl.bank.invalid", 8002)
    with pytest.raises(RunError, match=r"vfl.bank.invalid:8002 cannot be reached \(the name 'vfl.bank.invalid' is not"):
        await_server(gate)


def test_another_program_on_the_port_is_reported(home):
    with listening(answer_plain_http) as port:
        gate = point_at(home / "ours" / "kits" / "shop", "127.0.0.1", port)
        with pytest.raises(ConfigError, match=r"another program listens there"):
            await_server(gate, 10)


def test_a_server_of_another_authority_is_reported(home):
    with greeted_by(home / "theirs" / "kits" / "bank") as port:
        gate = point_at(home / "ours" / "kits" / "shop", "127.0.0.1", port)
        with pytest.raises(ConfigError, match=rf"127.0.0.1:{port} has a certificate that does not match this kit"):
            await_server(gate, 10)


def test_a_server_with_another_name_is_reported(home):
    with greeted_by(home / "ours" / "kits" / "bank") as port:
        gate = point_at(home / "ours" / "kits" / "shop", "127.0.0.2", port)
        with pytest.raises(ConfigError, match=r"has a certificate that does not match this kit \(IP address mismatch"):
            await_server(gate, 10)


@pytest.mark.parametrize("how", ["expired", "foreign"])
def test_a_server_that_rejects_the_certificate_is_reported(home, how):
    """The server may reject a certificate that has passed the local checks."""
    with greeted_by(home / "ours" / "kits" / "bank") as port:
        kit = reissue(home / "ours", "shop", NOW - timedelta(days=20), NOW - timedelta(days=2))
        if how == "foreign":
            for name in ("client.crt", "client.key"):
                shutil.copy(home / "theirs" / "kits" / "shop" / "startup" / name, kit / "startup" / name)
        with pytest.raises(ConfigError, match=rf"127.0.0.1:{port} rejects the certificate .*shop/startup/client"):
            await_server(point_at(kit, "127.0.0.1", port), 10)


def test_a_server_that_stops_between_two_handshakes_can_be_retried(home, monkeypatch):
    greetings = iter([None, ConnectionRefusedError(111, "Connection refused")])

    def greet(gate, version, at):
        if (error := next(greetings)) is not None:
            raise error

    monkeypatch.setattr(preflight, "_handshake", greet)
    assert probe(ServerAddress.of(home / "ours" / "kits" / "shop")) == "connection refused"


def test_a_port_in_use_at_the_active_party_is_reported(home, call):
    kit = home / "ours" / "kits" / "bank"
    with listening() as port:
        point_at(kit, "127.0.0.1", port)
        shown = call("party", "start", kit)
    assert shown.exit_code == 2
    assert f"port {port} cannot be used (Address already in use)" in shown.stderr


def test_a_running_kit_is_not_started_again(home, call):
    kit = home / "ours" / "kits" / "shop"
    words = [sys.executable, "-c", "import time; time.sleep(60)", "nvflare.private", str(kit.resolve())]
    with subprocess.Popen(words) as other:  # noqa: S603
        try:
            wait_for(lambda: site_process.at_kit(kit))
            shown = call("party", "start", kit)
        finally:
            other.kill()
    assert shown.exit_code == 2
    assert f"this party's site runs already (process {other.pid}); stop that one first" in shown.stderr


def wait_for(happens, timeout_s=60.0):
    end = time.monotonic() + timeout_s
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.05)
