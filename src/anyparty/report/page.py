"""The report page: one self-contained HTML file; if the output is a folder, the figures are also separate files.

write(["runs/credit-sum-seed0"], "report")         # report/index.html, report/figures/*.png and *.svg
write(["runs/credit-sum-seed0"], "report.html")    # this file only
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

import anyparty
from anyparty.core import figure_style as style
from anyparty.core.storage import user_path, writing
from anyparty.errors import ConfigError, ModelError, nearest
from anyparty.metrics.scores import metric_label
from anyparty.report import sections
from anyparty.report.comparison import comparison_section
from anyparty.report.elements import PageFigure, Section, format_bytes, format_number, format_score
from anyparty.report.recorded_runs import RecordedRun, RunScores, find_runs, recorded_metric
from anyparty.report.threats import threats_section
from anyparty.report.traffic import total_traffic

if TYPE_CHECKING:
    from anyparty.methods.method import Method
    from anyparty.networks.encoders import Factory

T = TypeVar("T")
PAGES = {".html", ".htm"}
OTHER_KINDS = {".csv", ".json", ".md", ".pdf", ".png", ".svg", ".txt"}


@dataclass(frozen=True, kw_only=True)
class RunArticle:
    """One run's part of the page.

    Attributes:
        run: the run.
        slug: the run's name as it is written in links and file names.
        facts: the key numbers above the sections, as (label, value).
        sections: the open sections, in order.
        details: sections that are folded until the reader opens them.
    """

    run: RecordedRun
    slug: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    details: Sequence[Section]


def write(
    paths: Iterable[Path | str] | Path | str, out: Path | str, *, metric: str | None = None, model: bool | None = None,
    methods: Mapping[str, Method] | None = None, encoders: Mapping[str, Mapping[str, Factory]] | None = None,
    allow_code: Sequence[str] = (),
) -> Path:  # fmt: skip
    """Write the page of one or several runs, and return its path.

    Args:
        paths: folders of runs or of federations, or files of records, as ``find_runs`` takes them.
        out: the folder for index.html and figures, or a file that ends in .html or .htm. An earlier page is
            overwritten. Figures of the earlier page are deleted if the new page does not have them.
        metric: the metric to show; by default accuracy, or RMSE for a regression.  If models are loaded, the metric is
            computed for every set of parties.  If not, it must be a recorded metric.
        model: whether to load models and score them again, if their tables can be read; by default only with one run.
            ``methods`` and ``encoders`` imply ``model=True``.  With ``model=False`` the page is made only from records,
            and no method or encoder is imported.
        methods: for each run (its name on the page, or its folder), the trained method, if it is user-defined and not
            in the run's settings. If the method is not given, the page shows the run's recorded scores.
        encoders: for each run and party, the factory of a network, if the factory is not in the run's settings.
        allow_code: modules that the runs' settings may load, such as ``("my_methods",)``.

    Raises:
        ModelError: a path holds no run, or a method differs from the trained one.
        ConfigError: the metric does not fit the task, or is not recorded and no model is loaded; ``out`` is
            neither a folder nor an HTML file; or ``methods`` or ``encoders`` contain a run that is not on the page.
        StorageError: the page cannot be written.
    """
    page, folder = _place(user_path(out))
    runs = _distinct_names(find_runs(paths))
    own_methods, factories = _by_run(runs, methods, "methods"), _by_run(runs, encoders, "encoders")
    _check_methods(runs, own_methods)
    model = (len(runs) == 1 if model is None else model) or bool(own_methods or factories)
    scores = [
        RunScores.of(
            run, metric, model=model, method=own_methods.get(run.name), encoders=factories.get(run.name),
            allow_code=allow_code,
        )
        for run in runs
    ]  # fmt: skip
    articles = [article(*each) for each in zip(runs, scores, unique_slugs(runs), strict=True)]
    comparison = comparison_section(runs, scores) if len(runs) > 1 else None
    pictures, files = dict[Figure, bytes](), dict[str, bytes]()
    chapters = [(each.slug, section) for each in articles for section in (*each.sections, *each.details)]
    for slug, section in [*chapters, *([("all", comparison)] if comparison else [])]:
        for drawn in section.all_figures():
            name = drawn.name if len(runs) == 1 else f"{slug}-{drawn.name}"
            pictures[drawn.figure] = style.svg(drawn.figure)
            if folder is not None:
                files |= {f"{name}.svg": pictures[drawn.figure], f"{name}.png": style.png(drawn.figure)}
    earlier = _figures_of(page)
    if folder is not None:
        for name, data in files.items():
            _write(folder / name, data)
    _write(page, render_page(articles, comparison, pictures, files).encode())
    if folder is not None:
        for name in earlier - files.keys():
            (folder / name).unlink(missing_ok=True)
    return page


def _place(out: Path) -> tuple[Path, Path | None]:
    """Return the path of the page and the folder for its figures; the folder is ``None`` if ``out`` is an HTML file.

    Raises:
        ConfigError: ``out`` is an existing file that is not HTML, has the suffix of another kind of file, or is a
            folder whose name ends in .html or .htm.
    """
    if out.is_dir():
        if out.suffix.lower() in PAGES:
            raise ConfigError(f"--out {out}: a folder with the name of a page exists; remove it or choose another name")
        return out / "index.html", out / "figures"
    if out.suffix.lower() in PAGES:
        return out, None
    if out.exists():
        raise ConfigError(f"--out {out}: this is a file; name a folder for the page and its figures, or an .html file")
    if out.suffix.lower() in OTHER_KINDS:
        raise ConfigError(f"--out {out}: the page is HTML; name a folder, or a file that ends in .html")
    return out / "index.html", out / "figures"


def _by_run(runs: Sequence[RecordedRun], values: Mapping[str, T] | None, argument: str) -> dict[str, T]:
    """Return ``values`` keyed by the names of runs; the keys of ``values`` may be names or folders of runs.

    Raises:
        ConfigError: ``values`` is not a mapping, or a key matches no run; the message contains ``argument``.
    """
    if not isinstance(values, Mapping | None):
        raise ConfigError(f"{argument}: expected a mapping from names of runs, {{{runs[0].name!r}: ...}}, got "
                          f"{type(values).__name__}")  # fmt: skip
    folders = {run.name: run.folder for run in runs if run.folder is not None}
    found: dict[str, T] = {}
    for key, value in (values or {}).items():
        names = [
            name for name, folder in folders.items() if name == str(key) or folder.resolve() == Path(key).resolve()
        ]
        if not names:
            raise ConfigError(f"{argument}: {str(key)!r} is not a run on the page{nearest(str(key), folders)}")
        found |= dict.fromkeys(names, value)
    return found


def _check_methods(runs: Sequence[RecordedRun], methods: Mapping[str, Method]) -> None:
    """Check that each run's method in ``methods`` is the method that was trained.

    Raises:
        ModelError: a method differs from the trained one.
    """
    for run in runs:
        if run.name in methods and run.folder is not None:
            from anyparty.artifacts.model_files import ModelSummary  # noqa: PLC0415 - a report without models imports no method

            try:
                summary = ModelSummary.load(run.folder / "model.json")
            except ModelError:  # the page shows this error in the section with scores
                continue
            summary.make(run.folder, methods[run.name])


def _figures_of(page: Path) -> set[str]:
    """Return the file names of the figures that an existing page lists in its HTML head; empty without a page."""
    if not page.is_file():
        return set()
    found = re.search(r'<meta name="figures" content="([^"]*)">', page.read_text(encoding="utf-8", errors="replace"))
    names = found[1].split() if found else []
    return {name for name in names if re.fullmatch(r"[\w-]+\.(svg|png)", name)}


def _write(path: Path, data: bytes) -> None:
    with writing(path) as unfinished:
        unfinished.write_bytes(data)


def _distinct_names(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Return the runs with distinct names: a number is added to a name that several runs share."""
    names = [run.name for run in runs]
    return [
        replace(run, name=f"{run.name} ({names[: k + 1].count(run.name)})") if names.count(run.name) > 1 else run
        for k, run in enumerate(runs)
    ]


