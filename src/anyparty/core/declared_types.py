"""Check the types of users' settings and objects, and of the arguments of public functions.

Settings files are checked when they are read. An object made in Python, such as ``Optimizer(lr=np.float32(0.1))``,
needs a check of its own, because it may be saved in a settings file. ``as_declared`` checks and converts such objects.
``checked`` checks the arguments of a public function before the function uses them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial, wraps
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import (
    BeforeValidator,
    GetCoreSchemaHandler,
    InstanceOf,
    PydanticSchemaGenerationError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import CoreSchema, PydanticKnownError
from pydantic_core.core_schema import no_info_before_validator_function

from anyparty.core.types import of_python
from anyparty.errors import ConfigError, UserError, nearest

STORABLE = (str, int, float, type(None), list, tuple, Mapping)
"""The types of values that a saved model can store; tuple, list and mapping hold such values again."""


def of_type(hint: Any, value: Any, what: str) -> Any:
    """Convert the value of a method's parameter to its declared type ``hint``.

    Raises:
        ConfigError: the value has another type, or contains a value that no file can store. The message begins with
            ``what``.
    """
    value = of_python(value)
    _check_tables(value, what)
    _check_names(hint, value, what)
    try:
        adapter = adapter_of(hint, by_class=False)
    except PydanticSchemaGenerationError:  # a user-defined class, which files cannot store
        return value
    return check(value, adapter, what, strict=False)


def takes(of: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters of ``of``, a class or function that creates a method, with their declared types.

    The parameters of a dataclass are its fields, except the field ``rule`` of a split method, and fields with
    ``repr=False``. The type is ``Any`` if a user's parameter declares no type, or a type that cannot be read.
    """
    try:
        signature = inspect.signature(of).parameters
    except (TypeError, ValueError):  # ``of`` is implemented in C and has no signature
        return {}
    apart = {"rule", *(each.name for each in fields(of) if not each.repr)} if is_dataclass(of) else set()
    hints = _hints(of) | (_hints(of.__init__) if isinstance(of, type) else {})  # type: ignore[misc]
    return {
        name: hints.get(name, Any) for name, each in signature.items()
        if name not in apart and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
    }  # fmt: skip


def _hints(of: object) -> dict[str, Any]:
    try:
        return get_type_hints(of, include_extras=True)
    except (NameError, TypeError, AttributeError):  # a type may be imported only for type checkers
        return {}


