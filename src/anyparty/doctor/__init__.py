"""What may be wrong before anything is: this machine, its folders and a party's kit, looked at by ``anyparty doctor``.

from anyparty.doctor import examine
for finding in examine("house"):
print(finding)

finding     what a look gives, and in what order they are taken
machine     versions, extras, threads and device, disk, data sets
kit         settings, certificate, port or server, clocks
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from anyparty.doctor import kit, machine
from anyparty.doctor.finding import Finding
from anyparty.errors import ConfigError

__all__ = ["Finding", "examine"]


def examine(place: Path | str | None = None) -> list[Finding]:
    """Look at this machine, and at a federation's folder or a party's kit, if one is named.

    A look that finds something wrong does not keep the others from being taken.

    Args:
        place: the folder that ``anyparty federate init`` made, or one kit in it.

    Raises:
        ConfigError: ``place`` is neither.
    """
    folder = None if place is None else Path(place)
    looks: list[Callable[[], Iterator[Finding]]] = [
        machine.versions, machine.extras, machine.torch_here, partial(machine.disk, folder or Path()),
        machine.data_sets, *([partial(machine.ports, machine.PORTS)] if folder is None else []),
    ]  # fmt: skip
    if kits := _kits(folder):
        there = find_spec("nvflare") is not None
        looks += [partial(look, each) for each in kits for look in kit.LOOKS] if there else [kit.unseen]
    return [finding for look in looks for finding in look()]


def _kits(folder: Path | None) -> list[Path]:
    """Return the kits of parties in a folder."""
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
