"""Split methods under schedules, in tiny worlds."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from anyparty.config.method_factory import schedule
from anyparty.methods.method_registry import method
from anyparty.methods.schedules.scheduled import Scheduled
from anyparty.methods.schedules.virtual_clock import VirtualClock
from anyparty.networks.encoders import MLP
from anyparty.networks.optimizer import Optimizer
from anyparty.transport import memory
from tests import worlds
from tests.worlds import Table, Wiretap, World, world

LINEAR = MLP(hidden=())
ADAM = Optimizer(name="adam", lr=0.02)
MOMENTUM = Optimizer(name="sgd", lr=0.1, momentum=0.9)
EVERYBODY = {"labelers": (0, 1, 2)}
SPEEDS = {"a": 1.0, "b": 2.0, "c": 5.0}


def under(
    name: str, of: str = "laser", clock: VirtualClock | None = None, *, parameters: Any = None, **settings: Any
) -> Any:
    """Make the split method ``of`` under the schedule ``name``."""
    made, local = schedule(name, **settings)
    split = method(of, **{"embedding": 5, **(parameters or {})})
    return Scheduled(split=split, schedule=made, clock=clock or VirtualClock(), local=local)


def whole(N: int = 12, **changes: Any) -> World:
    """Create a world in which every party has every row."""
    return world(observed=torch.ones(N, changes.get("K", 3), dtype=torch.bool), **changes)


def run(made: Any, of: World, **settings: Any) -> tuple[dict[str, Any], list[dict[str, Any]], Table]:
    """Train; return all weights, the history without seconds, and the table with the messages."""
    at = settings.pop("at", None) or Table()
    trained = worlds.train(made, of, **{"epochs": 2, "at": at, **settings})
    history = [
        {key: value for key, value in record.items() if key != "seconds"}
        for record in trained[of.roster.active].history
    ]
    return worlds.weights(worlds.states_of(trained)), history, at


@dataclass
class Slow(Wiretap):
    """A channel that delays a party's n-th embedding by ``pause(n)`` seconds."""

    pause: Callable[[int], float] = lambda _: 0.0
    sent: int = 0

    async def send(self, to: str, tag: str, tensors: Any) -> bool | None:
        if tag == "embedding":
            self.sent += 1
            await asyncio.sleep(self.pause(self.sent - 1))
        return await super().send(to, tag, tensors)


def slowed(**pauses: Callable[[int], float]) -> Table:
    """Return a table that delays the embeddings of some parties."""

    def carry(parts: Any, wrap: Any) -> Any:
        def channel_of(channel: Any) -> Any:
            return wrap(Slow(channel, [], pauses[channel.me]) if channel.me in pauses else channel)

        return memory.play(parts, channel_of)

    return Table(carrier=carry)
