"""The plot of the encoder check: the loss as an encoder learns, and its embeddings' scores beside the columns'."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from anyparty.errors import ConfigError
from anyparty.methods.encoder_check import Epoch
from anyparty.report import style
from anyparty.report.section import named
from anyparty.report.style import ACCENT, MUTED, SOFT, WIDTH, lines, styled
from anyparty.storage import writing

KINDS = {".png": style.png, ".svg": style.svg}


def figure(epochs: Sequence[Epoch], metric: str) -> Figure:
    """Draw loss and scores by epoch; bands are one standard deviation over the folds (n - 1)."""
    at = [epoch.epoch for epoch in epochs]
    raw, embedded = (np.array([getattr(epoch.scores, name) for epoch in epochs]) for name in ("raw", "embedded"))
    with styled():
        drawn = Figure(figsize=(WIDTH, 2.6), layout="tight")
        left, right = drawn.subplots(1, 2)
        left.plot(at, [epoch.loss for epoch in epochs], color=ACCENT, marker="o", ms=3)
        left.set_title("reconstruction loss")
        for scores, colour, label in ((raw, MUTED, "columns"), (embedded, ACCENT, "embeddings")):
            mean, off = scores.mean(axis=1), scores.std(axis=1, ddof=1)
            right.plot(at, mean, color=colour, label=label, marker="o", ms=3)
            right.fill_between(at, mean - off, mean + off, color=SOFT if colour == ACCENT else colour, alpha=0.25)
        right.set_title(f"{named(metric)}, {raw.shape[1]} folds")
        right.legend()
        for axis in (left, right):
            axis.set_xlabel("epoch")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            lines(axis, "y")
    return drawn


def check_kind(out: Path) -> None:
    """Refuse a file whose kind cannot be drawn, before any work is done.

    Raises:
        ConfigError: neither .png nor .svg.
    """
    if out.suffix.lower() not in KINDS:
        raise ConfigError(f"--out {out}: name a file that ends in {' or '.join(KINDS)}")


def write(epochs: Sequence[Epoch], metric: str, out: Path) -> None:
    """Draw into a file, of the kind that its name says."""
    check_kind(out)
    with writing(out) as beside:
        beside.write_bytes(KINDS[out.suffix.lower()](figure(epochs, metric)))
