"""What one request may ask of the service, and who may ask: settings with one home."""

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
LEAST_LETTERS = 16
FAIR = 0.75  # of the service's own budget: what a client grants may be next to nothing


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a request may ask.

    Attributes:
        budget_ms: how long to wait for other parties, where a request does not say.
        batch_budget_ms: the same for a batch.
        most_budget_ms: what a request may say at most.
        ids, batch_ids: the most ids of one request, of one batch.
        id_bytes: what an id may take in a request's body, on average.
        at_once: requests that are worked on at once; more are told to come again.
        body_s: how long a client may take to send its request: so long for the headers, and for the body.
        connections: how many clients may be connected at once.

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

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ConfigError(f"the service's limit {name} must be above 0, got {value}")
        if max(self.budget_ms, self.batch_budget_ms) > self.most_budget_ms:
            raise ConfigError(f"a budget of {max(self.budget_ms, self.batch_budget_ms):g} ms is above the most that a "
                              f"request may ask for, {self.most_budget_ms:g} ms")  # fmt: skip

    @property
    def fair_s(self) -> float:
        """How long a party must have had, in seconds, if no answer is to be held against it."""
        return FAIR * self.budget_ms / 1e3

    def most_ids(self, path: str) -> int:
        """Return the most ids of a request to ``path``."""
        return self.batch_ids if path.rstrip("/") == "/predict/batch" else self.ids

    def most_bytes(self, path: str) -> int:
        """Return the most bytes of the body of a request to ``path``."""
        return 4096 + self.most_ids(path) * self.id_bytes


@dataclass(frozen=True)
class Tokens:
    """The bearer tokens that are let in, as hashes."""

    hashes: tuple[bytes, ...]

    @classmethod
    def of(cls, tokens: Iterable[str]) -> Tokens:
        """Return these tokens.

        Raises:
            ConfigError: one is too short to be a secret.
        """
        kept = [token.strip() for token in tokens]
        for token in kept:
            if len(token) < LEAST_LETTERS or not token.isascii() or not token.isprintable() or " " in token:
                raise ConfigError(f"a token should be {LEAST_LETTERS} letters or more, without spaces: for example "
                                  f"what 'openssl rand -hex 32' prints; got one of {len(token)} letters")  # fmt: skip
        return cls(tuple(hashlib.sha256(token.encode()).digest() for token in kept))

    @classmethod
    def read(cls, file: Path | None) -> Tokens:
        """Read tokens from a file, one a line ('#' begins a remark), and from the environment.

        Raises:
            ConfigError: no such file, no token in it, or one that is too short.
        """
        tokens = os.environ.get(TOKEN_VARIABLE, "").split()
        if file is not None:
            try:
                lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
            except (OSError, UnicodeDecodeError) as error:
                why = (error.strerror if isinstance(error, OSError) else None) or str(error)
                raise ConfigError(f"{file}: the file of tokens cannot be read ({why})") from None
            if file.stat().st_mode & 0o077:
                remark(f"{file}: others on this machine can read these tokens: chmod 600 {file}")
            found = [line for line in lines if line and not line.startswith("#")]
            if not found:
                raise ConfigError(f"{file}: there is no token in it; write one a line")
            tokens += found
        return cls.of(tokens)

    def __bool__(self) -> bool:
        return bool(self.hashes)

    def let_in(self, header: str) -> bool:
        """Say whether the header ``Authorization`` holds one of the tokens; takes as long whichever it is."""
        kind, _, token = header.partition(" ")
        given = hashlib.sha256(token.strip().encode(errors="replace")).digest()
        matches = [hmac.compare_digest(given, each) for each in self.hashes]
        return kind.lower() == "bearer" and any(matches)


@dataclass(frozen=True, kw_only=True)
class Certificates:
    """Files for TLS.

    Attributes:
        cert, key: the service's own certificate (chain) and key, PEM.
        client_ca: whose certificates clients must show; ``None`` asks for none.

    """

    cert: Path
    key: Path
    client_ca: Path | None = None

    def __post_init__(self) -> None:
        for path in (self.cert, self.key, *([self.client_ca] if self.client_ca else [])):
            if not path.is_file():
                raise ConfigError(f"{path}: no such file; TLS needs a certificate and its key, as PEM")


def certificates(cert: Path | None, key: Path | None, client_ca: Path | None) -> Certificates | None:
    """Return the files for TLS, if any is named.

    Raises:
        ConfigError: one is named without those that it needs, or is not there.
    """
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        raise ConfigError("TLS needs both --tls-cert and --tls-key; --client-ca goes with them")
    return Certificates(cert=cert, key=key, client_ca=client_ca)


def loopback(host: str) -> bool:
    """Say whether a host is this machine alone.

    >>> [loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "vfl.example")]
    [True, True, True, False, False]
    >>> [loopback(host) for host in ("::ffff:127.0.0.1", "::ffff:10.0.0.1")]  # IPv4, as an IPv6 socket shows it
    [True, False]
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def check_open_to(host: str, tokens: Tokens, tls: Certificates | None) -> None:
    """Refuse to let strangers ask.

    Raises:
        ConfigError: others than this machine could, without a token or a certificate.
    """
    if not loopback(host) and not tokens and (tls is None or tls.client_ca is None):
        raise ConfigError(f"on {host!r} anybody could ask: name a file of tokens (--token-file, or the variable "
                          f"{TOKEN_VARIABLE}) or the authority of clients' certificates (--client-ca), or serve on "
                          f"127.0.0.1 alone")  # fmt: skip
