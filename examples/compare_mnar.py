"""A comparison under values that are missing not at random, with a mechanism of your own; a LaTeX table and a CSV file.

Run ``python examples/compare_mnar.py``. The data set of credit-card clients has 30,000 rows, of which 3,000 are used.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import rich

import anyparty
from anyparty.data.missingness import MNAR, independent, stream
from anyparty.testing import check_mechanism


@dataclass(frozen=True, kw_only=True)
class Outliers:
    """A party lacks a row with probability p if the row is unusual in the party's own columns, else never."""

    name: ClassVar[str] = "outliers"
    p: float = 0.8

    def draw(self, seeds, name, n, K, blocks=None):
        unusual = np.stack([np.abs(block).mean(axis=1) > 0.8 for block in blocks], axis=1)  # [n, K]
        return independent(stream(seeds, name), np.where(unusual, self.p, 0.0))


def main(rows: int = 3000, seeds: int = 3, epochs: int = 15) -> None:
    """Compare three methods on two parties under three conditions; print and write the tables."""
    check_mechanism(Outliers())
    data = anyparty.datasets.load("credit")
    print(data.source, data.licence, data.X_train.shape, sep="\n")
    X, y = data.X_train[:rows], data.y_train[:rows]
    federation = anyparty.Federation.from_arrays({"bank": X[:, :11], "shop": X[:, 11:]}, y, task="classification")
    missing = [(0.0, MNAR(p=0.7)), (MNAR(p=0.7), MNAR(p=0.7)), Outliers()]  # pairs: for training, and for test
    comparison = anyparty.compare(federation, ["sum", "laser", "local"], seeds=seeds, missing=missing, metric="auroc",
                                  epochs=epochs)  # fmt: skip
    rich.print(comparison)
    print(comparison.to_latex())
    comparison.to_csv("scores.csv")


if __name__ == "__main__":
    main()
