"""What parties tell each other around a method's own messages: settings at the start, rows of a stage, when to stop."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anyparty.errors import ConfigError, ResumeError, remark, some
from anyparty.terms import SEVERAL_HOSTS, Channel, Declared, Expect, Roster

MESSAGES = (
    Declared(tag="setup", frm="active", to="passive",
             holds="what each row is for (training, validation, test); to other label holders also who has which row, "
                   "the classes, in a regression mean and scale of the active party's training labels, and with "
                   "train.balance the weight of each class",
             learns="the use of its own rows, and how many others there are; label holders the pattern of presence, "
                    "all classes that the active party knows, mean and spread of its labels in a regression, and with "
                    "train.balance which share of its training rows each class has"),
    Declared(tag="hello", frm="passive", to="active",
             holds="a hash of each group of settings, and the epochs that the party has checkpoints of",
             learns="whether both run the same settings and version"),
    Declared(tag="start", frm="active", to="passive",
             holds="which of its checkpoints the party loads, and the epoch that comes next", learns="nothing else"),
    Declared(tag="plan", frm="active", to="passive",
             holds="places of the rows that a stage trains on, validates on and is scored on besides, and a number for "
                   "each pattern of presence where batches follow patterns",
             learns="which of its own rows are labelled and used, and how many others there are"),
    Declared(tag="labelled", frm="host", to="active",
             holds="of which rows another label holder has labels",
             learns="the active party sees which rows are labelled there; no label", when=SEVERAL_HOSTS),
    Declared(tag="verdict", frm="active", to="passive",
             holds="whether to keep the weights, whether to stop, which parties are back",
             learns="when validation was best, who was away",
             when="several parties train a stage together, not the active one alone"),
)  # fmt: skip

FRESH = -1
SETUP = {
    "use": Expect((-1,), torch.int8),
    "task": Expect((-1,), torch.uint8),
    "observed": Expect((-1,), torch.uint8),
}


def fingerprint(text: str) -> Tensor:
    """Return the hash of a text: [32] uint8."""
    return torch.frombuffer(bytearray(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8)


Moment = tuple[int, int]  # stage and epoch, both counted from 0


@dataclass(frozen=True)
class Start:
    """Where a party begins: which of its checkpoints it loads (``None``: none), and what comes next."""

    own: Moment | None = None
    now: Moment = (0, 0)


async def begin(
    net: Channel, roster: Roster, settings: Mapping[str, str], moments: Sequence[Moment], *, resume: bool = False
) -> Start:
    """Agree on settings, and on where to begin: after the latest epoch that all have a checkpoint of.

    ``settings`` are groups of settings as text, by name; only their hashes leave.  Where a party was away for longer
    than checkpoints are kept, each goes on from its own last one, at the epoch that the active party has reached.  A
    run that ended before all had their first begins anew.

    Raises:
        ConfigError: at the active party, when a party's settings differ, naming the group.
        ResumeError: at the active party, when a party has no checkpoint of the run that is to go on.
    """
    if net.me != roster.active:
        await net.send(roster.active, "hello", _hello(settings, moments))
        at = (await net.recv(roster.active, "start", {"at": Expect((2,), torch.int64)}))["at"].tolist()
        return Start(_moment(at[0]), _moment(at[1]) or (0, 0))
    theirs = {name: await hello(net, name, settings) for name in _others(roster, net.me)}
    common = set(moments).intersection(*theirs.values())
    now = max(common or moments, default=None)
    if not common and len(moments) < 2:  # it ended while the first checkpoints were written: nobody has gone further
        now = None
    starts = {name: Start(_latest(each, now), now or (0, 0)) for name, each in theirs.items()}
    if resume and now is not None and (empty := [name for name, start in starts.items() if start.own is None]):
        raise ResumeError(f"cannot resume: {some(empty)} has no checkpoint of this run; bring it back, or "
                          f"train into another folder")  # fmt: skip
    if resume and now is not None and (apart := [name for name, start in starts.items() if start.own != now]):
        remark(
            f"there is no epoch that all have a checkpoint of: they go on from epoch {now[1]} of party "
            f"{net.me!r}, with the last networks that are kept of {some(apart)}, which are of another one"
        )
    for name, start in starts.items():
        await send_start(net, name, start)
    return Start(now, now or (0, 0))


async def hello(net: Channel, name: str, settings: Mapping[str, str]) -> list[Moment]:
    """Return the moments that a party has checkpoints of, at the active party.

    Raises:
        ConfigError: the party's settings differ, naming the group.
    """
    expect = {"settings": Expect((len(settings), 32), torch.uint8), "checkpoints": Expect((-1,), torch.int64)}
    said = await net.recv(name, "hello", expect)
    differs = (said["settings"] != _hello(settings, ())["settings"]).any(dim=1)
    if differs.any():
        groups = [group for group, unlike in zip(settings, differs.tolist(), strict=True) if unlike]
        raise ConfigError(f"party {name!r} runs with other settings than the active party {net.me!r}: "
                          f"{', '.join(groups)}; give both the same")  # fmt: skip
    return [moment for code in said["checkpoints"].tolist() if (moment := _moment(code)) is not None]


async def welcome(net: Channel, name: str, settings: Mapping[str, str], now: Moment) -> None:
    """Let a party that comes back begin at ``now`` with its own last checkpoint, at the active party.

    Raises:
        ConfigError: its settings differ.
    """
    await send_start(net, name, Start(_latest(await hello(net, name, settings), now), now))


async def send_start(net: Channel, name: str, start: Start) -> None:
    """Tell a party where it begins."""
    await net.send(name, "start", {"at": torch.tensor([_code(start.own), _code(start.now)])})


def _latest(moments: Sequence[Moment], now: Moment | None) -> Moment | None:
    return None if now is None else max((moment for moment in moments if moment <= now), default=None)


def _hello(settings: Mapping[str, str], moments: Sequence[Moment]) -> dict[str, Tensor]:
    codes = torch.tensor([_code(moment) for moment in moments], dtype=torch.int64)
    return {"settings": torch.stack([fingerprint(text) for text in settings.values()]), "checkpoints": codes}


def _code(moment: Moment | None) -> int:
    return FRESH if moment is None else moment[0] * 10**9 + moment[1]


def _moment(code: int) -> Moment | None:
    return None if code < 0 else (code // 10**9, code % 10**9)


PLAN = dict.fromkeys(("train", "patterns", "validation", "scored"), Expect((-1,), torch.int64))


async def share_plan(net: Channel, roster: Roster, plan: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """Give every party the active party's plan of a stage: rows to train on, their patterns, rows to score."""
    if plan is not None:
        for name in _others(roster, net.me):
            await net.send(name, "plan", plan)
        return plan
    return await net.recv(roster.active, "plan", PLAN)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the active party says after an epoch.

    Attributes:
        keep: these weights are the best so far.
        stop: the stage is over.
        back: parties that take part again from the next epoch.

    """

    keep: bool = False
    stop: bool = False
    back: tuple[str, ...] = ()


async def share_verdict(net: Channel, roster: Roster, verdict: Verdict | None) -> Verdict:
    """Give every party the active party's verdict on an epoch; those that are just back were not there."""
    if verdict is not None:
        back = torch.tensor([name in verdict.back for name in roster.names], dtype=torch.uint8)
        said = {"verdict": torch.tensor([verdict.keep, verdict.stop], dtype=torch.uint8), "back": back}
        for name in _others(roster, net.me):
            if name not in verdict.back:
                await net.send(name, "verdict", said)
        return verdict
    expect = {"verdict": Expect((2,), torch.uint8), "back": Expect((len(roster.names),), torch.uint8)}
    got = await net.recv(roster.active, "verdict", expect)
    keep, stop = got["verdict"].bool().tolist()
    flags = got["back"].tolist()
    names = tuple(name for name, is_back in zip(roster.names, flags, strict=True) if is_back)
    return Verdict(keep=keep, stop=stop, back=names)


def _others(roster: Roster, me: str) -> list[str]:
    return [name for name in roster.names if name != me]
