"""Checks of this machine and of a party's kit, which ``anyparty doctor`` shows.

    from anyparty.cli.doctor import examine
    for finding in examine("federation"):
        print(finding)

A party's kit is its folder of certificates and settings.  Required versions come from anyparty's own distribution
metadata.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

import anyparty
from anyparty.core.storage import read_json
from anyparty.data.datasets.downloads import cache_folder, folders
from anyparty.deployment.flare import admission
from anyparty.deployment.flare.preflight import ServerAddress, check_certificate, check_key, probe, valid_until
from anyparty.deployment.flare.server_health import RESTART, server_trouble
from anyparty.deployment.flare.site_config import FILE, SiteConfig
from anyparty.deployment.flare.site_process import at_kit, port_is_free
from anyparty.errors import AnypartyError, ConfigError, ModelError, RunError
from anyparty.tables import readers

NAME = "anyparty"
PORTS = {8002: "anyparty federate", 8080: "anyparty serve"}  # default ports and the commands that use them
EXTRAS = {
    "pandas": "tables as pandas data frames", "flare": "parties in separate processes", "serve": "anyparty serve",
    "dask": "anyparty bench --backend dask", "track": "TensorBoard and MLflow", "tune": "anyparty sweep",
}  # fmt: skip
MIN_DISK_BYTES, AMPLE_DISK_BYTES = 1e9, 10e9
MAX_SKEW_S = 60.0  # with a larger difference of two clocks, certificates and time-outs may fail


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check.

    Attributes:
        check: name of the check.
        level: "fine"; "note" for a finding that may be intended; or "fix" for a problem.
        result: what was found.
        advice: what to do; empty if there is nothing to do, or if ``result`` already contains the advice.
    """

    check: str
    level: Literal["fine", "note", "fix"]
    result: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.level}: {self.check}: {self.result}" + (f"; {self.advice}" if self.advice else "")


def examine(place: Path | str | None = None) -> list[Finding]:
    """Check this machine, and a federation's folder or a party's kit (its folder of certificates and settings).

    All checks run, also after a check that finds a problem.

    Args:
        place: the folder of ``anyparty federate init``, or one party's kit in it.

    Raises:
        ConfigError: ``place`` is neither a federation's folder nor a kit.
    """
    folder = None if place is None else Path(place).expanduser()
    checks: list[Callable[[], Iterator[Finding]]] = [
        check_versions, check_extras, check_torch, partial(check_disk, folder or Path()), check_data_sets,
        *([partial(check_ports, PORTS)] if folder is None else []),
    ]  # fmt: skip
    if kits := _kits_in(folder):
        installed = find_spec("nvflare") is not None
        checks += [partial(check, kit) for kit in kits for check in KIT_CHECKS] if installed else [_kits_without_flare]
    return [finding for check in checks for finding in check()]


def _kits_in(folder: Path | None) -> list[Path]:
    """Return the folders of the parties' kits in a federation's folder, or the folder itself if it is a party's kit."""
    if folder is None:
        return []
    if (folder / "startup").is_dir():
        return [folder.resolve()]
    kits = (each.parent for each in folder.glob("kits/*/startup"))
    found = sorted(each.resolve() for each in kits if not (each / "startup" / "fed_admin.json").is_file())
    if not found:
        raise ConfigError(
            f"{folder} is neither a federation's folder, made by 'anyparty federate init', nor a party's kit"
        )
    return found


def _check(name: str, run: Callable[[], str]) -> Iterator[Finding]:
    """Call a check ``run``, and yield one finding: "fine" with its result, or "fix" with the message of its error."""
    try:
        result = run()
    except AnypartyError as error:
        yield Finding(check=name, level="fix", result=str(error))
    else:
        yield Finding(check=name, level="fine", result=result)


# Checks of this machine


