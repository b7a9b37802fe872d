"""Impute a party's missing rows or cells with a trained FALSE-VFL, and compute how likely rows are under the model.

filled = impute(model, tables, party="shop", samples=20)     shop's columns, imputed for rows that shop lacks
whole = impute(model, tables, party="shop", cells=True)      shop's own rows, with empty cells imputed
likely = log_likelihood(model, tables)                       one number per row; low means unlike the training rows

FALSE-VFL is a generative model of all parties' columns.  ``methods.false_vfl.generation`` contains the formulas.
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

from anyparty.api.model import Model, with_row_frames
from anyparty.api.runs import model_for_run, own_tables
from anyparty.artifacts.model_files import Member
from anyparty.core.declared_types import checked
from anyparty.core.display import named_ids
from anyparty.core.predictions import id_values, members, patterns
from anyparty.core.seeds import Seeds
from anyparty.core.types import Channel
from anyparty.errors import PredictionError, nearest
from anyparty.methods.false_vfl import generation as uses
from anyparty.methods.false_vfl.false_vfl import FalseVFL
from anyparty.methods.method import Batch
from anyparty.problem.rows import Rows
from anyparty.tables import readers
from anyparty.tables.column_types import KINDS, Kind
from anyparty.tables.data_frames import is_array
from anyparty.tables.ids import id_names
from anyparty.tables.preprocessing import Prepare
from anyparty.tables.table import Table
from anyparty.transport.ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class Imputation:
    """A party's imputed columns, either for rows that the party lacks or for its own rows with empty cells.

    Attributes:
        party: the party that owns the columns; only this party gets the result.
        ids: the ids of the n rows, with the types of the table; ``None`` if the tables have no ids.
        id: the names of the id columns of the party's table.
        id_columns: [n, m], the values of the id columns; ``None`` if the tables have no ids.
        prepare: the preprocessing of the party's table.
        mean: [n, F], the mean of each of the F outputs.  A numeric column is in its own unit.  Each level of a category
            has a number near 0 (absent) or 1 (present).  NaN if no selected party has the row.
        samples: [S, n, F], S samples of the same columns, in the same units as ``mean``.
        drawn: [S, n, F], the samples that ``table(samples=True)`` shows. Each category has one level, and each boolean
            column one boolean, drawn at random. If ``None``, ``table`` shows ``samples``.
        own: [n, d], the columns of the party's table before imputation, null where a cell is empty; ``None`` if the
            party lacks the n rows.
        whole: the party's original table; ``None`` if it was not given.
        places: [n], the index of each row in ``whole``; -1 if ``whole`` does not have the row.
    """

    party: str
    ids: tuple[Any, ...] | None
    id: tuple[str, ...]
    prepare: Prepare
    mean: NDArray[np.float64]
    samples: NDArray[np.float64]
    drawn: NDArray[np.float64] | None = None
    own: pl.DataFrame | None = None
    whole: pl.DataFrame | None = None
    places: NDArray[np.int64] | None = None
    id_columns: pl.DataFrame | None = None

    def __repr__(self) -> str:
        """Return the party and the numbers of rows, columns and samples, but no data of a row."""
        S, n, F = self.samples.shape
        what = f"{n:,} rows that it {'lacks' if self.own is None else 'has'}"
        return f"<Imputation of party {self.party!r}: {what}, {F} numbers a row, {S:,} samples>"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the F outputs: numeric columns, then a name ``column=level`` for each category level."""
        return self.prepare.names

    def table(self, *, samples: bool = False) -> pl.DataFrame:
        """Return the imputed rows in the form of the party's table.

        An imputed category is shown as its likeliest level.  An imputed number is between the smallest and the largest
        number of the column in training, and is rounded if all these numbers are whole.  ``mean`` and ``samples`` have
        the numbers without these changes, and ``filled`` shows which cells were imputed.  The imputed cells of a row
        are empty if no selected party has the row.

        If the party's table was given, the result has the columns of that table in the same order.  The label column
        and the columns that the model does not use are unchanged; they are empty in rows that the table does not have.
        If the table was not given, the result has the columns that the model uses, numeric columns first.

        With ``impute(..., cells=True)`` the result has all rows of the party's table in the same order, including rows
        whose cells are all empty.  The result can replace the table: only empty numeric cells are filled in, and all
        other cells are unchanged.

        If ``samples`` is true, the result has a row for each sample, so S rows for each id. A column ``sample`` after
        the id column numbers them from 1 to S.  Levels of categories, and booleans, are drawn with the probabilities
        that the model gives them.

        Raises:
            PredictionError: ``samples`` is true, but no samples were drawn or the party has a column ``sample``.
        """
        if not samples:
            return self._as_own(self.mean)
        if "sample" in {*self.id, *self.prepare.kinds, *(() if self.whole is None else self.whole.columns)}:
            raise PredictionError(f"party {self.party!r} has a column named 'sample', but the result needs this name "
                                  "for the number of each sample: rename it, or take "
                                  "impute(...).samples in Python")  # fmt: skip
        if not len(self.samples):
            raise PredictionError("there are no samples: request them with impute(..., samples=20)")
        each = [self._as_own(one) for one in (self.samples if self.drawn is None else self.drawn)]
        behind = 1 + max((place for place, name in enumerate(each[0].columns) if name in self.id), default=-1)
        return pl.concat(one.insert_column(behind, pl.repeat(s, one.height, eager=True).alias("sample"))
                         for s, one in enumerate(each, 1))  # fmt: skip

    def filled(self) -> pl.DataFrame:
        """Return a frame with the rows and columns of ``table()``: the ids, and True in each cell that was imputed."""
        table = self.table()
        imputed = {name: np.zeros(table.height, dtype=np.bool_) for name in table.columns if name not in self.id}
        if self.own is None:
            imputed |= {name: table[name].is_not_null().to_numpy() for name in self.prepare.kinds if name in imputed}
        else:
            for name, gaps in self._gaps(self.mean, self.own).items():
                imputed[name][self.places] = gaps
        return table.with_columns(pl.Series(name, mask) for name, mask in imputed.items())

    def frame(self) -> pl.DataFrame:
        """Return the id columns and the F means, one row for each id.

        The means of a row are null if no selected party has the row.
        """
        filled = pl.from_numpy(self.mean, schema=list(self.columns)).fill_nan(None)
        if self.id_columns is None:
            return filled
        return pl.DataFrame(list(named_ids(self.id_columns).values())).hstack(filled)

    @property
    def unknown(self) -> int:
        """The number of rows that stay empty, because no selected party has them."""
        return int(np.isnan(self.mean).all(axis=1).sum())

    @property
    def gaps(self) -> int:
        """The number of empty cells that were imputed in rows that the party has."""
        return self._empty("numeric")

    @property
    def left(self) -> int:
        """The number of empty cells of categories, dates and texts in rows that the party has; they stay empty."""
        return sum(self._empty(kind) for kind in KINDS if kind != "numeric")

    def _empty(self, kind: Kind) -> int:
        """Return the number of empty cells in columns of the type ``kind``."""
        names = [name for name, of in self.prepare.kinds.items() if of == kind]
        return 0 if self.own is None else sum(self.own.select(by_name(names)).null_count().row(0))

    @property
    def blank(self) -> int:
        """The number of rows of the party that are unchanged, because all their cells are empty."""
        return 0 if self.own is None or self.whole is None else self.whole.height - len(self.own)

    def _as_own(self, values: NDArray[np.float64]) -> pl.DataFrame:
        F = len(self.prepare.numeric.columns)
        near = np.hstack([self.prepare.numeric.as_in_training(values[:, :F]), values[:, F:]])
        return self._lacked(near) if self.own is None else self._filled(near, self.own)

    def _lacked(self, values: NDArray[np.float64]) -> pl.DataFrame:
        ids = [] if self.id_columns is None else self.id_columns.get_columns()
        columns = [
            *(column.alias(name) for name, column in zip(self.id, ids, strict=False)),
            *map(self._typed, self.prepare.table(values).iter_columns()),
        ]
        if self.whole is None or self.places is None:
            return pl.DataFrame(columns)
        at = pl.Series(self.places)
        return self.whole.select(pl.all().gather(at.set(at < 0, None))).with_columns(columns)

    def _filled(self, values: NDArray[np.float64], own: pl.DataFrame) -> pl.DataFrame:
        assert self.whole is not None
        changed = []
        for name, gaps in self._gaps(values, own).items():
            column = np.full(self.whole.height, np.nan)
            column[self.places] = np.where(gaps, values[:, self.prepare.numeric.columns.index(name)], own[name])
            changed.append(self._typed(pl.Series(name, column).fill_nan(None)))
        return self.whole.with_columns(changed)

    def _gaps(self, values: NDArray[np.float64], own: pl.DataFrame) -> dict[str, NDArray[np.bool_]]:
        """Return, for each numeric column with empty cells, the mask [n] of empty cells that were imputed."""
        numbers = [name for name, kind in self.prepare.kinds.items() if kind == "numeric" and own[name].null_count()]
        at = self.prepare.numeric.columns.index
        return {name: own[name].is_null().to_numpy() & ~np.isnan(values[:, at(name)]) for name in numbers}

    def _typed(self, column: pl.Series) -> pl.Series:
        """Convert an imputed column to the type that it has in the party's table, if all its cells have that type.

        Whole numbers become integers if the table is unknown, or if it is a text file.
        """
        dtype = None if self.whole is None else self.whole.schema.get(column.name)
        if dtype == pl.Boolean and column.dtype.is_numeric():
            return column > 0.5
        if column.name in self.prepare.numeric.whole and (dtype is None or not dtype.is_float()):
            kept = [each for each in (dtype, pl.Int64) if each is not None and each.is_integer()]
        else:
            kept = [dtype] if dtype is not None and column.dtype == pl.String and dtype.is_integer() else []
        for each in kept:
            cast = column.cast(each, strict=False)
            same = column.dtype == pl.String or (cast == column).all()
            if same and cast.null_count() == column.null_count():
                return cast
        return column


