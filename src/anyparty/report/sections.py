"""The sections that a run's records alone can fill: who has which rows, training, what crossed, how to repeat it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import tomli_w

from anyparty.report import costs, figures, ledgers
from anyparty.report.ledgers import shown, total
from anyparty.report.records import Run
from anyparty.report.section import Drawn, Grid, Section, named, scored
from anyparty.terms import Declared


def overlap(run: Run) -> Section:
    """Who has which rows."""
    section, counted = partial(Section, id="overlap", title="Who has which rows"), run.overlap
    if counted is None:
        return section(lacks="The records do not say: the active party's record keeps it.")
    labelled = counted.get("labelled")
    text = [f"{counted['rows']:,} rows are known to at least one party, {counted['by_all']:,} of them to all."
            + (f" {labelled:,} have a label." if labelled is not None else "")]  # fmt: skip
    if counted["more_patterns"]:
        text.append(f"Not drawn: {counted['more_patterns']:,} rarer patterns with {counted['more_rows']:,} rows.")
    rows = [[name, f"{counted['held'][name]:,}", f"{counted['alone'][name]:,}"] for name in counted["blocks"]]
    caption = "Each column is a set of parties; the bar is the rows that exactly these parties have."
    return section(
        text=[*text, *counted.get("notes", [])],
        drawn=[Drawn(name="overlap", figure=figures.overlap(counted), caption=caption)],
        grids=[Grid(heads=["party", "rows", "nobody else has"], rows=rows)],
    )  # fmt: skip


def training(run: Run) -> Section:
    """Curves by epoch."""
    section = partial(Section, id="training", title="Training")
    if not run.history:
        return section(lacks="The records hold no epoch: the run ended before its first, or the active "
                                        "party's record is not here.")  # fmt: skip
    seconds = sum(float(epoch.get("seconds", 0.0)) for epoch in run.history)
    text = [f"{len(run.history):,} epochs, {seconds:,.1f} s of training steps."]
    if run.best_epoch:
        best = run.history[run.best_epoch - 1] if run.best_epoch <= len(run.history) else {}
        said = ", ".join(f"{named(name)} {scored(name, value)}" for name, value in best.get("validation", {}).items())
        several = len({epoch.get("stage") for epoch in run.history}) > 1
        when = f"{best['epoch']} of stage {best['stage']!r}" if several and best else f"{run.best_epoch}"
        text.append(f"Best on validation rows after epoch {when}: {said}.")
    if anew := run.history[-1].get("trace_began_anew"):
        text.append(f"The clock's trace of CPU use is shorter than the run: it began anew {int(anew)} times.")
    away = [f"After epoch {epoch['epoch']}: {_gone(epoch)}." for epoch in run.history if _gone(epoch)]
    drawn = Drawn(name="training", figure=figures.curves(run.history, run.best_epoch))
    return section(text=[*text, *away], drawn=[drawn])


def _gone(epoch: Mapping[str, Any]) -> str:
    absent, back = epoch.get("absent") or {}, epoch.get("back") or []
    said = [f"{name} was absent ({why})" for name, why in absent.items()]
    return "; ".join(said + ([f"{', '.join(back)} took part again"] if back else []))


def crossed(run: Run) -> Section:
    """What each party saw."""
    section = partial(Section, id="crossed", title="What each party saw")
    if not run.ledger.flows:
        return section(lacks="The records hold no ledger of what crossed.")
    whole, known = total(run.ledger), ledgers.declared(run.declared)
    text = [f"{whole.messages:,} messages, {shown(whole.bytes_sent)} of tensors."]
    if run.folder is not None:
        text.append("All parties ran in one process, which sees everything: this is what would have crossed.")
    strange = ledgers.undeclared(run.ledger, known)
    if strange:
        text.append(f"The record does not say what these messages reveal: {', '.join(strange)}.")
    star = "The fuller a cell, the more bytes went from its row's party to its column's; ★ is the active party."
    drawn = [
        Drawn(name="flows", figure=figures.flows(run.ledger, run.parties, run.active), caption=star),
        Drawn(name="tags", figure=figures.tags(ledgers.by_tag(run.ledger)), caption="Bytes by kind of message."),
    ]
    return section(
        text=text,
        drawn=drawn,
        grids=[_explained(run, known), _by_party(run), _by_pair(run), *costs.grids(run), _flows(run)],
    )


def _explained(run: Run, known: Mapping[str, Sequence[Declared]]) -> Grid:
    rows = []
    for tag, tally in ledgers.by_tag(run.ledger).items():
        said = known.get(tag, ())
        way, holds, learns = (
            "; ".join(dict.fromkeys(each)) for each in (
                [f"{one.frm} → {one.to}" for one in said], [one.holds for one in said] or ["not in the record"],
                [one.learns for one in said],
            )
        )  # fmt: skip
        rows.append([tag, way, f"{tally.messages:,}", shown(tally.bytes_sent), holds, learns])
    heads = ["message", "from → to", "messages", "bytes", "what it holds", "what can be learnt from it"]
    return Grid(heads=heads, rows=rows, words=frozenset({0, 1, 4, 5}), caption="What crossed, and what it tells.")


def _by_party(run: Run) -> Grid:
    rows = []
    for party in run.parties:
        heard, sent = total(run.ledger, receiver=party), total(run.ledger, sender=party)
        tags = [tag for tag in ledgers.by_tag(run.ledger) if total(run.ledger, receiver=party, tag=tag).messages]
        rows.append([party, ", ".join(tags), shown(heard.bytes_sent), shown(sent.bytes_sent)])
    return Grid(heads=["party", "received", "bytes received", "bytes sent"], rows=rows, words=frozenset({0, 1}),
                caption="What each party received.")  # fmt: skip


def _by_pair(run: Run) -> Grid:
    rows = [
        [pair.one, pair.other, f"{pair.rounds:,}", shown(pair.there.bytes_sent), shown(pair.back.bytes_sent)]
        for pair in ledgers.by_pair(run.ledger, run.parties)
    ]
    return Grid(heads=["between", "and", "rounds", "there", "back"], rows=rows, words=frozenset({0, 1}),
                caption="A round is a message there and one back.")  # fmt: skip


def _flows(run: Run) -> Grid:
    flows = sorted(run.ledger.flows.items())
    rows = [
        [flow.sender, flow.receiver, flow.tag, f"{tally.messages:,}", f"{tally.bytes_sent:,}"] for flow, tally in flows
    ]
    return Grid(heads=["from", "to", "message", "messages", "bytes"], rows=rows, words=frozenset({0, 1, 2}),
                 folded="the whole ledger")  # fmt: skip


def remarks(run: Run) -> list[Section]:
    """What was remarked while the run went on, which its terminal no longer shows; no section if nothing was."""
    return [Section(id="remarks", title="What was remarked", text=run.remarks)] if run.remarks else []


def repeat(run: Run) -> Section:
    """Settings, versions, fingerprints, the command."""
    rows = [["seed", str(run.seed)], ["began", run.began or "–"], ["ended", run.ended or "–"]]
    rows += [[f"fingerprint of {name}'s table", value] for name, value in run.tables.items()]
    rows += [
        [f"{package} at {party}" if party else package, value]
        for party, versions in _alike(run.versions).items()
        for package, value in versions.items()
    ]
    grid = Grid(heads=["what", "value"], rows=rows, words=frozenset({0, 1}))
    code = tomli_w.dumps(json.loads(json.dumps(run.settings))) if run.settings else ""
    own = run.folder is not None and not run.by_settings
    how = "in Python, with the method itself, which is your own, for METHOD" if own else "with"
    text = [f"Repeat it {how}: {run.command}"] if run.command else []
    return Section(id="repeat", title="To repeat it", text=text, grids=[grid], code=code)


def _alike(versions: Mapping[str, Mapping[str, str]]) -> Mapping[str, Mapping[str, str]]:
    """Return versions once, if they are the same everywhere."""
    each = list(versions.values())
    return {"": each[0]} if each and all(other == each[0] for other in each) else versions
