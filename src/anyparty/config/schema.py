"""The groups of a settings file, with the type, the range and the default of each setting."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypedDict
from urllib.parse import urlsplit

import numpy as np
import polars as pl
import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from anyparty.alignment.alignment import RowKind
from anyparty.config.settings_group import ReadingSettings, Settings, check_held, nones
from anyparty.config.user_code import NOTHING, AllowedCode, allowing, load_encoder
from anyparty.core.storage import user_path
from anyparty.errors import ConfigError, nearest, some
from anyparty.metrics import METRICS
from anyparty.networks.encoders import LSTM, MLP, Factory, ResNet, Share, Width
from anyparty.networks.optimizer import Optimizer
from anyparty.networks.table_encoder import TableEncoder
from anyparty.problem.splits import Kind as SplitKind
from anyparty.problem.splits import ProblemPlan
from anyparty.tables import reading_rules
from anyparty.tables.cells import MAX_BYTES, as_level
from anyparty.tables.ids import Duplicates, check_normalize
from anyparty.tables.preprocessing import MANY_LEVELS
from anyparty.tables.reading_rules import ReadingRules

NONE = "none"
UserPath = Annotated[Path, AfterValidator(user_path)]


def _none(value: Any) -> Any:
    return None if value == NONE else value


Batches = Literal["mixed", "by-pattern"]
Keep = Literal["best", "last", "average"]
Extreme = Literal["stop", "drop"]
Require = Literal["all"] | int | None
Execution = Literal["auto", "protocol", "joint"]


class TrainSettings(Settings):
    """Settings of training, which are equal for all parties.

    ``epochs`` is the largest number of epochs.  ``batch_size`` is the number of rows in a batch.  ``seed`` determines
    all random numbers that parties share.  A checkpoint is saved after every ``checkpoint_every`` epochs.  ``device``
    is a PyTorch device, such as "cuda".

    ``validation`` and ``test`` are shares of the labelled rows.  These rows are selected before preprocessing and
    training. Training stops early after ``patience`` epochs without a better ``metric`` on validation rows; "none"
    disables early stopping.

    ``keep`` selects the weights of the trained model.  ``"best"`` keeps the weights of the epoch with the best
    metric on validation rows.  ``"last"`` keeps the weights of the last epoch.  ``"average"`` keeps the mean of each
    party's weights over the last quarter of the epochs, or the last weights if training stops before that quarter.

    ``balance`` gives every class the same total weight, both in the loss and in the choice of the predicted class.  The
    predicted probabilities are then corrected to the class frequencies in the training rows.  Batches stay random,
    because balanced batches would reveal labels.

    ``batch_size`` is the number of rows in a batch.  ``"auto"`` is a power of two between 16 and 512, about a fortieth
    of the training rows, so that an epoch has about 40 steps.

    ``calibrate`` divides the logits of class probabilities by a temperature.  It is fitted to the validation rows, in
    the epoch whose weights are kept.  The predicted classes do not change.

    ``batches`` selects how batches are drawn.  ``"mixed"`` draws a batch from all training rows.  ``"by-pattern"``
    draws a batch from rows that the same parties hold.

    ``score_training`` is the number of training rows that are scored after every epoch together with the validation
    rows, for learning curves.  It is limited to the number of validation rows.

    ``extreme`` is the reaction to a message whose numbers are far outside the range of the sender's earlier messages.
    ``"stop"`` ends the run.  ``"drop"`` continues without the sender, if the parties run on separate machines.

    ``rows`` selects the rows that training may use, except validation and test rows.  ``"any"`` selects the rows that
    at least one party holds.  ``"active"`` selects the rows of the active party's table.  ``"all"`` selects the rows
    that the active party and every party with columns hold.  A method may use fewer rows.  Validation and test rows do
    not depend on ``rows``.

    ``execution`` selects how the steps of training are computed.  ``"protocol"`` sends messages between the parties.
    ``"joint"`` computes the same steps without messages, if all parties are in one process, and is faster; the weights
    are equal up to rounding.  ``"auto"`` takes ``"joint"`` where it applies.

    ``require`` is the number of parties, or "all", that must have taken part when training on separate machines ends.
    A party has taken part if it was present in at least half of the epochs and its own weights were saved.  If
    fewer parties have taken part, training saves the model and then ends with an error.  Without ``require``, a warning
    names each party that missed epochs, and the record and the report contain the warning.  With any value of
    ``require``, training stops if the method cannot train without a lost party.
    """

    epochs: Annotated[int, Field(ge=1)] = 100
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = 128
    batches: Batches = "mixed"
    rows: RowKind = "any"
    seed: Annotated[int, Field(ge=0)] = 0
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.15
    test: Annotated[float, Field(ge=0, lt=1)] = 0.2
    score_training: Annotated[int, Field(ge=0)] = 1024
    metric: str | None = None
    patience: Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_none)] = 20
    keep: Keep = "best"
    checkpoint_every: Annotated[int, Field(ge=1)] = 5
    balance: bool = False
    calibrate: bool = False
    extreme: Extreme = "stop"
    require: Require = None
    device: str = "cpu"
    execution: Execution = "auto"

    @model_validator(mode="after")
    def _shares_fit(self) -> TrainSettings:
        """Reject shares that leave no training rows, and settings that have no effect without validation rows.

        A setting with its default value is accepted, because saved settings contain every default.
        """
        if self.validation + self.test >= 1:
            raise ValueError(f"validation {self.validation} and test {self.test} leave no rows to train on")
        given = {"metric": self.metric, "patience": self.patience, "score_training": self.score_training}
        fields = type(self).model_fields
        idle = [name for name, value in given.items() if value and value != fields[name].default]
        if idle and not self.validation:
            raise ValueError(
                f"{some(idle)} would do nothing without validation rows: set validation above 0, or leave it out"
            )
        return self

    def rows_per_batch(self, rows: int) -> int:
        """Return the number of rows in a batch of a training with the given number of rows.

        >>> [TrainSettings(batch_size="auto").rows_per_batch(rows) for rows in (100, 3000, 10_000, 1_000_000)]
        [16, 64, 256, 512]
        """
        if self.batch_size == "auto":
            return int(min(512, max(16, 2 ** round(math.log2(max(1, rows) / 40)))))
        return self.batch_size

    @field_validator("require", mode="before")
    @classmethod
    def _all_or_some(cls, require: Any) -> Any:
        if require is None or require == "all" or (isinstance(require, int) and require >= 1):
            return require
        raise ValueError('expected "all" or a number of parties, 1 or more')

    @field_validator("metric")
    @classmethod
    def _known(cls, metric: str | None) -> str | None:
        if metric is not None and metric not in METRICS:
            raise ValueError(f"there is no metric {metric!r}{nearest(metric, METRICS)}")
        return metric


class TrainOptions(TypedDict, total=False):
    """The names and types of ``TrainSettings`` as keyword arguments of ``Federation.train``, for type checkers.

    ``TrainSettings`` checks the values of a settings file and of keyword arguments alike.
    """

    epochs: int
    batch_size: int | Literal["auto"]
    batches: Batches
    rows: RowKind
    seed: int
    validation: float
    test: float
    score_training: int
    metric: str | None
    patience: int | Literal["none"] | None
    keep: Keep
    checkpoint_every: int
    balance: bool
    calibrate: bool
    extreme: Extreme
    require: Require
    device: str
    execution: Execution


def _id_columns(value: Any) -> Any:
    """Reject a value that is neither the name of a column nor a list of different names."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(name and isinstance(name, str) for name in names):
        raise ValueError("expected the name of a column, or a list of names")
    if len(set(names)) < len(names):
        raise ValueError("expected different names of columns")
    return value


