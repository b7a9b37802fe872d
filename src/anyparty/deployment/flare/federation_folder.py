"""A federation on FLARE: kits for all organisations, processes on this machine for tests, and jobs.

``init`` creates a folder:

    federation.toml     the parties, and the address of the server
    authority/          the certificate authority; its key rootCA.key signs certificates and must stay secret
    kits/PARTY/         for each party: certificate, start-up files, local/anyparty.toml to fill in
    kits/admin/         the administrator's kit, to submit jobs

A party's private key exists only in its kit.  With ``requests=True``, passive parties have no kit in this folder: each
creates its own key and requests a certificate (module ``provisioning``).

The active party runs FLARE's server, and every other party runs a FLARE client.  The only open port is the server's.
On separate machines each party starts its own kit (``run_site``).  ``start`` starts all kits on this machine.
"""

from __future__ import annotations

import json
import re
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from anyparty.core.types import Roster
from anyparty.deployment.flare.admin import ask_server, read_federation
from anyparty.deployment.flare.provisioning import (
    OURS,
    SignedFile,
    check_place,
    install,
    provision,
    request,
    write_site_files,
)
from anyparty.deployment.flare.provisioning import approve as approve_request
from anyparty.deployment.flare.server_health import lost_sites
from anyparty.deployment.flare.site_config import SiteConfig
from anyparty.deployment.flare.site_process import processes, run_site, start, stop
from anyparty.errors import ConfigError

__all__ = [
    "abort",
    "approve",
    "init",
    "install",
    "keeps",
    "outcome",
    "processes",
    "public",
    "read_federation",
    "request",
    "run_site",
    "start",
    "status",
    "stop",
    "submit",
    "wait",
]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,40}")
RESERVED = {"server", "admin", "authority", "localhost"}
JOB = "anyparty"


def init(
    folder: Path,
    roster: Roster,
    host: str = "127.0.0.1",
    port: int = 8002,
    *,
    tables: Mapping[str, Path] | None = None,
    scheme: str = "grpc",
    site: Mapping[str, Any] | None = None,
    requests: bool = False,
) -> dict[str, Path]:
    """Create a federation's folder; return the folders of its kits, by party and "admin".

    Args:
        folder: the new folder.
        roster: the parties of the federation.
        host: the address of the active party's machine.  With a loopback address, other machines cannot connect.
        port: the server's port.
        tables: for each party, the path of a table, which is written into the party's settings.
        scheme: FLARE's driver, ``grpc`` or ``tcp``; both use mutual TLS.  ``tcp`` is slightly faster.
        site: further settings for every party's ``anyparty.toml``.
        requests: create kits only for the active party and the administrator.

    Raises:
        ConfigError: FLARE rejects a name, the folder holds a federation already, or FLARE is not installed.
    """
    _checked(folder, roster, host, port, scheme)
    folder.mkdir(parents=True, exist_ok=True)
    kits = provision(folder, roster, host, port, scheme, alone=requests)
    for name, kit in kits.items():
        if name != "admin":
            own = {"party": name, "active": roster.active, "parties": list(roster.names), **(site or {})}
            if tables and name in tables:
                own["table"] = str(Path(tables[name]).resolve())
            write_site_files(kit, own)
    federation = {"active": roster.active, "parties": list(roster.names), "host": host, "port": port, "scheme": scheme}
    (folder / "federation.toml").write_text(tomli_w.dumps(federation), encoding="utf-8")
    return kits


def _checked(folder: Path, roster: Roster, host: str, port: int, scheme: str) -> None:
    names = roster.names
    check_place(folder)
    if (folder / "federation.toml").exists():
        raise ConfigError(f"{folder} holds a federation already; name another folder, or remove it")
    if (folder / "authority").exists():
        raise ConfigError(f"{folder} holds an incomplete federation; remove it")
    for name in names:
        if not NAME.fullmatch(name) or name.lower() in RESERVED:
            raise ConfigError(f"party {name!r}: a federation's names are 1 to 41 letters (a to z, A to Z), digits, "
                              f"'-' and '_', and not one of {sorted(RESERVED)}")  # fmt: skip
    twice = sorted({name for name in names if [each.lower() for each in names].count(name.lower()) > 1})
    if twice:
        raise ConfigError(f"two parties have one name: {twice}")
    if roster.active not in names or len(names) < 2:
        raise ConfigError(f"a federation needs two parties or more, the active one among them; got {list(names)} "
                          f"with {roster.active!r} as active")  # fmt: skip
    if not 0 < port < 65536 or not host or scheme not in {"grpc", "tcp"}:
        raise ConfigError(f"host {host!r}, port {port}, scheme {scheme!r}: expected a host name or address, a port of "
                          f"1 to 65535, and 'grpc' or 'tcp'")  # fmt: skip


