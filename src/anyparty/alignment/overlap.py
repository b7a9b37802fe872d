"""The overlap report: the number of rows that each set of parties holds.

The report is shown before training and saved in the record of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from anyparty.alignment.alignment import ROW_KINDS, Alignment, hint, nearly, resembling, rows_of
from anyparty.core.display import html_of, new_axes, text_of
from anyparty.tables.ids import RESEMBLANCES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 16
BLOCK = "A block is one party's columns of one row. It is missing if the party does not have the row."
KINDS = {
    "any": "rows that some party holds",
    "active": "rows of the active party's table",
    "all": "rows that every party holds",
}
# A note reports ids that look alike if they are at least FEWEST, and this share of a party's unmatched ids.
ALIKE, FEWEST = 0.2, 5
PARTLY = 0.1  # a note recommends a change of ids if it would match more than this share of a party's unmatched ids


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A set of parties, with the number of rows that exactly these parties hold.

    ``labelled`` is the number of labelled rows among them; ``None`` if unknown.
    """

    parties: tuple[str, ...]
    rows: int
    labelled: int | None


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """The overlap report: numbers of rows, counted by the parties that hold the rows.

    Attributes:
        blocks: the K parties that hold columns.
        rows: N, the number of rows.
        labelled: the number of rows with a label; ``None`` if this party does not know it.
        by_all: the number of rows that all K parties hold.
        held: for each party, the number of rows that it holds.
        alone: for each party, the number of rows that only it holds.
        patterns: the sets of parties with the most rows, at most ``SHOWN`` sets.
        more_patterns: the number of sets that are not in ``patterns``.
        more_rows: the number of rows whose set of parties is not in ``patterns``.
        notes: possible mistakes, as sentences.
        kinds: for each value of the setting ``train.rows``, the number of rows that the value selects, and the number
            of labelled rows among them; empty if not recorded.
    """

    blocks: tuple[str, ...]
    rows: int
    labelled: int | None
    by_all: int
    held: dict[str, int]
    alone: dict[str, int]
    patterns: tuple[Pattern, ...]
    more_patterns: int
    more_rows: int
    notes: tuple[str, ...]
    kinds: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        alignment: Alignment,
        blocks: Sequence[str],
        labeled: NDArray[np.bool_] | None = None,
        notes: Sequence[str] = (),
        active: str | None = None,
    ) -> Overlap:
        """Count the rows of ``alignment`` by the parties that hold them; ``active`` is the active party.

        ``blocks`` are the parties with columns, ``labeled`` [N] marks the rows with a label, and ``notes`` are
        sentences that are shown with the counts.
        """
        held = None if active is None else alignment.position[active] >= 0
        return cls.count(alignment.observed(blocks), blocks, labeled, notes, alignment.ids, held)

    @classmethod
    def count(
        cls,
        observed: NDArray[np.bool_],
        blocks: Sequence[str],
        labeled: NDArray[np.bool_] | None = None,
        notes: Sequence[str] = (),
        ids: pl.Series | None = None,
        held: NDArray[np.bool_] | None = None,
    ) -> Overlap:
        """Count the rows of an alignment by the parties that hold them.

        Args:
            observed: [N, K], True if party k holds row n.
            blocks: the K parties.
            labeled: [N], True if the row has a label.
            notes: sentences that are shown with the counts.
            ids: [N], the ids, for a note that explains why a party shares few or no rows; ``None`` if unknown.
            held: [N], True if the active party's table has the row; if ``None``, ``kinds`` is empty.
        """
        presence = observed.sum(axis=1)
        alone = observed[presence == 1].sum(axis=0)
        totals = observed.sum(axis=0)
        patterns = _patterns(observed, labeled)
        kinds = {} if held is None or labeled is None else {
            kind: rows_of(kind, observed, held) for kind in ROW_KINDS
        }  # fmt: skip
        shown = patterns.head(SHOWN)
        return cls(
            blocks=tuple(blocks),
            rows=len(observed),
            labelled=None if labeled is None else int(labeled.sum()),
            by_all=int((presence == len(blocks)).sum()),
            held=dict(zip(blocks, totals.tolist(), strict=True)),
            alone=dict(zip(blocks, alone.tolist(), strict=True)),
            patterns=tuple(
                Pattern(
                    parties=tuple(name for name, has in zip(blocks, observed[row["first"]], strict=True) if has),
                    rows=row["rows"],
                    labelled=None if labeled is None else row["labelled"],
                )
                for row in shown.to_dicts()
            ),
            more_patterns=patterns.height - shown.height,
            more_rows=len(observed) - int(shown["rows"].sum()),
            notes=(*notes, *_notes(blocks, observed, ids)),
            kinds={
                kind: (int(rows.sum()), 0 if labeled is None else int((rows & labeled).sum()))
                for kind, rows in kinds.items()
            },
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        patterns = [{"parties": list(p.parties), "rows": p.rows, "labelled": p.labelled} for p in self.patterns]
        kinds = {kind: list(each) for kind, each in self.kinds.items()}
        lists = {"blocks": list(self.blocks), "patterns": patterns, "notes": list(self.notes), "kinds": kinds}
        return {**vars(self), **lists}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Overlap:
        """Create the report from the result of :meth:`to_json`."""
        patterns = tuple(Pattern(**{**each, "parties": tuple(each["parties"])}) for each in values["patterns"])
        tuples = {name: tuple(values[name]) for name in ("blocks", "notes")}
        kinds = {str(kind): (int(each[0]), int(each[1])) for kind, each in values.get("kinds", {}).items()}
        return cls(**{**values, **tuples, "patterns": patterns, "kinds": kinds})

    @property
    def missing(self) -> float:
        """The share of missing blocks; a block is one party's part of one row."""
        return 1 - sum(self.held.values()) / max(1, self.rows * len(self.blocks))

    def frame(self) -> pl.DataFrame:
        """Return a data frame of the most frequent sets of parties: their parties and numbers of rows."""
        rows = [{"parties": " + ".join(p.parties), "rows": p.rows, "labelled": p.labelled} for p in self.patterns]
        return pl.DataFrame(rows, schema={"parties": pl.String, "rows": pl.Int64, "labelled": pl.Int64})

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw a bar for each set of parties: the number of rows that exactly these parties hold.

        Args:
            axes: the axes to draw into; by default new axes.
        """
        axes = new_axes() if axes is None else axes
        patterns = self.patterns[::-1]
        axes.barh([self._pattern_name(p.parties) for p in patterns], [p.rows for p in patterns], color="#0f6fa8")
        axes.set_xlabel("rows")
        axes.set_title("rows by the parties that have them")
        return axes

    def __str__(self) -> str:
        """Return the report as text, for ``print``."""
        return text_of(self.render())

    def _repr_html_(self) -> str:
        """Return the report as HTML, for notebooks."""
        return html_of(self.render())

    def __rich__(self) -> RenderableType:
        """Return the report as ``rich.print`` shows it."""
        return self.render()

    def render(self) -> RenderableType:
        """Return the report for the terminal: tables of the numbers of rows, and the notes."""
        kinds = [self._by_kind()] if self.kinds else []
        block = [Text(BLOCK)] if len(self.blocks) > 1 else []
        return Group(self._by_pattern(), *block, self._by_party(), *kinds, *map(Text, self.notes))

    def _by_pattern(self) -> RichTable:
        table = _table(f"{self.rows:,} rows of all tables together", "known to exactly", "labelled")
        for p in self.patterns:
            table.add_row(Text(self._pattern_name(p.parties)), *self._share(p.rows), _number(p.labelled))
        if self.more_patterns:
            table.add_row(f"... {self.more_patterns:,} more patterns", *self._share(self.more_rows), "")
        table.add_section()
        table.add_row("all rows", *self._share(self.rows), _number(self.labelled))
        if len(self.blocks) > 1:
            table.add_row(f"rows that all {len(self.blocks)} have", *self._share(self.by_all), "")
            missing = self.rows * len(self.blocks) - sum(self.held.values())
            table.add_row("missing blocks", f"{missing:,}", f"{self.missing:.1%}", "")
        return table

    def _by_party(self) -> RichTable:
        table = _table("", "party", "nobody else has")
        for name in self.blocks[:SHOWN]:
            table.add_row(Text(name), *self._share(self.held[name]), _number(self.alone[name]))
        if len(self.blocks) > SHOWN:
            table.add_row(f"... {len(self.blocks) - SHOWN:,} more parties", "", "", "")
        return table

    def _by_kind(self) -> RichTable:
        table = _table("Rows that training can use", "setting train.rows", "labelled")
        for kind, (rows, labelled) in self.kinds.items():
            table.add_row(f'"{kind}": {KINDS[kind]}', *self._share(rows), _number(labelled))
        return table

    def _pattern_name(self, parties: tuple[str, ...]) -> str:
        """Return a short name for a set of parties, such as "all 8" or "all but shop"."""
        absent = [name for name in self.blocks if name not in parties]
        if not absent and len(parties) > 1:
            return f"all {len(parties)}"
        if len(absent) < min(4, len(parties) - 4):
            return f"all but {', '.join(absent)}"
        rest = len(parties) - 6
        return ", ".join(parties[:6]) + (f" and {rest} more" if rest > 0 else "") or "nobody with columns"

    def _share(self, rows: int) -> tuple[str, str]:
        return f"{rows:,}", f"{rows / max(1, self.rows):.1%}"


def _number(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _table(title: str, first: str, last: str) -> RichTable:
    table = RichTable(title=title, title_justify="left")
    table.add_column(first)
    for heading in ("rows", "share", last):
        table.add_column(heading, justify="right")
    return table


def _patterns(observed: NDArray[np.bool_], labeled: NDArray[np.bool_] | None) -> pl.DataFrame:
    """Return a frame with one line for each set of parties, most frequent set first.

    The frame's columns are the packed set, the number of rows, the number of labelled rows, and the index of the set's
    first row.
    """
    n, parties = observed.shape
    packed = np.zeros((n, max(1, -(-parties // 64)) * 8), dtype=np.uint8)
    packed[:, : -(-parties // 8)] = np.packbits(observed, axis=1)
    words = pl.from_numpy(packed.view(np.uint64))
    known = pl.Series("labelled", np.zeros(n, dtype=np.bool_) if labeled is None else labeled)
    return (
        words.with_columns(known, pl.int_range(n, dtype=pl.Int64).alias("first"))
        .group_by(words.columns)
        .agg(pl.len().alias("rows"), pl.col("labelled").sum(), pl.col("first").min())
        .sort("rows", "first", descending=[True, False])
    )


def _notes(blocks: Sequence[str], observed: NDArray[np.bool_], ids: pl.Series | None) -> tuple[str, ...]:
    if len(blocks) == 1:
        return ()
    shared = observed.sum(axis=1) > 1
    strangers = [k for k in range(len(blocks)) if not (observed[:, k] & shared).any()]
    alone = [
        f"{blocks[k]} shares no row with any other party: check how its ids are written{_guess(observed, k, ids)}"
        for k in strangers
    ]
    return (*alone, *([] if ids is None else _partly(blocks, observed, ids, strangers)))


def otherwise(alignment: Alignment, blocks: Sequence[str]) -> tuple[str, ...]:
    """Return a note for each party with many ids that would equal other parties' ids if ``id_normalize`` were set."""
    if alignment.ids is None:
        return ()
    return tuple(_partly(blocks, alignment.observed(blocks), alignment.ids, ()))


def _partly(
    blocks: Sequence[str], observed: NDArray[np.bool_], ids: pl.Series, strangers: Sequence[int]
) -> Iterator[str]:
    own = observed & (observed.sum(axis=1) == 1)[:, None]
    lonely, named = own.sum(axis=0), {*strangers}
    for k, near in enumerate(nearly(ids, own, ~observed)):
        if k not in named and near.count > PARTLY * lonely[k]:
            named.add(k)
            yield (
                f"{blocks[k]} would share {near.count:,} rows more but for {near.difference}: check how its ids are "
                f"written; {near.remedy}"
            )
    for each in RESEMBLANCES if len(named) < len(blocks) else ():
        for k, count in enumerate(resembling(ids, own, ~observed, each, whole=True)):
            if k not in named and count >= FEWEST and count > ALIKE * lonely[k]:
                named.add(k)
                yield f"{blocks[k]} would share {count:,} rows more {each.difference}"


def _guess(observed: NDArray[np.bool_], k: int, ids: pl.Series | None) -> str:
    if ids is None:
        return ""
    own = pl.Series(observed[:, k])
    others = pl.Series(observed.sum(axis=1) > observed[:, k])
    return hint([ids.filter(own), ids.filter(others)])
