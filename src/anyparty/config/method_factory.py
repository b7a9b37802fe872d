"""A method of the user's own as settings name it: a rule or a method, its class, or a function that makes one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from anyparty.config import Config
from anyparty.config.user_code import CodeKind, load_code
from anyparty.errors import ConfigError, UserError, blamed, some
from anyparty.methods import typed
from anyparty.methods.method import Method
from anyparty.methods.method_registry import METHODS, SHARED, check_idle, method, of_rule, sorted_out
from anyparty.methods.split.rule import REQUIRED, Rule
from anyparty.methods.split.split_method import Split


def is_rule_class(found: type) -> bool:
    """Whether a class has all of a rule's contract."""
    return all(callable(getattr(found, name, None)) for name in REQUIRED) and hasattr(found, "can")


def is_method_class(found: type) -> bool:
    """Whether a class has all of a method's contract."""
    return all(callable(getattr(found, name, None)) for name in WHOLE) and hasattr(found, "can")


WHOLE = ("begin", "stages", "predict")
METHOD = CodeKind(
    group="anyparty.methods",
    expected="a rule or a method: a class with all of its contract, a function annotated to return one, or one that is "
    "made already",
    is_class=lambda found: found in {Rule, Method} or is_rule_class(found) or is_method_class(found),
    is_made=lambda found: not isinstance(found, type) and (is_rule_class(type(found)) or is_method_class(type(found))),
)
"""What a reference to a method of the user's own may lead to."""


def made_by(found: Any, name: str, parameters: Mapping[str, Any]) -> Method:
    """Return the method that ``found``, a user's own, is or makes.

    A class of rules makes a split method as those that ship, which takes ``embedding``, ``pretrain`` and all else that
    they share beside the rule's own parameters; a rule that is made already, one without.

    Args:
        found: what stands in the user's module.
        name: what the method is called.
        parameters: what the settings say beside.

    Raises:
        ConfigError: it is or makes something else, a parameter is unknown, missing or of another type, or making it
            fails (the sentence names the line that does); or a method that ships is called so.
    """
    if name in METHODS:
        raise ConfigError(f"method.factory: a method that ships is called {name!r}; give your own another name")
    made = found
    if _makes(found):
        _check_none(found, name, parameters)
        try:
            made = _call(found, name, parameters)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(f"method {name!r}: making it fails: {blamed(error)}") from error
    elif parameters:
        raise ConfigError(f"method {name!r} is made already, and {some(sorted(parameters))} would do nothing: let "
                          f"factory name the class or a function that makes it")  # fmt: skip
    if isinstance(made, type) or not hasattr(made, "can"):
        raise ConfigError(f"method.factory: expected a rule or a method, or what makes one, and {name!r} "
                          f"{'is' if made is found else 'makes'} {made!r}: see docs/how-to/your-method.md")  # fmt: skip
    return made if hasattr(made, "begin") else Split(rule=made)


def classes_of(found: Any) -> tuple[Any, ...]:
    """Return the classes, or the function, whose parameters settings can give; none of one made already."""
    if not _makes(found):
        return ()
    return (found, *SHARED) if _is_rules(found) else (found,)


def _check_none(found: Callable[..., Any], name: str, parameters: Mapping[str, Any]) -> None:
    """Refuse None where leaving it out is something else: settings cannot hold it, and a run would be made another."""
    for key in typed.takes(found):
        default = inspect.signature(found).parameters[key].default
        if key in parameters and parameters[key] is None and default is not None:
            raise ConfigError(f"method {name!r}: {key} = None is nothing that settings can hold; give the method "
                              f"itself, made in Python, or let None be its default")  # fmt: skip


def _makes(found: Any) -> bool:
    """Whether it is a class, or a function."""
    return callable(found) and (isinstance(found, type) or not hasattr(found, "can"))


def _is_rules(found: Any) -> bool:
    """Whether it is a class of rules."""
    return isinstance(found, type) and hasattr(found, "loss") and not hasattr(found, "begin")


def _call(found: Callable[..., Any], name: str, parameters: Mapping[str, Any]) -> Any:
    if _is_rules(found):
        made = of_rule(name, found, parameters)
        check_idle(name, made, parameters)
        return made
    values = sorted_out(name, (found,), parameters)[0]
    try:
        inspect.signature(found).bind(**values)
    except TypeError as error:
        raise ConfigError(f"method {name!r}: {error}") from None
    except ValueError:  # made in C, which says nothing of what it takes
        pass
    return found(**values)


def chosen(config: Config) -> Method:
    """Return the method of ``[method]``, with its parameters.

    Raises:
        ConfigError: there is none such, its parameters cannot be used, or it is the user's own and cannot be made.
        CodeNotAllowed: it is the user's own, and the settings may not load it.
    """
    asked = config.method
    if asked.factory is None:
        return method(asked.name, **asked.parameters)
    found = load_code(asked.factory, "method.factory", config.allowed_code, METHOD)
    return made_by(found, asked.name, asked.parameters)
