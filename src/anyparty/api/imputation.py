"""What a trained FALSE-VFL does besides predicting: fill in a party's missing blocks or cells, and find unlikely rows.

filled = impute(model, tables, party="shop", samples=20)     what shop would have known of rows that it lacks
whole = impute(model, tables, party="shop", cells=True)      shop's own rows, with their empty cells filled in
likely = log_likelihood(model, tables)                       one number a row: low is unlike the training rows
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from polars.selectors import by_name

from anyparty.alignment.alignment import Alignment
from anyparty.api.model import Model
from anyparty.api.runs import model_for_run, own_tables
from anyparty.artifacts.model_files import Member
from anyparty.core.predictions import members, patterns
from anyparty.core.seeds import Seeds
from anyparty.core.types import Channel
from anyparty.data.blocks import Rows
from anyparty.errors import PredictionError, nearest
from anyparty.methods.false_vfl import generation as uses
from anyparty.methods.false_vfl.false_vfl import FalseVFL
from anyparty.methods.method import Batch
from anyparty.tables import readers
from anyparty.tables.preprocessing import Prepare
from anyparty.transport.ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class Imputation:
    """A party's block, filled in for rows that it lacks; or its own rows, with their empty cells filled in.

    Attributes:
        party: who owns the columns, and alone has this.
        ids: the rows' ids as text, ``None`` where the tables have none.
        id: the column of ids in the party's table.
        prepare: how that table became numbers.
        mean: [n, F], numeric columns in their own units, levels as numbers around 0 and 1; NaN where nobody that was
            asked has the row.
        samples: [S, n, F], the same.
        drawn: [S, n, F], the same with a level of each category drawn, and truth values: what tables of samples show;
            ``None`` where ``samples`` do for it.
        own: [n, d], the columns of rows that the party has, null where a cell was filled in, if it was one of numbers;
            ``None`` of rows that it lacks.
        whole: the party's table as it came, ``None`` where it is not at hand.
        places: [n], which row of it each is; -1 where it has none.

    """

    party: str
    ids: tuple[str, ...] | None
    id: str
    prepare: Prepare
    mean: NDArray[np.float64]
    samples: NDArray[np.float64]
    drawn: NDArray[np.float64] | None = None
    own: pl.DataFrame | None = None
    whole: pl.DataFrame | None = None
    places: NDArray[np.int64] | None = None

    def __repr__(self) -> str:
        """Return whose rows are filled in, and how many: none of them."""
        S, n, F = self.samples.shape
        what = f"{n:,} rows that it {'lacks' if self.own is None else 'has'}"
        return f"<Imputation of party {self.party!r}: {what}, {F} numbers a row, {S:,} samples>"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the F outputs: numeric columns first, then ``column=level``."""
        return self.prepare.names

    def table(self, *, samples: bool = False) -> pl.DataFrame:
        """Return rows as the party's own table has them, of a category the likeliest level; empty where none is known.

        Where that table is at hand, its columns are there in its order; those that the model does not use, and the
        label, are as they were, and empty in rows that it lacks.  Else columns are those that the model knows, numbers
        first.  Of rows that the party has, all of them are there in the table's order, also such without a cell: the
        table can stand in for its own, in which empty cells among numbers are filled in, and no cell else is another.

        With ``samples`` every sample is a row: S for each id, with a column ``sample`` from 1 to S behind that of ids.
        Levels of a category, and truth values, are drawn there as likely as the model has them.

        Raises:
            PredictionError: samples are asked for, and none were drawn.
        """
        if not samples:
            return self._as_own(self.mean)
        if "sample" in {self.id, *self.prepare.kinds, *(() if self.whole is None else self.whole.columns)}:
            raise PredictionError(f"party {self.party!r} has a column 'sample' of its own, where the number of each "
                                  f"sample would stand: rename it, or take impute(...).samples in Python")  # fmt: skip
        if not len(self.samples):
            raise PredictionError(
                "there are no samples: ask for them where rows are filled in, impute(..., samples=20)"
            )
        each = [self._as_own(one) for one in (self.samples if self.drawn is None else self.drawn)]
        behind = each[0].columns.index(self.id) + 1 if self.id in each[0].columns else 0
        return pl.concat(one.insert_column(behind, pl.repeat(s, one.height, eager=True).alias("sample"))
                         for s, one in enumerate(each, 1))  # fmt: skip

    def frame(self) -> pl.DataFrame:
        """Return the means, a row for each id; null where nobody that was asked has the row."""
        filled = pl.from_numpy(self.mean, schema=list(self.columns)).fill_nan(None)
        return filled if self.ids is None else filled.insert_column(0, pl.Series("id", self.ids, dtype=pl.String))

    @property
    def unknown(self) -> int:
        """How many rows stay empty, for nobody that was asked has them."""
        return int(np.isnan(self.mean).all(axis=1).sum())

    @property
    def gaps(self) -> int:
        """How many empty cells of rows that the party has were filled in."""
        numbers = [] if self.own is None else self.own.select(by_name(self.prepare.numeric.columns)).null_count().row(0)
        return sum(numbers)

    @property
    def left(self) -> int:
        """How many empty cells of categories, of rows that the party has, stay empty."""
        categories = (
            [] if self.own is None else self.own.select(by_name(self.prepare.categorical.columns)).null_count().row(0)
        )
        return sum(categories)

    @property
    def blank(self) -> int:
        """How many rows that the party has stay as they are, for none of their cells is known."""
        return 0 if self.own is None or self.whole is None else self.whole.height - len(self.own)

    def _as_own(self, values: NDArray[np.float64]) -> pl.DataFrame:
        return self._lacked(values) if self.own is None else self._filled(values, self.own)

    def _lacked(self, values: NDArray[np.float64]) -> pl.DataFrame:
        """Return rows that the party lacks; of such as it has without a cell, what else its table says of them."""
        ids = [] if self.ids is None else [pl.Series(self.id, self.ids, dtype=pl.String)]
        columns = [*ids, *map(self._likely, self.prepare.table(values).iter_columns())]
        if self.whole is None or self.places is None:
            return pl.DataFrame(columns)
        at = pl.Series(self.places)
        return self.whole.select(pl.all().gather(at.set(at < 0, None))).with_columns(columns)

    def _filled(self, values: NDArray[np.float64], own: pl.DataFrame) -> pl.DataFrame:
        """Return the party's table, columns of numbers with empty cells filled in."""
        assert self.whole is not None
        changed = []
        for k, name in enumerate(self.prepare.numeric.columns):
            if own[name].null_count():
                column = np.full(self.whole.height, np.nan)
                column[self.places] = values[:, k]
                changed.append(self._likely(pl.Series(name, column).fill_nan(None)))
        return self.whole.with_columns(changed)

    def _likely(self, column: pl.Series) -> pl.Series:
        """Return a column; where the party's table has truth values, the likelier one of each cell."""
        truth = self.whole is not None and self.whole.schema.get(column.name) == pl.Boolean
        return column > 0.5 if truth else column


