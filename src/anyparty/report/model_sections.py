"""The sections that need a run's model and test rows: by who is asked, what each party brings, a closer look.

Where they are not at hand (a run of parties apart, tables that are elsewhere) the scores that the records keep stand
in their place.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from anyparty.errors import AnypartyError, ConfigError, NotGiven
from anyparty.metrics import METRICS, headline
from anyparty.metrics.scores import Answers
from anyparty.report import quality, score_figures
from anyparty.report.records import Run
from anyparty.report.section import MOST_LISTED, Drawn, Grid, Section, decimals, named, number, scored, spread
from anyparty.terms import Task

if TYPE_CHECKING:
    from anyparty.methods.method import Method
    from anyparty.nets.mlp import Factory
    from anyparty.report.worth import Worth

MOST_CLASSES = 20
MOST_ROWS = 8
FEW_ROWS = 30


@dataclass(frozen=True, kw_only=True)
class Scores:
    """A run's scores: of every set of parties, if its model is at hand; else why not.

    ``metric`` is the one that was asked for: without the model, of the scores that the record keeps.
    """

    worth: Worth | None = None
    why: str = ""
    metric: str | None = None

    @classmethod
    def of(
        cls, run: Run, metric: str | None = None, *, model: bool = False, method: Method | None = None,
        encoders: Mapping[str, Factory] | None = None, allow_code: Sequence[str] = (),
    ) -> Scores:  # fmt: skip
        """Take the scores that the record holds, or load the model and score its test rows again.

        Args:
            run: the run.
            metric: the metric; by default accuracy, or RMSE for a regression.
            model: whether to load the model.  Only then is any method imported.
            method: the method as it was trained, if it was the user's own.
            encoders: by party, what made its network, if that was the user's own.
            allow_code: modules that the run's settings may load: see ``model_for_run``.

        Raises:
            ConfigError: there is no such metric, it does not fit the task, or only the model could tell it.
        """
        _check(run, metric, model=model)
        if not model:
            return cls(why="a report reads records alone, unless it is asked to load the model (--model, or model=True "
                           "in Python)", metric=metric)  # fmt: skip
        if run.folder is None:
            return cls(why="each party keeps its own part of the model at home, so that no other set of parties can be "
                           "asked from here", metric=metric)  # fmt: skip
        from anyparty.report.worth import Worth, reopened  # noqa: PLC0415 - a report without models imports no method

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of the tables, told in training
                of = reopened(run.folder, method=method, encoders=encoders, allow_code=allow_code)
        except NotGiven as error:
            name, _, value = error.argument.partition("=")
            own = f"methods={{{run.name!r}: METHOD}}" if name == "method" else f"encoders={{{run.name!r}: {value}}}"
            return cls(why=f"{error.lacks}; give it in Python, page.write(..., {own})", metric=metric)
        except (AnypartyError, OSError) as error:
            return cls(why=str(error), metric=metric)
        return cls(worth=Worth.begin(of, metric), metric=metric)


def recorded(run: Run, metric: str | None = None) -> str | None:
    """Return the metric that stands for the scores in a run's record: the one asked for, else accuracy or RMSE."""
    kept = (run.evaluation or {}).get("overall", {})
    return next((name for name in (metric, "accuracy", "rmse") if name in kept), None)


def _check(run: Run, metric: str | None, *, model: bool) -> None:
    """Refuse a metric that does not fit the task that the record tells of, whether or not the model is at hand."""
    if metric is None:
        return
    found = run.evaluation
    if found is not None:
        headline(Task(kind=found["task"], classes=tuple(found["classes"])), metric)
        if not model and metric not in found["overall"]:
            kept = ", ".join(name for name in found["overall"] if name in METRICS)
            raise ConfigError(f"--metric {metric}: the record of {run.name} has {kept} of its test rows; choose one of "
                              f"them, or let the model be scored again with --model")  # fmt: skip
    elif metric not in METRICS:
        headline(Task(kind="regression"), metric)


def by_set(run: Run, scores: Scores) -> Section:
    """The metric by who is asked."""
    title, worth = "Who is asked", scores.worth
    if worth is None:
        return _recorded(run, scores)
    names, nobody = worth.of.parties, float(worth(frozenset())[0])
    metric, digits = named(worth.metric), worth.decimals
    text = (
        f"{metric} on {worth.of.rows}. A set of parties is asked for all of them; a row that it cannot answer "
        f"counts with the answer that needs nobody, whose score is {number(nobody, digits)}. Intervals are of 95 %, "
        f"from {len(worth.resamples)} resamples of these rows."
    )
    if len(worth.of.wanted) < FEW_ROWS:
        text += " So few rows may all be right or wrong by chance, which resampling does not see."
    lost = Grid(
        heads=["absent", "what is lost"],
        rows=[[name, spread(each, sign=True, digits=digits)] for name, each in worth.absence().items()],
        caption=f"How much worse {metric} gets when one party alone is absent.",
    )
    section = partial(Section, id="sets", title=title, text=[text[0].upper() + text[1:]])
    if len(names) <= MOST_LISTED:
        every = worth.every_set()
        drawn = Drawn(name="sets", figure=score_figures.sets(every, names, metric, nobody, digits))
        rows = [[" + ".join(each.parties), spread(each.score, digits=digits)] for each in every]
        folded = "every set in numbers" if len(rows) > MOST_ROWS else ""
        return section(drawn=[drawn], grids=[lost, Grid(heads=["asked", metric], rows=rows, folded=folded)])
    worth.shapley()  # asks the sets whose mean is drawn
    sizes = worth.by_size()
    caption = "The mean over the sets of each size that were asked, with the interval of that mean."
    drawn = Drawn(name="sizes", figure=score_figures.by_size(sizes, metric, nobody), caption=caption)
    rows = [[str(size) if size else "nobody", spread(score, digits=digits)] for size, score in sizes.items()]
    return section(drawn=[drawn], grids=[Grid(heads=["parties asked", f"mean {metric}"], rows=rows), lost])


