"""Make the method, schedule and clock of the settings, built in or user-defined.

A user-defined object may be a method, a rule (the losses and predictions of a split method), or a class or function
that makes one of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from anyparty.config import ClockSettings, Config
from anyparty.config.user_code import CodeKind, load_code
from anyparty.core.declared_types import assign_parameters, takes
from anyparty.errors import ConfigError, UserError, blamed, nearest, some
from anyparty.methods.method import Method
from anyparty.methods.method_registry import METHODS, SHARED, check_idle, method, of_rule
from anyparty.methods.schedules.flex import AdaptiveFlex, Flex
from anyparty.methods.schedules.real_clock import RealClock
from anyparty.methods.schedules.schedule import PBCD, LocalIterations, Schedule, SyncMax, SyncMin
from anyparty.methods.schedules.scheduled import Scheduled
from anyparty.methods.schedules.vafl import VAFL
from anyparty.methods.schedules.virtual_clock import VirtualClock, trace_of
from anyparty.methods.split.rule import Rule
from anyparty.methods.split.split_method import Split
from anyparty.methods.split.topology import Schedulable


def is_rule_class(found: type) -> bool:
    """Return True if a class is the class of a split method's rule."""
    return issubclass(found, Rule)


def is_method_class(found: type) -> bool:
    """Return True if a class has all members of a method."""
    return all(callable(getattr(found, name, None)) for name in WHOLE) and hasattr(found, "can")


WHOLE = ("begin", "stages", "predict")
METHOD = CodeKind(
    group="anyparty.methods",
    expected="a rule or a method: a class with all of its members, a function annotated to return one, or an instance",
    is_class=lambda found: found in {Rule, Method} or is_rule_class(found) or is_method_class(found),
    is_made=lambda found: not isinstance(found, type) and (is_rule_class(type(found)) or is_method_class(type(found))),
)
"""The kind of object that the setting ``method.factory`` must name, such as "module:Name": a rule or a method."""