def unique_slugs(runs: Sequence[RecordedRun]) -> list[str]:
    """Return a different name for each run, for links and file names; "all" is reserved for the comparison."""
    taken = ["all"]
    for run in runs:
        slug = re.sub(r"\W+", "-", run.name).strip("-").lower() or "run"
        taken.append(next(each for each in chain([slug], (f"{slug}-{k}" for k in count(2))) if each not in taken))
    return taken[1:]


def article(run: RecordedRun, scores: RunScores, slug: str) -> RunArticle:
    """Make one run's part of the page."""
    return RunArticle(
        run=run, slug=slug, facts=key_facts(run, scores),
        sections=[
            *sections.verdict_section(run), sections.scores_section(run, scores),
            *sections.contributions_section(scores), *sections.thresholds_section(scores),
            *sections.errors_section(scores), sections.training_section(run), sections.messages_section(run),
            *threats_section(run), *sections.remarks_section(run),
        ],
        details=[sections.overlap_section(run), sections.reproduce_section(run)],
    )  # fmt: skip


def key_facts(run: RecordedRun, scores: RunScores) -> list[tuple[str, str]]:
    """Return the key numbers at the top of a run's part of the page, as (label, value)."""
    facts = []
    sets, overall = scores.sets, (run.evaluation or {}).get("overall", {})
    # Show the recorded score if there is one. It covers only rows with an answer, so the label states their share.
    if name := recorded_metric(run, scores.metric):
        part = overall.get("coverage")
        whole = part is None or part == 1
        label = (
            f"test {metric_label(name)}"
            if whole
            else f"{metric_label(name)} on the {part:.0%} of test rows with an answer"
        )
        facts.append((label, format_score(name, overall.get(name))))
    elif sets is not None:
        value = sets.score(sets.all_parties).score.value
        facts.append((f"{metric_label(sets.metric)} on {sets.tested.rows}", format_number(value, sets.decimals)))
    if sets is not None and (own := sets.own_columns()) is not None:
        label = f"{metric_label(sets.metric)}, own columns only"
        facts.append((label, format_number(own.value, sets.decimals)))
    holders = (run.overlap or {}).get("blocks", run.parties)  # only parties with columns
    facts += [("method", run.title or run.method or "–"), ("parties", str(len(holders)))]
    if run.rows is not None:
        facts.append(("rows", f"{run.rows:,}"))
    facts.append(("epochs", f"{len(run.history):,}"))
    if run.ledger.flows:
        facts.append(("sent", format_bytes(total_traffic(run.ledger).bytes_sent)))
    return facts


