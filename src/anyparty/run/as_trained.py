"""The settings of a run with what was given in Python in their place: a record is of what trained.

A method, an encoder or an optimizer that is an object stands for settings where some have it made the same.  What no
settings can make is named: a user's own method as ``own: TITLE``, with what ``own_method`` keeps of it under ``own``,
a user's own network as ``module:function``, also where that cannot be imported again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyparty.config import Config, Encoder
from anyparty.methods.method import Method
from anyparty.methods.table import settings_of
from anyparty.nets.mlp import Factory
from anyparty.nets.optimizer import Optimizer
from anyparty.nets.table import describe
from anyparty.run.own_method import described


def as_trained(
    config: Config, method: Method | None, trained: Method, encoders: Mapping[str, Factory],
    optimizers: Mapping[str, Optimizer],
) -> Config:  # fmt: skip
    """Return the settings of a run that was given a method, encoders and optimizers by party.

    ``trained`` is the method without its schedule: the one that was given, or else the one that the settings choose.
    """
    parties = {}
    for name, party in config.parties.items():
        changed: dict[str, Any] = {"optimizer": optimizers[name]} if name in optimizers else {}
        if name in encoders:
            changed["encoder"] = _encoder(encoders[name])
        parties[name] = party.model_copy(update=changed)
    if method is None:
        own = described(trained) if settings_of(trained) is None else None
        chosen = config.method.model_copy(update={"own": own})
        return config.model_copy(update={"parties": parties, "method": chosen})
    known = settings_of(method) or {"name": f"own: {method.can.title}", "own": described(method)}
    return config.model_copy(update={"parties": parties, "method": Config.of({"method": known}, "train").method})


def _encoder(factory: Factory) -> Encoder:
    about = describe(factory)
    if about is None:
        own = getattr(factory, "__qualname__", f"<a {type(factory).__qualname__}>")
        return Encoder(factory=f"{getattr(factory, '__module__', '')}:{own}")
    if about["kind"] == "lstm":
        about["memory"] = about.pop("hidden")
    return Encoder.model_validate(about)