def impute(
    model: Model, tables: Mapping[str, Any], party: str, *,
    samples: int = 0, cells: bool = False, parties: Sequence[str] | None = None, ledger: Ledger | None = None,
) -> Imputation:  # fmt: skip
    """Fill in the block of ``party`` for the rows of ``tables`` that it lacks; only that party gets it.

    Or, with ``cells``, the empty cells of the rows that it has, by its own other cells, too: of columns of numbers, for
    a category's missing cells are a level of their own, and stay empty.  Nobody is told which rows have some.

    A row's numbers are Gaussian to the model: samples of them may leave the range of those that were observed.

    With FALSE-VFL-II it counts that just those rows lack the block, where ``party``'s own table is given, and samples
    are some of ``predict_samples`` different ones.  Without that table nobody knows whether the party has a row.

    Args:
        model: a trained FALSE-VFL.
        tables: by party, a file name or data frame; ``party``'s own may be left out.
        party: who owns the columns.
        samples: S, how many samples of each row's block.
        cells: whether empty cells of rows that ``party`` has are filled in, and not rows that it lacks.
        parties: whose blocks may take part; by default all that have a table here.
        ledger: counts what crosses.

    Raises:
        PredictionError: the model is no generative one, or has no such party; or empty cells are to be filled in of a
            party that has no table here, or may not take part.

    """
    method = _generative(model, "impute")
    if party not in model.roster.blocks:
        raise PredictionError(f"no party {party!r} with columns{nearest(party, model.roster.blocks)}")
    if samples < 0:
        raise PredictionError(f"samples must not be below 0, got {samples}")
    rows, alignment, asked, read = model.aligned(tables, parties)
    if cells and party not in asked:
        raise PredictionError(f"empty cells of {party!r} are filled in by its own other cells, too: give its table, "
                              f"and let it take part")  # fmt: skip
    wanted = (_observed(model, rows)[:, model.roster.blocks.index(party)] == cells).nonzero().squeeze(1)
    batch = Batch(wanted, Seeds(model.seed))

    def part(member: Member, net: Channel) -> Any:
        own = rows[member.state.seat.me]
        return uses.impute(method, net, member.state, own, batch, asked, owner=party, S=samples, lacks=not cells)

    filled, prepare = model.play(part, ledger)[party], model.members[party].prepare
    assert isinstance(filled, uses.Imputed)
    assert prepare is not None
    whole = readers.read(tables[party], party)[1] if party in read else None
    mean, sampled, centers = (prepare.units(each.numpy()) for each in (filled.mean, filled.samples, filled.centers))
    truths = [] if whole is None else whole.select(pl.col(pl.Boolean)).columns
    drawn = prepare.with_levels(sampled, centers, truths, Seeds(model.seed).numpy("levels"))
    order = alignment.as_given(wanted.numpy(), party if cells else model.roster.active)
    mean, sampled, drawn = (each[..., order, :] for each in (mean, sampled, drawn))
    wanted, own = wanted[torch.from_numpy(order)], None
    if cells:
        own, block = prepare.matched(read[party])[alignment.blocks[party][wanted.numpy()]], rows[party].block
        assert block is not None
        known = block.take(wanted)[0].cpu().double().numpy()
        numbers = own.select(by_name(prepare.numeric.columns)).to_numpy()
        known[:, : numbers.shape[1]] = numbers  # NaN where empty
        mean, sampled, drawn = (np.where(np.isnan(known), each, known) for each in (mean, sampled, drawn))
    return Imputation(
        party=party, ids=_ids(alignment, wanted), id=model.members[party].id, prepare=prepare, mean=mean,
        samples=sampled, drawn=drawn, own=own, whole=whole,
        places=alignment.position[party][wanted.numpy()] if party in read else None,
    )  # fmt: skip