def render_page(
    articles: Sequence[RunArticle], comparison: Section | None, pictures: Mapping[Figure, bytes],
    files: Iterable[str] = (), title: str = "",
) -> str:  # fmt: skip
    """Return the page as HTML.

    Args:
        articles: one for each run.
        comparison: the section that compares the runs, if there are several.
        pictures: the SVG of each figure.
        files: names of the separate files of the figures.
        title: the heading; by default the name of the run, or the number of runs.
    """
    purposes = {each.run.purpose for each in articles}
    html: str = _environment().get_template("page.html").render(
        articles=articles, comparison=comparison, picture=partial(_picture, pictures),
        title=title or (articles[0].run.name if len(articles) == 1 else f"Comparison of {len(articles)} runs"),
        purpose=purposes.pop() if len(purposes) == 1 else "", version=anyparty.__version__,
        files=files, written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
    )  # fmt: skip
    return html


def render_section(section: Section, pictures: Mapping[Figure, bytes]) -> str:
    """Return a section as HTML without the page around it, for notebooks; ``pictures`` has the SVG of each figure."""
    colours = "; ".join(f"{name}: {colour}" for colour, name in style.VARIABLES.items())
    macros = _environment().get_template("sections.html").make_module({"picture": partial(_picture, pictures)})
    return f'<div style="{colours}; --sans: sans-serif">{macros.content(section, section.id, 2)}</div>'  # type: ignore[attr-defined]


def _environment() -> Environment:
    made = Environment(loader=PackageLoader("anyparty.report", "."), autoescape=True, undefined=StrictUndefined,
                       trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    made.filters["longest_word"] = lambda text: max(map(len, text.split()), default=0)
    return made


def _picture(pictures: Mapping[Figure, bytes], drawn: PageFigure, slug: str) -> Markup:
    made = style.inline_svg(pictures[drawn.figure], f"{slug}-{drawn.name}", drawn.alternative)
    return Markup(made)  # noqa: S704 - made by matplotlib, with names escaped  # nosec B704