@checked(PredictionError, by_hand=("tables",))
def impute(
    model: Model, tables: Mapping[str, Any], party: str, *,
    samples: int = 0, cells: bool = False, parties: Sequence[str] | None = None, observed: Any = None,
    ledger: Ledger | None = None,
) -> Imputation:  # fmt: skip
    """Impute the columns of ``party`` for the rows of ``tables`` that this party lacks.

    Only the party that owns the columns gets the result.

    If ``cells`` is true, the function instead imputes empty cells of the rows that the party has. It then also uses
    those cells of the same row that are not empty.  Only numeric cells are imputed.  Categories, dates and texts stay
    empty, and ``Imputation.left`` counts them.  No other party learns which rows have empty cells.

    The model's distribution of a row's numbers is Gaussian, so ``Imputation.samples`` can be outside the observed
    range.  ``Imputation.table`` moves numbers into the range of training, and rounds columns of whole numbers.

    FALSE-VFL-II is the variant that also models which parties have a row.  If the table of ``party`` is given, this
    variant uses the fact that ``party`` lacks the imputed rows.  The samples of a row are then drawn, with replacement,
    from L generated rows, where L is the method's parameter ``predict_samples``.  Without the table of ``party``, no
    other party knows whether ``party`` has a row.

    Args:
        model: a trained FALSE-VFL.
        tables: for each party, a file name, a data frame or an array, as in ``Model.predict``; the table of ``party``
            is optional.
        party: the party that owns the columns.
        samples: S, the number of samples of each row.
        cells: whether to impute empty cells of rows that ``party`` has, instead of rows that it lacks.
        parties: the parties whose columns may be used; by default all parties with a table.
        observed: if ``tables`` are arrays, the rows that each party has, as in ``Model.predict``.
        ledger: a ledger that counts the messages and bytes; by default nothing is counted.

    Returns:
        The means [n, F] and the samples [S, n, F] of the F prepared columns, with the ids of the n rows.

    Raises:
        PredictionError: the model is not a FALSE-VFL, the party does not exist or has no columns, ``samples`` is
            negative, or ``cells`` is true although ``party`` has no table or is not in ``parties``.
        TableError: a table lacks a column that the model was trained on.
    """
    method = _generative(model, "impute")
    if party not in model.roster.blocks:
        raise PredictionError(f"no party {party!r} with columns{nearest(party, model.roster.blocks)}")
    if samples < 0:
        raise PredictionError(f"samples must not be below 0, got {samples}")
    rows, alignment, asked, read = model.aligned(tables, parties, observed=observed, emptier=False)
    tables = with_row_frames(tables, model.members)
    if cells and party not in asked:
        raise PredictionError(f"empty cells of {party!r} are imputed from its own other cells, too: give its table, "
                              "and do not leave it out of parties")  # fmt: skip
    wanted = (_observed(model, rows)[:, model.roster.blocks.index(party)] == cells).nonzero().squeeze(1)
    batch = Batch(wanted, Seeds(model.seed))

    def part(member: Member, net: Channel) -> Any:
        own = rows[member.state.seat.me]
        return uses.impute(method, net, member.state, own, batch, asked, owner=party, S=samples, lacks=not cells)

    filled, prepare = model.play(part, ledger)[party], model.members[party].prepare
    assert isinstance(filled, uses.Imputed)
    assert prepare is not None
    whole = _whole(tables[party], read[party], model.members[party]) if party in read else None
    mean, sampled, centers = (prepare.units(each.numpy()) for each in (filled.mean, filled.samples, filled.centers))
    truths = [] if whole is None else whole.select(pl.col(pl.Boolean)).columns
    drawn = prepare.with_levels(sampled, centers, truths, Seeds(model.seed).numpy("levels"))
    order = alignment.as_given(wanted.numpy(), party if cells else model.roster.active)
    mean, sampled, drawn = (each[..., order, :] for each in (mean, sampled, drawn))
    wanted, own = wanted[torch.from_numpy(order)], None
    if cells:
        whole_rows = alignment.blocks[party][wanted.numpy()]
        own, block = read[party].columns[whole_rows].select(list(prepare.kinds)), rows[party].block
        assert block is not None
        known = block.take(wanted)[0].cpu().double().numpy()
        numbers = prepare.matched(read[party])[whole_rows].select(by_name(prepare.numeric.columns)).to_numpy()
        known[:, : numbers.shape[1]] = numbers  # NaN for empty cells
        mean, sampled, drawn = (np.where(np.isnan(known), each, known) for each in (mean, sampled, drawn))
    identities = alignment.identities(wanted.numpy())
    return Imputation(
        party=party, ids=None if identities is None else id_values(identities), id_columns=identities,
        id=id_names(model.members[party].id), prepare=prepare, mean=mean,
        samples=sampled, drawn=drawn, own=own, whole=whole,
        places=alignment.position[party][wanted.numpy()] if party in read else None,
    )  # fmt: skip


