"""Where networks compute."""

from __future__ import annotations

import torch

from anyparty.errors import ConfigError


def device_of(name: str, what: str = "train.device") -> torch.device:
    """Return the torch device ``name``; ``what`` is where it was named, for the error.

    Raises:
        ConfigError: this machine has none such.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a device that computes nothing, as "meta", has no number
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        why, instead = str(error).splitlines()[0], "'cpu'"
        if why.startswith("Expected one of"):  # a list of some twenty
            why, instead = "torch knows no such device", "'cpu', 'cuda' or 'mps'"
        raise ConfigError(f"{what}: {name!r} cannot be used here ({why}); try {instead}") from None
    return device