def requirements(extra: str = "") -> list[Requirement]:
    """Return the packages that anyparty always requires, or those that the extra ``extra`` adds."""
    every = [Requirement(line) for line in requires(NAME) or ()]
    if not extra:
        return [each for each in every if each.marker is None]
    return [each for each in every if each.marker is not None and each.marker.evaluate({"extra": extra})]


def problem_with(requirement: Requirement) -> str:
    """Return the reason why a required package is missing or has a wrong version; "" if neither is true."""
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return f"{requirement.name} is not installed"
    if requirement.specifier.contains(installed, prereleases=True):
        return ""
    return f"{requirement.name} is {installed}, required is {requirement.specifier}"


def check_versions() -> Iterator[Finding]:
    """Check the versions of the packages that anyparty always requires."""
    if problems := [problem for each in requirements() if (problem := problem_with(each))]:
        yield Finding(
            check="versions", level="fix", result="; ".join(problems), advice="pip install --upgrade anyparty"
        )
        return
    found = [f"anyparty {anyparty.__version__}", f"Python {sys.version.split()[0]}"]
    found += [f"{name} {version(name)}" for name in ("torch", "numpy", "polars")]
    yield Finding(check="versions", level="fine", result=", ".join(found))


def check_extras() -> Iterator[Finding]:
    """Check the packages of each extra; a missing extra is only a note, because it may be intended."""
    for extra, use in EXTRAS.items():
        install = f'pip install "anyparty[{extra}]"'
        found = {each.name: problem_with(each) for each in requirements(extra)}
        problems = [problem for problem in found.values() if problem]
        result = "; ".join(problems)
        if not problems:
            packages = ", ".join(f"{name} {version(name)}" for name in found)
            yield Finding(check=f"extra {extra}", level="fine", result=packages or "requires nothing")
        elif all(problem.endswith("is not installed") for problem in problems):
            yield Finding(check=f"extra {extra}", level="note", result=result, advice=f"for {use}: {install}")
        else:
            yield Finding(check=f"extra {extra}", level="fix", result=result, advice=install)


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_torch() -> Iterator[Finding]:
    """Check that PyTorch uses at most one thread per core, and report the device on which it can compute."""
    import torch  # a slow import

    threads, available = torch.get_num_threads(), cores()
    result = f"{threads} on {available} cores"
    if threads > available:
        yield Finding(check="threads", level="fix", result=f"PyTorch uses {result}, which then wait for each other",
                      advice=f"export OMP_NUM_THREADS={available}")  # fmt: skip
    else:
        yield Finding(check="threads", level="fine", result=result)
    if torch.cuda.is_available():
        result = f"{torch.cuda.get_device_name()}; train.device = 'cuda' uses it"
        yield Finding(check="device", level="fine", result=result)
    elif torch.version.cuda is not None:
        yield Finding(
            check="device",
            level="note",
            result="PyTorch supports GPUs, but finds none",
            advice="without a GPU, PyTorch's CPU build is gigabytes smaller; with one, check its driver: nvidia-smi",
        )
    else:
        yield Finding(check="device", level="fine", result="cpu")


def check_ports(ports: Iterable[int]) -> Iterator[Finding]:
    """Check whether the default ports of commands are free on this machine."""
    for port in ports:
        for finding in _check(f"port {port}", partial(_free_port, "127.0.0.1", port)):
            if finding.level == "fine":
                yield finding
            else:
                yield Finding(check=finding.check, level="note", result=finding.result,
                              advice=f"or name another: {PORTS.get(port, 'anyparty')} ... --port")  # fmt: skip


def _free_port(host: str, port: int) -> str:
    port_is_free(host, port)
    return "free"