@checked(PredictionError, by_hand=("tables",))
def impute_run(
    folder: Path | str, party: str, tables: Mapping[str, Any] | None = None, parties: Sequence[str] | None = None, *,
    samples: int = 0, cells: bool = False, allow_code: Sequence[str] = (),
) -> Imputation:  # fmt: skip
    """Impute the columns of ``party`` with the model in a run's folder, as ``impute`` does with a model in memory.

    Args:
        folder: the run's folder.
        party: the party that owns the columns.
        tables: for each party, a file name or data frame; by default the tables that the run was trained on.
        parties: the parties whose columns may be used; by default all parties with a table.
        samples: S, the number of samples of each row.
        cells: whether to impute empty cells of rows that ``party`` has, instead of rows that it lacks.
        allow_code: modules that the run's settings may load, such as ``("my_methods",)``.

    Raises:
        ModelError: the run does not exist or is unfinished, or its files cannot be used.
        PredictionError: the model is not a FALSE-VFL, or an argument cannot be used.
        TableError: a table lacks a column that the model was trained on.
    """
    model, given = model_for_run(folder, allow_code=allow_code), tables or own_tables(folder, parties)
    return impute(model, given, party, samples=samples, cells=cells, parties=parties)


@checked(PredictionError, by_hand=("tables",))
def log_likelihood(
    model: Model, tables: Mapping[str, Any], parties: Sequence[str] | None = None, *, observed: Any = None,
    ledger: Ledger | None = None,
) -> pl.DataFrame:  # fmt: skip
    """Return the log-likelihood of each row under the model, in the columns id, log_likelihood (in nats), parties.

    The value is the importance-weighted lower bound of log p(x^O), where x^O are the row's cells at the selected
    parties.  The number of samples is the method's parameter ``predict_samples``.  For FALSE-VFL-II the value is the
    bound of log p(x^O, m), where m is the set of parties that have the row.  Compare only rows that the same parties
    have, because the values of different sets of parties are about different columns.

    Args:
        model: a trained FALSE-VFL.
        tables: for each party, a file name, a data frame or an array, as in ``Model.predict``.
        parties: the parties whose columns may be used; by default all parties with a table.
        observed: if ``tables`` are arrays, the rows that each party has, as in ``Model.predict``.
        ledger: a ledger that counts the messages and bytes; by default nothing is counted.

    Raises:
        PredictionError: the model is not a FALSE-VFL, a party is unknown, or no party can be used.
        TableError: a table lacks a column that the model was trained on.
    """
    method = _generative(model, "log_likelihood")
    rows, alignment, asked, _ = model.aligned(tables, parties, observed=observed)
    every = torch.arange(alignment.n)

    def part(member: Member, net: Channel) -> Any:
        own = rows[member.state.seat.me]
        return uses.log_likelihood(method, net, member.state, own, Batch(every, Seeds(model.seed)), asked)

    scores = model.play(part, ledger)[model.roster.active]
    order = torch.from_numpy(alignment.as_given(every.numpy(), model.roster.active))
    there = _observed(model, rows) & torch.tensor([name in asked for name in model.roster.blocks])
    distinct, which = patterns(there[order])
    names = [" ".join(members(row, model.roster.blocks)) for row in distinct]
    identities = alignment.identities(order.numpy())
    columns: dict[str, Any] = {} if identities is None else dict(named_ids(identities))
    columns["log_likelihood"] = pl.Series(scores[order].numpy()).fill_nan(None)
    return pl.DataFrame(columns | {"parties": [names[p] for p in which.tolist()]})


