"""Start-up kits: FLARE's provisioning, and the files that anyparty adds to each kit."""

from __future__ import annotations

import json
import logging
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from anyparty.core.types import Roster
from anyparty.deployment.flare import authority as authority_of
from anyparty.deployment.flare.authority import PROJECT
from anyparty.deployment.flare.preflight import ServerAddress
from anyparty.deployment.flare.site_config import FILE, SiteConfig
from anyparty.errors import ConfigError, needing

ADMIN = "admin@anyparty.local"
OURS = "anyparty.deployment.flare.job."
GREET = "anyparty.deployment.flare.admission."
LOOPBACK = {"127.0.0.1", "localhost"}
DRIVERS = Path(__file__).parent / "drivers"
MAY = {
    "submit_job": "any", "manage_job": "any", "view": "any", "operate": "none", "clone_job": "none",
    "download_job": "none", "shell_commands": "none", "byoc": "none",
}  # fmt: skip
"""The administrator's rights at a passive party: submit jobs, stop them, list the connected sites.

FLARE's default also lets jobs bring code (byoc) and the administrator read a site's files (shell commands)."""


def server_name(host: str) -> str:
    """Return the name in the server's certificate."""
    return "localhost" if host in LOOPBACK else host


def project(roster: Roster, host: str, port: int, scheme: str) -> dict[str, Any]:
    """Return FLARE's description of the federation."""
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
    """Convert a party's name to FLARE's form of an organisation's name."""
    return party.replace("-", "_")


def provision(
    folder: Path, roster: Roster, host: str, port: int, scheme: str, *, alone: bool = False
) -> dict[str, Path]:
    """Create a kit for every party and for the administrator, with certificates of the authority in ``folder``.

    FLARE's provisioning keeps a copy of every private key.  Here the provisioning runs in a temporary folder, which is
    removed, so each key exists only in its own kit.

    Args:
        folder: the federation's folder.
        roster: the parties.
        host: the name or address of the server.
        port: the server's port.
        scheme: FLARE's driver.
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
    text = json.dumps(described, indent=2)  # JSON is YAML
    theirs = json.loads(text)  # FLARE modifies it
    try:
        read = prepare_project(theirs)
    except ValueError as error:
        why = str(error).partition(" based on ")[0]  # drop the regular expression
        raise ConfigError(f"host {host!r}: expected a name of letters, digits, '-' and '.', or an IPv4 address, other "
                          f"than a passive party's name ({why})") from None  # fmt: skip
    authority = folder / "authority"
    authority_of.make(authority, server_name(host), port, scheme)
    (authority / "project.yml").write_text(text, encoding="utf-8")
    read.serialized_root_cert = (authority / "rootCA.pem").read_bytes()
    read.root_private_key = load_private_key_file(str(authority / "rootCA.key"))
    names = {described["participants"][0]["name"]: roster.active, ADMIN: "admin"}
    kits = {}
    with tempfile.TemporaryDirectory(dir=folder) as place:
        context = Provisioner(place, prepare_builders(theirs)).provision(read, logger=logging.getLogger())
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
    """Check that jobs can be started from a folder.

    FLARE puts the folder's path into a command line, which it then splits at blanks.

    Raises:
        ConfigError: the path of the folder or of Python contains a blank, a quote, a ``#`` or a backslash.
    """
    for path in (str(place.resolve()), sys.executable):
        try:
            whole = shlex.split(path, comments=True) == [path]
        except ValueError:  # an unclosed quote
            whole = False
        if not whole:
            raise ConfigError(f"{path}: FLARE cannot start jobs from a path with blanks, quotes, '#' or backslashes; "
                              "use another place")  # fmt: skip


def dress(kit: Path, own: Mapping[str, Any] | None = None) -> None:
    """Write the files that a site needs in addition to FLARE's.

    They are written again at each start of the site, because they contain the kit's path.

    Jobs may name only the two classes of ``job`` and bring no code.  The site's files cannot be read remotely, no log
    leaves the site, and only warnings are logged.  With ``own``, the site's settings file is written, too.

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
    resources["components"].append(_greeter(kit))
    (local / "resources.json").write_text(json.dumps(resources, indent=1), encoding="utf-8")
    if not ServerAddress.of(kit).serves:
        rights = {"format_version": "1.0", "permissions": {"project_admin": MAY}}
        (local / "authorization.json").write_text(json.dumps(rights, indent=1), encoding="utf-8")
    internal = {"scheme": "anyparty-unix", "resources": {"folder": str(kit.resolve() / "internal")}}
    between = {
        "comm_driver_path": str(DRIVERS),
        "internal": internal,
    }  # connections between a site's process and its jobs' processes
    (local / "comm_config.json").write_text(json.dumps(between, indent=1), encoding="utf-8")
    levels = (local / "log_config.json.default").read_text(encoding="utf-8").replace('"INFO"', '"WARNING"')
    (local / "log_config.json").write_text(levels, encoding="utf-8")


def _greeter(kit: Path) -> dict[str, Any]:
    """Return the component that reports connected sites."""
    site = SiteConfig.read(kit)
    gate = ServerAddress.of(kit)
    if gate.serves:
        args = {"parties": len(site.parties), "kit": str(kit.resolve())}
        return {"id": "anyparty_doorman", "path": f"{GREET}AdmissionController", "args": args}
    return {
        "id": "anyparty_visitor",
        "path": f"{GREET}ConnectionMonitor",
        "args": {"party": site.party, "place": gate.place},
    }
