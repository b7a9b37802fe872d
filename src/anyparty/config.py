"""Run settings: one TOML file per federation, checked before anything is read.

[federation]            id and label columns, which party leads
[parties.NAME]          table, and whatever is this party's own: column types, encoder, optimizer
[encoder] [optimizer]   for all parties that name none of their own
[method]                name, and the method's parameters
[schedule]              when parties step: name, and the schedule's parameters
[clock]                 how long things take, in time units, for a schedule
[train]                 epochs, batches, splits, when to stop
[run]                   the folder for results
[track]                 trackers that hear of the run
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from anyparty.errors import ConfigError, nearest
from anyparty.metrics import headline
from anyparty.nets.lstm import LSTM
from anyparty.nets.mlp import MLP, Factory
from anyparty.nets.optimizer import Optimizer
from anyparty.nets.resnet import ResNet
from anyparty.terms import Task


class Settings(BaseModel):
    """A group of settings: frozen, and without room for a key that does not exist."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str = "settings") -> Any:
        """Return the settings that ``values`` describe.

        Raises:
            ConfigError: a key that does not exist (with the nearest one) or a value out of range.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(f"{source}: {_explain(error, cls)}") from None


class TrainSettings(Settings):
    """How a run trains, the same at every party.

    ``validation`` and ``test`` are shares of the labelled rows, drawn before anything is fitted.  ``patience`` is in
    epochs without a better ``metric`` on validation rows; ``keep`` says which weights remain.  ``balance`` lets every
    class count as much as any other, however rare (a weight on the loss, so that nobody learns labels from batches).
    """

    epochs: Annotated[int, Field(ge=1)] = 100
    batch_size: Annotated[int, Field(ge=1)] = 128
    batches: Literal["mixed", "by-pattern"] = "mixed"
    seed: Annotated[int, Field(ge=0)] = 0
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.15
    test: Annotated[float, Field(ge=0, lt=1)] = 0.2
    metric: str | None = None
    patience: Annotated[int, Field(ge=1)] | None = 20
    keep: Literal["best", "last"] = "best"
    checkpoint_every: Annotated[int, Field(ge=1)] = 5
    balance: bool = False
    device: str = "cpu"

    @model_validator(mode="after")
    def _some_rows_remain(self) -> TrainSettings:
        if self.validation + self.test >= 1:
            raise ValueError(f"validation {self.validation} and test {self.test} leave no rows to train on")
        return self

    def metric_for(self, task: Task) -> tuple[str, bool]:
        """Return the metric that selects epochs, and whether more of it is better.

        Raises:
            ConfigError: no such metric, or it does not fit the task.
        """
        return headline(task, self.metric)


class Encoder(Settings):
    """A network by ``kind`` and that kind's own settings, or ``factory = "module:function"`` for a user's own module.

    ``kind = "mlp"`` takes hidden, activation, dropout, norm; ``"resnet"`` shape, widths, depths; ``"lstm"`` steps,
    memory.
    """

    kind: Literal["mlp", "resnet", "lstm"] = "mlp"
    hidden: tuple[int, ...] = (64,)
    activation: str = "relu"
    dropout: float = 0.0
    norm: bool = False
    shape: tuple[int, int, int] | None = None
    widths: tuple[int, ...] = (64, 128, 256, 512)
    depths: tuple[int, ...] = (2, 2, 2, 2)
    steps: int | None = None
    memory: int = 128
    factory: str | None = None

    def make(self) -> Factory:
        """Return what makes the network.

        Raises:
            ConfigError: widths or activation out of range, or the factory cannot be imported.
        """
        if self.factory is None and self.kind == "resnet":
            if self.shape is None:
                raise ConfigError("encoder: kind 'resnet' needs shape = [channels, height, width]")
            return ResNet(shape=self.shape, widths=self.widths, depths=self.depths)
        if self.factory is None and self.kind == "lstm":
            if self.steps is None:
                raise ConfigError("encoder: kind 'lstm' needs steps, the length of the series")
            return LSTM(steps=self.steps, hidden=self.memory)
        if self.factory is None:
            return MLP(hidden=self.hidden, activation=self.activation, dropout=self.dropout, norm=self.norm)
        module, _, name = self.factory.partition(":")
        try:
            return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"encoder: cannot import factory {self.factory!r} ({error}); "
                              f"write it as 'module:function'") from None  # fmt: skip

    @model_validator(mode="after")
    def _ranges(self) -> Encoder:
        if self.factory is None:
            self.make()
        return self


class OptimizerSettings(Settings):
    """See ``anyparty.nets.optimizer.Optimizer``."""

    name: str = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.0
    schedule: str = "constant"
    final: float = 0.0
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1

    def make(self) -> Optimizer:
        """Return the optimizer's settings as the nets know them."""
        return Optimizer(**self.model_dump())

    @model_validator(mode="after")
    def _ranges(self) -> OptimizerSettings:
        self.make()
        return self


class PartySettings(Settings):
    """What is one party's own.  ``columns = false`` is a party that holds labels alone, where nobody sees its table."""

    table: Path | None = None
    columns: bool = True
    id: str | None = None
    label: str | None = None
    drop: tuple[str, ...] = ()
    types: dict[str, Literal["numeric", "categorical"]] = {}
    scale: bool = True
    encoder: Encoder | None = None
    optimizer: OptimizerSettings | None = None


