"""Sections of the page about one run, from the run's records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import tomli_w

from anyparty.core.types import MessageSpec
from anyparty.metrics import plots
from anyparty.metrics.scores import metric_label
from anyparty.report import figures
from anyparty.report.elements import (
    PageFigure,
    PageTable,
    Section,
    format_bytes,
    format_number,
    format_score,
)
from anyparty.report.recorded_runs import RecordedRun
from anyparty.report.traffic import (
    cost_tables,
    declared_messages,
    total_traffic,
    traffic_by_pair,
    traffic_by_tag,
    undeclared_tags,
)

MAX_OPEN_NOTES = 4  # more remarks or changes of attendance are folded
MAX_NAMES = 4  # more parties are counted in the table of messages


def overlap_section(run: RecordedRun) -> Section:
    """Show which party has which rows."""
    section, overlap = partial(Section, id="overlap", title="Rows of each party"), run.overlap
    if overlap is None:
        return section(missing="Not recorded here: only the active party's record has the overlap.")
    labelled = overlap.get("labelled")
    text = [f"At least one party has each of {overlap['rows']:,} rows; all parties have {overlap['by_all']:,} of them."
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
    """Show in one table who sent what, and what each message reveals; sums by party and pair are folded."""
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
    flows = Section(id="flows", title="All messages by sender and receiver", tables=[_by_party(run), _all_flows(run)],
                    figures=[_flows_figure(run), _tags_figure(run)])  # fmt: skip
    return section(text=text, tables=[_by_message(run, known)], details=[flows, costs])


def _flows_figure(run: RecordedRun) -> PageFigure:
    caption = "A stronger colour shows more bytes from the row's party to the column's party; ★ is the active party."
    sent = {name: format_bytes(total_traffic(run.ledger, sender=name).bytes_sent) for name in run.parties}
    words = "; ".join(f"{name}: {size}" for name, size in sent.items())
    figure = figures.draw_flows(run.ledger, run.parties, run.active)
    alternative = f"Bytes that each party sent to each other party. Sent in all: {words}."
    return PageFigure(name="flows", figure=figure, caption=caption, alternative=alternative)


def _tags_figure(run: RecordedRun) -> PageFigure:
    tags = traffic_by_tag(run.ledger)
    sizes = "; ".join(f"{tag}: {format_bytes(tally.bytes_sent)}" for tag, tally in tags.items())
    return PageFigure(name="tags", figure=figures.draw_tags(tags), caption="Bytes of each message.",
                      alternative=f"Bytes of each message. {sizes}.")  # fmt: skip


def _by_message(run: RecordedRun, known: Mapping[str, Sequence[MessageSpec]]) -> PageTable:
    """List the messages by tag and direction: to the active party, from it, or between other parties."""
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
            rows.append([*ends, tag, holds, learns, f"{messages:,}", format_bytes(size)])
    headers = ["from", "to", "message", "content", "what the receiver can learn", "messages", "bytes"]
    return PageTable(headers=headers, rows=rows, text_columns=frozenset({0, 1, 2, 3, 4}))


def _matching(declared: Sequence[MessageSpec], *, frm: bool, to: bool) -> Sequence[MessageSpec]:
    """Return the declarations of one direction; ``frm`` and ``to`` are true for the active party."""

    def fits(end: str, active: bool) -> bool:
        return end not in {"active", "passive"} or (end == "active") == active

    return [one for one in declared if fits(one.frm, frm) and fits(one.to, to)] or declared


def _names(parties: Iterable[str]) -> str:
    """List parties, or count them if there are many."""
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


def _all_flows(run: RecordedRun) -> PageTable:
    flows = sorted(run.ledger.flows.items())
    rows = [
        [flow.sender, flow.receiver, flow.tag, f"{tally.messages:,}", f"{tally.bytes_sent:,}"] for flow, tally in flows
    ]
    return PageTable(headers=["from", "to", "message", "messages", "bytes"], rows=rows,
                     text_columns=frozenset({0, 1, 2}), caption="All messages.")  # fmt: skip


def remarks_section(run: RecordedRun) -> list[Section]:
    """Show the warnings and remarks of the run, if there are any; many remarks are folded."""
    section = partial(Section, id="remarks", title="Warnings and remarks")
    shown, rest = run.remarks[:MAX_OPEN_NOTES], run.remarks[MAX_OPEN_NOTES:]
    more = [Section(id="more-remarks", title=f"{len(rest)} more", text=rest)] if rest else []
    return [section(text=shown, details=more)] if run.remarks else []


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
    return Section(id="repeat", title="Settings, versions and the command that repeats the run", text=text,
                   tables=[table], code=code)  # fmt: skip


def _distinct_versions(versions: Mapping[str, Mapping[str, str]]) -> Mapping[str, Mapping[str, str]]:
    """Return versions by party or, if they are equal at all parties, once with an empty text as the key."""
    each = list(versions.values())
    return {"": each[0]} if each and all(other == each[0] for other in each) else versions
