"""Sections of the page about one run: overlap, training, messages, and scores.

If the model was not scored again, the section with scores shows the recorded scores, and the sections about
contributions and errors do not exist.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import tomli_w

from anyparty.core.types import MessageSpec
from anyparty.metrics import plots
from anyparty.metrics.plots import (
    brier_score,
    calibration_of,
    confusion_counts,
    only_answered,
    scores_by_class,
    thresholds_of,
)
from anyparty.metrics.scores import METRICS, LabelledPredictions, metric_label
from anyparty.metrics.worth import Worth
from anyparty.report import figures
from anyparty.report.elements import (
    MAX_PARTIES_LISTED,
    PageFigure,
    PageTable,
    Section,
    decimal_places,
    format_bytes,
    format_estimate,
    format_number,
    format_score,
)
from anyparty.report.recorded_runs import MAX_NAMES, RecordedRun, RunScores, recorded_metric
from anyparty.report.shapley import Estimate
from anyparty.report.traffic import (
    cost_tables,
    declared_messages,
    flows_table,
    total_traffic,
    traffic_by_pair,
    traffic_by_tag,
    undeclared_tags,
)

if TYPE_CHECKING:
    from anyparty.report.party_set_scores import PartySetScores

MAX_OPEN_NOTES = 4  # maximum number of remarks that are shown unfolded


def overlap_section(run: RecordedRun) -> Section:
    """Make the section that shows which party has which rows."""
    section, overlap = partial(Section, id="overlap", title="Rows of each party"), run.overlap
    if overlap is None:
        return section(missing="Not recorded here: only the active party's record has the overlap.")
    labelled = overlap.get("labelled")
    missing = 1 - sum(overlap["held"].values()) / max(1, overlap["rows"] * len(overlap["blocks"]))
    text = [f"At least one party has each of {overlap['rows']:,} rows; all parties have {overlap['by_all']:,} of them. "
            f"{missing:.1%} of the blocks are missing."
            + (f" {labelled:,} have a label." if labelled is not None else "")]  # fmt: skip
    if overlap.get("kinds"):
        kinds = ", ".join(f'"{kind}" {rows:,}' for kind, (rows, _) in overlap["kinds"].items())
        text.append(f"Rows by kind of train.rows: {kinds}.")
    if overlap["more_patterns"]:
        text.append(
            f"Not drawn: {overlap['more_patterns']:,} rarer sets of parties with {overlap['more_rows']:,} rows."
        )
    rows = [[name, f"{overlap['held'][name]:,}", f"{overlap['alone'][name]:,}"] for name in overlap["blocks"]]
    caption = "Each column is a set of parties. Its bar counts the rows that exactly these parties have."
    sets = "; ".join(f"{' + '.join(each['parties'])}: {each['rows']:,}" for each in overlap["patterns"][:5])
    drawn = PageFigure(name="overlap", figure=figures.draw_overlap(overlap), caption=caption,
                       alternative=f"Number of rows of each set of parties. Largest sets: {sets}.")  # fmt: skip
    return section(text=[*text, *overlap.get("notes", [])], figures=[drawn],
                   tables=[PageTable(headers=["party", "rows", "rows of no other party"], rows=rows)])  # fmt: skip


def training_section(run: RecordedRun) -> Section:
    """Make the section that shows the loss and the metrics by epoch."""
    section = partial(Section, id="training", title="Training")
    if not run.history:
        return section(missing="No epoch is recorded: the run ended before its first, or the active party's record is "
                               "not here.")  # fmt: skip
    seconds = sum(float(epoch.get("seconds", 0.0)) for epoch in run.history)
    text = [f"{len(run.history):,} epochs, {seconds:,.1f} s of training steps."]
    if run.best_epoch:
        best = run.history[run.best_epoch - 1] if run.best_epoch <= len(run.history) else {}
        held_out = best.get("validation", {})
        scores = ", ".join(f"{metric_label(name)} {format_score(name, value)}" for name, value in held_out.items())
        # The metrics by which epochs may have been compared, in the order of ``metrics.headline``.
        chosen_by = (run.settings.get("train", {}).get("metric"), "log_loss", "rmse")
        metric = metric_label(next((name for name in chosen_by if name in held_out), "loss"))
        several = len({epoch.get("stage") for epoch in run.history}) > 1
        when = f"{best['epoch']} of stage {best['stage']!r}" if several and best else f"{run.best_epoch}"
        text.append(f"The weights are those of epoch {when}, which has the best {metric} on validation rows: {scores}.")
    if restarts := run.history[-1].get("trace_began_anew"):
        text.append(f"The clock's trace of CPU use is shorter than the run: it restarted {int(restarts)} times.")
    changes = [(epoch["epoch"], _attendance_changes(epoch)) for epoch in run.history]
    notes, details = [f"After epoch {epoch}: {change}." for epoch, change in changes if change], []
    if len(notes) > MAX_OPEN_NOTES:
        details = [Section(id="attendance", title=f"{len(notes)} changes of the parties that took part", text=notes)]
        notes = []
    first, last = (format_number(run.history[k].get("loss"), 4) for k in (0, -1))
    curves = PageFigure(name="training", figure=plots.draw_training(run.history, run.best_epoch),
                        alternative=f"Training curves. The loss is {first} at first and {last} at the end. "
                                    f"{' '.join(text[1:])}")  # fmt: skip
    return section(text=[*text, *notes], figures=[curves], details=details)


def _attendance_changes(epoch: Mapping[str, Any]) -> str:
    absent, back = epoch.get("absent") or {}, epoch.get("back") or []
    changes = [f"{name} was absent ({why})" for name, why in absent.items()]
    return "; ".join(changes + ([f"{', '.join(back)} took part again"] if back else []))


def messages_section(run: RecordedRun) -> Section:
    """Make the section on messages: senders, receivers, sizes, what each message reveals, and folded sums."""
    section = partial(Section, id="crossed", title="Who sent what")
    if not run.ledger.flows:
        return section(missing="The records hold no message.")
    whole, known = total_traffic(run.ledger), declared_messages(run.declared)
    text = [f"{whole.messages:,} messages with {format_bytes(whole.bytes_sent)} of tensors."]
    if run.folder is not None:
        text.append("All parties ran in one process, which sees all data. Parties on their own machines would have "
                    "sent these messages.")  # fmt: skip
    if unknown := undeclared_tags(run.ledger, known):
        text.append(f"The record does not say what these messages reveal: {', '.join(unknown)}.")
    costs = Section(
        id="costs", title="Rounds, and costs by published formulas", tables=[_by_pair(run), *cost_tables(run)]
    )
    flows = Section(id="flows", title="All messages by sender and receiver",
                    tables=[_by_party(run), flows_table(run.ledger)],
                    figures=[_flows_figure(run), _tags_figure(run)])  # fmt: skip
    return section(text=text, tables=[_by_message(run, known)], details=[flows, costs])


def _flows_figure(run: RecordedRun) -> PageFigure:
    caption = "A stronger colour shows more bytes from the row's party to the column's party; ★ is the active party."
    sent = {name: format_bytes(total_traffic(run.ledger, sender=name).bytes_sent) for name in run.parties}
    alternative_text = "; ".join(f"{name}: {size}" for name, size in sent.items())
    figure = figures.draw_flows(run.ledger, run.parties, run.active)
    alternative = f"Bytes that each party sent to each other party. Sent in all: {alternative_text}."
    return PageFigure(name="flows", figure=figure, caption=caption, alternative=alternative)


def _tags_figure(run: RecordedRun) -> PageFigure:
    tags = traffic_by_tag(run.ledger)
    sizes = "; ".join(f"{tag}: {format_bytes(tally.bytes_sent)}" for tag, tally in tags.items())
    return PageFigure(name="tags", figure=figures.draw_tags(tags), caption="Bytes of each message.",
                      alternative=f"Bytes of each message. {sizes}.")  # fmt: skip


def _by_message(run: RecordedRun, known: Mapping[str, Sequence[MessageSpec]]) -> PageTable:
    """Make the table of messages by tag and direction: to the active party, from it, or between other parties."""
    rows = []
    for tag in traffic_by_tag(run.ledger):
        flows = [flow for flow in sorted(run.ledger.flows) if flow.tag == tag]
        directions = {
            (flow.sender == run.active, flow.receiver == run.active): None for flow in flows
        }  # fmt: skip
        for frm, to in directions:
            same = [flow for flow in flows if (flow.sender == run.active, flow.receiver == run.active) == (frm, to)]
            declared = _matching(known.get(tag, ()), frm=frm, to=to)
            ends = (_names(flow.sender for flow in same), _names(flow.receiver for flow in same))
            messages = sum(run.ledger.flows[flow].messages for flow in same)
            size = sum(run.ledger.flows[flow].bytes_sent for flow in same)
            holds = "; ".join(dict.fromkeys(one.holds for one in declared)) or "not in the record"
            learns = "; ".join(dict.fromkeys(one.learns for one in declared))
            rows.append([tag, *ends, holds, learns, f"{messages:,}", format_bytes(size)])
    headers = ["message", "from", "to", "content", "what the receiver can learn", "messages", "bytes"]
    return PageTable(headers=headers, rows=rows, text_columns=frozenset({0, 1, 2, 3, 4}))


def _matching(declared: Sequence[MessageSpec], *, frm: bool, to: bool) -> Sequence[MessageSpec]:
    """Return the declarations that fit a direction, or all declarations if no declaration fits.

    ``frm`` is true if the active party sends the message, ``to`` is true if the active party receives it.
    """

    def fits(end: str, active: bool) -> bool:
        return end not in {"active", "passive"} or (end == "active") == active

    return [one for one in declared if fits(one.frm, frm) and fits(one.to, to)] or declared


def _names(parties: Iterable[str]) -> str:
    """Return the parties' names as text, or their number if there are more than ``MAX_NAMES``."""
    distinct = list(dict.fromkeys(parties))
    return ", ".join(distinct) if len(distinct) <= MAX_NAMES else f"{len(distinct)} parties"


