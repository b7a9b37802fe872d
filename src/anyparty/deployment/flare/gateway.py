"""The listener at the federation's port: it lets only clients with a certificate of the federation through to FLARE.

    any machine  --TLS, client certificate required-->  gateway  --Unix socket in the kit-->  FLARE's server

FLARE accepts every connection, and then waits two minutes for its handshake.  At the limit of open files,
FLARE's job runner ends.  The gateway is a process of its own, so strangers take none of FLARE's open files or time.

A stranger's handshake ends after 10 seconds, and the number of handshakes is limited.  A client with a certificate is
connected to FLARE, and FLARE learns the name in the certificate.

The gateway binds its end of each Unix connection to a file ``NUMBER.NAME``, where NAME is the name in the certificate.
FLARE reads the name as the peer's address, and compares it with the party that the client claims to be.  Only this
user can create files in the folder, so no other user can choose a name.

The module ``port_driver`` starts the process.  No module outside the standard library is imported here, so that the
process is small and starts fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import logging
import re
import signal
import socket
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

MARK = "anyparty> "  # begins a line that 'anyparty party start' shows
NAME = re.compile(r"[A-Za-z0-9@._-]{1,64}")  # names in certificates of 'anyparty federate init'
MODULE = "anyparty.deployment.flare.gateway"  # python -m MODULE KIT SOCKET
SERVER = "server"  # FLARE's socket, in the working directory
REPORT_S, PAUSE_S, SHOWN = 60.0, 1.0, 20
GONE_S = 30  # seconds without an answer to TCP packets after which a connection is closed
MOST_FILES = 65_536
log = logging.getLogger("anyparty.gateway")


@dataclass(frozen=True, kw_only=True)
class GatewayLimits:
    """Limits of the connections at the federation's port.

    If a limit of handshakes is exceeded, the oldest unfinished handshake ends, so that a stranger cannot keep a party
    from connecting.  If a limit of connections is exceeded, the new connection is closed.

    Attributes:
        handshake_s: maximum duration of a handshake, in seconds.
        handshakes: maximum number of unfinished handshakes.
        handshakes_each: maximum number of unfinished handshakes of one address.
        connections: maximum number of connections with a certificate; each one takes an open file and a thread of
            FLARE's server.
        connections_each: maximum number of connections with a certificate of one party.

    """

    handshake_s: float = 10.0
    handshakes: int = 256
    handshakes_each: int = 64
    connections: int = 256
    connections_each: int = 64


LIMITS = GatewayLimits()


def raise_file_limit() -> None:
    """Raise the limit of open files of this process as far as the system allows it."""
    import resource  # noqa: PLC0415 - other systems lack it, but import this module

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def server_context(startup: Path) -> ssl.SSLContext:
    """Return the settings of TLS: the server's own certificate, and a client certificate of the kit's authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(startup / "server.crt", startup / "server.key")
    context.load_verify_locations(startup / "rootCA.pem")
    context.set_alpn_protocols(["h2"])  # gRPC requires HTTP/2
    context.options |= ssl.OP_NO_TICKET  # without resumed sessions, every connection shows its certificate
    context.num_tickets = 0
    return context


def origin(address: str) -> str:
    """Return the address by which connections are counted: an IPv4 address, or the network of an IPv6 address.

    >>> origin("::ffff:203.0.113.7"), origin("2001:db8:0:1::7"), origin("127.0.0.1")
    ('203.0.113.7', '2001:db8:0:1::/64', '127.0.0.1')
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network(f"{found}/64", strict=False))


def peer_name(address: str) -> str:
    """Return the name in a client's certificate, from the address of the gateway's Unix socket; "" if it has none.

    >>> peer_name("unix:kits/bank/gateway/7.shop"), peer_name("12.admin@anyparty.local"), peer_name("unix:")
    ('shop', 'admin@anyparty.local', '')
    """
    number, _, name = address.rpartition("/")[2].removeprefix("unix:").partition(".")
    return name if number.isdigit() else ""


class _End(asyncio.Protocol):
    """One of the two ends of a relayed connection: it passes arriving bytes to the other end."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.other: _End | None = None
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Read nothing until the other end is connected."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        """Pass bytes to the other end."""
        assert self.other is not None
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        """Stop reading at the other end while this end cannot send more."""
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read at the other end again."""
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """Report the end of the connection."""
        self.closed.set()


