"""The machine: versions, extras, PyTorch's threads and device, ports, disk, data sets.

What anyparty asks for stands in its own distribution's metadata, so that nothing here names a version.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

import anyparty
from anyparty.doctor.finding import Finding, mended
from anyparty.tables.datasets.files import cache_folder, folders
from anyparty.wire.flare.sites import port_is_free

NAME = "anyparty"
PORTS = {8002: "anyparty federate", 8080: "anyparty serve"}  # and who listens there, unless told otherwise
FOR = {
    "pandas": "tables as pandas data frames", "flare": "parties in processes of their own", "serve": "anyparty serve",
    "dask": "anyparty bench --backend dask", "track": "TensorBoard and MLflow",
}  # fmt: skip
LITTLE, ENOUGH = 1e9, 10e9  # bytes of disk


def asked_for(extra: str = "") -> list[Requirement]:
    """Return what anyparty asks for: always, or for an extra."""
    every = [Requirement(line) for line in requires(NAME) or ()]
    always = [each for each in every if each.marker is None]
    return (
        [
            each
            for each in every
            if each not in always and each.marker is not None and each.marker.evaluate({"extra": extra})
        ]
        if extra
        else always
    )


def wrong(requirement: Requirement) -> str:
    """Return what is wrong with an installed package; nothing if it does."""
    try:
        there = version(requirement.name)
    except PackageNotFoundError:
        return f"{requirement.name} is not installed"
    if requirement.specifier.contains(there, prereleases=True):
        return ""
    return f"{requirement.name} is {there}, asked for is {requirement.specifier}"


def versions() -> Iterator[Finding]:
    """Look at the packages that are always needed."""
    said = [f"anyparty {anyparty.__version__}", f"Python {sys.version.split()[0]}"]
    bad = [why for each in asked_for() if (why := wrong(each))]
    if bad:
        yield Finding(what="versions", level="mend", said="; ".join(bad), do="pip install --upgrade anyparty")
    else:
        said += [f"{name} {version(name)}" for name in ("torch", "numpy", "polars")]
        yield Finding(what="versions", level="fine", said=", ".join(said))


def extras() -> Iterator[Finding]:
    """Look at what each extra needs; one that is absent may be as it should."""
    for extra, use in FOR.items():
        install = f'pip install "anyparty[{extra}]"'
        found = {each.name: wrong(each) for each in asked_for(extra)}
        bad = [why for why in found.values() if why]
        if not bad:
            packages = ", ".join(f"{name} {version(name)}" for name in found)
            yield Finding(what=f"extra {extra}", level="fine", said=packages or "needs nothing")
        elif all(why.endswith("is not installed") for why in bad):
            yield Finding(what=f"extra {extra}", level="note", said="; ".join(bad), do=f"for {use}: {install}")
        else:
            yield Finding(what=f"extra {extra}", level="mend", said="; ".join(bad), do=install)


def cores() -> int:
    """Return how many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def torch_here() -> Iterator[Finding]:
    """Look at PyTorch's threads and device."""
    import torch  # noqa: PLC0415 - takes long

    threads, have = torch.get_num_threads(), cores()
    said = f"{threads} on {have} cores"
    if threads > have:
        yield Finding(what="threads", level="mend", said=f"PyTorch uses {said}, which then wait for each other",
                      do=f"export OMP_NUM_THREADS={have}")  # fmt: skip
    else:
        yield Finding(what="threads", level="fine", said=said)
    if torch.cuda.is_available():
        yield Finding(
            what="device", level="fine", said=f"{torch.cuda.get_device_name()}; train.device = 'cuda' uses it"
        )
    elif torch.version.cuda is not None:
        yield Finding(
            what="device",
            level="note",
            said="PyTorch can use a GPU, and finds none",
            do="without one, PyTorch's CPU build is gigabytes smaller; with one, look at its driver: nvidia-smi",
        )
    else:
        yield Finding(what="device", level="fine", said="cpu")


def ports(wanted: Iterable[int]) -> Iterator[Finding]:
    """Look at whether the ports that commands use by themselves are free on this machine."""
    for port in wanted:
        for finding in mended(f"port {port}", partial(_free, "127.0.0.1", port)):
            if finding.level == "fine":
                yield finding
            else:
                yield Finding(what=finding.what, level="note", said=finding.said,
                              do=f"or name another: {PORTS.get(port, 'anyparty')} ... --port")  # fmt: skip


def _free(host: str, port: int) -> str:
    port_is_free(host, port)
    return "free"


def disk(folder: Path) -> Iterator[Finding]:
    """Look at how much room there is where runs go, and whether one may write there."""
    where = folder.resolve()
    free = shutil.disk_usage(where).free
    said = f"{free / 1e9:,.1f} GB free in {where}"
    if not os.access(where, os.W_OK):
        yield Finding(what="disk", level="mend", said=f"{where} cannot be written to",
                      do="work in a folder of your own, or change its permissions")  # fmt: skip
    elif free < LITTLE:
        yield Finding(what="disk", level="mend", said=said, do="make room: a checkpoint that does not fit ends a run")
    elif free < ENOUGH:
        yield Finding(what="disk", level="note", said=said, do="enough for runs; data sets of images take more")
    else:
        yield Finding(what="disk", level="fine", said=said)


def data_sets() -> Iterator[Finding]:
    """Look at the folders in which public data sets are looked for."""
    named = os.environ.get("ANYPARTY_DATA")
    first = folders(None)[0]
    if not named:
        yield Finding(what="data sets", level="note", said=f"ANYPARTY_DATA is not set; they are looked for in {first}",
                      do="for the published tables: export ANYPARTY_DATA=FOLDER")  # fmt: skip
    elif not first.is_dir() or not os.access(first, os.R_OK):
        yield Finding(what="data sets", level="mend", said=f"ANYPARTY_DATA names {first}, which cannot be read",
                      do="name a folder that is there, or unset it")  # fmt: skip
    else:
        yield Finding(what="data sets", level="fine", said=f"{first}, {sum(1 for _ in first.iterdir())} entries")
    cache = cache_folder()
    above = next(each for each in (cache, *cache.parents) if each.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        yield Finding(what="cache", level="mend", said=f"{cache} cannot be written to",
                      do="export ANYPARTY_CACHE=FOLDER, for downloads")  # fmt: skip
    else:
        yield Finding(what="cache", level="fine", said=str(cache))