def _table(value: Any) -> Any:
    """Reject an empty text, which would mean the current folder."""
    if value == "":
        raise ValueError("expected the name of a file or folder; leave it out if the party has no table here")
    return value


Id = Annotated[str | tuple[str, ...], BeforeValidator(_id_columns)]


class SplitSettings(Settings):
    """Settings for the split of the active party's labelled rows into training, validation and test rows.

    ``train.validation`` and ``train.test`` are the shares of validation and test rows.  ``kind`` selects how a row is
    assigned to one of the three parts (training, validation, test):

    - ``"stratified"``: every class has the same share in each part.  The part of a row depends only on its id, the
      labels and the seed. If ``parties`` is true, every combination of present parties also has the same share in each
      part.
    - ``"random"``: rows are assigned at random, independently of their classes, as in earlier versions.
    - ``"group"``: rows with the same value in the column ``group`` are in the same part.
    - ``"time"``: the column ``time`` has the time of each row, and the latest rows are test rows.
    - ``"file"``: the column ``file`` contains train, validation or test.
    - ``"ids"``: the caller in Python listed the ids of the rows in each part.

    The settings ``group``, ``time`` and ``file`` are names of columns in the active party's table. These columns are
    not features.
    """

    kind: SplitKind = "stratified"
    parties: bool = False
    group: str | None = None
    time: str | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _one_column(self) -> SplitSettings:
        columns = {"group": self.group, "time": self.time, "file": self.file}
        for name, column in columns.items():
            if name == self.kind and column is None:
                raise ValueError(f'kind = "{name}" needs the name of a column: {name} = "COLUMN"')
            if name != self.kind and column is not None:
                raise ValueError(f'{name} only applies to kind = "{name}", and kind is "{self.kind}"; leave it out')
        if self.parties and self.kind != "stratified":
            raise ValueError(f'parties only applies to kind = "stratified", and kind is "{self.kind}"; leave it out')
        return self

    @property
    def column(self) -> str | None:
        """The column that the split reads in the active party's table, or None."""
        return self.group or self.time or self.file