def _by_party(run: RecordedRun) -> PageTable:
    rows = []
    for party in run.parties:
        received, sent = total_traffic(run.ledger, receiver=party), total_traffic(run.ledger, sender=party)
        tags = [tag for tag in traffic_by_tag(run.ledger)
                if total_traffic(run.ledger, receiver=party, tag=tag).messages]  # fmt: skip
        rows.append([party, ", ".join(tags), format_bytes(received.bytes_sent), format_bytes(sent.bytes_sent)])
    return PageTable(headers=["party", "received", "bytes received", "bytes sent"], rows=rows,
                     text_columns=frozenset({0, 1}), caption="Messages that each party received.")  # fmt: skip


def _by_pair(run: RecordedRun) -> PageTable:
    rows = [
        [pair.one, pair.other, f"{pair.rounds:,}", format_bytes(pair.there.bytes_sent),
         format_bytes(pair.back.bytes_sent)]
        for pair in traffic_by_pair(run.ledger, run.parties)
    ]  # fmt: skip
    return PageTable(headers=["between", "and", "rounds", "there", "back"], rows=rows, text_columns=frozenset({0, 1}),
                     caption="A round is one message there and one back.")  # fmt: skip


def remarks_section(run: RecordedRun) -> list[Section]:
    """Make the section with the run's warnings and remarks; only the first ones are unfolded. Empty without remarks."""
    section = partial(Section, id="remarks", title="Warnings and remarks")
    shown, rest = run.remarks[:MAX_OPEN_NOTES], run.remarks[MAX_OPEN_NOTES:]
    more = [Section(id="more-remarks", title=f"{len(rest)} more", text=rest)] if rest else []
    return [section(text=shown, details=more)] if run.remarks else []


