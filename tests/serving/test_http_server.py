"""Limits on connections: idle and slow clients are disconnected, active ones are not."""

import asyncio
import contextlib
import runpy
import socket
import ssl

import pytest
import uvicorn
from prometheus_client import CollectorRegistry, Counter
from uvicorn.protocols.http.h11_impl import H11Protocol

from anyparty.serving import http_server
from anyparty.serving.http_server import ConnectionCounter, LimitedServer, limited_protocol, listening_socket
from anyparty.serving.service_settings import ServiceLimits
from tests import controlled_clocks

WHOLE = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"
PATIENCE_S = 0.2
MUCH = 20_000_000  # bytes; more than the kernel buffers


async def app(scope, receive, send):
    if scope["type"] == "http":
        await asyncio.sleep(0.01)
        body = bytes(MUCH if scope["path"] == "/much" else 0)
        headers = [(b"content-length", b"%d" % len(body))] if body else []
        await send({"type": "http.response.start", "status": 200 if body else 204, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def read_body(scope, receive, send):
    while (await receive()).get("more_body"):
        pass


@contextlib.asynccontextmanager
async def serving(tls=None, application=app, refused=None, **limits):
    """Serve; with ``refused``, which counts refused connections, also on a port for monitors."""
    limits = ServiceLimits(**{"body_s": PATIENCE_S} | limits)
    files = {"ssl_certfile": tls / "service.pem", "ssl_keyfile": tls / "service-key.pem"} if tls else {}
    with contextlib.ExitStack() as sockets:
        listeners = [sockets.enter_context(listening_socket("127.0.0.1", 0)) for _ in range(2 if refused else 1)]
        ports = [listener.getsockname()[1] for listener in listeners]
        counter = ConnectionCounter(limits, ports[1:], refused)
        protocol = limited_protocol(limits, counter)
        settings = uvicorn.Config(application, http=protocol, lifespan="off", log_level="error", **files)
        settings.load()
        server = LimitedServer(settings, limits)
        task = asyncio.create_task(server.serve(listeners))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield server, *ports
        finally:
            server.should_exit = True
            await task


def play(work):
    """Run on a clock that advances only while all wait, so that a busy machine causes no timeout."""
    return controlled_clocks.run(work, controlled_clocks.Waiting)


async def ended(reader):
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\nhost: he", WHOLE + b"GET / HTTP/1.1\r\nho"])
def test_a_client_that_stops_within_the_headers_is_disconnected(first):
    """Also in the second request of a connection, when uvicorn's keep-alive timeout does not apply."""

    async def stopping():
        async with serving() as (server, port):
            connections, whole, rest = [], first[: len(WHOLE)], first[len(WHOLE) :]
            for _ in range(10):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                connections.append((reader, writer))
                writer.write(whole)
                if whole == WHOLE:
                    await reader.readuntil(b"\r\n\r\n")
                    writer.write(rest)
            async with asyncio.timeout(20):
                for reader, writer in connections:
                    await ended(reader)
                    writer.close()
            while server.server_state.connections:
                await asyncio.sleep(0.01)

    play(stopping())


@pytest.mark.parametrize("line", [b"x: " + b"a" * 60_000 + b"\r\n", b"x: y\r\n", b"a" * 60_000])
def test_endless_headers_are_refused(line):
    """Long headers, many short ones, and one that does not end."""

    async def endless():
        async with serving(body_s=30.0) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nhost: here\r\n" + line * (200_000 // len(line)))
            async with asyncio.timeout(20):
                with contextlib.suppress(ConnectionError):  # unread data may reset the connection before the answer
                    assert (await reader.read()).startswith(b"HTTP/1.1 400")
            writer.close()

    play(endless())


def test_another_installed_parser_is_not_used(monkeypatch):
    """A parser without a limit on headers, which uvicorn would prefer."""
    monkeypatch.setattr("uvicorn.protocols.http.auto.AutoHTTPProtocol", type("Unlimited", (asyncio.Protocol,), {}))
    assert issubclass(runpy.run_path(http_server.__file__)["limited_protocol"](ServiceLimits()), H11Protocol)


def test_an_active_connection_stays_open():
    async def asking():
        async with serving() as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(8):
                writer.write(WHOLE[:20])
                await asyncio.sleep(PATIENCE_S / 4)
                writer.write(WHOLE[20:])
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            (here,) = server.server_state.connections
            assert here.transport.get_write_buffer_limits() == (0, 1)  # an unread answer of any size is noticed
            writer.close()

    play(asking())


@pytest.mark.parametrize("asked", [1, 3])
def test_a_client_that_does_not_read_is_disconnected(asked):
    async def silent():
        async with serving() as (server, port):
            with socket.create_connection(("127.0.0.1", port)) as line:
                line.sendall(asked * b"GET /much HTTP/1.1\r\nhost: here\r\n\r\n")
                async with asyncio.timeout(20):
                    while not server.server_state.connections:
                        await asyncio.sleep(0.01)
                    while server.server_state.connections:
                        await asyncio.sleep(0.01)

    play(silent())


def test_a_slow_reader_stays_connected():
    async def slow():
        async with serving(body_s=1.0) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
            writer.write(b"GET /much HTTP/1.1\r\nhost: here\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            begun, got = asyncio.get_running_loop().time(), 0
            while got < MUCH:
                got += len(await reader.readexactly(min(MUCH // 16, MUCH - got)))
                await asyncio.sleep(0.1)
            assert asyncio.get_running_loop().time() - begun > 1.5
            writer.close()

    play(slow())


def test_a_client_that_stops_within_a_tls_handshake_is_disconnected(tmp_path):
    certificate = pytest.importorskip("tests.serving.test_tls").write_certificate
    certificate(tmp_path, "service")

    async def stopping():
        async with serving(tls=tmp_path) as (_, port):
            connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
            async with asyncio.timeout(20):  # asyncio's default is a minute
                for reader, writer in connections:
                    await ended(reader)
                    writer.close()

    play(stopping())


def test_answers_over_tls(tmp_path):
    """Small and large answers, of which the kernel buffers only a part."""
    pytest.importorskip("tests.serving.test_tls").write_certificate(tmp_path, "service")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "service.pem"))

    async def asking():
        async with serving(tls=tmp_path, body_s=10.0) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            for _ in range(2):
                writer.write(WHOLE)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
                writer.write(b"GET /much HTTP/1.1\r\nhost: here\r\n\r\n")
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                assert await reader.readexactly(MUCH) == bytes(MUCH)
            writer.close()

    play(asyncio.wait_for(asking(), 60))


def test_the_connections_of_one_address_are_limited(caplog):
    """Further ones are refused, counted and reported; other addresses and the port for monitors are not affected."""

    async def many():
        refused = Counter("refused", "Refused connections.", ["limit"], registry=CollectorRegistry())
        limits = {"client_connections": 3, "admin_connections": 2, "connections": 5, "body_s": 30.0}
        async with serving(refused=refused, **limits) as (_, port, admin_port):
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                await ended(reader)
                writer.close()
            other = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            for reads, writes in (other, *held):
                writes.write(WHOLE)
                assert (await reads.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            # the oldest connection to the port for monitors makes room for the newest one
            held += [await asyncio.open_connection("127.0.0.1", admin_port) for _ in range(5)]
            held[-1][1].write(WHOLE)
            assert (await held[-1][0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            await ended(held[3][0])
            held[0][1].close()
            await held[0][1].wait_closed()
            await asyncio.sleep(0.05)
            held.append(await asyncio.open_connection("127.0.0.1", port))
            held[-1][1].write(WHOLE)
            assert (await held[-1][0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            for each in [other, *held]:
                each[1].close()
            return {limit: refused.labels(limit)._value.get() for limit in ("client", "admin", "all")}

    assert play(many()) == {"client": 20.0, "admin": 3.0, "all": 0.0}
    (line,) = [record.getMessage() for record in caplog.records if "too many were open" in record.getMessage()]
    assert "127.0.0.1" in line


def test_the_time_of_arrival_is_that_of_the_last_piece():
    seen = []

    async def arriving():
        async def recording(scope, receive, send):
            await read_body(scope, receive, send)
            seen.append(asyncio.get_running_loop().time() - scope["state"]["arrived"])
            await app(scope, receive, send)

        async with serving(application=recording, body_s=30.0) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):
                writer.write(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 4\r\n\r\nab")
                await asyncio.sleep(0.5)
                writer.write(b"cd")
                await reader.readuntil(b"\r\n\r\n")
            writer.close()

    play(arriving())
    assert len(seen) == 2
    assert all(0 <= waited < 0.4 for waited in seen)


def test_half_sent_requests_do_not_delay_the_end():
    async def stopping():
        async with serving(application=read_body, body_s=30.0) as (server, port):
            connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
            for n, (_, writer) in enumerate(connections):
                writer.write(b"POST / HTTP/1.1\r\nhost: here\r\n" + (b"content-length: 9\r\n\r\n{" if n % 2 else b""))
            await asyncio.sleep(0.1)
            server.should_exit = True
            began = asyncio.get_running_loop().time()
            async with asyncio.timeout(20):
                for reader, writer in connections:
                    await ended(reader)
                    writer.close()
            return asyncio.get_running_loop().time() - began

    assert play(stopping()) < 8


def test_the_number_of_connections_is_limited():
    async def many():
        async with serving(connections=3, body_s=30.0) as (_, port):
            connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await ended(reader)
            for reads, writes in connections:
                writes.write(WHOLE)
                assert (await reads.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            for each in [*(way[1] for way in connections), writer]:
                each.close()

    play(many())
