"""Start here: build a federation from several parties' tables, and train models with it.

    federation = Federation.from_tables({"bank": "bank.csv", "shop": frame}, id="customer", label="default")
    rich.print(federation.overlap)
    model = federation.train("laser", epochs=50, seed=1)
    model.predict(tables, parties=["bank"])

All parties run in one process, over the in-memory transport: for research, for a first look, and for one team's own
data.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.table import Table as RichTable
from rich.text import Text

from anyparty import config as run_settings
from anyparty.alignment.alignment import Alignment, align
from anyparty.alignment.overlap import Overlap
from anyparty.config.label_columns import check_parties, label_columns
from anyparty.core.declared_types import checked
from anyparty.core.display import html_of, named_ids
from anyparty.core.seeds import Seeds, usual_torch
from anyparty.core.storage import user_path
from anyparty.core.types import Channel, Party, Roster, Task
from anyparty.errors import AnypartyWarning, ConfigError, UserError, nearest, remark, some
from anyparty.problem.problem import Problem, label_of, teaching
from anyparty.problem.splits import PARTS, UNUSED
from anyparty.tables import summary
from anyparty.tables.cells import MAX_BYTES
from anyparty.tables.data_frames import ID, LABEL, tables_of_arrays
from anyparty.tables.file_content import FileSettings
from anyparty.tables.preprocessing import MANY_LEVELS
from anyparty.tables.readers import check_not_forked, located
from anyparty.tables.table import Table, from_array, of_each, read_table, row_number_notes
from anyparty.tables.target import check_kind

if TYPE_CHECKING:
    from anyparty.api.model import Model
    from anyparty.artifacts.trackers import TrackFunction
    from anyparty.config import Config, TrainSettings
    from anyparty.config.schema import TrainOptions
    from anyparty.methods.method import Method
    from anyparty.networks.encoders import Factory
    from anyparty.networks.objective import Loss
    from anyparty.networks.optimizer import MakeOptimizer, MakeScheduler, Optimizer
    from anyparty.training.callbacks import Callback

    OptimizerOption: TypeAlias = Optimizer | MakeOptimizer | str


@dataclass(frozen=True)
class Federation:
    """The aligned tables of several parties.

    Attributes:
        config: the settings, with the path of each table that was read from a file.
        tables: each party's table, in the roster's order.
        roster: the parties in a fixed order, and which of them is active.

    """

    config: Config
    tables: Mapping[str, Table]
    roster: Roster

    def __repr__(self) -> str:
        """Return the parties' names and numbers of rows, and the task, but no data of a row."""
        held = {name: int((~self.tables[name].blank).sum()) for name in self.roster.blocks}
        rows, active = ", ".join(f"{name}: {count:,} rows" for name, count in held.items()), self.roster.active
        leads = f"{active!r} leads" if active in held else f"labels at {active!r}"
        with suppress(UserError), warnings.catch_warnings():
            warnings.simplefilter("ignore", AnypartyWarning)
            return f"<Federation of {rows}; {leads}; {self.predicted().partition(',')[0]}>"
        return f"<Federation of {rows}; {leads}>"

    def _repr_html_(self) -> str:
        """Return the task and two HTML tables for notebooks: the overlap report, and the types of the columns."""
        return html_of(repr(self), self.overlap.render(), self.reading, Text(self.predicted()))

    @classmethod
    @checked()
    def from_tables(
        cls,
        tables: Mapping[str, Any],
        *,
        id: str | Sequence[str] | Mapping[str, str | Sequence[str]] = "id",  # noqa: A002 - the setting is called id
        id_normalize: Sequence[str] = (),
        duplicates: str | Mapping[str, str] = "error",
        label: str | None = None,
        active: str | None = None,
        task: str = "auto",
        positive: str | float | bool | None = None,
        types: Mapping[str, Mapping[str, str]] | None = None,
        file: Mapping[str, Mapping[str, Any]] | None = None,
        drop: Mapping[str, Sequence[str]] | None = None,
        scale: bool | Mapping[str, bool] = True,
        max_levels: int | Mapping[str, int] = MANY_LEVELS,
        split: str | Mapping[str, Any] | None = None,
        missing: Mapping[str, Mapping[str, Sequence[str | float | date]]] | None = None,
        limits: Mapping[str, Mapping[str, str]] | None = None,
        dates: Mapping[str, Mapping[str, str]] | None = None,
        merge_spellings: bool = False,
        classes: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
        max_cell_bytes: int = MAX_BYTES,
    ) -> Federation:
        """Build a federation from the parties' tables: files, data frames, pyarrow tables or numpy structured arrays.

        Args:
            tables: each party's table.
            id: the id column, or a list of columns that together identify a row; one value for all parties, or by
                party.
            id_normalize: the changes that every party makes to its ids, such as ["strip-zeros"].
            duplicates: the reaction to rows with the same id: raise an "error", keep the "first" or the "last" row, or
                take the "mean" of the rows; one value for all parties, or by party.
            label: the label column, in the active party's table.
            active: the active party; by default the only party whose table has the label column.
            task: "auto", "classification" or "regression". "auto" raises an error if whole numbers as labels may be
                classes or numbers to predict; ``predicted`` shows the choice and its reason.
            positive: the positive class of a binary task; by default the second class in sorted order.
            file: for each party, settings for reading its file, such as {"separator": ";"}; they replace detected
                settings. "decimal", the decimal mark of numbers in text, also applies to data frames.
            types: for each party and column, "numeric", "categorical", "date" or "text", to correct an inferred type.
            drop: for each party, the columns to ignore.
            scale: whether numeric columns are standardized, by the mean and standard deviation of the training rows:
                for all parties, or by party.
            max_levels: the largest number of categories of a column, for all parties or by party. If a column has more
                categories, the rarest ones become one category.
            split: how rows are split into training, validation and test, as in the group [split] of the settings:
                "stratified", "random", or a mapping with another kind and its column, such as {"kind": "group",
                "group": "patient"}.
            missing: for each party and column, the texts and numbers that mark a missing cell or label.
            limits: for each party and column, how limits such as <25 are read: "half" reads 12.5, "value" reads 25, and
                "missing" reads a missing cell.
            dates: for each party and column, how dates are written: "day-first", "month-first", "year-first", or a
                format such as "%d.%m.%y".
            merge_spellings: whether categories that differ only in their spelling are one category.
            classes: a list of the classes, or a mapping from each class to the label texts that stand for it; by
                default every distinct label is a class.
            max_cell_bytes: the maximum size of a text cell or a column name, in bytes.

        Raises:
            TableError: a table cannot be read, its ids, columns or labels cannot be used, or its labels may be classes
                or numbers.
            ConfigError: an argument names an unknown party, or its value cannot be used.
        """
        if not tables:
            raise ConfigError("tables: expected a table by the name of its party, such as {'bank': 'bank.csv'}, got {}")
        ids = id if isinstance(id, Mapping) else dict.fromkeys(tables, id)
        again = duplicates if isinstance(duplicates, Mapping) else dict.fromkeys(tables, duplicates)
        for what, each in (
            ("id", ids),
            ("duplicates", again),
            ("file", file or {}),
            ("types", types or {}),
            ("drop", drop or {}),
            ("scale", scale if isinstance(scale, Mapping) else {}),
            ("max_levels", max_levels if isinstance(max_levels, Mapping) else {}),
            ("missing", missing or {}),
            ("limits", limits or {}),
            ("dates", dates or {}),
        ):
            check_parties(each, tables, what)
        if file:
            _check_file_settings(file, tables)
        lacking = [name for name in tables if name not in ids]
        if lacking:
            raise ConfigError(f"id has no column for party {some(sorted(lacking))}; name one for every party")
        parties = {
            name: {
                **dict((file or {}).get(name, {})),
                "id": ids[name] if isinstance(ids[name], str) else tuple(ids[name]),
                "duplicates": again.get(name, "error"),
                "types": dict((types or {}).get(name, {})),
                "drop": tuple((drop or {}).get(name, ())),
                "scale": scale.get(name, True) if isinstance(scale, Mapping) else scale,
                "max_levels": max_levels.get(name, MANY_LEVELS) if isinstance(max_levels, Mapping) else max_levels,
                "missing": dict((missing or {}).get(name, {})),
                "limits": dict((limits or {}).get(name, {})),
                "dates": dict((dates or {}).get(name, {})),
            }
            | ({"table": located(user_path(tables[name]))} if isinstance(tables[name], str | Path) else {})
            for name in tables
        }
        federation = {
            "id_normalize": tuple(id_normalize),
            "label": label,
            "active": active,
            "task": task,
            "positive": positive,
            "classes": classes,
            "merge_spellings": merge_spellings,
            "max_cell_bytes": max_cell_bytes,
        }
        chosen = {} if split is None else {"split": {"kind": split} if isinstance(split, str) else split}
        config = run_settings.Config.of({"federation": federation, "parties": parties} | chosen)
        return cls.from_config(config, tables)

    @classmethod
    @checked(by_hand=("ids",))
    def from_arrays(
        cls,
        arrays: Mapping[str, Any],
        y: Any,
        *,
        observed: Any = None,
        ids: Sequence[Any] | None = None,
        active: str | None = None,
        scale: bool | Mapping[str, bool] = True,
        task: str = "auto",
        positive: str | float | bool | None = None,
        split: str | Mapping[str, Any] | None = None,
    ) -> Federation:
        """Build a federation from numpy arrays or torch tensors whose n rows are in the same order.

        An encoder receives each row as a flat vector (C order), so ``nn.Unflatten(1, (3, 32, 32))`` restores an image.

        Args:
            arrays: for each party, numbers [n, ...] of any rank: columns, sequences, images.  The party lacks a row if
                all its numbers are NaN; any other NaN is a missing cell.
            y: the labels [n]; NaN or ``None`` for a row without a label.
            observed: [n, K] bool, True if the k-th party of ``arrays`` has the row; or a mapping or a data frame with a
                mask [n] for each party.  By default every party has every row.
            ids: the ids of the rows; by default 0, 1, ..., n - 1.
            active: the party that owns the labels, including labels of rows that it lacks; by default the first party.
            scale: whether numbers are standardized, by the mean and standard deviation of the training rows: for all
                parties, or by party.
            task: "auto", "classification" or "regression". "auto" raises an error if whole numbers as labels may be
                classes or numbers to predict; ``predicted`` shows the choice and its reason.
            positive: the positive class of a binary task; by default the second class in sorted order.
            split: how rows are split into training, validation and test, as the argument of ``from_tables``.

        Raises:
            TableError: an array has another type or shape than described, and the message names the argument; or the
                labels may be classes or numbers.
            ConfigError: an argument names an unknown party, or its value cannot be used.
        """
        tables = tables_of_arrays(arrays, y, observed=observed, ids=ids, active=active)
        made = cls.from_tables(tables, id=ID, label=LABEL, active=active or next(iter(tables)), task=task,
                               positive=positive, scale=scale, split=split)  # fmt: skip
        # Arrays may be images or series, which the table encoder of the default method does not fit.
        arrays_of = {"method": run_settings.MethodSettings(name="laser"), "encoder": run_settings.Encoder()}
        return replace(made, config=made.config.model_copy(update=arrays_of),
                       tables={name: from_array(table) for name, table in made.tables.items()})  # fmt: skip

    @classmethod
    @checked(by_hand=("config",))
    def from_config(cls, config: Config | Path | str, tables: Mapping[str, Any] | None = None) -> Federation:
        """Build a federation from settings; ``tables`` replace the files in the settings.

        Args:
            config: the settings, or the name of their file.
            tables: for each party, a file name or data frame.

        Raises:
            TableError: a table cannot be read, or its ids, columns or labels cannot be used.
            ConfigError: a setting cannot be used, a party is unknown, or a party has no table.
        """
        config = config if isinstance(config, run_settings.Config) else run_settings.config_of(config)
        check_parties(tables or {}, config.parties, "tables")
        found = {name: (tables or {}).get(name, party.table) for name, party in config.parties.items()}
        for name, source in found.items():
            if source is None:
                raise ConfigError(f'parties.{name}: no table; write table = "file.csv"')
        if not found:
            raise ConfigError("no parties: give each a group [parties.NAME] with its table")
        holders = label_columns(config, found)
        named = {name: table for name, table in (tables or {}).items() if isinstance(table, str | Path)}
        files = {name: located(user_path(table)) for name, table in named.items()}
        kept = {name: party.model_copy(update={"table": files.get(name, party.table)})
                for name, party in config.parties.items()}  # fmt: skip
        config = config.model_copy(update={"parties": kept})
        active = next(iter(holders))
        read = of_each(
            config.parties,
            lambda name: read_party(config, name, found[name], holders.get(name), leads=name == active),
        )
        parties = tuple(
            Party(name=name, columns=table.columns.width > 0, labels=name in holders) for name, table in read.items()
        )
        if not any(party.columns for party in parties):
            raise ConfigError("no party holds columns: there is nothing to learn from; leave columns = false, or drop, "
                              "out for one of them")  # fmt: skip
        label = read[active].label
        if config.federation.task == "auto" and label is not None:
            check_kind(label, f"party {active!r}, label column {label.name!r}")
        return cls(config, read, Roster(parties, active))

    # Alignment, labels and task

    @cached_property
    def alignment(self) -> Alignment:
        """The alignment of the tables by id: for each party, the index of each of the N aligned rows in its table.

        Raises:
            AlignmentError: the tables share no ids, or the tables have different numbers of id columns.
        """
        return align(list(self.tables.values()), first=self.roster.active)

    def rows(self, **settings: Unpack[TrainOptions]) -> pl.DataFrame:
        """Return a frame of the N aligned rows: ids, the parties that have each row, labels, and parts of the split.

        Args:
            settings: training settings that replace those of the federation, such as ``seed``, ``test`` and ``rows``.

        Returns:
            One row for each aligned row, in the order of ``alignment.ids``: the id columns; for each party with columns
            a truth value, True if the party has the row; "labelled", True if the active party has its label; and "use":
            "train", "validation", "test", or null if the row is not used.

        Raises:
            ConfigError: a setting cannot be used.
            TableError: the rows cannot be split; see ``split``.
        """
        given = self.config.train.model_dump(exclude_unset=True)
        train = run_settings.TrainSettings.of(given | dict(settings), "train")
        names = {number: part for part, number in PARTS.items()} | {UNUSED: None}
        ids = self.alignment.identities(np.arange(self.alignment.n))
        assert ids is not None  # the ids are known in one process
        return pl.DataFrame([
            *(column.alias(name) for name, column in named_ids(ids).items()),
            *(pl.Series(name, self.observed[:, k]) for k, name in enumerate(self.roster.blocks)),
            pl.Series("labelled", self.labeled),
            pl.Series("use", [names[number] for number in self.split(train).tolist()], dtype=pl.String),
        ])  # fmt: skip

    @cached_property
    def observed(self) -> NDArray[np.bool_]:
        """The mask [N, K] bool of rows that parties have: True if the k-th party with columns has row n.

        The rows are in the order of ``alignment.ids``; ``rows`` returns them with their ids.
        """
        return self.alignment.observed(self.roster.blocks)

    @cached_property
    def labeled(self) -> NDArray[np.bool_]:
        """The mask [N] bool of labelled rows: True if the active party has a label for row n.

        The rows are in the order of ``alignment.ids``; ``rows`` returns them with their ids.
        """
        return self.problem().labeled

    def label(self, party: str) -> pl.Series:
        """Return the labels of a party that holds labels: one value for each row of the party's table."""
        return label_of(self.tables[party])

    @cached_property
    def overlap(self) -> Overlap:
        """The overlap report: the number of rows of each set of parties, and possible mistakes in the tables."""
        kind = self.config.federation.task
        tables = list(self.tables.values())
        notes = [*(note for table in tables for note in summary.notes(table, kind)), *row_number_notes(tables)]
        return Overlap.of(self.alignment, self.roster.blocks, self.labeled, notes, self.roster.active)

    def split(self, settings: TrainSettings | None = None) -> NDArray[np.int8]:
        """Return the part of each aligned row, [N] int8: training, validation, test or none.

        The rows are in the order of ``alignment.ids``; ``rows`` returns them with their ids.

        The seed in ``settings`` determines the split; by default, these are the federation's training settings.
        ``config.split`` describes the kind of split. Training rows that ``settings.rows`` does not select get none.

        Raises:
            TableError: a class has too few rows for training, validation and test, or the column that splits the rows
                cannot be used.
        """
        config = self.config if settings is None else self.config.model_copy(update={"train": settings})
        return self.problem(config).use

    def task(self, use: NDArray[np.int8]) -> Task:
        """Infer the task, classification or regression, from the labels of training rows.

        ``use`` is the part of each aligned row [N], as ``split`` returns it.

        Raises:
            TableError: there are no labels, or all labels have the same class.
        """
        return self.problem().task_for(use)

    def teaching(self, party: str) -> Table:
        """Return a label holder's table, without the labels of rows whose cells are empty at all parties."""
        return teaching(self.tables[party], self.alignment.position[party], self.observed)

    def predicted(self) -> str:
        """Describe the task in one line: the classes, or in regression the range of the labels.

        If the labels also allow the other kind of task, the line contains the setting for it, and the reason for the
        choice.

        Raises:
            TableError: the labels cannot be used, for example because all have the same class.
        """
        return self.problem().describe()

    def problem(self, config: Config | None = None, tables: Mapping[str, Table] | None = None) -> Problem:
        """Return the problem of a training: the task, and the use of each row.

        ``config`` replaces the federation's settings, and ``tables`` its tables.
        """
        config, active = config or self.config, self.roster.active
        return Problem(
            roster=self.roster, table=(tables or self.tables)[active], position=self.alignment.position[active],
            observed=self.observed, plan=config.plan, seeds=Seeds(config.train.seed),
        )  # fmt: skip

    @property
    def files(self) -> RichTable:
        """A printable table of the formats of the parties' files, such as separator and encoding."""
        return summary.files(list(self.tables.values()))

    @property
    def reading(self) -> RichTable:
        """A printable table of all columns: type, number of levels, missing share, possible mistakes."""
        return summary.render(list(self.tables.values()))

    @property
    def remarks(self) -> RichTable | None:
        """A printable table of the columns and labels that may be wrong; ``None`` if there are no such columns."""
        return summary.remarked(list(self.tables.values()), self.config.federation.task)

    # Training

    @usual_torch()
    @checked(by_hand=("method", "watch", "track", "encoder", "optimizer", "schedule", "scheduler", "loss", "folder",
                      "channel"))  # fmt: skip
    def train(
        self,
        method: str | Method | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        encoder: Factory | Mapping[str, Factory] | None = None,
        optimizer: OptimizerOption | Mapping[str, OptimizerOption] | None = None,
        scheduler: MakeScheduler | None = None,
        clip: float | None = None,
        loss: Loss | None = None,
        schedule: str | Mapping[str, Any] | None = None,
        clock: Mapping[str, Any] | None = None,
        split: str | Mapping[str, Any] | None = None,
        folder: Path | str | None = None,
        resume: bool = False,
        watch: Callback | None = None,
        track: str | TrackFunction | Callback | Sequence[Any] | None = None,
        progress: bool = False,
        channel: Callable[[Channel], Channel] | None = None,
        **settings: Unpack[TrainOptions],
    ) -> Model:
        """Train a model with all parties in this process.

        Args:
            method: a name that the command ``anyparty methods`` lists, or a method object; by default the method of the
                settings.
            parameters: parameters of the method, if ``method`` is a name. If ``method`` is not given, they replace
                parameters in the settings.
            encoder: a function of (inputs, outputs) that makes a party's network; one for all parties, or by party.
            optimizer: the optimizer of a party's networks, one for all parties or by party: an ``Optimizer``, its name,
                or a function such as ``lambda parameters: torch.optim.RMSprop(parameters, lr=0.01)``.
            scheduler: a function such as ``lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10)``; the
                scheduler takes one step per epoch, and the learning rate may depend only on the epoch.  A function of
                (optimizer, steps), such as ``lambda optimizer, steps: OneCycleLR(optimizer, 0.01, total_steps=steps)``,
                gets the number of steps of the training, and its scheduler takes one step per batch.
            clip: the largest norm of the gradient of a party's encoder, or of a host's heads; a longer gradient is
                shortened to this norm.
            loss: a function of outputs [n, C] (regression: [n], standardized) and labels [n] that returns the loss of
                each row [n], or the mean over rows, in place of the cross-entropy or the squared error.
            schedule: the schedule that decides how parties train between two exchanges of messages: a name such as
                "flex" or "sync-min", or a mapping with name and parameters, as in the group [schedule] of the settings.
            clock: the durations that the schedule uses, in time units: iteration, latency, timeout ... as in the
                group [clock] of the settings.
            split: "stratified", "random", or the ids of the rows, {"train": ids, "validation": ids, "test": ids}; by
                default as in the settings.  Labelled rows that are not listed are not used.  A run's folder stores no
                ids.  The test rows of a run with listed ids are therefore known only to the returned model object.
            folder: the folder for checkpoints, model and record; ``None`` keeps the model in memory only.
            resume: whether to resume from the folder's checkpoints.
            watch: a callback; its hooks are called during the run.
            track: "tensorboard", "mlflow" (at MLFLOW_TRACKING_URI), or a function such as ``wandb.init().log``, which
                gets a dict of the epoch, the loss and the scores after every epoch, and of the test scores at the end
                of a run with a folder; or a list of these.
            progress: whether to show a progress bar.
            channel: a function that wraps each party's channel, for example to record the messages that it receives.
                With ``execution="protocol"``, all messages of the training pass through the wrapped channels.
            settings: training settings: epochs, batch_size, seed, validation, test, patience ... (``TrainSettings``).

        Raises:
            ConfigError: an argument or a setting cannot be used, or another run is in progress in ``folder``.
            TableError: the labels cannot be used, or a class has too few rows for training, validation and test.
            AlignmentError: the tables share no ids, or the method cannot train on the rows that they share.
            ResumeError: ``folder`` already holds a run and ``resume`` is false, or ``resume`` is true and ``folder``
                does not hold this run.
            Diverged: the loss became infinite or NaN.

        """
        # Imported here, because these modules import torch, which takes seconds.
        from anyparty.api import arguments, training_run  # noqa: PLC0415
        from anyparty.artifacts import trackers  # noqa: PLC0415
        from anyparty.artifacts.recorder import check_folder  # noqa: PLC0415
        from anyparty.training.callbacks import CallbackList  # noqa: PLC0415

        check_not_forked()
        arguments.check_kinds(method, watch)
        if resume and folder is None:
            raise ConfigError("resume = True needs the folder of the run; give folder, too")
        place = arguments.folder(folder)
        if place is not None:
            check_folder(place, resume=resume)
        config = arguments.over(self.config, method, parameters, schedule, clock, settings)
        tables, config = arguments.split_by(split, self.tables, self.roster.active, config)
        config, functions = trackers.requested(track, config)
        for note in self.overlap.notes:
            remark(note)
        return training_run.train(
            self.problem(config, tables),
            tables,
            self.alignment,
            self.overlap,
            config,
            method=None if method is None or isinstance(method, str) else method,
            encoders=arguments.encoders(encoder, self.roster),
            optimizers=arguments.optimizers(optimizer, scheduler, config, self.roster, clip),
            loss=loss,
            folder=place,
            resume=resume,
            watch=functions if watch is None else CallbackList([watch, functions]),
            progress=progress,
            channel=channel,
        )


