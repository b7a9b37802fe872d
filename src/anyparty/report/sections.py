"""Sections of the page about one run, from the run's records and, if its model was scored again, the new scores."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import tomli_w

from anyparty.core.types import MessageSpec
from anyparty.metrics.scores import LabelledPredictions
from anyparty.report import figures
from anyparty.report.calibration import calibration_of, confusion_counts, only_answered, scores_by_class
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
    metric_label,
)
from anyparty.report.recorded_runs import RecordedRun
from anyparty.report.run_scores import RunScores
from anyparty.report.traffic import (
    cost_tables,
    declared_messages,
    total_traffic,
    traffic_by_pair,
    traffic_by_tag,
    undeclared_tags,
)

MAX_CLASSES = 20  # in a confusion matrix
MAX_OPEN_ROWS = 8  # longer tables of sets are folded
FEW_ROWS = 30

# From records


def overlap_section(run: RecordedRun) -> Section:
    """Show which party has which rows."""
    section, overlap = partial(Section, id="overlap", title="Rows of each party"), run.overlap
    if overlap is None:
        return section(missing="Not recorded here: only the active party's record has the overlap.")
    labelled = overlap.get("labelled")
    text = [f"At least one party has each of {overlap['rows']:,} rows; all parties have {overlap['by_all']:,} of them."
            + (f" {labelled:,} have a label." if labelled is not None else "")]  # fmt: skip
    if overlap["more_patterns"]:
        text.append(
            f"Not drawn: {overlap['more_patterns']:,} rarer sets of parties with {overlap['more_rows']:,} rows."
        )
    rows = [[name, f"{overlap['held'][name]:,}", f"{overlap['alone'][name]:,}"] for name in overlap["blocks"]]
    caption = "Each column is a set of parties. Its bar counts the rows that exactly these parties have."
    return section(
        text=[*text, *overlap.get("notes", [])],
        figures=[PageFigure(name="overlap", figure=figures.draw_overlap(overlap), caption=caption)],
        tables=[PageTable(headers=["party", "rows", "rows of no other party"], rows=rows)],
    )


def training_section(run: RecordedRun) -> Section:
    """Show loss and metrics by epoch."""
    section = partial(Section, id="training", title="Training")
    if not run.history:
        return section(missing="No epoch is recorded: the run ended before its first, or the active party's record is "
                               "not here.")  # fmt: skip
    seconds = sum(float(epoch.get("seconds", 0.0)) for epoch in run.history)
    text = [f"{len(run.history):,} epochs, {seconds:,.1f} s of training steps."]
    if run.best_epoch:
        best = run.history[run.best_epoch - 1] if run.best_epoch <= len(run.history) else {}
        scores = ", ".join(
            f"{metric_label(name)} {format_score(name, value)}" for name, value in best.get("validation", {}).items()
        )
        several = len({epoch.get("stage") for epoch in run.history}) > 1
        when = f"{best['epoch']} of stage {best['stage']!r}" if several and best else f"{run.best_epoch}"
        text.append(f"Best on validation rows after epoch {when}: {scores}.")
    if restarts := run.history[-1].get("trace_began_anew"):
        text.append(f"The clock's trace of CPU use is shorter than the run: it restarted {int(restarts)} times.")
    changes = [(epoch["epoch"], _attendance_changes(epoch)) for epoch in run.history]
    text += [f"After epoch {epoch}: {change}." for epoch, change in changes if change]
    curves = figures.draw_training(run.history, run.best_epoch)
    return section(text=text, figures=[PageFigure(name="training", figure=curves)])


def _attendance_changes(epoch: Mapping[str, Any]) -> str:
    absent, back = epoch.get("absent") or {}, epoch.get("back") or []
    changes = [f"{name} was absent ({why})" for name, why in absent.items()]
    return "; ".join(changes + ([f"{', '.join(back)} took part again"] if back else []))


def messages_section(run: RecordedRun) -> Section:
    """Show the messages between parties, and what each message reveals."""
    section = partial(Section, id="crossed", title="Messages between parties")
    if not run.ledger.flows:
        return section(missing="The records hold no message.")
    whole, known = total_traffic(run.ledger), declared_messages(run.declared)
    text = [f"{whole.messages:,} messages with {format_bytes(whole.bytes_sent)} of tensors."]
    if run.folder is not None:
        text.append("All parties ran in one process, which sees all data. Parties on their own machines would have "
                    "sent these messages.")  # fmt: skip
    if unknown := undeclared_tags(run.ledger, known):
        text.append(f"The record does not say what these messages reveal: {', '.join(unknown)}.")
    flows = "The stronger a cell's colour, the more bytes its row's party sent to its column's; ★ is the active party."
    drawn = [
        PageFigure(name="flows", figure=figures.draw_flows(run.ledger, run.parties, run.active), caption=flows),
        PageFigure(name="tags", figure=figures.draw_tags(traffic_by_tag(run.ledger)), caption="Bytes of each message."),
    ]
    tables = [_by_message(run, known), _by_party(run), _by_pair(run), *cost_tables(run), _all_flows(run)]
    return section(text=text, figures=drawn, tables=tables)


def _by_message(run: RecordedRun, known: Mapping[str, Sequence[MessageSpec]]) -> PageTable:
    rows = []
    for tag, tally in traffic_by_tag(run.ledger).items():
        declarations = known.get(tag, ())
        way, holds, learns = (
            "; ".join(dict.fromkeys(each)) for each in (
                [f"{one.frm} → {one.to}" for one in declarations],
                [one.holds for one in declarations] or ["not in the record"], [one.learns for one in declarations],
            )
        )  # fmt: skip
        rows.append([tag, way, f"{tally.messages:,}", format_bytes(tally.bytes_sent), holds, learns])
    headers = ["message", "from → to", "messages", "bytes", "content", "what the receiver can learn"]
    return PageTable(headers=headers, rows=rows, text_columns=frozenset({0, 1, 4, 5}),
                     caption="Messages sent, and what they reveal.")  # fmt: skip


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


def _all_flows(run: RecordedRun) -> PageTable:
    flows = sorted(run.ledger.flows.items())
    rows = [
        [flow.sender, flow.receiver, flow.tag, f"{tally.messages:,}", f"{tally.bytes_sent:,}"] for flow, tally in flows
    ]
    return PageTable(headers=["from", "to", "message", "messages", "bytes"], rows=rows,
                     text_columns=frozenset({0, 1, 2}), folded="all messages by sender and receiver")  # fmt: skip


def remarks_section(run: RecordedRun) -> list[Section]:
    """Show the warnings and remarks of the run, if there are any."""
    return [Section(id="remarks", title="Warnings and remarks", text=run.remarks)] if run.remarks else []


def reproduce_section(run: RecordedRun) -> Section:
    """Show settings, versions, fingerprints of tables, and the command that repeats the run."""
    rows = [["seed", str(run.seed)], ["began", run.began or "–"], ["ended", run.ended or "–"]]
    rows += [[f"fingerprint of {name}'s table", value] for name, value in run.tables.items()]
    rows += [
        [f"{package} at {party}" if party else package, value]
        for party, versions in _distinct_versions(run.versions).items()
        for package, value in versions.items()
    ]
    table = PageTable(headers=["what", "value"], rows=rows, text_columns=frozenset({0, 1}))
    code = tomli_w.dumps(json.loads(json.dumps(run.settings))) if run.settings else ""
    own = run.folder is not None and not run.method_in_settings
    how = "in Python, with your own method in place of METHOD" if own else "with"
    text = [f"Repeat it {how}: {run.command}"] if run.command else []
    return Section(id="repeat", title="Repeat this run", text=text, tables=[table], code=code)


def _distinct_versions(versions: Mapping[str, Mapping[str, str]]) -> Mapping[str, Mapping[str, str]]:
    """Return versions by party or, if they are equal at all parties, once with an empty text as the key."""
    each = list(versions.values())
    return {"": each[0]} if each and all(other == each[0] for other in each) else versions


# From the model's scores


def scores_section(run: RecordedRun, scores: RunScores) -> Section:
    """Show the metric by set of parties, or the recorded scores."""
    sets = scores.sets
    if sets is None:
        return _recorded_scores(run, scores)
    names, constant = sets.tested.parties, float(sets.values(frozenset())[0])
    metric, digits = metric_label(sets.metric), sets.decimals
    task = sets.tested.model.task
    prediction = "mean label" if task.kind == "regression" else "class shares"
    text = (
        f"{metric} on {sets.tested.rows}. Rows that a set of parties cannot answer get a constant prediction, the "
        f"{prediction} of the training rows; this prediction alone scores {format_number(constant, digits)}. "
        f"Intervals are 95 % intervals from {len(sets.resamples)} resamples of these rows."
    )
    if len(sets.tested.test_rows) < FEW_ROWS:
        text += " With so few rows, all may be right or wrong by chance; resampling does not show this."
    lost = PageTable(
        headers=["absent party", "loss"],
        rows=[[name, format_estimate(each, sign=True, digits=digits)] for name, each in sets.loss_without().items()],
        caption=f"How much worse {metric} gets if one party alone is absent.",
    )
    section = partial(Section, id="sets", title="Scores by set of parties", text=[text[0].upper() + text[1:]])
    if len(names) <= MAX_PARTIES_LISTED:
        every = sets.every_set()
        drawn = PageFigure(name="sets", figure=figures.draw_set_scores(every, names, metric, constant, digits))
        rows = [[" + ".join(each.parties), format_estimate(each.score, digits=digits)] for each in every]
        folded = "all sets as a table" if len(rows) > MAX_OPEN_ROWS else ""
        return section(figures=[drawn], tables=[lost, PageTable(headers=["parties", metric], rows=rows, folded=folded)])
    sets.shapley()  # computes the scores of the sets that ``by_size`` averages
    sizes = sets.by_size()
    caption = "The mean over the computed sets of each size, with the interval of that mean."
    drawn = PageFigure(name="sizes", figure=figures.draw_scores_by_size(sizes, metric, constant), caption=caption)
    rows = [[str(size) if size else "none", format_estimate(score, digits=digits)] for size, score in sizes.items()]
    return section(
        figures=[drawn], tables=[PageTable(headers=["number of parties", f"mean {metric}"], rows=rows), lost]
    )


def _recorded_scores(run: RecordedRun, scores: RunScores) -> Section:
    """Show the recorded scores, the requested metric first."""
    section, found, reason = partial(Section, id="sets", title="Recorded test scores"), run.evaluation, scores.reason
    if found is None:
        return section(missing=f"There are no test scores: {reason}.")
    metrics = [name for name in found["overall"] if name not in {"rows", "coverage"}]
    metrics.sort(key=lambda name: name != scores.metric)
    headers = [*map(metric_label, metrics), "answered", "rows"]
    groups = {
        "all test rows": {"all": found["overall"]}, "number of parties that have the row": found["by_count"],
    }  # fmt: skip
    if max(map(int, found["by_count"]), default=0) <= MAX_PARTIES_LISTED:  # more parties: too many sets, with few rows
        groups["parties that have the row"] = found["by_pattern"]
    tables = [
        PageTable(
            headers=[first, *headers],
            rows=[
                [key, *(format_score(name, each.get(name)) for name in [*metrics, "coverage"]), f"{each['rows']:,}"]
                for key, each in group.items()
            ],
        )
        for first, group in groups.items()
    ]
    return section(text=["Test scores that the run recorded, with all parties."], tables=tables,
                   missing=f"Sets of parties were not scored: {reason}.")  # fmt: skip


def contributions_section(scores: RunScores) -> Section:
    """Show the Shapley value of each party."""
    section, sets = partial(Section, id="brings", title="Contribution of each party"), scores.sets
    if sets is None:
        return section(missing=f"Not computed: {scores.reason}.")
    found = sets.shapley()
    metric = metric_label(sets.metric)
    if math.isnan(found.gain):
        return section(missing=f"{metric} is not defined on these test rows.")
    how = "over all sets of parties" if not found.orders else f"from {found.orders} random orders of the parties"
    source = "the sampling of orders" if found.orders else "the test rows"
    digits = sets.decimals
    text = (
        f"Shapley values of {metric} {how}. They sum to {format_number(found.gain, digits, sign=True)}, the gain of "
        f"all parties over no party. Intervals show the uncertainty from {source}."
    )
    figure = figures.draw_contributions(found.values, f"part of the gain in {metric}", digits)
    rows = [[name, format_estimate(each, sign=True, digits=digits + 1)] for name, each in found.values.items()]
    rows.append(["sum", format_number(sum(each.value for each in found.values.values()), digits + 1, sign=True)])
    return section(
        text=[text], figures=[PageFigure(name="brings", figure=figure)],
        tables=[PageTable(headers=["party", "contribution"], rows=rows)],
    )  # fmt: skip


def errors_section(scores: RunScores) -> Section:
    """Show the errors with all parties: calibration, confusion and scores by class, or residuals of a regression."""
    section, sets = partial(Section, id="closer", title="Errors in detail"), scores.sets
    if sets is None:
        return section(missing=f"Not computed: {scores.reason}.")
    tested = sets.tested
    answers = only_answered(LabelledPredictions.of(tested.predict(tested.parties), tested.y, None))
    if not len(answers.y):
        return section(missing="All parties together answer none of the test rows.")
    text = [f"All parties, {tested.rows}: {len(answers.y):,} have an answer."]
    if answers.task.kind == "regression":
        errors, predicted = answers.errors.numpy(), answers.scores[:, 0].double().numpy()
        drawn = [PageFigure(name="residuals", figure=figures.draw_residuals(errors, predicted))]
        rmse, bias = float((errors**2).mean() ** 0.5), float(errors.mean())
        digits = decimal_places("rmse", rmse)
        text.append(f"Mean error {format_number(bias, digits)}, root mean square error {format_score('rmse', rmse)}.")
        return section(text=text, figures=drawn)
    return _class_errors(answers, section, text)


def _class_errors(answers: LabelledPredictions, section: Callable[..., Section], text: list[str]) -> Section:
    found, classes = calibration_of(answers), answers.task.classes
    text = [*text, f"Calibration of {found.event}: expected calibration error {found.error:.3f}."]
    drawn = [PageFigure(name="calibration", figure=figures.draw_calibration(found))]
    if len(classes) <= MAX_CLASSES:
        confusion = figures.draw_confusion(confusion_counts(answers), classes)
        drawn.append(PageFigure(name="confusion", figure=confusion))
    rows = [
        [each.name, format_number(each.precision), format_number(each.recall), format_number(each.f1), f"{each.rows:,}"]
        for each in scores_by_class(answers)
    ]
    table = PageTable(headers=["class", "precision", "recall", "F1", "rows"], rows=rows)
    return section(text=text, figures=drawn, tables=[table])
