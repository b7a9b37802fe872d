"""Assign the rows to training, validation and test, before preprocessing or networks are fitted.

The active party assigns its labelled rows to these three parts. By default ("stratified"), the part of a row depends on
the row's id, on the labels and on the seed. It depends neither on the order of the rows nor on which parties hold the
row. Each part gets the same share of every class. Rows without a label are for training. A row that no party holds is
not used.

At a site, the random draws also depend on a secret of the active party. Without the secret, a party that knows the seed
and the ids of its rows could infer something about a row's class from the row's part.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from anyparty.alignment.alignment import RowKind
from anyparty.core.seeds import Seeds
from anyparty.errors import TableError, remark
from anyparty.tables import cells
from anyparty.tables.column_types import as_dates, date_order, date_setting
from anyparty.tables.label_cells import names_of
from anyparty.tables.table import Table
from anyparty.tables.target import AskedKind, infer_task

Kind = Literal["stratified", "random", "group", "time", "file", "ids"]
Part = NDArray[np.int8]

TRAIN, VALIDATION, TEST = 0, 1, 2
FEWEST = 4  # if there are at least this many usable rows, validation and test get at least one row each
# rows in none of the three parts, such as rows that ``train.rows`` excludes
UNUSED = 3
PARTS = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
MOST_PARTS = len(PARTS)
ATTEMPTS = 100  # the largest number of random orders of groups that are tried until every part has all classes


@dataclass(frozen=True, kw_only=True)
class ProblemPlan:
    """The settings that define a problem: the split of the rows, the kind of task, and the rows to train on.

    Attributes:
        kind: "stratified" splits each class in the same way. "random" splits the rows at random. "group", "time" and
            "file" split by a column of the active party's table. "ids" uses the parts that the caller listed.
        parties: whether every combination of present parties also has the same share in each part.
        validation: the share of the labelled rows for validation.
        test: the share of the labelled rows for test.
        task: the kind of task in the settings: "auto", "classification" or "regression".
        positive: the positive class of a binary task, if one was chosen.
        rows: the rows that training uses: "any", "active" or "all".
        balance: whether the task weighs classes, so that all classes have the same total weight.
    """

    kind: Kind = "stratified"
    parties: bool = False
    validation: float = 0.15
    test: float = 0.2
    task: AskedKind = "auto"
    positive: str | None = None
    rows: RowKind = "any"
    balance: bool = False

    @property
    def shares(self) -> dict[str, float]:
        """The shares of training, validation and test, by name; shares of zero are left out."""
        each = {"training": 1 - self.validation - self.test, "validation": self.validation, "test": self.test}
        return {name: share for name, share in each.items() if share > 0}


def assign(
    table: Table, position: NDArray[np.int64], observed: NDArray[np.bool_], plan: ProblemPlan, seeds: Seeds
) -> Part:
    """Return the part of each aligned row, [N] int8: training, validation, test or unused.

    Args:
        table: the active party's table, with labels and, if the kind needs it, the column ``table.part_by``.
        position: [N], the index of each aligned row in the active party's table; -1 if the table lacks the row.
        observed: [N, K], True if party k holds row n.
        plan: the kind of split, and the shares of validation and test.
        seeds: the random streams, which depend on the seed and, at a site, on the active party's secret.

    Raises:
        TableError: a class has fewer rows than there are parts, or the column cannot be used.
    """
    assert table.label is not None
    labelled = table.label.is_not_null().to_numpy()
    held = position >= 0
    if plan.kind == "random":
        usable = np.where(held, labelled[position], False) & observed.any(axis=1)
        return split(usable, plan.validation, plan.test, Seeds(seeds.root))
    seen = np.zeros(len(table), dtype=np.bool_)
    seen[position[held & observed.any(axis=1)]] = True
    rows = _OwnRows(table, labelled, seen, _classes(table, plan), plan, seeds)
    if plan.kind == "stratified":
        part = rows.stratified(_patterns(position, observed, len(table)) if plan.parties else None)
    else:
        part = {"group": rows.by_group, "time": rows.by_time}.get(plan.kind, rows.listed)()
        part[~labelled & (part != TRAIN)] = UNUSED
    part[~seen] = TRAIN  # rows without cells are training rows without labels
    use = np.full(len(position), TRAIN, dtype=np.int8)
    use[held] = part[position[held]]
    return use


def _rows_of(share: float, n: int) -> int:
    """Return round(share * n); at least 1 if the share is above 0 and n is at least ``FEWEST``."""
    return max(round(share * n), int(share > 0 and n >= FEWEST))


def split(usable: NDArray[np.bool_], validation: float, test: float, seeds: Seeds) -> NDArray[np.int8]:
    """Assign random shares of the usable rows to validation and test, and return each row's part [N] int8.

    All other rows are for training. Rows without a label, and rows that no party holds, are not usable for validation
    or test. If at least ``FEWEST`` rows are usable, validation and test get at least one row unless their share is 0.

    >>> split(np.ones(10, dtype=bool), 0.2, 0.3, Seeds(0)).tolist().count(TEST)
    3
    """
    use = np.full(len(usable), TRAIN, dtype=np.int8)
    rows = seeds.numpy("split").permutation(np.flatnonzero(usable))
    tests, validations = (_rows_of(share, len(rows)) for share in (test, validation))
    use[rows[:tests]] = TEST
    use[rows[tests : tests + validations]] = VALIDATION
    return use


def _classes(table: Table, plan: ProblemPlan) -> pl.Series | None:
    """Return each row's class as text, or null without a label; ``None`` if the labels are numbers."""
    assert table.label is not None
    try:
        task = infer_task(table.label, party=table.party, kind=plan.task, without=True)
    except TableError:  # ``task_of`` raises a better error later
        return None
    return names_of(table.label) if task.kind == "classification" else None