ENCODER_KINDS = {
    "mlp": ("hidden", "activation", "dropout", "norm"),
    "resnet": ("shape", "widths", "depths"),
    "lstm": ("steps", "memory"),
    "table": ("units", "bins", "drop"),
}
"""Each kind of network, with the settings that only this kind has."""


class Encoder(Settings):
    """Settings of an encoder: ``kind`` with its settings, or ``factory = "module:name"`` for user-defined code.

    Attributes:
        kind: "mlp" for columns, "resnet" for images, "lstm" for series, "table" for business tables.
        hidden: mlp: the widths of the hidden layers.
        activation: mlp: the function after each hidden layer.
        dropout: mlp: the probability with which a hidden number is set to zero in training.
        norm: mlp: whether layer normalisation follows each hidden layer.
        shape: resnet: channels, height and width of an image.
        widths: resnet: the number of channels of each group of residual blocks.
        depths: resnet: the number of residual blocks in each group.
        steps: lstm: the length of the series.
        memory: lstm: the width of the state.
        units: table: the width of the hidden layer.
        bins: table: the number of bins of a column.
        drop: table: the probability with which a hidden number is set to zero in training.
        factory: a class or function of your own, "module:name", in place of a kind.
    """

    kind: Literal["mlp", "resnet", "lstm", "table"] = "mlp"
    hidden: tuple[Width, ...] = MLP.hidden
    activation: str = MLP.activation
    dropout: Share = MLP.dropout
    norm: bool = MLP.norm
    shape: tuple[Width, Width, Width] | None = None
    widths: tuple[Width, ...] = ResNet.widths
    depths: tuple[Width, ...] = ResNet.depths
    steps: Width | None = None
    memory: Width = LSTM.hidden
    units: Width = TableEncoder.units
    bins: Annotated[int, Field(ge=2)] = TableEncoder.bins
    drop: Share = TableEncoder.drop
    factory: str | None = None

    def make(self, setting: str = "encoder.factory", allowed: AllowedCode = NOTHING) -> Factory:
        """Return the factory that builds the encoder network.

        Args:
            setting: the name of the setting that holds ``factory``, for error messages.
            allowed: the user code that may be imported.

        Raises:
            ConfigError: a setting is missing or out of range, or the code in ``factory`` cannot be loaded.
        """
        if self.factory is not None:
            return load_encoder(self.factory, setting, allowed)
        if self.kind == "resnet":
            if self.shape is None:
                raise ConfigError("encoder: kind 'resnet' needs shape = [channels, height, width]")
            return ResNet(shape=self.shape, widths=self.widths, depths=self.depths)
        if self.kind == "lstm":
            if self.steps is None:
                raise ConfigError("encoder: kind 'lstm' needs steps, the length of the series")
            return LSTM(steps=self.steps, hidden=self.memory)
        if self.kind == "table":
            return TableEncoder(units=self.units, bins=self.bins, drop=self.drop)
        return MLP(hidden=self.hidden, activation=self.activation, dropout=self.dropout, norm=self.norm)

    @model_validator(mode="after")
    def _ranges(self) -> Encoder:
        """Reject settings that have no effect or are out of range.

        A setting without effect is accepted if it has its default value, because saved settings contain every default.
        """
        wanted = ("factory",) if self.factory is not None else ("kind", "factory", *ENCODER_KINDS[self.kind])
        fields = type(self).model_fields
        idle = [name for name in fields if name not in wanted and getattr(self, name) != fields[name].default]
        if idle and self.factory is not None:
            raise ValueError(f"{some(idle)} would do nothing with factory = {self.factory!r}, which makes the whole "
                             f"network; leave it out")  # fmt: skip
        if idle:
            owner = next(kind for kind, names in ENCODER_KINDS.items() if idle[0] in names)
            raise ValueError(f"{some(idle)} would do nothing with kind = {self.kind!r}; set kind = {owner!r}, or "
                             f"leave it out: {self.kind!r} takes {', '.join(ENCODER_KINDS[self.kind])}")  # fmt: skip
        if self.factory is None:
            self.make()
        return self


