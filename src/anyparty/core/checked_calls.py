"""Check the arguments of public functions against their annotations, before the functions use them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial, wraps
from types import UnionType
from typing import Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import BeforeValidator, InstanceOf, TypeAdapter, ValidationError

from anyparty.errors import ConfigError, UserError, nearest

P = ParamSpec("P")
R = TypeVar("R")

EXPECTED = {
    "bool_type": "True or False",
    "callable_type": "a function",
    "dict_type": "a dict",
    "float_type": "a number",
    "int_type": "a whole number",
    "mapping_type": "a dict",
    "none_required": "None",
    "string_type": "text",
    "string_unicode": "text",
}
SCALARS = (int, float, bool, str)
SHORT = 60  # a longer value may be a table, and messages show its type only


def checked(
    raises: type[UserError] = ConfigError, *, by_hand: Sequence[str] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that a wrong argument is an error that names the argument, the expected and found value.

    The annotations are checked strictly: text is not a number and not a list. Any iterable except text and mappings is
    accepted as a sequence, and is read once. Keyword arguments of ``**name`` are not checked.

    Args:
        raises: the class of the errors.
        by_hand: the arguments that the function checks itself.

    >>> @checked()
    ... def train(epochs: int, parties: Sequence[str] | None = None) -> None: ...
    >>> train(epochs=2, parties=["bank", 0])
    Traceback (most recent call last):
        ...
    anyparty.errors.ConfigError: parties[1]: expected text, got 0
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = _bound(signature, function.__name__, raises, *args, **kwargs)
            for name, adapter in _adapters(function, tuple(by_hand)).items():
                if name in bound.arguments:
                    bound.arguments[name] = check(bound.arguments[name], adapter, name, raises)
            return function(*bound.args, **bound.kwargs)

        return call

    return decorate


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Check values against the annotations of a function's parameters.

    Raises:
        ConfigError: a value has another type.
    """
    for name, adapter in _adapters(function).items():
        if name in arguments:
            check(arguments[name], adapter, name)


def check(value: Any, adapter: TypeAdapter[Any], name: str, raises: type[UserError] = ConfigError) -> Any:
    """Return the value of the argument ``name``, with its sequences as tuples.

    Raises:
        UserError: of the class ``raises``, if the value does not have the type of ``adapter``.
    """
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        found = [(*_place(value, each["loc"]), each) for each in error.errors(include_url=False)]
    deepest = max(len(place) for place, _, _ in found)
    last = [(place, is_key, each) for place, is_key, each in found if len(place) == deepest]
    place, is_key, each = last[0]
    *several, expected = dict.fromkeys(_expected(each) for _, _, each in last)
    if several:
        expected = f"{', '.join(several)} or {expected}"
    where = name + "".join(f"[{part!r}]" for part in place[: -1 if is_key else None])
    raise raises(f"{where}: expected {expected}{' as a key' * is_key}, got {_shown(each['input'])}")


@cache
def _adapters(function: Callable[..., Any], by_hand: tuple[str, ...] = ()) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(function)
    kinds = {name: parameter.kind for name, parameter in inspect.signature(function).parameters.items()}
    return {name: adapter_of(hints[name]) for name, kind in kinds.items()
            if name in hints.keys() - set(by_hand) and kind is not inspect.Parameter.VAR_KEYWORD}  # fmt: skip


def adapter_of(hint: Any) -> TypeAdapter[Any]:
    """Return the validator of an annotation, for ``check``."""
    return TypeAdapter(_strict(hint))


def _strict(hint: Any) -> Any:
    """Change an annotation so that pydantic accepts any iterable as a sequence, and does not look into objects."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in SCALARS:
        return Annotated[hint, BeforeValidator(lambda value: value.item() if isinstance(value, np.generic) else value)]
    if origin in {Union, UnionType}:
        return Union[tuple(map(_strict, args))]  # noqa: UP007 - the members are known at run time only
    if origin in {Sequence, Iterable}:
        listed = partial(_listed, "a list of names" if args[0] is str else "a list")
        return Annotated[Sequence[_strict(args[0])], BeforeValidator(listed)]  # type: ignore[misc]
    if origin is Mapping:
        as_dict = BeforeValidator(lambda value: dict(value) if isinstance(value, Mapping) else value)
        return Annotated[dict[_strict(args[0]), _strict(args[1])], as_dict]  # type: ignore[misc]
    if isinstance(hint, type) and origin is None and hint not in {Any, type(None)}:
        return InstanceOf[hint]  # type: ignore[misc]
    return hint


def _listed(expected: str, value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(f"{expected}, such as [{value!r}]")
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise ValueError(expected)
    return tuple(value.tolist() if isinstance(value, np.ndarray) else value)


def _bound(
    signature: inspect.Signature, name: str, raises: type[UserError], /, *args: Any, **kwargs: Any
) -> inspect.BoundArguments:
    """Assign arguments to parameters.

    Raises:
        UserError: there is no such parameter, or a required argument is missing.
    """
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        known = [each for each in signature.parameters if each not in {"self", "cls"}]
        unknown = [each for each in kwargs if each not in known]
        if unknown:
            why = f"there is no argument {unknown[0]!r}{nearest(unknown[0], known)}"
        else:
            why = f"{error}; its arguments are {', '.join(known)}"
        raise raises(f"{name}: {why}") from None


def _place(value: Any, loc: Sequence[int | str]) -> tuple[list[Any], bool]:
    """Return the keys and indices that lead to a wrong value, and whether it is a key itself.

    Pydantic also lists the members of a union, which are left out.
    """
    place = []
    for part in loc:
        if isinstance(value, Mapping):
            key = next((key for key in value if key == part or str(key) == part), None)
            if key is not None or None in value:
                place.append(key)
                value = value[key]
        elif isinstance(part, int):
            place.append(part)
            value = None if isinstance(value, str) or not hasattr(value, "__getitem__") else value[part]
    return place, bool(loc) and loc[-1] == "[key]"


def _expected(error: Any) -> str:
    """Describe the expected value in plain words."""
    if error["type"] in EXPECTED:
        return EXPECTED[error["type"]]
    if error["type"] == "is_instance_of":
        name = error["ctx"]["class"].replace("Path", "path")
        return f"a{'n' * (name[0] in 'AEIOU')} {name}"
    return str(error["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")


def _shown(value: Any) -> str:
    """Show a short value; describe any other value by its type, because it may be a table."""
    if value is None or isinstance(value, bool | int | float | str | tuple | list | dict):
        text = repr(value)
        if len(text) <= SHORT:
            return text
    return f"a value of type {type(value).__name__}"
