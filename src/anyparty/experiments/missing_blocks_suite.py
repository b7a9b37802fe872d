"""Suites of missing blocks as data, and their runs.

A block is a party's columns of a row.  A mechanism of missingness draws the blocks that are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

from anyparty.config import Encoder, Settings
from anyparty.experiments.compared_methods import compared_methods
from anyparty.experiments.missing_blocks_run import MissingBlocksRun
from anyparty.experiments.suite import ALL, Selection, Suite, SuiteDataset, select
from anyparty.networks.optimizer import Optimizer


class MissingBlocksMethod(Settings):
    """The settings to train one method on one data set.

    Attributes:
        title: title in tables and figures.
        name: the method's name in the registry of methods.
        when: by training mechanism, the settings that replace these settings if blocks are missing by this mechanism.
        batch_size: number of rows of a batch, in place of the data set's.
        labels_at: name of the party that is active and has the labels of its rows; by default the active party is a
            further party with all labels and no columns.
        own: whether the paper introduces this method.
        beyond: whether the method is not in the paper; summaries of the paper's comparison exclude such a method.
        most_parties: the greatest number of parties with which the method is run.
        described: a user-defined method as data, with a hash of its source, so that runs are repeated after an edit;
            ``None`` for a built-in method.

    """

    title: str
    name: str
    epochs: int
    optimizer: Optimizer
    parameters: dict[str, Any] = {}
    when: dict[str, dict[str, Any]] = {}
    encoder: dict[str, Any] = {}
    train: dict[str, Any] = {}
    batch_size: int | None = None
    labels_at: str | None = None
    own: bool = False
    beyond: bool = False
    most_parties: int | None = None
    described: dict[str, Any] | None = None


class LabelledRows(Settings):
    """The number ``n`` of labelled training rows, and the number ``aligned`` of those that all parties hold."""

    n: int
    aligned: int


class MissingBlocksDataset(SuiteDataset):
    """Settings of one data set.

    Attributes:
        parties: number of parties, in place of the suite's.
        labelled: numbers of labelled rows; by default all training rows are labelled.
        rows: number of training rows to draw; by default all rows.
        repeats: for objects with several views, two numbers: how often each training object, and how often each test
            object, becomes a row. In each row, a party gets one of its views at random.

    """

    metric: str
    unit: str
    batch_size: int
    embedding: int
    encoder: Encoder
    cut: str = "columns"
    scale: bool = True
    balance: bool = False
    in_place_of: str = ""
    parties: int | None = None
    labelled: LabelledRows | None = None
    rows: int | None = None
    repeats: tuple[int, int] | None = None
    methods: dict[str, MissingBlocksMethod]


class MissingBlocksSuite(Suite):
    """A published table of scores with missing blocks.

    Attributes:
        parties: numbers of parties, for data sets that do not set their own.
        train_missing, test_missing: names of the mechanisms that draw missing blocks in training and at test; a number
            p means MCAR(p).
        mechanisms: mechanisms that this suite defines, by name; if there are any, all mechanisms read normalised
            features.
        layout: "columns": one table for each data set. "training": one table for each data set and training mechanism.
            "ratios": the metric after training under the last of ``train_missing``, in per cent of the metric after
            training under the first.
        quick: number by which a quick run divides the epochs.
        runs_of: name of the suite whose runs this suite shows; empty if it has its own runs.
        published: the paper's (mean, spread) for each test mechanism, by data set, method and training mechanism.
        published_ratios: the paper's ratio for each test mechanism, by data set and method.

    """

    kind: Literal["missing_blocks"] = "missing_blocks"
    parties: list[int] = []
    train_missing: list[str]
    test_missing: list[str]
    mechanisms: dict[str, dict[str, Any]] = {}
    layout: Literal["columns", "training", "ratios"] = "columns"
    quick: int = 10
    runs_of: str = ""
    datasets: dict[str, MissingBlocksDataset]
    published: dict[str, dict[str, dict[str, list[tuple[float, float]]]]] = {}
    published_ratios: dict[str, dict[str, list[float]]] = {}

    @property
    def home(self) -> str:
        """The name of the folder in runs/bench that has the runs: the name of the suite ``runs_of``, or ``name``."""
        return self.runs_of or self.name

    @property
    def quick_cuts(self) -> str:
        """The share of the work that a quick run does, as a text for the page."""
        return f"1/{self.quick} of the epochs"

    def with_own_methods(self, names: Sequence[str]) -> Self:
        """Return the suite with additional methods of the user, which ``names`` lists as "module:name".

        On each data set, they are trained with the settings of LASER-VFL.  If the suite does not train LASER-VFL on the
        data set, the settings of the first method are used.
        """
        if not names:
            return self
        own = compared_methods({name: name for name in names})
        datasets = {}
        for dataset, entry in self.datasets.items():
            like = next((each for each in entry.methods.values() if each.name == "laser"), None)
            like = like or next(iter(entry.methods.values()))
            when = {missing: {key: value for key, value in changes.items() if key != "parameters"}
                    for missing, changes in like.when.items()}  # fmt: skip
            same = {"parameters": {}, "when": when, "own": False, "beyond": True, "most_parties": None}
            more = {
                each.label: like.model_copy(
                    update={**same, "title": each.label, "name": each.label, "described": each.described}
                )
                for each in own
            }
            datasets[dataset] = entry.model_copy(update={"methods": entry.methods | more})
        said = f"{', '.join(names)}: not in the paper; trained as the suite's LASER-VFL, or as its first method."
        return self.model_copy(update={"datasets": datasets, "differs": [*self.differs, said]})

    def parties_of(self, dataset: str) -> list[int]:
        """Return the numbers of parties with which a data set is run."""
        own = self.datasets[dataset].parties
        return self.parties if own is None else [own]

    def runs(self, selection: Selection = ALL) -> Iterator[MissingBlocksRun]:
        """Yield the selected runs, ordered by seed: one for each data set, number of parties, mechanism and method."""
        known = dict.fromkeys(method for entry in self.datasets.values() for method in entry.methods)
        wanted = select("method", selection.methods, known)
        for seed in range(selection.seeds):
            for dataset in self.selected_datasets(selection):
                methods = self.datasets[dataset].methods
                for parties in self.parties_of(dataset):
                    for missing in select("mechanism", selection.missing, self.train_missing):
                        for method in (each for each in methods if each in wanted):
                            if parties <= (methods[method].most_parties or parties):
                                yield self._run(dataset, method, parties, missing, seed, selection)

    def _run(
        self, dataset: str, method: str, parties: int, missing: str, seed: int, selection: Selection
    ) -> MissingBlocksRun:
        entry = self.datasets[dataset]
        of = entry.methods[method]
        values = of.model_dump(exclude={"when", "title", "own", "beyond", "most_parties"}, exclude_none=True)
        for change, value in of.when.get(missing, {}).items():
            values[change] = values[change] | value if isinstance(value, dict) else value
        if selection.quick:
            values["epochs"] = max(1, values["epochs"] // self.quick)
            stages = values["parameters"].keys() & {"pretrain_epochs", "unlabelled_epochs"}
            fewer = {stage: max(1, values["parameters"][stage] // self.quick) for stage in stages}
            values["parameters"] = {**values["parameters"], **fewer}
        if selection.device != "cpu":
            values["train"] = {**values["train"], "device": selection.device}
        not_settings = {"methods", "metric", "unit", "in_place_of", "heavy", "parties", "encoder", "differs"}
        shared = entry.model_dump(exclude=not_settings, exclude_none=True)
        if self.mechanisms:
            shared["mechanisms"] = {name: self.mechanisms[name] for name in (missing, *self.test_missing)}
        encoder = entry.encoder.model_dump() | values.pop("encoder")
        return MissingBlocksRun(
            suite=self.home, dataset=dataset, method=method, parties=parties, missing=missing,
            tests=tuple(self.test_missing), seed=seed, settings={**shared, **values, "encoder": encoder},
        )  # fmt: skip