def check_disk(folder: Path) -> Iterator[Finding]:
    """Check that ``folder`` can be written to, and that its disk has enough free space for runs."""
    where = folder.resolve()
    free = shutil.disk_usage(where).free
    result = f"{free / 1e9:,.1f} GB free in {where}"
    if not os.access(where, os.W_OK):
        yield Finding(check="disk", level="fix", result=f"{where} cannot be written to",
                      advice="work in a folder of your own, or change its permissions")  # fmt: skip
    elif free < MIN_DISK_BYTES:
        yield Finding(check="disk", level="fix", result=result,
                      advice="free some space: a checkpoint that does not fit ends a run")  # fmt: skip
    elif free < AMPLE_DISK_BYTES:
        yield Finding(
            check="disk", level="note", result=result, advice="enough for runs; data sets of images need more"
        )
    else:
        yield Finding(check="disk", level="fine", result=result)


def check_data_sets() -> Iterator[Finding]:
    """Check that the folder of public data sets can be read, and that the cache of downloads can be written to."""
    named = os.environ.get("ANYPARTY_DATA")
    first = folders(None)[0]
    if not named:
        result = f"ANYPARTY_DATA is not set; data sets are read from {first}"
        yield Finding(check="data sets", level="note", result=result,
                      advice="for the published tables: export ANYPARTY_DATA=FOLDER")  # fmt: skip
    elif not first.is_dir() or not os.access(first, os.R_OK):
        yield Finding(check="data sets", level="fix", result=f"ANYPARTY_DATA names {first}, which cannot be read",
                      advice="name a folder that exists, or unset it")  # fmt: skip
    else:
        result = f"{first}, {sum(1 for _ in first.iterdir())} entries"
        yield Finding(check="data sets", level="fine", result=result)
    cache = cache_folder()
    existing = next(each for each in (cache, *cache.parents) if each.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        yield Finding(check="cache", level="fix", result=f"{cache} cannot be written to",
                      advice="export ANYPARTY_CACHE=FOLDER, for downloads")  # fmt: skip
    else:
        yield Finding(check="cache", level="fine", result=str(cache))


# Checks of a party's kit


def check_settings(kit: Path) -> Iterator[Finding]:
    """Check that the party's settings in its kit are valid, and that the party's table exists."""
    check, path = f"{kit.name}: settings", kit / "local" / FILE
    try:
        site = SiteConfig.read(kit)
    except AnypartyError as error:
        yield Finding(check=check, level="fix", result=str(error), advice="copy the kit again, or correct the file")
        return
    if site.table is None:
        yield Finding(check=check, level="fix", result=f"{path} names no table",
                      advice='write table = "file.csv" there')  # fmt: skip
    elif not readers.exists(site.table):
        yield Finding(check=check, level="fix", result=f"{path} names {site.table}, which does not exist",
                      advice="correct the path; paths are relative to the kit")  # fmt: skip
    else:
        result = f"party {site.party!r}, active party {site.active!r}, table {site.table}"
        yield Finding(check=check, level="fine", result=result)


def check_kit_certificate(kit: Path) -> Iterator[Finding]:
    """Check that the kit's authority issued the certificate to the party, and that the certificate is valid today."""
    check, warnings = f"{kit.name}: certificate", list[str]()
    try:
        gate = ServerAddress.of(kit, SiteConfig.read(kit).party)
        check_certificate(gate, warnings.append)
    except AnypartyError as error:
        yield Finding(check=check, level="fix", result=str(error))
        return
    if warnings:
        yield Finding(check=check, level="note", result=warnings[0])
    else:
        yield Finding(check=check, level="fine", result=f"valid until {valid_until(gate):%Y-%m-%d}")


def check_private_key(kit: Path) -> Iterator[Finding]:
    """Check that only the user who owns the kit can read its private key."""
    check, problems = f"{kit.name}: private key", list[str]()
    try:
        check_key(ServerAddress.of(kit), problems.append)
    except AnypartyError as error:
        problems.append(str(error))
    if problems:
        yield Finding(check=check, level="fix", result=problems[0])
    else:
        yield Finding(check=check, level="fine", result="only its user can read it")


def check_connection(kit: Path) -> Iterator[Finding]:
    """Check that the server answers. At the active party, check that only its own site listens at the server's port."""
    try:
        gate = ServerAddress.of(kit)
    except AnypartyError as error:
        yield Finding(check=f"{kit.name}: server", level="fix", result=str(error))
        return
    if not gate.serves:
        yield from _check_server(kit, gate)
    elif running := at_kit(kit):
        yield from _check_own_server(kit, gate, running[0].pid)
    else:
        yield from _check(f"{kit.name}: port {gate.port}", partial(_free_port_of_site, gate))


def _free_port_of_site(gate: ServerAddress) -> str:
    port_is_free(gate.host, gate.port)
    return "free; the site does not run"


def _check_own_server(kit: Path, gate: ServerAddress, process: int) -> Iterator[Finding]:
    """Check that the site that runs at the active party answers and can start jobs."""

    def answers() -> str:
        if trouble := server_trouble(kit):
            raise RunError(f"this party's own site cannot be used: {trouble}")
        if reason := probe(gate, at="127.0.0.1"):  # the server's name may be known on other machines only
            raise RunError(f"this party's own site runs, process {process}, but {gate.place} cannot be reached "
                           f"({reason}); if the site has not just been started, restart it: {RESTART}")  # fmt: skip
        return f"this party's own site listens, process {process}"

    yield from _check(f"{kit.name}: port {gate.port}", answers)


def _check_server(kit: Path, gate: ServerAddress) -> Iterator[Finding]:
    check = f"{kit.name}: server"
    try:
        reason = probe(gate)
    except AnypartyError as error:
        yield Finding(check=check, level="fix", result=str(error))
        return
    if reason is None:
        yield Finding(check=check, level="fine", result=f"{gate.place} answers and accepts this kit's certificate")
    else:
        beside = [file.parents[1] for file in kit.parent.glob("*/startup/fed_server.json")]
        stopped = any(not at_kit(server) for server in beside)  # the check of the server's kit reports it, too
        level: Literal["note", "fix"] = "note" if stopped else "fix"
        yield Finding(check=check, level=level, result=f"{gate.place} cannot be reached ({reason})",
                      advice="start the active party's site: anyparty party start KIT; check its firewall")  # fmt: skip


def check_clocks(kit: Path) -> Iterator[Finding]:
    """Check how much the other parties' clocks differ from the active party's clock.

    Parties report their time to the active party, so only the active party's kit can be checked.  The measured
    difference includes the time that the message takes, usually less than a second.
    """
    try:
        serves = ServerAddress.of(kit).serves
    except AnypartyError:  # ``check_connection`` reports this error
        return
    if not serves:
        return
    try:
        seen = read_json(kit / admission.CLOCKS)
    except ModelError:
        yield Finding(check=f"{kit.name}: clocks", level="note", result="no other party has been connected yet",
                      advice="check again when one is connected")  # fmt: skip
        return
    for party, each in sorted(seen.items()):
        check = f"{kit.name}: clock of {party}"
        try:
            behind, at = float(each["behind_s"]), each["at"]
        except (KeyError, TypeError, ValueError):
            yield Finding(
                check=check,
                level="note",
                result=f"{kit / admission.CLOCKS} is damaged",
                advice="remove the file; it is written again when the party connects next",
            )
            continue
        result = f"{abs(behind):,.0f} s {'behind' if behind > 0 else 'ahead of'} this machine's, on {at}"
        if abs(behind) > MAX_SKEW_S:
            yield Finding(check=check, level="fix", result=result,
                          advice="set both by network time (NTP): the clock decides whether certificates are valid"
                          )  # fmt: skip
        else:
            yield Finding(check=check, level="fine", result=result)


def _kits_without_flare() -> Iterator[Finding]:
    """Report that kits are not checked, because NVIDIA FLARE is not installed."""
    yield Finding(check="kits", level="fix", result="NVIDIA FLARE is not installed",
                  advice='pip install "anyparty[flare]"')  # fmt: skip


KIT_CHECKS = (check_settings, check_kit_certificate, check_private_key, check_connection, check_clocks)