class Gateway:
    """Accept connections, check their certificates within the limits, and relay them.

    Args:
        context: the settings of TLS.
        connect: opens a connection to FLARE for a client, given the name in its certificate.
        limits: the limits of connections.
        say: shows a line.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        connect: Callable[[str], Awaitable[socket.socket]],
        limits: GatewayLimits = LIMITS,
        say: Callable[[str], None] = print,
    ) -> None:
        self.context, self.connect, self.limits, self.say = context, connect, limits, say
        self.handshakes: dict[asyncio.Task[None], str] = {}  # the unfinished ones, oldest first, with their addresses
        self.lines: dict[asyncio.Task[None], socket.socket] = {}  # all connections
        self.connected = Counter[str]()  # the number of connections by name in the certificate
        self.refused, self.reasons = Counter[str](), Counter[str]()  # since the last report: by address, by reason
        self.reported = float("-inf")

    async def serve(self, listening: socket.socket) -> None:
        """Accept connections until this coroutine is cancelled."""
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        reporting = asyncio.create_task(self._report_often())
        try:
            while True:
                try:
                    line, address = await loop.sock_accept(listening)
                except OSError as error:  # too many open files, or the client has left already
                    log.warning("a connection could not be accepted: %s", error)
                    await asyncio.sleep(PAUSE_S)
                    continue
                peer = origin(address[0])
                self._make_room(peer)
                task = asyncio.create_task(self._admit(line, peer))
                self.handshakes[task] = peer
                self.lines[task] = line
                task.add_done_callback(self._forget)
        finally:
            reporting.cancel()

    def _make_room(self, address: str) -> None:
        """End the oldest unfinished handshake of the address, or of the busiest one, if there are too many."""
        by_address = Counter(self.handshakes.values())
        if by_address[address] < self.limits.handshakes_each:
            if len(self.handshakes) < self.limits.handshakes:
                return
            address = by_address.most_common(1)[0][0]
        oldest = next(task for task, other in self.handshakes.items() if other == address)
        del self.handshakes[oldest]
        oldest.cancel()
        self._count(address, "too many unfinished handshakes")

    def _forget(self, task: asyncio.Task[None]) -> None:
        self.handshakes.pop(task, None)
        line = self.lines.pop(task)
        if task.cancelled():  # maybe before it began, so that nothing else closes the connection
            line.close()
        elif error := task.exception():
            log.error("a connection ended with an error", exc_info=error)

    async def _admit(self, line: socket.socket, address: str) -> None:
        """Check a connection's certificate, then relay the connection until it ends."""
        loop = asyncio.get_running_loop()
        try:
            _watch_peer(line)
            transport, end = await loop.connect_accepted_socket(
                _End, line, ssl=self.context, ssl_handshake_timeout=self.limits.handshake_s, ssl_shutdown_timeout=5.0
            )
        except ConnectionAbortedError:
            self._count(address, f"no handshake within {self.limits.handshake_s:g} s")
            return
        except ssl.SSLError as error:
            self._count(address, getattr(error, "verify_message", None) or error.reason or "no TLS")
            return
        except OSError:
            self._count(address, "closed before the end of the handshake")
            return
        finally:
            self.handshakes.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
        assert isinstance(transport, asyncio.Transport)
        name = _common_name(transport)
        if refusal := self._refusal(name):
            self._count(address, refusal)
            transport.abort()
            return
        self.connected[name] += 1
        try:
            await self._relay(end, name)
        finally:
            self.connected[name] -= 1
            transport.abort()

    def _refusal(self, name: str) -> str:
        """Return the reason why a connection with a certificate of the authority is refused; "" if it is not."""
        if not NAME.fullmatch(name):
            return f"a certificate with the name {name!r}"
        if self.connected[name] >= self.limits.connections_each:
            return f"{name} has {self.connected[name]} connections already"
        if (every := self.connected.total()) >= self.limits.connections:
            return f"all parties have {every} connections already"
        return ""

    async def _relay(self, outer: _End, name: str) -> None:
        try:
            line = await self.connect(name)
            _, inner = await asyncio.get_running_loop().create_connection(_End, sock=line)
        except OSError as error:  # FLARE's server is starting, or has just ended
            log.warning("%s was not connected to the server: %s", name, error)
            return
        outer.other, inner.other = inner, outer
        ends = [asyncio.create_task(each.closed.wait()) for each in (outer, inner)]
        try:
            for each in (outer, inner):
                each.transport.resume_reading()
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for each in (outer, inner):
                each.transport.close()  # after the bytes that it still has to send
            await asyncio.wait(ends, timeout=self.limits.handshake_s)
        finally:
            inner.transport.abort()
            for task in ends:
                task.cancel()

    def _count(self, address: str, reason: str) -> None:
        self.refused[address] += 1
        self.reasons[reason] += 1

    async def _report_often(self) -> None:
        while True:
            await asyncio.sleep(PAUSE_S)
            if time.monotonic() - self.reported > REPORT_S:
                self.report()

    def report(self) -> None:
        """Show how many connections were refused since the last report, and why; many are shown on the terminal."""
        if not self.refused:
            return
        (address, most), number = self.refused.most_common(1)[0], self.refused.total()
        why = ", ".join(f"{reason} ({times:,})" for reason, times in self.reasons.most_common(3))
        mark = MARK if number >= SHOWN else ""
        self.say(f"{mark}the server's port refused {number:,} connections: {why}; {most:,} came from {address}")
        self.refused.clear()
        self.reasons.clear()
        self.reported = time.monotonic()