class FederationSettings(Settings):
    """What all parties share about the data.

    ``label`` is a column of the active party's table; without ``active``, of the one table that has it.  ``salt`` is
    this federation's own word in the hashes of private alignment; it is no secret.
    """

    id: str = "id"
    label: str | None = None
    active: str | None = None
    task: Literal["auto", "classification", "regression"] = "auto"
    salt: str = "anyparty"


class MethodSettings(BaseModel):
    """A method's name; everything else in the group is a parameter of that method."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = "laser"

    @property
    def parameters(self) -> dict[str, Any]:
        """The method's parameters."""
        return {
            key: tuple(value) if isinstance(value, list) else value for key, value in (self.model_extra or {}).items()
        }


class ScheduleSettings(MethodSettings):
    """A schedule's name; everything else in the group is a parameter of that schedule."""

    name: str


class ClockSettings(Settings):
    """See ``anyparty.schedules.clock.Clock``; ``trace`` is a CSV file with a column of CPU use for each party.

    With ``real`` nothing is simulated, and ``timeout`` is in seconds.
    """

    real: bool = False
    iteration: float | dict[str, float] = 1.0
    latency: float = 1.0
    timeout: float = 10.0
    use: dict[str, tuple[float, ...]] = {}
    trace: Path | None = None


class RunSettings(Settings):
    """Where results go."""

    folder: Path | None = None


class TrackSettings(Settings):
    """Trackers: see ``anyparty.run.trackers``."""

    tensorboard: bool = False
    mlflow: str | None = None
    experiment: str = "anyparty"


class Config(Settings):
    """All settings of a federation, resolved."""

    federation: FederationSettings = FederationSettings()
    parties: dict[str, PartySettings] = {}
    encoder: Encoder = Encoder()
    optimizer: OptimizerSettings = OptimizerSettings()
    method: MethodSettings = MethodSettings()
    schedule: ScheduleSettings | None = None
    clock: ClockSettings | None = None
    train: TrainSettings = TrainSettings()
    run: RunSettings = RunSettings()
    track: TrackSettings = TrackSettings()

    @model_validator(mode="after")
    def _names_fit(self) -> Config:
        active = self.federation.active
        if active is not None and self.parties and active not in self.parties:
            raise ValueError(f"the active party {active!r} is not among the parties{nearest(active, self.parties)}")
        return self

    def encoder_of(self, party: str) -> Factory:
        """Return what makes a party's encoder: its own, or everybody's."""
        own = self.parties.get(party)
        return ((own and own.encoder) or self.encoder).make()

    def optimizer_of(self, party: str) -> Optimizer:
        """Return a party's optimizer: its own, or everybody's."""
        own = self.parties.get(party)
        return ((own and own.optimizer) or self.optimizer).make()

    def to_toml(self) -> str:
        """Return the settings, defaults included, as TOML."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def load(path: Path | str, changes: Sequence[str] = ()) -> Config:
    """Read a TOML file; table paths in it are relative to its folder.

    ``changes`` are like ``"train.epochs=5"``.

    Raises:
        ConfigError: no such file, not TOML, a key that does not exist, a value out of range, a party named twice.
    """
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such settings file; `anyparty demo` writes one to start from") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        twice = "; a party's name may stand only once" if "Cannot declare" in str(error) else ""
        raise ConfigError(f"{path}: this is not TOML: {error}{twice}") from None
    for change in changes:
        _apply(values, change)
    config: Config = Config.of(values, str(path))
    return _with_paths(config, path.parent)


def _apply(values: dict[str, Any], change: str) -> None:
    """Set one value, as ``--set a.b=value`` says."""
    where, equals, text = change.partition("=")
    if not equals or not where.strip():
        raise ConfigError(f"--set {change}: write it as group.key=value, for example train.epochs=5")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    *groups, key = (part.strip() for part in where.split("."))
    for group in groups:
        values = values.setdefault(group, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {change}: {group!r} is a value, not a group of settings")
    values[key] = value


def _with_paths(config: Config, folder: Path) -> Config:
    """Resolve relative paths against the settings file's folder, so that a run finds its tables from anywhere."""
    folder = folder.absolute()
    parties = {
        name: party if party.table is None else party.model_copy(update={"table": folder / party.table})
        for name, party in config.parties.items()
    }
    run = config.run if config.run.folder is None else RunSettings(folder=folder / config.run.folder)
    clock = config.clock
    if clock is not None and clock.trace is not None:
        clock = clock.model_copy(update={"trace": folder / clock.trace})
    return config.model_copy(update={"parties": parties, "run": run, "clock": clock})


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Say in a sentence what pydantic found, with the nearest key for one that does not exist."""
    said = []
    for found in error.errors(include_url=False):
        where = ".".join(str(part) for part in found["loc"]) or "settings"
        if found["type"] == "extra_forbidden":
            known = _known(model, found["loc"][:-1])
            said.append(f"no setting {where!r}{nearest(str(found['loc'][-1]), known)}")
        else:
            message = found["msg"].removeprefix("Value error, ")
            said.append(
                f"{where}: {message}" + ("" if isinstance(found["input"], dict) else f", got {found['input']!r}")
            )
    return "; ".join(said)


def _known(model: type[BaseModel], where: Sequence[int | str]) -> list[str]:
    """Return the keys of the group at ``where``."""
    groups: dict[str, type[BaseModel]] = {
        "federation": FederationSettings, "encoder": Encoder, "optimizer": OptimizerSettings,
        "train": TrainSettings, "run": RunSettings, "clock": ClockSettings, "track": TrackSettings,
    }  # fmt: skip
    for part in where:
        model = PartySettings if model is Config and part == "parties" else groups.get(str(part), model)
    return list(model.model_fields)
