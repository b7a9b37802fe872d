"""The rules by which one party's cells are read. A model stores them for prediction, which applies the same rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from anyparty.tables.dates import DateFormat
from anyparty.tables.number_marks import Decimal, Limits, NumberFormat


class ReadingRules(BaseModel):
    """The rules by which the cells of one party's table are read.

    Attributes:
        missing: by column, the texts and numbers that mark a missing cell, in addition to the usual ones such as NA.
        task: the requested kind of task. For "regression", all labels are numbers.
        classes: by class, the label texts that mean it, without regard to case; ``None`` recognizes the classes.
        limits: by column, how limits such as <25 and ranges such as 10-20 are read: "half", "value" or "missing".
        dates: by column, the order of dates such as "day-first", or their format such as "%d.%m.%y".
        decimal: the decimal mark of numbers in text; ``None`` recognizes it in each column.
        merge_spellings: whether categories that differ only in their spelling are one category.
        formats: by column, the format of numbers with marks, as recognized in training.
        date_formats: by column, how dates are written, as recognized in training.
        literals: by column, texts such as NA that usually mark a missing cell, but were levels in training.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    missing: dict[str, tuple[str, ...]] = {}
    task: Literal["auto", "classification", "regression"] = "auto"
    classes: dict[str, tuple[str, ...]] | None = None
    limits: dict[str, Limits] = {}
    dates: dict[str, str] = {}
    decimal: Decimal | None = None
    merge_spellings: bool = False
    formats: dict[str, NumberFormat] = {}
    date_formats: dict[str, DateFormat] = {}
    literals: dict[str, tuple[str, ...]] = {}

    def to_json(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, for JSON."""
        return self.model_dump(mode="json", exclude_defaults=True)


AS_WRITTEN = ReadingRules()


def texts(values: Iterable[Any] | str | float) -> tuple[str, ...]:
    """Convert one or more values of a setting to texts, as cells are converted: 1.0 and 1 to "1", True to "true".

    >>> texts([1.0, True, "refused", -999])
    ('1', 'true', 'refused', '-999')
    """
    listed = [values] if isinstance(values, str | int | float) else list(values)
    return tuple(
        str(value).lower() if isinstance(value, bool)
        else str(int(value)) if isinstance(value, float) and value.is_integer()
        else str(value)
        for value in listed
    )  # fmt: skip


def classes(values: Any) -> Any:
    """Convert the setting ``classes``, a list of classes or a mapping from each class to its texts, to a mapping.

    >>> classes(["no", "yes"]), classes({"yes": ["true", 1]})
    ({'no': ('no',), 'yes': ('yes',)}, {'yes': ('true', '1')})
    """
    if isinstance(values, Mapping):
        return {texts([name])[0]: texts(each) for name, each in values.items()}
    if isinstance(values, list | tuple):
        return {name: (name,) for name in texts(values)}
    return values