def superseded(key: str, value: object) -> tuple[str, ...]:
    """Return the names of the encoder settings that no longer apply after ``key`` is set to ``value``.

    Only the keys "kind" and "factory" make other settings inapplicable.

    >>> superseded("kind", "lstm")
    ('factory', 'hidden', 'activation', 'dropout', 'norm', 'shape', 'widths', 'depths', 'units', 'bins', 'drop')
    """
    if key == "factory":
        return ("kind", *(name for names in ENCODER_KINDS.values() for name in names))
    if key == "kind" and value in ENCODER_KINDS:
        return ("factory", *(name for kind, names in ENCODER_KINDS.items() if kind != value for name in names))
    return ()


class PartySettings(ReadingSettings):
    """Settings of one party.  If ``columns`` is false, only the party's ids and labels are used.

    ``label`` is the label column, if this party is not the active one.  ``drop`` lists columns to ignore.  If ``scale``
    is true, numbers are standardised.  ``encoder`` and ``optimizer`` replace the groups of these names for this party.

    ``table`` is a file, a folder, a pattern such as "bank-*.csv", or "-" for standard input.  Several files of a
    folder or pattern together form one table.  ``id`` is a column, or a list of columns that together identify a row.
    ``duplicates`` is the reaction to rows with the same id: "error" stops with an error, "first" and "last" keep one of
    the rows, and "mean" makes one row with the mean of numbers and the most frequent category.

    ``separator``, ``quote`` and ``encoding`` of a CSV file, ``sheet`` of a workbook, and ``decimal``, replace the
    values that are detected in the file.  ``missing`` lists, for each column, texts and numbers that mark a missing
    cell or a missing label, such as ``{income = [-999, "refused"]}``.  ``limits`` selects, for each column, how limits
    such as <25 and ranges such as 10-20 are read: "half" (12.5 and 15), "value" (25 and 15) or "missing".  ``types``
    corrects the kind of a column: "numeric", "categorical", "date" or "text".  ``dates`` selects, for each column, how
    dates are written: "day-first", "month-first", "year-first", or a format such as "%d.%m.%y".  ``max_levels`` is the
    largest number of categories of a column.  If a column has more categories, the rarest ones are merged into one.
    """

    table: Annotated[UserPath | None, BeforeValidator(_table)] = None
    columns: bool = True
    id: Id | None = None
    duplicates: Duplicates = "error"
    label: str | None = None
    drop: tuple[str, ...] = ()
    scale: bool = True
    max_levels: Annotated[int, Field(ge=2)] = MANY_LEVELS
    encoder: Encoder | None = None
    optimizer: Optimizer | None = None