@checked(PredictionError, by_hand=("tables",))
def log_likelihood_run(
    folder: Path | str, tables: Mapping[str, Any] | None = None, parties: Sequence[str] | None = None, *,
    allow_code: Sequence[str] = (),
) -> pl.DataFrame:  # fmt: skip
    """Return the log-likelihood of each row under the model in a run's folder, in the form of ``log_likelihood``.

    Args:
        folder: the run's folder.
        tables: for each party, a file name or data frame; by default the tables that the run was trained on.
        parties: the parties whose columns may be used; by default all parties with a table.
        allow_code: modules that the run's settings may load, such as ``("my_methods",)``.

    Raises:
        ModelError: the run does not exist or is unfinished, or its files cannot be used.
        PredictionError: the model is not a FALSE-VFL, a party is unknown, or no party can be used.
        TableError: a table lacks a column that the model was trained on.
    """
    return log_likelihood(model_for_run(folder, allow_code=allow_code), tables or own_tables(folder, parties), parties)


def _generative(model: Model, what: str) -> FalseVFL:
    if not isinstance(model.method, FalseVFL):
        raise PredictionError(f"{what} needs a generative model of the columns: train false-vfl-1 or false-vfl-2, "
                              f"not {model.method.can.title}")  # fmt: skip
    return model.method


def _observed(model: Model, rows: Mapping[str, Rows]) -> torch.Tensor:
    observed = rows[model.roster.active].observed
    assert observed is not None
    return observed.cpu()


def _whole(source: Any, table: Table, member: Member) -> pl.DataFrame:
    """Return all columns of the table's source, for the rows that ``table`` contains."""
    if is_array(source):
        assert table.id_columns is not None
        return table.id_columns.hstack(table.columns)
    whole = readers.read(source, table.party, member.file).cells
    return whole if table.rows is None else whole[table.rows]
