"""Partition: cut one table's columns, or one data set's images, into feature blocks, one for each party.

Letters   n rows, d columns, K parties; images [n, H, W] or [n, C, H, W]; views [n, V, ...].

Columns are cut into slices or lists (``columns``, ``proportional``, ``named``, ``across``); arrays into arrays, which
share memory with the whole (``quadrants``, ``cells``, ``grid``, ``strips``, ``views``).  What does not divide evenly
is dropped at the end, as the published programs do, unless said otherwise.  ``cut`` takes any of them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import isqrt
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from anyparty.errors import ConfigError, nearest, some

Array = NDArray[Any]


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


def proportional(d: int, shares: Sequence[float]) -> tuple[slice, ...]:
    """Cut d columns into contiguous blocks as wide as the parties' shares ask; all are kept, each gets at least one.

    A share that comes to less than one column is one; the others are rounded down, and the columns left over go one
    each to those who lost most by rounding, the first of them first.

    >>> proportional(10, [1, 1, 3])
    (slice(0, 2, None), slice(2, 4, None), slice(4, 10, None))

    Raises:
        ConfigError: a share is not a positive number, or there are more parties than columns.
    """
    if not shares or not all(np.isfinite(share) and share > 0 for share in shares):
        raise ConfigError(f"shares of columns must be positive numbers, not {list(shares)}")
    if len(shares) > d:
        raise ConfigError(f"{d} columns cannot be cut into {len(shares)} blocks: expected 1 to {d} parties")
    wanted = np.asarray(shares, dtype=float) / sum(shares) * d
    spare = np.maximum(wanted - 1, 0)
    spare *= (d - len(shares)) / max(spare.sum(), 1e-12)
    width = 1 + np.floor(spare).astype(int)
    lost = np.argsort(-(spare - np.floor(spare)), kind="stable")
    width[lost[: d - width.sum()]] += 1
    ends = np.concatenate([[0], width.cumsum()]).tolist()
    return tuple(slice(start, end) for start, end in pairwise(ends))


def across(groups: Sequence[Array], parties: int) -> tuple[NDArray[np.int64], ...]:
    """Give every party its contiguous share of each group of columns; each group is cut as by ``columns``.

    So are LASER-VFL's clinical tables cut: a quarter of the charts, of the conditions and of the demographics each.
    A group [m] lists columns, a group [m, T] the T columns (time steps) of each of m variables, which stay together.

    >>> [block.tolist() for block in across([np.arange(4), np.arange(4, 8).reshape(2, 2)], 2)]
    [[0, 1, 4, 5], [2, 3, 6, 7]]

    Raises:
        ConfigError: there are more parties than a group has members.
    """
    cuts = [columns(len(group), parties) for group in groups]
    return tuple(
        np.concatenate([np.asarray(group)[cut[k]].ravel() for group, cut in zip(groups, cuts, strict=True)])
        for k in range(parties)
    )


def grid(x: Array, rows: int, across: int) -> tuple[Array, ...]:
    """Cut images into ``rows`` times ``across`` cells of one size, row by row.

    >>> [cell.shape for cell in grid(np.zeros((5, 1, 28, 28)), 2, 4)][0]  # Fashion-MNIST at eight parties
    (5, 1, 14, 7)

    Raises:
        ConfigError: these are no images, or the images have fewer rows or columns of pixels than the grid.
    """
    height, width = _pixels(x)
    if not (1 <= rows <= height and 1 <= across <= width):
        raise ConfigError(f"images of {height} x {width} pixels cannot be cut into a grid of {rows} x {across} cells")
    h, w = height // rows, width // across
    return tuple(x[..., i * h : (i + 1) * h, j * w : (j + 1) * w] for i in range(rows) for j in range(across))


def quadrants(x: Array) -> tuple[Array, ...]:
    """Cut images into four: top left, top right, bottom left, bottom right.

    Raises:
        ConfigError: as ``grid``.
    """
    return grid(x, 2, 2)


def cells(x: Array, parties: int) -> tuple[Array, ...]:
    """Cut images into K cells, in the grid nearest to a square that has K: 2 x 2, 2 x 3, 2 x 4, 3 x 3, 1 x 7.

    Raises:
        ConfigError: as ``grid``, or there are no parties.
    """
    if parties < 1:
        raise ConfigError(f"images cannot be cut for {parties} parties: expected at least 1")
    rows = next(rows for rows in range(isqrt(parties), 0, -1) if parties % rows == 0)
    return grid(x, rows, parties // rows)


def strips(x: Array, parties: int, direction: Literal["horizontal", "vertical"] = "horizontal") -> tuple[Array, ...]:
    """Cut images into K strips: horizontal ones lie above each other, vertical ones beside each other.

    Raises:
        ConfigError: as ``grid``, or no such direction.
    """
    if direction not in {"horizontal", "vertical"}:
        raise ConfigError(f"no strips {direction!r}{nearest(direction, ['horizontal', 'vertical'])}")
    return grid(x, parties, 1) if direction == "horizontal" else grid(x, 1, parties)


def views(x: Array, parties: int, *, axis: int = 1, pick: np.random.Generator | None = None) -> tuple[Array, ...]:
    """Deal the V views along ``axis`` out: one each where K = V, else V // K neighbours each, V mod K dropped.

    With ``pick`` every party has one view of its neighbours, drawn for each row (FALSE-VFL: six parties, one of two).

    Returns:
        K arrays without ``axis`` where each has one view, else with it.

    Raises:
        ConfigError: there are more parties than views, or no such axis.
    """
    if not 0 < axis < x.ndim:
        raise ConfigError(f"an array of shape {x.shape} has no views along axis {axis}")
    count = x.shape[axis]
    if not 1 <= parties <= count:
        raise ConfigError(f"{count} views cannot be dealt to {parties} parties: expected 1 to {count} parties")
    each = count // parties
    dealt = tuple(np.moveaxis(x, axis, 1)[:, k * each : (k + 1) * each] for k in range(parties))
    if each == 1:
        return tuple(block[:, 0] for block in dealt)
    if pick is not None:
        rows = np.arange(len(x))
        return tuple(block[rows, pick.integers(each, size=len(x))] for block in dealt)
    return tuple(np.moveaxis(block, 1, axis) for block in dealt)


def cut(x: Array, how: str, parties: int) -> tuple[Array, ...]:
    """Cut the rows of a data set for K parties: ``how`` is one of columns, quadrants, cells, rows, strips, views.

    "rows" are horizontal strips, "strips" vertical ones, "columns" contiguous blocks of the last axis.

    >>> [block.shape for block in cut(np.zeros((2, 23)), "columns", 4)][0]
    (2, 5)

    Raises:
        ConfigError: no such way, or it does not fit the array or the number of parties.
    """
    if how == "quadrants" and parties != 4:
        raise ConfigError(f"quadrants are for 4 parties, not {parties}; 'cells' cuts images for any number")
    ways: Mapping[str, Callable[[], tuple[Array, ...]]] = {
        "columns": lambda: tuple(x[..., cut] for cut in columns(x.shape[-1], parties)),
        "quadrants": lambda: quadrants(x),
        "cells": lambda: cells(x, parties),
        "rows": lambda: strips(x, parties, "horizontal"),
        "strips": lambda: strips(x, parties, "vertical"),
        "views": lambda: views(x, parties),
    }
    if how not in ways:
        raise ConfigError(f"no partition {how!r}{nearest(how, ways)}")
    return ways[how]()


def _pixels(x: Array) -> tuple[int, int]:
    if x.ndim not in {3, 4}:
        raise ConfigError(f"an array of shape {x.shape} holds no images; expected [n, H, W] or [n, C, H, W]")
    return int(x.shape[-2]), int(x.shape[-1])
