"""A federation on FLARE: kits for every organisation, processes on this machine to try it out, jobs.

``init`` makes a folder:

    federation.toml     who takes part, where the server is
    authority/          the certificate authority; its key rootCA.key signs certificates: keep it, hand it to nobody
    kits/PARTY/         to hand over to each party: certificate, start-up files, local/anyparty.toml for it to fill in
    kits/admin/         to submit jobs with

A private key of a party lies in its own kit and nowhere else.  With ``requests``, there is no kit of a passive party:
each makes its own key and asks for a certificate (``requests``).

The active party runs FLARE's server, every other party a client; the only open port is the server's.  On real
machines each party starts its own kit (``run_site``); ``start`` starts all of them here.
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

from anyparty.errors import ConfigError
from anyparty.terms import Roster
from anyparty.wire.flare.admin import about, ask_server
from anyparty.wire.flare.foreground import run_site
from anyparty.wire.flare.kits import OURS, check_place, dress, provision
from anyparty.wire.flare.requests import Sealed, install, request
from anyparty.wire.flare.requests import approve as approve_request
from anyparty.wire.flare.site import Site
from anyparty.wire.flare.sites import processes, start, stop

__all__ = [
    "abort",
    "about",
    "approve",
    "init",
    "install",
    "keeps",
    "outcome",
    "processes",
    "public",
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
    """Make a federation's folder; return each kit in it.

    ``host`` is how the others reach the active party's machine; with a loopback address the server listens on nothing
    else.  ``scheme`` is FLARE's driver, both with mutual TLS: ``tcp`` is a little faster, but a
    stranger who connects and then says nothing can hold up others who want to connect; ``grpc`` has no such door.
    ``site`` are further settings for every party's ``anyparty.toml``.  With ``requests``, only the active party and the
    administrator get a kit here.

    Raises:
        ConfigError: names that FLARE cannot take, a folder that holds a federation already, FLARE not installed.
    """
    _checked(folder, roster, host, port, scheme)
    folder.mkdir(parents=True, exist_ok=True)
    kits = provision(folder, roster, host, port, scheme, alone=requests)
    for name, kit in kits.items():
        if name != "admin":
            own = {"party": name, "active": roster.active, "parties": list(roster.names), **(site or {})}
            if tables and name in tables:
                own["table"] = str(Path(tables[name]).resolve())
            dress(kit, own)
    said = {"active": roster.active, "parties": list(roster.names), "host": host, "port": port, "scheme": scheme}
    (folder / "federation.toml").write_text(tomli_w.dumps(said), encoding="utf-8")
    return kits


def _checked(folder: Path, roster: Roster, host: str, port: int, scheme: str) -> None:
    names = roster.names
    check_place(folder)
    if (folder / "federation.toml").exists():
        raise ConfigError(f"{folder} holds a federation already; name another folder, or remove it")
    if (folder / "authority").exists():
        raise ConfigError(f"{folder} holds a federation that was not made to its end; remove it")
    for name in names:
        if not NAME.fullmatch(name) or name.lower() in RESERVED:
            raise ConfigError(f"party {name!r}: a federation's names are 1 to 41 letters (a to z, A to Z), digits, '-' "
                              f"and '_', and none of {sorted(RESERVED)}")  # fmt: skip
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
    """Submit a job with these settings; return its name.

    ``work`` is what the parties are to do, ``asked`` goes to each party's part of it: see ``Site.parts``.  ``least``
    is how many passive parties must be connected for the job to begin.  Paths never leave: a party's table and the
    folder for results are taken out of the settings.

    Raises:
        RunError: the server cannot be reached or refuses.
    """
    said, jobs = about(folder), folder / "kits" / "admin" / "jobs"
    jobs.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jobs) as place:  # of its own: a service submits jobs too
        job = Path(place).resolve() / JOB
        _write_job(job, said, public(config_toml), work=work, asked=dict(asked or {}), least=least)
        return str(ask_server(folder, "submit", path=str(job))["job"])


def _write_job(
    job: Path, said: Mapping[str, Any], config_toml: str, *, work: str, asked: Mapping[str, Any], least: int
) -> None:
    config = job / "app" / "config"
    config.mkdir(parents=True)
    passive = [name for name in said["parties"] if name != said["active"]]
    args = {"work": work, "asked": dict(asked)}
    _json(job / "meta.json", {"name": JOB, "min_clients": least, "resource_spec": {},
                              "deploy_map": {"app": ["server", *passive]}})  # fmt: skip
    _json(config / "config_fed_server.json", {
        "format_version": 2, "workflows": [{"id": "active", "path": f"{OURS}Active", "args": args}],
        "dead_client_grace_period": 1e9,  # who is gone, and what that means, is the run's to say: see post
    })  # fmt: skip
    executors = [{"tasks": ["take_part"], "executor": {"path": f"{OURS}Passive", "args": args}}]
    _json(config / "config_fed_client.json", {"format_version": 2, "executors": executors})
    (config / "anyparty.toml").write_text(config_toml, encoding="utf-8")


def public(config_toml: str) -> str:
    r"""Return settings without what is a party's own business: paths, and where runs are tracked.

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
    """Return who leads, where the server is, who is connected to it, and how the jobs stand.

    Raises:
        RunError: the server cannot be reached.
    """
    return {"active": about(folder)["active"], **ask_server(folder, "status")}


def wait(folder: Path, job: str, timeout_s: float = 600.0) -> str:
    """Wait until a job has ended, or the time is up; return its status in FLARE's words."""
    return str(ask_server(folder, "wait", job=job, timeout_s=timeout_s)["status"])


def abort(folder: Path, job: str) -> None:
    """End a job."""
    ask_server(folder, "abort", job=job)


def outcome(folder: Path, party: str, job: str) -> dict[str, Any] | None:
    """Return how a party's part in a job ended, where its kit is on this machine; ``None`` before it has."""
    kept = keeps(folder, party)
    path = None if kept is None else kept / f"{job}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else None


def keeps(folder: Path, party: str) -> Path | None:
    """Return where a party keeps what it keeps; ``None`` where its kit is not on this machine."""
    kit = (folder / "kits" / party).resolve()
    return Site.read(kit).folder if (kit / "local").is_dir() else None


def approve(folder: Path, file: Path, *, fingerprint: str | None = None, again: bool = False) -> tuple[str, Sealed]:
    """Sign a party's request for a certificate; return the party and the approval (``requests.approve``).

    Raises:
        ConfigError: there is no federation here, or the request cannot be signed.
    """
    return approve_request(folder, about(folder), file, fingerprint=fingerprint, again=again)


def _json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, indent=1), encoding="utf-8")
