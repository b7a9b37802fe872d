"""Partition one table's columns, or one data set's images, into a feature block for each party.

Notation  n rows, d columns, K parties; images [n, H, W] or [n, C, H, W]; views [n, V, ...].

``columns``, ``proportional``, ``named`` and ``across`` return slices or lists of columns. ``quadrants``, ``cells``,
``grid``, ``strips`` and ``views`` return arrays that share memory with the original, except ``views`` if ``pick`` is
given. By default, the last columns, pixels or views are dropped if their number is not a multiple of the number of
blocks, as in the programs of the papers. ``cut`` selects a partition by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import isqrt
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from anyparty.errors import ConfigError, nearest, some

AnyArray = NDArray[Any]


@overload
def columns(of: int, parties: int, *, drop_rest: bool = True) -> tuple[slice, ...]: ...
@overload
def columns(of: Sequence[str], parties: int, *, drop_rest: bool = True) -> tuple[list[str], ...]: ...
def columns(
    of: int | Sequence[str], parties: int, *, drop_rest: bool = True
) -> tuple[slice, ...] | tuple[list[str], ...]:
    """Partition d columns into K contiguous blocks of equal width, and drop the last (d mod K) columns.

    The program of the LASER-VFL paper does the same: at K = 4, it uses 20 of Credit's 23 columns. With
    ``drop_rest=False`` all columns are used, and the first (d mod K) blocks have one column more.

    >>> columns(23, 4)[3]
    slice(15, 20, None)
    >>> columns(["a", "b", "c", "d", "e"], 2, drop_rest=False)
    (['a', 'b', 'c'], ['d', 'e'])

    Args:
        of: the number of columns, or their names.
        parties: K.
        drop_rest: drop the last (d mod K) columns.

    Returns:
        A slice, or a list of names, for each party.

    Raises:
        ConfigError: there are more parties than columns, or no party.
    """
    d = of if isinstance(of, int) else len(of)
    if not 1 <= parties <= d:
        raise ConfigError(f"{d} columns cannot be cut into {parties} blocks: expected 1 to {d} parties")
    width, rest = divmod(d, parties)
    extra = 0 if drop_rest else rest
    starts = [k * width + min(k, extra) for k in range(parties + 1)]
    cuts = tuple(slice(start, end) for start, end in pairwise(starts))
    return cuts if isinstance(of, int) else tuple(list(of[cut]) for cut in cuts)


def named(names: Sequence[str], blocks: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Check blocks of columns that the user lists by name, and return them.

    >>> named(["age", "sum", "day"], {"bank": ["sum"], "shop": ["day", "age"]})
    {'bank': ['sum'], 'shop': ['day', 'age']}

    Raises:
        ConfigError: a name is not a column, a column is in two blocks, or a block is empty.
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
    """Partition d columns into contiguous blocks with widths proportional to the parties' shares.

    All columns are used, and every party gets at least one column. Widths are rounded down. The remaining columns go to
    the parties with the largest remainders, one column to each; in a tie, the first parties get them.

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


def across(groups: Sequence[AnyArray], parties: int) -> tuple[NDArray[np.int64], ...]:
    """Divide each group of columns into K equally wide blocks, as ``columns`` does; a party gets a block of each group.

    LASER-VFL partitions its clinical tables in this way: each of four parties gets a quarter of the charts, of the
    conditions and of the demographics. A group [m] lists m columns. A group [m, T] lists m variables with T columns
    each, one for each time step. The columns of a variable stay together.

    >>> [block.tolist() for block in across([np.arange(4), np.arange(4, 8).reshape(2, 2)], 2)]
    [[0, 1, 4, 5], [2, 3, 6, 7]]

    Raises:
        ConfigError: there are more parties than a group has members, or no party.
    """
    cuts = [columns(len(group), parties) for group in groups]
    return tuple(
        np.concatenate([np.asarray(group)[cut[k]].ravel() for group, cut in zip(groups, cuts, strict=True)])
        for k in range(parties)
    )


