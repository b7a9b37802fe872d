"""All methods by name, in a table written by hand, and the comparison of a user's own method with its description.

A parameter that would have no effect is rejected if its value differs from the default. Setting the default is the same
as leaving the parameter out.

A run folder or model stores no code. If the user passes a method object for a saved model, the description of this
object (see ``core.object_description``) must be equal to the saved description. For a method of this package, all
parameters must be equal. A saved description may lack a field that was added to the class later, if this field of the
object has its default value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, cast

from anyparty.core.declared_types import assign_parameters, checked
from anyparty.core.object_description import CLASS, described
from anyparty.core.types import Party, Roster
from anyparty.errors import ConfigError, ModelError, continued, nearest, some
from anyparty.methods.false_vfl.false_vfl import FalseVFL1, FalseVFL2
from anyparty.methods.method import Method, predictor_of
from anyparty.methods.one_exchange.apc import Apc
from anyparty.methods.one_exchange.boosting import Boosting
from anyparty.methods.one_exchange.vfedtrans import VFedTrans
from anyparty.methods.split.combinatorial import Combinatorial
from anyparty.methods.split.fedhssl import FedHSSL
from anyparty.methods.split.laser import Laser
from anyparty.methods.split.local import Ensemble, Local
from anyparty.methods.split.plug import Plug
from anyparty.methods.split.pretraining import Pretrained, SelfSupervised
from anyparty.methods.split.pseudo_labels import Pseudo, PseudoLabelled
from anyparty.methods.split.rule import Rule
from anyparty.methods.split.split_method import Split
from anyparty.methods.split.standard import Standard
from anyparty.methods.split.sum import Sum


@dataclass(frozen=True)
class IgnoredParameters:
    """Parameters of one method, or of all split methods, that have no effect under a condition.

    Attributes:
        of: the classes that have the parameters.
        names: names of the parameters.
        where: function that receives an object of these classes. It returns True if the parameters have no effect with
            the object's settings.
        condition: end of the error message, which describes the condition, such as "with distillation = 0".

    """

    of: tuple[type, ...]
    names: tuple[str, ...]
    where: Callable[[Any], bool]
    condition: str


TWO = Roster((Party(name="first", labels=True), Party(name="second", labels=True)), "first")
ENDS, FIRST = (Apc, VFedTrans), (SelfSupervised,)  # FIRST includes FedHSSL, a subclass of SelfSupervised
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
    IgnoredParameters((Boosting,), ("bins",), lambda of: of.exchange == "scores", "with exchange = 'scores'"),
    IgnoredParameters(
        (Boosting,),
        ("rounds", "score_trees", "score_leaves", "folds"),
        lambda of: of.exchange == "bins",
        "with exchange = 'bins'",
    ),
    IgnoredParameters(
        (Split,),
        ("hosting",),
        lambda of: of.plan(TWO).owners is None,
        "here: the heads belong to no party, and all stand at the active one",
    ),
    IgnoredParameters(
        (Split,), ("head_hidden",), lambda of: of.make_head is not None, "with make_head, which makes the whole head"
    ),
)
"""All parameters that have no effect under some condition, listed by hand."""


def check_idle(name: str, made: Method, given: Mapping[str, Any]) -> None:
    """Raise an error if a parameter in ``given`` has no effect with the settings of the method ``made``.

    ``given`` has the parameters that the user set.

    Raises:
        ConfigError: a parameter has no effect; the message contains the parameter's name.
    """
    for part in _layers(made):
        for each in IDLE:
            if not isinstance(part, each.of) or not each.where(part):
                continue
            usual = type(part)(**_required(part))
            idle = [key for key in each.names if key in given and getattr(part, key) != getattr(usual, key)]
            if idle:
                raise ConfigError(f"method {name!r}: {some(idle)} would do nothing {each.condition}")


def _required(part: Any) -> dict[str, Any]:
    return {"rule": part.rule} if isinstance(part, Split) else {}


SPLIT: dict[str, Callable[..., Rule]] = {
    "local": Local,
    "standard": Standard,
    "ensemble": Ensemble,
    "combinatorial": Combinatorial,
    "plug": Plug,
    "laser": Laser,
    "sum": Sum,
}
"""The rules of the split methods, by name."""

SHARED = (Split, SelfSupervised, Pseudo)
"""Classes whose fields are parameters of every split method."""

METHODS: dict[str, Callable[..., Rule | Method]] = {
    **SPLIT,
    "apc": Apc,
    "vfedtrans": VFedTrans,
    "boosting": Boosting,
    "fedhssl": FedHSSL,
    "false-vfl-1": FalseVFL1,
    "false-vfl-2": FalseVFL2,
}
"""All methods, by name."""


def parameters_of(name: str) -> tuple[Any, ...]:
    """Return the classes whose fields are the method's parameters: its own class and, for split methods, ``SHARED``."""
    return (METHODS[name], *(SHARED if name in SPLIT else ()))


