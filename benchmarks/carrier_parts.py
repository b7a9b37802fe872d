"""The code of a party's process in ``benchmarks.carrier``: the same training steps in several ways, in turns.

step       LASER-VFL's step as in a run: embeddings up, gradients down, over our channel
two calls  the same step by FLARE's own requests: one for the embeddings, one with the gradients
echo       the bytes of a step up and down over FLARE's cells only: no messages of ours, no computation
channel    the same bytes over our channel
compute    each party's computation of a step, one party after the other, without messages
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from torch import Tensor

from anyparty.core.types import TensorSpec
from anyparty.deployment.flare.job import CHANNEL
from anyparty.methods.method import Batch, State
from anyparty.methods.split.exchange import Gathered
from anyparty.methods.split.split_method import Split
from anyparty.transport.contract import ContractChannel
from anyparty.transport.ledger import Ledger, MeteredChannel
from anyparty.transport.reliable_endpoint import ReliableEndpoint
from benchmarks.worlds import BATCH, EMBEDDING, Model, World

WAIT_S, REST_S = 60.0, 0.5
NUMBER = {"s": TensorSpec((1,), torch.float64)}
Result = dict[str, Any]


@dataclass
class Table:
    """One party: its networks, its channel, and FLARE's engine.

    Attributes:
        net: the channel.
        models: separate networks for each way.
        batches: the rows of each step.
        inbox: messages received by FLARE's cells.
        kept: embeddings that wait for their gradients, by step.
        everyone: total seconds of all parties' computation at the last measurement.

    """

    net: ReliableEndpoint
    context: Any
    models: dict[str, Model]
    batches: list[Batch]
    inbox: asyncio.Queue[tuple[str, bytes]] = field(default_factory=asyncio.Queue)
    kept: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    everyone: float = 0.0

    @property
    def me(self) -> str:
        """Name of this party."""
        return self.net.me

    @property
    def leads(self) -> bool:
        """Return whether this is the active party."""
        return self.me == "p0"

    @property
    def others(self) -> list[str]:
        """The passive parties."""
        return [name for name in self.net.sessions if name != "p0"]

    # ---- turns

    async def meet(self, last: Callable[[], int | None] = lambda: None) -> int | None:
        """Wait for all parties; return the result of ``last``, which the active party calls before all continue."""
        if not self.leads:
            await self.net.send("p0", "here", {})
            await self.net.recv("p0", "go", {})
            return None
        for name in self.others:
            await self.net.recv(name, "here", {})
        done = last()
        for name in self.others:
            await self.net.send(name, "go", {})
        return done

    async def take(self, way: str, steps: int) -> float:
        """Take ``steps`` steps in one way; return the duration in seconds, which is measured at the active party."""
        await self.meet()
        if way == "compute":
            return await self.compute_in_turns(steps)
        began = time.perf_counter()
        await {"step": self.step, "two calls": self.two_calls, "echo": self.echo, "channel": self.channel}[way](steps)
        return time.perf_counter() - began

    # ---- ours

    async def step(self, steps: int) -> None:
        """Take training steps as in a run."""
        model = self.models["step"]
        wired = ContractChannel(MeteredChannel(self.net, Ledger()), model.world.roster, model.method.can.messages)
        for batch in self.batches[:steps]:
            await model.method.step(wired, model.states[self.me], model.world.rows[self.me], batch)

    async def channel(self, steps: int, shape: tuple[int, int] = (BATCH, EMBEDDING)) -> None:
        """Send zeros of an embedding's size to the active party over our channel, and receive as many back."""
        tensors, expect = {"h": torch.zeros(shape)}, {"h": TensorSpec(shape)}
        for _ in range(steps):
            if self.leads:
                for name in self.others:
                    await self.net.recv(name, "up", expect)
                for name in self.others:
                    await self.net.send(name, "down", tensors)
            else:
                await self.net.send("p0", "up", tensors)
                await self.net.recv("p0", "down", expect)

    # ---- FLARE's cells alone

    def listen(self) -> None:
        """Put messages of FLARE's cells into the inbox, and reply to FLARE's requests."""
        loop, cells = asyncio.get_running_loop(), self.net.carrier
        parties = {cells.address(name): name for name in (self.me, *self.net.sessions)}  # type: ignore[attr-defined]

        def arrived(request: Message) -> None:
            item = parties[request.get_header(MessageHeaderKey.ORIGIN)], bytes(request.payload)
            loop.call_soon_threadsafe(self.inbox.put_nowait, item)

        cells.core.register_request_cb(CHANNEL, "echo", arrived)  # type: ignore[attr-defined]
        if not self.leads:
            engine = self.context.get_engine()
            engine.register_aux_message_handler("forward", self.forward)
            engine.register_aux_message_handler("backward", self.backward)

    async def echo(self, steps: int) -> None:
        """Send an embedding's number of bytes to the active party over FLARE's cells, and receive as many back."""
        cells, data = self.net.carrier, bytes(4 * BATCH * EMBEDDING)

        def put(to: str) -> None:
            cells.core.fire_and_forget(CHANNEL, "echo", cells.address(to), Message({}, data))  # type: ignore[attr-defined]

        for _ in range(steps):
            if not self.leads:
                put("p0")
            for _ in self.others if self.leads else ["p0"]:
                await asyncio.wait_for(self.inbox.get(), WAIT_S)
            for name in self.others if self.leads else []:
                put(name)

    # ---- FLARE's own two calls

    async def two_calls(self, steps: int) -> None:
        """Request all embeddings, then send all gradients; a passive party only replies."""
        if not self.leads:
            return
        model = self.models["two calls"]
        method, state, rows = model.method, model.states[self.me], model.world.rows[self.me]
        engine = self.context.get_engine()
        for number in range(steps):
            batch = self.batches[number]
            asked = Shareable({"number": number})
            answers = engine.send_aux_request(self.others, "forward", asked, WAIT_S, self.context)
            mine = encode(method, model, self.me, batch)
            there = gathered(model, batch, {"p0": mine[1]} | {name: theirs(answers[name]) for name in self.others})
            _, gradients = method.fuse(state, rows, batch, there)
            state.optimizers["heads"].step()
            await asyncio.gather(*[self.give(name, number, gradients[name]) for name in self.others])
            learn(method, state, mine[1], gradients["p0"])

    async def give(self, name: str, number: int, gradient: Tensor) -> None:
        """Send one party its gradient; FLARE 2.9's request with separate contents for each party raises TypeError."""
        engine, asked = self.context.get_engine(), Shareable({"number": number, "g": gradient.numpy()})
        done = await asyncio.to_thread(engine.send_aux_request, [name], "backward", asked, WAIT_S, self.context)
        assert done[name].get_return_code() == ReturnCode.OK

    def forward(self, topic: str, request: Shareable, fl_ctx: Any) -> Shareable:  # noqa: ARG002
        """Compute this party's embeddings, and reply with them."""
        model, number = self.models["two calls"], request["number"]
        self.kept[number] = encode(model.method, model, self.me, self.batches[number])
        reply = make_reply(ReturnCode.OK)
        reply["h"] = self.kept[number][1].detach().numpy()
        return reply

    def backward(self, topic: str, request: Shareable, fl_ctx: Any) -> Shareable:  # noqa: ARG002
        """Update this party's network with the received gradients."""
        _, h = self.kept.pop(request["number"])
        optimizer = self.models["two calls"].states[self.me].optimizers["encoder"]
        optimizer.zero_grad()
        h.backward(torch.from_numpy(request["g"]))  # type: ignore[no-untyped-call]
        optimizer.step()
        return make_reply(ReturnCode.OK)

    # ---- computation alone

    async def compute_in_turns(self, steps: int) -> float:
        """Let one party after the other compute; at the active party, return the seconds of the slowest party."""
        if not self.leads:
            await self.net.recv("p0", "compute", {})
            await self.net.send("p0", "computed", {"s": torch.tensor([await self.compute(steps)], dtype=torch.float64)})
            return 0.0
        seconds = [await self.compute(steps)]
        for name in self.others:
            await self.net.send(name, "compute", {})
            seconds.append(float((await self.net.recv(name, "computed", NUMBER))["s"]))
        self.everyone = sum(seconds)
        return max(seconds)

    async def compute(self, steps: int) -> float:
        """Do this party's computation of a step."""
        model, shape = self.models["compute"], (BATCH, EMBEDDING)
        method, state, rows = model.method, model.states[self.me], model.world.rows[self.me]
        h, g = torch.randn(shape), 1e-6 * torch.randn(shape)  # so small that the party's networks hardly change
        began = time.perf_counter()
        for batch in self.batches[:steps]:
            _, mine = encode(method, model, self.me, batch)
            if self.leads:
                there = gathered(model, batch, {"p0": mine} | dict.fromkeys(self.others, h))
                _, gradients = method.fuse(state, rows, batch, there)
                state.optimizers["heads"].step()
            learn(method, state, mine, gradients["p0"] if self.leads else g)
        return time.perf_counter() - began

    # ---- bytes

    async def weigh(self, shape: tuple[int, int], steps: int, port: int) -> tuple[int, int] | None:
        """At the active party, return the bytes of the tensors sent, and the bytes of all traffic."""
        before = await self.meet(partial(sent, port))
        await self.channel(steps, shape)
        await asyncio.sleep(REST_S if self.leads else 3 * REST_S)  # time for the last receipts to be sent
        after = sent(port) if self.leads else None
        if before is None or after is None:
            return None
        return 2 * steps * len(self.others) * 4 * shape[0] * shape[1], after - before


