"""Ports of this machine for servers that start later, such as those of other processes."""

import random
import socket

PORTS = range(20_000, 32_000)  # below the system's ephemeral ports, so that no connection takes one meanwhile


def free_port() -> int:
    """Return a free port of 127.0.0.1; ports are random, so that parallel tests get different ones."""
    lots = random.SystemRandom()
    while True:
        port = lots.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
