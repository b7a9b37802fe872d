"""The listener at the federation's port, over loopback: strangers are kept out, and parties get through."""

import asyncio
import contextlib
import itertools
import os
import resource
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from anyparty.deployment.flare import gateway
from anyparty.deployment.flare.gateway import Gateway, GatewayLimits, connector, origin, peer_name, server_context
from anyparty.deployment.flare.port_driver import listen

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

LIMITS = GatewayLimits(handshake_s=1.0, handshakes=12, handshakes_each=8, connections=3, connections_each=2)
WAIT_S = 10.0


class Authority:
    """A certificate authority that writes certificates and keys into a folder, as FLARE does."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder, self.key = folder, ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        self.write("rootCA", self.signed("authority", self.key, ca=True), self.key)

    def signed(self, name, key, *, ca=False, days=1):
        now = datetime.now(UTC)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        built = (
            x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
            .serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=9))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )  # fmt: skip
        return built.sign(self.key, hashes.SHA256())

    def write(self, file, certificate, key):
        form = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        (self.folder / f"{file}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (self.folder / f"{file}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (self.folder / f"{file}.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))

    def issue(self, name, file=None, **more):
        key = ec.generate_private_key(ec.SECP256R1())
        self.write(file or name, self.signed(name, key, **more), key)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    """Return the federation's authority, with certificates of a server, two parties and an expired one; and another."""
    home = tmp_path_factory.mktemp("authorities")
    ours, theirs = Authority(home / "ours"), Authority(home / "theirs")
    for name in ("server", "shop", "clinic"):
        ours.issue(name)
    ours.issue("town", days=-1)
    ours.issue("../shop", file="odd")
    theirs.issue("shop")
    return ours, theirs


@pytest.fixture
def port(authorities, tmp_path, monkeypatch):
    """Run a gateway on a thread, in front of a server that answers with each client's name and then echoes."""
    monkeypatch.chdir(tmp_path)
    inner = socket.socket(socket.AF_UNIX)
    inner.bind(gateway.SERVER)
    inner.listen()
    names, sentences, loop = [], [], asyncio.new_event_loop()

    def answer(line):
        with line, contextlib.suppress(OSError):
            while data := line.recv(65_536):
                line.sendall(data)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                line, address = inner.accept()
                names.append(peer_name(address))
                threading.Thread(target=answer, args=(line,), daemon=True).start()

    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    made = Gateway(server_context(authorities[0].folder), connector(itertools.count()), LIMITS, sentences.append)
    threading.Thread(target=serve, daemon=True).start()

    async def run():
        serving = asyncio.create_task(made.serve(listening))
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    runner = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    runner.start()
    yield SimpleNamespace(
        number=listening.getsockname()[1], names=names, gateway=made, sentences=sentences, inner=inner, folder=tmp_path
    )
    loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
    runner.join(WAIT_S)
    assert not runner.is_alive()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    listening.close()
    inner.close()


