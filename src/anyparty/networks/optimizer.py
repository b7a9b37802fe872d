"""Torch's optimizers by name, with a learning rate that may decrease, or a user's own optimizer and scheduler.

A user's own optimizer and scheduler are functions that are passed to ``train``:

federation.train("laser", optimizer=lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
                 scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10))
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from anyparty.core.declared_types import as_declared
from anyparty.core.object_description import name_of
from anyparty.errors import ConfigError, continued, nearest, some

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
OF_SCHEDULES = {"final": "cosine", "milestones": "step", "gamma": "step"}


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Settings of one party's optimizer.

    The learning rate depends only on the epoch, so that a resumed run gets the same rates.

    Attributes:
        name: "sgd", "adam" or "adamw".
        lr: learning rate of the first epoch.
        weight_decay: strength of weight decay: an L2 penalty in SGD and Adam, decoupled from the gradient in AdamW.
        momentum: the momentum of SGD.
        schedule: how the learning rate changes. "constant": it never changes. "cosine": it falls from lr towards
            ``final`` x lr. "step": it is multiplied by ``gamma`` at each of ``milestones``.
        final: share of lr that the cosine schedule would reach after its last epoch.
        milestones: numbers of finished epochs after which the step schedule lowers the rate.
        gamma: factor of the step schedule.
        clip: largest norm of the gradient of a party's encoder, or of a host's heads; a longer gradient is shortened to
            this norm before each step. ``None`` does not clip.
    """

    name: str = "adam"
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    schedule: Literal["constant", "cosine", "step"] = "constant"
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    milestones: tuple[Annotated[int, Field(ge=0)], ...] = ()
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}  # pydantic rejects unknown keys

    def __post_init__(self) -> None:
        as_declared(self, Optimizer, "optimizer")
        if ":" in self.name:  # in the record of a run, a user's function is named "module:name"
            return
        if self.name not in OPTIMIZERS:
            message = f"optimizer: no {self.name!r}{nearest(self.name, OPTIMIZERS)}"
            also = "in Python, optimizer= also takes a function of parameters, such as torch.optim.RMSprop"
            raise ConfigError(continued(message, also))
        if self.momentum and self.name != "sgd":
            raise ConfigError(f"optimizer: momentum belongs to sgd, not to {self.name}")
        idle = [name for name in OF_SCHEDULES if getattr(self, name) != type(self).__dataclass_fields__[name].default]
        # A parameter of another schedule is an error only with "constant". With "cosine", for example, ``milestones``
        # is accepted, because ``--set`` may have replaced the schedule "step" of a settings file.
        if idle and self.schedule == "constant":
            raise ConfigError(f"optimizer: {some(idle)} would do nothing with schedule = 'constant'; say schedule = "
                              f"{OF_SCHEDULES[idle[0]]!r}, or leave it out")  # fmt: skip
        if self.schedule == "step" and not self.milestones:
            raise ConfigError("optimizer: schedule = 'step' would do nothing without milestones; say at which epochs "
                              "the learning rate falls, such as milestones = [50, 75]")  # fmt: skip

    def build(self, parameters: Iterable[nn.Parameter], constant: Iterable[nn.Parameter] = ()) -> torch.optim.Optimizer:
        """Return a torch optimizer; the learning rate of the parameters in ``constant`` never changes."""
        if self.name not in OPTIMIZERS:
            raise ConfigError(f"optimizer: {self.name} is a function in Python, which settings cannot store; pass it "
                              "again, train(optimizer=...)")  # fmt: skip
        settings: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay}
        if self.name == "sgd":
            settings["momentum"] = self.momentum
        groups: list[dict[str, Any]] = [
            {"params": list(parameters)}, {"params": list(constant), "schedule": "constant"},
        ]  # fmt: skip
        made = OPTIMIZERS[self.name]([group for group in groups if group["params"]], fused=True, **settings)
        if self.momentum:
            made.register_step_pre_hook(_begin_late)
        return self._clipped(made)

    def _clipped(self, made: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Let an optimizer shorten a gradient that is longer than ``clip``."""
        if self.clip is not None:
            most = self.clip

            def shorten(optimizer: torch.optim.Optimizer, *_: Any) -> None:
                nn.utils.clip_grad_norm_([each for group in optimizer.param_groups for each in group["params"]], most)

            made.register_step_pre_hook(shorten)
        return made

    def set_rate(self, optimizer: torch.optim.Optimizer, epoch: int, epochs: int) -> None:
        """Set the learning rate of an optimizer that ``build`` made, for the epoch after ``epoch`` finished epochs."""
        write_rate(optimizer, self.rate(epoch, epochs))

    def set_rate_of_step(
        self, optimizer: torch.optim.Optimizer, epoch: int, epochs: int, step: int, steps: int
    ) -> None:  # fmt: skip
        """Set the learning rate of a step, if it changes within an epoch; an epoch has ``steps`` steps."""

    def rate(self, epoch: int, epochs: int) -> float:
        """Return the learning rate of the epoch that follows ``epoch`` finished epochs."""
        if self.schedule == "cosine":
            return self.lr * (self.final + (1 - self.final) * (1 + math.cos(math.pi * epoch / epochs)) / 2)
        if self.schedule == "step":
            return self.lr * self.gamma ** sum(epoch >= milestone for milestone in self.milestones)
        return self.lr


def write_rate(optimizer: torch.optim.Optimizer, rate: float, *, constant: bool = False) -> None:
    """Write the learning rate of an optimizer; if ``constant`` is true, also of parameters whose rate is constant."""
    for group in optimizer.param_groups:
        if constant or group.get("schedule") != "constant":
            group["lr"] = rate


def _begin_late(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Add a momentum buffer of zeros for each parameter that gets its first gradient later than other parameters do.

    torch's fused step raises an error if only some of the parameters have a momentum buffer.
    """
    for group in optimizer.param_groups:
        learning = [each for each in group["params"] if each.grad is not None]
        without = [each for each in learning if optimizer.state.get(each, {}).get("momentum_buffer") is None]
        if len(without) < len(learning):
            for each in without:
                optimizer.state[each]["momentum_buffer"] = torch.zeros_like(each)


MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
MakeScheduler = Callable[..., LRScheduler]
ATTRIBUTE = "anyparty_scheduler"
FORM = "a function such as lambda parameters: torch.optim.RMSprop(parameters, lr=0.01)"


@dataclass(frozen=True, kw_only=True)
class CustomOptimizer(Optimizer):
    """An optimizer, its learning-rate scheduler, or both, made by a user's functions.

    Attributes:
        make: function from a list of parameters to a torch optimizer. If ``None``, ``base`` makes the optimizer.
        scheduler: function from the optimizer to a scheduler, which takes one step per epoch. A function of (optimizer,
            steps) gets the number of steps of the whole training, and its scheduler takes one step per batch. A resumed
            run repeats the scheduler's earlier steps, so the learning rate may depend only on the index of the epoch or
            step. ``None`` means no scheduler.
        base: the settings that are used if ``make`` is ``None``.

    """

    make: MakeOptimizer | None = field(default=None, repr=False)
    scheduler: MakeScheduler | None = field(default=None, repr=False)
    base: Optimizer = Optimizer()

    def __post_init__(self) -> None:
        """Copy the settings in ``base`` to this object, and make ``name`` from the names of the user's functions."""
        for each in fields(Optimizer):
            object.__setattr__(self, each.name, getattr(self.base, each.name))
        named = [name_of(function) for function in (self.make, self.scheduler) if function is not None]
        object.__setattr__(self, "name", " with ".join(named if self.make else [self.base.name, *named]))

    def build(self, parameters: Iterable[nn.Parameter], constant: Iterable[nn.Parameter] = ()) -> torch.optim.Optimizer:
        """Return an optimizer of all parameters; if the user has given a scheduler, it is attached to the optimizer.

        Raises:
            ConfigError: a function returned an object of a wrong type, or the scheduler needs a metric.
        """
        if self.make is None:
            made: Any = self.base.build(parameters, constant)
        else:
            made = self.make([*parameters, *constant])
            if not isinstance(made, torch.optim.Optimizer):
                raise ConfigError(f"optimizer: expected a torch.optim.Optimizer from {self.name}, got {made!r}")
            made = self._clipped(made)
        if self.scheduler is not None and not self.counts_steps:
            self._attach(made)
        return made  # type: ignore[no-any-return]

    @property
    def counts_steps(self) -> bool:
        """True if the scheduler takes one step per batch, because its function takes (optimizer, steps)."""
        if self.scheduler is None:
            return False
        try:
            parameters = inspect.signature(self.scheduler).parameters.values()
        except ValueError:  # a class or function written in C may have no signature
            return False
        return sum(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters) == 2

    def _attach(self, optimizer: torch.optim.Optimizer, *steps: int) -> LRScheduler:
        assert self.scheduler is not None
        make: Any = self.scheduler
        scheduler = make(optimizer, *steps)
        if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ConfigError("scheduler: expected a function of the optimizer that returns a scheduler of "
                              "torch.optim.lr_scheduler whose rate depends on the epoch only, such as "
                              f"lambda optimizer: StepLR(optimizer, 10), got {scheduler!r}")  # fmt: skip
        setattr(optimizer, ATTRIBUTE, scheduler)
        return scheduler

    def set_rate(self, optimizer: torch.optim.Optimizer, epoch: int, epochs: int) -> None:
        """Advance the scheduler to ``epoch``, the number of finished epochs: one step for each epoch.

        Without a scheduler, the learning rate changes only if the settings in ``base`` created the optimizer.
        """
        if self.scheduler is None:
            if self.make is None:
                self.base.set_rate(optimizer, epoch, epochs)
        elif not self.counts_steps:
            self._advance(optimizer, epoch)

    def set_rate_of_step(
        self, optimizer: torch.optim.Optimizer, epoch: int, epochs: int, step: int, steps: int
    ) -> None:  # fmt: skip
        """Advance a scheduler that takes one step per batch to a step of an epoch with ``steps`` steps."""
        if self.counts_steps:
            self._advance(optimizer, epoch * steps + step, epochs * steps)

    def _advance(self, optimizer: torch.optim.Optimizer, place: int, *steps: int) -> None:
        scheduler = getattr(optimizer, ATTRIBUTE, None) or self._attach(optimizer, *steps)
        if scheduler.last_epoch > place:  # a new stage has begun: epochs and steps are counted from 0 again
            for group in optimizer.param_groups:
                group["lr"] = group.pop("initial_lr")
            scheduler = self._attach(optimizer, *steps)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            while scheduler.last_epoch < place:
                scheduler.step()


def optimizer_from(
    given: Any, scheduler: Any, default: Optimizer, party: str, clip: float | None = None
) -> Optimizer:  # fmt: skip
    """Return the optimizer that the arguments of ``train`` describe for one party.

    Args:
        given: an ``Optimizer``, its name, a function from parameters to an optimizer, or ``None`` for ``default``.
        scheduler: a function from the optimizer to a scheduler, or ``None``.
        default: the optimizer of the settings.
        party: the party's name, for error messages.
        clip: the largest norm of a gradient, in place of that of the settings; ``None`` leaves it.

    Raises:
        ConfigError: ``given`` or ``scheduler`` has a wrong type, or the name is unknown.
    """
    if isinstance(given, str):
        if given not in OPTIMIZERS:
            message = f"optimizer: no {given!r}{nearest(given, OPTIMIZERS)}"
            raise ConfigError(continued(message, f"a name, Optimizer(name=..., lr=...) or {FORM} was expected"))
        given = Optimizer(name=given)
    if scheduler is not None and not callable(scheduler):
        raise ConfigError("scheduler: expected a function such as lambda optimizer: "
                          f"torch.optim.lr_scheduler.StepLR(optimizer, 10), got {scheduler!r}")  # fmt: skip
    if given is None or isinstance(given, Optimizer):
        base = given or default
        base = base if clip is None else replace(base, clip=clip)
        return base if scheduler is None else CustomOptimizer(base=base, scheduler=scheduler)
    if not callable(given) or isinstance(given, torch.optim.Optimizer):
        raise ConfigError(f'party {party!r}: optimizer should be an Optimizer, such as Optimizer(name="sgd", lr=0.1), '
                          f"or {FORM}, got {given!r}")  # fmt: skip
    base = Optimizer() if clip is None else Optimizer(clip=clip)
    return CustomOptimizer(make=given, scheduler=scheduler, base=base)
