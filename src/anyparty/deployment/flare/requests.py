"""Certificates by request: each party creates its private key, and the active party signs its request.

All certificates are created by FLARE's commands, ``nvflare cert init``, ``cert request``, ``cert approve`` and
``package``.  A private key never leaves its party's machine:

    active party    authority.make    authority/: rootCA.key (mode 0600), rootCA.pem, ca.json, profile.json
    party           request           KIT/request/: PARTY.key (mode 0600) and PARTY.request.zip, to send
    active party    approve           approved/PARTY.approved.zip, to send back: the signed certificate, no key
    party           install           KIT: a start-up kit with the party's own key
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyparty.deployment.flare.authority import DAYS, PROFILE, PROJECT, nvflare
from anyparty.deployment.flare.provisioning import check_place, dress, organisation
from anyparty.deployment.flare.site_config import FILE, SiteConfig
from anyparty.errors import ConfigError

REQUEST, APPROVED = "request", "approved"
ABOUT, SIGNATURE = "federation.json", "federation.json.sig"
MOST_BYTES = 10 * 1024 * 1024  # maximum size of a ZIP file, and of all its members together


@dataclass(frozen=True)
class SignedFile:
    """A file to send to another party, and a fingerprint to compare over another channel, such as a phone call.

    Attributes:
        file: the file to send.
        fingerprint: SHA-256 of the party's public key, or of the authority's certificate.

    """

    file: Path
    fingerprint: str


def request(kit: Path, party: str, *, again: bool = False) -> SignedFile:
    """Create a party's private key and a signing request in ``kit``; return the request, to send to the active party.

    Args:
        kit: a new folder, or the kit whose certificate is to be renewed.
        party: the party's name in the federation.
        again: replace an earlier request and its key.

    Raises:
        ConfigError: a request exists already, the kit is another party's, or FLARE reports an error.
    """
    place = kit / REQUEST
    check_place(kit)
    if (kit / "local" / FILE).exists() and (found := SiteConfig.read(kit).party) != party:
        raise ConfigError(f"{kit} is the kit of party {found!r}, not of {party!r}; name another folder")
    if place.exists():
        if not again:
            raise ConfigError(f"{place}: a request is here already; send it, or replace it and its key with --again")
        shutil.rmtree(place)
    kit.mkdir(parents=True, exist_ok=True)
    kit.chmod(0o700)
    with tempfile.TemporaryDirectory() as folder:
        described = Path(folder) / "participant.json"
        participant = {"name": party, "org": organisation(party), "type": "client"}
        described.write_text(json.dumps({"name": PROJECT, "participants": [participant]}), encoding="utf-8")
        made = nvflare("cert", "request", "--participant", described, "--out", place)
    asked = json.loads((place / "request.json").read_text(encoding="utf-8"))
    return SignedFile(Path(made["request_zip"]), str(asked["public_key_sha256"]))


def approve(
    folder: Path, federation: Mapping[str, Any], file: Path, *, fingerprint: str | None = None, again: bool = False
) -> tuple[str, SignedFile]:
    """Sign a party's request with the authority's key; return the party and the approval, to send back.

    Args:
        folder: the federation's folder.
        federation: the contents of its ``federation.toml``.
        file: the request, PARTY.request.zip.
        fingerprint: the key's fingerprint as reported by the party; a different one is an error.
        again: approve a party again.

    Raises:
        ConfigError: the folder lacks the authority's key, the request is not from a passive party, the fingerprint
            differs, or FLARE reports an error.
    """
    authority, out = folder / "authority", folder / APPROVED
    if not (authority / "rootCA.key").exists():
        raise ConfigError(f"{authority}/rootCA.key: the authority's key is not here; approve where 'anyparty federate "
                          f"init' was run")  # fmt: skip
    with tempfile.TemporaryDirectory() as place:  # a copy, so that the checked file is the signed one
        copy, signed = Path(place) / "copy.request.zip", Path(place) / "signed.zip"
        copy.write_bytes(_bytes_of(file))
        asked = _mapping(_members(copy, file).get("request.json", b""), file)
        name = _checked(asked, federation, file)
        if fingerprint is not None and not _same(fingerprint, str(asked.get("public_key_sha256"))):
            raise ConfigError(f"{file}: its key's fingerprint is {asked.get('public_key_sha256')}, and "
                              f"{fingerprint} was expected: the request may have been replaced on its way; ask party "
                              f"{name!r} to send it again")  # fmt: skip
        approval = out / f"{name}.approved.zip"
        if approval.exists() and not again:
            raise ConfigError(f"{approval}: party {name!r} was approved already; send it, or sign the new request with "
                              f"--again")  # fmt: skip
        made = nvflare("cert", "approve", copy, "-c", authority, "--profile", authority / PROFILE, "--out", signed,
                        "--valid-days", DAYS)  # fmt: skip
        about = json.dumps({"request": made["request_id"], "party": name, "active": federation["active"],
                            "parties": list(federation["parties"])})  # fmt: skip
        out.mkdir(mode=0o700, exist_ok=True)
        with zipfile.ZipFile(approval, "w") as zipped:
            zipped.write(signed, "signed.zip")
            zipped.writestr(ABOUT, about)
            zipped.writestr(SIGNATURE, _sign(about, authority / "rootCA.key"))
    return name, SignedFile(approval, str(made["rootca_fingerprint_sha256"]))


def _checked(asked: Mapping[str, Any], federation: Mapping[str, Any], file: Path) -> str:
    """Check a request; return its party, which must be a passive party that requests a client certificate.

    FLARE signs any request.  A certificate for the server or an administrator would let a party impersonate them.
    """
    name, passive = asked.get("name"), [each for each in federation["parties"] if each != federation["active"]]
    if (asked.get("kind"), asked.get("cert_type")) != ("site", "client"):
        raise ConfigError(f"{file}: this request is for a {asked.get('cert_type')!r} certificate; a passive party gets "
                          f"one for a client: ask it to run 'anyparty party request'")  # fmt: skip
    if not isinstance(name, str) or name not in passive:
        raise ConfigError(f"{file}: this request is of {name!r}, and the federation's passive parties are {passive}; "
                          f"ask for a request under one of these names")  # fmt: skip
    if asked.get("org") != organisation(name):
        raise ConfigError(f"{file}: this request names the organisation {asked.get('org')!r}, not "
                          f"{organisation(name)!r}; ask party {name!r} to run 'anyparty party request'")  # fmt: skip
    return name


def install(kit: Path, file: Path, *, fingerprint: str | None = None) -> str:
    """Build a start-up kit from a party's key and its approval; return the authority's fingerprint.

    An existing kit keeps its settings and gets the new certificate.

    Args:
        kit: the folder with the party's ``request``.
        file: the approval, PARTY.approved.zip.
        fingerprint: the authority's fingerprint as reported by the active party; a different one is an error.

    Raises:
        ConfigError: there is no request, the approval is for another request or was modified, the fingerprint differs,
            or FLARE reports an error.
    """
    place = kit / REQUEST
    if not (place / "request.json").exists():
        raise ConfigError(f"{place}: there is no request here; run 'anyparty party request' first, or name its folder")
    parts = _members(file, file)
    if set(parts) != {"signed.zip", ABOUT, SIGNATURE}:
        raise ConfigError(
            f"{file}: this is not an approval of 'anyparty federate approve'; ask the leading party for it"
        )
    with tempfile.TemporaryDirectory(dir=kit) as workspace:
        signed = Path(workspace) / "copy.signed.zip"
        signed.write_bytes(parts["signed.zip"])
        expected = ["--fingerprint", fingerprint] if fingerprint is not None else []
        made = nvflare("package", signed, "--request-dir", place, "-w", workspace, *expected)
        new = Path(made["output_dir"])
        about = _verified(parts, new / "startup" / "rootCA.pem", file)
        asked = json.loads((place / "request.json").read_text(encoding="utf-8"))
        if (about["request"], about["party"]) != (asked["request_id"], asked["name"]):
            raise ConfigError(f"{file}: this approval is of another request; ask the leading party for that of {place}")
        known = (kit / "local" / FILE).exists()
        shutil.rmtree(kit / "startup", ignore_errors=True)
        shutil.move(new / "startup", kit / "startup")
        shutil.copytree(new, kit, dirs_exist_ok=True)
        own = {key: about[key] for key in ("party", "active", "parties")}
        dress(kit, None if known else own)
        kit.chmod(0o700)  # copying a folder also copies its mode
    shutil.rmtree(place)  # the key is now only in the kit
    return str(made["rootca_fingerprint_sha256"])


def _sign(text: str, key: Path) -> str:
    from nvflare.lighter.utils import load_private_key_file, sign_content  # noqa: PLC0415 - an extra

    return str(sign_content(text, load_private_key_file(str(key))))


def _verified(parts: Mapping[str, bytes], authority: Path, file: Path) -> dict[str, Any]:
    """Verify that the authority signed the approval's description of the federation; return the description."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - comes with FLARE
    from nvflare.lighter.utils import load_crt, verify_content  # noqa: PLC0415 - an extra

    try:
        verify_content(parts[ABOUT], parts[SIGNATURE].decode(), load_crt(str(authority)).public_key())
    except (InvalidSignature, ValueError):
        raise ConfigError(f"{file}: the list of parties in it is not signed by the federation's authority: it was "
                          f"changed on its way; ask the leading party to send it again") from None  # fmt: skip
    return _mapping(parts[ABOUT], file)


def _bytes_of(file: Path) -> bytes:
    try:
        if file.stat().st_size > MOST_BYTES:
            raise ConfigError(f"{file}: {file.stat().st_size:,} bytes; such a file has {MOST_BYTES:,} at most")
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror or error})") from None


def _members(path: Path, file: Path) -> dict[str, bytes]:
    """Return the contents of a ZIP file's members by name; ``file`` is the path that error messages name."""
    _bytes_of(path)
    try:
        with zipfile.ZipFile(path) as zipped:
            if sum(each.file_size for each in zipped.infolist()) > MOST_BYTES:
                raise ConfigError(f"{file}: its files are larger than {MOST_BYTES:,} bytes together")
            return {each.filename: zipped.read(each) for each in zipped.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ConfigError(f"{file}: this is not a ZIP file, or it is damaged ({error}); ask for it again") from None


def _mapping(text: bytes, file: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: this is not a request or an approval of anyparty; ask for it again")
    return found


def _same(one: str, other: str) -> bool:
    """Return True if two fingerprints are equal, ignoring their notation."""
    plain = [text.strip().upper().removeprefix("SHA256:").replace(":", "").replace(" ", "") for text in (one, other)]
    return plain[0] == plain[1]
