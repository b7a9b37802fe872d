"""Checks of certificates and of the server, before a site starts or an administrator connects.

    kit                    the certificate is valid, signed by the kit's authority, and names the kit's party
    HOST:PORT, TCP         a server listens; if not, wait and report each try
    HOST:PORT, mutual TLS  the server has a certificate of the same authority, and accepts this kit's certificate

FLARE itself retries without end and without a message after any failure.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from anyparty.errors import ConfigError, RunError, needing

SOON = timedelta(days=30)  # a certificate that expires within this time causes a warning
TRY_S = 5.0
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0)
RENEW = "see 'Certificates' in docs/how-to/two-machines.md: new kits for all parties, by 'anyparty federate init'"


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """The address of a kit's server, and the kit's credentials.

    Attributes:
        kit: the kit's folder.
        host: the server's host.
        port: the server's port.
        owner: the party to which the certificate must belong; empty to accept any certificate of the authority.
        certificate: the kit's certificate, a PEM file.
        key: the certificate's private key, a PEM file.
        authority: the authority's certificate, a PEM file.
        serves: whether this is the server's kit.

    """

    kit: Path
    host: str
    port: int
    owner: str
    certificate: Path
    key: Path
    authority: Path
    serves: bool = False

    @classmethod
    def of(cls, kit: Path, owner: str = "") -> ServerAddress:
        """Read the server's address and the paths of the credentials from a kit's start-up files.

        Raises:
            ConfigError: the folder ``kit`` is not a start-up kit, or a file in it is damaged.
        """
        startup = kit / "startup"
        found = [path for path in (startup / f"fed_{kind}.json" for kind in KINDS) if path.exists()]
        if not found:
            raise ConfigError(f"{kit} is not a kit of 'anyparty federate init'")
        kind = found[0].stem.removeprefix("fed_")
        try:
            values = json.loads(found[0].read_text(encoding="utf-8"))
            host, port = KINDS[kind](values)
            serves = kind == "server"
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{found[0]}: cannot be read ({error!r}); copy the kit again") from None
        own = "server" if serves else "client"
        return cls(
            kit=kit, host=host, port=port, owner="" if serves else owner, certificate=startup / f"{own}.crt",
            key=startup / f"{own}.key", authority=startup / "rootCA.pem", serves=serves,
        )  # fmt: skip

    @property
    def place(self) -> str:
        """The server's address, HOST:PORT."""
        return f"{self.host}:{self.port}"


def _target(values: dict[str, list[dict[str, dict[str, str]]]]) -> tuple[str, int]:
    host, _, port = values["servers"][0]["service"]["target"].rpartition(":")
    return host, int(port)


KINDS: dict[str, Callable[..., tuple[str, int]]] = {
    "server": _target,
    "client": _target,
    "admin": lambda values: (values["admin"]["host"], int(values["admin"]["port"])),
}


