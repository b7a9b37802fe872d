"""The settings of one organisation's site, in its file ``local/anyparty.toml``.  No job can change them."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from anyparty.config.settings_group import ReadingSettings
from anyparty.errors import ConfigError
from anyparty.tables.readers import located
from anyparty.transport.reliable_session import Timeouts

FILE = "anyparty.toml"
PARTS = {
    "train": "anyparty.deployment.site.site_training:train_at_site",
    "predict": "anyparty.deployment.site.site_prediction:predict_at_site",
    "serve": "anyparty.serving.responder:serve_at_site",
}
PartFunction = Callable[..., Awaitable[Any]]


class SiteConfig(ReadingSettings):
    """The settings that one organisation has written for its own site.

    The party's settings for reading its table (``separator``, ``decimal``, ``quote``, ``encoding``, ``sheet``,
    ``types``, ``missing``, ``limits``, ``dates``) replace a job's settings for reading the table.

    Attributes:
        party: the party's name in the federation.
        active: the active party.
        parties: all parties, in the same order at every site.
        table: the party's table; relative to the kit.
        new: the table of rows to predict, if it differs from ``table``; relative to the kit.
        folder: the folder for checkpoints and records; relative to the kit.
        parts: the kinds of work that the site accepts, each with a function as ``module:function``.  A job's arguments
            go to ``await function(site, config, net, **asked)``.  Any other work is refused.
        encoders: encoder factories, as ``module:function``, that a job may use for this party. The code is imported and
            runs at this site. Any other factory is refused.
        methods: user-defined methods, as ``module:name``, that a job may use. Their code is imported and runs at this
            site. Any other user-defined method is refused.
        consents: messages that show cells of this party's table, such as "bins", which the site may send. A method that
            sends any other such message is refused.
        id: the id column for alignment, or several columns; by default the id column in the job's settings.
        columns: the columns that a job may read, as features or label; by default all columns that the job does not
            drop.
        threads: the number of threads for PyTorch; by default all.
        patience: the time limits of waiting for other parties.

    """

    party: str
    active: str
    parties: tuple[str, ...]
    table: Path | None = None
    new: Path | None = None
    folder: Path = Path("runs")
    parts: dict[str, str] = PARTS
    encoders: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    consents: tuple[str, ...] = ()
    id: str | tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    threads: int | None = None
    patience: Timeouts = Timeouts()

    @classmethod
    def read(cls, kit: Path) -> SiteConfig:
        """Read the settings file of a kit.

        Raises:
            ConfigError: the file is missing or invalid.
        """
        path = kit / "local" / FILE
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such file; 'anyparty federate init' writes one into every kit") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: this is not TOML ({error})") from None
        site: SiteConfig = cls.of(values, str(path))
        for name in {site.party, site.active} - set(site.parties):
            raise ConfigError(f"{path}: {name!r} is not among its parties {list(site.parties)}")
        tables = {"table": site.table, "new": site.new}
        places = {"folder": kit / site.folder} | {name: located(path, kit) for name, path in tables.items() if path}
        return site.model_copy(update=places)

    @property
    def reading(self) -> dict[str, Any]:
        """The settings in this site's file that determine how the table is read, by name."""
        return {name: getattr(self, name) for name in ReadingSettings.model_fields if name in self.model_fields_set}

    def load_part(self, work: str) -> PartFunction:
        """Import and return the function that does this party's share of a kind of work, such as "train".

        Raises:
            ConfigError: the site does not accept this kind of work, or the function cannot be imported.
        """
        if work not in self.parts:
            raise ConfigError(
                f"{self.party}: a job asks for {work!r}, its own settings (parts) allow {list(self.parts)}"
            )
        module, _, name = self.parts[work].partition(":")
        try:
            part: PartFunction = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"{self.party}: cannot import {self.parts[work]!r}, its part in {work!r} ({error}); "
                              f"write it as 'module:function'") from None  # fmt: skip
        return part
