"""The result of ``compare``: scores of methods on identical rows, and differences from a baseline, paired by seed.

The test rows are scored in two ways: after blocks were removed at the missing rate (``present`` is null), and with each
number of present parties (``present`` is this number). A block is a party's columns of a row. If the method does
not answer a row, the row is scored with a constant answer: the class frequencies of the training rows, or in a
regression the mean label of these rows. ``coverage`` is the share of rows that the method itself answered.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from rich.console import Group, RenderableType
from rich.text import Text

from anyparty.core import figure_style as style
from anyparty.core.figure_panels import Curve, Panel, PanelFigure
from anyparty.core.storage import writing
from anyparty.errors import ConfigError, nearest
from anyparty.metrics import METRICS
from anyparty.metrics.paired import PairedDifference
from anyparty.metrics.scores import metric_label
from anyparty.report import page
from anyparty.report.elements import (
    PageFigure,
    PageTable,
    Section,
    decimal_places,
    format_bytes,
    format_estimate,
    format_number,
)  # fmt: skip
from anyparty.report.shapley import Estimate

GROUPS = ("method", "missing", "present")
COSTS = ("seconds", "bytes_sent", "parameters", "epochs")
# These metrics are shares, which tables show in percent.
SHARES = {"accuracy", "balanced_accuracy", "top5_accuracy", "f1", "macro_f1", "weighted_f1", "auroc"}


REACHED = (
    " Missing: the probability that a block was removed, and the share of blocks that was removed. This share is "
    "smaller, because a row keeps at least one block."
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The scores of several methods with the same seeds and the same missing blocks.

    Attributes:
        records: one record for each finished run.
        methods: the labels of the methods, in order.
        metric: the metric of tables and figures; ``frame(metric=...)`` returns another metric.
        failed: the error of each failed run, with the key of the run.
        folder: the folder of the records; ``None`` if they were kept in memory.
        tuned: for each method and missing rate, the settings that a search chose; empty without a search.
    """

    records: Sequence[Mapping[str, Any]] = field(repr=False)
    methods: Sequence[str]
    metric: str
    failed: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: Path | None = None
    tuned: Mapping[tuple[str, Any], Mapping[str, Any]] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        """Return the methods, missing rates and numbers of runs and seeds; ``rich.print`` shows the tables."""
        return (f"<Comparison of {', '.join(self.methods)}: {len(self.records)} runs, {len(self.seeds)} seeds, "
                f"missing {', '.join(map(self._share, self.rates))}; {len(self.failed)} failed>")  # fmt: skip

    @property
    def seeds(self) -> list[int]:
        """The seeds of the finished runs, in ascending order."""
        return sorted({record["run"]["seed"] for record in self.records})

    @property
    def rates(self) -> list[Any]:
        """The missing rates of the finished runs in ascending order, or the labels of their mechanisms."""
        found = list(dict.fromkeys(record["run"]["missing"] for record in self.records))
        return found if any(isinstance(rate, str) for rate in found) else sorted(found)

    @cached_property
    def reached(self) -> dict[Any, float]:
        """For each missing rate, the share of blocks that was removed: the mean over runs.

        The share is smaller than the rate, because a row keeps at least one of its blocks.
        """
        return {
            rate: float(np.mean([record["rate"] for record in self.records if record["run"]["missing"] == rate]))
            for rate in self.rates
        }

    def _share(self, rate: float | str) -> str:
        """Return a missing rate and the share of blocks that was removed, such as "50% (33% reached)"."""
        label = rate if isinstance(rate, str) else f"{rate:.0%}"
        return label + (f" ({self.reached[rate]:.0%} reached)" if rate in self.reached and rate else "")

    # Methods that return the scores as data frames

    def frame(self, by: str | Sequence[str] | None = None, metric: str | None = None) -> pl.DataFrame:
        """Return the scores as a data frame.

        Args:
            by: the columns to group by: some of "method", "missing" and "present"; "method" is always included.
                Without "present", scores are for the test rows after blocks were removed at the missing rate.
                ``None`` does not group, and returns one row for each run and number of present parties.
            metric: the metric of the scores, such as "auroc"; by default the metric of the comparison.

        Returns:
            For each group: the mean and the standard deviation of the score over seeds, the number of seeds, the mean
            coverage, and the mean costs (seconds of training, bytes sent, weights and epochs).  Within a group, the
            scores of each seed are averaged first.  In a frame by "missing", ``missing_reached`` is the share of blocks
            that was removed.

        Raises:
            ConfigError: a column or the metric does not exist.
        """
        long = self._score_rows(metric)
        if by is None:
            return long
        keys = _group_columns(by)
        seeds = _seed_means(long, keys)
        costs = [pl.col(name).mean() for name in ("coverage", *COSTS)]
        reached = [pl.col("missing").replace_strict(self.reached).first().alias("missing_reached")]
        return seeds.group_by(keys, maintain_order=True).agg(
            *(reached if "missing" in keys else []), pl.col("score").mean().alias("mean"),
            pl.col("score").std().alias("deviation"), pl.col("score").count().alias("seeds"), *costs,
        )  # fmt: skip

    def _score_rows(self, metric: str | None) -> pl.DataFrame:
        name = self._metric_name(metric)
        rows = [
            {
                "method": record["run"]["method"],
                "missing": record["run"]["missing"],
                "seed": record["run"]["seed"],
                "present": each["present"],
                "metric": name,
                "score": _defined_number(each.get(name)),
                "coverage": _defined_number(each.get("coverage")),
                "rows": _defined_number(each.get("rows")),
                "missing_reached": record["rate"],
                **{key: record[key] for key in COSTS},
            }
            for record in self.records
            for each in record["scores"]
        ]
        label = pl.String if any(isinstance(rate, str) for rate in self.rates) else pl.Float64
        types = {"present": pl.Int64, "score": pl.Float64, "coverage": pl.Float64, "missing": label}
        long = pl.DataFrame(rows, schema_overrides=types, infer_schema_length=None)
        order = {name: place for place, name in enumerate(self.methods)}
        conditions = {rate: place for place, rate in enumerate(self.rates)}
        return long.sort(pl.col("method").replace_strict(order), pl.col("missing").replace_strict(conditions), "seed",
                         pl.col("present").fill_null(10**9), descending=[False, False, False, True])  # fmt: skip

    def _metric_name(self, metric: str | None) -> str:
        name, known = metric or self.metric, self._metrics
        if name not in known:
            raise ConfigError(f"metric: the comparison has no {name!r}{nearest(name, known)}")
        return name

    @cached_property
    def _metrics(self) -> list[str]:
        return [name for name in METRICS if name in self.records[0]["scores"][0]]

    def paired(
        self, baseline: str | None = None, by: str | Sequence[str] = ("missing",), metric: str | None = None
    ) -> pl.DataFrame:
        """Return the differences of all methods from a baseline, paired by seed.

        Args:
            baseline: the label of a method; by default the first method.
            by: the columns to group by: some of "method", "missing" and "present"; "method" is always included.
            metric: the metric of the scores, such as "auroc"; by default the metric of the comparison.

        Returns:
            For each method and group: the mean difference (method minus baseline), its 95 % interval, the number of
            seeds, and the number of seeds with which the method is better.  The interval is Student's t with the
            variance of Nadeau and Bengio (2003): (1/n + test rows / training rows) times the variance over n seeds.
            The second term is needed because the training rows of different seeds overlap.  A single seed has no
            interval (NaN).

        Raises:
            ConfigError: a method, a column or the metric does not exist.
        """
        baseline = self.methods[0] if baseline is None else baseline
        if baseline not in self.methods:
            raise ConfigError(f"baseline: the comparison has no method {baseline!r}{nearest(baseline, self.methods)}")
        name, keys = self._metric_name(metric), _group_columns(by)
        seeds = _seed_means(self._score_rows(metric), keys)
        others = [key for key in keys if key != "method"]
        base = seeds.filter(pl.col("method") == baseline).select(*others, "seed", pl.col("score").alias("base"))
        joined = seeds.filter(pl.col("method") != baseline).join(base, on=[*others, "seed"], maintain_order="left")
        rows = []
        for row in joined.group_by(keys, maintain_order=True).agg("score", "base").iter_rows(named=True):
            found = PairedDifference.of(name, zip(row.pop("score"), row.pop("base"), strict=True))
            low, high = found.interval(self._overlap(row.get("missing")))
            reached = {"missing_reached": self.reached[row["missing"]]} if "missing" in row else {}
            values = {"difference": found.mean, "low": low, "high": high, "better": found.better}
            rows.append({**row, **reached, "baseline": baseline, "metric": name, **values, "seeds": len(found.each)})
        return pl.DataFrame(rows)

    def _overlap(self, missing: float | str | None) -> float:
        """Return the number of test rows divided by the number of training rows.

        The quotient is for one missing rate, or for all rates if ``missing`` is ``None``.  It is used to estimate how
        much the scores of different seeds depend on each other.
        """
        each = [one["rows"] for one in self.records if missing is None or one["run"]["missing"] == missing]
        return float(sum(n["test"] for n in each) / max(1, sum(n["train"] + n["validation"] for n in each)))

    # Methods that make the tables, the figure and the page

    def tables(self, baseline: str | None = None) -> list[PageTable]:
        """Return the tables of the page: scores, differences from the baseline, costs, and the result of the search.

        The table of differences is left out if there is only one method. The table of the search is left out if there
        was no search.
        """
        differences = [self._difference_table(baseline)] if len(self.methods) > 1 else []
        searched = [self._tuned_table()] if self.tuned else []
        return [self._score_table(), *differences, self._cost_table(), *searched]

    def _tuned_table(self) -> PageTable:
        rows = [
            [
                self._share(rate),
                name,
                ", ".join(f"{key} = {_setting_text(value)}" for key, value in changes.items()) or "as given",
            ]
            for (name, rate), changes in self.tuned.items()
        ]
        return PageTable(headers=["missing", "method", "settings"], rows=rows, text_columns=frozenset({1, 2}),
                         caption="Settings with the best validation score of the search.")  # fmt: skip

    def _score_table(self) -> PageTable:
        drawn = {(row["method"], row["missing"]): row for row in self.frame(by="missing").iter_rows(named=True)}
        counts = {(row["method"], row["missing"], row["present"]): row
                  for row in self.frame(by=("missing", "present")).iter_rows(named=True)}  # fmt: skip
        present = sorted({key[2] for key in counts}, reverse=True)
        rows = [
            [self._share(rate), name, self._score_text(drawn[name, rate]),
             *(self._score_text(counts.get((name, rate, n))) for n in present)]
            for rate in self.rates for name in self.methods if (name, rate) in drawn
        ]  # fmt: skip
        headers = ["missing", "method", "all rows", *(f"{n} present" for n in present)]
        return PageTable(headers=headers, rows=rows, text_columns=frozenset({1}), caption=self._caption())

    def _caption(self) -> str:
        better = "more" if METRICS[self.metric].greater else "less"
        many = f", mean ± standard deviation over {len(self.seeds)} seeds" if len(self.seeds) > 1 else ", one seed"
        return (
            f"Test {self._label} ({better} is better){many}. All rows: the test rows, with the missing blocks of the "
            f"first column. n present: the test rows that n parties hold, answered by these n parties; mean "
            f"over the sets of n parties. In brackets: the share of rows with an answer, if it is not 100%. A row "
            f"without an answer counts as answered with the class frequencies, or the mean, of the training rows. A "
            f"dash: no row has an answer." + (REACHED if any(self.rates) else "")
        )

    @property
    def _label(self) -> str:
        return metric_label(self.metric) + (", %" if self.metric in SHARES else "")

    def _format_value(self, value: float, digits: int) -> str:
        return format_number(100 * value, 1) if self.metric in SHARES else format_number(value, digits)

    def _score_text(self, row: Mapping[str, Any] | None) -> str:
        if row is None or row["mean"] is None or not row["coverage"]:
            return "–"
        digits = decimal_places(self.metric, row["mean"])
        spread = f" ± {self._format_value(row['deviation'], digits)}" if row["deviation"] is not None else ""
        share = f" ({row['coverage']:.0%})" if row["coverage"] < 1 else ""
        return f"{self._format_value(row['mean'], digits)}{spread}{share}"

    def _cost_table(self) -> PageTable:
        rows = [
            [row["method"], f"{row['seconds']:.1f} s", f"{row['epochs']:.0f}", format_bytes(row["bytes_sent"]),
             f"{row['parameters']:,.0f}"]
            for row in self.frame(by="method").iter_rows(named=True)
        ]  # fmt: skip
        headers = ["method", "training time", "epochs", "sent", "parameters"]
        return PageTable(headers=headers, rows=rows, caption="Mean of all runs; parameters of all parties together.")

    def _difference_table(self, baseline: str | None) -> PageTable:
        found = self.paired(baseline)
        baseline = baseline or self.methods[0]
        rows = []
        for row in found.iter_rows(named=True):
            scale, digits = (100, 1) if self.metric in SHARES else (1, decimal_places(self.metric, row["difference"]))
            shown = Estimate(value=scale * row["difference"], low=scale * row["low"], high=scale * row["high"])
            rows.append([self._share(row["missing"]), row["method"], format_estimate(shown, sign=True, digits=digits),
                         f"{row['better']} of {row['seeds']}"])  # fmt: skip
        return PageTable(
            headers=["missing", "method", f"minus {baseline}", "better in"], rows=rows, text_columns=frozenset({1}),
            caption=f"Difference in test {self._label} on all rows, paired by seed, with the 95 % interval of "
            "Student's t, corrected for overlapping training rows (Nadeau and Bengio, 2003).",
        )  # fmt: skip

    def to_latex(self, baseline: str | None = None) -> str:
        """Return the scores of all rows as a LaTeX table: a row per method, a column per missing rate.

        The best mean of a column is bold, and so is every method whose paired 95 % interval of the difference from the
        best one contains 0. The table needs the package booktabs.

        Args:
            baseline: a method to leave without bold, such as an upper bound; by default none.
        """
        found = {(row["missing"], row["method"]): row for row in self.frame(by="missing").iter_rows(named=True)}
        greater, columns = METRICS[self.metric].greater, []
        for rate in self.rates:
            means = {name: found[rate, name]["mean"] for name in self.methods if (rate, name) in found}
            scored = {name: mean for name, mean in means.items() if name != baseline and mean is not None}
            bold = set[str]()
            if scored:
                best = (max if greater else min)(scored, key=lambda name: scored[name])
                near = self.paired(best).filter(pl.col("missing") == rate) if len(self.methods) > 1 else pl.DataFrame()
                bold = {best} | {row["method"] for row in near.iter_rows(named=True) if row["low"] <= 0 <= row["high"]}
            columns.append({name: self._latex_cell(found.get((rate, name)), bold=name in bold and name != baseline)
                            for name in self.methods})  # fmt: skip
        heads = [_tex(rate if isinstance(rate, str) else f"{rate:.0%}") for rate in self.rates]
        lines = [
            f"% test {self._label.replace('%', 'percent')}, mean and standard deviation over {len(self.seeds)} seeds",
            rf"\begin{{tabular}}{{l{'r' * len(heads)}}}", r"\toprule", " & ".join(["missing", *heads]) + r" \\",
            r"\midrule",
            *(" & ".join([_tex(name), *(column[name] for column in columns)]) + r" \\" for name in self.methods),
            r"\bottomrule", r"\end{tabular}",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def _latex_cell(self, row: Mapping[str, Any] | None, *, bold: bool) -> str:
        text = self._score_text(row).replace("–", "--")
        mean, plus, rest = text.partition(" ± ")
        spread, _, share = rest.partition(" ")
        number = rf"\mathbf{{{mean}}}" if bold else mean
        if mean == "--":
            return mean
        return f"${number}" + (rf" \pm {spread}" if plus else "") + "$" + (f" {_tex(share)}" if share else "")

    def to_csv(self, path: Path | str, by: str | Sequence[str] | None = ("missing", "present")) -> None:
        """Write the scores as a CSV file; ``by`` is that of ``frame``, with ``None`` for one row per run.

        Raises:
            StorageError: the file cannot be written.
        """
        with writing(Path(path)) as unfinished:
            unfinished.write_bytes(self.frame(by).write_csv().encode())

    def plot(self, metric: str | None = None) -> Figure:
        """Draw the score against the number of present parties: a panel per missing rate, a line per method."""
        name = self._metric_name(metric)
        grouped = self.frame(by=("missing", "present"), metric=name)
        panels = [
            Panel(title=self._title(rate), x_label="parties present in prediction",
                  y_label=f"test {metric_label(name)}", **self._curves(grouped.filter(pl.col("missing") == rate)))
            for rate in self.rates
        ]  # fmt: skip
        size = (style.WIDTH / len(panels), 3.4)
        return PanelFigure(panels=panels, across=len(panels), size=size, same_y="row", grid="y").draw()

    def _title(self, rate: float | str) -> str:
        if isinstance(rate, float | int):
            return f"{self._share(rate)}\nof blocks missing in training"
        return rate.replace(" → ", " →\n") + f"\n({self.reached[rate]:.0%} missing)"

    def _curves(self, grouped: pl.DataFrame) -> dict[str, Any]:
        """Return the curves of a panel and the ticks of its x axis."""
        present = sorted(grouped["present"].unique().to_list(), reverse=True)
        answered, curves = grouped.filter(pl.col("coverage") > 0).sort("present", descending=True), []
        for m, name in enumerate(self.methods):
            rows, shift = answered.filter(pl.col("method") == name), (m - (len(self.methods) - 1) / 2) * 0.07
            curves.append(Curve(
                label=name, x=[present.index(n) + shift for n in rows["present"]], y=rows["mean"].to_list(),
                spread=rows["deviation"].fill_null(0.0).to_list(), color=f"C{m}",
                marks={"fmt": "o-", "markersize": 5, "capsize": 2.5},
            ))  # fmt: skip
        return {"curves": curves, "ticks": {place: str(n) for place, n in enumerate(present)}}

    def __rich__(self) -> RenderableType:
        """Let ``rich.print`` show the tables."""
        parts = [part for table in self.tables() for part in (table.to_terminal(), Text(table.caption), Text(""))]
        return Group(*parts, *(Text(line, style="red") for line in self._failures))

    def _repr_html_(self) -> str:
        """Return the tables and the figure as HTML, for notebooks."""
        section = self._section
        return page.render_section(section, {each.figure: style.svg(each.figure) for each in section.figures})

    @property
    def _failures(self) -> list[str]:
        return [f"{run} failed: {why}" for run, why in self.failed.items()]

    @property
    def _section(self) -> Section:
        drawn = PageFigure(name="plot", figure=self.plot(), alternative="score by number of present parties")
        return Section(id="scores", title="Scores and differences", text=self._failures, figures=[drawn],
                       tables=self.tables())  # fmt: skip

    def write(self, folder: Path | str | None = None) -> Path:
        """Write the page index.html and, in the same folder, scores.csv, differences.csv, plot.svg and plot.png.

        Args:
            folder: the folder of the files; by default the folder of the records.

        Returns:
            The path of index.html.

        Raises:
            ConfigError: the records were kept in memory and no folder is given.
            StorageError: a file cannot be written.
        """
        if folder is None and self.folder is None:
            raise ConfigError("write: this comparison has no folder; name one")
        out, section = Path(folder or self.folder or "."), self._section
        figure, title = section.figures[0].figure, f"Comparison of {', '.join(self.methods)}"
        picture = style.svg(figure)
        files = {
            "scores.csv": self.frame().write_csv().encode(), "plot.svg": picture, "plot.png": style.png(figure),
            "index.html": page.render_page([], section, {figure: picture}, title=title).encode(),
        }  # fmt: skip
        if len(self.methods) > 1:
            both = [self.paired(by=by) for by in ("missing", ("missing", "present"))]
            files["differences.csv"] = pl.concat(both, how="diagonal").write_csv().encode()
        for name, content in files.items():
            with writing(out / name) as unfinished:
                unfinished.write_bytes(content)
        return out / "index.html"


def _group_columns(by: str | Sequence[str]) -> list[str]:
    """Return the columns to group by, with "method" first.

    Raises:
        ConfigError: ``by`` contains an unknown column.
    """
    wanted = {by} if isinstance(by, str) else set(by)
    for each in wanted - set(GROUPS):
        raise ConfigError(f"by: there is no column {each!r}{nearest(each, GROUPS)}")
    return [name for name in GROUPS if name == "method" or name in wanted]


def _seed_means(long: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return one row for each group and seed: the mean score, the mean coverage and the mean costs.

    ``keys`` are the columns that define a group.
    """
    counted = pl.col("present").is_not_null() if "present" in keys else pl.col("present").is_null()
    means = [pl.col(name).mean() for name in ("score", "coverage", *COSTS)]
    return long.filter(counted).group_by([*keys, "seed"], maintain_order=True).agg(means)


def _tex(text: str) -> str:
    """Return a text with LaTeX's special characters escaped."""
    return re.sub(r"([%_&#${}])", r"\\\1", text).replace("→", r"$\to$")


def _setting_text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _defined_number(value: Any) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