def _check_file_settings(file: Mapping[str, Mapping[str, Any]], tables: Mapping[str, Any]) -> None:
    """Check that all settings in ``file`` exist, and that they are for parties whose tables are files."""
    known = [field.name for field in fields(FileSettings)]
    for party, given in file.items():
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ConfigError(f"file: there is no setting {unknown[0]!r} of a file{nearest(unknown[0], known)}")
        idle = [name for name in given if name != "decimal"]
        if idle and not isinstance(tables[party], str | Path):
            raise ConfigError(f"file: {idle[0]} applies to a file, and the table of party {party!r} is a "
                              "data frame or an array: remove the setting, or give the file")  # fmt: skip


def read_party(config: Config, name: str, source: Any, label: str | None, *, leads: bool) -> Table:
    """Read a party's table from ``source``, a file or a data frame, with the party's settings.

    Runs in one process and runs on several machines read tables with this function, so that both get the same rows.

    Args:
        config: the settings.
        name: the party.
        source: the file or data frame.
        label: the party's label column, if the party has labels.
        leads: whether this is the active party, which also reads the column that splits the rows.

    Raises:
        TableError: the table cannot be used.
    """
    own = config.parties.get(name, run_settings.PartySettings())
    return read_table(
        source, party=name, label=label, drop=own.drop, types=own.types, expect=None if own.columns else {},
        rules=config.rules_of(name), part_by=config.split.column if leads else None, **config.reading(name),
    )  # fmt: skip
