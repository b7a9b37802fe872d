"""BibTeX entries of this package, and of the papers that its methods and schedules implement (``papers.bib``)."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

import anyparty
from anyparty.errors import ConfigError, nearest

_LASER = ("valdeira2025laser",)
PAPERS: dict[str, tuple[str, ...]] = {
    "laser": _LASER, "local": _LASER, "ensemble": _LASER, "combinatorial": _LASER,
    "standard": ("liu2024vertical", *_LASER), "plug": ("sun2024plug", *_LASER), "sum": ("zaheer2017deepsets",),
    "boosting": ("ke2017lightgbm",),
    "apc": ("irureta2024apc",), "vfedtrans": ("huang2023vfedtrans", "chai2022fedsvd"), "fedhssl": ("he2024fedhssl",),
    "false-vfl-1": ("hong2025false",), "false-vfl-2": ("hong2025false",),
    **dict.fromkeys(("p-bcd", "sync-min", "sync-max", "flex", "adaptive-flex"), ("castiglia2022flexible",)),
    "vafl": ("chen2020vafl",),
}  # fmt: skip
"""For each method and schedule, the keys of the papers to cite."""

PACKAGE = f"""@software{{anyparty,
  title = {{{{anyparty: vertical federated learning that works when data is missing}}}},
  author = {{{{The anyparty authors}}}},
  version = {{{anyparty.__version__}}},
}}"""


def citations(names: Iterable[str]) -> dict[str, str]:
    """Return BibTeX entries by key: that of this package, then those of the papers of methods and schedules.

    >>> list(citations(["plug", "laser"]))
    ['anyparty', 'sun2024plug', 'valdeira2025laser']

    Raises:
        ConfigError: there is no such method or schedule.
    """
    text = files("anyparty.methods").joinpath("papers.bib").read_text(encoding="utf-8")
    entries = {entry.partition("{")[2].partition(",")[0]: entry.strip() for entry in text.split("\n\n")}
    found = {"anyparty": PACKAGE}
    for name in names:
        if name not in PAPERS:
            raise ConfigError(f"cite: there is no method or schedule {name!r}{nearest(name, PAPERS)}")
        found |= {key: entries[key] for key in PAPERS[name]}
    return found
