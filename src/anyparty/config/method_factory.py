"""Make the method that the settings name, which is built in or user-defined.

User-defined code may be a rule, a method, or a class or a function that makes one of them.
"""

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
    """Return True if a class has all members of a rule's contract."""
    return all(callable(getattr(found, name, None)) for name in REQUIRED) and hasattr(found, "can")


def is_method_class(found: type) -> bool:
    """Return True if a class has all members of a method's contract."""
    return all(callable(getattr(found, name, None)) for name in WHOLE) and hasattr(found, "can")


WHOLE = ("begin", "stages", "predict")
METHOD = CodeKind(
    group="anyparty.methods",
    expected="a rule or a method: a class with all of its members, a function annotated to return one, or an instance",
    is_class=lambda found: found in {Rule, Method} or is_rule_class(found) or is_method_class(found),
    is_made=lambda found: not isinstance(found, type) and (is_rule_class(type(found)) or is_method_class(type(found))),
)
"""Objects that a reference to a user-defined method may name."""


def made_by(found: Any, name: str, parameters: Mapping[str, Any]) -> Method:
    """Make a method from a user-defined object; a class or a function is called with the parameters.

    A rule class makes a split method.  This method takes the rule's parameters and the parameters that all built-in
    split methods share, such as ``embedding`` and ``pretrain``.  A rule instance makes a split method for which the
    settings cannot set parameters.

    Args:
        found: the object in the user's module.
        name: the name of the method.
        parameters: the method's parameters from the settings.

    Raises:
        ConfigError: the object is not, and does not make, a rule or a method; a parameter is unknown, missing or of
            the wrong type; making the method fails (the message names the line); or a built-in method has this name.
    """
    if name in METHODS:
        raise ConfigError(f"method.factory: {name!r} is the name of a built-in method; give your own another name")
    made = found
    if _makes(found):
        _check_none(found, name, parameters)
        try:
            made = _call(found, name, parameters)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(f"method {name!r}: cannot be made: {blamed(error)}") from error
    elif parameters:
        raise ConfigError(f"method {name!r} is an instance, so {some(sorted(parameters))} would do nothing: let "
                          "factory name the class or a function that makes it")  # fmt: skip
    if isinstance(made, type) or not hasattr(made, "can"):
        raise ConfigError("method.factory: expected a rule or a method, or a class or function that makes one, but "
                          f"{name!r} {'is' if made is found else 'makes'} {made!r}: see "
                          "docs/how-to/your-method.md")  # fmt: skip
    return made if hasattr(made, "begin") else Split(rule=made)


def classes_of(found: Any) -> tuple[Any, ...]:
    """Return the classes or the function whose parameters the settings can set; return ``()`` for an instance."""
    if not _makes(found):
        return ()
    return (found, *SHARED) if _is_rules(found) else (found,)


def _check_none(found: Callable[..., Any], name: str, parameters: Mapping[str, Any]) -> None:
    """Reject None for a parameter whose default is not None.

    TOML cannot store None, so a reload would use the default.
    """
    for key in typed.takes(found):
        default = inspect.signature(found).parameters[key].default
        if key in parameters and parameters[key] is None and default is not None:
            raise ConfigError(f"method {name!r}: settings cannot store {key} = None; pass a method object in Python, "
                              "or make None the parameter's default")  # fmt: skip


def _makes(found: Any) -> bool:
    """Return True for a class or a function, False for an instance of a rule or a method."""
    return callable(found) and (isinstance(found, type) or not hasattr(found, "can"))


def _is_rules(found: Any) -> bool:
    """Return True for a rule class."""
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
    except ValueError:  # a class or function in C may have no signature
        pass
    return found(**values)


def chosen(config: Config) -> Method:
    """Make the method of the settings group ``[method]``, with its parameters.

    Raises:
        ConfigError: the method does not exist, its parameters are invalid, or a user-defined method cannot be made.
        CodeNotAllowed: the method is user-defined, and the settings may not load its code.
    """
    asked = config.method
    if asked.factory is None:
        return method(asked.name, **asked.parameters)
    found = load_code(asked.factory, "method.factory", config.allowed_code, METHOD)
    return made_by(found, asked.name, asked.parameters)