def _as_text(value: Any) -> Any:
    """Convert a class that is a boolean or a number to text, as in cells: ``True`` to "true", ``1.0`` to "1"."""
    value = value.item() if isinstance(value, np.generic) else value
    return as_level(pl.Series([value]))[0] if isinstance(value, bool | int | float) else value


class FederationSettings(Settings):
    """Settings of the data that all parties share.

    ``id`` is the column of ids, or a list of columns.  ``id_normalize`` lists the changes that every party makes to its
    ids before they are compared, such as ["strip-zeros"]; by default ids are not changed.  ``label`` is a column of the
    active party's table.  If ``active`` is not set, the active party is the only party that has this column.

    If ``task`` is "auto", text, booleans, at most 20 different whole numbers, and codes of classes that are often
    repeated are classes; other numbers are a regression.  An error asks if both are plausible for whole numbers.

    ``positive`` is the positive class of a binary task, for F1 and the area under the ROC curve.  By default it is the
    second class in sorted order.  ``classes`` lists the classes, ``["no", "yes"]``, or the spellings of each class,
    ``{yes = ["true", 1], no = ["0"]}``. By default every distinct label is a class. If ``merge_spellings`` is true,
    every party merges categories that differ only in case, spaces, invisible characters or forms of Unicode.

    ``salt`` is an input of the hashes in private alignment.  It should differ between federations, and is not a secret.
    ``max_cell_bytes`` is the maximum size of an id, a label, any other text cell or a column name; longer text is an
    error.  If ``incremental`` is true, each party keeps its secret and the state of the private alignment on its own
    disk.  A later alignment then processes only new ids, and the active party can recognise rows of earlier alignments.
    """

    id: Id = "id"
    id_normalize: Annotated[tuple[str, ...], AfterValidator(check_normalize)] = ()
    label: str | None = None
    active: str | None = None
    task: Literal["auto", "classification", "regression"] = "auto"
    positive: Annotated[str | None, BeforeValidator(_as_text)] = None
    merge_spellings: bool = False
    classes: Annotated[dict[str, tuple[str, ...]] | None, BeforeValidator(reading_rules.classes)] = None
    salt: str = "anyparty"
    max_cell_bytes: Annotated[int, Field(ge=1)] = MAX_BYTES
    incremental: bool = False


class _Named(BaseModel):
    """Base class for settings with the name of a component, such as a method, and its parameters."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    @model_validator(mode="after")
    def _held(self) -> Self:
        """Reject parameters that a settings file cannot store."""
        for key, value in (self.model_extra or {}).items():
            check_held(key, value)
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """The component's parameters; lists are converted to tuples."""
        return {
            key: tuple(value) if isinstance(value, list) else value for key, value in (self.model_extra or {}).items()
        }


