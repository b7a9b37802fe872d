"""FLARE driver for connections within a site: a Unix socket that only the site's user may open.

FLARE's own drivers listen on a port of 127.0.0.1.  Without TLS, every user of the machine can send messages to that
port under another sender's name.  With TLS over ``tcp``, a silent connection blocks all other connections.  ``grpc``
needs a server certificate at every party.  See docs/decisions/0016-internal-connections.md.

FLARE imports each file of this folder (``comm_driver_path`` in local/comm_config.json).
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any
from urllib.parse import quote, unquote

try:
    from nvflare.fuel.f3.drivers.base_driver import BaseDriver
    from nvflare.fuel.f3.drivers.driver_params import DriverCap, DriverParams
    from nvflare.fuel.f3.drivers.socket_conn import ConnectionHandler, SocketConnection
except ImportError:  # FLARE is an extra: without it this module can be imported, but not used
    BaseDriver = ConnectionHandler = object

SCHEME = "anyparty-unix"


class _Server(ThreadingUnixStreamServer):
    daemon_threads = True
    ssl_context = None

    def __init__(self, driver: UnixDriver, connector: Any, address: str) -> None:
        self.driver, self.connector = driver, connector
        super().__init__(address, ConnectionHandler)


class UnixDriver(BaseDriver):  # type: ignore[misc]
    """A FLARE driver for connections over a Unix socket in a folder with mode 0700."""

    def __init__(self) -> None:
        super().__init__()
        self.server: _Server | None = None

    @staticmethod
    def supported_transports() -> list[str]:
        """Return the address schemes of this driver."""
        return [SCHEME]

    @staticmethod
    def capabilities() -> dict[str, Any]:
        """Return the features of this driver: its connections have heartbeats of FLARE, and no TLS."""
        return {DriverCap.SEND_HEARTBEAT.value: True, DriverCap.SUPPORT_SSL.value: False}

    @staticmethod
    def get_urls(scheme: str, resources: dict[str, Any]) -> tuple[str, str]:
        """Return the addresses to connect to and to listen at: both are this process's socket in the folder.

        The folder, ``resources["folder"]``, is created for this user only.  Sockets of ended processes are removed.
        """
        folder = Path(resources["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        for left in folder.iterdir():
            if left.is_dir():  # the gateway's folder
                continue
            if not left.name.isdigit() or not _runs(int(left.name)):
                left.unlink(missing_ok=True)
        address = f"{scheme}://0{quote(str(folder / str(os.getpid())))}"
        return address, address

    def listen(self, connector: Any) -> None:
        """Accept connections until ``shutdown``."""
        self.connector, path = connector, _path(connector)
        path.unlink(missing_ok=True)
        with reached(path) as address:
            self.server = _Server(self, connector, address)
        with self.server:
            self.server.serve_forever()

    def connect(self, connector: Any) -> None:
        """Connect and read until the peer closes the connection."""
        self.connector = connector
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with reached(_path(connector)) as address:
            line.connect(address)
        connection = SocketConnection(line, connector)
        self.add_connection(connection)
        connection.read_loop()
        self.close_connection(connection)

    def shutdown(self) -> None:
        """Close all connections and stop listening."""
        self.close_all()
        if self.server:
            self.server.shutdown()


@contextlib.contextmanager
def reached(path: Path) -> Iterator[str]:
    """Yield a short address of a socket, because the system allows 107 bytes and a path may be longer."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}" if sys.platform == "linux" else str(path)
    finally:
        os.close(folder)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process now has this process id
        return False
    return True


def _path(connector: Any) -> Path:
    return Path(unquote(connector.params[DriverParams.PATH.value]))
