"""Count the cost of a run's messages: as they were sent, and by the formulas of a paper.

Source: Irureta et al. (APC-VFL), appendix E; the formulas are in ``anyparty.core.costs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from anyparty.core.costs import HasCosts, PartyShape, RunShape, published
from anyparty.data.batching import TEST, TRAIN
from anyparty.data.splits import UNUSED
from anyparty.methods.method import Method
from anyparty.training.party import PartyResult
from anyparty.transport.ledger import Ledger


def of(method: Method, outcomes: Mapping[str, PartyResult], batch_size: int, ledger: Ledger) -> dict[str, Any]:
    """Return a run's costs, for its record.

    Args:
        method: the method that was trained.
        outcomes: the active party's result, and the results of other parties that are known here.
        batch_size: the number of rows in a batch.
        ledger: the message and byte counts of the run.

    """
    own = {message.tag for message in method.can.messages}
    shapes = {name: shape(outcome) for name, outcome in outcomes.items()}
    counted = method.published_costs(_ran(outcomes, batch_size)) if isinstance(method, HasCosts) else []
    return {
        "sent": [vars(each) for each in ledger.exchanges() if each.tag in own],
        "published": published([vars(each) for each in counted], shapes),
    }


def shape(outcome: PartyResult) -> PartyShape:
    """Return the sizes that the cost formulas need and that only the party itself knows."""
    encoder = outcome.trained.state.modules.get("encoder", nn.Identity())
    layers = [module for module in encoder.modules() if isinstance(module, nn.Linear)]
    last = sum(parameter.numel() for parameter in layers[-1].parameters()) if layers else 0
    return PartyShape(columns=outcome.seat.inputs, last_layer=last)


def _ran(outcomes: Mapping[str, PartyResult], batch_size: int) -> RunShape:
    roster = next(iter(outcomes.values())).seat.roster
    lead = outcomes[roster.active]
    rows, use = lead.rows, torch.from_numpy(lead.use)
    assert rows.observed is not None
    observed, stages = rows.observed.cpu(), [str(record["stage"]) for record in lead.trained.history]
    own = observed[:, roster.blocks.index(roster.active)] if roster.active in roster.blocks else torch.zeros(rows.n)
    both = {
        name: int((own.bool() & observed[:, k] & (use != TEST) & (use != UNUSED)).sum())
        for k, name in enumerate(roster.blocks)
        if name != roster.active
    }
    return RunShape(
        roster=roster,
        observed=observed,
        labelled=rows.teaching.cpu(),
        training=use == TRAIN,
        shared=both,
        epochs={stage: stages.count(stage) for stage in stages},
        batch_size=batch_size,
        columns=lead.seat.inputs,
    )