def reproduce_section(run: RecordedRun) -> Section:
    """Make the section with settings, versions, fingerprints of tables, and the command that repeats the run."""
    rows = [["seed", str(run.seed)], ["began", run.began or "–"], ["ended", run.ended or "–"]]
    rows += [[f"fingerprint of {name}'s table", value] for name, value in run.tables.items()]
    rows += [
        [f"{package} at {party}" if party else package, value]
        for party, versions in _distinct_versions(run.versions).items()
        for package, value in versions.items()
    ]
    table = PageTable(headers=["what", "value"], rows=rows, text_columns=frozenset({0, 1}))
    code = tomli_w.dumps(_without_empty(json.loads(json.dumps(run.settings)))) if run.settings else ""
    own = run.folder is not None and not run.method_in_settings
    how = "in Python, with your own method in place of METHOD" if own else "with"
    text = [f"Repeat it {how}: {run.command}"] if run.command else []
    return Section(id="repeat", title="Settings, versions and the command that repeats the run", text=text,
                   tables=[table], code=code)  # fmt: skip


def _without_empty(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings without groups that hold nothing."""
    kept = {key: _without_empty(value) if isinstance(value, dict) else value for key, value in settings.items()}
    return {key: value for key, value in kept.items() if value != {}}


def _distinct_versions(versions: Mapping[str, Mapping[str, str]]) -> Mapping[str, Mapping[str, str]]:
    """Return package versions by party; if they are equal at all parties, return them once, with "" as the key."""
    each = list(versions.values())
    return {"": each[0]} if each and all(other == each[0] for other in each) else versions


MAX_CLASSES = 20  # largest number of classes for which a confusion matrix is drawn
FEW_ROWS = 30


def verdict_section(run: RecordedRun) -> list[Section]:
    """Make the section that says whether the other parties improve the answers, from the record; may be empty."""
    recorded = (run.evaluation or {}).get("worth")
    if recorded is None:
        return []
    worth = Worth.of_json(recorded)
    headers, rows = worth.cells()
    text = [
        worth.verdict[0].upper() + worth.verdict[1:] + ".",
        (
            "Boosted trees (LightGBM) were trained on the same training rows as the model, and stopped by the same "
            "validation rows. The interval is a 95 % interval from paired resamples of the test rows."
        ),
        *(f"{note[0].upper()}{note[1:]}." for note in worth.notes),
    ]
    return [Section(id="verdict", title="Is it worth it?", text=text, tables=[PageTable(headers=headers, rows=rows)])]


def scores_section(run: RecordedRun, scores: RunScores) -> Section:
    """Make the section with scores by number of parties: the model's new scores, or else the recorded scores."""
    return _recorded_scores(run, scores) if scores.sets is None else _model_scores(scores.sets)


def _model_scores(sets: PartySetScores) -> Section:
    digits, few = sets.decimals, len(sets.tested.parties) <= MAX_PARTIES_LISTED
    metric, constant = metric_label(sets.metric), float(sets.values(frozenset())[0])
    every = sets.every_set() if few else []
    if not few:
        sets.shapley()  # stores scores of sets of parties, which ``by_size`` averages
    sizes = sets.by_size()
    own = sets.own_columns()
    prediction = "mean label" if sets.tested.model.task.kind == "regression" else "class shares"
    whole = format_estimate(sets.score(sets.all_parties).score, digits=digits)
    text = [f"{metric} of all parties on {sets.tested.rows}: {whole}."]
    if own is not None:
        text[0] += (f" With the columns of {sets.tested.model.roster.active} only, the same model scores "
                    f"{format_estimate(own, digits=digits)}.")  # fmt: skip
    text.append(
        f"Rows that the present parties cannot answer get a constant prediction, the {prediction} of the training "
        f"rows; this prediction alone scores {format_number(constant, digits)}. Intervals are 95 % intervals from "
        f"{len(sets.resamples)} resamples of these rows."
    )
    if len(sets.tested.test_rows) < FEW_ROWS:
        text[1] += " With so few rows, all may be right or wrong by chance; resampling does not show this."
    table = PageTable(
        headers=["present parties", f"mean {metric}"],
        rows=[[str(size) if size else "none", format_estimate(each, digits=digits)] for size, each in sizes.items()],
        text_columns=frozenset(),
    )
    spread = [(len(each.parties), each.score.value) for each in every]
    figure = figures.draw_scores_by_size(sizes, metric, constant, own=own.value if own else math.nan, sets=spread)
    dots = "Each faint dot is one set of parties; the line is their mean." if few else (
        "The mean over the computed sets of each size.")  # fmt: skip
    drawn = PageFigure(name="sizes", figure=figure, caption=f"{dots} The band is the interval of the mean.",
                       alternative=_by_size_as_text(metric, table, own, digits))  # fmt: skip
    return Section(
        id="sets", title="Scores by number of present parties", text=[text[0][0].upper() + text[0][1:], *text[1:]],
        figures=[drawn], tables=[table], beside=True, details=[_every_set(sets, constant)] if few else [],
    )  # fmt: skip


def _by_size_as_text(metric: str, table: PageTable, own: Estimate | None, digits: int) -> str:
    values = "; ".join(f"{row[0]}: {row[1]}" for row in table.rows)
    line = f" Own columns only: {format_number(own.value, digits)}." if own else ""
    return f"Line chart of {metric} by number of present parties. {values}.{line}"


def _every_set(sets: PartySetScores, constant: float) -> Section:
    metric, digits, every = metric_label(sets.metric), sets.decimals, sets.every_set()
    figure = figures.draw_set_scores(every, sets.tested.parties, metric, constant, digits)
    alternative = f"{metric} of every set of parties, with intervals. The table below has the same numbers."
    rows = [[" + ".join(each.parties), format_estimate(each.score, digits=digits)] for each in every]
    return Section(
        id="each-set", title="Every set of parties",
        figures=[PageFigure(name="sets", figure=figure, alternative=alternative)],
        tables=[PageTable(headers=["parties", metric], rows=rows)],
    )  # fmt: skip


def _recorded_scores(run: RecordedRun, scores: RunScores) -> Section:
    """Make the section with the recorded scores, the requested metric first."""
    section, found = partial(Section, id="sets", title="Recorded test scores"), run.evaluation
    metric = recorded_metric(run, scores.metric)
    if found is None or metric is None:
        return section(missing=f"There are no test scores: {scores.reason}.")
    metrics = [name for name in found["overall"] if name not in {"rows", "coverage"}]
    metrics.sort(key=lambda name: (name != scores.metric, name != metric))
    headers = [*map(metric_label, metrics), "answered", "rows"]

    def cells(each: dict[str, float]) -> list[str]:
        return [*(format_score(name, each.get(name)) for name in [*metrics, "coverage"]), f"{each['rows']:,}"]

    by_count = {count: found["by_count"][count] for count in sorted(found["by_count"], key=int)}
    rows = [["any", *cells(found["overall"])], *([key, *cells(each)] for key, each in by_count.items())]
    details = []
    if max(map(int, by_count), default=0) <= MAX_PARTIES_LISTED:  # with more parties, most sets have too few rows
        named = [[key, *cells(each)] for key, each in found["by_pattern"].items()]
        tables = [PageTable(headers=["parties that have the row", *headers], rows=named)]
        details = [Section(id="each-set", title="By the parties that have the row", tables=tables)]
    constant = (found.get("constant") or {}).get(metric)
    text = "Test scores that the run recorded, with all parties asked, by the number of parties that have the row."
    if constant is not None:
        text += f" The best constant answer scores {metric_label(metric)} {format_score(metric, constant)}."
    figure = figures.draw_recorded_scores(by_count, metric, constant)
    values = "; ".join(f"{key}: {format_score(metric, each.get(metric))}" for key, each in by_count.items())
    caption = (
        f"A wider dot stands for more test rows. Scores of fewer than {figures.FEWEST_ROWS} rows are only in the table."
    )
    alternative = f"{metric_label(metric)} by number of parties that have the row. {values}."
    drawn = PageFigure(name="counts", figure=figure, caption=caption, alternative=alternative)
    return section(text=[text], figures=[drawn], details=details, beside=True,
                   tables=[PageTable(headers=["parties", *headers], rows=rows, text_columns=frozenset())],
                   missing=f"Sets of parties were not scored: {scores.reason}.")  # fmt: skip


def contributions_section(scores: RunScores) -> list[Section]:
    """Make the section with each party's Shapley value and how much worse the metric is without that party.

    The result is empty if the model was not scored again.
    """
    section, sets = partial(Section, id="brings", title="What each party brings"), scores.sets
    if sets is None:
        return []
    found, lost = sets.shapley(), sets.loss_without()
    metric, digits = metric_label(sets.metric), sets.decimals
    if math.isnan(found.gain):
        return [section(missing=f"{metric} is not defined on these test rows.")]
    how = "over all sets of parties" if not found.orders else f"from {found.orders} random orders of the parties"
    source = "the sampling of orders" if found.orders else "the test rows"
    text = (
        f"A contribution is a Shapley value: the party's share of the improvement in {metric} {how}. The contributions "
        f"sum to {format_number(found.gain, digits, sign=True)}, the improvement of all parties over no party. "
        f"Intervals show the uncertainty from {source}."
    )
    ordered = sorted(found.values, key=lambda name: -found.values[name].value)
    rows = [
        [name, format_estimate(found.values[name], sign=True, digits=digits),
         format_estimate(lost[name], digits=digits)]
        for name in ordered
    ]  # fmt: skip
    rows.append(["sum", format_number(sum(each.value for each in found.values.values()), digits, sign=True), ""])
    figure = figures.draw_contributions(found.values, f"share of the improvement in {metric}", digits)
    values = "; ".join(f"{row[0]}: {row[1]}" for row in rows[:-1])
    drawn = PageFigure(name="brings", figure=figure, alternative=f"Contribution of each party to {metric}. {values}.")
    change = "lost" if sets.is_greater_better else "added"
    table = PageTable(headers=["party", "contribution", f"{metric} {change} without it"], rows=rows)
    return [section(text=[text], figures=[drawn], tables=[table], beside=True)]


def errors_section(scores: RunScores) -> list[Section]:
    """Make the section with calibration, confusion and scores by class or, for a regression, residuals.

    The result is empty if the model was not scored again.
    """
    sets = scores.sets
    if sets is None:
        return []
    kind = "Residuals" if sets.tested.model.task.kind == "regression" else "Calibration and errors"
    section, tested = partial(Section, id="closer", title=kind, beside=True), sets.tested
    answers = only_answered(LabelledPredictions.of(tested.predict(tested.parties), tested.y, None))
    if not len(answers.y):
        return [section(missing="All parties together answer none of the test rows.")]
    answered = "all" if len(answers.y) == len(tested.y) else f"{len(answers.y):,}"
    text = [f"Scored with all parties on {tested.rows}; {answered} have an answer."]
    if answers.task.kind == "regression":
        errors, predicted = answers.errors.numpy(), answers.scores[:, 0].double().numpy()
        rmse, bias = float((errors**2).mean() ** 0.5), float(errors.mean())
        digits = decimal_places("rmse", rmse)
        text.append(f"Mean error {format_number(bias, digits)}, root mean square error {format_score('rmse', rmse)}.")
        drawn = PageFigure(name="residuals", figure=figures.draw_residuals(errors, predicted),
                           alternative=f"Histogram of residuals, and residuals by prediction. {text[1]}")  # fmt: skip
        return [section(text=text, figures=[drawn])]
    return [_class_errors(answers, section, text)]


SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # of the rows that a threshold selects


def thresholds_section(scores: RunScores) -> list[Section]:
    """Make the section with ROC, precision and recall, if the model was scored again and the task has two classes."""
    sets = scores.sets
    if sets is None or sets.tested.model.task.outputs != 2:
        return []
    tested = sets.tested
    answers = only_answered(LabelledPredictions.of(tested.predict(tested.parties), tested.y, None))
    if not bool((answers.y == 1).any() and (answers.y == 0).any()):
        return []
    found, positive = thresholds_of(answers, SHARES), answers.task.classes[1]
    (own,) = (each for each in found if each.chosen)
    rows = [
        [f"{each.threshold:.3f}{' (the model)' if each.chosen else ''}", f"{each.share:.1%}",
         format_number(each.precision), format_number(each.recall), format_number(each.lift, 2)]
        for each in found
    ]  # fmt: skip
    rule = (
        f"The model predicts {positive!r} if its probability is at least {own.threshold:.3f}. It then finds "
        f"{own.recall:.0%} of the rows that are {positive!r}; {_share(own.precision)} of the rows that it selects are "
        f"{positive!r}. AUROC {METRICS['auroc'].of(answers):.3f}."
    )
    choice = (
        "Another threshold exchanges precision for recall. Lift is the precision divided by the share of "
        f"{positive!r} among all rows. Choose a threshold on rows that are not test rows."
    )
    drawn = PageFigure(name="thresholds", figure=figures.draw_operating_curves(answers, own),
                       alternative=f"ROC curve, and precision by recall. {rule}")  # fmt: skip
    table = PageTable(headers=["threshold", "rows selected", "precision", "recall", "lift"], rows=rows)
    return [
        Section(id="thresholds", title="Thresholds", text=[rule, choice], figures=[drawn], tables=[table], beside=True)
    ]


def _share(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.0%}"


def _class_errors(answers: LabelledPredictions, section: Callable[..., Section], text: Sequence[str]) -> Section:
    found, classes = calibration_of(answers), answers.task.classes
    error = (f"Calibration of {found.event}: expected calibration error {found.error:.3f}, log-loss "
             f"{METRICS['log_loss'].of(answers):.3f}, Brier score {brier_score(answers):.3f}.")  # fmt: skip
    bins = "; ".join(f"{p:.2f}: {share:.2f}" for p, share in zip(found.confidence, found.correct, strict=True))
    drawn = [PageFigure(name="calibration", figure=figures.draw_calibration(found),
                        alternative=f"{error} Predicted probability and {found.share_label}: {bins}.")]  # fmt: skip
    counts = confusion_counts(answers)
    if len(classes) <= MAX_CLASSES:
        right = int(counts.diagonal().sum())
        alternative_text = (
            f"Confusion matrix of {len(classes)} classes: {right:,} of {counts.sum():,} answers are correct."
        )
        drawn.append(
            PageFigure(name="confusion", figure=figures.draw_confusion(counts, classes), alternative=alternative_text)
        )
    rows = [
        [each.name, format_number(each.precision), format_number(each.recall), format_number(each.f1), f"{each.rows:,}"]
        for each in scores_by_class(answers)
    ]
    table = PageTable(headers=["class", "precision", "recall", "F1", "rows"], rows=rows)
    return section(text=[*text, error], figures=drawn, tables=[table])
