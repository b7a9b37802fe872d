"""Start-up kits and their certificates: the certificate authority, FLARE's provisioning, and certificates by request.

All certificates are created by FLARE's commands, ``nvflare cert init``, ``cert request``, ``cert approve`` and
``package``.  A private key never leaves its party's machine:

    active party    make_authority    authority/: rootCA.key (mode 0600), rootCA.pem, ca.json, profile.json
    party           request           KIT/request/: PARTY.key (mode 0600) and PARTY.request.zip, to send
    active party    approve           approved/PARTY.approved.zip, to send back: the signed certificate, no key
    party           install           KIT: a start-up kit with the party's own key
"""

from __future__ import annotations

import importlib
import json
import logging
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from anyparty.core.types import Roster
from anyparty.deployment.flare.preflight import ServerAddress
from anyparty.deployment.flare.site_config import FILE, SiteConfig
from anyparty.errors import ConfigError, needing

PROJECT, PROFILE = "anyparty", "profile.json"
DAYS = 360  # days for which certificates are valid


def make_authority(authority: Path, host: str, port: int, scheme: str) -> None:
    """Create a certificate authority in a new folder that only the current user may enter.

    Raises:
        ConfigError: FLARE is not installed, or reports an error.
    """
    authority.mkdir(mode=0o700)
    profile = {"name": PROJECT, "scheme": scheme, "connection_security": "mtls",
               "server": {"host": host, "fed_learn_port": port, "admin_port": port}}  # fmt: skip
    # FLARE expects YAML; JSON is valid YAML.
    (authority / PROFILE).write_text(json.dumps(profile, indent=1), encoding="utf-8")
    nvflare("cert", "init", "--profile", authority / PROFILE, "-o", authority, "--valid-days", DAYS)


