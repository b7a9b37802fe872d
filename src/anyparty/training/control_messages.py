"""Control messages of training and prediction: settings, checkpoints, stage plans, epoch decisions, and model marks.

Each party saves its own part of the model. The mark of such a part is its SHA-256. A party that was lost before
training ended has an older part, or none. A folder may have been restored from a backup. Embeddings from an older part
have the right shape, so predictions from them would be wrong without an error. The marks prevent parts of different
runs from predicting together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anyparty.core.types import SEVERAL_HOSTS, Channel, MessageSpec, Roster, TensorSpec
from anyparty.errors import ConfigError, PartyLost, ResumeError, note, remark, some

MESSAGES = (
    MessageSpec(
        tag="setup",
        frm="active",
        to="passive",
        holds="the use of each row (training, validation, test, none); to other label holders also which party has "
        "which row, the classes, in a regression mean and scale of the active party's training labels, and with "
        "train.balance the weight of each class",
        learns="the use of its own rows, and how many other rows are used; label holders also which party has which "
        "row, all classes that the active party knows, mean and spread of its labels in a regression, and with "
        "train.balance which share of its training rows each class has",
    ),
    MessageSpec(
        tag="hello",
        frm="passive",
        to="active",
        holds="a hash of each group of settings, and the epochs of which the party has checkpoints",
        learns="whether the sender runs the same settings and version",
    ),
    MessageSpec(
        tag="start",
        frm="active",
        to="passive",
        holds="which of its own checkpoints the receiver loads, and the next epoch",
        learns="nothing else",
    ),
    MessageSpec(
        tag="plan",
        frm="active",
        to="passive",
        holds="indices of the rows that a stage trains on, validates on and is also scored on, and a number for each "
        "set of present parties if batches are drawn by these sets (train.batches)",
        learns="which of its own rows are labelled and used, and how many other rows are used",
    ),
    MessageSpec(
        tag="labelled",
        frm="host",
        to="active",
        holds="for which rows the sender has labels",
        learns="which rows have a label at the sender, but not the labels",
        when=SEVERAL_HOSTS,
    ),
    MessageSpec(
        tag="verdict",
        frm="active",
        to="passive",
        holds="for the end of an epoch: whether to keep the weights as the best so far, whether to stop training, "
        "whether all parties took part, and which parties rejoin after an absence",
        learns="which epoch had the best validation score, in which epochs a party was absent, and which parties were",
        when="several parties train a stage together, not only the active party",
    ),
)

FRESH = -1
RESUMES = "training resumes"  # the words in every sentence that says where a run continues
SETUP = {
    "use": TensorSpec((-1,), torch.int8),
    "task": TensorSpec((-1,), torch.uint8),
    "observed": TensorSpec((-1,), torch.uint8),
}


def fingerprint(text: str) -> Tensor:
    """Return the SHA-256 of a text: [32] uint8."""
    return torch.frombuffer(bytearray(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8)


StageEpoch = tuple[int, int]  # stage and epoch, both counted from 0


@dataclass(frozen=True)
class ResumePoint:
    """The point of a run at which a party resumes.

    Attributes:
        own: the stage and epoch of the checkpoint that the party loads; ``None`` if it loads no checkpoint.
        now: the stage and epoch with which the run continues.

    """

    own: StageEpoch | None = None
    now: StageEpoch = (0, 0)


async def begin(
    net: Channel,
    roster: Roster,
    settings: Mapping[str, str],
    stage_epochs: Sequence[StageEpoch],
    *,
    resume: bool = False,
) -> ResumePoint:
    """Compare the parties' settings, choose the latest checkpoint that all parties have, and return where to resume.

    ``settings`` are groups of settings as text, by name.  Only their hashes are sent.  ``stage_epochs`` are the stages
    and epochs of this party's checkpoints.  If a party was absent too long, there is no common checkpoint, and training
    resumes at the active party's last checkpoint.  Each other party then loads its own last checkpoint up to that
    epoch.  If the run ended while the first checkpoints were written, training starts from the beginning.

    Raises:
        ConfigError: at the active party, if a party's settings differ; the error contains the group's name.
        ResumeError: at the active party, if a party has no checkpoint of the run to resume.
    """
    if net.me != roster.active:
        await net.send(roster.active, "hello", _hello(settings, stage_epochs))
        at = (await net.recv(roster.active, "start", {"at": TensorSpec((2,), torch.int64)}))["at"].tolist()
        return ResumePoint(_stage_epoch(at[0]), _stage_epoch(at[1]) or (0, 0))
    by_party = {name: await hello(net, name, settings) for name in roster.names if name != net.me}
    common = set(stage_epochs).intersection(*by_party.values())
    now = max(common or stage_epochs, default=None)
    if not common and len(stage_epochs) < 2:  # the run stopped while the first checkpoint was written
        now = None
    starts = {name: ResumePoint(_latest(each, now), now or (0, 0)) for name, each in by_party.items()}
    if resume and now is not None and (empty := [name for name, start in starts.items() if start.own is None]):
        raise ResumeError(f"cannot resume: {some(empty)} has no checkpoint of this run; bring it back, or "
                          f"train into another folder")  # fmt: skip
    if resume and now is not None and (apart := [name for name, start in starts.items() if start.own != now]):
        remark(
            f"no epoch has a checkpoint at all parties: {RESUMES} from epoch {now[1]} of party {net.me!r}, "
            f"with the last saved networks of {some(apart)}, which are of another epoch, so that the result differs "
            "from that of an uninterrupted training; to get that one, train again (--again)"
        )
    elif resume:
        where = f"after epoch {now[1]} of stage {now[0] + 1}" if now else "from the beginning"
        note(f"{RESUMES} {where}, the last one of which all parties have a checkpoint")
    for name, start in starts.items():
        await send_start(net, name, start)
    return ResumePoint(now, now or (0, 0))


async def hello(net: Channel, name: str, settings: Mapping[str, str]) -> list[StageEpoch]:
    """Check a party's settings, and return the stages and epochs of its checkpoints; called at the active party.

    Raises:
        ConfigError: the party's settings differ; the error contains the group's name.
    """
    expect = {"settings": TensorSpec((len(settings), 32), torch.uint8), "checkpoints": TensorSpec((-1,), torch.int64)}
    message = await net.recv(name, "hello", expect)
    differs = (message["settings"] != _hello(settings, ())["settings"]).any(dim=1)
    if differs.any():
        groups = [group for group, unlike in zip(settings, differs.tolist(), strict=True) if unlike]
        raise ConfigError(f"party {name!r} runs with other settings than the active party {net.me!r}: "
                          f"{', '.join(groups)}; give both the same")  # fmt: skip
    return [stage_epoch for code in message["checkpoints"].tolist() if (stage_epoch := _stage_epoch(code)) is not None]


async def welcome(net: Channel, name: str, settings: Mapping[str, str], now: StageEpoch) -> None:
    """Let a party rejoin with its own last checkpoint; ``now`` is the stage and epoch. Called at the active party.

    Raises:
        ConfigError: the party's settings differ.
    """
    await send_start(net, name, ResumePoint(_latest(await hello(net, name, settings), now), now))


async def send_start(net: Channel, name: str, start: ResumePoint) -> None:
    """Send a party the (stage, epoch) of its checkpoint to load, and the (stage, epoch) at which the run continues."""
    await net.send(name, "start", {"at": torch.tensor([_code(start.own), _code(start.now)])})


def _latest(stage_epochs: Sequence[StageEpoch], now: StageEpoch | None) -> StageEpoch | None:
    return (
        None if now is None else max((stage_epoch for stage_epoch in stage_epochs if stage_epoch <= now), default=None)
    )


def _hello(settings: Mapping[str, str], stage_epochs: Sequence[StageEpoch]) -> dict[str, Tensor]:
    codes = torch.tensor(list(map(_code, stage_epochs)), dtype=torch.int64)
    return {"settings": torch.stack([fingerprint(text) for text in settings.values()]), "checkpoints": codes}


def _code(stage_epoch: StageEpoch | None) -> int:
    return FRESH if stage_epoch is None else stage_epoch[0] * 10**9 + stage_epoch[1]


def _stage_epoch(code: int) -> StageEpoch | None:
    return None if code < 0 else (code // 10**9, code % 10**9)


PLAN = dict.fromkeys(("train", "patterns", "validation", "scored"), TensorSpec((-1,), torch.int64))


async def share_plan(net: Channel, roster: Roster, plan: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """At the active party, send the plan of a stage; at other parties, receive the plan. Return the plan.

    The plan contains the rows to train on, the validation rows and the training rows to score. It also contains, for
    each row, the index of the set of parties that have the row.
    """
    if plan is not None:
        for name in roster.names:
            if name != net.me:
                await net.send(name, "plan", plan)
        return plan
    return await net.recv(roster.active, "plan", PLAN)


PART_MESSAGES = (
    MessageSpec(
        tag="part",
        frm="passive",
        to="active",
        holds="a hash of the party's saved weights; sent when training ends, and when rows are predicted",
        learns="whether the sender's share of the model is from the same run",
    ),
    MessageSpec(
        tag="finished",
        frm="passive",
        to="active",
        holds="nothing; the message means that the sender has written all its files of the training",
        learns="that the sender has finished the training",
    ),
)
HASH = {"hash": TensorSpec((32,), torch.uint8)}


async def send_weights_hash(net: Channel, roster: Roster, weights_hash: str) -> None:
    """Send the active party the mark of this party's part of the model, which is a SHA-256."""
    await net.send(roster.active, "part", {"hash": hash_tensor(weights_hash)})


