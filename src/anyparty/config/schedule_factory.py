"""All schedules by name, and functions that make a schedule and a clock from the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar, cast, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from anyparty.config import ClockSettings, Config
from anyparty.errors import ConfigError, nearest, some
from anyparty.methods.method import Method
from anyparty.methods.schedules.flex import AdaptiveFlex, Flex
from anyparty.methods.schedules.real_clock import RealClock
from anyparty.methods.schedules.schedule import LocalIterations, Schedule
from anyparty.methods.schedules.scheduled import Scheduled
from anyparty.methods.schedules.synchronous import PBCD, SyncMax, SyncMin
from anyparty.methods.schedules.vafl import VAFL
from anyparty.methods.schedules.virtual_clock import VirtualClock, trace_of
from anyparty.methods.split.split_method import Split
from anyparty.methods.split.topology import Schedulable

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
    """Make the schedule ``name``, and the settings of the parties' local iterations.

    >>> schedule("flex", mu=0.1)
    (Flex(), LocalIterations(labels='active', mu=0.1, momentum='local', smoothness=None))

    Raises:
        ConfigError: the schedule or a parameter does not exist, or a value has another type or is out of range.
    """
    if name not in SCHEDULES:
        raise ConfigError(f"no schedule {name!r}{nearest(name, SCHEDULES)}")
    made: Any = SCHEDULES[name]
    own, shared = _types(made), _types(LocalIterations)
    known = own | shared
    for key in parameters:
        if key not in known:
            raise ConfigError(f"schedule {name!r} has no parameter {key!r}{nearest(key, known)}")
    values = {key: _of_type(known[key], value, f"schedule {name!r}: {key}") for key, value in parameters.items()}
    local = LocalIterations(**{key: value for key, value in values.items() if key in shared})
    return made(**{key: value for key, value in values.items() if key in own}), local


def clock(*, real: bool = False, **values: Any) -> VirtualClock | RealClock:
    """Make the clock that the settings describe; ``trace`` names a CSV file of CPU use.

    The real clock takes only ``timeout`` and ``grace``, in seconds.

    Raises:
        ConfigError: a value is out of range, the trace cannot be read, or a setting does not apply to this clock.
    """
    if real:
        unset = ClockSettings()
        given = [
            key
            for key, value in values.items()
            if key not in {"timeout", "grace"} and value != getattr(unset, key, value)
        ]
        if given:
            raise ConfigError(
                f"clock: {some(given)} cannot be combined with real = true, because real time is "
                "measured, not simulated; leave out one of the two"
            )
        return RealClock(timeout=values.get("timeout", unset.timeout), grace=values.get("grace"))
    if values.pop("grace", None) is not None:
        raise ConfigError("clock: grace only applies to the real clock; set real = true, or leave it out")
    trace = values.pop("trace", None)
    if trace is not None and values.get("use"):
        raise ConfigError(TWO_WAYS)
    if trace is not None:
        values["use"] = trace_of(trace)
    hints = _types(VirtualClock)
    for key in values:
        if key not in hints:
            raise ConfigError(f"clock has no parameter {key!r}{nearest(key, (*hints, 'trace'))}")
    return VirtualClock(**{key: _of_type(hints[key], value, f"clock: {key}") for key, value in values.items()})


def scheduled(method: Method, config: Config) -> Method:
    """Wrap a method in the schedule of the settings; return the method itself if the settings do not name a schedule.

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
    """Return the settings with the numbers of the CPU trace instead of its path, for use on another machine.

    Raises:
        ConfigError: the trace cannot be read, or the clock has both ``use`` and ``trace``.
    """
    ticks = config.clock
    if ticks is None or ticks.trace is None:
        return config
    if ticks.use:
        raise ConfigError(TWO_WAYS)
    return config.model_copy(update={"clock": ticks.model_copy(update={"trace": None, "use": trace_of(ticks.trace)})})


def _types(of: Any) -> dict[str, Any]:
    """Return the types of a dataclass's parameters, by name."""
    hints = get_type_hints(of)
    return {field.name: hints[field.name] for field in fields(of) if get_origin(hints[field.name]) is not ClassVar}


def _of_type(hint: Any, value: Any, what: str) -> Any:
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{what}: {error.errors()[0]['msg'].lower()}, got {value!r}") from None
