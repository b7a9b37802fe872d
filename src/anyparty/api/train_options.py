"""The keyword arguments of ``Federation.train`` that are settings of [train], with types for editors and mypy."""

from __future__ import annotations

from typing import Literal, TypedDict


class TrainOptions(TypedDict, total=False):
    """The settings of ``anyparty.config.TrainSettings``, which describes them and validates their values."""

    epochs: int
    batch_size: int
    batches: Literal["mixed", "by-pattern"]
    rows: Literal["any", "active", "all"]
    seed: int
    validation: float
    test: float
    score_training: int
    metric: str | None
    patience: int | Literal["none"] | None
    keep: Literal["best", "last", "average"]
    checkpoint_every: int
    balance: bool
    extreme: Literal["stop", "drop"]
    require: int | Literal["all"] | None
    device: str
