"""What a table has that training's rows had nothing of: the model answers, and somebody should hear that it guesses."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from anyparty.errors import remark, some
from anyparty.tables.fitted import Categorical, Numeric

STRANGE = 0.5  # of a column's cells: where a larger share is unlike training's, the column is written another way
FAR = 10  # deviations
MANY = 3  # columns that are named


def warn(numeric: Numeric, categorical: Categorical, frame: pl.DataFrame, where: str, *, few: bool) -> None:
    """Say what training knows nothing of in a frame of the columns that it had.

    Args:
        numeric: what training's rows taught of numbers.
        categorical: and of categories.
        frame: Float64 of numeric columns, String of categorical ones.
        where: the party and its table, for sentences.
        few: also of categories in a minority of cells.

    """
    for sentence in (*_levels(categorical, frame, few=few), *_constants(numeric, frame), *_units(numeric, frame)):
        remark(f"{where}: {sentence}")


def _levels(categorical: Categorical, frame: pl.DataFrame, *, few: bool) -> Iterator[str]:
    """Look for categories that training never saw: each is all zeros to the model."""
    rare = []
    for name, levels in zip(categorical.columns, categorical.levels, strict=True):
        known = frame[name].drop_nulls()
        seen = [level for level in levels if level is not None]
        strange = known.filter(~known.is_in(seen)) if seen else known.clear()
        if len(strange) > STRANGE * len(known):
            most = "" if len(strange) == len(known) else f" in {len(strange)} of {len(known)} cells"
            yield (f"training saw none of the categories of column {name!r}{most}, such as "
                   f"{some(strange.unique().sort().head(2))}, but {some(seen[:2])}: the model knows nothing of them; "
                   f"are they written another way?")  # fmt: skip
        elif few and len(strange):
            such = repr(strange.sort()[0])
            rare.append(f"column {name!r}, {len(strange)} of {len(known)} cells, such as {such}")
    if rare:
        more = f"; and in {len(rare) - MANY} more columns" if len(rare) > MANY else ""
        yield (f"there are categories that training never saw, of which the model knows nothing: "
               f"{'; '.join(rare[:MANY])}{more}")  # fmt: skip


def _constants(numeric: Numeric, frame: pl.DataFrame) -> Iterator[str]:
    """Look for columns that were constant in training and are not any more."""
    was = dict(zip(numeric.columns, numeric.fill, strict=True))
    if not numeric.constant:
        return
    counts = [(frame[name].drop_nulls() != was[name]).sum() for name in numeric.constant]
    moved = [(name, count) for name, count in zip(numeric.constant, counts, strict=True) if count]
    if moved:
        name, count = moved[0]
        more = f", and so for {some([other for other, _ in moved[1:]])}" if moved[1:] else ""
        yield (f"column {name!r} was {was[name]:g} in all training rows and is another number in {count} here: the "
               f"model has learnt nothing of it and takes it for {was[name]:g}{more}")  # fmt: skip


def _units(numeric: Numeric, frame: pl.DataFrame) -> Iterator[str]:
    """Look for columns of which most numbers lie far from all that training saw."""
    if numeric.mean is None or numeric.scale is None:
        return
    fitted = zip(numeric.columns, numeric.mean, numeric.scale, strict=True)
    known = {name: (mean, scale) for name, mean, scale in fitted if name not in numeric.constant}
    if not known:
        return
    shares = {name: (((frame[name] - mean) / scale).abs() > FAR).mean() for name, (mean, scale) in known.items()}
    far = [name for name, share in shares.items() if (share or 0) > STRANGE]
    if far:
        name, (mean, scale) = far[0], known[far[0]]
        more = f"; so for {some(far[1:])}" if far[1:] else ""
        yield (f"most numbers of column {name!r} lie more than {FAR} deviations from training's mean, such as "
               f"{frame[name].drop_nulls().sort()[frame[name].count() // 2]:g} where that is {mean:g} and the "
               f"deviation {scale:g}: are they in another unit?{more}")  # fmt: skip