async def gather_weights_hashes(net: Channel, names: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Receive the marks (SHA-256) of the parties' parts of the model; called at the active party.

    Returns:
        The mark of each party, by name; and the reason for each party that was lost before it sent a mark, by name.
    """
    found, lost = {}, {}
    for name in names:
        try:
            found[name] = (await net.recv(name, "part", HASH))["hash"].numpy().tobytes().hex()
        except PartyLost as error:
            lost[name] = error.why
    return found, lost


async def unfinished(net: Channel, names: Iterable[str]) -> dict[str, str]:
    """Wait until the parties have written all their files; return the lost parties, each with the reason.

    Called at the active party.  A party sends "finished" as its last message, so the result includes a party that
    stopped while test rows were scored.
    """
    lost = {}
    for name in names:
        try:
            await net.recv(name, "finished", {})
        except PartyLost as error:
            lost[name] = error.why
    return lost


def differing_weights(known: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the parties whose part of the model has another mark than the part that training saved."""
    return [name for name, weights_hash in found.items() if known.get(name) != weights_hash]


def hash_tensor(weights_hash: str | None) -> Tensor:
    """Return the bytes of a mark, which is hexadecimal text: [32] uint8, zeros for ``None``."""
    return torch.frombuffer(bytearray.fromhex(weights_hash or "00" * 32), dtype=torch.uint8)
