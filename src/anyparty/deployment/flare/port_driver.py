"""FLARE drivers for the server's port: FLARE listens on a Unix socket in the kit, behind the process ``gateway``.

The drivers replace FLARE's ``grpc`` and ``tcp`` at the server only.  Clients use FLARE's own drivers, and see the same
protocol, port and certificate.  See docs/decisions/0024-strangers-at-the-port.md.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingUnixStreamServer
from typing import Any

from anyparty.deployment.flare.drivers.anyparty_unix import reached
from anyparty.deployment.flare.gateway import LIMITS, MODULE, SERVER, peer_name, raise_file_limit

try:
    import grpc
    from nvflare.apis.fl_component import FLComponent
    from nvflare.fuel.f3.communicator import driver_mgr
    from nvflare.fuel.f3.drivers.driver_params import DriverParams
    from nvflare.fuel.f3.drivers.grpc.streamer_pb2_grpc import add_StreamerServicer_to_server
    from nvflare.fuel.f3.drivers.grpc_driver import GrpcDriver, Servicer
    from nvflare.fuel.f3.drivers.socket_conn import SocketConnection
    from nvflare.fuel.f3.drivers.tcp_driver import TcpDriver
except ImportError:  # FLARE is an extra: without it this module can be imported, but not used
    FLComponent = GrpcDriver = TcpDriver = Servicer = object

FOLDER = "internal/gateway"  # the folder of the sockets, in the kit

PAUSE_S, BACKLOG = 1.0, 1024
log = logging.getLogger(__name__)


def listen(host: str, port: int) -> socket.socket:
    """Listen at a port of one address, or of all addresses of this machine (IPv4 and IPv6) if ``host`` is "0"."""
    if host not in {"", "0"}:
        return socket.create_server((host, port), backlog=BACKLOG)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:  # IPv6 is switched off
                raise
    return socket.create_server(("", port), backlog=BACKLOG)


class GatewayProcess:
    """The process ``gateway``, which is started again if it ends.

    This process opens the port and keeps it open, so that no connection is lost while the gateway starts again.
    """

    def __init__(self, params: dict[str, Any]) -> None:
        self.kit = Path(params[DriverParams.SERVER_CERT.value]).resolve().parents[1]
        self.folder, self.stopping = self.kit / FOLDER, threading.Event()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        for left in self.folder.iterdir():
            left.unlink(missing_ok=True)
        host = str(params[DriverParams.HOST.value])
        self.listening = listen(host, int(params[DriverParams.PORT.value]))
        self.process = self._begin()
        threading.Thread(target=self._keep, name="gateway", daemon=True).start()

    def _begin(self) -> subprocess.Popen[bytes]:
        number = self.listening.fileno()
        return subprocess.Popen(  # noqa: S603 - our own command  # nosec B603
            [sys.executable, "-u", "-m", MODULE, str(self.kit), str(number)], cwd=self.folder, pass_fds=[number],
            stdin=subprocess.PIPE,
        )  # fmt: skip

    def _keep(self) -> None:
        while True:
            code = self.process.wait()
            if self.stopping.wait(PAUSE_S):
                return
            log.warning("the gateway of the port ended with code %s; it starts again", code)
            try:
                self.process = self._begin()
            except OSError as error:
                log.warning("the gateway could not be started: %s", error)

    @contextlib.contextmanager
    def address(self) -> Iterator[str]:
        """Yield a short path of the socket at which FLARE listens."""
        with reached(self.folder / SERVER) as address:
            yield address

    def close(self) -> None:
        """End the process, and close the port."""
        self.stopping.set()
        self.listening.close()
        self.process.terminate()


class _NamedContext:
    """A gRPC context whose peer has the name in the certificate that the gateway checked."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return the name in the form in which gRPC itself returns it; without a name, FLARE rejects the connection."""
        name = peer_name(self._context.peer())
        return {"x509_common_name": [name.encode()]} if name else {}


class _GatewayServicer(Servicer):  # type: ignore[misc]
    def Stream(self, request_iterator: Any, context: Any) -> Iterator[Any]:  # noqa: N802 - the name of FLARE's method
        yield from super().Stream(request_iterator, _NamedContext(context))


class _GrpcServer:
    """A gRPC server at the gateway's socket, in place of FLARE's class ``Server``."""

    def __init__(self, driver: GatewayGrpcDriver, connector: Any) -> None:
        self.driver, self.connector = driver, connector
        self.gateway = GatewayProcess(connector.params)
        workers = futures.ThreadPoolExecutor(max_workers=LIMITS.connections)
        self.grpc_server = grpc.server(workers, options=driver.options)
        add_StreamerServicer_to_server(_GatewayServicer(self), self.grpc_server)
        with self.gateway.address() as address:
            self.grpc_server.add_insecure_port(f"unix:{address}")
            self.grpc_server.start()

    def shutdown(self) -> None:
        self.gateway.close()
        self.grpc_server.stop(grace=0.5)


class GatewayGrpcDriver(GrpcDriver):  # type: ignore[misc]
    """FLARE's driver ``grpc``; a server listens behind the gateway."""

    @staticmethod
    def supported_transports() -> list[str]:
        """Return the address schemes of this driver."""
        return ["grpc", "grpcs"]

    def listen(self, connector: Any) -> None:
        """Accept connections until ``shutdown``."""
        self.connector = connector
        self.server = _GrpcServer(self, connector)
        self.server.grpc_server.wait_for_termination()


class _ConnectionHandler(BaseRequestHandler):
    def handle(self) -> None:
        driver = self.server.driver  # type: ignore[attr-defined]
        connection = SocketConnection(self.request, driver.connector)
        connection.conn_props[DriverParams.PEER_CN.value] = peer_name(self.client_address)
        driver.add_connection(connection)
        connection.read_loop()
        driver.close_connection(connection)


class _SocketServer(ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, driver: GatewayTcpDriver, connector: Any) -> None:
        self.driver = driver
        self.gateway = GatewayProcess(connector.params)
        with self.gateway.address() as address:
            super().__init__(address, _ConnectionHandler)

    def shutdown(self) -> None:
        self.gateway.close()
        super().shutdown()


class GatewayTcpDriver(TcpDriver):  # type: ignore[misc]
    """FLARE's driver ``tcp``; a server listens behind the gateway."""

    def listen(self, connector: Any) -> None:
        """Accept connections until ``shutdown``."""
        self.connector = connector
        self.server = _SocketServer(self, connector)
        with self.server:
            self.server.serve_forever()


class ServerPort(FLComponent):  # type: ignore[misc]
    """A server component without events: FLARE creates it before it opens the server's port."""

    def __init__(self) -> None:
        super().__init__()
        raise_file_limit()
        listen_behind_gateway()


def listen_behind_gateway() -> None:
    """Let FLARE use the drivers of this module in place of its own, if it has not loaded its drivers yet."""
    for driver, replaced in ((GatewayGrpcDriver, GrpcDriver), (GatewayTcpDriver, TcpDriver)):
        if replaced.__name__ not in driver_mgr.class_cache:
            driver_mgr.class_cache.add(replaced.__name__)  # FLARE then skips this class
            driver_mgr.register(driver)
