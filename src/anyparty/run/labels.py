"""The labels that train: those of the parties that host heads, of all rows that one of them has a label for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from anyparty.blocks.blocks import Rows
from anyparty.errors import remark, some
from anyparty.methods.method import Method
from anyparty.methods.topology import HasTopology
from anyparty.run.part import Part
from anyparty.schedules.scheduled import Scheduled
from anyparty.terms import Channel, Expect, Roster


def hosts_of(method: Method, roster: Roster) -> tuple[str, ...]:
    """Return the parties whose labels train a method's heads, the active one first."""
    return tuple(method.topology(roster).hosts) if isinstance(method, HasTopology) else (roster.active,)


def warn_of_idle(method: Method, roster: Roster) -> None:
    """Warn of label holders whose labels are not used."""
    if roster.labelers == (roster.active,) or (isinstance(method, Scheduled) and method.local.labels == "shared"):
        return
    hosts = hosts_of(method, roster)
    idle = [name for name in roster.labelers if name not in {roster.active, *hosts}]
    if idle:
        remark(
            f"the labels of party {some(idle)} are not used: those of {roster.active!r}, which leads, teach "
            f"alone, unless a split method that has heads for parties has hosting = 'labelers'"
        )


async def share_labelled(net: Channel, method: Method, roster: Roster, rows: Rows) -> Rows:
    """Send the active party the rows that other hosts have labels for; there, return its rows with them.

    Raises:
        PartyLost, MessageError: see ``anyparty.errors``.
    """
    hosts = hosts_of(method, roster)
    if hosts == (roster.active,):
        return rows
    others = [name for name in hosts if name != roster.active]
    if net.me in others:
        assert rows.labeled is not None
        await net.send(roster.active, "labelled", {"labelled": rows.labeled.byte()})
    if net.me != roster.active or not others:
        return rows
    assert rows.labeled is not None
    told = {name: (await labelled_at(net, name, rows.n)).to(rows.labeled.device) for name in others}
    return replace(rows, told=told)


async def labelled_at(net: Channel, name: str, n: int) -> torch.Tensor:
    """Receive the rows that another host has labels for: [N] bool."""
    said = await net.recv(name, "labelled", {"labelled": Expect((n,), torch.uint8)})
    return said["labelled"].bool()


def untaught(part: Part, missed: Sequence[int]) -> Iterator[str]:
    """Yield remarks on untrained networks, from the active party's knowledge of all hosts' labels.

    ``missed`` are the parties k that the active party's own heads did not train.  Another host's heads train the
    parties whose embeddings it reads.
    """
    roster, rows, idle, reached = part.seat.roster, part.rows, [], set()
    topology = part.method.topology(roster) if isinstance(part.method, HasTopology) else None
    for host, labeled in rows.told.items():
        assert rows.observed is not None
        assert part.training is not None
        there = rows.observed[labeled & part.training.to(labeled.device)].any(dim=0).tolist()
        read = topology.reads[host] if topology else roster.blocks  # a user's own host may read everybody's
        reached |= {k for k, name in enumerate(roster.blocks) if there[k] and name in read}
        if not any(there):
            idle.append(host)
    unread = topology.unread if topology else ()
    if unread:
        yield f"no head reads the embeddings of {some(unread)}, which sends nothing and learns nothing"
    told = {*idle, *unread}
    without = [roster.blocks[k] for k in missed if k not in reached and roster.blocks[k] not in told]
    if without:
        yield f"training reached no labelled row of {some(without)}, so that answers do without it"
    if idle:
        yield f"no training row has a label of {some(idle)}, so that the predictor there has learnt nothing"
