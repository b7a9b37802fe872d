"""Data sets as arrays, with a seeded split for data sets that are published without a split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anyparty.core.seeds import Seeds
from anyparty.errors import ConfigError

Array = NDArray[Any]
Fields = Mapping[str, Any]  # some fields of ``Dataset``, by name


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """The rows of one data set as published, without scaling, resampling or any other change.

    Attributes:
        name: the name by which ``load`` finds the data set.
        title: the name that the authors of the data set use.
        task: the kind of task.
        X_train: [n, d] float32 for tables, [n, T, d] float32 for time series, [n, C, H, W] uint8 (0..255) for images,
            [n, V, C, H, W] for V views of an object.
        y_train: [n] int64, the index of the row's class in ``classes``; float32 for regression.
        X_test: test rows in the form of ``X_train``; ``None`` if the data set has no official split.
        y_test: the labels of the test rows in the form of ``y_train``.
        features: the names of the d columns, all different; empty for images.
        classes: the names of the classes, in order; empty for regression.
        blocks: groups of columns (last axis) that belong together, by name.
        steps: T, the number of time steps if the first columns are a flattened time series (``mimic4``), else 0.
        groups_train: by name, columns [n] that are not features, such as the person or the speaker of each row.
        groups_test: the values of ``groups_train`` for the test rows.
        source: the publication and the address.
        licence: the terms of use.
        note: remarks on this copy, such as a subset or the split.
    """

    name: str
    title: str
    task: Literal["classification", "regression"]
    X_train: Array
    y_train: Array
    X_test: Array | None = None
    y_test: Array | None = None
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    blocks: Mapping[str, slice] = field(default_factory=dict)
    steps: int = 0
    groups_train: Mapping[str, Array] = field(default_factory=dict)
    groups_test: Mapping[str, Array] = field(default_factory=dict)
    source: str
    licence: str
    note: str = ""

    def __post_init__(self) -> None:
        assert len(self.X_train) == len(self.y_train)
        assert (self.X_test is None) == (self.y_test is None)
        assert all(len(values) == len(self.X_train) for values in self.groups_train.values())
        assert len(set(self.features)) == len(self.features)

    def split(self, seeds: Seeds, *, test: float = 0.2) -> Dataset:
        """Return the data set with its official test rows, or with drawn test rows if it has no official split.

        For each class c with n_c rows, round(test * n_c) rows are drawn without replacement, with the random stream
        "test-rows". In a regression, all rows are treated as one class. Rows keep their order.

        Raises:
            ConfigError: ``test`` is not between 0 and 1, or no row would be left for training or for testing.
        """
        if self.X_test is not None:
            return self
        if not 0 < test < 1:
            raise ConfigError(f"data set {self.name!r}: the share of test rows must lie between 0 and 1, not {test}")
        rng = seeds.numpy("test-rows")
        strata = self.y_train if self.task == "classification" else np.zeros(len(self.y_train))
        drawn = np.zeros(len(self.y_train), dtype=bool)
        for stratum in np.unique(strata):
            rows = rng.permutation(np.flatnonzero(strata == stratum))
            drawn[rows[: round(test * len(rows))]] = True
        if drawn.all() or not drawn.any():
            raise ConfigError(f"data set {self.name!r}: a share of {test} of {len(drawn)} rows leaves one side empty")
        return replace(
            self,
            X_train=self.X_train[~drawn],
            y_train=self.y_train[~drawn],
            X_test=self.X_train[drawn],
            y_test=self.y_train[drawn],
            groups_train={name: values[~drawn] for name, values in self.groups_train.items()},
            groups_test={name: values[drawn] for name, values in self.groups_train.items()},
            note=f"{self.note} test rows: {int(drawn.sum())} drawn by class, seed {seeds.root}.".strip(),
        )