@checked()
def method(name: str, **parameters: Any) -> Method:
    """Make the method with the given name from its parameters; split methods also have the parameters of ``SHARED``.

    >>> method("laser", tasks="all", embedding=32).can.title
    'LASER-VFL'

    Raises:
        ConfigError: there is no such method or parameter, a value is out of range, or a parameter has no effect with
            the other parameters.
    """
    made = made_again(name, **parameters)
    if parameters:
        check_idle(name, made, parameters)
    return made


def made_again(name: str, **parameters: Any) -> Method:
    """Make a method from saved parameters; unlike ``method``, accept parameters that have no effect.

    Raises:
        ConfigError: there is no such method or parameter, or a value is out of range.
    """
    if name not in METHODS:
        how = ("a method of your own is factory = 'module:name', or given in Python, train(METHOD): see "
               "docs/how-to/your-method.md" if ":" in name else "")  # fmt: skip
        raise ConfigError(continued(f"no method {name!r}{nearest(name, METHODS)}", how))
    if name not in SPLIT:
        return cast("Method", METHODS[name](**assign_parameters(f"method {name!r}", (METHODS[name],), parameters)[0]))
    return of_rule(name, SPLIT[name], parameters)


def of_rule(name: str, rule: Callable[..., Rule], parameters: Mapping[str, Any]) -> Method:
    """Make a split method from a rule's class, the rule's parameters and the parameters of all split methods.

    Raises:
        ConfigError: a parameter does not exist, its value is out of range, or it has no effect unless another parameter
            is set.
    """
    own, *shared = assign_parameters(f"method {name!r}", (rule, *SHARED), parameters)
    made = rule(**own)
    for given, switch, on in (
        (shared[1], "pretrain", "'simsiam', 'byol' or 'moco'"),
        (shared[2], "unlabelled", "'pseudo'"),
    ):
        if given and given.get(switch, "none") in {"none", "ignore"} and given.keys() - {switch}:
            raise ConfigError(f"method {name!r}: {some(sorted(given.keys() - {switch}))} would do nothing without "
                              f"{switch} = {on}")  # fmt: skip
    first = SelfSupervised(**shared[1]) if shared[1] else None
    then = Pseudo(**shared[2]) if shared[2] else None
    split = Split(rule=made, **shared[0])
    if then is not None and then.unlabelled == "pseudo":
        split = PseudoLabelled(rule=split.rule, **shared[0], pseudo=then)
    return split if first is None or first.pretrain == "none" else Pretrained(first=first, method=split)


def settings_of(made: Method, *, with_defaults: bool = False) -> dict[str, Any] | None:
    """Return the name and parameters from which ``method`` makes an equal method; ``None`` for a user's own method.

    Parameters with their default values are left out. If ``with_defaults`` is true, they are included, because a later
    version may have other defaults.

    >>> settings_of(method("laser", tasks="all", embedding=32))
    {'name': 'laser', 'tasks': 'all', 'embedding': 32}
    """
    layers = _layers(made)
    name = next((name for name, kind in METHODS.items() if type(layers[0]) is kind), None)
    if name is None:
        return None
    values = {
        each.name: getattr(layer, each.name)
        for layer in layers
        for each in fields(layer)
        if each.repr and each.name != "rule" and (with_defaults or getattr(layer, each.name) != _default(each))
    }
    try:
        same = not any(map(callable, values.values())) and made_again(name, **values) == made
    except ConfigError:
        return None
    return {"name": name, **values} if same else None