def _recorded(run: Run, scores: Scores) -> Section:
    """The scores that the records keep, that which was asked for first."""
    title, found, why = "Who was there", run.evaluation, scores.why
    if found is None:
        return Section(id="sets", title=title, lacks=f"There are no test scores: {why}.")
    metrics = [name for name in found["overall"] if name not in {"rows", "coverage"}]
    metrics.sort(key=lambda name: name != scores.metric)
    heads = [*map(named, metrics), "answered", "rows"]
    shown = {
        "all test rows": {"all": found["overall"]}, "parties that have the row": found["by_count"],
    }  # fmt: skip
    if max(map(int, found["by_count"]), default=0) <= MOST_LISTED:  # beyond, sets are many and their rows few
        shown["who has the row"] = found["by_pattern"]
    grids = [
        Grid(
            heads=[first, *heads],
            rows=[
                [key, *(scored(name, each.get(name)) for name in [*metrics, "coverage"]), f"{each['rows']:,}"]
                for key, each in groups.items()
            ],
        )
        for first, groups in shown.items()
    ]
    return Section(id="sets", title=title, text=["Test scores as the run recorded them, everybody asked."], grids=grids,
                   lacks=f"No other set of parties was asked: {why}.")  # fmt: skip


def brings(scores: Scores) -> Section:
    """What each party brings."""
    section, worth = partial(Section, id="brings", title="What each party brings"), scores.worth
    if worth is None:
        return section(lacks=f"Not computed: {scores.why}.")
    found = worth.shapley()
    if math.isnan(found.gain):
        return section(lacks=f"{named(worth.metric)} is not defined on these test rows.")
    how = "over all sets of parties" if not found.orders else f"from {found.orders} random orders of the parties"
    about = "the orders drawn" if found.orders else "the test rows"
    digits = worth.decimals
    text = (
        f"Shapley values of {named(worth.metric)} {how}: each party's mean part in the gain of "
        f"{number(found.gain, digits, sign=True)} over asking nobody, which they add up to. "
        f"Intervals are about {about}."
    )
    figure = score_figures.shares(found.shares, f"part in the gain in {named(worth.metric)}", digits)
    drawn = Drawn(name="brings", figure=figure)
    rows = [[name, spread(share, sign=True, digits=digits + 1)] for name, share in found.shares.items()]
    rows.append(["sum", number(sum(share.value for share in found.shares.values()), digits + 1, sign=True)])
    return section(text=[text], drawn=[drawn], grids=[Grid(heads=["party", "brings"], rows=rows)])


def closer(scores: Scores) -> Section:
    """Calibration, confusion and per-class scores, or residuals, everybody asked."""
    section, worth = partial(Section, id="closer", title="A closer look"), scores.worth
    if worth is None:
        return section(lacks=f"Not computed: {scores.why}.")
    answers = quality.answered(Answers.of(worth.of.predict(worth.of.parties), worth.of.y, None))
    if not len(answers.y):
        return section(lacks="Everybody together answers none of the test rows.")
    text = [f"Everybody asked for {worth.of.rows}: {len(answers.y):,} are answered."]
    if answers.task.kind == "regression":
        errors, predicted = answers.errors.numpy(), answers.scores[:, 0].double().numpy()
        drawn = [Drawn(name="residuals", figure=score_figures.residuals(errors, predicted))]
        off, bias = float((errors**2).mean() ** 0.5), float(errors.mean())
        text.append(f"Mean error {number(bias, decimals('rmse', off))}, root mean square {scored('rmse', off)}.")
        return section(text=text, drawn=drawn)
    return _classes(answers, section, text)


def _classes(answers: Answers, section: Callable[..., Section], text: list[str]) -> Section:
    found, classes = quality.calibration(answers), answers.task.classes
    text = [*text, f"Calibration is of {found.of}; expected calibration error {found.error:.3f}."]
    drawn = [Drawn(name="calibration", figure=score_figures.calibration(found))]
    if len(classes) <= MOST_CLASSES:
        drawn.append(Drawn(name="confusion", figure=score_figures.confusion(quality.confusion(answers), classes)))
    rows = [
        [each.name, number(each.precision), number(each.recall), number(each.f1), f"{each.rows:,}"]
        for each in quality.per_class(answers)
    ]
    grid = Grid(heads=["class", "precision", "recall", "F1", "rows"], rows=rows)
    return section(text=text, drawn=drawn, grids=[grid])
