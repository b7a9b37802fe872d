"""A user's own torch optimizer or learning-rate scheduler in place of the settings of ``Optimizer``.

federation.train("laser", optimizer=lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
                 scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10))
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from anyparty.errors import ConfigError, nearest
from anyparty.networks.optimizer import OPTIMIZERS, Optimizer

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
MakeScheduler = Callable[[torch.optim.Optimizer], LRScheduler]
ATTRIBUTE = "anyparty_scheduler"
FORM = "a function such as lambda parameters: torch.optim.RMSprop(parameters, lr=0.01)"


@dataclass(frozen=True, kw_only=True)
class CustomOptimizer(Optimizer):
    """An optimizer that a user's function makes; a scheduler that another function makes sets its learning rate.

    Attributes:
        make: makes a torch optimizer of a list of parameters.  ``None`` uses ``base``.
        scheduler: makes a scheduler, which takes one step per epoch.  A resumed run repeats these steps, so the rate
            may depend on the number of the epoch only.
        base: the settings if ``make`` is ``None``.

    """

    make: MakeOptimizer | None = field(default=None, repr=False)
    scheduler: MakeScheduler | None = field(default=None, repr=False)
    base: Optimizer = Optimizer()

    def __post_init__(self) -> None:
        """Name the function in the record of the run; with ``base``, record its values."""
        for each in fields(Optimizer):
            object.__setattr__(self, each.name, getattr(self.base, each.name))
        named = [name_of(function) for function in (self.make, self.scheduler) if function is not None]
        object.__setattr__(self, "name", " with ".join(named if self.make else [self.base.name, *named]))

    def build(self, parameters: Iterable[nn.Parameter], constant: Iterable[nn.Parameter] = ()) -> torch.optim.Optimizer:
        """Return the user's optimizer of all parameters.

        Raises:
            ConfigError: a function returned an object of another type, or the scheduler needs a metric.
        """
        if self.make is None:
            made: Any = self.base.build(parameters, constant)
        else:
            made = self.make([*parameters, *constant])
            if not isinstance(made, torch.optim.Optimizer):
                raise ConfigError(f"optimizer: expected a torch.optim.Optimizer from {self.name}, got {made!r}")
        if self.scheduler is not None:
            self._attach(made)
        return made  # type: ignore[no-any-return]

    def _attach(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        assert self.scheduler is not None
        scheduler: Any = self.scheduler(optimizer)
        if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ConfigError("scheduler: expected a function of the optimizer that returns a scheduler of "
                              "torch.optim.lr_scheduler whose rate depends on the epoch only, such as "
                              f"lambda optimizer: StepLR(optimizer, 10), got {scheduler!r}")  # fmt: skip
        setattr(optimizer, ATTRIBUTE, scheduler)
        return scheduler

    def set_rate(self, optimizer: torch.optim.Optimizer, epoch: int, epochs: int) -> None:
        """Let the scheduler take its steps of ``epoch`` finished epochs."""
        if self.scheduler is None:
            if self.make is None:
                self.base.set_rate(optimizer, epoch, epochs)
            return
        scheduler = getattr(optimizer, ATTRIBUTE)
        if scheduler.last_epoch > epoch:  # a later stage begins at epoch 0 again
            for group in optimizer.param_groups:
                group["lr"] = group.pop("initial_lr")
            scheduler = self._attach(optimizer)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            while scheduler.last_epoch < epoch:
                scheduler.step()


def name_of(function: Any) -> str:
    """Return the module and the name of a function, for records."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '')}:{name}"


def optimizer_from(given: Any, scheduler: Any, default: Optimizer, party: str) -> Optimizer:
    """Return the optimizer that the arguments of ``train`` describe for one party.

    Args:
        given: an ``Optimizer``, the name of one, a function of parameters, or ``None`` for ``default``.
        scheduler: a function of the optimizer, or ``None``.
        default: the optimizer of the settings.
        party: the party, for messages.

    Raises:
        ConfigError: ``given`` or ``scheduler`` has another type, or the name is unknown.
    """
    if isinstance(given, str):
        if given not in OPTIMIZERS:
            raise ConfigError(f"optimizer: no {given!r}{nearest(given, OPTIMIZERS)}; known are "
                              f"{', '.join(OPTIMIZERS)}, Optimizer(name=..., lr=...), and {FORM}")  # fmt: skip
        given = Optimizer(name=given)
    if scheduler is not None and not callable(scheduler):
        raise ConfigError("scheduler: expected a function such as lambda optimizer: "
                          f"torch.optim.lr_scheduler.StepLR(optimizer, 10), got {scheduler!r}")  # fmt: skip
    if given is None or isinstance(given, Optimizer):
        base = given or default
        return base if scheduler is None else CustomOptimizer(base=base, scheduler=scheduler)
    if not callable(given) or isinstance(given, torch.optim.Optimizer):
        raise ConfigError(f'party {party!r}: optimizer should be an Optimizer, such as Optimizer(name="sgd", lr=0.1), '
                          f"or {FORM}, got {given!r}")  # fmt: skip
    return CustomOptimizer(make=given, scheduler=scheduler)