def impute_run(
    folder: Path | str, party: str, tables: Mapping[str, Any] | None = None, parties: Sequence[str] | None = None, *,
    samples: int = 0, cells: bool = False, allow_code: Sequence[str] = (),
) -> Imputation:  # fmt: skip
    """Fill in the block of ``party`` as ``impute`` does, by a run's folder and for its own tables or others.

    ``allow_code`` names modules that the run's settings may load: see ``model_for_run``.

    Raises:
        ModelError, PredictionError, TableError: see ``anyparty.errors``.
    """
    model, given = model_for_run(folder, allow_code=allow_code), tables or own_tables(folder, parties)
    return impute(model, given, party, samples=samples, cells=cells, parties=parties)


def log_likelihood(
    model: Model, tables: Mapping[str, Any], parties: Sequence[str] | None = None, *, ledger: Ledger | None = None
) -> pl.DataFrame:
    """Return how likely each row is under the model: columns id, log_likelihood (in nats), parties.

    It is the importance-weighted bound, an estimate from below of log p(x^O) with ``predict_samples`` samples; of
    FALSE-VFL-II that of log p(x^O, m), which also says how likely these parties are to have the row, and the others not
    to.  Rows that other parties have are measured over other columns: compare rows of the same parties.

    Raises:
        PredictionError: the model is no generative one.
    """
    method = _generative(model, "log_likelihood")
    rows, alignment, asked, _ = model.aligned(tables, parties)
    every = torch.arange(alignment.n)

    def part(member: Member, net: Channel) -> Any:
        own = rows[member.state.seat.me]
        return uses.log_likelihood(method, net, member.state, own, Batch(every, Seeds(model.seed)), asked)

    scores = model.play(part, ledger)[model.roster.active]
    order = torch.from_numpy(alignment.as_given(every.numpy(), model.roster.active))
    there = _observed(model, rows) & torch.tensor([name in asked for name in model.roster.blocks])
    distinct, which = patterns(there[order])
    names = [" ".join(members(row, model.roster.blocks)) for row in distinct]
    columns: dict[str, Any] = {} if alignment.ids is None else {"id": _ids(alignment, order)}
    columns["log_likelihood"] = pl.Series(scores[order].numpy()).fill_nan(None)
    return pl.DataFrame(columns | {"parties": [names[p] for p in which.tolist()]})


def log_likelihood_run(
    folder: Path | str, tables: Mapping[str, Any] | None = None, parties: Sequence[str] | None = None, *,
    allow_code: Sequence[str] = (),
) -> pl.DataFrame:  # fmt: skip
    """Return how likely each row is, as ``log_likelihood`` does, by a run's folder.

    ``allow_code`` names modules that the run's settings may load: see ``model_for_run``.

    Raises:
        ModelError, PredictionError, TableError: see ``anyparty.errors``.
    """
    return log_likelihood(model_for_run(folder, allow_code=allow_code), tables or own_tables(folder, parties), parties)


def _generative(model: Model, what: str) -> FalseVFL:
    if not isinstance(model.method, FalseVFL):
        raise PredictionError(f"{what} needs a model of how the columns come about: train false-vfl-1 or false-vfl-2, "
                              f"not {model.method.can.title}")  # fmt: skip
    return model.method


def _observed(model: Model, rows: Mapping[str, Rows]) -> torch.Tensor:
    observed = rows[model.roster.active].observed
    assert observed is not None
    return observed.cpu()


def _ids(alignment: Alignment, rows: torch.Tensor) -> tuple[str, ...] | None:
    return None if alignment.ids is None else tuple(alignment.ids.gather(rows.numpy()).cast(pl.String).to_list())
