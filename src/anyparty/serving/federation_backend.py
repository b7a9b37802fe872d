"""Serve a federation at the active party, from the federation's folder or the party's kit."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from anyparty.artifacts.table_like import read_again
from anyparty.config import Config
from anyparty.deployment.flare.admin import about
from anyparty.deployment.flare.site_config import FILE, SiteConfig
from anyparty.deployment.site import alignment_cache
from anyparty.deployment.site.site_prediction import StoredPart
from anyparty.errors import ConfigError
from anyparty.serving.http_app import ServingBackend
from anyparty.serving.job_manager import JobDelays, JobManager
from anyparty.serving.loaded_party import build_index, load_party
from anyparty.serving.predictor import Predictor
from anyparty.tables import readers
from anyparty.tables.table import Table

NO_FEDERATION = (
    "this folder has no administrator's kit, so no other party is asked; serve the federation's whole folder"
)


@dataclass(frozen=True)
class KitLocation:
    """The active party's own settings, and the federation's folder if jobs can be submitted."""

    site: SiteConfig
    folder: Path | None

    @classmethod
    def of(cls, path: Path) -> KitLocation:
        """Find the active party's kit.

        Raises:
            ConfigError: ``path`` is neither a federation's folder nor a kit, or it is a passive party's kit.
        """
        if (path / "federation.toml").exists():
            kit = path / "kits" / str(about(path)["active"])
        elif (path / "local" / FILE).exists():
            kit = path
        else:
            raise ConfigError(f"{path} is neither a run ('anyparty train' makes one), nor a federation's folder "
                              f"('anyparty federate init'), nor a party's kit")  # fmt: skip
        kit = kit.resolve()
        site, folder = SiteConfig.read(kit), kit.parent.parent
        if site.party != site.active:
            raise ConfigError(f"{path} is the kit of {site.party!r}; predictions are served at the active party, "
                              f"{site.active!r}. Here, only run 'anyparty party start'")  # fmt: skip
        whole = (folder / "federation.toml").exists() and (folder / "kits" / "admin").exists()
        return cls(site, folder if whole else None)


def open_federation(
    path: Path, table: Any = None, config: Config | None = None, delays: JobDelays | None = None
) -> tuple[ServingBackend, str]:
    """Load and return the backend of a federation, and a warning, which is empty if there is nothing to warn of.

    Args:
        path: the federation's folder or the active party's kit.
        table: the active party's current table; by default the table that the party's settings name.
        config: settings of the training, if its method or encoders are user code.
        delays: delays and timeouts of jobs.

    Raises:
        ConfigError: ``path`` is neither a federation's folder nor a kit, or it is a passive party's kit.
        ModelError: nothing was trained there.
        TableError: the table is invalid.

    """
    location = KitLocation.of(path)
    site = location.site
    party, current, alignment = load_party(site, config, table)
    aligned, warning = _aligned_table(site, config, alignment, current, own=table is None)
    predictor = Predictor(party, build_index(alignment.known, party.roster.K, aligned, current, party.id_normalize))
    if location.folder is None:
        backend = ServingBackend(predictor=predictor, running=nullcontext, trouble=lambda: NO_FEDERATION)
        return backend, warning or NO_FEDERATION
    jobs = JobManager(location.folder, site, _job_settings(site, config), predictor, delays=delays or JobDelays())
    backend = ServingBackend(
        predictor=predictor, running=jobs.running, trouble=lambda: jobs.trouble, check=jobs.ipc.check
    )
    return backend, warning


def _aligned_table(
    site: SiteConfig, config: Config | None, alignment: alignment_cache.StoredAlignment, current: Table, *, own: bool
) -> tuple[Table | None, str]:
    """Return the table that was aligned and an empty text, or ``None`` and a warning if that table is lost.

    The aligned table is ``current`` or, if the caller passed another table (``own`` is False), the table that the
    settings name.
    """
    effect = "so every id is answered from the active party's block alone"
    if alignment.fits(current):
        return current, ""
    if not own:
        if site.table is None or not readers.exists(site.table):
            return None, f"{site.party}: the table that was aligned does not exist, {effect}; name it in local/{FILE}"
        current = read_again(StoredPart.of(site, config).member, site.party, site.table, alignment.kinds)
        if alignment.fits(current):
            return current, ""
    return None, (f"{site.party}: {current.source} is not the table that was aligned (a row was changed or removed), "
                  f"{effect}; restore that table and give new rows with --table, or train again")  # fmt: skip


def _job_settings(site: SiteConfig, config: Config | None) -> str:
    """Return the settings that a job carries: ``config`` if it is given, otherwise only the parties' names."""
    if config is not None:
        return config.to_toml()
    return tomli_w.dumps({"federation": {"active": site.active}, "parties": {name: {} for name in site.parties}})