@needing("flare", "a federation of processes")
def check_certificate(gate: ServerAddress, say: Callable[[str], None] = lambda _: None) -> None:
    """Check a kit's certificate; ``say`` is called if the certificate expires soon.

    Raises:
        ConfigError: the certificate is missing, has expired, is not valid yet, or belongs to another authority or
            party.
    """
    from cryptography import x509  # noqa: PLC0415 - comes with FLARE
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415

    own, authority = _certificates(gate)
    try:
        own.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        raise ConfigError(f"{gate.certificate}: this certificate was not issued by the authority in "
                          f"{gate.authority.name}; take all files in startup/ from one kit") from None  # fmt: skip
    names = [str(each.value) for each in own.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    if gate.owner and gate.owner not in names:
        raise ConfigError(f"{gate.kit}: the certificate names {names}, but the kit's own settings say party = "
                          f"{gate.owner!r}; a party can only take part under its own name")  # fmt: skip
    _check_dates(gate, max(each.not_valid_before_utc for each in (own, authority)),
                 min(each.not_valid_after_utc for each in (own, authority)), say)  # fmt: skip


def check_key(gate: ServerAddress, say: Callable[[str], None] = lambda _: None) -> None:
    """Check that a kit's private key is readable; ``say`` is called with a warning if other users can read it, too.

    Many programs lose file permissions when they pack or unpack a ZIP file.

    Raises:
        ConfigError: this user cannot read the key.
    """
    kit, key = gate.kit, gate.key
    try:
        key.open("rb").close()
        # Not 0 if other users can read the file and enter the folder.
        open_to = key.stat().st_mode >> 2 & kit.stat().st_mode & 0o011
    except PermissionError:
        raise ConfigError(f"{key}: this user may not read the private key; let the user who starts the site own the "
                          f"kit: chown -R USER {kit}") from None  # fmt: skip
    except OSError:  # if the key is missing, its first use reports the error
        return
    if open_to:
        say(f"{key}: others on this machine can read this private key: chmod -R go= {kit}")


def valid_until(gate: ServerAddress) -> datetime:
    """Return the expiry date of a kit's certificate or of its authority's, whichever is earlier.

    Raises:
        ConfigError: a certificate cannot be read.
    """
    ends: datetime = min(each.not_valid_after_utc for each in _certificates(gate))
    return ends


def _certificates(gate: ServerAddress) -> tuple[Any, Any]:
    """Return a kit's certificate and its authority's certificate, which are read from files."""
    from cryptography import x509  # noqa: PLC0415 - comes with FLARE

    try:
        own, authority = (
            x509.load_pem_x509_certificate(each.read_bytes()) for each in (gate.certificate, gate.authority)
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"{gate.certificate}: the certificate cannot be read ({error}); copy the kit again") from None
    return own, authority


def _check_dates(gate: ServerAddress, begins: datetime, ends: datetime, say: Callable[[str], None]) -> None:
    now, file = datetime.now(UTC), gate.certificate
    if now < begins:
        raise ConfigError(f"{file}: the certificate is valid from {begins:%Y-%m-%d %H:%M} UTC, and this machine's "
                          f"clock says {now:%Y-%m-%d %H:%M} UTC; set the clock")  # fmt: skip
    if now > ends:
        raise ConfigError(f"{file}: the certificate expired on {ends:%Y-%m-%d %H:%M} UTC, and this machine's clock "
                          f"says {now:%Y-%m-%d %H:%M} UTC; {RENEW}")  # fmt: skip
    if now > ends - SOON:
        say(f"{file}: the certificate ends on {ends:%Y-%m-%d %H:%M} UTC, in {(ends - now).days} days; {RENEW}")


def await_server(gate: ServerAddress, wait_s: float = 0.0, say: Callable[[str], None] = lambda _: None) -> None:
    """Wait until the server answers and accepts this kit's certificate; ``say`` reports each failed try.

    Raises:
        ConfigError: the certificates of the server and the kit are not from the same federation.
        RunError: the server does not answer within ``wait_s`` seconds; at least one try is made.
    """
    end, tries = time.monotonic() + wait_s, 0
    while (why := probe(gate)) is not None:
        left = end - time.monotonic()
        if left <= 0:
            tried = f", tried for {wait_s:g} s" if wait_s else ""
            raise RunError(f"{gate.place} cannot be reached ({why}{tried}). Is the active party's site running there "
                           f"(anyparty party start KIT)? Does its firewall let port {gate.port} in? Is the address "
                           f"right? The kit in {gate.kit} has it from 'anyparty federate init --host "
                           f"HOST --port PORT'")  # fmt: skip
        pause = min(PAUSES_S[min(tries, len(PAUSES_S) - 1)], left)
        say(f"waiting for {gate.place} ({why}); next try in {pause:.0f} s, giving up in {left:.0f} s")
        time.sleep(pause)
        tries += 1


def probe(gate: ServerAddress, at: str = "") -> str | None:
    """Try once to reach the server; return the reason why it cannot be reached, or ``None``.

    Two handshakes are needed.  With TLS 1.3, the client finishes before the server has checked the client's
    certificate, so this handshake only identifies the server.  With TLS 1.2, the client finishes after that check, so
    this handshake shows whether the server accepts the kit's certificate.

    Args:
        gate: the server's address and the kit's credentials.
        at: the address to connect to, if it is not the server's usual address.

    Raises:
        ConfigError: the certificates of the server and the kit are not from the same federation.
    """
    try:
        _handshake(gate, ssl.TLSVersion.TLSv1_3, at)
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(f"{gate.place} has a certificate that does not match this kit ({error.verify_message}): it "
                          "is another federation's server, or the kits are not from the same 'anyparty federate init'"
                          ) from None  # fmt: skip
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return (
            "it closes the connection during the TLS handshake: a proxy without a server behind it, or a server that "
            "is starting"
        )
    except ssl.SSLError as error:
        raise ConfigError(f"{gate.place} is not a federation's server: another program listens there "
                          f"({error.reason or error})") from None  # fmt: skip
    except OSError as error:
        return _why(gate, error)
    try:
        _handshake(gate, ssl.TLSVersion.TLSv1_2, at)
    except ConnectionRefusedError as error:  # the server stopped between the two handshakes
        return _why(gate, error)
    except (ssl.SSLError, ConnectionError) as error:
        why = getattr(error, "reason", None) or error
        if "PROTOCOL" not in str(why):  # with PROTOCOL in the message, the server does not support TLS 1.2
            raise ConfigError(f"{gate.place} rejects the certificate {gate.certificate} ({why}): it has expired by "
                              "the clock there, or belongs to another federation") from None  # fmt: skip
    except OSError as error:
        return _why(gate, error)
    return None


def _handshake(gate: ServerAddress, version: ssl.TLSVersion, at: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(gate.authority)
        context.load_cert_chain(gate.certificate, gate.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{gate.kit}: its certificate and key cannot be used ({error}); copy the kit again") from None
    context.maximum_version = version
    with (
        socket.create_connection((at or gate.host, gate.port), timeout=TRY_S) as line,
        context.wrap_socket(line, server_hostname=gate.host),
    ):
        pass


def _why(gate: ServerAddress, error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer for {TRY_S:g} s: a firewall, or no machine has that address"
    if isinstance(error, socket.gaierror):
        return f"the name {gate.host!r} is not known: {error.strerror}"
    return (error.strerror or str(error)).lower()
