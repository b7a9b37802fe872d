"""Missingness: frozen values that draw who has which row, ``observed`` [N, K] bool, from a named seed.

Letters   N rows, K parties, k a party; x_k the block of party k [N, ...]; p a probability of being missing.

No row is left to nobody: a row that came out empty is drawn anew until somebody has it (done in one step, from the
distribution given that the row is not empty), and ``Drawn.redrawn`` counts such rows.  This lowers the rate: MCAR at p
with K parties misses (p - p^K) / (1 - p^K), which is .467 and not .5 for p = .5, K = 4 (``MCAR.expected_rate``).

MAR 1, MAR 2 and MNAR look at values.  They expect blocks normalised as the paper's are (``normalised``), the test
rows by the training rows' mean and deviation.  Training and test masks are two draws of two names:

    >>> from anyparty.seeds import Seeds
    >>> seeds = Seeds(0)
    >>> train, test = (MCAR(p=0.5).draw(seeds, name, 1000, 4) for name in ("train", "test"))
    >>> print(train)
    46.6 % of 1000 x 4 blocks missing, 61 empty rows redrawn

Sources: "Vertical Federated Learning with Missing Features During Training and Inference" (LASER-VFL, ICLR 2025),
section 5 and appendix E (MCAR, Beta); FALSE-VFL, section 5.1 and appendix D.3 (MAR, MNAR, scarce labels), whose
pseudo-code is lost: thresholds, step and budget are ours; APC-VFL, section 6 (alignment of two parties).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from anyparty.blocks.missing.chance import MCAR, MNAR, BetaMCAR
from anyparty.blocks.missing.drawn import Drawn, Missing, normalised
from anyparty.blocks.missing.mar import MAR1, MAR2
from anyparty.blocks.missing.structure import Alignment, Labels
from anyparty.errors import ConfigError, nearest

__all__ = [
    "MAR1",
    "MAR2",
    "MCAR",
    "MECHANISMS",
    "MNAR",
    "Alignment",
    "BetaMCAR",
    "Drawn",
    "Labels",
    "Missing",
    "described",
    "missing",
    "normalised",
]

MECHANISMS: dict[str, Callable[..., Missing]] = {
    "mcar": MCAR,
    "beta": BetaMCAR,
    "mar1": MAR1,
    "mar2": MAR2,
    "mnar": MNAR,
    "alignment": Alignment,
    "labels": Labels,
}


def missing(what: str | Mapping[str, Any], **parameters: Any) -> Missing:
    """Return the mechanism of this name, or the one that a mapping with the key "name" describes.

    >>> missing("mcar", p=0.5)
    MCAR(p=0.5)
    >>> missing({"name": "labels", "n": 500, "aligned": 100, "rest": {"name": "mnar", "p": 0.9}})
    Labels(n=500, aligned=100, rest=MNAR(p=0.9))

    Raises:
        ConfigError: no such mechanism, no such parameter, or a value out of range.
    """
    given = {**({"name": what} if isinstance(what, str) else what), **parameters}
    name = given.pop("name", None)
    if not isinstance(name, str) or name not in MECHANISMS:
        known = nearest(str(name), MECHANISMS)
        raise ConfigError(f"missingness needs a name{known}" if name is None else f"no missingness {name!r}{known}")
    made = MECHANISMS[name]
    own = {each.name for each in fields(made)}  # type: ignore[arg-type]
    unknown = sorted(given.keys() - own)
    if unknown:
        raise ConfigError(f"missingness {name!r} has no parameter {unknown[0]!r}{nearest(unknown[0], own)}")
    if isinstance(given.get("rest"), str | Mapping):
        given["rest"] = missing(given["rest"])
    try:
        return made(**given)
    except TypeError as error:
        raise ConfigError(f"missingness {name!r}: a parameter is not a number: {given}") from error


def described(mechanism: Missing) -> dict[str, Any]:
    """Return the mapping from which ``missing`` makes the same mechanism, for the record of a run.

    >>> described(MCAR(p=0.5))
    {'name': 'mcar', 'p': 0.5}
    """
    values = {each.name: getattr(mechanism, each.name) for each in fields(mechanism)}  # type: ignore[arg-type]
    return {"name": mechanism.name} | {
        name: described(value) if hasattr(value, "draw") else value for name, value in values.items()
    }