def _patterns(position: NDArray[np.int64], observed: NDArray[np.bool_], n: int) -> NDArray[np.int64]:
    """Return an index [n] for each row of the active party; rows that the same parties hold have equal indices."""
    found = np.zeros(n, dtype=np.int64)
    there = position >= 0
    found[position[there]] = np.unique(observed[there], axis=0, return_inverse=True)[1].ravel() + 1
    return found


@dataclass(frozen=True)
class _OwnRows:
    """The active party's n rows, and functions that assign them to the parts training, validation and test.

    Attributes:
        table: the active party's table.
        labelled: [n], True if the row has a label.
        seen: [n], True if a party has a cell of the row.
        classes: [n], the class of each row as text; ``None`` if the labels are numbers.
        plan: the kind and the shares of the split.
        seeds: the random streams.
    """

    table: Table
    labelled: NDArray[np.bool_]
    seen: NDArray[np.bool_]
    classes: pl.Series | None
    plan: ProblemPlan
    seeds: Seeds

    @property
    def where(self) -> str:
        assert self.table.label is not None
        return f"party {self.table.party!r}, label column {self.table.label.name!r}"

    def codes(self) -> tuple[NDArray[np.int64], list[str]]:
        """Return the index of each row's class [n], and the names of the classes.

        The index is -1 for a row without a label. If the labels are numbers, all rows have index 0.
        """
        if self.classes is None:
            return np.zeros(len(self.table), dtype=np.int64), [""]
        names = self.classes.drop_nulls().unique().sort().to_list()
        codes = self.classes.replace_strict(names, list(range(len(names))), default=-1, return_dtype=pl.Int64)
        return codes.fill_null(-1).to_numpy(), names

    def keys(self, texts: pl.Series, *stream: str | int) -> NDArray[np.float64]:
        """Return a random number in [0, 1) for each text, which depends only on the text and the seed."""
        key = self.seeds.own.key("split", *stream)
        drawn = [hashlib.blake2b(text.encode(), key=key, digest_size=8).digest() for text in texts]
        return np.frombuffer(b"".join(drawn), dtype="<u8") / 2.0**64

    def stratified(self, patterns: NDArray[np.int64] | None) -> Part:
        """Return each row's part [n], with the same share of every class in each part.

        ``patterns`` [n] has an index of the set of parties that hold the row. If it is given, the parts also have the
        same shares of these sets.
        """
        part = self._stratified(self.labelled, patterns)
        if (self.labelled & ~self.seen).any() and self.lacks(np.where(self.seen, part, UNUSED)):
            # a part lacks usable rows of a class: split again without the rows that have no cells
            part = self._stratified(self.labelled & self.seen, patterns)
        return part

    def _stratified(self, usable: NDArray[np.bool_], patterns: NDArray[np.int64] | None) -> Part:
        codes, names = self.codes()
        part = np.full(len(self.table), TRAIN, dtype=np.int8)
        key = self.keys(self.table.ids)
        sizes = np.bincount(codes[usable], minlength=len(names))
        present = np.flatnonzero(sizes)
        if not len(present):
            return part
        if self.classes is not None and sizes[present].min() < MOST_PARTS:
            self._check_sizes(sizes[present], [names[c] for c in present])
        tests, validations = counts_of(sizes[present], self.plan.test, self.plan.validation)
        for c, test, validation in zip(present, tests, validations, strict=True):
            rows = np.flatnonzero(usable & (codes == c))
            order = key[rows] if patterns is None else _balanced(key[rows], patterns[rows])
            rows = rows[np.lexsort((key[rows], order))]
            part[rows[:test]] = TEST
            part[rows[test : test + validation]] = VALIDATION
        return part

    def _check_sizes(self, sizes: NDArray[np.int64], names: list[str]) -> None:
        """Check that every class has at least as many labelled rows as there are parts.

        Raises:
            TableError: a class has fewer labelled rows; the message tells how many are needed.
        """
        parts = list(self.plan.shares)
        if sizes.min() >= len(parts):
            return
        c = int(sizes.argmin())
        lack = len(parts) - int(sizes[c])
        raise TableError(
            f"{self.where}: class {names[c]!r} has {sizes[c]} labelled row{'s' * int(sizes[c] != 1)}, and each of the "
            f"{len(parts)} parts ({', '.join(parts)}) needs at least one row of every class: label {lack} more, set "
            f'train.validation or train.test to 0, or set split.kind = "random"'
        )

    def lacks(self, part: Part) -> list[tuple[str, str]]:
        """Return the pairs (class, part) for which the part has no row of the class."""
        codes, names = self.codes()
        if self.classes is None:
            return []
        numbers = {"training": TRAIN, "validation": VALIDATION, "test": TEST}
        wanted = [(name, numbers[name]) for name in self.plan.shares]
        known = np.unique(codes[self.labelled & self.seen])
        return [
            (names[c], name)
            for c in known[known >= 0]
            for name, number in wanted
            if not (self.labelled & self.seen & (codes == c) & (part == number)).any()
        ]

    def by_group(self) -> Part:
        """Return each row's part [n]: groups in random order are assigned to test, then validation, then training.

        Raises:
            TableError: a row has no group, or no draw gives every part a row of every class.
        """
        column = self.column()
        groups = cells.as_text(column)
        self._check_complete(groups)
        distinct = groups.unique().sort()
        place = groups.replace_strict(distinct, list(range(len(distinct))), return_dtype=pl.Int64).to_numpy()
        sizes = np.bincount(place[self.labelled & self.seen], minlength=len(distinct))
        lacking: list[tuple[str, str]] = []
        for attempt in range(ATTEMPTS):
            part: Part = self._fill(sizes, self.keys(distinct, "group", attempt))[place]
            lacking = self.lacks(part)
            if not lacking and all((part[self.labelled] == number).any() for number in self._wanted()):
                return part
        why = f"class {lacking[0][0]!r} has no row in the part for {lacking[0][1]}" if lacking else "a part is empty"
        raise TableError(
            f"{self.where}: of {ATTEMPTS} ways to distribute the {len(distinct):,} groups of column {column.name!r}, "
            f"none gives each part a row of every class ({why}): use more groups, other shares (train.validation, "
            "train.test), or another split.kind"
        )

    def _wanted(self) -> list[int]:
        plan = self.plan
        return [TRAIN, *([VALIDATION] if plan.validation else []), *([TEST] if plan.test else [])]

    def _fill(self, sizes: NDArray[np.int64], key: NDArray[np.float64]) -> Part:
        """Assign G groups, sorted by ``key`` [G], to test, then to validation, then to training.

        ``sizes`` [G] has the number of labelled rows of each group.
        """
        part = np.full(len(sizes), TRAIN, dtype=np.int8)
        order, total = key.argsort(), sizes.sum()
        # the number of labelled rows in the preceding groups, plus half of the group's own rows
        before = np.concatenate([[0], sizes[order].cumsum()[:-1]]) + sizes[order] / 2
        part[order[before < (self.plan.test + self.plan.validation) * total]] = VALIDATION
        part[order[before < self.plan.test * total]] = TEST
        return part

    def by_time(self) -> Part:
        """Return each row's part [n]: the latest rows are test rows, and the rows before them are validation rows.

        Rows with the same time are in the same part.

        Raises:
            TableError: a row has no time, or its time cannot be read.
        """
        time = self._times(self.column())
        known = np.sort(time[self.labelled & self.seen])
        part = np.full(len(self.table), TRAIN, dtype=np.int8)
        if not len(known):
            return part
        shares = ((VALIDATION, self.plan.test + self.plan.validation), (TEST, self.plan.test))
        for number, share in shares:
            count = round(share * len(known))
            if count:
                part[time >= known[len(known) - count]] = number
        return part

    def _times(self, column: pl.Series) -> NDArray[np.float64]:
        """Return the rank of each row's time [n]; equal times have equal ranks."""
        rules, name = self.table.rules, column.name
        known = column if cells.is_date_or_datetime(column) else cells.without(column, rules.missing.get(name, ()))
        if not column.dtype.is_temporal() and name not in rules.dates:
            numbers, bad = cells.as_numbers(known)
            if not bad.any():
                self._check_complete(numbers)
                return numbers.rank("dense").to_numpy().astype(np.float64)
        where = f"party {self.table.party!r}, {self.table.source}: column {name!r}"
        read = as_dates(known, where, rules, advice="Expected numbers, or dates such as 2020-01-31")
        times, order = read.cells, "" if read.dates is None else read.dates.order
        self._check_complete(times)
        if order in {"day-first", "month-first"} and name not in rules.dates:
            remark(f"{where}, which splits the rows by time, is read as dates {date_order(known, times, order)}; if "
                   f"this is wrong, {date_setting(name, where, known)}")  # fmt: skip
        return times.rank("dense").to_numpy().astype(np.float64)

    def listed(self) -> Part:
        """Return each row's part [n] from a column that contains train, validation or test.

        If the cell is empty, a labelled row is not used, and a row without a label is for training.

        Raises:
            TableError: the column has another text or, with the kind "file", has an empty cell in a labelled row.
        """
        column = self.column()
        text = cells.as_text(column).str.to_lowercase()
        odd = text.is_not_null() & ~text.is_in(list(PARTS))
        if odd.any():
            raise TableError(f"party {self.table.party!r}, column {column.name!r}: expected train, validation or test, "
                             f"found {cells.cited(column, odd)}")  # fmt: skip
        empty = pl.Series(self.labelled) & text.is_null()
        if self.plan.kind == "file" and empty.any():
            raise TableError(f"party {self.table.party!r}, column {column.name!r}: row {_numbers(empty)}"
                             " has a label and no part; write train, validation or test")  # fmt: skip
        codes = text.replace_strict(PARTS, default=None, return_dtype=pl.Int8).to_numpy(writable=True)
        unlisted = text.is_null().to_numpy()
        codes = np.where(unlisted, np.where(self.labelled, UNUSED, TRAIN), codes)
        return codes.astype(np.int8)

    def column(self) -> pl.Series:
        assert self.table.part_by is not None
        return self.table.part_by

    def _check_complete(self, text: pl.Series) -> None:
        """Raise a TableError if the column of groups or times has an empty cell."""
        if text.null_count():
            raise TableError(f"party {self.table.party!r}, column {text.name!r}: row {_numbers(text.is_null())} is "
                             f"empty, and split.kind = {self.plan.kind!r} needs a value in every row")  # fmt: skip


