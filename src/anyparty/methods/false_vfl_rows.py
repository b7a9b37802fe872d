"""Which rows FALSE-VFL's stages learn from, and what is worth saying of these when a stage ends."""

from __future__ import annotations

from torch import Tensor

from anyparty.blocks.blocks import Rows
from anyparty.errors import some
from anyparty.nets.taught import shared, untied
from anyparty.predictions import members

ALL_LABELLED = "every row has a label: it has seen labelled rows alone"
ALWAYS = "every row is known to {}: sets of parties without are not learnt, and their answers may be far off"
UNTIED = "no party that has this row shares rows of the training by way of which a label reached it"


def anybodys(at: Rows) -> Tensor:
    """Return the rows that anybody has, [N] bool: stage 1's."""
    assert at.observed is not None
    return at.observed.any(dim=1)


def labelled(at: Rows) -> Tensor:
    """Return those of them with a label, [N] bool: stage 2's."""
    assert at.labeled is not None
    return at.labeled & anybodys(at)


def which_sets(blocks: tuple[str, ...], at: Rows) -> str:
    """Say that stage 1 saw no row without a label, or none that some of the parties lack."""
    assert at.observed is not None
    always = members(at.observed[anybodys(at)].all(dim=0).cpu(), blocks)
    known = ALWAYS.format(" and ".join(always)) if always and len(blocks) > 1 else ""
    return "; ".join(filter(None, ("" if (anybodys(at) & ~labelled(at)).any() else ALL_LABELLED, known)))


def without_labels(blocks: tuple[str, ...], at: Rows) -> str:
    """Say to which parties' columns no label is tied, by rows that parties share."""
    assert at.observed is not None
    missed = untied(shared(at.observed), at.observed[labelled(at)].any(dim=0))
    names = some([blocks[k] for k in missed])
    return f"no label is tied to the block of {names}, by shared rows, so that answers do without it" if missed else ""
