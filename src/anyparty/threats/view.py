"""A party's view of a training: everything that the party knows, and nothing else.

A view holds the party's own rows and networks, and the messages that the party received and sent.  A channel wrapper
records the messages.  Attacks get a view, so an attack cannot use more than the party has.

The wrapper counts every received message, as the ledger does.  It keeps the numbers of each stage's first epoch and
last epoch, because the messages of all epochs of a long training do not fit into memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyparty.core.types import Channel, ChannelWrapper, Roster, Tensors, TensorSpec
from anyparty.methods.method import Batch, State
from anyparty.problem.rows import Rows
from anyparty.transport.ledger import Flow, Ledger

Floats = NDArray[np.float64]
Epoch = Literal["first", "last"]

GRADIENT = "gradient"  # the tag of messages with derivatives by embeddings, in all methods (``Capabilities.gradients``)
ANNOUNCED = {"setup", "plan"}  # the tags of messages about rows that training itself sends


@dataclass(frozen=True, kw_only=True)
class StepMessage:
    """A message of one training step.

    Attributes:
        batch: the rows of the step, which all parties know.
        other: the sender of a received message, or the receiver of a sent message.
        tag: the name of the message.
        tensors: the content.
    """

    batch: Batch
    other: str
    tag: str
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class RowValues:
    """Values of rows, from all messages with one tag and one tensor name that one party sent in one epoch.

    Attributes:
        stage: the stage of training.
        other: the sender, or the receiver if the attacker sent the messages.
        tag: the name of the messages.
        rows: [n] the indices of the rows among the N aligned rows, sorted.
        values: [n, D] the values of each row.
    """

    stage: str
    other: str
    tag: str
    rows: NDArray[np.int64]
    values: Floats


@dataclass(kw_only=True)
class ReceivedView:
    """Everything that one party knows after a training.

    Attributes:
        me: the party.
        roster: all parties.
        rows: the party's own data of the aligned rows.
        state: the party's own networks after training.
        ledger: the counts of all received messages.
        announced: the received messages ``setup`` and ``plan``, which say how rows are used.
    """

    me: str
    roster: Roster
    rows: Rows | None = None
    state: State | None = None
    ledger: Ledger = field(default_factory=Ledger)
    announced: list[Mapping[str, Tensor]] = field(default_factory=list)
    _batch: Batch | None = None
    _kept: dict[tuple[bool, str, Epoch], list[StepMessage]] = field(default_factory=lambda: defaultdict(list))
    _batches: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))

    @property
    def held(self) -> NDArray[np.int64]:
        """The indices [n] of the rows that the party has columns of, among the N aligned rows."""
        block = None if self.rows is None else self.rows.block
        return np.empty(0, dtype=np.int64) if block is None else np.flatnonzero(block.position.cpu().numpy() >= 0)

    def columns(self, rows: NDArray[np.int64]) -> Floats:
        """Return the party's own prepared columns [n, D] of rows that it has."""
        assert self.rows is not None
        assert self.rows.block is not None
        taken, _ = self.rows.block.take(torch.from_numpy(rows).to(self.rows.block.x.device))
        columns: Floats = taken.flatten(1).double().cpu().numpy()
        return columns

    def set_step(self, step: object, *, training: bool) -> None:
        """Note the step to which the next messages belong; drop the messages of the epoch before the last one."""
        self._batch = step if training and isinstance(step, Batch) and len(step.step_id) == 3 else None
        if self._batch is None:
            return
        stage, epoch, _ = _place(self._batch)
        for sent in (True, False):
            kept = self._kept[sent, stage, "last"]
            if kept and _place(kept[0].batch)[1] != epoch:
                kept.clear()
        self._batches[stage, epoch] += 1

    def add(self, other: str, tag: str, tensors: Tensors, *, sent: bool) -> None:
        """Add a message; ``other`` is its sender, or its receiver if this party ``sent`` it."""
        if not sent:
            self.ledger.add(Flow(other, self.me, tag), sum(tensor.nbytes for tensor in tensors.values()))
        copied = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
        if tag in ANNOUNCED:
            self.announced.append(copied)
        elif self._batch is not None:
            stage, epoch, _ = _place(self._batch)
            message = StepMessage(batch=self._batch, other=other, tag=tag, tensors=copied)
            self._kept[sent, stage, "last"].append(message)
            if epoch == 0:
                self._kept[sent, stage, "first"].append(message)

    def row_values(self, epoch: Epoch, *, sent: bool = False) -> list[RowValues]:
        """Return the values of rows that the party received, or ``sent``, in the first or last epoch of each stage.

        A message has values of rows if one axis is as long as the number of the batch's rows that the sender or the
        receiver has.  Messages of other forms, such as weights of networks, are left out.
        """
        found = []
        for (was_sent, stage, kept_epoch), messages in self._kept.items():
            if was_sent != sent or kept_epoch != epoch or not messages:
                continue
            by_flow: dict[tuple[str, str, str], dict[int, list[tuple[Batch, Tensor]]]] = {}
            for message in messages:
                for name, tensor in message.tensors.items():
                    if tensor.numel():
                        steps = by_flow.setdefault((message.other, message.tag, name), defaultdict(list))
                        steps[message.batch.number].append((message.batch, tensor))
            batches = self._batches[stage, _place(messages[0].batch)[1]]
            for (other, tag, _), steps in by_flow.items():
                # Weights that are sent once per epoch could by chance have the length of their batch.
                joined = self._joined(steps, other, tag) if 2 * len(self.roster.names) * len(steps) >= batches else None
                if joined is not None:
                    found.append(RowValues(stage=stage, other=other, tag=tag, rows=joined[0], values=joined[1]))
        return found

    def _joined(
        self, steps: Mapping[int, list[tuple[Batch, Tensor]]], other: str, tag: str
    ) -> tuple[NDArray[np.int64], Floats] | None:
        """Return the rows [n] and values [n, D] of an epoch's messages; ``None`` if a message is not about rows."""
        rows, values = [], []
        for lots in steps.values():
            batch, first = lots[0]
            # A large message is sent in several lots.
            whole = [first] if len(lots) == 1 else [first, torch.cat([lot for _, lot in lots])] if _alike(lots) else []
            fitting = next((each for tensor in whole for each in self._fits(batch, other, tag, tensor)), None)
            if fitting is None:
                return None
            rows.append(fitting[0])
            values.append(fitting[1].double().flatten(1))
        if len({part.shape[1] for part in values}) != 1:
            return None
        unique, where = np.unique(torch.cat(rows).numpy(), return_index=True)
        return unique, torch.cat(values).numpy()[where]

    def _fits(self, batch: Batch, other: str, tag: str, tensor: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the rows [B_k] and the values [B_k, ...] of a message, for each set of rows that has its length."""
        rows, sets = batch.rows.cpu(), []
        assert self.rows is not None
        if self.rows.block is not None:
            sets.append(rows[self.rows.block.position.cpu()[rows] >= 0])
        if self.rows.observed is not None and other in self.roster.blocks:
            sets.append(rows[self.rows.observed.cpu()[rows, self.roster.blocks.index(other)]])
        if tag != GRADIENT:  # a gradient is about the receiver's rows, another message about the sender's
            sets.reverse()
        for among in (*sets, rows):
            for axis in range(min(2, tensor.ndim)):
                if tensor.shape[axis] == len(among) > 0:
                    yield among, tensor.movedim(axis, 0).reshape(len(among), -1)


def _place(batch: Batch) -> tuple[str, int, int]:
    stage, epoch, step = batch.step_id
    return str(stage), int(epoch), int(step)


def _alike(lots: list[tuple[Batch, Tensor]]) -> bool:
    return len({lot.shape[1:] for _, lot in lots}) == 1 and all(lot.ndim for _, lot in lots)


@dataclass
class RecordingChannel(ChannelWrapper):
    """A channel that records in a view the messages that its party receives and sends, and changes nothing."""

    view: ReceivedView

    async def send(self, to: str, tag: str, tensors: Tensors) -> bool | None:
        """Send a message, and record it."""
        self.view.add(to, tag, tensors, sent=True)
        return await self.channel.send(to, tag, tensors)

    async def recv(self, frm: str, tag: str, expect: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
        """Receive a message, and record it."""
        got = await self.channel.recv(frm, tag, expect)
        self.view.add(frm, tag, got, sent=False)
        return got

    def set_step(self, step: object, *, training: bool) -> None:
        """Announce the step to the view and to the inner channel."""
        self.view.set_step(step, training=training)
        super().set_step(step, training=training)


def recording(views: Mapping[str, ReceivedView], channel: Channel) -> Channel:
    """Return the channel with a recorder around it, if there is a view of its party."""
    return RecordingChannel(channel, views[channel.me]) if channel.me in views else channel
