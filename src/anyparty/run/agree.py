"""What parties tell each other around a method's own messages: settings at the start, rows of a stage, when to stop."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from anyparty.errors import ConfigError
from anyparty.terms import Channel, Declared, Expect, Roster

MESSAGES = (
    Declared(tag="setup", frm="active", to="passive",
             holds="what each row is for (training, validation, test); to other label holders also the classes and who "
                   "has which row",
             learns="the use of its own rows, and how many others there are; label holders the pattern of presence"),
    Declared(tag="hello", frm="passive", to="active",
             holds="a hash of each group of settings, and the epochs that the party has checkpoints of",
             learns="whether both run the same settings and version"),
    Declared(tag="start", frm="active", to="passive", holds="the epoch to go on from", learns="nothing else"),
    Declared(tag="plan", frm="active", to="passive",
             holds="places of the rows that a stage trains on and validates on, and a number for each pattern of "
                   "presence where batches follow patterns",
             learns="which of its own rows are labelled and used, and how many others there are"),
    Declared(tag="verdict", frm="active", to="passive", holds="whether to keep the weights, whether to stop",
             learns="when validation was best"),
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


async def begin(
    net: Channel, roster: Roster, settings: Mapping[str, str], moments: Sequence[tuple[int, int]]
) -> tuple[int, int] | None:
    """Agree on settings, and on the latest epoch that all have a checkpoint of; ``None`` to start afresh.

    ``settings`` are groups of settings as text, by name; only their hashes leave.

    Raises:
        ConfigError: at the active party, when a party's settings differ, naming the group.
    """
    codes = torch.tensor([stage * 10**9 + epoch for stage, epoch in moments], dtype=torch.int64)
    hashes = torch.stack([fingerprint(text) for text in settings.values()])
    if net.me != roster.active:
        await net.send(roster.active, "hello", {"settings": hashes, "checkpoints": codes})
        code = int((await net.recv(roster.active, "start", {"at": Expect((1,), torch.int64)}))["at"])
    else:
        common = set(codes.tolist())
        for name in _others(roster, net.me):
            expect = {"settings": Expect((len(settings), 32), torch.uint8), "checkpoints": Expect((-1,), torch.int64)}
            hello = await net.recv(name, "hello", expect)
            differs = (hello["settings"] != hashes).any(dim=1)
            if differs.any():
                groups = [group for group, unlike in zip(settings, differs.tolist(), strict=True) if unlike]
                raise ConfigError(f"party {name!r} runs with other settings than the active party {net.me!r}: "
                                  f"{', '.join(groups)}; give both the same")  # fmt: skip
            common &= set(hello["checkpoints"].tolist())
        code = max(common, default=FRESH)
        for name in _others(roster, net.me):
            await net.send(name, "start", {"at": torch.tensor([code])})
    return None if code == FRESH else (code // 10**9, code % 10**9)


async def share_plan(net: Channel, roster: Roster, plan: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """Give every party the active party's plan of a stage: rows to train on, their patterns, rows to validate on."""
    if plan is not None:
        for name in _others(roster, net.me):
            await net.send(name, "plan", plan)
        return plan
    rows = Expect((-1,), torch.int64)
    return await net.recv(roster.active, "plan", {"train": rows, "patterns": rows, "validation": rows})


async def share_verdict(net: Channel, roster: Roster, verdict: tuple[bool, bool] | None) -> tuple[bool, bool]:
    """Give every party the active party's verdict on an epoch: (keep these weights, stop)."""
    if verdict is not None:
        for name in _others(roster, net.me):
            await net.send(name, "verdict", {"verdict": torch.tensor(verdict, dtype=torch.uint8)})
        return verdict
    keep, stop = (await net.recv(roster.active, "verdict", {"verdict": Expect((2,), torch.uint8)}))["verdict"].tolist()
    return bool(keep), bool(stop)


def _others(roster: Roster, me: str) -> list[str]:
    return [name for name in roster.names if name != me]
