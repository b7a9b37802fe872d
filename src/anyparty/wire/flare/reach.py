"""Before a site starts, or an administrator asks: is the kit in date, is the server there, and do the two fit?

    kit                    a certificate of its own authority, in date, made out to the party that its settings name
    HOST:PORT, TCP         somebody listens; waited for, with a sentence for every try
    HOST:PORT, mutual TLS  the server has a certificate of the same authority, and takes this one

FLARE itself tries again for ever and says nothing, whatever is wrong.
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

SOON = timedelta(days=30)  # a certificate that ends within this is worth a warning
TRY_S = 5.0
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0)
RENEW = "see 'Certificates' in docs/two-machines.md: new kits for all parties, by 'anyparty federate init'"


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Where a kit's server is, and what the kit shows there.

    Attributes:
        kit: the kit's folder.
        host, port: of the server.
        owner: who the certificate must be made out to; empty where any of the authority's will do.
        certificate, key, authority: files of the kit, in PEM.
        serves: the kit is the server's own.

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
    def of(cls, kit: Path, owner: str = "") -> Gate:
        """Read a kit's start-up files.

        Raises:
            ConfigError: this is no kit.
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
            raise ConfigError(f"{found[0]}: cannot be read ({error!r}); copy the kit anew") from None
        own = "server" if serves else "client"
        return cls(
            kit=kit, host=host, port=port, owner="" if serves else owner, certificate=startup / f"{own}.crt",
            key=startup / f"{own}.key", authority=startup / "rootCA.pem", serves=serves,
        )  # fmt: skip

    @property
    def place(self) -> str:
        """HOST:PORT."""
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
def check_certificate(gate: Gate, say: Callable[[str], None] = lambda _: None) -> None:
    """Check a kit's certificate; ``say`` hears of one that ends soon.

    Raises:
        ConfigError: it is absent, of another authority, made out to somebody else, not valid yet or any more.
    """
    from cryptography import x509  # noqa: PLC0415 - comes with FLARE
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415

    own, authority = _certificates(gate)
    try:
        own.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        raise ConfigError(f"{gate.certificate}: this certificate is not of the authority in {gate.authority.name}; "
                          f"take all files in startup/ from one kit") from None  # fmt: skip
    names = [str(each.value) for each in own.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    if gate.owner and gate.owner not in names:
        raise ConfigError(f"{gate.kit}: the certificate is made out to {names}, the kit's own settings say party = "
                          f"{gate.owner!r}; a party can only take part under its own name")  # fmt: skip
    _check_dates(gate, max(each.not_valid_before_utc for each in (own, authority)),
                 min(each.not_valid_after_utc for each in (own, authority)), say)  # fmt: skip


def check_key(gate: Gate, say: Callable[[str], None] = lambda _: None) -> None:
    """Check that a kit's private key can be read, by its user; ``say`` hears where others can, too.

    Who unpacks a kit may lose who may read what: a ZIP file made by many programs does not keep it.

    Raises:
        ConfigError: this user cannot read it.
    """
    kit, key = gate.kit, gate.key
    try:
        key.open("rb").close()
        open_to = key.stat().st_mode >> 2 & kit.stat().st_mode & 0o011  # may read it, and come to it
    except PermissionError:
        raise ConfigError(f"{key}: this user may not read the private key; let the user who starts the site own the "
                          f"kit: chown -R USER {kit}") from None  # fmt: skip
    except OSError:  # not there: whoever uses it says so
        return
    if open_to:
        say(f"{key}: others on this machine can read this private key: chmod -R go= {kit}")


def valid_until(gate: Gate) -> datetime:
    """Return when a kit's certificate, or its authority's, ends.

    Raises:
        ConfigError: it cannot be read.
    """
    ends: datetime = min(each.not_valid_after_utc for each in _certificates(gate))
    return ends


def _certificates(gate: Gate) -> tuple[Any, Any]:
    """Return a kit's certificate and its authority's."""
    from cryptography import x509  # noqa: PLC0415 - comes with FLARE

    try:
        own, authority = (
            x509.load_pem_x509_certificate(each.read_bytes()) for each in (gate.certificate, gate.authority)
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"{gate.certificate}: the certificate cannot be read ({error}); copy the kit anew") from None
    return own, authority


def _check_dates(gate: Gate, begins: datetime, ends: datetime, say: Callable[[str], None]) -> None:
    now, file = datetime.now(UTC), gate.certificate
    if now < begins:
        raise ConfigError(f"{file}: the certificate is valid from {begins:%Y-%m-%d %H:%M} UTC, and this machine's "
                          f"clock says {now:%Y-%m-%d %H:%M} UTC; set the clock")  # fmt: skip
    if now > ends:
        raise ConfigError(f"{file}: the certificate expired on {ends:%Y-%m-%d %H:%M} UTC, and this machine's clock "
                          f"says {now:%Y-%m-%d %H:%M} UTC; {RENEW}")  # fmt: skip
    if now > ends - SOON:
        say(f"{file}: the certificate ends on {ends:%Y-%m-%d %H:%M} UTC, in {(ends - now).days} days; {RENEW}")


def await_server(gate: Gate, wait_s: float = 0.0, say: Callable[[str], None] = lambda _: None) -> None:
    """Wait until the server answers, and takes this kit's certificate; ``say`` hears why it does not yet.

    Raises:
        ConfigError: it answers, and the two certificates do not fit.
        RunError: it does not answer within ``wait_s`` seconds; it is asked once at least.
    """
    end, tries = time.monotonic() + wait_s, 0
    while (why := knock(gate)) is not None:
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


def knock(gate: Gate) -> str | None:
    """Try once; return why the server cannot be reached, ``None`` if it can.

    Two handshakes: by TLS 1.3 the client is done before the server has looked at its certificate, so that one says
    whose the server is; by TLS 1.2 it is not, so that one says whether the server takes ours.

    Raises:
        ConfigError: it answers, and the two certificates do not fit.
    """
    try:
        _greet(gate, ssl.TLSVersion.TLSv1_3)
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(f"{gate.place} shows a certificate that does not fit this kit ({error.verify_message}): it "
                          f"is another federation's server, or the kits are not of one 'anyparty federate init'"
                          ) from None  # fmt: skip
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return "it hangs up while the two greet each other: a proxy with nobody behind it, or a server that is starting"
    except ssl.SSLError as error:
        raise ConfigError(f"{gate.place} is no server of a federation: something else listens there "
                          f"({error.reason or error})") from None  # fmt: skip
    except OSError as error:
        return _why(gate, error)
    try:
        _greet(gate, ssl.TLSVersion.TLSv1_2)
    except ConnectionRefusedError as error:  # it went away between the two
        return _why(gate, error)
    except (ssl.SSLError, ConnectionError) as error:
        why = getattr(error, "reason", None) or error
        if "PROTOCOL" not in str(why):  # a machine that does not speak TLS 1.2 any more
            raise ConfigError(f"{gate.place} does not take the certificate {gate.certificate} ({why}): it has expired "
                              f"by the clock there, or is another federation's") from None  # fmt: skip
    except OSError as error:
        return _why(gate, error)
    return None


def _greet(gate: Gate, version: ssl.TLSVersion) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(gate.authority)
        context.load_cert_chain(gate.certificate, gate.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{gate.kit}: its certificate and key cannot be used ({error}); copy the kit anew") from None
    context.maximum_version = version
    with (
        socket.create_connection((gate.host, gate.port), timeout=TRY_S) as line,
        context.wrap_socket(line, server_hostname=gate.host),
    ):
        pass


def _why(gate: Gate, error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer for {TRY_S:g} s: a firewall, or nobody has that address"
    if isinstance(error, socket.gaierror):
        return f"the name {gate.host!r} is not known: {error.strerror}"
    return (error.strerror or str(error)).lower()
