"""What every group of settings is: frozen, checked, and clear about what does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from anyparty.errors import ConfigError, nearest


class Settings(BaseModel):
    """A group of settings: frozen, and without room for a key that does not exist."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str = "settings") -> Any:
        """Return the settings that ``values`` describe.

        Raises:
            ConfigError: a key that does not exist (with the nearest one) or a value out of range.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(f"{source}: {_explain(error, cls)}") from None


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Say in a sentence what pydantic found, with the nearest key for one that does not exist."""
    said = []
    for found in error.errors(include_url=False):
        where = ".".join(str(part) for part in found["loc"]) or "settings"
        if found["type"] == "extra_forbidden":
            known = _known(model, found["loc"][:-1])
            said.append(f"no setting {where!r}{nearest(str(found['loc'][-1]), known)}")
        else:
            message = found["msg"].removeprefix("Value error, ")
            said.append(
                f"{where}: {message}" + ("" if isinstance(found["input"], dict) else f", got {found['input']!r}")
            )
    return "; ".join(said)


def _known(model: type[BaseModel], where: Sequence[int | str]) -> list[str]:
    """Return the keys of the group at ``where``."""
    for part in where:
        if part in model.model_fields:
            model = _group(model.model_fields[str(part)].annotation) or model
    return list(model.model_fields)


def _group(annotation: Any) -> type[BaseModel] | None:
    """Return the group of settings in a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _group(part))), None)
