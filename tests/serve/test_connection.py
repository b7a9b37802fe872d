"""Connections on which no whole request comes are closed; those that ask are not."""

import asyncio
import contextlib

import pytest
import uvicorn

from anyparty.serve.connection import patient
from anyparty.serve.limits import Limits
from anyparty.serve.start import listening

WHOLE = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"
PATIENCE_S = 0.2


async def app(scope, receive, send):
    if scope["type"] == "http":
        await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@contextlib.asynccontextmanager
async def served(**limits):
    settings = uvicorn.Config(
        app, http=patient(Limits(**{"body_s": PATIENCE_S} | limits)), lifespan="off", log_level="error"
    )
    server = uvicorn.Server(settings)
    with listening("127.0.0.1", 0) as door:
        task = asyncio.create_task(server.serve([door]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield server, door.getsockname()[1]
        finally:
            server.should_exit = True
            await task


async def ended(reader):
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\nhost: he", WHOLE + b"GET / HTTP/1.1\r\nho"])
def test_who_stops_before_the_headers_end_is_let_go(first):
    """Also in the second request of a connection, where the server's own time-out between requests has ended."""

    async def stopping():
        async with served() as (server, port):
            ways = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
            for reader, writer in ways:
                whole, rest = first[: len(WHOLE)], first[len(WHOLE) :]
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

    asyncio.run(stopping())


def test_a_connection_that_asks_stays():
    async def asking():
        async with served() as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(8):
                writer.write(WHOLE[:20])
                await asyncio.sleep(PATIENCE_S / 4)
                writer.write(WHOLE[20:])
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            writer.close()

    asyncio.run(asking())


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

    asyncio.run(crowd())
