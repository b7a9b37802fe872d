"""The settings of a site, and checks that a job, which another party writes, does only what these settings allow.

A site also has a secret: 32 bytes for the party's private random draws. The operating system generates the bytes before
the first training, and the party stores them. Because the secret is stored, a second training with the same seed gives
the same weights, and a resumed run gives the same weights as an uninterrupted one.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from anyparty.config import Config, PartySettings
from anyparty.config.method_factory import chosen
from anyparty.core.storage import writing
from anyparty.errors import ConfigError, some
from anyparty.methods.method import Method
from anyparty.networks.encoders import Factory
from anyparty.tables.ids import id_names


class SiteSettings(Protocol):
    """The settings that a party has written for its own site, stored on its machine."""

    @property
    def party(self) -> str:
        """The party's name."""

    @property
    def active(self) -> str:
        """The active party."""

    @property
    def parties(self) -> tuple[str, ...]:
        """All parties, in the same order at every party."""

    @property
    def table(self) -> Path | None:
        """The path of the party's table."""

    @property
    def folder(self) -> Path:
        """The party's folder for models and records."""


def check_columns(site: SiteSettings, id: str | Sequence[str], label: str | None, features: Sequence[str]) -> None:  # noqa: A002
    """Check that a job reads only columns that the party's own settings list, if the settings list columns.

    The active party writes the job, and so chooses the id column, the features and the label.

    Raises:
        ConfigError: the job reads a column that the settings do not allow.
    """
    wanted: str | Sequence[str] | None = getattr(site, "id", None)
    if wanted is not None and id_names(id) != id_names(wanted):
        raise ConfigError(f"party {site.party!r}: the job aligns by column {id!r}, but the party's own settings "
                          f"(local/anyparty.toml in its kit) allow only id = {wanted!r}")  # fmt: skip
    allowed: tuple[str, ...] | None = getattr(site, "columns", None)
    read = [*features, *([] if label is None else [label])]
    if allowed is not None and (more := [name for name in read if name not in allowed]):
        raise ConfigError(
            f"party {site.party!r}: the job reads {some(more)}, and its own settings (local/anyparty.toml in its kit) "
            f"allow columns = {list(allowed)}; leave the others out of the job (drop), or out of the table"
        )


def with_own_reading(site: SiteSettings, config: Config) -> Config:
    """Return a job's settings in which the party's own settings for reading its table replace those of the job."""
    own: dict[str, Any] = getattr(site, "reading", {})
    party = config.parties.get(site.party, PartySettings()).model_copy(update=own)
    return config.model_copy(update={"parties": config.parties | {site.party: party}}) if own else config


def encoder_at(site: SiteSettings, config: Config) -> Factory:
    """Return the factory of the party's encoder.

    In a job's settings, the encoder's ``factory`` may refer to user-defined code. Importing code runs it. Therefore
    only code that the party's own settings list as ``encoders`` is imported.

    Raises:
        ConfigError: the job refers to code that is not listed, or the code cannot be imported.
    """
    _check_listed(site, config.encoder_settings(site.party).factory, "an encoder", "encoders")
    return config.allowing(getattr(site, "encoders", ())).encoder_of(site.party)


def method_at(site: SiteSettings, config: Config) -> Method:
    """Return the method of a job; a user-defined method must be listed as ``methods`` in the party's own settings.

    Raises:
        ConfigError: the party's settings do not list the user-defined method, or the method cannot be made.
    """
    _check_listed(site, config.method.factory, "a method", "methods")
    return chosen(config.allowing(getattr(site, "methods", ())))


def check_consent(site: SiteSettings, method: Method) -> None:
    """Check that the settings of a passive party's site list every message of a method that shows cells of its table.

    Raises:
        ConfigError: the settings do not list such a message as ``consents``.
    """
    given = getattr(site, "consents", ())
    for message in method.can.messages:
        if message.consent and message.tag not in given and site.party != site.active:
            raise ConfigError(
                f"party {site.party!r}: with {method.can.title}, its message {message.tag!r} shows cells of its table "
                f"to {site.active!r}, and the party's own settings do not allow it; if this party agrees, write "
                f'consents = ["{message.tag}"] into local/anyparty.toml in its kit, above any [table]'
            )


def _check_listed(site: SiteSettings, factory: str | None, what: str, setting: str) -> None:
    if factory is not None and factory not in getattr(site, setting, ()):
        raise ConfigError(
            f"party {site.party!r}: the job names {what} that is user-defined code, {factory!r}, and the party's own "
            f"settings do not allow it; if this code may run here, write "
            f'{setting} = ["{factory}"] into local/anyparty.toml in its kit, above any [table]'
        )


SECRET, SIZE = "secret", 32


def secret_in(folder: Path) -> bytes:
    """Return the secret in a party's folder; create the file with the secret if it does not exist.

    Raises:
        ConfigError: the file does not have 32 bytes.
        StorageError: the file cannot be written.
    """
    path = folder / SECRET
    try:
        kept = path.read_bytes()
    except FileNotFoundError:
        kept = secrets.token_bytes(SIZE)
        with writing(path) as beside:
            beside.write_bytes(kept)
    if len(kept) != SIZE:
        raise ConfigError(f"{path}: expected the {SIZE} bytes that seed this party's initial weights, got "
                          f"{len(kept)}; move the file away and train again, without --resume")  # fmt: skip
    return kept
