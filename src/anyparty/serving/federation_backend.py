"""A federation of parties apart, served at the active party: from its kit's folder, or the federation's."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from anyparty.config import Config
from anyparty.errors import ConfigError
from anyparty.run import kept_alignment
from anyparty.run.predict_home import Part
from anyparty.run.read_again import read_again
from anyparty.serving.http_app import Served
from anyparty.serving.job_manager import Jobs, Pauses
from anyparty.serving.loaded_party import directory, open_kept
from anyparty.serving.predictor import Service
from anyparty.tables.table import Table
from anyparty.wire.flare.ask import about
from anyparty.wire.flare.site import FILE, Site

NO_FEDERATION = "no administrator's kit lies beside this one, so that no party can be asked; serve the whole folder"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Where a service stands: the active party's own settings; the federation's folder, if jobs can be submitted."""

    site: Site
    folder: Path | None

    @classmethod
    def of(cls, path: Path) -> Place:
        """Find it.

        Raises:
            ConfigError: this is neither a federation's folder nor a kit, or a passive party's kit.
        """
        if (path / "federation.toml").exists():
            kit = path / "kits" / str(about(path)["active"])
        elif (path / "local" / FILE).exists():
            kit = path
        else:
            raise ConfigError(f"{path} is neither a run ('anyparty train' makes one), nor a federation's folder "
                              f"('anyparty federate init'), nor a party's kit")  # fmt: skip
        kit = kit.resolve()
        site, folder = Site.read(kit), kit.parent.parent
        if site.party != site.active:
            raise ConfigError(f"{path} is the kit of {site.party!r}; predictions are served at the active party, "
                              f"{site.active!r}. Here 'anyparty party start' is all it takes")  # fmt: skip
        whole = (folder / "federation.toml").exists() and (folder / "kits" / "admin").exists()
        return cls(site, folder if whole else None)


def open_house(
    path: Path, table: Any = None, config: Config | None = None, pauses: Pauses | None = None
) -> tuple[Served, str]:
    """Return what a federation's folder or kit serves, and what is to be said of it: empty if all is well.

    Args:
        path: the folder.
        table: the active party's table as it is now; by default the one that its settings name.
        config: the settings of the training, where its method or encoders are of the user's own making.
        pauses: see there.

    Raises:
        ConfigError: no such place, or the table of another party.
        ModelError: nothing was trained there.
        TableError: the table cannot be used.

    """
    place = Place.of(path)
    site = place.site
    kept, current, alignment = open_kept(site, config, table)
    aligned, remark = _aligned(site, config, alignment, current, own=table is None)
    service = Service(kept, directory(alignment.known, kept.roster.K, aligned, current))
    if place.folder is None:
        return Served(service=service, around=_alone, trouble=lambda: NO_FEDERATION), remark or NO_FEDERATION
    jobs = Jobs(place.folder, site, _settings(site, config), service, pauses=pauses or Pauses())
    return Served(service=service, around=jobs.work, trouble=lambda: jobs.trouble, check=jobs.bridge.check), remark


@asynccontextmanager
async def _alone() -> AsyncIterator[None]:
    yield


def _aligned(
    site: Site, config: Config | None, alignment: kept_alignment.Kept, current: Table, *, own: bool
) -> tuple[Table | None, str]:
    """Return the table that was aligned, if it is still there, and what to say if it is not.

    It is ``current``, or, where that is not the party's ``own`` as its settings name it, perhaps still that one.
    """
    alone = "so every id is answered from the own block alone"
    if alignment.fits(current):
        return current, ""
    if not own:
        if site.table is None or not site.table.exists():
            return None, f"{site.party}: the table that was aligned is not there, {alone}; name it in local/{FILE}"
        current = read_again(Part.of(site, config).member, site.party, site.table, alignment.kinds)
        if alignment.fits(current):
            return current, ""
    return None, (f"{site.party}: {current.source} is not the table that was aligned (a row was changed or taken out), "
                  f"{alone}; put that one back and give what is new with --table, or train again")  # fmt: skip


def _settings(site: Site, config: Config | None) -> str:
    """Return the settings that go with a job: no more than parties need to rebuild what is of their own making."""
    if config is not None:
        return config.to_toml()
    return tomli_w.dumps({"federation": {"active": site.active}, "parties": {name: {} for name in site.parties}})
