"""Whose labels teach: those of the parties that host heads, of every row that one of them has a label of."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch

from anyparty.blocks.blocks import Rows
from anyparty.errors import AnypartyWarning, some
from anyparty.methods.method import Method
from anyparty.schedules.scheduled import Scheduled
from anyparty.terms import Channel, Expect, Roster


def hosts_of(method: Method, roster: Roster) -> tuple[str, ...]:
    """Return the parties whose labels teach a method's heads, the active one first."""
    split = method.split if isinstance(method, Scheduled) else method
    hosts = getattr(split, "hosts", None)
    return (roster.active,) if hosts is None else tuple(hosts(roster))


def warn_of_idle(method: Method, roster: Roster) -> None:
    """Warn of label holders whose labels teach nothing."""
    if isinstance(method, Scheduled) and method.local.labels == "shared":
        return
    hosts = hosts_of(method, roster)
    idle = [name for name in roster.labelers if name not in {roster.active, *hosts}]
    if idle:
        warnings.warn(f"the labels of party {some(idle)} are not used: those of {roster.active!r}, which leads, teach "
                      f"alone, unless a split method that has heads for parties has hosting = 'labelers'",
                      AnypartyWarning, stacklevel=2)  # fmt: skip


async def share_labelled(net: Channel, method: Method, roster: Roster, rows: Rows) -> Rows:
    """Tell the active party of which rows other hosts have labels; there, return its rows with what they told.

    Raises:
        PartyLost, MessageError: see ``anyparty.errors``.
    """
    others = [name for name in hosts_of(method, roster) if name != roster.active]
    if net.me in others:
        assert rows.labeled is not None
        await net.send(roster.active, "labelled", {"labelled": rows.labeled.byte()})
    if net.me != roster.active or not others:
        return rows
    assert rows.labeled is not None
    told = [await labelled_at(net, name, rows.n) for name in others]
    return replace(rows, elsewhere=torch.stack(told).any(dim=0).to(rows.labeled.device))


async def labelled_at(net: Channel, name: str, n: int) -> torch.Tensor:
    """Return of which of N rows another host says that it has a label: [N] bool."""
    said = await net.recv(name, "labelled", {"labelled": Expect((n,), torch.uint8)})
    return said["labelled"].bool()


def reached_elsewhere(rows: Rows, training: torch.Tensor | None) -> list[int]:
    """Return the parties k with training rows [N] of which another host has a label, as the active party knows."""
    if rows.elsewhere is None or rows.observed is None or training is None:
        return []
    teaching = rows.elsewhere & training.to(rows.elsewhere.device)
    reached: list[int] = rows.observed[teaching].any(dim=0).nonzero().flatten().tolist()
    return reached
