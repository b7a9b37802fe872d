"""APC-VFL's one message with fewer bytes: python -m benchmarks.fewer_bytes [breast-cancer|credit] [--kept] [--quick].

The protocol is that of ``apc-fig5`` (five columns at the active party, the most aligned rows), but a fifth of the
active party's rows is held out of everything. Each choice of precision and width is trained and cross-validated on the
other rows. The table marks the choice with the fewest bytes, among those whose cross-validation score is at most one
standard error below the score of the full message.  The standard error is that of the paired difference over repeats.
Test rows are read once, for the table's last column.

With ``--kept`` the active party keeps the received embeddings (``classify_on = "either"``), so predictions use these
embeddings and not a network that imitates them.  Then no rows are held out, no choice is marked, and the table has the
cross-validation scores of all choices.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyparty.experiments import runner, suites
from anyparty.experiments.one_exchange_suite import OneExchangeMethod, OneExchangeSuite
from anyparty.experiments.results import mean_spread
from anyparty.experiments.suite import Selection
from benchmarks.page import Page

HELD_OUT, REPEATS = 0.2, 5
FULL = "float32, 256"
CHOICES = {
    f"{precision}, {width}": {"precision": precision, "passive_embedding": width}
    for width in (256, 64, 16, 4)
    for precision in ("float32", "float16", "uint8", "uint4")
}


def suite_of(dataset: str, *, kept: bool = False) -> OneExchangeSuite:
    """Return the suite of all choices on one data set."""
    paper = suites.load("apc-fig5")
    assert isinstance(paper, OneExchangeSuite)
    entry, of = paper.datasets[dataset], paper.methods["apc-mse"]
    test = 0 if kept else round(HELD_OUT * entry.rows)
    changed = {"aligned": entry.aligned[:1], "widths": entry.widths[:1], "test": test}
    own = {"classifier_settings": of.classifier_settings} | ({"classify_on": "either"} if kept else {})
    methods = {
        name: OneExchangeMethod(title=name, name="apc", parameters=choice | own,
                          classifier_settings=of.classifier_settings)
        for name, choice in CHOICES.items()
    }  # fmt: skip
    name = "fewer-bytes-kept" if kept else "fewer-bytes"
    update = {"name": name, "datasets": {dataset: entry.model_copy(update=changed)}, "methods": methods,
              "claims": [], "published": {}}  # fmt: skip
    return paper.model_copy(update=update)


def chosen(scores: Mapping[str, list[float]], sent: Mapping[str, float]) -> str:
    """Return the choice with the fewest bytes that loses no more than one standard error by cross-validation.

    >>> chosen({FULL: [0.9, 0.8], "small": [0.9, 0.81], "tiny": [0.5, 0.6]}, {FULL: 9.0, "small": 2.0, "tiny": 1.0})
    'small'
    """
    fine = [name for name, values in scores.items() if lost(values, scores[FULL])[0] <= lost(values, scores[FULL])[1]]
    return min(fine, key=lambda name: sent[name])


def lost(values: list[float], full: list[float]) -> tuple[float, float]:
    """Return by how much ``values`` are below ``full``, as the mean over repeats, and its standard error."""
    off = [b - a for a, b in zip(values, full, strict=True)]
    return statistics.fmean(off), statistics.stdev(off) / math.sqrt(len(off)) if len(off) > 1 else 0.0


def main(dataset: str, *, kept: bool, quick: bool, jobs: int) -> None:
    """Execute the runs that are not finished, and write the page."""
    suite, repeats = suite_of(dataset, kept=kept), 2 if quick else REPEATS
    entry = suite.datasets[dataset]
    name, word, what = ("_kept", " --kept", ", what crossed is kept") if kept else ("", "", "")
    page = Page(f"fewer_bytes{name}_{dataset}", f"APC-VFL with fewer bytes{what}: {dataset}", quick,
                words=f"fewer_bytes {dataset}{word}")  # fmt: skip
    page.say(f"`python -m benchmarks.fewer_bytes {dataset}{word}`: {repeats} repeats; {entry.rows} rows of the active "
             f"party, {entry.test} of them held out; {entry.aligned[0]} aligned; {entry.metric} x 100.")  # fmt: skip
    runs = list(suite.runs(Selection(seeds=repeats, quick=quick)))
    folder = Path("runs") / suite.name / ("quick" if quick else "full")
    result = runner.run_all(runs, folder, jobs=jobs, console=page.console)
    for key, why in result.failed.items():
        page.say(f"{key} failed: {why}")
    if not result.failed:
        table(page, suite, [result.records[run.key] for run in runs])
        page.write()


def table(page: Page, suite: OneExchangeSuite, records: list[dict[str, Any]]) -> None:
    """Write the table of all choices, and mark the chosen one."""
    of = {name: [record for record in records if record["run"]["method"] == name] for name in suite.methods}
    scores = {name: [100 * record["score"] for record in each] for name, each in of.items()}
    held_out = "test" in records[0]
    sent = {name: float(each[0]["costs"]["sent"][0]["bytes_sent"]) for name, each in of.items()}
    pick = chosen(scores, sent)
    rows = []
    for name, each in of.items():
        less, error = lost(scores[name], scores[FULL])
        test = [_shown(mean_spread([100 * record["test"] for record in each]))] if held_out else []
        shown = f"**{name}**" if held_out and name == pick else name
        rows.append([shown, f"{sent[name] / 1e3:,.1f}", f"{sent[FULL] / sent[name]:.1f}",
                     _shown(mean_spread(scores[name])), f"{less:+.2f} ± {error:.2f}", *test])  # fmt: skip
    folds = ("folds of training rows", "lost", "test rows") if held_out else ("folds", "lost")
    page.table("Precision and width of a passive party's embedding", ("", "kB sent", "times fewer", *folds), rows)
    sentence = f"Chosen on training rows: {pick}, {sent[FULL] / sent[pick]:.1f} times fewer bytes. " if held_out else ""
    page.say(f"{sentence}Lost: the mean paired difference to the full message, and its standard error.")


def _shown(value: tuple[float, float]) -> str:
    return f"{value[0]:.1f} ± {value[1]:.1f}"


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("dataset", nargs="?", default="breast-cancer", choices=["breast-cancer", "credit"])
    words.add_argument("--kept", action="store_true", help="the active party keeps what crossed")
    words.add_argument("--jobs", type=int, default=2)
    words.add_argument("--quick", action="store_true", help="two repeats, two epochs: its numbers mean nothing")
    asked = words.parse_args()
    main(asked.dataset, kept=asked.kept, quick=asked.quick, jobs=asked.jobs)
