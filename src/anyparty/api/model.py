"""A trained model: predict from the parties that are present, evaluate, save and load.

``anyparty.artifacts.model_files`` describes the files of a saved model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import numpy as np
import polars as pl
import torch

from anyparty import metrics
from anyparty.alignment.alignment import Alignment, align
from anyparty.alignment.overlap import otherwise
from anyparty.api.arguments import no_test_rows, place, whom_to_ask
from anyparty.api.embeddings import embeddings
from anyparty.api.verdict import BaselineComparison
from anyparty.artifacts.model_files import Member, ModelSummary, load_members, save_model
from anyparty.core.declared_types import checked
from anyparty.core.display import html_of, shown_in_notebooks
from anyparty.core.predictions import Predictions, refuse_without_labels
from anyparty.core.seeds import Seeds, usual_torch
from anyparty.core.types import Channel, Roster, Task
from anyparty.errors import ConfigError, ModelError, PredictionError, TableError, remark, some
from anyparty.methods.method import Method
from anyparty.metrics.scores import LabelledPredictions
from anyparty.metrics.worth import Worth
from anyparty.networks.encoders import Factory
from anyparty.problem.rows import Rows, assemble
from anyparty.problem.splits import TEST, Part
from anyparty.tables import target
from anyparty.tables.data_frames import is_array, tables_of_arrays
from anyparty.tables.ids import id_names
from anyparty.tables.preprocessing import Features
from anyparty.tables.table import Table, from_array, of_each, read_table, row_number_notes
from anyparty.training.loop import device_of, predict_rows
from anyparty.transport import memory
from anyparty.transport.contract import ContractChannel
from anyparty.transport.ledger import Ledger

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Unseen = Literal["refuse", "wrong"]


class AlignedTables(NamedTuple):
    """The input tables of a model, after they are read and aligned.

    Attributes:
        rows: for each party, its prepared rows.
        alignment: the index of each aligned row in each party's table.
        asked: the parties whose columns a prediction may use.
        tables: for each party, its table as it was read, before preprocessing.
    """

    rows: dict[str, Rows]
    alignment: Alignment
    asked: list[str]
    tables: dict[str, Table]


@dataclass(kw_only=True)
class Model:
    """The trained networks of all parties, with the method that uses them.

    Attributes:
        method: the trained method, without its schedule.
        named: the method's name and all its parameters, as they are saved; ``None`` for a user-defined method.
        roster: the parties in their fixed order, and which of them is active.
        task: the prediction task: classification with its classes, or regression.
        members: for each party, its networks, its preprocessing and the way its table is read.
        seed: the root seed of the training run.
        history: one record per epoch, with the loss and the validation scores; empty in a loaded model.
        best_epoch: the place in ``history``, counted from 1, of the epoch whose weights were kept; 0 if no epoch was
            chosen by validation scores.
        ledger: the numbers of messages and bytes that the parties sent in training.
        costs: the rounds and bytes of the training messages: "sent" has the counted values, and "published" the values
            that the formulas of the APC-VFL paper give.
        held_out: the data for ``evaluate()`` without tables: each party's rows, their alignment, and the indices [n] of
            the test rows among the aligned rows; ``None`` in a loaded model.
        taught: the indices [n] of the labelled training rows among the aligned rows of ``held_out``; ``None`` in a
            loaded model.
        comparison: the rows of the training run with their use, for the comparison with boosted trees; ``None`` in a
            loaded model.
        own: the description of a user-defined method, as returned by ``described``; ``None`` for a built-in method.
    """

    method: Method
    named: dict[str, Any] | None
    roster: Roster
    task: Task
    members: dict[str, Member] = field(repr=False)
    seed: int = 0
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)
    best_epoch: int = 0
    ledger: Ledger = field(default_factory=Ledger, repr=False)
    costs: dict[str, Any] = field(default_factory=dict, repr=False)
    held_out: tuple[dict[str, Rows], Alignment, torch.Tensor] | None = field(default=None, repr=False)
    taught: torch.Tensor | None = field(default=None, repr=False)
    comparison: BaselineComparison | None = field(default=None, repr=False)
    own: dict[str, Any] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, summary: ModelSummary, method: Method, members: dict[str, Member], **trained: Any) -> Model:
        """Build a model from its ``summary``, its method and each party's networks.

        ``trained`` has the fields that only a trained model has, and a loaded model lacks: history, ledger and costs.
        """
        assert summary.task is not None
        return cls(
            method=method, named=summary.method, roster=summary.roster, task=summary.task, members=members,
            seed=summary.seed,
            best_epoch=summary.best_epoch, own=summary.own, **trained,
        )  # fmt: skip

    def __repr__(self) -> str:
        """Return the method, task, parties and number of epochs, but no weights, ids or classes."""
        counts = {"epochs": len(self.history), "test rows": self.test_rows}  # both are 0 in a loaded model
        of = "".join(f"; {count:,} {what}" for what, count in counts.items() if count)
        parties, lead = ", ".join(self.roster.names), self.roster.active
        return f"<Model of {self.method.can.title} for {self.task.kind}, parties {parties}; {lead!r} leads{of}>"

    def _repr_html_(self) -> str:
        """Return the model's description and its scores on the test rows as HTML, for notebooks."""
        scores = [self.evaluate().render()] if self.test_rows and self.task.outputs else []
        return html_of(repr(self), *scores)

    def plot(self) -> Figure:
        """Draw the learning curves: the loss and the validation scores by epoch, with the chosen epoch marked.

        Raises:
            ConfigError: the model was loaded from its files, which do not contain the history.
        """
        from anyparty.metrics.plots import draw_training  # noqa: PLC0415 - matplotlib is slow

        if not self.history:
            raise ConfigError("this model has no history of training, because it was loaded; plot its run: "
                              'anyparty.runs.record("RUN").plot()')  # fmt: skip
        return shown_in_notebooks(draw_training(self.history, self.best_epoch))

    @property
    def about(self) -> ModelSummary:
        """The facts that all parties know about the model, as saved in model.json: method, roster, task, seed."""
        return ModelSummary(
            method=self.named,
            roster=self.roster,
            task=self.task,
            seed=self.seed,
            best_epoch=self.best_epoch,
            parts={},
            own=self.own,
        )

    @property
    def test_rows(self) -> int:
        """The number of test rows of the training run that the model holds in memory."""
        return 0 if self.held_out is None else len(self.held_out[2])

    # Prediction

    @usual_torch()
    @checked(PredictionError, by_hand=("tables",))
    def predict(
        self, tables: Mapping[str, Any] | None = None, parties: Sequence[str] | None = None, *,
        observed: Any = None, ledger: Ledger | None = None,
    ) -> Predictions:  # fmt: skip
        """Predict every row of ``tables``; without tables, predict the test rows of the training run.

        Each row is predicted from the columns of the selected parties that have the row.  Rows are in the
        order of the active party's table.  Rows that the active party lacks follow, in the order of the passive
        parties' tables.

        Args:
            tables: for each party, a file name or data frame, or a dict with the cells of one row, in which the id may
                be left out at all parties.  A party without a table takes no part.  Arrays [n, ...]
                are also accepted, as in ``Federation.from_arrays``: rows have the ids 0, 1, ..., and a party lacks a
                row whose numbers are all NaN.
            parties: the parties whose columns may be used; by default all parties with a table.
            observed: if ``tables`` are arrays, the rows that each party has: [n, K] bool in the order of ``tables``, or
                a mapping or data frame with a mask [n] for each party.  By default each party has every row that is not
                all NaN.
            ledger: a ledger that counts the messages and bytes of this prediction; by default nothing is counted.

        Returns:
            For each row the scores [C], the id and the parties that took part.  The scores are class probabilities; in
            a regression, the predicted number in the unit of the label.

        Raises:
            PredictionError: a party is unknown, no party can be used, or there are neither tables nor test rows.
            TableError: a table lacks a column that the model was trained on.
        """
        refuse_without_labels(self.task)
        if tables is None:
            rows, alignment, wanted, asked = self._at_hand(parties, observed)
        else:
            asked = whom_to_ask(self.roster, tables, parties)
            rows, alignment = self._rows(list(self._read(tables, observed=observed).values()))
            wanted = torch.arange(alignment.n)
        order = alignment.as_given(wanted.numpy(), self.roster.active)
        answered = self._answer(rows, wanted, asked, ledger).take(order.tolist())
        identities = alignment.identities(wanted.numpy()[order])
        return replace(answered, id_columns=identities)

    def predict_proba(self, *_: Any, **__: Any) -> NoReturn:
        """Raise an error that recommends ``predict(tables, parties).probabilities()``, whose result has the ids."""
        raise PredictionError("Model.predict_proba is now called predict(tables, parties).probabilities(): a frame "
                              "with the rows' ids, because rows have the order of the tables; for an array use "
                              "anyparty.sklearn")  # fmt: skip

    @usual_torch()
    @checked(PredictionError, by_hand=("tables",))
    def evaluate(
        self, tables: Mapping[str, Any] | None = None, parties: Sequence[str] | None = None, *,
        unseen: Unseen = "refuse", y: Any = None, observed: Any = None,
    ) -> metrics.Evaluation:  # fmt: skip
        """Compute the metrics of the labelled rows of ``tables``; without tables, of the test rows of the training run.

        A remark counts the scored rows that the model was trained on: rows with the id and the label of a training row,
        and with its cells at the parties that have the row.  A loaded model does not know its training rows.

        Args:
            tables: for each party, a file name or data frame; the active party's table has the labels.  All labelled
                rows are scored, also training rows.
            parties: the parties whose columns may be used; by default all parties with a table.
            unseen: the reaction to a label of a class that training did not see.  "refuse" raises an error, because the
                label may be a mistake.  "wrong" counts the prediction of the row as wrong, and lists the class in
                ``Evaluation.unseen``.
            y: the labels [n], if ``tables`` are arrays.
            observed: if ``tables`` are arrays, the rows that each party has: [n, K] bool in the order of ``tables``, or
                a mapping or data frame with a mask [n] for each party.  By default each party has every row that is not
                all NaN.

        Returns:
            The metrics of all labelled rows, and metrics grouped by the number and by the set of present parties.

        Raises:
            PredictionError: there are no labelled rows or no tables, or ``unseen`` is neither "refuse" nor "wrong".
            TableError: the labels have a class that training did not see, and ``unseen`` is "refuse".
        """
        refuse_without_labels(self.task)
        strange: tuple[str, ...] = ()
        if tables is None:
            rows, alignment, wanted, asked = self._at_hand(parties, observed)
        else:
            asked = whom_to_ask(self.roster, tables, parties)
            if self.roster.active not in tables:
                raise PredictionError(f"labels are at {self.roster.active!r}: give its table too")
            read = self._read(tables, labels=self.roster.active, y=y, observed=observed)
            if unseen == "wrong" and (label := read[self.roster.active].label) is not None:
                strange = target.unseen(label, self.task)
            rows, alignment = self._rows(list(read.values()), strange)
            wanted = torch.arange(alignment.n)
        lead = rows[self.roster.active]
        assert lead.y is not None
        assert lead.labeled is not None
        assert lead.observed is not None
        wanted = wanted[lead.labeled[wanted].cpu()]
        if not len(wanted):
            raise PredictionError(
                "there is no labelled row to score; train with a greater train.test, or give tables with labels"
            )
        if tables is not None and (seen := self._training_rows(rows, alignment, wanted)):
            remark(f"the model was trained on {seen:,} of the {len(wanted):,} scored rows; score other rows for an "
                   "unbiased result")  # fmt: skip
        answered = self._answer(rows, wanted, asked)
        y, observed = lead.y.cpu()[wanted], lead.observed.cpu()[wanted]

        @usual_torch()
        def compare(whole: LabelledPredictions) -> Worth | None:
            assert self.comparison is not None
            return self.comparison.worth(rows, wanted, asked, whole, lambda some: self._answer(rows, wanted, some))

        return metrics.evaluate(answered, y, None, observed, Seeds(self.seed), unseen=strange,
                                compare=None if self.comparison is None else compare)  # fmt: skip

    def hold_out(self, rows: dict[str, Rows], alignment: Alignment, use: Part) -> None:
        """Keep the rows of the training run in memory: each party's rows, their alignment, and the use [N] of each."""
        self.held_out = (rows, alignment, torch.from_numpy(np.flatnonzero(use == TEST)))
        self.comparison = BaselineComparison.of(rows, use, self.roster, self.task, self.seed)
        self.taught = self.comparison.training

    @usual_torch()
    @checked(PredictionError, by_hand=("tables",))
    def aligned(
        self, tables: Mapping[str, Any], parties: Sequence[str] | None = None, *, observed: Any = None,
        emptier: bool = True,
    ) -> AlignedTables:  # fmt: skip
        """Read and align ``tables``, and prepare each party's rows as in training.

        The aligned rows are in the order of ``predict(tables)``, and ``alignment.ids`` has their ids as text.  The
        arguments are those of ``predict``; if ``emptier`` is false, no remark reports columns that are emptier than in
        training.

        Raises:
            PredictionError: a party is unknown, or no party can be used.
            TableError: a table lacks a column that the model was trained on.
        """
        asked = whom_to_ask(self.roster, tables, parties)
        read = self._read(tables, observed=observed)
        rows, alignment = self._rows(list(read.values()), as_given=True, emptier=emptier)
        return AlignedTables(rows, alignment, asked, read)

    @checked(PredictionError, by_hand=("tables",))
    def embed(
        self, tables: Mapping[str, Any] | None = None, parties: Sequence[str] | None = None, *, observed: Any = None
    ) -> dict[str, pl.DataFrame]:
        """Compute each party's embeddings of its rows in ``tables``; without tables, of the training run's test rows.

        Args:
            tables: for each party, a file name, a data frame or an array, as in ``predict``.
            parties: the parties whose rows are embedded; by default all parties with a table.
            observed: if ``tables`` are arrays, the rows that each party has: [n, K] bool in the order of ``tables``, or
                a mapping or data frame with a mask [n] for each party.  By default each party has every row that is not
                all NaN.

        Returns:
            For each party, a frame with the columns id and h0, h1, ... The rows have the order of the party's table.  A
            row whose cells are all empty has no embedding: its numbers are null.  A party without embeddings is left
            out.

        Raises:
            PredictionError: the method computes no embeddings, or it computes none at a party in ``parties``; a party
                is unknown, or there are neither tables nor test rows.
            TableError: a table lacks a column that the model was trained on.
        """
        if tables is None:
            rows, alignment, wanted, asked = self._at_hand(parties, observed)
        else:
            rows, alignment, asked, _ = self.aligned(tables, parties, observed=observed)
            wanted = torch.arange(alignment.n)
        found = {name: embeddings(self.method, self.members[name], rows[name], alignment, wanted) for name in asked}
        lacking = [name for name, frame in found.items() if frame is None]
        if lacking and (parties is not None or len(lacking) == len(found)):
            raise PredictionError(f"{self.method.can.title} computes no embeddings at party {some(lacking)}")
        return {name: frame for name, frame in found.items() if frame is not None}

    @usual_torch()
    def play(self, part: Callable[[Member, Channel], Any], ledger: Ledger | None = None) -> dict[str, Any]:
        """Run the coroutine function ``part`` concurrently for all parties in this process; return results by party.

        ``part`` takes a party's ``Member`` and the party's channel.  ``ledger`` counts the messages, if it is given.
        """
        wrap = partial(
            ContractChannel, roster=self.roster, declared=self.method.can.messages, bounds=None, ledger=ledger
        )
        return memory.play({name: partial(part, self.members[name]) for name in self.roster.names}, wrap)

    def _at_hand(
        self, parties: Sequence[str] | None, observed: Any
    ) -> tuple[dict[str, Rows], Alignment, torch.Tensor, list[str]]:
        """Return the training run's rows for each party, their alignment, the indices of test rows, and usable parties.

        Raises:
            PredictionError: the model was loaded and has no rows in memory; a party is unknown or has no columns; or
                ``observed`` is given, which is for arrays.
        """
        if observed is not None:
            raise PredictionError("observed: masks are for arrays; give tables, too")
        if self.held_out is None:
            raise no_test_rows(self.named is not None, (member.state.seat for member in self.members.values()))
        return *self.held_out, whom_to_ask(self.roster, dict.fromkeys(self.roster.blocks), parties)

    def _training_rows(self, rows: Mapping[str, Rows], alignment: Alignment, wanted: torch.Tensor) -> int:
        """Count those aligned rows ``wanted`` [n] that are labelled training rows; 0 if training is not in memory.

        The ids and the labels must be equal, and the cells at every party that has the row both here and in training.
        """
        if self.held_out is None or self.taught is None:
            return 0
        trained, known, _ = self.held_out
        assert alignment.ids is not None  # the ids are known in one process
        assert known.ids is not None
        now = pl.DataFrame({"id": alignment.ids[wanted.numpy()], "now": wanted.numpy()})
        then = pl.DataFrame({"id": known.ids[self.taught.numpy()], "then": self.taught.numpy()})
        both = now.join(then, on="id")
        here, there = both["now"].to_torch(), both["then"].to_torch()

        def values(own: Mapping[str, Rows], places: torch.Tensor) -> torch.Tensor:
            y = own[self.roster.active].y
            assert y is not None
            return y.cpu()[places]

        equal, compared = values(rows, here) == values(trained, there), torch.zeros(len(both), dtype=torch.bool)
        for name in self.roster.blocks:
            block, before = rows[name].block, trained[name].block
            if block is not None and before is not None:
                at, was = block.position.cpu()[here], before.position.cpu()[there]
                held = (at >= 0) & (was >= 0)
                same = block.x[at[held]].cpu() == before.x[was[held]].cpu()
                equal[held] &= same.flatten(1).all(dim=1)
                compared |= held
        return int((equal & compared).sum())

    def _read(
        self, tables: Mapping[str, Any], *, labels: str | None = None, y: Any = None, observed: Any = None
    ) -> dict[str, Table]:
        """Read tables or arrays with the same settings as in training.

        ``labels`` is the party whose labels are read. If the tables are arrays, ``y`` has the labels, and ``observed``
        the rows that each party has.
        """
        tables = with_row_frames(tables, self.members)
        arrays = any(map(is_array, tables.values()))
        if y is not None and not arrays:
            raise TableError(f"y: labels belong into the table of {self.roster.active!r}; y is for arrays")
        if observed is not None and not arrays:
            raise TableError("observed: masks are for arrays; leave rows that a party lacks out of its table")
        if arrays:
            active = self.roster.active if self.roster.active in tables else None
            frames = tables_of_arrays(tables, y, observed=observed, active=active, new=True)
            tables = {name: frame for name, frame in frames.items() if len(frame)}

        def one(name: str) -> Table:
            member = self.members[name]
            expect, label = member.prepare.kinds if member.prepare else {}, member.label if name == labels else None
            return read_table(tables[name], party=name, label=label, expect=expect, **member.reading)

        read = of_each([name for name in self.roster.names if name in tables], one)
        if arrays:
            read = {name: from_array(table) for name, table in read.items()}
        for note in (*(note for table in read.values() for note in table.notes), *row_number_notes([*read.values()])):
            remark(note)
        return read

    def _rows(
        self,
        tables: Sequence[Table],
        unseen: Sequence[str] = (),
        *,
        as_given: bool = False,
        emptier: bool = True,
    ) -> tuple[dict[str, Rows], Alignment]:
        """Prepare and align the tables' rows, sorted by id or, if ``as_given`` is true, as in the active party's table.

        ``unseen`` lists the classes among the labels that did not occur in training. ``emptier`` is as in ``aligned``.
        """
        task, lead = replace(self.task, classes=(*self.task.classes, *unseen)), self.roster.active
        alignment = align(tables, apart=True, first=lead if lead in {table.party for table in tables} else None)
        if as_given:
            alignment = alignment.take(alignment.as_given(np.arange(alignment.n), self.roster.active))
        held = [table.party for table in tables if table.columns.width]
        for note in otherwise(alignment, held) if len(held) > 1 else ():
            remark(note)
        features = {}
        for table in tables:
            prepare = self.members[table.party].prepare
            features[table.party] = prepare.features(table, emptier=emptier) if prepare else Features.none(len(table))
        known = {
            table.party: target.encode(table.label, task, table.party) for table in tables if table.label is not None
        }
        device = self.members[self.roster.active].state.seat.device
        return assemble(alignment, self.roster, features, known, device), alignment

    def _answer(
        self, rows: dict[str, Rows], wanted: torch.Tensor, asked: list[str], ledger: Ledger | None = None
    ) -> Predictions:
        """Return the predictions for the aligned rows ``wanted`` [n] from the columns of the parties in ``asked``."""

        def part(member: Member, net: Channel) -> Any:
            own = rows[member.state.seat.me]
            return predict_rows(self.method, net, member.state, own, wanted, asked, Seeds(self.seed))

        answered = self.play(part, ledger)[self.roster.active]
        assert isinstance(answered, Predictions)
        return answered

    # Saving and loading

    @usual_torch()
    @checked(by_hand=("folder",))
    def save(self, folder: Path | str, *, replace: bool = False) -> None:
        """Write the model: one folder per party, safetensors and JSON, without pickle.

        Args:
            folder: the model's folder, which may already hold the same model.
            replace: whether the folder may hold another model or a run, which this model then replaces.  The record of
                such a run is deleted.

        Raises:
            ConfigError: a run is in progress in the folder.
            ModelError: the folder holds another model or a run without this model, and ``replace`` is false.
            StorageError: the model cannot be written, or the folder is a file.
        """
        save_model(place(folder, "folder"), self.about, self.members, replace=replace)

    @classmethod
    @usual_torch()
    @checked(by_hand=("folder", "method", "encoders"))
    def load(
        cls,
        folder: Path | str,
        *,
        encoders: Mapping[str, Factory] | None = None,
        method: Method | None = None,
        device: str = "cpu",
    ) -> Model:
        """Load a saved model.

        Args:
            folder: the folder of the saved model, or of the run.
            encoders: for each party with a user-defined encoder, the function of (inputs, outputs) that makes it.
            method: the method that was trained, if it is user-defined.
            device: the PyTorch device for the networks, such as "cpu" or "cuda".

        Raises:
            ConfigError: this machine does not have the device.
            ModelError: a file does not exist, is incomplete, was not written by anyparty, has a format that cannot be
                read, or belongs to another run; an encoder is given for an unknown party; or a user-defined method or
                encoder is not given or differs from the trained one.

        """
        folder = place(folder, "folder")
        summary = ModelSummary.load(folder / "model.json")
        if summary.task is None:
            raise ModelError(
                f"{folder}: this is only a passive party's part of the model; predict at {summary.roster.active!r}"
            )
        made = summary.make(folder, method)
        members = load_members(folder, summary, made, encoders or {}, device_of(device, "device"))
        return cls.of(summary, made, members)


def with_row_frames(tables: Mapping[str, Any], members: Mapping[str, Member]) -> dict[str, Any]:
    """Replace each dict in ``tables``, which has the cells of one row, by a data frame.

    If all tables are dicts without an id, the row gets the id 0.

    Raises:
        TableError: a cell is a list or an array.
    """
    rows = {party: dict(table) for party, table in tables.items() if isinstance(table, Mapping)}
    ids = {party: id_names(members[party].id) for party in rows}
    if len(rows) == len(tables) and not any(set(names) & rows[party].keys() for party, names in ids.items()):
        rows = {party: row | dict.fromkeys(ids[party], 0) for party, row in rows.items()}
    for party, row in rows.items():
        for column, cell in row.items():
            if isinstance(cell, Sequence | np.ndarray | pl.Series) and not isinstance(cell, str):
                raise TableError(f"party {party!r}: a dict has the cells of one row, but the cell of column {column!r} "
                                 f"is a {type(cell).__name__}; give a data frame for several rows")  # fmt: skip
    return {**tables, **{party: pl.DataFrame([row], strict=False) for party, row in rows.items()}}