def assign_parameters(owner: str, classes: tuple[Any, ...], parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Convert parameters to their declared types; return, for each of ``classes``, a dict of its parameters.

    ``owner`` describes what has the parameters, such as "method 'laser'", and begins error messages.

    Raises:
        ConfigError: a parameter belongs to none of the classes, or its value does not have the declared type.
    """
    taken = [takes(of) for of in classes]
    known = {key: hint for of in reversed(taken) for key, hint in of.items()}
    unknown = sorted(parameters.keys() - known.keys())
    if unknown:
        which = nearest(unknown[0], known) if known else "; it has none"
        raise ConfigError(f"{owner} has no parameter {unknown[0]!r}{which}")
    values = {key: of_type(known[key], value, f"{owner}: {key}") for key, value in parameters.items()}
    whose = {key: n for n, of in reversed(list(enumerate(taken))) for key in of}
    return [{key: value for key, value in values.items() if whose[key] == n} for n in range(len(classes))]


def _check_names(hint: Any, value: Any, what: str) -> None:
    """Raise an error if a mapping has a key that is not a field of the dataclass in ``hint``."""
    known = [name.name for of in (hint, *get_args(hint)) if is_dataclass(of) for name in fields(of)]
    if known and isinstance(value, Mapping):
        for key in (str(key) for key in value if key not in known):
            raise ConfigError(f"{what}: there is no {key!r} in it{nearest(key, known)}")


def _check_tables(value: Any, what: str) -> None:
    """Raise an error if a mapping contains, at any depth, a value that cannot be saved."""
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        if not isinstance(inner, STORABLE):
            raise ConfigError(f"{what}: a saved model cannot store {key} = {inner!r}; expected text, a number, true "
                              "or false, None, or a list or table of these")  # fmt: skip
    for inner in value.values() if isinstance(value, Mapping) else value if type(value) in {list, tuple} else ():
        _check_tables(inner, what)


def as_declared(made: Any, of: Any, what: str) -> None:
    """Convert the fields of an object to their declared types in place.

    ``made`` is the object, and ``of`` is its class, a frozen dataclass whose ``__post_init__`` calls this function
    first. Numpy numbers, lists and arrays are accepted. Fields that a user's subclass adds are not checked.

    Raises:
        ConfigError: a field has a value of another type; the message begins with ``what``.
    """
    for name, adapter in _field_adapters(of).items():
        value = of_python(getattr(made, name))
        object.__setattr__(made, name, check(value, adapter, f"{what}: {name}", strict=False))


@cache
def _field_adapters(of: Any) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(of, include_extras=True)
    return {field.name: adapter_of(hints[field.name]) for field in fields(of)}


P = ParamSpec("P")
R = TypeVar("R")

EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "callable_type": "a function",
    "dataclass_type": "a dict",
    "dict_type": "a dict",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "int_type": "a whole number",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "mapping_type": "a dict",
    "missing": "a value",
    "model_type": "a dict",
    "none_required": "None",
    "path_type": "a path",
    "string_type": "text",
    "string_unicode": "text",
    "too_long": "at most {max_length} of them",
    "too_short": "at least {min_length} of them",
    "tuple_type": "a list",
}
LISTS = ("list_type", "tuple_type")
SCALARS = (int, float, bool, str)
SHORT = 60  # an error message shows values up to this number of characters, and the type of longer ones


def checked(
    raises: type[UserError] = ConfigError, *, by_hand: Sequence[str] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that an argument that does not fit its annotation raises an error.

    The error names the argument, the expected value and the given value. The check is strict: text is not accepted as a
    number or as a list. Any iterable except text and mappings is accepted as a sequence, and is converted to a tuple.
    Keyword arguments of ``**name`` are not checked.

    Args:
        raises: the class of the errors.
        by_hand: the names of the arguments that the decorator does not check, because the function checks them.

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
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise raises(f"{function.__name__}: {_misfit(signature, error, kwargs)}") from None
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


def check(
    value: Any, adapter: TypeAdapter[Any], name: str, raises: type[UserError] = ConfigError, *, strict: bool = True
) -> Any:
    """Check the type of an argument's value; return it with numbers of Python, and with tuples as sequences.

    If ``strict`` is false, text may contain a number, and a float may be a whole number.

    Raises:
        UserError: the value does not have the type of ``adapter``. The error is of the class ``raises``, and its
            message has the argument's ``name``.
    """
    try:
        return adapter.validate_python(value, strict=strict or None)
    except ValidationError as error:
        found = [(*place_of(value, each["loc"]), each) for each in error.errors(include_url=False)]
    deepest = max(len(place) for place, _, _ in found)
    last = [(place, is_key, each) for place, is_key, each in found if len(place) == deepest]
    place, is_key, each = last[0]
    wanted = alternatives(expected(each) for _, _, each in last)
    where = name + "".join(f"[{part!r}]" for part in place[: -1 if is_key else None])
    raise raises(f"{where}: expected {wanted}{' as a key' * is_key}, got {_shown(each['input'])}",
                 setting=name.rpartition(": ")[2])  # fmt: skip


def alternatives(texts: Iterable[str]) -> str:
    """Join different texts, such as "text, a number or a list".

    >>> alternatives(["text", "a list", "text"])
    'text or a list'
    """
    *several, last = dict.fromkeys(texts)
    return f"{', '.join(several)} or {last}" if several else last


@cache
def _adapters(function: Callable[..., Any], by_hand: tuple[str, ...] = ()) -> dict[str, TypeAdapter[Any]]:
    parameters = [each for each in inspect.signature(function).parameters.values() if each.kind is not each.VAR_KEYWORD]
    declared = {each.name: each.annotation for each in parameters
                if each.name not in by_hand and each.annotation is not each.empty}  # fmt: skip
    # other annotations may contain types that only type checkers import
    hints = get_type_hints(SimpleNamespace(__annotations__=declared), inspect.unwrap(function).__globals__)
    return {name: adapter_of(hint) for name, hint in hints.items()}


def adapter_of(hint: Any, *, by_class: bool = True) -> TypeAdapter[Any]:
    """Return a pydantic validator of the annotation ``hint``, for ``check``.

    If ``by_class`` is true, objects are only compared with their class. Otherwise pydantic may create them, such as a
    dataclass from a mapping.
    """
    strict: Any = Annotated[_listing(hint, by_class=by_class), StrictBooleans]
    return TypeAdapter(strict)


class StrictBooleans:
    """A pydantic annotation: booleans and numbers are not converted to each other, also inside other types."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return pydantic's schema of the annotated type, changed in place."""
        schema = handler(source)
        cls._change(schema, handler, set())
        return schema

    @classmethod
    def _change(cls, schema: Any, handler: GetCoreSchemaHandler, seen: set[int]) -> None:
        if isinstance(schema, list | tuple):
            for each in schema:
                cls._change(each, handler, seen)
        if not isinstance(schema, dict) or id(schema) in seen:
            return
        seen.add(id(schema))
        kind = schema.get("type")
        if kind == "bool":
            schema["strict"] = True
        elif kind in REFUSE_BOOLEAN:
            number = schema.copy()
            schema.clear()
            schema.update(no_info_before_validator_function(REFUSE_BOOLEAN[kind], number))
        elif kind == "function-before" and schema["function"]["function"] in REFUSE_BOOLEAN.values():
            return  # pydantic has inserted the schema of another class, which is changed already
        elif kind == "definition-ref":
            cls._change(handler.resolve_ref_schema(schema), handler, seen)
        else:
            cls._change(list(schema.values()), handler, seen)


def _refuse_boolean(error: Any, value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticKnownError(error)
    return value


REFUSE_BOOLEAN = {kind: partial(_refuse_boolean, f"{kind}_type") for kind in ("int", "float")}


def _listing(hint: Any, *, by_class: bool) -> Any:
    """Convert an annotation for pydantic: accept iterables as sequences, and mappings as dicts."""
    origin, args, inner = get_origin(hint), get_args(hint), partial(_listing, by_class=by_class)
    if origin in {Union, UnionType}:
        return Union[tuple(map(inner, args))]  # noqa: UP007 - the members of the union are known only at run time
    if origin in {Sequence, Iterable, tuple}:
        listed = partial(_listed, "a list of names" if args[0] is str else "a list")
        each = (inner(args[0]), ...) if origin is not tuple else tuple(map(inner, args))
        return Annotated[tuple[each], BeforeValidator(listed)]  # type: ignore[valid-type]
    if origin is Mapping:
        as_dict = BeforeValidator(lambda value: dict(value) if isinstance(value, Mapping) else value)
        return Annotated[dict[inner(args[0]), inner(args[1])], as_dict]  # type: ignore[misc]
    if hint in SCALARS:
        return Annotated[hint, BeforeValidator(of_python)]
    if by_class and isinstance(hint, type) and origin is None and hint not in {Any, type(None)}:
        return InstanceOf[hint]  # type: ignore[misc]
    return hint


def _listed(expected: str, value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(f"{expected}, such as [{value!r}]")
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise ValueError(expected)
    return tuple(value.tolist() if isinstance(value, np.ndarray) else value)


def _misfit(signature: inspect.Signature, error: TypeError, given: Iterable[str]) -> str:
    """Return why a call does not fit the parameters of a function; ``given`` has the names of keyword arguments."""
    known = [each for each in signature.parameters if each not in {"self", "cls"}]
    for name in given:
        if name not in known:
            return f"there is no argument {name!r}{nearest(name, known)}"
    return f"{error}; its arguments are {', '.join(known)}"


def place_of(value: Any, loc: Sequence[int | str]) -> tuple[list[Any], bool]:
    """Return the path to a wrong value, and True if the wrong value is a key of a mapping.

    ``loc`` is the location that pydantic reports. Members of unions in it are left out.
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
            value = value[part] if isinstance(value, list | tuple) and part < len(value) else None
    return place, bool(loc) and loc[-1] == "[key]"


def expected(error: Any) -> str:
    """Describe in plain words which value pydantic expected.

    >>> expected({"type": "greater_than_equal", "ctx": {"ge": 1}, "input": 0})
    'at least 1'
    >>> expected({"type": "tuple_type", "input": "town"})
    "a list, such as ['town']"
    """
    if error["type"] in EXPECTED:
        example = f", such as [{error['input']!r}]" if isinstance(error["input"], str) and error["input"] else ""
        return EXPECTED[error["type"]].format(**error.get("ctx", {})) + example * (error["type"] in LISTS)
    if error["type"] == "is_instance_of":
        name = error["ctx"]["class"].replace("Path", "path")
        return f"a{'n' * (name[0] in 'AEIOU')} {name}"
    return str(error["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")


def mistake(error: Any) -> str:
    """Describe one of pydantic's errors: the value that was expected, or the sentence of a validator."""
    known = error["type"] in {*EXPECTED, "is_instance_of"} or error["msg"].startswith("Input should be ")
    return f"expected {expected(error)}" if known else str(error["msg"]).removeprefix("Value error, ")


def _shown(value: Any) -> str:
    """Return a short value as text, and the type of a long value or of any other object."""
    if value is None or isinstance(value, bool | int | float | str | tuple | list | dict):
        text = repr(value)
        if len(text) <= SHORT:
            return text
    return f"a value of type {type(value).__name__}"