def _watch_peer(line: socket.socket) -> None:
    """Let the system close a connection if the other machine does not answer any more."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 1000 * GONE_S}
    for option, value in options.items():
        if number := getattr(socket, option, None):  # other systems lack some of them
            with contextlib.suppress(OSError):
                line.setsockopt(socket.IPPROTO_TCP, number, value)


def _common_name(transport: asyncio.Transport) -> str:
    subject = (transport.get_extra_info("peercert") or {}).get("subject", ())
    return next((value for part in subject for key, value in part if key == "commonName"), "")


def connector(numbers: itertools.count[int]) -> Callable[[str], Awaitable[socket.socket]]:
    """Return a function that connects to FLARE's socket in the working directory under the name in a certificate."""

    async def connect(name: str) -> socket.socket:
        own = Path(f"{next(numbers)}.{name}")
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.setblocking(False)
            own.unlink(missing_ok=True)
            line.bind(str(own))
            await asyncio.get_running_loop().sock_connect(line, SERVER)
        except BaseException:
            line.close()
            raise
        finally:
            own.unlink(missing_ok=True)  # the peer keeps the name
        return line

    return connect


async def run(kit: Path, listening: socket.socket) -> None:
    """Run the gateway until the standard input ends, which FLARE's server keeps open while it runs."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    gateway = Gateway(server_context(kit / "startup"), connector(itertools.count()), say=_say)
    serving = asyncio.create_task(gateway.serve(listening))
    stopping = asyncio.create_task(ended.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()


def _say(sentence: str) -> None:
    print(f"{sentence}\n", end="", flush=True)  # in one write, because FLARE writes to the same file


def main() -> None:
    """Run the gateway of a kit: the arguments are the kit's folder and the number of the open, listening socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends FLARE's server, and then this process
    logging.basicConfig(format="%(asctime)s - %(name)s - %(levelname)s - %(message)s", level=logging.WARNING)
    raise_file_limit()
    with socket.socket(fileno=int(sys.argv[2])) as listening:
        asyncio.run(run(Path(sys.argv[1]), listening))


if __name__ == "__main__":
    main()