def submit(
    folder: Path, config_toml: str, *, work: str = "train", asked: Mapping[str, Any] | None = None, least: int = 1
) -> str:
    """Submit a job with these settings; return the job's name.

    Paths and trackers are removed from the settings.

    Args:
        folder: the federation's folder.
        config_toml: the settings, as TOML text.
        work: the kind of work, such as "train"; ``SiteConfig.parts`` lists the kinds that a site accepts.
        asked: arguments of the function that each party runs for this kind of work.
        least: the number of passive parties that must be connected for the job to begin.

    Raises:
        RunError: the server cannot be reached, or rejects the job.
    """
    federation, jobs = read_federation(folder), folder / "kits" / "admin" / "jobs"
    jobs.mkdir(exist_ok=True)
    # A new folder, because a service may submit another job at the same time.
    with tempfile.TemporaryDirectory(dir=jobs) as place:
        job = Path(place).resolve() / JOB
        _write_job(job, federation, public(config_toml), work=work, asked=dict(asked or {}), least=least)
        return str(ask_server(folder, "submit", path=str(job))["job"])


def _write_job(
    job: Path, federation: Mapping[str, Any], config_toml: str, *, work: str, asked: Mapping[str, Any], least: int
) -> None:
    config = job / "app" / "config"
    config.mkdir(parents=True)
    passive = [name for name in federation["parties"] if name != federation["active"]]
    args = {"work": work, "asked": dict(asked)}
    _json(job / "meta.json", {"name": JOB, "min_clients": least, "resource_spec": {},
                              "deploy_map": {"app": ["server", *passive]}})  # fmt: skip
    _json(config / "config_fed_server.json", {
        "format_version": 2, "workflows": [{"id": "active", "path": f"{OURS}ActiveJobParty", "args": args}],
        "dead_client_grace_period": 1e9,  # FLARE must not end the job if a party is lost
    })  # fmt: skip
    executors = [{"tasks": ["take_part"], "executor": {"path": f"{OURS}PassiveJobParty", "args": args}}]
    _json(config / "config_fed_client.json", {"format_version": 2, "executors": executors})
    (config / "anyparty.toml").write_text(config_toml, encoding="utf-8")


def public(config_toml: str) -> str:
    r"""Return settings, given as TOML text, without the parties' private settings: paths and trackers.

    >>> print(public('[track]\nmlflow = "http://in"\n[parties.bank]\ntable = "clients.csv"\nlabel = "y"'), end="")
    [parties.bank]
    label = "y"
    """
    values = tomllib.loads(config_toml)
    values.get("run", {}).pop("folder", None)
    values.pop("track", None)
    for own in values.get("parties", {}).values():
        own.pop("table", None)
    return tomli_w.dumps(values)


def status(folder: Path) -> dict[str, Any]:
    """Return the active party, the server's state, the connected and the absent sites, and the state of the jobs.

    A site whose process was killed or hangs is absent after at most 15 seconds.

    Raises:
        RunError: the server cannot be reached, or cannot start jobs.
    """
    federation, answer = read_federation(folder), ask_server(folder, "status")
    active = federation["active"]
    lost = lost_sites(folder / "kits" / active)  # FLARE still lists those that take part in a job
    sites = [name for name in answer["sites"] if name not in lost]
    absent = [name for name in federation["parties"] if name not in {active, *sites}]
    return {"active": active, **answer, "sites": sites, "absent": absent}


COMPLETED = "FINISHED:COMPLETED"  # FLARE's status of a job that ended without an error


def wait(folder: Path, job: str, timeout_s: float = 600.0, *, until_led: bool = False) -> str:
    """Wait until a job has ended, or ``timeout_s`` seconds have passed; return FLARE's status of the job.

    FLARE ends a job about ten seconds after the active party's part.  With ``until_led``, the wait ends with that part,
    if it succeeds and the active party's kit is on this machine.
    """
    active = read_federation(folder)["active"]

    def led() -> dict[str, Any] | None:
        ended = outcome(folder, active, job) if until_led else None
        return {"status": COMPLETED} if ended and not ended["error"] else None

    return str(ask_server(folder, "wait", until=led, job=job, timeout_s=timeout_s)["status"])


def abort(folder: Path, job: str) -> None:
    """End a job at all parties."""
    ask_server(folder, "abort", job=job)


def outcome(folder: Path, party: str, job: str) -> dict[str, Any] | None:
    """Return a job's outcome at a party, as the fields of ``JobOutcome``.

    Return ``None`` if the job has not ended at the party, or if the party's kit is not on this machine.
    """
    kept = keeps(folder, party)
    path = None if kept is None else kept / f"{job}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else None


def keeps(folder: Path, party: str) -> Path | None:
    """Return the folder of a party's checkpoints and records; ``None`` if the party's kit is not on this machine."""
    kit = (folder / "kits" / party).resolve()
    return SiteConfig.read(kit).folder if (kit / "local").is_dir() else None


def approve(folder: Path, file: Path, *, fingerprint: str | None = None, again: bool = False) -> tuple[str, SignedFile]:
    """Sign a party's request for a certificate; return the party's name and the approval, a file to send back.

    Raises:
        ConfigError: ``folder`` has no federation, or the request cannot be signed.
    """
    return approve_request(folder, read_federation(folder), file, fingerprint=fingerprint, again=again)


def _json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, indent=1), encoding="utf-8")
