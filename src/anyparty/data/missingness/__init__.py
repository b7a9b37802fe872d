"""Missingness mechanisms: frozen parameters that draw a mask ``observed`` [N, K] from a named random stream.

Notation  N rows, K parties, k a party; x_k the block of party k [N, ...]; p a probability of being missing.

A drawn row that no party observes is empty. An empty row is redrawn from the distribution of rows that are not empty,
so that at least one party observes each row. ``DrawnMask.redrawn`` counts the redrawn rows. Redrawing lowers the share
of missing blocks. For MCAR with probability p and K parties, the share is (p - p^K) / (1 - p^K), which is .467 and not
.5 for p = .5 and K = 4 (``MCAR.expected_rate``). ``MCAR(keep_empty=True)`` keeps empty rows instead.

MAR 1, MAR 2 and MNAR depend on values. They expect blocks that ``normalised`` has scaled as in the paper: the mean and
the standard deviation of the training rows scale the test rows too. Masks for training and test are drawn from two
random streams:

    >>> from anyparty.core.seeds import Seeds
    >>> seeds = Seeds(0)
    >>> train, test = (MCAR(p=0.5).draw(seeds, name, 1000, 4) for name in ("train", "test"))
    >>> print(train)
    46.6 % of 1000 x 4 blocks missing, 61 empty rows redrawn

Sources: "Vertical Federated Learning with Missing Features During Training and Inference" (LASER-VFL, ICLR 2025),
section 5 and appendix E (MCAR, Beta); FALSE-VFL, section 5.1 and appendix D.3 (MAR, MNAR, scarce labels), whose
pseudo-code we do not have: thresholds, step and budget are our choices; APC-VFL, section 6 (alignment of two parties).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from anyparty.data.missingness.mar import MAR1, MAR2
from anyparty.data.missingness.mechanism import (
    MCAR,
    MNAR,
    BetaMCAR,
    DrawnMask,
    Mechanism,
    ScarceLabels,
    ScarceOverlap,
    normalised,
)
from anyparty.errors import ConfigError, nearest

__all__ = [
    "MAR1",
    "MAR2",
    "MCAR",
    "MECHANISMS",
    "MNAR",
    "BetaMCAR",
    "DrawnMask",
    "Mechanism",
    "ScarceLabels",
    "ScarceOverlap",
    "described",
    "missing",
    "normalised",
]

MECHANISMS: dict[str, Callable[..., Mechanism]] = {
    "mcar": MCAR,
    "beta": BetaMCAR,
    "mar1": MAR1,
    "mar2": MAR2,
    "mnar": MNAR,
    "alignment": ScarceOverlap,
    "labels": ScarceLabels,
}


def missing(mechanism: str | Mapping[str, Any], **parameters: Any) -> Mechanism:
    """Create a mechanism from its name, or from a mapping with the key "name" and its parameters.

    >>> missing("mcar", p=0.5)
    MCAR(p=0.5, keep_empty=False)
    >>> missing({"name": "labels", "n": 500, "aligned": 100, "rest": {"name": "mnar", "p": 0.9}})
    ScarceLabels(n=500, aligned=100, rest=MNAR(p=0.9))

    Raises:
        ConfigError: the mechanism or a parameter is unknown, or a value is out of range.
    """
    values = {**({"name": mechanism} if isinstance(mechanism, str) else mechanism), **parameters}
    name = values.pop("name", None)
    if not isinstance(name, str) or name not in MECHANISMS:
        known = nearest(str(name), MECHANISMS)
        raise ConfigError(f"missingness needs a name{known}" if name is None else f"no missingness {name!r}{known}")
    create = MECHANISMS[name]
    own = {each.name for each in fields(create)}  # type: ignore[arg-type]
    unknown = sorted(values.keys() - own)
    if unknown:
        raise ConfigError(f"missingness {name!r} has no parameter {unknown[0]!r}{nearest(unknown[0], own)}")
    if isinstance(values.get("rest"), str | Mapping):
        values["rest"] = missing(values["rest"])
    try:
        return create(**values)
    except TypeError as error:
        raise ConfigError(f"missingness {name!r}: a parameter is not a number: {values}") from error


def described(mechanism: Mechanism) -> dict[str, Any]:
    """Return the mapping from which ``missing`` creates the same mechanism, for the record of a run.

    >>> described(MCAR(p=0.5))
    {'name': 'mcar', 'p': 0.5, 'keep_empty': False}
    """
    values = {each.name: getattr(mechanism, each.name) for each in fields(mechanism)}  # type: ignore[arg-type]
    return {"name": mechanism.name} | {
        name: described(value) if hasattr(value, "draw") else value for name, value in values.items()
    }
