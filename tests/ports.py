"""Ports of this machine for servers that begin later, as other processes' do."""

import random
import socket

PORTS = range(20_000, 32_000)  # below those that a system hands out by itself: no connection takes one meanwhile


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens; another each time, for tests that run at once."""
    lots = random.SystemRandom()
    while True:
        port = lots.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
