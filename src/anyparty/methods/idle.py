"""Reject parameters that have no effect with a method's other settings.

Only parameters that differ from their default are rejected: setting the default is the same as leaving it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from anyparty.core.types import Party, Roster
from anyparty.errors import ConfigError, some
from anyparty.methods.one_exchange.apc import Apc
from anyparty.methods.one_exchange.vfedtrans import VFedTrans
from anyparty.methods.split.pretraining import SelfSupervised
from anyparty.methods.split.split_method import Split


@dataclass(frozen=True)
class IgnoredParameters:
    """Parameters of a method, or of its family, that have no effect under a condition.

    Attributes:
        of: the classes that have the parameters.
        names: names of the parameters.
        where: returns whether the parameters have no effect with an object's other settings.
        condition: text of this condition for the error message.

    """

    of: tuple[type, ...]
    names: tuple[str, ...]
    where: Callable[[Any], bool]
    condition: str


TWO = Roster((Party(name="first", labels=True), Party(name="second", labels=True)), "first")  # both could be hosts
ENDS, FIRST = (Apc, VFedTrans), (SelfSupervised,)  # FedHSSL inherits from SelfSupervised
IDLE = (
    IgnoredParameters(ENDS, ("head_hidden",), lambda of: of.classifier != "head", "without classifier = 'head'"),
    IgnoredParameters(
        ENDS,
        ("classifier_settings",),
        lambda of: of.classifier == "head",
        "with classifier = 'head', a network, which has head_hidden",
    ),
    IgnoredParameters(
        (Apc,),
        ("active_embedding", "passive_embedding", "joint_hidden", "precision"),
        lambda of: not of.exchanges,
        "with distillation = 0 and classify_on = 'own': the active party trains alone",
    ),
    IgnoredParameters(
        (Apc,),
        ("student_hidden", "distance", "reduction", "distillation"),
        lambda of: of.classify_on == "joint",
        "with classify_on = 'joint', which has no student",
    ),
    IgnoredParameters(ENDS, ("distance",), lambda of: of.distillation == 0, "with distillation = 0"),
    IgnoredParameters(
        FIRST, ("pretrain_temperature",), lambda of: of.pretrain in {"simsiam", "byol"}, "without pretrain = 'moco'"
    ),
    IgnoredParameters(
        FIRST, ("pretrain_follow",), lambda of: of.pretrain == "simsiam", "without pretrain = 'byol' or 'moco'"
    ),
    IgnoredParameters(
        (Split,),
        ("hosting",),
        lambda of: of.rule.owners(TWO) is None,
        "here: the heads belong to no party, and all stand at the active one",
    ),
    IgnoredParameters(
        (Split,), ("head_hidden",), lambda of: of.make_head is not None, "with make_head, which makes the whole head"
    ),
)
"""All parameters that may have no effect, listed by hand."""


def check(name: str, parts: Iterable[Any], given: Mapping[str, Any]) -> None:
    """Reject given parameters that have no effect with the other settings of the method ``name``.

    ``parts`` are the method and the settings that it shares with its family. ``given`` are the user's parameters.

    Raises:
        ConfigError: a parameter has no effect; the message names it.
    """
    for part in parts:
        for each in IDLE:
            if not isinstance(part, each.of) or not each.where(part):
                continue
            usual = type(part)(**_required(part))
            idle = [key for key in each.names if key in given and getattr(part, key) != getattr(usual, key)]
            if idle:
                raise ConfigError(f"method {name!r}: {some(idle)} would do nothing {each.condition}")


def _required(part: Any) -> dict[str, Any]:
    return {"rule": part.rule} if isinstance(part, Split) else {}