class MethodSettings(_Named):
    """A method name, or ``factory = "module:name"`` for a user-defined method, plus the method's parameters.

    ``name`` may also be given for a user-defined method; by default it is the part of ``factory`` after the colon.
    Users do not set ``own``. In the saved settings of a run, ``own`` holds the parameters of a user-defined method, for
    information.
    """

    name: str = "sum"
    factory: str | None = None
    own: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _called(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "name" in values or not isinstance(values.get("factory"), str):
            return values
        return values | {"name": values["factory"].rpartition(":")[2]}

    @model_validator(mode="after")
    def _kept(self) -> Self:
        if self.own is not None and self.factory is None and not self.name.startswith("own: "):
            raise ValueError(f"own only applies to a user-defined method, and {self.name!r} is built in; leave it out")
        return self


class ScheduleSettings(_Named):
    """A schedule, and the schedule's parameters.

    Attributes:
        name: "p-bcd", "sync-min", "sync-max", "vafl", "flex" or "adaptive-flex".
    """


class ClockSettings(Settings):
    """Settings of the clock that schedules use. By default, time is simulated, in units of your choice.

    Attributes:
        real: whether time is measured, not simulated; only ``timeout`` and ``grace`` then apply, in seconds.
        grace: seconds that a host waits for late parties in ``flex`` and ``adaptive-flex`` with the real clock; by
            default the time-out.
        iteration: time of one local iteration, for all parties or by party (1 for a party that is not listed).
        latency: time of one round trip between a passive party and the active party.
        timeout: time of the local training in a round, for schedules with a time-out.
        use: for each party, the share c of its CPU that other programs use in each round; an iteration then takes
            1 / (1 - c) times as long.
        trace: a CSV file with the shares c, a column for each party and a line for each round. After the last line,
            reading continues with the first line.
    """

    real: bool = False
    grace: float | None = None
    iteration: float | dict[str, float] = 1.0
    latency: float = 1.0
    timeout: float = 10.0
    use: dict[str, tuple[float, ...]] = {}
    trace: UserPath | None = None


def _named(value: Any) -> Any:
    if value == "":
        raise ValueError('expected the name of a folder, such as "runs/first"; leave it out for the default one')
    return value


class RunSettings(Settings):
    """Settings of a run.

    Attributes:
        folder: the folder for the results; by default runs/NAME beside the settings file.
    """

    folder: Annotated[UserPath | None, BeforeValidator(_named)] = None


class TrackSettings(Settings):
    """Settings of the experiment trackers TensorBoard and MLflow.

    If ``tensorboard`` is true, event files are written to the run's folder.
    ``mlflow`` is the address of a tracking server, and ``experiment`` is the name of the experiment there.  Never put a
    secret here, because a run saves and shows all settings.
    """

    tensorboard: bool = False
    mlflow: str | None = None
    experiment: str = "anyparty"

    @model_validator(mode="after")
    def _something_to_do(self) -> TrackSettings:
        if "experiment" in self.model_fields_set and not self.mlflow and self.experiment != "anyparty":
            raise ValueError("experiment only applies to MLflow; set track.mlflow, or leave it out")
        return self

    @model_validator(mode="after")
    def _no_secret(self) -> TrackSettings:
        if self.mlflow and urlsplit(self.mlflow).password is not None:
            raise ValueError("mlflow should be an address without a password: set MLFLOW_TRACKING_USERNAME and "
                             "MLFLOW_TRACKING_PASSWORD, or the whole address as MLFLOW_TRACKING_URI and "
                             "mlflow = 'environment'")  # fmt: skip
        return self


METHOD_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "sum": {
        "method": {"embedding": 16},
        "train": {"epochs": 15, "batch_size": "auto", "keep": "best", "patience": None, "calibrate": True},
        "encoder": Encoder(kind="table"),
        "optimizer": Optimizer(name="adamw", lr=4e-3, weight_decay=0.05, schedule="cosine"),
    },
}
"""The defaults of settings that belong to a method; other methods have the defaults of the groups."""