def encode(method: Split, model: Model, me: str, batch: Batch) -> tuple[Tensor, Tensor]:
    part = method.encode(model.states[me], model.world.rows[me], batch)
    assert part is not None
    return part


def learn(method: Split, state: State, h: Tensor, gradient: Tensor) -> None:
    method.backward(state, h, gradient, [])
    state.optimizers["encoder"].step()


def gathered(model: Model, batch: Batch, embeddings: dict[str, Tensor]) -> Gathered:
    observed, held = model.world.lead.observed, torch.arange(len(batch.rows))
    assert observed is not None
    return Gathered(observed=observed[batch.rows], parts={name: (held, h.detach()) for name, h in embeddings.items()})


def theirs(answer: Shareable) -> Tensor:
    assert answer.get_return_code() == ReturnCode.OK, answer.get(ReservedKey.RC)
    return torch.from_numpy(answer["h"])


def sent(port: int) -> int | None:
    """Return the bytes in both directions of all connections to a local port, without TCP headers."""
    if shutil.which("ss") is None:
        return None
    words = ["ss", "-tniH", f"sport = :{port}"]
    output = subprocess.run(words, capture_output=True, text=True, check=True).stdout  # noqa: S603
    return sum(map(int, re.findall(r"bytes_(?:sent|received):(\d+)", output)))


