"""Partition: cut one table's columns into feature blocks, one for each party."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import overload

from anyparty.errors import ConfigError, nearest, some


@overload
def columns(what: int, parties: int, *, drop_rest: bool = True) -> tuple[slice, ...]: ...
@overload
def columns(what: Sequence[str], parties: int, *, drop_rest: bool = True) -> tuple[list[str], ...]: ...
def columns(
    what: int | Sequence[str], parties: int, *, drop_rest: bool = True
) -> tuple[slice, ...] | tuple[list[str], ...]:
    """Cut d columns into contiguous blocks of equal width; the trailing (d mod K) are dropped.

    So does the program of the LASER-VFL paper (Credit: 20 of 23 columns at K = 4).  With ``drop_rest=False`` all
    are kept, and the first (d mod K) blocks have one more.

    >>> columns(23, 4)[3]
    slice(15, 20, None)
    >>> columns(["a", "b", "c", "d", "e"], 2, drop_rest=False)
    (['a', 'b', 'c'], ['d', 'e'])

    Args:
        what: how many columns there are, or their names.
        parties: K.
        drop_rest: drop what does not divide evenly.

    Returns:
        A slice, or a list of names, for each party.

    Raises:
        ConfigError: there are more parties than columns, or no parties.
    """
    d = what if isinstance(what, int) else len(what)
    if not 1 <= parties <= d:
        raise ConfigError(f"{d} columns cannot be cut into {parties} blocks: expected 1 to {d} parties")
    width, rest = divmod(d, parties)
    extra = 0 if drop_rest else rest
    starts = [k * width + min(k, extra) for k in range(parties + 1)]
    cuts = tuple(slice(start, end) for start, end in pairwise(starts))
    return cuts if isinstance(what, int) else tuple(list(what[cut]) for cut in cuts)


def named(names: Sequence[str], blocks: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the blocks as given, once every name is a column and no column is in two of them.

    >>> named(["age", "sum", "day"], {"bank": ["sum"], "shop": ["day", "age"]})
    {'bank': ['sum'], 'shop': ['day', 'age']}

    Raises:
        ConfigError: a name is no column, a column is in two blocks, or a block is empty.
    """
    owner: dict[str, str] = {}
    for party, block in blocks.items():
        if not block or isinstance(block, str):
            raise ConfigError(f"block {party!r} must list at least one column, not {block!r}")
        for name in block:
            if name not in names:
                raise ConfigError(f"block {party!r}: there is no column {name!r}{nearest(name, names)}")
            if name in owner:
                raise ConfigError(f"column {name!r} is in two blocks, {some([owner[name], party])}; leave it in one")
            owner[name] = party
    return {party: list(block) for party, block in blocks.items()}