class Config(Settings):
    """All settings of a federation.

    A method may have defaults of its own (``METHOD_DEFAULTS``).  In [method] and [train], they apply to each setting
    that is not given.  They apply to [encoder] and [optimizer] only if the whole group is not given, and not to a
    training with a [schedule].

    ``allowed_code`` lists the user code that the settings may load; by default the settings may not load any code.
    """

    federation: FederationSettings = FederationSettings()
    parties: dict[str, PartySettings] = {}
    encoder: Encoder = Encoder()
    optimizer: Optimizer = Optimizer()
    method: MethodSettings = MethodSettings()
    schedule: ScheduleSettings | None = None
    clock: ClockSettings | None = None
    train: TrainSettings = TrainSettings()
    split: SplitSettings = SplitSettings()
    run: RunSettings = RunSettings()
    track: TrackSettings = TrackSettings()
    _allowed_code: AllowedCode = PrivateAttr(NOTHING)

    @model_validator(mode="after")
    def _names_fit(self) -> Config:
        active = self.federation.active
        if active is not None and self.parties and active not in self.parties:
            raise ValueError(f"the active party {active!r} is not among the parties{nearest(active, self.parties)}")
        return self

    def with_method_defaults(self) -> Config:
        """Return a copy in which the method's own defaults replace the defaults of settings that are not given."""
        own = METHOD_DEFAULTS.get(self.method.name)
        if own is None or self.method.factory is not None or self.schedule is not None:
            return self
        changed = {name: own[name] for name in ("encoder", "optimizer") if name not in self.model_fields_set}
        for name in ("method", "train"):
            group: BaseModel = getattr(self, name)
            unset = {key: value for key, value in own[name].items() if key not in group.model_fields_set}
            changed[name] = group.model_copy(update=unset)
        return self.model_copy(update=changed)

    def reading(self, party: str) -> dict[str, Any]:
        """Return the settings for reading a party's table, as keyword arguments of ``read_table``."""
        own, federation = self.parties.get(party, PartySettings()), self.federation
        return {
            "id": own.id or federation.id,
            "id_normalize": federation.id_normalize,
            "duplicates": own.duplicates,
            "file": own.file,
            "max_cell_bytes": federation.max_cell_bytes,
        }

    @property
    def allowed_code(self) -> AllowedCode:
        """The user code that these settings may load."""
        return self._allowed_code

    @property
    def code(self) -> tuple[str, ...]:
        """The ``"module:Name"`` references to user code in these settings, without duplicates."""
        encoders = [self.encoder, *(party.encoder for party in self.parties.values() if party.encoder is not None)]
        named = [self.method.factory, *(encoder.factory for encoder in encoders)]
        return tuple(dict.fromkeys(name for name in named if name is not None))

    def allowing(self, allow_code: AllowedCode | Iterable[str]) -> Config:
        """Return a copy of the settings with permission to load the modules in ``allow_code``.

        Raises:
            ConfigError: ``allow_code`` is not a list of module names.
        """
        allowed = allow_code if isinstance(allow_code, AllowedCode) else allowing(allow_code)
        copy: Config = self.model_copy()
        copy._allowed_code = allowed
        return copy

    def encoder_of(self, party: str) -> Factory:
        """Return the factory of a party's encoder: the party's own or, if it has none, the default for all parties.

        Raises:
            ConfigError, CodeNotAllowed: a user-defined encoder cannot be loaded, or the user has not allowed its code.
        """
        own = self.parties.get(party)
        shared = f"encoder.factory, for party {party!r}"
        setting = f"parties.{party}.encoder.factory" if own and own.encoder else shared
        return self.encoder_settings(party).make(setting, self.allowed_code)

    def encoder_settings(self, party: str) -> Encoder:
        """Return the settings of a party's encoder: the party's own or, if it has none, the default settings."""
        own = self.parties.get(party)
        return (own and own.encoder) or self.encoder

    def optimizer_of(self, party: str) -> Optimizer:
        """Return a party's optimizer: the party's own or, if it has none, the default for all parties."""
        own = self.parties.get(party)
        return (own and own.optimizer) or self.optimizer

    def rules_of(self, party: str) -> ReadingRules:
        """Return a party's reading rules, by which texts in cells become numbers, dates, categories or empty cells."""
        own = self.parties.get(party, PartySettings())
        federation = self.federation
        return ReadingRules(
            missing=own.missing, limits=own.limits, dates=own.dates, classes=federation.classes, task=federation.task,
            merge_spellings=federation.merge_spellings,
        )  # fmt: skip

    @property
    def plan(self) -> ProblemPlan:
        """The settings that define the problem: the split, the kind of task, and the rows to train on."""
        split, train, federation = self.split, self.train, self.federation
        return ProblemPlan(
            kind=split.kind, parties=split.parties, validation=train.validation, test=train.test, rows=train.rows,
            balance=train.balance, task=federation.task, positive=federation.positive,
        )  # fmt: skip

    def to_toml(self) -> str:
        """Return the settings, defaults included, as TOML.

        Raises:
            ConfigError: a dict or a list in the parameters contains None, which TOML cannot store.
        """
        values = self.model_dump(mode="json", exclude_none=True)
        if lacking := list(nones(values)):
            raise ConfigError(f"{lacking[0]} = None cannot be saved in the run's settings file (config.toml); leave "
                              "it out, or train without a folder")  # fmt: skip
        values["train"].setdefault("patience", NONE)  # if this key is missing, the default applies
        return tomli_w.dumps(values)
