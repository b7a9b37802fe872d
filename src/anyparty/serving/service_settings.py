"""Limits of the prediction service, and authentication of its clients by tokens and TLS certificates."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from anyparty.errors import ConfigError, remark

TOKEN_VARIABLE = "ANYPARTY_SERVE_TOKEN"  # noqa: S105 - the name of a variable  # nosec B105
MIN_TOKEN_LENGTH = 16
FULL_WAIT_SHARE = 0.75  # share of ``budget_ms`` after which a missing answer counts as a miss


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """Limits of requests and connections.

    Attributes:
        budget_ms: how long a request waits in the service and for other parties if it does not set it, in milliseconds.
        batch_budget_ms: the same for a batch request, in milliseconds.
        most_budget_ms: the longest wait that a request may set, in milliseconds.
        ids: maximum number of ids of one request.
        batch_ids: maximum number of ids of one batch.
        id_bytes: bytes allowed per id in a request's body, on average.
        at_once: maximum number of concurrent prediction requests; further requests are rejected with status 503.
        body_s: time in seconds that a client has for each of these steps: the TLS handshake, sending the headers,
            sending the body, and reading a further piece of the answer.
        connections: maximum number of open connections.
        client_connections: maximum number of open connections from one address.
        admin_connections: maximum number of open connections to the port for monitors; at the limit, a new connection
            replaces the oldest one.

    Raises:
        ConfigError: a limit is not positive, or a default budget is above ``most_budget_ms``.

    """

    budget_ms: float = 200.0
    batch_budget_ms: float = 2_000.0
    most_budget_ms: float = 10_000.0
    ids: int = 100
    batch_ids: int = 10_000
    id_bytes: int = 256
    at_once: int = 64
    body_s: float = 10.0
    connections: int = 500
    client_connections: int = 250
    admin_connections: int = 16

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ConfigError(f"the service's limit {name} must be above 0, got {value}")
        if max(self.budget_ms, self.batch_budget_ms) > self.most_budget_ms:
            raise ConfigError(f"a budget of {max(self.budget_ms, self.batch_budget_ms):g} ms is above the most that a "
                              f"request may ask for, {self.most_budget_ms:g} ms")  # fmt: skip

    @property
    def min_wait_s(self) -> float:
        """Time in seconds that a request must wait for a party before a missing answer counts as a miss.

        The time does not depend on a request's own budget, which may be too short for any party to answer.
        """
        return FULL_WAIT_SHARE * self.budget_ms / 1e3

    def wait_ms(self, path: str) -> float:
        """Return how long a request to ``path`` waits if it does not set a budget, in milliseconds."""
        return self.batch_budget_ms if path == "/predict/batch" else self.budget_ms

    def max_ids(self, path: str) -> int:
        """Return the maximum number of ids of a request to ``path``."""
        return self.batch_ids if path.rstrip("/") == "/predict/batch" else self.ids

    def max_bytes(self, path: str) -> int:
        """Return the maximum size of the body of a request to ``path``, in bytes."""
        return 4096 + self.max_ids(path) * self.id_bytes


@dataclass(frozen=True)
class BearerTokens:
    """The accepted bearer tokens, as hashes."""

    hashes: tuple[bytes, ...]

    @classmethod
    def of(cls, tokens: Iterable[str]) -> BearerTokens:
        """Return the hashes of tokens that are given as text; blanks at the ends of a token are removed.

        Raises:
            ConfigError: a token is too short to be a secret, has a space, or has other characters than printable ASCII.
        """
        stripped = [token.strip() for token in tokens]
        for token in stripped:
            if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
                raise ConfigError(f"a token should have {MIN_TOKEN_LENGTH} letters or more, without spaces, such as "
                                  f"the output of 'openssl rand -hex 32'; got one of {len(token)} letters")  # fmt: skip
        return cls(tuple(hashlib.sha256(token.encode()).digest() for token in stripped))

    @classmethod
    def read(cls, file: Path | None) -> BearerTokens:
        """Return the tokens in a file, one per line, and in the environment variable ``ANYPARTY_SERVE_TOKEN``.

        Lines that begin with '#' are comments.

        Raises:
            ConfigError: the file does not exist or has no token, or a token is too short.
        """
        tokens = os.environ.get(TOKEN_VARIABLE, "").split()
        if file is not None:
            try:
                lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
            except (OSError, UnicodeDecodeError) as error:
                reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
                raise ConfigError(f"{file}: the file of tokens cannot be read ({reason})") from None
            if file.stat().st_mode & 0o077:
                remark(f"{file}: others on this machine can read these tokens: chmod 600 {file}")
            found = [line for line in lines if line and not line.startswith("#")]
            if not found:
                raise ConfigError(f"{file}: there is no token in it; write one per line")
            tokens += found
        return cls.of(tokens)

    def __bool__(self) -> bool:
        return bool(self.hashes)

    def accepts(self, header: str) -> bool:
        """Return True if the header ``Authorization`` holds one of the tokens; the comparison takes constant time."""
        kind, _, token = header.partition(" ")
        digest = hashlib.sha256(token.strip().encode(errors="replace")).digest()
        matches = [hmac.compare_digest(digest, each) for each in self.hashes]
        return kind.lower() == "bearer" and any(matches)


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """PEM files for TLS.

    Attributes:
        cert: the service's certificate (chain).
        key: the certificate's private key.
        client_ca: CA bundle that client certificates must chain to; if ``None``, no client certificate is required.

    Raises:
        ConfigError: a file does not exist.

    """

    cert: Path
    key: Path
    client_ca: Path | None = None

    def __post_init__(self) -> None:
        for path in (self.cert, self.key, *([self.client_ca] if self.client_ca else [])):
            if not path.is_file():
                raise ConfigError(f"{path}: no such file; TLS needs a certificate and its key, as PEM")


def tls_files(cert: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    """Return the files for TLS, or ``None`` if all three arguments are ``None``.

    Raises:
        ConfigError: the certificate or its key is missing, or a file does not exist.
    """
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        raise ConfigError("TLS needs both --tls-cert and --tls-key; --client-ca requires them too")
    return TlsFiles(cert=cert, key=key, client_ca=client_ca)


def is_loopback(host: str) -> bool:
    """Return True if a host name or address can be reached only from this machine.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "vfl.example")]
    [True, True, True, False, False]
    >>> [is_loopback(host) for host in ("::ffff:127.0.0.1", "::ffff:10.0.0.1")]  # IPv4 addresses on an IPv6 socket
    [True, False]
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def check_clients_authenticate(host: str, tokens: BearerTokens, tls: TlsFiles | None) -> None:
    """Require authentication if other machines can reach the service.

    Raises:
        ConfigError: ``host`` is not a loopback address, and neither tokens nor client certificates are required.
    """
    if not is_loopback(host) and not tokens and (tls is None or tls.client_ca is None):
        raise ConfigError(f"on {host!r} other machines could ask: give a file of tokens (--token-file, or the variable "
                          f"{TOKEN_VARIABLE}) or a CA for client certificates (--client-ca), or serve on 127.0.0.1 "
                          f"only")  # fmt: skip
