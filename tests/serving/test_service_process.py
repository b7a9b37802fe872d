"""The service as a process: unfinished requests do not affect monitors, and SIGTERM ends it before Docker kills it."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

pytestmark = pytest.mark.net
UNFINISHED = 300  # more than one address may have; few enough for the limit on open files
HALF = b"POST /predict HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 99\r\n\r\n{"


@contextmanager
def service(run, *words):
    """Start the service; yield the process and its ports."""
    command = [sys.executable, "-m", "anyparty", "serve", str(run), "--port", "0", *words]
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **streams) as process:  # noqa: S603
        try:
            lines = [process.stdout.readline() for _ in range(2 if "--admin-port" in words else 1)]
            ports = [int(re.search(r"http://127.0.0.1:(\d+)", line).group(1)) for line in lines]
            while not answers(ports[-1]):
                assert process.poll() is None
                time.sleep(0.1)
            yield process, *ports
        finally:
            process.kill()


def get(port, path, source="127.0.0.1"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10, source_address=(source, 0))
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def answers(port, source="127.0.0.1"):
    try:
        return get(port, "/health", source)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def half_sent(port):
    line = socket.create_connection(("127.0.0.1", port))
    line.sendall(HALF)
    return line


def test_unfinished_requests_leave_room_for_monitors_and_other_clients(run):
    with service(run, "--admin-port", "0") as (process, port, admin_port):
        held = [half_sent(port) for _ in range(UNFINISHED)]
        healthy = []
        for _ in range(20):  # reopen some of them all the time
            for _ in range(10):
                held.pop(0).close()
                held.append(half_sent(port))
            healthy.append((answers(admin_port), answers(port, "127.0.0.2")))
        assert healthy == [(True, True)] * 20
        refused = re.search(r'anyparty_connections_refused_total{limit="client"} (\S+)', get(admin_port, "/metrics")[1])
        assert float(refused.group(1)) >= UNFINISHED - 250
        assert get(admin_port, "/about")[0] == 404
        for line in held:
            line.close()
        process.send_signal(signal.SIGTERM)
        assert "too many were open: the last one came from 127.0.0.1" in process.communicate(timeout=60)[1]


def test_sigterm_ends_the_service_within_eight_seconds(run):
    """Docker waits for ten."""
    with service(run) as (process, port):
        held = [half_sent(port) for _ in range(10)]
        time.sleep(0.5)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert time.monotonic() - began < 8
        for line in held:
            line.close()
