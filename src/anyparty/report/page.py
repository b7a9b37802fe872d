"""The page: one HTML file with everything in it, and its figures as files beside it.

write(["runs/credit-laser-seed0"], "report")     # report/index.html, report/figures/*.png and *.svg
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

import anyparty
from anyparty.errors import ConfigError
from anyparty.report import compare, given, model_sections, sections, style
from anyparty.report.ledgers import shown, total
from anyparty.report.model_sections import Scores, recorded
from anyparty.report.records import Run, find
from anyparty.report.section import Drawn, Section, named, number, scored
from anyparty.storage import writing

if TYPE_CHECKING:
    from anyparty.methods.method import Method
    from anyparty.nets.mlp import Factory


@dataclass(frozen=True, kw_only=True)
class Article:
    """One run in the page."""

    run: Run
    slug: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]


def write(
    paths: Iterable[Path | str] | Path | str, out: Path | str, *, metric: str | None = None, model: bool = False,
    methods: Mapping[str, Method] | None = None, encoders: Mapping[str, Mapping[str, Factory]] | None = None,
    allow_code: Sequence[str] = (),
) -> Path:  # fmt: skip
    """Write the page of one or several runs; return where it is.

    Args:
        paths: as ``records.find``.
        out: the folder for index.html and figures; an earlier page there is written over, and its figures that this
            one does not have are removed.
        metric: what sets of parties are scored by, or without the model which of the recorded scores stands for a run;
            by default accuracy, or RMSE for a regression.
        model: whether to load models and score them again, if their tables are at hand; ``methods`` or ``encoders``
            ask for it too.  Without it the page is made from records alone, and no method or encoder is imported.
        methods: by run (its name on the page, or its folder), a method of the user's own, as it was trained: without
            it the record's scores alone stand for the run.
        encoders: by run and party, what made a network, where that was made in Python and stands in no module.
        allow_code: modules that the runs' settings may load, such as ``("my_methods",)``.

    Raises:
        ModelError: no such run, or a method is given that is not the one that was trained.
        ConfigError: the metric does not fit the task, or is not recorded and the model not wanted; ``out`` is a file; a
            method or encoders are given for what is no run of the page.
        StorageError: the page cannot be written.
    """
    runs, out = _named_apart(find(paths)), Path(out)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: this is a file; name a folder for the page and its figures")
    made, nets = given.by_run(runs, methods, "methods"), given.by_run(runs, encoders, "encoders")
    given.check(runs, made)
    model = model or bool(made or nets)
    scores = [
        Scores.of(
            run, metric, model=model, method=made.get(run.name), encoders=nets.get(run.name), allow_code=allow_code
        )
        for run in runs
    ]
    articles = [article(*each) for each in zip(runs, scores, slugs(runs), strict=True)]
    together = compare.side_by_side(runs, scores) if len(runs) > 1 else None
    page, pictures, files = out / "index.html", {}, {}
    chapters = [(each.slug, section) for each in articles for section in each.sections]
    for slug, section in [*chapters, *([("all", together)] if together else [])]:
        for drawn in section.drawn:
            name = drawn.name if len(runs) == 1 else f"{slug}-{drawn.name}"
            pictures[drawn.figure] = files[f"{name}.svg"] = style.svg(drawn.figure)
            files[f"{name}.png"] = style.png(drawn.figure)
    earlier = _figures_of(page)
    for name, data in files.items():
        _write(out / "figures" / name, data)
    _write(page, html(articles, together, pictures, files).encode())
    for name in earlier - files.keys():
        (out / "figures" / name).unlink(missing_ok=True)
    return page


def _figures_of(page: Path) -> set[str]:
    """Return the names of the figures beside a page, as it has them in its head."""
    if not page.is_file():
        return set()
    said = re.search(r'<meta name="figures" content="([^"]*)">', page.read_text(encoding="utf-8", errors="replace"))
    names = said[1].split() if said else []
    return {name for name in names if re.fullmatch(r"[\w-]+\.(svg|png)", name)}


def _write(path: Path, data: bytes) -> None:
    with writing(path) as beside:
        beside.write_bytes(data)


def _named_apart(runs: Sequence[Run]) -> list[Run]:
    """Give runs of one name a number."""
    names = [run.name for run in runs]
    return [
        replace(run, name=f"{run.name} ({names[: k + 1].count(run.name)})") if names.count(run.name) > 1 else run
        for k, run in enumerate(runs)
    ]


def slugs(runs: Sequence[Run]) -> list[str]:
    """Return what stands for each run in links and names of files: no two are the same, and none is "all"."""
    taken = ["all"]
    for run in runs:
        slug = re.sub(r"\W+", "-", run.name).strip("-").lower() or "run"
        taken.append(next(each for each in chain([slug], (f"{slug}-{k}" for k in count(2))) if each not in taken))
    return taken[1:]


def article(run: Run, scores: Scores, slug: str) -> Article:
    """Return one run's part of the page."""
    return Article(
        run=run, slug=slug, facts=facts(run, scores),
        sections=[
            sections.overlap(run), sections.training(run), model_sections.by_set(run, scores),
            model_sections.brings(scores), model_sections.closer(scores), sections.crossed(run),
            *sections.remarks(run), sections.repeat(run),
        ],
    )  # fmt: skip


def facts(run: Run, scores: Scores) -> list[tuple[str, str]]:
    """Return the few numbers that stand at the top."""
    found = [("method", run.title or run.method or "–"), ("parties", str(len(run.parties)))]
    if run.rows is not None:
        found.append(("rows", f"{run.rows:,}"))
    worth, overall = scores.worth, (run.evaluation or {}).get("overall", {})
    if name := recorded(run, scores.metric):  # of rows that had an answer; below, others count with what needs nobody
        part = overall.get("coverage")
        of = "test" if part is None or part == 1 else f"the {part:.0%} of test rows with an answer"
        found.append((f"{named(name)}, {of}", scored(name, overall.get(name))))
    elif worth is not None:
        value = worth.score(worth.of.parties).score.value
        found.append((f"{named(worth.metric)}, {worth.of.rows}", number(value, worth.decimals)))
    found.append(("epochs", f"{len(run.history):,}"))
    if run.ledger.flows:
        found.append(("crossed", shown(total(run.ledger).bytes_sent)))
    return found


def html(
    articles: Sequence[Article], together: Section | None, pictures: Mapping[Figure, bytes], files: Iterable[str]
) -> str:
    """Return the page; ``pictures`` are the figures as SVG files, ``files`` what lies beside it of them."""
    environment = Environment(loader=PackageLoader("anyparty.report", "."), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True)  # fmt: skip

    environment.filters["longest"] = lambda text: max(map(len, text.split()), default=0)

    def picture(drawn: Drawn, slug: str) -> Markup:
        made = style.inline(pictures[drawn.figure], f"{slug}-{drawn.name}", drawn.caption or drawn.name)
        return Markup(made)  # noqa: S704 - matplotlib's own, with names escaped  # nosec B704

    title = articles[0].run.name if len(articles) == 1 else f"{len(articles)} runs"
    made: str = environment.get_template("page.html").render(
        articles=articles, together=together, picture=picture, title=title, version=anyparty.__version__, files=files,
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
    )  # fmt: skip
    return made