def nvflare(*arguments: object) -> dict[str, Any]:
    """Run the command ``nvflare``, and return the data of its answer; ``arguments`` are the command's arguments.

    Raises:
        ConfigError: FLARE is not installed, or reports an error.
    """
    with needing("flare", "a federation of processes"):
        importlib.import_module("nvflare")
    command = [sys.executable, "-m", "nvflare.cli", *map(str, arguments), "--format", "json"]
    ran = subprocess.run(  # noqa: S603 - our own command  # nosec B603
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    try:
        answer = json.loads(ran.stdout.strip().splitlines()[-1])
        if ran.returncode == 0 and answer["status"] == "ok":
            return dict(answer["data"])
        why = " ".join(str(answer[key]) for key in ("message", "detail", "hint") if answer.get(key))
    except (ValueError, LookupError, TypeError):
        why = (ran.stderr.strip().splitlines() or ["no answer"])[-1]
    called = " ".join(str(word) for word in arguments[:2] if str(word).isalpha())
    raise ConfigError(f"'nvflare {called}' reports: {why}")


ADMIN = "admin@anyparty.local"
OURS = "anyparty.deployment.flare.job."
GREET = "anyparty.deployment.flare.admission."
PORT = "anyparty.deployment.flare.port_driver.ServerPort"
LOOPBACK = {"127.0.0.1", "localhost"}
DRIVERS = Path(__file__).parent / "drivers"
MAY = {
    "submit_job": "any", "manage_job": "any", "view": "any", "operate": "none", "clone_job": "none",
    "download_job": "none", "shell_commands": "none", "byoc": "none",
}  # fmt: skip
"""The administrator's rights at a passive party: submit jobs, stop them, list the connected sites.

FLARE's default also lets jobs bring code (byoc) and the administrator read a site's files (shell commands)."""


def server_name(host: str) -> str:
    """Return the name in the certificate of a server at ``host``: "localhost" for a loopback address, else ``host``."""
    return "localhost" if host in LOOPBACK else host


def project(roster: Roster, host: str, port: int, scheme: str) -> dict[str, Any]:
    """Return the description of the federation that FLARE's provisioning reads."""
    builders = "nvflare.lighter.impl."
    server = {"name": server_name(host), "type": "server", "org": organisation(roster.active),
              "fed_learn_port": port, "admin_port": port, "default_host": host,
              "host_names": [server_name(host)]}  # fmt: skip
    passive = [
        {"name": name, "type": "client", "org": organisation(name)} for name in roster.names if name != roster.active
    ]
    admin = {"name": ADMIN, "type": "admin", "org": organisation(roster.active), "role": "project_admin"}
    return {
        "api_version": 3, "name": PROJECT, "description": "made by 'anyparty federate init'",
        "participants": [server, *passive, admin],
        "builders": [
            {"path": f"{builders}workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
            {"path": f"{builders}static_file.StaticFileBuilder", "args": {"config_folder": "config", "scheme": scheme}},
            {"path": f"{builders}cert.CertBuilder", "args": {}},
            {"path": f"{builders}signature.SignatureBuilder", "args": {}},
        ],
    }  # fmt: skip


def organisation(party: str) -> str:
    """Convert a party's name to a name that FLARE accepts for an organisation: "_" for each "-"."""
    return party.replace("-", "_")


def provision(
    folder: Path, roster: Roster, host: str, port: int, scheme: str, *, alone: bool = False
) -> dict[str, Path]:
    """Create a kit for every party and the administrator, certified by the authority in ``folder``; return the kits.

    FLARE's provisioning keeps a copy of every private key.  Here the provisioning runs in a temporary folder, which is
    removed, so each key exists only in its own kit.

    Args:
        folder: the federation's folder.
        roster: the parties.
        host: the name or address of the server.
        port: the server's port.
        scheme: FLARE's driver, ``grpc`` or ``tcp``.
        alone: create only the kits of the active party and the administrator.

    Raises:
        ConfigError: FLARE is not installed, or rejects the project.
    """
    with needing("flare", "a federation of processes"):
        from nvflare.lighter.prov_utils import prepare_builders  # noqa: PLC0415 - an extra
        from nvflare.lighter.provision import prepare_project  # noqa: PLC0415
        from nvflare.lighter.provisioner import Provisioner  # noqa: PLC0415
        from nvflare.lighter.utils import load_private_key_file  # noqa: PLC0415
    described = project(roster, host, port, scheme)
    if alone:
        described["participants"] = [each for each in described["participants"] if each["type"] != "client"]
    text = json.dumps(described, indent=2)  # FLARE expects YAML; JSON is valid YAML
    project_copy = json.loads(text)  # a copy, because FLARE modifies it
    try:
        read = prepare_project(project_copy)
    except ValueError as error:
        why = str(error).partition(" based on ")[0]  # without the regular expression at the end of FLARE's message
        raise ConfigError(f"host {host!r}: expected a name of letters, digits, '-' and '.', or an IPv4 address, other "
                          f"than a passive party's name ({why})") from None  # fmt: skip
    authority = folder / "authority"
    make_authority(authority, server_name(host), port, scheme)
    (authority / "project.yml").write_text(text, encoding="utf-8")
    read.serialized_root_cert = (authority / "rootCA.pem").read_bytes()
    read.root_private_key = load_private_key_file(str(authority / "rootCA.key"))
    names = {described["participants"][0]["name"]: roster.active, ADMIN: "admin"}
    kits = {}
    with tempfile.TemporaryDirectory(dir=folder) as place:
        context = Provisioner(place, prepare_builders(project_copy)).provision(read, logger=logging.getLogger())
        made = Path(context.get("current_prod_dir") or "")
        if not made.name:
            raise ConfigError(f"FLARE could not make the kits of the federation in {authority / 'project.yml'}")
        for source in sorted(made.iterdir()):
            name = names.get(source.name, source.name)
            kits[name] = folder / "kits" / name
            kits[name].parent.mkdir(exist_ok=True)
            shutil.move(source, kits[name])
            kits[name].chmod(0o700)
    return kits


def check_place(place: Path) -> None:
    """Check that FLARE can start jobs from a folder.

    FLARE puts the folder's path into a command line, and then splits the command line at blanks.

    Raises:
        ConfigError: the path of the folder or of Python contains a blank, a quote, a ``#`` or a backslash.
    """
    for path in (str(place.resolve()), sys.executable):
        try:
            whole = shlex.split(path, comments=True) == [path]
        except ValueError:  # ``shlex`` found a quote that is not closed
            whole = False
        if not whole:
            raise ConfigError(f"{path}: FLARE cannot start jobs from a path with blanks, quotes, '#' or backslashes; "
                              "use another place")  # fmt: skip


def write_site_files(kit: Path, own: Mapping[str, Any] | None = None) -> None:
    """Write the files that a site needs in addition to FLARE's files.

    The files are written again at each start of the site, because they contain the kit's path.

    With these files, a job may contain no code, and may start only the two classes of the module ``job``. The site's
    files cannot be read remotely, no log leaves the site, and only warnings are logged. ``own`` is the content of the
    site's settings file, which is written only if ``own`` is given.

    Raises:
        ConfigError: ``kit`` is not a kit, or jobs cannot be started from its path.
    """
    local = kit / "local"
    check_place(kit)
    if not (local / "resources.json.default").exists():
        raise ConfigError(f"{kit} is not a kit of 'anyparty federate init'")
    if own is not None:
        (local / FILE).write_text(tomli_w.dumps(dict(own)), encoding="utf-8")
    text = (local / "resources.json.default").read_text(encoding="utf-8")
    resources = json.loads(text.replace("/tmp/nvflare", str(kit.resolve() / "flare")))  # noqa: S108 - replaced  # nosec B108
    resources["class_allow_list"] = [OURS]
    resources["allow_log_streaming"] = False
    resources["components"] = [each for each in resources["components"] if "log" not in each["id"]]
    for each in resources["components"]:
        if each["path"].endswith(".ClientProcessJobLauncher"):
            each["path"] = "anyparty.deployment.flare.launcher.SiteLauncher"
    resources["components"] += _own_components(kit)
    (local / "resources.json").write_text(json.dumps(resources, indent=1), encoding="utf-8")
    if not ServerAddress.of(kit).serves:
        rights = {"format_version": "1.0", "permissions": {"project_admin": MAY}}
        (local / "authorization.json").write_text(json.dumps(rights, indent=1), encoding="utf-8")
    internal = {"scheme": "anyparty-unix", "resources": {"folder": str(kit.resolve() / "internal")}}
    # Connections between a site's process and the processes of its jobs.
    between = {"comm_driver_path": str(DRIVERS), "internal": internal}
    (local / "comm_config.json").write_text(json.dumps(between, indent=1), encoding="utf-8")
    levels = (local / "log_config.json.default").read_text(encoding="utf-8").replace('"INFO"', '"WARNING"')
    (local / "log_config.json").write_text(levels, encoding="utf-8")


def _own_components(kit: Path) -> list[dict[str, Any]]:
    """Return the entries of ``resources.json`` for the components that guard the port and report connections."""
    site = SiteConfig.read(kit)
    gate = ServerAddress.of(kit)
    if gate.serves:
        args = {"parties": len(site.parties), "kit": str(kit.resolve())}
        return [
            {"id": "anyparty_port", "path": PORT, "args": {}},
            {"id": "anyparty_doorman", "path": f"{GREET}AdmissionController", "args": args},
        ]
    args = {"party": site.party, "place": gate.place}
    return [{"id": "anyparty_visitor", "path": f"{GREET}ConnectionMonitor", "args": args}]


REQUEST, APPROVED = "request", "approved"
ABOUT, SIGNATURE = "federation.json", "federation.json.sig"
MOST_BYTES = 10 * 1024 * 1024  # maximum size of a ZIP file, and of its contents


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
    request_facts = json.loads((place / "request.json").read_text(encoding="utf-8"))
    return SignedFile(Path(made["request_zip"]), str(request_facts["public_key_sha256"]))


def approve(
    folder: Path, federation: Mapping[str, Any], file: Path, *, fingerprint: str | None = None, again: bool = False
) -> tuple[str, SignedFile]:
    """Sign a party's request with the authority's key; return the party's name and the approval, to send back.

    Args:
        folder: the federation's folder.
        federation: the contents of its ``federation.toml``.
        file: the request, PARTY.request.zip.
        fingerprint: the key's fingerprint as reported by the party; a different one is an error.
        again: approve a party that has an approval already.

    Raises:
        ConfigError: the folder lacks the authority's key, the request is not from a passive party, the fingerprint
            differs, or FLARE reports an error.
    """
    authority, out = folder / "authority", folder / APPROVED
    if not (authority / "rootCA.key").exists():
        raise ConfigError(f"{authority}/rootCA.key: the authority's key is not here; approve where 'anyparty federate "
                          f"init' was run")  # fmt: skip
    with tempfile.TemporaryDirectory() as place:  # for a copy that no other process can change before it is signed
        copy, signed = Path(place) / "copy.request.zip", Path(place) / "signed.zip"
        copy.write_bytes(_bytes_of(file))
        request_facts = _mapping(_members(copy, file).get("request.json", b""), file)
        name = _checked(request_facts, federation, file)
        if fingerprint is not None and not _same(fingerprint, str(request_facts.get("public_key_sha256"))):
            raise ConfigError(f"{file}: its key's fingerprint is {request_facts.get('public_key_sha256')}, and "
                              f"{fingerprint} was expected: the request may have been replaced on its way; ask party "
                              f"{name!r} to send it again")  # fmt: skip
        approval = out / f"{name}.approved.zip"
        if approval.exists() and not again:
            raise ConfigError(f"{approval}: party {name!r} was approved already; send it, or sign the new request with "
                              f"--again")  # fmt: skip
        made = nvflare("cert", "approve", copy, "-c", authority, "--profile", authority / PROFILE, "--out", signed,
                        "--valid-days", DAYS)  # fmt: skip
        approval_text = json.dumps({"request": made["request_id"], "party": name, "active": federation["active"],
                            "parties": list(federation["parties"])})  # fmt: skip
        out.mkdir(mode=0o700, exist_ok=True)
        with zipfile.ZipFile(approval, "w") as zipped:
            zipped.write(signed, "signed.zip")
            zipped.writestr(ABOUT, approval_text)
            zipped.writestr(SIGNATURE, _sign(approval_text, authority / "rootCA.key"))
    return name, SignedFile(approval, str(made["rootca_fingerprint_sha256"]))


def _checked(request_facts: Mapping[str, Any], federation: Mapping[str, Any], file: Path) -> str:
    """Check a request; return its party, which must be a passive party that requests a client certificate.

    FLARE signs any request.  A certificate for the server or an administrator would let a party impersonate them.
    """
    name, passive = request_facts.get("name"), [each for each in federation["parties"] if each != federation["active"]]
    if (request_facts.get("kind"), request_facts.get("cert_type")) != ("site", "client"):
        raise ConfigError(f"{file}: this request is for a {request_facts.get('cert_type')!r} certificate; a passive "
                          "party gets "
                          f"one for a client: ask it to run 'anyparty party request'")  # fmt: skip
    if not isinstance(name, str) or name not in passive:
        raise ConfigError(f"{file}: this request is of {name!r}, and the federation's passive parties are {passive}; "
                          f"ask for a request under one of these names")  # fmt: skip
    if request_facts.get("org") != organisation(name):
        raise ConfigError(f"{file}: this request names the organisation {request_facts.get('org')!r}, not "
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
        ConfigError: ``kit`` contains no request, the approval is for another request or was modified, the fingerprint
            differs, or FLARE reports an error.
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
        approval = _verified(parts, new / "startup" / "rootCA.pem", file)
        request_facts = json.loads((place / "request.json").read_text(encoding="utf-8"))
        if (approval["request"], approval["party"]) != (request_facts["request_id"], request_facts["name"]):
            raise ConfigError(f"{file}: this approval is of another request; ask the leading party for that of {place}")
        known = (kit / "local" / FILE).exists()
        shutil.rmtree(kit / "startup", ignore_errors=True)
        shutil.move(new / "startup", kit / "startup")
        shutil.copytree(new, kit, dirs_exist_ok=True)
        own = {key: approval[key] for key in ("party", "active", "parties")}
        write_site_files(kit, None if known else own)
        kit.chmod(0o700)  # the copy above has also set the mode of the temporary folder
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
    """Return the contents of a ZIP file's members by name; ``file`` is the path to show in error messages."""
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
    """Return True if two fingerprints are equal, ignoring case, spaces, colons and the prefix "SHA256:"."""
    plain = [text.strip().upper().removeprefix("SHA256:").replace(":", "").replace(" ", "") for text in (one, other)]
    return plain[0] == plain[1]
