"""Compare spellings of a text: case, spaces, invisible characters and forms of Unicode. Format texts for messages."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

import polars as pl

from anyparty.tables import cells

INVISIBLE = re.compile(
    "[\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]|^[\u200c\u200d]+|[\u200c\u200d]+$"
)
SEARCHED = 5000  # a column with more levels than this is not searched for different spellings
SHOWN = 6  # the largest number of groups of spellings in a note


def tidy(text: str) -> str:
    """Remove invisible characters and needless spaces, and compose Unicode characters (NFC).

    >>> tidy(" a\u200b  b ")
    'a b'
    """
    return " ".join(INVISIBLE.sub("", unicodedata.normalize("NFC", text)).split())


def fold(text: str) -> str:
    """Return the form that all spellings of a text share: tidy, lower case, without compatibility characters."""
    return tidy(unicodedata.normalize("NFKC", tidy(text))).lower()


def merged(levels: pl.Series) -> pl.Series:
    """Return the levels [n], null if missing, each in the form that all its spellings share (``fold``).

    >>> merged(pl.Series(["Yes", "YES ", None, "no"])).to_list()
    ['yes', 'yes', None, 'no']
    """
    known = levels.drop_nulls().unique()
    return levels.replace_strict(known, [fold(level) for level in known], default=None, return_dtype=pl.String)


def several(levels: pl.Series) -> str:
    """List the groups of levels that differ only in their spelling, with numbers of cells; "" without such groups.

    >>> several(pl.Series(["Yes", "yes", "YES", "no", "no"]))
    "'YES' (1), 'Yes' (1), 'yes' (1)"
    """
    counts = cells.value_counts(levels.drop_nulls().cast(pl.String))
    if len(counts) > SEARCHED:
        return ""
    groups: dict[str, list[tuple[str, int]]] = {}
    for level, count in counts:
        groups.setdefault(fold(level), []).append((level, count))
    found = [group for group in groups.values() if len({level.strip(" ") for level, _ in group}) > 1]
    more = f"; and {len(found) - SHOWN} more groups" if len(found) > SHOWN else ""
    return "; ".join(map(counted, found[:SHOWN])) + more


def counted(counts: Iterable[tuple[str, int]]) -> str:
    """List texts with their numbers of cells; invisible characters are shown as escapes."""
    listed = list(counts)
    more = f" and {len(listed) - 12} more" if len(listed) > 12 else ""
    return ", ".join(f"{visible(text)} ({count:,})" for text, count in listed[:12]) + more


def visible(text: str) -> str:
    """Return the text in quotation marks, with invisible characters as escapes."""
    quoted = f'"{text}"' if "'" in text else f"'{text}'"
    return "".join(f"\\u{ord(c):04x}" if INVISIBLE.match(c) or c in "\u00a0\u200c\u200d" else c for c in quoted)


def key(text: str) -> str:
    """Return a text as a TOML key, in quotation marks if necessary."""
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else f'"{text}"'


def listed(texts: Iterable[str]) -> str:
    """Return texts as a TOML array."""
    return "[" + ", ".join(f'"{text}"' for text in texts) + "]"
