"""Infer the task from a label column, and encode labels as numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import polars as pl

from anyparty.core.types import LabelType, Task
from anyparty.errors import TableError, nearest, remark, some
from anyparty.tables import cells
from anyparty.tables.cells import RowNumbers
from anyparty.tables.column_types import (
    FEW_LEVELS,
    LARGEST,
    MANY_LEVELS,
    NUMERIC_SHARE,
    Notation,
    marks_among,
    missing_offer,
    notation_of,
)
from anyparty.tables.label_cells import check_classes, class_key, names_of

if TYPE_CHECKING:
    from torch import Tensor

AskedKind: TypeAlias = Literal["auto", "classification", "regression"]

MANY_VALUES = 1000  # n labels may have at most max(MANY_VALUES, n / 2) classes
SHOWN = 3  # the number of classes that the description of a task lists
TINY = 1 / LARGEST  # the smallest standard deviation that numeric labels may have
MANY_CLASSES = 20  # whole numbers with at most this number of distinct values are classes
REPEATED = 20  # with fewer labels for each distinct value, more than MANY_CLASSES whole numbers are a quantity
MANY_NUMBERS = 100  # with more distinct values, whole numbers are a quantity, unless they look like codes of classes


def infer_task(
    label: pl.Series, *, party: str, kind: AskedKind = "auto", train_rows: RowNumbers | None = None,
    without: bool = False, positive: str | None = None,
) -> Task:  # fmt: skip
    """Return the task that is inferred from the labels.

    If ``kind`` is "auto", text and booleans are classes, and numbers with a fraction are a quantity.
    ``whole_numbers_as`` decides for whole numbers, and an error asks the user if both are plausible. Floats without a
    fraction are whole numbers, because pandas stores integers as floats if the column has missing cells. Class names
    are text, sorted as numbers if all of them are numbers. They come from all known labels, so that they do not depend
    on the split. The mean and the scale of a quantity come only from training rows.

    >>> infer_task(pl.Series("y", ["10", "1", None, "0", "1.0"]), party="bank").classes
    ('0', '1', '10')
    >>> infer_task(pl.Series("y", [0.5, 1.5, None]), party="bank")
    Task(kind='regression', classes=(), mean=1.0, scale=0.5, weights=())

    Args:
        label: [n] the label column, null for unlabelled rows.
        party: the party that holds the column, for errors.
        kind: the requested kind of task.
        train_rows: the indices of the training rows; all rows if ``None``.
        without: accept a column without any label. The task then has no classes.
        positive: the one of two classes for which F1 and the area under the ROC curve are computed. It becomes the
            second class. By default the classes are sorted.

    Raises:
        TableError: the training rows have no labels or a single value, a regression label is not a number, or text has
            too many values to be classes. Or whole numbers may be classes or a quantity, or ``positive`` is not one of
            two classes.
    """
    where = f"party {party!r}, label column {label.name!r}"
    rows = np.arange(len(label)) if train_rows is None else train_rows
    if without and names_of(label).null_count() == len(label):
        return Task(kind="classification")
    if names_of(label[rows]).null_count() == len(rows):
        raise TableError(f"{where}: no row for training has a label; at least two with different labels are needed")
    if kind == "regression" or (kind == "auto" and not _are_classes(label, where)):
        if positive is not None:
            raise TableError(
                f"{where}: its labels are numbers, of which none is positive; leave federation.positive out"
            )
        return _regression(_numbers(label, where)[rows].drop_nulls(), where)
    if kind == "auto":
        _check_notation(label, where)
    check_classes(label, where)
    task = _classification(names_of(label), rows, where)
    task = replace(task, label_type=_type_of(label, task.classes))
    return task if positive is None else _with_positive(task, positive, where)


def _type_of(label: pl.Series, classes: Sequence[str]) -> LabelType:
    """Return the type of predicted classes: the type of the label column, or text for renamed classes."""
    if not set(classes) <= set(cells.as_level(label).drop_nulls()):
        return "text"
    if label.dtype == pl.Boolean:
        return "boolean"
    if label.dtype.is_integer():
        fits = label.cast(pl.Int64, strict=False).null_count() == label.null_count()
        return "integer" if fits else "text"
    return "number" if label.dtype.is_numeric() else "text"


def encode(label: pl.Series, task: Task, party: str) -> tuple[Tensor, Tensor]:
    """Encode the labels as numbers.

    Returns:
        y [n]: int64, the index of the class in ``task.classes``; or float32, (number - mean) / scale. Unlabelled rows
            get the index -1 or the number NaN, so that accidental use becomes visible.
        labeled [n]: bool, whether the row has a label.

    Raises:
        TableError: a class did not occur in training, or a regression label is not a number or overflows when
            standardized.
    """
    import torch  # noqa: PLC0415 - only training needs tensors; reading tables does not wait for torch

    where = f"party {party!r}, label column {label.name!r}"
    if task.kind == "regression":
        numbers = _numbers(label, where).to_numpy()
        with np.errstate(over="ignore"):
            y = ((numbers - task.mean) / task.scale).astype(np.float32)
        if np.isinf(y).any():
            raise TableError(
                f"{where}: too far from the mean {task.mean:g} and standard deviation {task.scale:g} of training to "
                f"compute with: {cells.cited(label, pl.Series(np.isinf(y)))}; correct it, or leave the cell empty"
            )
        return torch.from_numpy(y), torch.from_numpy(~np.isnan(y))
    names = _as_classes(label, task)
    places = pl.Series(range(len(task.classes)), dtype=pl.Int64)
    known = pl.Series(list(task.classes), dtype=pl.String)
    classes = names.replace_strict(known, places, default=-1, return_dtype=pl.Int64)
    unseen = (classes == -1) & names.is_not_null()
    if unseen.any():
        raise TableError(
            f"{where}: training never saw the label {cells.cited(names, unseen)}; known are {some(task.classes, 20)}: "
            "correct it, or leave the cell empty if the row is unlabelled"
        )
    return torch.from_numpy(classes.to_numpy(writable=True)), torch.from_numpy(
        names.is_not_null().to_numpy(writable=True)
    )


def _apart(low: float, high: float) -> tuple[str, str]:
    """Return two numbers as text, with enough digits to show their difference.

    >>> _apart(0.5, 1.5), _apart(1.7e9, 1.7e9 + 25)
    (('0.5', '1.5'), ('1700000000', '1700000025'))
    """
    digits = 6
    if low < high:
        digits = max(6, min(17, 3 + math.floor(math.log10(max(abs(low), abs(high)) / (high - low)))))
    return f"{low:.{digits}g}", f"{high:.{digits}g}"


def described(task: Task, label: pl.Series, kind: AskedKind = "auto") -> str:
    """Describe the task in one line.

    If the labels [n] also allow the other kind of task, the line contains the setting for that kind, and the reason for
    the choice.

    >>> y = pl.Series("y", [*range(1, 11), None])
    >>> for part in described(infer_task(y, party="bank"), y).split("; "):
    ...     print(part)
    task: classification, classes 1, 2, 3 and 7 more
    federation.task = "regression" for numbers
    reason: at most 20 different whole numbers
    >>> y = pl.Series("y", [0.5, 1.5])
    >>> described(infer_task(y, party="bank"), y)
    'task: regression, numbers from 0.5 to 1.5'
    """
    numbers, bad = cells.as_numbers(label.cast(pl.String) if cells.is_category(label) else label)
    known = numbers.drop_nulls()
    reason = whole_numbers_as(label)[1]
    because = f"; reason: {reason}" if reason else ""
    if task.kind == "regression":
        values = known.to_numpy()
        other = f'; federation.task = "classification" for classes{because}' if kind == "auto" and reason else ""
        low, high = _apart(values.min(), values.max())
        return f"task: regression, numbers from {low} to {high}{other}"
    if not task.classes:
        return "task: none, for no row has a label"
    listed, more = ", ".join(task.classes[:SHOWN]), len(task.classes) - SHOWN
    either = kind == "auto" and len(task.classes) > 2 and not bad.any() and label.dtype != pl.Boolean
    other = f'; federation.task = "regression" for numbers{because}' if either else ""
    if len(task.classes) == 2:
        other = f"; positive is {task.classes[1]}, unless federation.positive names the other"
    return f"task: classification, classes {listed}{f' and {more:,} more' if more > 0 else ''}{other}"


def unseen(label: pl.Series, task: Task) -> tuple[str, ...]:
    """Return the classes among labels [n] that did not occur in training, sorted; empty for a regression.

    >>> unseen(pl.Series("y", ["a", "c", None]), Task(kind="classification", classes=("a", "b")))
    ('c',)
    """
    if task.kind == "regression":
        return ()
    return tuple(sorted(set(_as_classes(label, task).drop_nulls()) - set(task.classes)))


def _as_classes(label: pl.Series, task: Task) -> pl.Series:
    """Return the labels [n] as text, in the spelling that training used."""
    names = names_of(label)
    other = set(names.drop_nulls().unique()) - set(task.classes)
    of = {class_key(name): name for name in task.classes}
    known = {name: of[class_key(name)] for name in other if class_key(name) in of}
    return names.replace(known) if known and len(of) == len(task.classes) else names


def _are_classes(label: pl.Series, where: str) -> bool:
    """Return whether the labels are classes if the requested kind of task is "auto"."""
    if label.dtype == pl.Boolean or cells.is_category(label):
        return True
    numbers, bad = cells.as_numbers(label)
    known = numbers.drop_nulls()
    share = len(known) / max(1, len(known) + int(bad.sum()))
    if bad.any() and known.n_unique() > MANY_CLASSES and share >= NUMERIC_SHARE:
        offer = missing_offer(label.name, names_of(label.filter(bad)), where)
        raise TableError(
            f"{where}: nearly all cells are numbers, but not {cells.cited(label, bad)}; correct them{offer}"
        )
    marks = marks_among(known, names_of(label.filter(bad))) if bad.any() else None
    if marks and notation_of(names_of(label)) is None:
        raise TableError(f"{where}: it has numbers except for {marks}, {cells.cited(label, bad)}; leave these cells "
                         f'empty, or set federation.task = "classification"')  # fmt: skip
    if bad.any():
        return True
    if known.is_infinite().any():
        endless = numbers.is_infinite().fill_null(value=False)
        raise TableError(f"{where}: {endless.sum()} of {len(known)} numbers are infinite, "
                         f"{cells.cited(label, endless)}; leave them empty, or correct them")  # fmt: skip
    if (known != known.floor()).any():
        return False
    check_kind(label, where)
    return whole_numbers_as(label)[0] == "classification"


def whole_numbers_as(label: pl.Series) -> tuple[AskedKind, str]:
    """Return the kind of task that labels [n] of whole numbers suggest, and the reason.

    Let m be the number of distinct values. Rare values speak for a quantity, and a few frequent values for classes:

    - Classification, if m is at most 20.
    - Classification, if the values are 0 to m - 1 or 1 to m, and each is the label of at least 20 rows.
    - Regression, if m is greater than 100, or if there are fewer than 20 labels for each value on average.
    - Otherwise "auto": both are plausible, as with letters by their ASCII codes and with ages in years.

    The kind and the reason are "auto" and "" if a label is not a whole number.

    >>> whole_numbers_as(pl.Series("letter", [*range(26)] * 20, dtype=pl.UInt8))
    ('classification', 'the 26 whole numbers from 0 to 25, each in at least 20 rows')
    >>> whole_numbers_as(pl.Series("price", range(0, 50_000, 100)))
    ('regression', '500 different whole numbers from 0 to 49900 in 500 labels')
    >>> whole_numbers_as(pl.Series("age", [*range(18, 88)] * 30))
    ('auto', '70 different whole numbers from 18 to 87 in 2,100 labels')
    """
    if label.dtype == pl.Boolean or cells.is_category(label):
        return "auto", ""
    numbers, bad = cells.as_numbers(label)
    numbers = numbers.drop_nulls()
    if bad.any() or not len(numbers) or numbers.is_infinite().any() or (numbers != numbers.floor()).any():
        return "auto", ""
    names = names_of(label).drop_nulls()  # as text, because different large integers may be equal as floats
    counts = names.value_counts()["count"].to_numpy()
    low, high, values = numbers.to_numpy().min(), numbers.to_numpy().max(), len(counts)
    if values <= MANY_CLASSES:
        return "classification", f"at most {MANY_CLASSES} different whole numbers"
    bounds = "from {} to {}".format(*_apart(low, high))
    if low in {0, 1} and high - low == values - 1 and counts.min() >= REPEATED and values <= MANY_VALUES:
        return "classification", f"the {values} whole numbers {bounds}, each in at least {REPEATED} rows"
    often = values <= MANY_NUMBERS and len(names) >= REPEATED * values
    return "auto" if often else "regression", f"{values:,} different whole numbers {bounds} in {len(names):,} labels"


def check_kind(label: pl.Series, where: str) -> None:
    """Check that labels [n] of whole numbers are clearly classes or clearly a quantity.

    Raises:
        TableError: both are plausible; the error begins with ``where`` and asks for ``federation.task``.
    """
    kind, reason = whole_numbers_as(label)
    if kind == "auto" and reason:
        raise TableError(
            f"{where}: {reason} may be classes or numbers; write one of these lines in the settings (in Python: the "
            'argument task):\nfederation.task = "classification"\nfederation.task = "regression"'
        )


def _check_notation(label: pl.Series, where: str) -> None:
    """Reject text labels that look like quantities or identifiers, unless the user declared classes."""
    if not cells.is_text(label) or cells.is_category(label):
        return
    names = names_of(label).drop_nulls()
    values = names.n_unique()
    notation = notation_of(names) if values > FEW_LEVELS else None
    if notation is None and values > max(MANY_LEVELS, len(names) / 2):
        notation = Notation("identifiers or free text", "", names)
    if notation:
        every = names_of(label)
        examples = cells.cited(every, every.is_in(notation.examples.implode()).fill_null(value=False))
        raise TableError(
            f"{where}: {values} different values in {len(names)} labelled rows, such as {examples}, look like "
            f'{notation.name}; {notation.advice}name another label column, or set federation.task = "classification"'
        )


def _classification(names: pl.Series, rows: RowNumbers, where: str) -> Task:
    seen = names[rows].drop_nulls().unique()
    if len(seen) < 2:
        raise TableError(f"{where}: all labels for training are {seen[0]!r}; at least two classes are needed")
    classes, known = names.drop_nulls().unique(), len(names) - names.null_count()
    if len(classes) > max(MANY_VALUES, known / 2):
        raise TableError(
            f"{where}: {len(classes)} different values in {known} labelled rows, such as {some(classes.sort().head(2))}"
            f", are too many to be classes; name another label column, or ask for regression if they are numbers"
        )
    lacking = classes.filter(~classes.is_in(seen.implode())).sort()
    if len(lacking):
        rest = int(names.is_in(lacking.implode()).sum())
        remark(
            f"{where}: no training row is of class {some(lacking)}, but held-out rows are ({rest}): the model "
            "cannot learn it; set another train.seed, or hold out fewer rows"
        )
    numbers, bad = cells.as_numbers(classes)
    by_number = pl.DataFrame([numbers.alias("number"), classes.alias("name")]).sort("number", "name")["name"]
    return Task(kind="classification", classes=tuple(sorted(classes, key=_by_text) if bad.any() else by_number))


def _by_text(name: str) -> tuple[str, str]:
    """Return a sort key that ignores case."""
    return class_key(name), name


def _with_positive(task: Task, positive: str, where: str) -> Task:
    """Return the task with the positive class in second place."""
    if len(task.classes) > 2:
        raise TableError(f"{where}: federation.positive = {positive!r} is for two classes, and here are "
                         f"{len(task.classes)}: {some(task.classes, 20)}; leave it out")  # fmt: skip
    if positive not in task.classes:
        raise TableError(f"{where}: federation.positive = {positive!r} should be one of two classes; here are "
                         f"{some(task.classes, 20)}{nearest(positive, task.classes)}")  # fmt: skip
    (other,) = set(task.classes) - {positive}
    return replace(task, classes=(other, positive))


def _regression(known: pl.Series, where: str) -> Task:
    values = known.to_numpy()
    mean, scale = float(values.mean()), float(values.std())
    if values.min() == values.max():
        raise TableError(f"{where}: all labels for training are {mean:g}; at least two values are needed")
    if not TINY < scale < LARGEST:
        raise TableError(f"{where}: labels from {values.min():g} to {values.max():g} are too small, or too near to "
                         f"each other, to compute with; write them in another unit")  # fmt: skip
    return Task(kind="regression", mean=mean, scale=scale)


def _numbers(label: pl.Series, where: str) -> pl.Series:
    """Return the labels as Float64, null for unlabelled rows."""
    text = label.cast(pl.String) if cells.is_category(label) else label
    numbers, bad = cells.as_numbers(text)
    large = (numbers.abs() > LARGEST).fill_null(value=False)
    bad |= large
    if bad.any():
        most = f" of at most {LARGEST:.1e}" if bad.sum() == large.sum() else ""
        raise TableError(
            f"{where}: a number{most} was expected for regression, not {cells.cited(label, bad)}; correct it, leave "
            f"the cell empty, or ask for classification"
        )
    return numbers