def _layers(made: Method) -> list[Any]:
    """Return the objects that hold a method's settings, beginning with the method itself or a split method's rule."""
    layers: list[Any] = [made]
    if isinstance(made, Pretrained):
        layers = [made.first, made.method]
    if isinstance(split := layers[-1], Split):
        layers = [split.rule, split, *([split.pseudo] if isinstance(split, PseudoLabelled) else []), *layers[:-1]]
    return layers


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if callable(field.default_factory) else field.default


def differences(kept: Any, made: object) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which the saved description ``kept`` and a method differ: {name: (saved, current)}.

    >>> from anyparty.methods.method_registry import method
    >>> differences(described(method("laser", embedding=8)), method("laser", embedding=4))
    {'embedding': (8, 4)}
    """
    was, now, given = _flat(kept), _flat(described(made)), _flat(described(made, with_defaults=False))
    keys = [key for key in [*was, *(now.keys() - was.keys())] if key in was or key in given]
    differs = {key: (was.get(key), now.get(key)) for key in sorted(keys) if was.get(key) != now.get(key)}
    classes = {key: pair for key, pair in differs.items() if key.rpartition(".")[2] == CLASS}
    return classes or differs  # objects of different classes have different fields


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested descriptions to {dotted field name: value}; a mapping without a class name stays one value."""
    if not isinstance(values, Mapping) or CLASS not in values:
        return {prefix: values}
    within = f"{prefix}." if prefix else ""
    return {name: each for key, value in values.items() for name, each in _flat(value, f"{within}{key}").items()}


def check_description(source: Path, own: Mapping[str, Any] | None, shipped: Method | None, given: Any) -> None:
    """Check that ``given``, the method that a user passes for a saved model, is the method that trained the model.

    Args:
        source: the path of the model, for error messages.
        own: the saved description of the user's own method; ``None`` if the model was saved without a description, as
            in earlier versions.
        shipped: the model's method if it is built in, else ``None``.
        given: the method that was passed.

    Raises:
        ModelError: ``given`` is a different method, or not a method.
    """
    if not hasattr(given, "begin"):
        raise ModelError(
            f"{source}: method: expected a method, such as Split(rule=...) of anyparty.methods.split.split_method, "
            f"got {given!r}"
        )
    # Compare without the schedule, which affects only training.
    given = predictor_of(given)
    if shipped is not None:
        was, now = settings_of(shipped, with_defaults=True) or {}, settings_of(given, with_defaults=True) or {}
        if was.get("name") != now.get("name"):
            raise ModelError(f"{source}: trained with {was.get('name')!r}, but another method was passed, "
                             f"{_class_names(given)}; leave it out, because the model makes its own")  # fmt: skip
        found = {key: (was.get(key), now.get(key)) for key in sorted(was.keys() | now.keys())}
        differs, instead = {key: pair for key, pair in found.items() if pair[0] != pair[1]}, "or leave it out"
    else:
        differs, instead = {} if own is None else differences(own, given), "as it was trained"
    if differs:
        changes = "; ".join(
            f"{key} was {_shown(was)}, is {_shown(now)}" for key, (was, now) in list(differs.items())[:5]
        )
        raise ModelError(f"{source}: the method that was passed differs from the one that was trained: {changes}; pass "
                         f"that one, {instead}")  # fmt: skip


def _class_names(given: Any) -> str:
    """Return the class name of a method, and of its rule if it has one, as text."""
    rule = getattr(given, "rule", None)
    return type(given).__name__ + ("" if rule is None else f"(rule={type(rule).__name__})")


def _shown(value: Any) -> str:
    return "not there" if value is None else repr(value)
