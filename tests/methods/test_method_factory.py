"""A user's own method by its name in a module: the allowed forms, and the error for any other object."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from anyparty.config.method_factory import made_by
from anyparty.errors import ConfigError
from anyparty.methods.false_vfl.false_vfl import FalseVFL1
from anyparty.methods.method_registry import method
from anyparty.methods.split.plug import Plug
from anyparty.methods.split.pretraining import Pretrained
from anyparty.methods.split.pseudo_labels import PseudoLabelled
from anyparty.methods.split.split_method import Split

if TYPE_CHECKING:
    from nowhere import Kind


@dataclass(frozen=True, kw_only=True)
class Mine(Plug):
    """A user's own rule."""

    temperature: float = 1.0


@dataclass(frozen=True)
class Whole(FalseVFL1):
    """A user's own method that is not a split method."""

    power: int = 2


class Plain(Plug):
    """Another rule, whose parameters have no types."""

    def __init__(self, names, *, scale=1.0):
        super().__init__()
        object.__setattr__(self, "names", names)


def mine(temperature: float, width: int = 8) -> Split:
    return Split(rule=Mine(temperature=temperature), embedding=width)


def rule(kind: "Kind" = None):
    return Mine(temperature=0.25)


@dataclass(frozen=True)
class Shape:
    """A table of settings for a user's own method."""

    width: int = 8


def shaped(shape: Shape | None = None) -> Split:
    return Split(rule=Mine(), embedding=(shape or Shape()).width)


def fails(width=1):
    return 1 // (width - width)


def quits():
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("found", "parameters", "made"),
    [
        (Mine, {}, Split(rule=Mine())),
        (Mine, {"temperature": 2, "embedding": 8}, Split(rule=Mine(temperature=2.0), embedding=8)),
        (mine, {"temperature": 0.5}, Split(rule=Mine(temperature=0.5), embedding=8)),
        (shaped, {"shape": {"width": 4}}, Split(rule=Mine(), embedding=4)),
        (rule, {"kind": "any"}, Split(rule=Mine(temperature=0.25))),
        (Mine(temperature=3.0), {}, Split(rule=Mine(temperature=3.0))),
        (mine(0.5), {}, mine(0.5)),
        (Whole, {"power": 3, "samples": 4}, Whole(power=3, samples=4)),
        (method, {"name": "laser"}, method("laser")),
    ],
)
def test_a_rule_a_method_or_what_makes_one(found, parameters, made):
    assert made_by(found, "mine", parameters) == made


def test_a_class_without_types_takes_what_its_constructor_takes():
    made = made_by(Plain, "plain", {"names": ("a",), "embedding": 4})
    assert (type(made.rule), made.rule.names, made.embedding) == (Plain, ("a",), 4)


def test_a_rule_is_given_what_all_split_methods_share():
    first, then = made_by(Mine, "mine", {"pretrain": "simsiam"}), made_by(Mine, "mine", {"unlabelled": "pseudo"})
    assert isinstance(first, Pretrained)
    assert isinstance(then, PseudoLabelled)
    assert then.rule == Mine()


@pytest.mark.parametrize(
    ("found", "parameters", "said"),
    [
        (Mine, {"temprature": 1.0}, "method 'mine' has no parameter 'temprature'; did you mean 'temperature'"),
        (Mine, {"temperature": "hot"}, "method 'mine': temperature: .*number.*, got 'hot'"),
        (Mine, {"embedding": 0}, "widths must be at least 1, got embedding 0"),
        (Mine, {"pretrain_epochs": 3}, "'pretrain_epochs' would do nothing without pretrain"),
        (Mine, {"hosting": "labelers"}, "'hosting' would do nothing here: the heads belong to no party"),
        (shaped, {"shape": {"widht": 4}}, "method 'mine': shape: there is no 'widht' in it; did you mean 'width'"),
        (mine, {}, "method 'mine': missing a required argument: 'temperature'"),
        (mine, {"temperature": 1.0, "rule": 1}, "method 'mine' has no parameter 'rule'"),
        (mine(0.5), {"width": 4}, "method 'mine' is an instance, so 'width' would do nothing: let factory name"),
        (fails, {}, r"method 'mine': cannot be made: .*test_method_factory\.py:\d+: ZeroDivisionError"),
        (Plain, {"names": None}, "method 'mine': settings cannot store names = None; pass"),
        (quits, {}, r"method 'mine': cannot be made: .*test_method_factory\.py:\d+: SystemExit: 3"),
        (quits, {"width": 4}, "method 'mine' has no parameter 'width'; it has none$"),
        (
            lambda: 7,
            {},
            "expected a rule or a method, or a class or function that makes one, but 'mine' makes 7: see docs",
        ),
        (lambda: Mine, {}, "but 'mine' makes <class .*Mine'>"),
        (7, {}, "but 'mine' is 7"),
        (dict, {}, "but 'mine' makes {}"),
    ],
)
def test_what_is_none_is_said(found, parameters, said):
    with pytest.raises(ConfigError, match=said):
        made_by(found, "mine", parameters)


def test_a_method_that_ships_keeps_its_name():
    with pytest.raises(ConfigError, match="'plug' is the name of a built-in method; give your own another name"):
        made_by(Mine, "plug", {})