def made_by(found: Any, name: str, parameters: Mapping[str, Any]) -> Method:
    """Make a method from a user-defined object ``found``; if it is a class or a function, call it with the parameters.

    If ``found`` is a rule class, the result is a split method.  Its parameters are those of the rule and those that all
    split methods have, such as ``embedding`` and ``pretrain``.  A rule instance makes a split method with default
    parameters.

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
    """Return the classes or the function whose parameters users can set; ``()`` for an instance."""
    if not _makes(found):
        return ()
    return (found, *SHARED) if _is_rules(found) else (found,)


def _check_none(found: Callable[..., Any], name: str, parameters: Mapping[str, Any]) -> None:
    """Reject None for a parameter whose default is not None.

    TOML cannot store None, so the saved settings would contain the default instead.
    """
    for key in takes(found):
        default = inspect.signature(found).parameters[key].default
        if key in parameters and parameters[key] is None and default is not None:
            raise ConfigError(f"method {name!r}: settings cannot store {key} = None; pass a method object in Python, "
                              "or make None the parameter's default")  # fmt: skip


def _makes(found: Any) -> bool:
    """Return True if ``found`` is a class or a function, False if it is a rule or a method."""
    return callable(found) and (isinstance(found, type) or not hasattr(found, "can"))


def _is_rules(found: Any) -> bool:
    """Return True if ``found`` is a rule class, False if it is a method class."""
    return isinstance(found, type) and is_rule_class(found)


def _call(found: Callable[..., Any], name: str, parameters: Mapping[str, Any]) -> Any:
    if _is_rules(found):
        made = of_rule(name, found, parameters)
        check_idle(name, made, parameters)
        return made
    values = assign_parameters(f"method {name!r}", (found,), parameters)[0]
    try:
        inspect.signature(found).bind(**values)
    except TypeError as error:
        raise ConfigError(f"method {name!r}: {error}") from None
    except ValueError:  # a class or function written in C may have no signature
        pass
    return found(**values)


def chosen(config: Config) -> Method:
    """Make the method that the settings group ``[method]`` describes.

    Raises:
        ConfigError: the method does not exist, its parameters are invalid, or a user-defined method cannot be made.
        CodeNotAllowed: the method is user-defined, and the settings may not load its code.
    """
    settings = config.method
    if settings.factory is None:
        return method(settings.name, **settings.parameters)
    found = load_code(settings.factory, "method.factory", config.allowed_code, METHOD)
    return made_by(found, settings.name, settings.parameters)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "p-bcd": PBCD,
    "sync-min": SyncMin,
    "sync-max": SyncMax,
    "vafl": VAFL,
    "flex": Flex,
    "adaptive-flex": AdaptiveFlex,
}


TWO_WAYS = "clock: use and trace both set the parties' CPU use; set only one of them"


def schedule(name: str, **parameters: Any) -> tuple[Schedule, LocalIterations]:
    """Return the schedule with the given name, and its settings for the parties' local iterations.

    >>> schedule("flex", mu=0.1)
    (Flex(), LocalIterations(labels='active', mu=0.1, momentum='local', smoothness=None))

    Raises:
        ConfigError: the schedule or a parameter does not exist, or a value has another type or is out of range.
    """
    if name not in SCHEDULES:
        raise ConfigError(f"no schedule {name!r}{nearest(name, SCHEDULES)}")
    own, local = assign_parameters(f"schedule {name!r}", (SCHEDULES[name], LocalIterations), parameters)
    return SCHEDULES[name](**own), LocalIterations(**local)


def clock(*, real: bool = False, **values: Any) -> VirtualClock | RealClock:
    """Make the clock for a schedule: a clock of simulated time, or with ``real = True`` a clock of real time.

    ``values`` are the settings of the group ``[clock]``.  The clock of real time accepts only ``timeout`` and
    ``grace``, in seconds.

    Raises:
        ConfigError: a value is out of range, the trace cannot be read, or a setting does not apply to this clock.
    """
    if real:
        unset = ClockSettings()
        if given := [key for key in values.keys() - {"timeout", "grace"} if values[key] != getattr(unset, key, None)]:
            raise ConfigError(f"clock: {some(sorted(given))} cannot be combined with real = true, because real time is "
                              "measured, not simulated; leave out one of the two")  # fmt: skip
        return RealClock(timeout=values.get("timeout", unset.timeout), grace=values.get("grace"))
    if values.pop("grace", None) is not None:
        raise ConfigError("clock: grace only applies to the real clock; set real = true, or leave it out")
    trace = values.pop("trace", None)
    if trace is not None and values.get("use"):
        raise ConfigError(TWO_WAYS)
    if trace is not None:
        values["use"] = trace_of(trace)
    return VirtualClock(**assign_parameters("clock", (VirtualClock,), values)[0])


def scheduled(method: Method, config: Config) -> Method:
    """Wrap a method in the schedule of the settings; return the method itself if the settings have no schedule.

    Raises:
        ConfigError: the schedule or its clock is invalid, or the method is not a split method that can have a schedule.
    """
    if config.schedule is None:
        if config.clock is not None:
            raise ConfigError("a clock without a schedule does nothing: name one, schedule.name"
                              f"{nearest('', SCHEDULES)}")  # fmt: skip
        return method
    made, local = schedule(config.schedule.name, **config.schedule.parameters)
    if not isinstance(method, Schedulable):
        raise ConfigError(f"schedule {config.schedule.name!r} needs a split method, and {method.can.title} is not "
                          "one: its parties do not exchange messages at every batch")  # fmt: skip
    if method.schedule_conflict:
        raise ConfigError(f"schedule {config.schedule.name!r} {method.schedule_conflict}")
    ticks = VirtualClock() if config.clock is None else clock(**config.clock.model_dump(exclude_none=True))
    return Scheduled(split=cast("Split", method), schedule=made, clock=ticks, local=local)


def carried(config: Config) -> Config:
    """Replace the path ``clock.trace`` by the file's content in ``clock.use``, for use on another machine.

    Raises:
        ConfigError: the trace cannot be read, or the clock has both ``use`` and ``trace``.
    """
    ticks = config.clock
    if ticks is None or ticks.trace is None:
        return config
    if ticks.use:
        raise ConfigError(TWO_WAYS)
    return config.model_copy(update={"clock": ticks.model_copy(update={"trace": None, "use": trace_of(ticks.trace)})})
