"""The rows of a run: a data set as blocks, and who has which row and which label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyparty.blocks.missing import Drawn, Labels, Missing, normalised
from anyparty.experiments.parties import blocks_of, draw, mechanism_of
from anyparty.seeds import Seeds
from anyparty.tables.datasets.dataset import Dataset
from anyparty.tables.partition import views

Blocks = list[NDArray[Any]]


@dataclass(frozen=True)
class Rows:
    """Training and test rows of one run, cut into K blocks [n, d_k] each.

    Attributes:
        data: the data set, with test rows.
        parties: K.
        settings: of the run: ``cut``, and where given ``rows``, ``repeats``, ``labelled``, ``mechanisms``.
        seeds: of everything drawn.

    """

    data: Dataset
    parties: int
    settings: Mapping[str, Any]
    seeds: Seeds

    @cached_property
    def train(self) -> tuple[Blocks, NDArray[Any]]:
        """The training rows' blocks and labels; of a suite with ``rows`` so many of them, drawn without replacement."""
        X, y = self.data.X_train, self.data.y_train
        wanted = self.settings.get("rows")
        if wanted is not None and wanted < len(y):
            kept = np.sort(self.seeds.numpy("rows").permutation(len(y))[:wanted])
            X, y = X[kept], y[kept]
        return self._cut(X, y, "train")

    @cached_property
    def test(self) -> tuple[Blocks, NDArray[Any]]:
        """The test rows' blocks and labels."""
        assert self.data.X_test is not None
        assert self.data.y_test is not None
        return self._cut(self.data.X_test, self.data.y_test, "test")

    def _cut(self, X: NDArray[Any], y: NDArray[Any], part: str) -> tuple[Blocks, NDArray[Any]]:
        if "repeats" not in self.settings:
            return blocks_of(X, self.settings["cut"], self.parties), y
        times, rng = self.settings["repeats"][part == "test"], self.seeds.numpy("views", part)
        each = [views(X, self.parties, pick=rng) for _ in range(times)]
        scaled = [np.concatenate(of_party).astype(np.float32) / 255 for of_party in zip(*each, strict=True)]
        return [block.reshape(len(block), -1) for block in scaled], np.tile(y, times)

    def draw_train(self, mechanism: str) -> Drawn:
        """Draw who has which training row, and where labels are scarce which are labelled: alike for every method."""
        how, scarce = self._named(mechanism), self.settings.get("labelled")
        if scarce is not None:
            how = Labels(n=scarce["n"], aligned=scarce["aligned"], rest=how)
        return draw(mechanism, self.seeds, "train", self._values(self.train[0]), how)

    def draw_test(self, mechanism: str) -> Drawn:
        """Draw who has which test row: alike for every method."""
        return draw(mechanism, self.seeds, "test", self._values(self.test[0]), self._named(mechanism))

    def _named(self, mechanism: str) -> Missing:
        return mechanism_of(mechanism, self.settings.get("mechanisms"))

    def _values(self, blocks: Blocks) -> Blocks:
        """Return what mechanisms look at: features normalised by the training rows, where a suite names its own."""
        return normalised(blocks, self.train[0]) if "mechanisms" in self.settings else blocks
