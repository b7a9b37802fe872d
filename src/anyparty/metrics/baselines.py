"""Boosted trees of LightGBM, trained on all columns that one place holds: what a federation has to beat.

Notation  n rows, F columns, C classes, or one output in a regression.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from anyparty.core.types import Task
from anyparty.networks.boosted_trees import lightgbm

Floats = NDArray[np.floating[Any]]
ROUNDS, UNVALIDATED_ROUNDS, PATIENCE = 500, 150, 30


@dataclass(frozen=True, kw_only=True)
class BoosterBaseline:
    """A trained booster.

    Attributes:
        booster: the booster of LightGBM.
        task: the task whose classes it predicts.
    """

    booster: Any
    task: Task

    @classmethod
    def fit(
        cls, x: Floats, y: NDArray[Any], task: Task, *,
        validation: tuple[Floats, NDArray[Any]] | None = None, seed: int = 0,
    ) -> BoosterBaseline:  # fmt: skip
        """Train trees with a rate of .05 until the loss of validation rows does not improve for 30 rounds.

        Args:
            x: [n, F], the training rows; NaN is a missing cell.
            y: [n], the labels: the index of the class, or a standardized number.
            task: the task.
            validation: other rows and their labels; without them, 150 rounds are trained.
            seed: the seed of LightGBM.

        Raises:
            ConfigError: LightGBM cannot be imported.
        """
        module = lightgbm()
        kind = "regression" if task.kind == "regression" else "binary" if task.outputs == 2 else "multiclass"
        parameters = {
            "objective": kind, "learning_rate": 0.05, "min_data_in_leaf": max(1, min(20, len(x) // 10)),
            "seed": seed % 2**31, "num_threads": torch.get_num_threads(), "deterministic": True,
            "force_row_wise": True, "verbosity": -1, **({"num_class": task.outputs} if kind == "multiclass" else {}),
        }  # fmt: skip
        rows = module.Dataset(x, y.astype(np.float64), params=parameters)
        if validation is None or not len(validation[1]):
            return cls(booster=module.train(parameters, rows, UNVALIDATED_ROUNDS), task=task)
        held = module.Dataset(validation[0], validation[1].astype(np.float64), reference=rows)
        stop = module.early_stopping(PATIENCE, verbose=False)
        return cls(booster=module.train(parameters, rows, ROUNDS, valid_sets=[held], callbacks=[stop]), task=task)

    def predict(self, x: Floats) -> NDArray[np.float64]:
        """Return class probabilities [n, C], or numbers [n, 1] in the label's own unit, for rows x [n, F]."""
        found = np.asarray(self.booster.predict(x), dtype=np.float64)
        if self.task.kind == "regression":
            return (found * self.task.scale + self.task.mean).reshape(-1, 1)
        return np.stack([1 - found, found], axis=1) if self.task.outputs == 2 else found