def _numbers(rows: pl.Series) -> str:
    """Return the numbers of the first five rows that a mask marks, as text."""
    return ", ".join(str(row + 1) for row in rows.arg_true().head(5).to_list())


def _balanced(key: NDArray[np.float64], patterns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return sort keys [n] that mix the rows evenly by their patterns (sets of parties).

    Any section of the sorted rows then has about the same shares of patterns.
    """
    order = np.empty(len(key))
    for pattern in np.unique(patterns):
        rows = np.flatnonzero(patterns == pattern)
        rank = key[rows].argsort().argsort()
        order[rows] = (rank + key[rows]) / len(rows)
    return order


def counts_of(sizes: NDArray[np.int64], test: float, validation: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of test rows and the number of validation rows of each class.

    ``sizes`` has the number of rows of each class. The test rows of all classes together are the rounded share ``test``
    of all rows (method of largest remainders), and so are the validation rows with the share ``validation``. Each class
    has at least one row in every part with a share above 0.

    >>> [counts.tolist() for counts in counts_of(np.array([236, 4]), 0.2, 0.15)]
    [[47, 1], [35, 1]]
    """
    tests, validations = _counts(sizes, test), _counts(sizes, validation)
    above = np.maximum(tests + validations - (sizes - 1), 0)
    fewer = np.minimum(above, np.maximum(tests - 1, 0))
    return tests - fewer, np.maximum(validations - (above - fewer), 0)


def _counts(sizes: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    exact = share * sizes
    counts: NDArray[np.int64] = np.maximum(np.floor(exact + 1e-9).astype(np.int64), int(share > 0))
    short = round(share * sizes.sum()) - counts.sum()
    if short > 0:
        counts[np.argsort(counts - exact, kind="stable")[:short]] += 1
    return counts
