"""Draw the pictures of the report in the documentation: docs/images/report.png, report-several.png and dark ones.

    python -m tools.report_images    # needs a headless Chromium; takes about a minute

The runs train on scikit-learn's handwritten digits. Four parties each hold a quarter of every picture, and each passive
party lacks 30 % of the rows, at random.  A picture ends before the page's second section.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.datasets import load_digits
from tools.browser import SCHEMES, evaluate, screenshot

from anyparty import Federation
from anyparty.report import page

ROOT = Path(__file__).parents[1]
PARTIES = ("north-west", "north-east", "south-west", "south-east")
METHODS = ("laser", "ensemble", "local")
SEEDS = (0, 1, 2)
LACKING = 0.3
WIDTH = 1000
FIRST_SECTION = "return Math.floor(document.querySelectorAll('h2')[1].getBoundingClientRect().top) - 16"


def write_tables(folder: Path) -> dict[str, Path]:
    """Write each party's quarter of the pictures as CSV; the first party also has the labels."""
    digits, rng = load_digits(), np.random.default_rng(0)
    halves = np.split(digits.images, 2, axis=1)
    quarters = [quarter.reshape(len(quarter), -1) for half in halves for quarter in np.split(half, 2, axis=2)]
    tables = {}
    for name, pixels in zip(PARTIES, quarters, strict=True):
        frame = pl.DataFrame(pixels, schema=[f"pixel{k}" for k in range(pixels.shape[1])]).with_row_index("id")
        if name == PARTIES[0]:
            frame = frame.with_columns(digit=pl.Series(digits.target.astype(str)))
        else:
            frame = frame.filter(pl.Series(rng.random(len(frame)) >= LACKING))
        tables[name] = folder / f"{name}.csv"
        frame.write_csv(tables[name])
    return tables


def draw(page: Path, name: str) -> None:
    """Write the picture of a page's first section in both schemes: ``name``.png and ``name``-dark.png."""
    height = int(evaluate(page, FIRST_SECTION, width=WIDTH))
    for scheme in SCHEMES:
        out = ROOT / "docs" / "images" / f"{name}{'-dark' if scheme == 'dark' else ''}.png"
        screenshot(page, out, width=WIDTH, height=height, scheme=scheme)


def main() -> None:
    """Train the runs, write both pages, and take their pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        federation = Federation.from_tables(write_tables(folder), id="id", label="digit", task="classification")
        for method in METHODS:
            for seed in SEEDS:
                federation.train(method, folder=folder / f"digits-{method}-{seed}", epochs=20, seed=seed)
        runs = [folder / f"digits-{method}-{seed}" for method in METHODS for seed in SEEDS]
        one, several = (page.write(paths, folder / f"{len(paths)}.html", model=True) for paths in (runs[:1], runs))
        draw(one, "report")
        draw(several, "report-several")


if __name__ == "__main__":
    main()
