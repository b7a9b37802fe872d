"""What one organisation says at home about itself: its file ``local/anyparty.toml``, which no job carries."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from anyparty.config.base import Settings
from anyparty.errors import ConfigError
from anyparty.wire.flare.peer import Patience

FILE = "anyparty.toml"
PARTS = {
    "train": "anyparty.run.house:train_at_home",
    "predict": "anyparty.run.predict_home:predict_at_home",
    "serve": "anyparty.serving.responder:serve_at_site",
}
Part = Callable[..., Awaitable[Any]]


class Site(Settings):
    """One organisation's own settings.

    Attributes:
        party: its name in the federation.
        active: the party that leads.
        parties: all parties, in the order that all share.
        table: its table; relative to the kit.
        new: its table of rows to predict, where those are others; relative to the kit.
        folder: where it keeps checkpoints and records; relative to the kit.
        parts: what it is ready to do for a job, by the kind of work, as ``module:function``: the job's own words go to
            ``await function(site, config, net, **asked)``.  What is not here is refused.
        encoders: the functions that make encoders, ``module:function``, which a job may name for this party: code that
            is imported and called here.  Any other is refused.
        methods: the methods of somebody's own making that a job may name, ``module:name``; the same holds of them.
        id: the column by which its rows may be aligned; without, the one that a job names.
        columns: the columns that a job may read, as features or as label; without, all but those that it drops.
        threads: how many threads PyTorch may use; all without.
        patience: how long it waits for others.

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
    id: str | None = None
    columns: tuple[str, ...] | None = None
    threads: int | None = None
    patience: Patience = Patience()

    @classmethod
    def read(cls, kit: Path) -> Site:
        """Read the file of a kit.

        Raises:
            ConfigError: it is absent or says what it cannot.
        """
        path = kit / "local" / FILE
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such file; 'anyparty federate init' writes one into every kit") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: this is not TOML ({error})") from None
        site: Site = cls.of(values, str(path))
        for name in {site.party, site.active} - set(site.parties):
            raise ConfigError(f"{path}: {name!r} is not among its parties {list(site.parties)}")
        tables = {"table": site.table, "new": site.new}
        places = {"folder": kit / site.folder} | {name: kit / path for name, path in tables.items() if path}
        return site.model_copy(update=places)

    def load_part(self, work: str) -> Part:
        """Return the function that does a kind of work here.

        Raises:
            ConfigError: the site does not do such work, or the function cannot be imported.
        """
        if work not in self.parts:
            raise ConfigError(
                f"{self.party}: a job asks for {work!r}, its own settings (parts) allow {list(self.parts)}"
            )
        module, _, name = self.parts[work].partition(":")
        try:
            part: Part = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"{self.party}: cannot import {self.parts[work]!r}, its part in {work!r} ({error}); "
                              f"write it as 'module:function'") from None  # fmt: skip
        return part
