"""Attacks on every method: what a passive party infers about labels, and the active party about columns.

    python -m benchmarks.threats [--data-dir FOLDER]    Credit and Online Shoppers, one seed
    python -m benchmarks.threats --quick                Breast Cancer; needs no data sets

The same as ``anyparty attack`` for each method, on the tables of the program ``label_leakage``: two parties, each with
half of the columns.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from pathlib import Path

import polars as pl
import torch

from anyparty import METHODS, Federation, threats
from anyparty.errors import AnypartyWarning
from anyparty.threats.audit import MEMBERSHIP, AttackResult
from benchmarks.label_leakage import ACTIVE, LABEL, PASSIVE, SHORT, of_dataset, shoppers
from benchmarks.page import Page

ROWS, EPOCHS, RESAMPLES = 2_000, 3, 100
ABOUT_LABELS = [name for name, attack in threats.ATTACKS.items() if attack.target == "labels"]
ABOUT_COLUMNS = [name for name, attack in threats.ATTACKS.items() if attack.target != "labels"]


def attacked(frames: Mapping[str, pl.DataFrame], method: str) -> threats.ThreatReport:
    """Train a method while recording, and return the results of all attacks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnypartyWarning)
        federation = Federation.from_tables(dict(frames), label=LABEL, active=ACTIVE, task="classification")
        return threats.run(federation, method, parameters=SHORT.get(method), epochs=EPOCHS, resamples=RESAMPLES)


def cell(report: threats.ThreatReport, attacker: str, attack: str) -> str:
    """Return the highest score of an attack over stages, marked if it tells more than chance and own columns."""
    made = [each for each in report.results if (each.attacker, each.attack) == (attacker, attack) and each.score]
    if not made:
        return "–"
    best = max(made, key=_value)
    return f"{_value(best):.3f}{'*' if best.informs else ''}"


def _value(result: AttackResult) -> float:
    assert result.score is not None
    return result.score.value


def spread(reports: Mapping[str, threats.ThreatReport], attacks: list[str], attacker: str) -> list[str]:
    """Return the range over methods, for each attack, of a value that a row of the page explains."""
    found = []
    for name in attacks:
        alone = [each.alone for report in reports.values() for each in report.results
                 if (each.attacker, each.attack) == (attacker, name) and each.alone is not None]  # fmt: skip
        found.append(f"{min(alone):.3f} to {max(alone):.3f}" if alone else "–")
    return found


def main(*, quick: bool, data_dir: Path | None) -> None:
    """Attack every method, and write the page."""
    torch.set_num_threads(1)
    page = Page("threats", "What parties can infer: every method, every attack", quick)
    tables = (
        {"Breast Cancer": of_dataset("breast-cancer", None)}
        if quick
        else {"Credit": of_dataset("credit", data_dir), "Online Shoppers": shoppers(data_dir)}
    )
    methods = ["laser", "apc"] if quick else list(METHODS)
    for title, whole in tables.items():
        frames = {name: frame[:ROWS] for name, frame in whole.items()}
        reports = {}
        for method in methods:
            reports[method] = attacked(frames, method)
            print(title, method, [each.sentence for each in reports[method].strongest()], flush=True)
        share = float(frames[ACTIVE][LABEL].to_numpy().mean())
        for what, attacks, attacker in (
            ("labels, at the passive party", ABOUT_LABELS, PASSIVE),
            ("columns, at the active party", ABOUT_COLUMNS, ACTIVE),
        ):
            rows = [[name, *(cell(report, attacker, attack) for attack in attacks)] for name, report in reports.items()]
            rows.append(["own columns alone", *spread(reports, attacks, attacker)])
            heading = f"{title}: {what} ({len(frames[ACTIVE]):,} rows, {share:.1%} of the positive class)"
            page.table(heading, ("method", *attacks), rows)
        rows = [
            [name, f"{each.score.value:.3f}", f"{each.score.low:.3f} to {each.score.high:.3f}"]
            for name, report in reports.items()
            for each in report.results
            if each.attack == MEMBERSHIP and each.score is not None
        ]
        page.table(f"{title}: membership, at a reader of answers", ("method", "AUROC", "95 % interval"), rows)
    page.say(
        f"Labels, attributes and membership: AUROC; chance is .5, or slightly more where the attacker may choose the "
        f"sign (the first five attacks). Columns: the mean over columns of R², or of the share of right levels beyond "
        f"the most frequent level; chance is 0. A star marks a score whose whole 95 % interval is above chance and "
        f"above the same attack on the attacker's own columns. A dash: no message has values of rows. Attacks on "
        f"labels from gradient-norm to gradient-clusters know no label; model-completion, message-regression and "
        f"row-use know 10 labels of each class; attacks on columns know 10 % of the training rows, and "
        f"attribute-inference 20 rows. One seed, at most the first {ROWS:,} rows of a data set, {EPOCHS} epochs "
        f"(pretraining: 1); other settings are the defaults. With more epochs, embeddings carry more or less of the "
        f"columns; gradients of the first epoch are the same."
    )
    page.write()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Breast Cancer and two methods: a look, not a result")
    parser.add_argument("--data-dir", type=Path, help="the folder of data sets; by default ANYPARTY_DATA")
    asked = parser.parse_args()
    main(quick=asked.quick, data_dir=asked.data_dir)
