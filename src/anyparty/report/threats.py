"""The section of a report page about what parties can infer, from the file that ``anyparty attack`` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from anyparty.core.figure_style import ACCENT, MUTED, WIDTH, lines, styled
from anyparty.core.storage import inside, read_json
from anyparty.errors import ModelError
from anyparty.report.elements import PageFigure, PageTable, Section
from anyparty.report.recorded_runs import RecordedRun

if TYPE_CHECKING:
    from anyparty.threats.audit import ThreatReport

FILE = "threats.json"  # in the folder of a run


def threats_section(run: RecordedRun) -> list[Section]:
    """Return the section about attacks, or an empty list if the run was not attacked."""
    if run.folder is None or not (run.folder / FILE).is_file():
        return []
    from anyparty.threats.audit import ThreatReport  # noqa: PLC0415 - imports torch

    try:
        report = ThreatReport.of_json(read_json(inside(run.folder, FILE)))
    except (KeyError, TypeError) as error:
        raise ModelError(f"{run.folder / FILE}: expected the file that `anyparty attack` writes ({error!r}); write it "
                         "again, or delete it") from None  # fmt: skip
    table = PageTable(
        headers=["attacker", "attack", "about", "score", "95 % interval", "chance", "own columns"],
        rows=list(report.cells()), text_columns=frozenset({0, 1, 2}),
    )  # fmt: skip
    assumed = PageTable(
        headers=["attack", "source", "the attacker also knows"], text_columns=frozenset({0, 1, 2}),
        rows=sorted({(each.attack, each.paper, each.assumes) for each in report.results}),
    )  # fmt: skip
    text = [each.sentence for each in report.strongest()] or ["No attack infers more than chance or own columns do."]
    alternative = f"Scores of {len(report.results)} attacks beside chance. {' '.join(text)}"
    explained = (
        "Each attacker has its own columns, its networks and the messages that it received; attacks that need known "
        "labels or rows say so. Chance is the score of the same guess for permuted truth. The last column is the score "
        "of the same attack without messages, from the attacker's own columns."
    )
    drawn = PageFigure(name="threats", figure=draw_threats(report), alternative=alternative,
                       caption="Score and 95 % interval of each attack; crosses mark chance.")  # fmt: skip
    return [Section(id="threats", title="What parties can infer", text=[explained, *text], figures=[drawn],
                    tables=[table, assumed])]  # fmt: skip


def draw_threats(report: ThreatReport) -> Figure:
    """Draw the score of each attack with its interval, and the score by chance."""
    scored = [(each, each.score) for each in report.results if each.score is not None][::-1]
    with styled():
        figure = Figure(figsize=(WIDTH, 0.6 + 0.22 * max(1, len(scored))), layout="tight")
        axes = figure.subplots()
        for y, (_, score) in enumerate(scored):
            axes.plot([score.low, score.high], [y, y], color=ACCENT)
            axes.plot(score.value, y, "o", color=ACCENT, ms=4)
            axes.plot(score.chance, y, "x", color=MUTED, ms=4)
        axes.set_yticks(range(len(scored)), [f"{each.attacker}: {each.attack}, {score.metric}".replace("$", r"\$")
                                             for each, score in scored])  # fmt: skip
        lines(axes, "x")
    return figure
