"""Control messages after training and before prediction: the mark (SHA-256) of each party's part of the model.

A party that was lost before training ended keeps an older part, or has none.  A folder may have been restored from a
backup.  Embeddings from such a part have the right shape, so predictions from them would be wrong without an error.
The marks prevent parts of different runs from predicting together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from anyparty.core.types import Channel, MessageSpec, Roster, TensorSpec
from anyparty.errors import PartyLost

MESSAGES = (
    MessageSpec(
        tag="part",
        frm="passive",
        to="active",
        holds="a hash of the party's saved weights: when training ends, and when rows are predicted",
        learns="whether its part of the model is from the same run",
    ),
    MessageSpec(
        tag="finished",
        frm="passive",
        to="active",
        holds="nothing: the party has written all its files of the training",
        learns="that its part of the training is complete",
    ),
)
HASH = {"hash": TensorSpec((32,), torch.uint8)}


async def tell(net: Channel, roster: Roster, mark: str) -> None:
    """Send the active party the mark of this party's part."""
    await net.send(roster.active, "part", {"hash": as_tensor(mark)})


async def gather(net: Channel, names: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Receive the marks of parties' parts; called at the active party.

    Returns:
        The mark of each party; and, for each party that was lost before it sent a mark, the reason.
    """
    found, lost = {}, {}
    for name in names:
        try:
            found[name] = (await net.recv(name, "part", HASH))["hash"].numpy().tobytes().hex()
        except PartyLost as error:
            lost[name] = error.why
    return found, lost


async def unfinished(net: Channel, names: Iterable[str]) -> dict[str, str]:
    """Wait at the active party until parties have written all their files; return the lost parties and the reasons.

    A party sends "finished" last, so the result includes a party that stopped while test rows were scored.
    """
    lost = {}
    for name in names:
        try:
            await net.recv(name, "finished", {})
        except PartyLost as error:
            lost[name] = error.why
    return lost


def foreign(known: Mapping[str, str], said: Mapping[str, str]) -> list[str]:
    """Return the parties whose current part is not the part that training saved."""
    return [name for name, mark in said.items() if known.get(name) != mark]


def as_tensor(mark: str | None) -> Tensor:
    """Return a mark as bytes: [32] uint8, zeros for None."""
    return torch.frombuffer(bytearray.fromhex(mark or "00" * 32), dtype=torch.uint8)