def grid(x: AnyArray, rows: int, across: int) -> tuple[AnyArray, ...]:
    """Partition images into a grid of ``rows`` x ``across`` cells of equal size, row by row.

    >>> [cell.shape for cell in grid(np.zeros((5, 1, 28, 28)), 2, 4)][0]  # Fashion-MNIST at eight parties
    (5, 1, 14, 7)

    Raises:
        ConfigError: the array does not hold images, or the grid does not have 1 to H rows and 1 to W columns of cells.
    """
    height, width = _pixels(x)
    if not (1 <= rows <= height and 1 <= across <= width):
        raise ConfigError(f"images of {height} x {width} pixels cannot be cut into a grid of {rows} x {across} cells")
    h, w = height // rows, width // across
    return tuple(x[..., i * h : (i + 1) * h, j * w : (j + 1) * w] for i in range(rows) for j in range(across))


def quadrants(x: AnyArray) -> tuple[AnyArray, ...]:
    """Partition images into four quadrants: top left, top right, bottom left, bottom right.

    Raises:
        ConfigError: the array does not hold images of at least 2 x 2 pixels.
    """
    return grid(x, 2, 2)


def cells(x: AnyArray, parties: int) -> tuple[AnyArray, ...]:
    """Partition images into K cells, in the grid that is closest to a square: 2 x 2, 2 x 3, 2 x 4, 3 x 3, 1 x 7, ...

    Raises:
        ConfigError: the array does not hold images, the images have too few pixels, or there is no party.
    """
    if parties < 1:
        raise ConfigError(f"images cannot be cut for {parties} parties: expected at least 1")
    rows = next(rows for rows in range(isqrt(parties), 0, -1) if parties % rows == 0)
    return grid(x, rows, parties // rows)


def strips(
    x: AnyArray, parties: int, direction: Literal["horizontal", "vertical"] = "horizontal"
) -> tuple[AnyArray, ...]:
    """Partition images into K strips: horizontal ones from top to bottom, vertical ones from left to right.

    Raises:
        ConfigError: the array does not hold images, there are not 1 to H (or W) strips, or the direction is unknown.
    """
    if direction not in {"horizontal", "vertical"}:
        raise ConfigError(f"no strips {direction!r}{nearest(direction, ['horizontal', 'vertical'])}")
    return grid(x, parties, 1) if direction == "horizontal" else grid(x, 1, parties)


def views(x: AnyArray, parties: int, *, axis: int = 1, pick: np.random.Generator | None = None) -> tuple[AnyArray, ...]:
    """Partition the V views along ``axis``: each party gets V // K adjacent views, and the last V mod K are dropped.

    If ``pick`` is given, a party gets only one of its views in each row, drawn at random. FALSE-VFL has six parties,
    each of which gets one of two views.

    Returns:
        K arrays.  The arrays lack ``axis`` if each party gets one view of a row.

    Raises:
        ConfigError: there are more parties than views, or the axis does not exist.
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


def cut(x: AnyArray, how: str, parties: int) -> tuple[AnyArray, ...]:
    """Partition the features of a data set among K parties in a way that ``how`` selects by name.

    ``how`` is one of columns, quadrants, cells, rows, strips, views. "columns" are contiguous blocks of the last axis.
    "quadrants" and "cells" are the cells of a grid over each image.  "rows" are horizontal strips of each image, and
    "strips" are vertical strips.  "views" gives each party some of the views of an object.

    >>> [block.shape for block in cut(np.zeros((2, 23)), "columns", 4)][0]
    (2, 5)

    Raises:
        ConfigError: the name is unknown, or the partition does not fit the array or the number of parties.
    """
    if how == "quadrants" and parties != 4:
        raise ConfigError(f"quadrants are for 4 parties, not {parties}; 'cells' cuts images for any number")
    ways: Mapping[str, Callable[[], tuple[AnyArray, ...]]] = {
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


def _pixels(x: AnyArray) -> tuple[int, int]:
    if x.ndim not in {3, 4}:
        raise ConfigError(f"an array of shape {x.shape} holds no images; expected [n, H, W] or [n, C, H, W]")
    return int(x.shape[-2]), int(x.shape[-1])
