"""What a run's messages cost: as they were sent, and by the formulas of the paper that counts them.

Irureta et al. (APC-VFL), appendix E; the formulas are in ``methods.costs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from anyparty.blocks.splits import TEST, TRAIN
from anyparty.methods.costs import Costed, Published, Ran
from anyparty.methods.method import Method, State
from anyparty.run.party import Outcome
from anyparty.wire.ledger import Ledger


def of(method: Method, outcomes: Mapping[str, Outcome], batch_size: int, ledger: Ledger) -> dict[str, Any]:
    """Return a run's costs, for its record.

    Args:
        method: what was trained.
        outcomes: what the active party has after the run, and what others have as far as it is known here.
        batch_size: rows of a batch.
        ledger: what crossed.

    """
    own = {message.tag for message in method.can.messages}
    return {
        "sent": [vars(each) for each in ledger.exchanges() if each.tag in own],
        "published": [_told(each) for each in published(method, outcomes, batch_size)],
    }


def published(method: Method, outcomes: Mapping[str, Outcome], batch_size: int) -> list[Published]:
    """Return what the paper's formulas say of a run; nothing for a method that they do not cover."""
    return method.published_costs(_ran(outcomes, batch_size)) if isinstance(method, Costed) else []


def _told(each: Published) -> dict[str, Any]:
    return {"party": each.party, "equation": each.equation, "rounds": each.cost.rounds,
            "bytes_sent": each.cost.bytes_sent}  # fmt: skip


def _ran(outcomes: Mapping[str, Outcome], batch_size: int) -> Ran:
    roster = next(iter(outcomes.values())).seat.roster
    lead = outcomes[roster.active]
    rows, use = lead.rows, torch.from_numpy(lead.use)
    assert rows.observed is not None
    assert rows.labeled is not None
    observed, stages = rows.observed.cpu(), [str(record["stage"]) for record in lead.trained.history]
    own = observed[:, roster.blocks.index(roster.active)] if roster.active in roster.blocks else torch.zeros(rows.n)
    both = {
        name: int((own.bool() & observed[:, k] & (use != TEST)).sum())
        for k, name in enumerate(roster.blocks)
        if name != roster.active
    }
    last = {name: _last_layer(each.trained.state) for name, each in outcomes.items()}
    return Ran(
        roster=roster, observed=observed, labelled=rows.labeled.cpu(), training=use == TRAIN, shared=both,
        epochs={stage: stages.count(stage) for stage in stages}, batch_size=batch_size,
        columns={name: each.seat.inputs for name, each in outcomes.items()},
        last_layers={name: size for name, size in last.items() if size},
    )  # fmt: skip


def _last_layer(state: State) -> int:
    """Return how many numbers the last linear layer of a party's encoder has; 0 without one."""
    encoder = state.modules.get("encoder", nn.Identity())
    layers = [module for module in encoder.modules() if isinstance(module, nn.Linear)]
    return sum(parameter.numel() for parameter in layers[-1].parameters()) if layers else 0
