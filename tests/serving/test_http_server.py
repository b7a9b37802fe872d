"""Connections on which no whole request comes are closed; those that ask are not."""

import asyncio
import contextlib
import runpy
import socket
import ssl

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from anyparty.serving import connection
from anyparty.serving.connection import Server, patient
from anyparty.serving.http_server import listening
from anyparty.serving.service_settings import Limits
from tests import unhurried

WHOLE = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"
PATIENCE_S = 0.2
MUCH = 20_000_000  # bytes: more than the kernels keep for a reader


async def app(scope, receive, send):
    if scope["type"] == "http":
        await asyncio.sleep(0.01)
        body = bytes(MUCH if scope["path"] == "/much" else 0)
        headers = [(b"content-length", b"%d" % len(body))] if body else []
        await send({"type": "http.response.start", "status": 200 if body else 204, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def served(tls=None, **limits):
    limits = Limits(**{"body_s": PATIENCE_S} | limits)
    files = {"ssl_certfile": tls / "service.pem", "ssl_keyfile": tls / "service-key.pem"} if tls else {}
    settings = uvicorn.Config(app, http=patient(limits), lifespan="off", log_level="error", **files)
    settings.load()
    server = Server(settings, limits)
    with listening("127.0.0.1", 0) as door:
        task = asyncio.create_task(server.serve([door]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield server, door.getsockname()[1]
        finally:
            server.should_exit = True
            await task


def play(work):
    """Play on a clock that goes while all wait: a server does not lose patience with a machine that stands still."""
    return unhurried.run(work, unhurried.Waiting)


async def ended(reader):
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\nhost: he", WHOLE + b"GET / HTTP/1.1\r\nho"])
def test_who_stops_before_the_headers_end_is_let_go(first):
    """Also in the second request of a connection, where the server's own time-out between requests has ended."""

    async def stopping():
        async with served() as (server, port):
            ways, whole, rest = [], first[: len(WHOLE)], first[len(WHOLE) :]
            for _ in range(10):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                ways.append((reader, writer))
                writer.write(whole)
                if whole == WHOLE:
                    await reader.readuntil(b"\r\n\r\n")
                    writer.write(rest)
            async with asyncio.timeout(20):
                for reader, writer in ways:
                    await ended(reader)
                    writer.close()
            while server.server_state.connections:
                await asyncio.sleep(0.01)

    play(stopping())


@pytest.mark.parametrize("line", [b"x: " + b"a" * 60_000 + b"\r\n", b"x: y\r\n", b"a" * 60_000])
def test_headers_without_an_end_are_refused(line):
    """Long ones, many short ones, and one that does not end."""

    async def endless():
        async with served(body_s=30.0) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nhost: here\r\n" + line * (200_000 // len(line)))
            async with asyncio.timeout(20):
                with contextlib.suppress(ConnectionError):  # what was not read may take the answer with it
                    assert (await reader.read()).startswith(b"HTTP/1.1 400")
            writer.close()

    play(endless())


def test_another_parser_that_is_installed_is_not_taken(monkeypatch):
    """One that limits no headers: what the server itself would prefer."""
    monkeypatch.setattr("uvicorn.protocols.http.auto.AutoHTTPProtocol", type("Unlimited", (asyncio.Protocol,), {}))
    assert issubclass(runpy.run_path(connection.__file__)["patient"](Limits()), H11Protocol)


def test_a_connection_that_asks_stays():
    async def asking():
        async with served() as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(8):
                writer.write(WHOLE[:20])
                await asyncio.sleep(PATIENCE_S / 4)
                writer.write(WHOLE[20:])
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            (here,) = server.server_state.connections
            assert here.transport.get_write_buffer_limits() == (0, 1)  # an answer that is not read is seen at any size
            writer.close()

    play(asking())


@pytest.mark.parametrize("asked", [1, 3])
def test_who_does_not_read_what_was_answered_is_let_go(asked):
    async def silent():
        async with served() as (server, port):
            with socket.create_connection(("127.0.0.1", port)) as line:
                line.sendall(asked * b"GET /much HTTP/1.1\r\nhost: here\r\n\r\n")
                async with asyncio.timeout(20):
                    while not server.server_state.connections:
                        await asyncio.sleep(0.01)
                    while server.server_state.connections:
                        await asyncio.sleep(0.01)

    play(silent())


def test_who_reads_slowly_stays():
    async def slow():
        async with served(body_s=1.0) as (_, port):
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


def test_who_stops_in_the_middle_of_tls_is_let_go(tmp_path):
    certificate = pytest.importorskip("tests.serving.test_tls").certificate
    certificate(tmp_path, "service")

    async def stopping():
        async with served(tls=tmp_path) as (_, port):
            ways = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
            async with asyncio.timeout(20):  # asyncio's own limit is a minute
                for reader, writer in ways:
                    await ended(reader)
                    writer.close()

    play(stopping())


def test_answers_cross_tls(tmp_path):
    """Small ones and large ones, of which the kernels keep only a part."""
    pytest.importorskip("tests.serving.test_tls").certificate(tmp_path, "service")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "service.pem"))

    async def asking():
        async with served(tls=tmp_path, body_s=10.0) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            for _ in range(2):
                writer.write(WHOLE)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
                writer.write(b"GET /much HTTP/1.1\r\nhost: here\r\n\r\n")
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                assert await reader.readexactly(MUCH) == bytes(MUCH)
            writer.close()

    play(asyncio.wait_for(asking(), 60))


def test_no_more_than_so_many_at_once():
    async def crowd():
        async with served(connections=3, body_s=30.0) as (_, port):
            ways = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await ended(reader)
            for asks, told in ways:
                told.write(WHOLE)
                assert (await asks.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            for each in [*(way[1] for way in ways), writer]:
                each.close()

    play(crowd())