def context() -> Any:
    """Return FLARE's context of the job, from the frame in which FLARE called this code."""
    frame = sys._getframe()  # noqa: SLF001
    while "fl_ctx" not in frame.f_locals:
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_locals["fl_ctx"]


async def turns(site: Any, config: Any, net: Any, *, rounds: int, steps: int, port: int, **_: Any) -> Result | None:  # noqa: ARG001
    """Run all ways in turns; at the active party, return the seconds per step of every way and round, and the bytes."""
    ways = ("step", "two calls", "echo", "channel", "compute")
    world = World.of(4)
    models = {way: Model.of(world, "laser") for way in ("step", "two calls", "compute")}
    table = Table(net, context(), models, models["step"].batches(steps))
    table.listen()
    for way in ways:
        await table.take(way, min(steps, 3))
    seconds: dict[str, list[float]] = {way: [] for way in (*ways, "everyone")}
    lots = random.Random(0)  # noqa: S311 - all parties draw the same order
    for _round in range(rounds):
        for way in lots.sample(ways, len(ways)):
            seconds[way].append(await table.take(way, steps) / steps)
        seconds["everyone"].append(table.everyone / steps)
    crossed = {}
    for shape in ((128, 64), (BATCH, EMBEDDING), (512, 256)):
        if (weighed := await table.weigh(shape, 20, port)) is not None:
            crossed["x".join(map(str, shape))] = weighed
    return {"seconds": seconds, "bytes": crossed} if table.leads else None
