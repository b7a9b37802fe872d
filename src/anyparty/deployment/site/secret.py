"""The 32 bytes for a party's private random draws at its own site.

The operating system generates the bytes before the first training, and the party stores them.  The same seed therefore
gives the same weights again, and a resumed run reaches the same weights as an uninterrupted one.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from anyparty.core.storage import writing
from anyparty.errors import ConfigError

SECRET, SIZE = "secret", 32


def secret_in(folder: Path) -> bytes:
    """Read the secret in a party's folder; create the file if it does not exist.

    Raises:
        ConfigError: the file has another size.
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
