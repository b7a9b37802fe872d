"""BibTeX entries of this package, and of the papers that its methods and schedules implement."""

from __future__ import annotations

from collections.abc import Iterable

import anyparty
from anyparty.errors import ConfigError, nearest

# key: (kind, title, authors, further fields)
ENTRIES: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "anyparty": ("software", "anyparty: vertical federated learning that works when data is missing",
                 "{The anyparty authors}", {"version": anyparty.__version__}),
    "valdeira2025laser": (
        "inproceedings", "Vertical Federated Learning with Missing Features During Training and Inference",
        "Valdeira, Pedro and Wang, Shiqiang and Chi, Yuejie",
        {"booktitle": "International Conference on Learning Representations", "year": "2025", "eprint": "2410.22564"},
    ),
    "irureta2024apc": (
        "article", ("Towards Active Participant Centric Vertical Federated Learning: Some Representations May Be All "
        "You Need"), "Irureta and Imaz and Lojo and Fernandez-Marques and Perona and Gonz{\\'a}lez", {},
    ),
    "hong2025false": (
        "article", ("Deep Latent Variable Model based Vertical Federated Learning with Flexible Alignment and Labeling "
        "Scenarios"), "Hong and Park and Hwang", {"year": "2025", "eprint": "2505.11035"},
    ),
    "huang2023vfedtrans": (
        "inproceedings", ("Vertical Federated Knowledge Transfer via Representation Distillation for Healthcare "
        "Collaboration Networks"), "Huang and Wang and Han", {"booktitle": "The Web Conference", "year": "2023"},
    ),
    "chai2022fedsvd": (
        "inproceedings", "Practical Lossless Federated Singular Vector Decomposition over Billion-Scale Data",
        "Chai and Wang and Zhang and Yang and Cai and Chen and Yang", {"booktitle": "KDD", "year": "2022"},
    ),
    "he2024fedhssl": (
        "article", "A Hybrid Self-Supervised Learning Framework for Vertical Federated Learning",
        "He and Kang and Zhao and Luo and Fan and Han and Yang",
        {"journal": "IEEE Transactions on Big Data", "year": "2024"},
    ),
    "sun2024plug": (
        "article", ("PlugVFL: Robust and IP-protecting vertical federated learning against unexpected quitting of "
        "parties"), "Sun and others", {"year": "2024"},
    ),
    "liu2024vertical": (
        "article", "Vertical Federated Learning: Concepts, Advances, and Challenges", "Liu and others",
        {"journal": "IEEE Transactions on Knowledge and Data Engineering", "year": "2024"},
    ),
    "zaheer2017deepsets": (
        "inproceedings", "Deep Sets", "Zaheer and others", {"booktitle": "NeurIPS", "year": "2017"},
    ),
    "castiglia2022flexible": (
        "article", "Flexible Vertical Federated Learning with Heterogeneous Parties",
        "Castiglia and Wang and Patterson", {"year": "2022"},
    ),
    "chen2020vafl": (
        "article", "VAFL: a Method of Vertical Asynchronous Federated Learning", "Chen and Jin and Sun and Yin",
        {"year": "2020"},
    ),
}  # fmt: skip
_LASER = ("valdeira2025laser",)
PAPERS: dict[str, tuple[str, ...]] = {
    "laser": _LASER, "local": _LASER, "ensemble": _LASER, "combinatorial": _LASER,
    "standard": ("liu2024vertical", *_LASER), "plug": ("sun2024plug", *_LASER), "sum": ("zaheer2017deepsets",),
    "apc": ("irureta2024apc",), "vfedtrans": ("huang2023vfedtrans", "chai2022fedsvd"), "fedhssl": ("he2024fedhssl",),
    "false-vfl-1": ("hong2025false",), "false-vfl-2": ("hong2025false",),
    **dict.fromkeys(("p-bcd", "sync-min", "sync-max", "flex", "adaptive-flex"), ("castiglia2022flexible",)),
    "vafl": ("chen2020vafl",),
}  # fmt: skip
"""For each method and schedule, the keys of the papers to cite."""


def citations(names: Iterable[str]) -> dict[str, str]:
    """Return BibTeX entries by key: that of this package, then those of the papers of methods and schedules.

    Raises:
        ConfigError: there is no such method or schedule.
    """
    keys = ["anyparty"]
    for name in names:
        if name not in PAPERS:
            raise ConfigError(f"cite: there is no method or schedule {name!r}{nearest(name, PAPERS)}")
        keys += PAPERS[name]
    return {key: _bibtex(key) for key in dict.fromkeys(keys)}


def _bibtex(key: str) -> str:
    kind, title, authors, further = ENTRIES[key]
    if "eprint" in further:
        further = {**further, "archiveprefix": "arXiv"}
    fields = {"title": f"{{{title}}}", "author": authors, **further}
    return "\n".join([f"@{kind}{{{key},", *(f"  {name} = {{{value}}}," for name, value in fields.items()), "}"])
