"""What a party's own settings at home allow a job: somebody else writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyparty.config import Config
from anyparty.errors import ConfigError, some
from anyparty.methods.method import Method
from anyparty.nets.mlp import Factory
from anyparty.run.chosen import chosen

if TYPE_CHECKING:
    from anyparty.run.house import Site


def check_columns(site: Site, id: str, label: str | None, features: Sequence[str]) -> None:  # noqa: A002
    """Check that a job reads no more of a party's table than its own settings allow, where they say something of it.

    Whoever leads writes the job, and so which column is aligned by, which are features, and which is a label.

    Raises:
        ConfigError: it reads others.
    """
    wanted: str | None = getattr(site, "id", None)
    if wanted is not None and id != wanted:
        raise ConfigError(f"party {site.party!r}: the job aligns by column {id!r}, and its own settings "
                          f"(local/anyparty.toml in its kit) by id = {wanted!r}")  # fmt: skip
    allowed: tuple[str, ...] | None = getattr(site, "columns", None)
    read = [*features, *([] if label is None else [label])]
    if allowed is not None and (more := [name for name in read if name not in allowed]):
        raise ConfigError(
            f"party {site.party!r}: the job reads {some(more)}, and its own settings (local/anyparty.toml in its kit) "
            f"allow columns = {list(allowed)}; leave the others out of the job (drop), or out of the table"
        )


def encoder_at(site: Site, config: Config) -> Factory:
    """Return what makes the encoder of a party at home.

    A job's settings may name a user's own code, ``factory``.  Importing it runs it, so only code that the party's
    own settings list, as ``encoders``, is imported.

    Raises:
        ConfigError: the job names another one, or it cannot be imported.
    """
    _check_listed(site, config.encoder_settings(site.party).factory, "an encoder", "encoders")
    return config.allowing(getattr(site, "encoders", ())).encoder_of(site.party)


def method_at(site: Site, config: Config) -> Method:
    """Return the method of a job at home: a user's own only if the party's own settings list it, as ``methods``.

    Raises:
        ConfigError: they do not, or see ``chosen``.
    """
    _check_listed(site, config.method.factory, "a method", "methods")
    return chosen(config.allowing(getattr(site, "methods", ())))


def _check_listed(site: Site, factory: str | None, what: str, setting: str) -> None:
    if factory is not None and factory not in getattr(site, setting, ()):
        raise ConfigError(
            f"party {site.party!r}: the job names {what} of somebody's own making, {factory!r}, and its own settings "
            f'do not allow it; if this code may run here, write {setting} = ["{factory}"] into local/anyparty.toml in '
            f"its kit, above any [table]"
        )
