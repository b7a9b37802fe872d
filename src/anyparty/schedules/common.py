"""How many local iterations all make together, by the real clock: Sync-VFL where nobody knows speeds beforehand.

Every party says how many iterations like those of its last round fit into the time-out; the active party takes the
least (Sync-Min) or the greatest (Sync-Max) of these numbers, and says so before anybody iterates.  In the first round,
of which nobody knows anything, all make one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from anyparty.errors import PartyLost
from anyparty.methods.method import State
from anyparty.schedules.real import RealClock
from anyparty.schedules.schedule import FITS, TURNS, Timed
from anyparty.terms import Channel, Expect

TOOK = "took"
UNKNOWN, SHORTEST_S = -1, 1e-6
NUMBER = Expect((), torch.int64)


def note(state: State, made: int, seconds: float) -> None:
    """Note how long an iteration of this party took in its last round."""
    if made:
        state.kept[TOOK] = torch.tensor(seconds / made, dtype=torch.float64)


def fits(state: State, clock: RealClock) -> int:
    """Return how many iterations like the last ones a party completes within the time-out; -1 where none was made."""
    if TOOK not in state.kept:
        return UNKNOWN
    return math.floor(clock.timeout / max(state.kept[TOOK].item(), SHORTEST_S))


async def say(net: Channel, state: State, clock: RealClock) -> None:
    """Tell the active party how many iterations fit, with the embeddings."""
    seat = state.seat
    if seat.me != seat.roster.active:
        await net.send(seat.roster.active, FITS.tag, {"fits": torch.tensor(fits(state, clock))})


async def agree(net: Channel, state: State, schedule: Timed, clock: RealClock, others: Sequence[str]) -> int:
    """Return how many iterations this party makes, which is what all make; the active party asks the ``others``.

    Raises:
        PartyLost: the active party left.
    """
    seat = state.seat
    if seat.me != seat.roster.active:
        return int((await net.recv(seat.roster.active, TURNS.tag, {"turns": NUMBER}))["turns"])
    said, there = [fits(state, clock)], []
    for name in others:
        try:
            said.append(int((await net.recv(name, FITS.tag, {"fits": NUMBER}))["fits"]))
        except PartyLost:
            continue  # it is missed where its embeddings are waited for
        there.append(name)
    turns = schedule.common([each for each in said if each != UNKNOWN])
    for name in there:
        await net.send(name, TURNS.tag, {"turns": torch.tensor(turns)})
    return turns