def client(port, authority, name, version=ssl.TLSVersion.TLSv1_3):
    """Connect with a party's certificate and return the connection; with TLS 1.3, the answer comes with the data."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = version
    if name:
        context.load_cert_chain(authority.folder / f"{name}.crt", authority.folder / f"{name}.key")
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port.number), timeout=WAIT_S))


def echo(line, data=b"hello"):
    """Send data and return what comes back, until all of it or the end of the connection has come."""
    line.sendall(data)
    back = b""
    while len(back) < len(data) and (more := line.recv(65_536)):
        back += more
    return back


def ends(line):
    """Return True if the other side ends the connection, False if it stays open for ten seconds."""
    try:
        return line.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def wait_for(happens):
    end = time.monotonic() + WAIT_S
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def test_a_party_gets_through_under_the_name_in_its_certificate(authorities, port, version):
    data = os.urandom(3_000_000)
    with client(port, authorities[0], "shop", version) as line:
        sender = threading.Thread(target=line.sendall, args=(data,))
        sender.start()
        back = b""
        while len(back) < len(data):
            back += line.recv(65_536)
        sender.join()
    assert back == data
    assert port.names == ["shop"]
    assert sorted(path.name for path in port.folder.iterdir()) == ["server"]  # the clients' files are removed


@pytest.mark.parametrize("name", ["", "town", "theirs", "odd"], ids=["none", "expired", "foreign", "odd name"])
def test_a_client_without_a_valid_certificate_does_not_reach_the_server(authorities, port, name):
    authority, file = (authorities[1], "shop") if name == "theirs" else (authorities[0], name)
    with client(port, authority, file) as line, contextlib.suppress(OSError):  # an alert, or a closed connection
        assert echo(line) == b""
    with client(port, authorities[0], "shop") as line:
        assert echo(line) == b"hello"
    assert port.names == ["shop"]
    assert port.gateway.refused.total() == 1


def test_old_tls_and_plain_text_are_refused(authorities, port):
    assert server_context(authorities[0].folder).minimum_version == ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", port.number), timeout=WAIT_S) as line:
        line.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert ends(line)
    assert port.names == []


def test_a_silent_connection_ends_after_the_time_limit(port):
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port.number), timeout=WAIT_S) as line:
        assert ends(line)
    assert LIMITS.handshake_s * 0.9 < time.monotonic() - began < WAIT_S / 2
    wait_for(lambda: port.gateway.reasons == {"no handshake within 1 s": 1})


def test_many_silent_connections_keep_no_party_out(authorities, port):
    with contextlib.ExitStack() as opened:
        for _ in range(60):
            opened.enter_context(socket.create_connection(("127.0.0.1", port.number), timeout=WAIT_S))
        with client(port, authorities[0], "shop") as line:
            assert echo(line) == b"hello"
            assert len(port.gateway.handshakes) <= LIMITS.handshakes_each
    assert port.names == ["shop"]


def test_the_busiest_address_gives_way_if_all_places_are_taken():
    made = Gateway(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), None, LIMITS)  # type: ignore[arg-type]
    tasks = [Mock() for _ in range(12)]
    made.handshakes = dict(zip(tasks, [*"bbb", *"aaaaaaa", "c", "d"], strict=True))
    made._make_room("e")
    assert [task.cancel.called for task in tasks].index(True) == 3  # the oldest one of "a"
    assert list(made.handshakes.values()) == [*"bbb", *"aaaaaa", "c", "d"]


def test_connections_of_one_party_and_of_all_are_limited(authorities, port):
    with contextlib.ExitStack() as opened:
        lines = [opened.enter_context(client(port, authorities[0], "shop")) for _ in range(2)]
        assert [echo(line) for line in lines] == [b"hello", b"hello"]
        with client(port, authorities[0], "shop") as third:
            assert ends(third)
        other = opened.enter_context(client(port, authorities[0], "clinic"))
        assert echo(other) == b"hello"
        with client(port, authorities[0], "clinic") as fourth:
            assert ends(fourth)
        assert port.gateway.reasons == {
            "shop has 2 connections already": 1, "all parties have 3 connections already": 1
        }  # fmt: skip
    wait_for(lambda: port.gateway.connected.total() == 0)
    with client(port, authorities[0], "shop") as again:
        assert echo(again) == b"hello"


def test_the_port_is_open_to_ipv4_and_ipv6():
    with listen("0", 0) as everywhere:
        number = everywhere.getsockname()[1]
        with socket.create_connection(("127.0.0.1", number), timeout=WAIT_S):
            line, address = everywhere.accept()
            line.close()
        assert origin(address[0]) == "127.0.0.1"
        if everywhere.family == socket.AF_INET6:
            with socket.create_connection(("::1", number), timeout=WAIT_S):
                line, address = everywhere.accept()
                line.close()
            assert origin(address[0]) == "::/64"
    with listen("127.0.0.1", 0) as here:
        assert here.getsockname()[0] == "127.0.0.1"


def test_a_connection_ends_if_the_server_does_not_listen(authorities, port):
    (port.folder / gateway.SERVER).unlink()
    with client(port, authorities[0], "shop") as line:
        assert ends(line)
    wait_for(lambda: port.gateway.connected.total() == 0)


def test_refused_connections_are_reported_once_a_minute(port):
    for number in range(25):
        port.gateway._count("203.0.113.7" if number else "203.0.113.8", "no handshake within 10 s")
    port.gateway.reported = time.monotonic()
    port.gateway.report()
    port.gateway.report()
    assert port.sentences == [
        "anyparty> the server's port refused 25 connections: no handshake within 10 s (25); 24 came from 203.0.113.7"
    ]


def test_the_limit_of_open_files_is_raised(monkeypatch):
    limits = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    for pair in ((1024, 4096), (1024, resource.RLIM_INFINITY), (1024, 1024)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, pair=pair: pair)
        gateway.raise_file_limit()
    assert limits == [(4096, 4096), (gateway.MOST_FILES, resource.RLIM_INFINITY)]
