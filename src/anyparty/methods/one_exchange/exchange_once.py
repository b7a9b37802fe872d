"""Send each party's local embeddings to the active party once (APC-VFL); parties may lack rows or be lost.

The numbers are sent in single or half precision, or quantised to 8 or 4 bits each.

Notation  B rows, K parties with columns, z_k width of party k's local embedding; n rows and H numbers per row of a
          message, b bits per number; M width of the joint embedding.
Symbols   g1   autoencoder of a party's own block; Z_k its embeddings of party k's rows  [n_k, z_k].
          g2   autoencoder of all Z_k side by side, at the active party; z_A its embedding  [n, M].
Code      of column c, with minimum low_c and maximum high_c:  q = round((z_c - low_c) / step_c)
                                                               step_c = (high_c - low_c) / (2^b - 1)
          decoded:   low_c + step_c q,  which is at most step_c / 2 away from z_c
          (uniform affine quantisation: Jacob et al., CVPR 2018, equation (1), with a scale for each column)

    >>> sent = encode_embeddings(torch.tensor([[0.0, 5.0], [1.0, 5.0]]), "uint4")
    >>> sent["z"].shape, decode_embeddings(sent, 2, "uint4").tolist()
    (torch.Size([2, 1]), [[0.0, 5.0], [1.0, 5.0]])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from anyparty.core.types import Channel, MessageSpec, Roster, Tensors, TensorSpec
from anyparty.errors import MessageError, PartyLost
from anyparty.methods.method import Batch, PartyContext, State
from anyparty.methods.one_exchange import distillation, fedsvd
from anyparty.networks.encoders import JointAutoencoder
from anyparty.problem.rows import Block, Rows

PLAIN = {"float32": torch.float32, "float16": torch.float16}
BITS = {"uint8": 8, "uint4": 4}
PRECISIONS = (*PLAIN, *BITS)


def encode_embeddings(z: Tensor, precision: str) -> dict[str, Tensor]:
    """Return the tensors to send for embeddings z [n, H], by name.

    The tensors are ``z`` itself, or the quantised ``z`` with each column's ``low`` and ``step``. With 4 bits, two
    columns are packed into a byte: [n, ceil(H / 2)].
    """
    if precision in PLAIN:
        return {"z": z.to(PLAIN[precision])}
    low, high = torch.aminmax(z, dim=0)
    step = (high - low) / (2 ** BITS[precision] - 1)
    q = ((z - low) / torch.where(step > 0, step, 1.0)).round().to(torch.uint8)
    return {"z": _packed(q) if BITS[precision] == 4 else q, "low": low, "step": step}


def decode_embeddings(sent: Tensors, width: int, precision: str) -> Tensor:
    """Return the embeddings [n, H] from received tensors; ``width`` is H."""
    if precision in PLAIN:
        return sent["z"].float()
    q = _unpacked(sent["z"], width) if BITS[precision] == 4 else sent["z"]
    return sent["low"] + sent["step"] * q.float()


def expected_tensors(n: int, width: int, precision: str) -> dict[str, TensorSpec]:
    """Return the specification of the tensors that the receiver of n rows expects."""
    if precision in PLAIN:
        return {"z": TensorSpec((n, width), PLAIN[precision])}
    columns = -(-width * BITS[precision] // 8)
    return {"z": TensorSpec((n, columns), torch.uint8), "low": TensorSpec((width,)), "step": TensorSpec((width,))}


def _packed(q: Tensor) -> Tensor:
    """Pack two columns into a byte, the first into its low half: [n, H] -> [n, ceil(H / 2)]."""
    q = torch.nn.functional.pad(q, (0, q.shape[1] % 2))
    return q[:, ::2] | (q[:, 1::2] << 4)


def _unpacked(q: Tensor, width: int) -> Tensor:
    return torch.stack([q & 15, q >> 4], dim=2).flatten(1)[:, :width]


REPRESENTATION = MessageSpec(
    tag="representation",
    frm="block",
    to="active",
    holds="Z_k = g1(x_k) for all aligned rows that party k has, [n_k, z_k]; sent once in training",
    learns="the active party sees an embedding of every aligned row: no raw column, but everything that a network "
    "can reconstruct from the embedding; no other party sees anything, and no gradient is sent back",
)


def reconstruction(state: State, x: Tensor) -> Tensor:
    """Return the mean squared error of g1, a party's autoencoder, on rows x [B, I] (APC-VFL, equation (1))."""
    _, back = distillation.autoencoder(state, "g1")(x)
    return torch.mean((back - x) ** 2)


async def represent(net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:  # noqa: ARG001
    """Train g1, the party's local autoencoder, on the rows of the batch that the party has; return the loss."""
    x = distillation.held(rows, batch)
    return None if x is None else distillation.fit(state, "g1", batch, lambda: reconstruction(state, x))


def represented(state: State, rows: Rows, batch: Batch) -> float | None:
    """Return the loss of g1 on the rows of the batch that the party has, without training."""
    x = distillation.held(rows, batch)
    return None if x is None else reconstruction(state, x).item()


def local(state: State, rows: Rows, batch: Batch) -> Tensor | None:
    """Return Z_k [B_k, z_k], the local embeddings of the party's rows of a batch; ``None`` if the party has none."""
    x = distillation.held(rows, batch)
    return None if x is None else distillation.embed(state, "g1", x)


def joint(state: State, z: Tensor, present: Tensor) -> Tensor:
    """Return the joint embeddings [B, M] of local embeddings ``z``; ``present`` [B, K] marks the present parties."""
    g2 = state.modules["g2"]
    assert isinstance(g2, JointAutoencoder)
    g2.train(False)
    with torch.no_grad():
        return g2.encode(z, present)


@dataclass
class Representations:
    """All parties' representations of the rows of one batch.

    Attributes:
        parts: for each party, the indices [n_k] of its rows among the N aligned rows, and Z_k [n_k, z_k].
        silent: the parties that were expected to send Z_k and were lost.

    """

    parts: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RepresentationSharing:
    """The exchange by which the active party receives Z_k, each party's local embeddings.

    Attributes:
        active: the width of the active party's own local embedding.
        passive: z_p, the width of every passive party's local embedding.
        precision: precision of the numbers that are sent: "float32", "float16", "uint8" or "uint4".

    """

    active: int
    passive: int
    precision: str

    def widths(self, roster: Roster) -> dict[str, int]:
        """Return the width of each party's local embedding, in the roster's order."""
        return {name: self.active if name == roster.active else self.passive for name in roster.blocks}

    @property
    def _fitting(self) -> int:
        return fedsvd.fitting(4 * self.passive)

    async def send(self, net: Channel, seat: PartyContext, z: Tensor | None) -> None:
        """Send a passive party's local embeddings [n_k, z_p] in messages of limited size; if n_k is 0, send nothing."""
        if z is not None:
            for first in range(0, len(z), self._fitting):
                lot = encode_embeddings(z[first : first + self._fitting], self.precision)
                await net.send(seat.roster.active, REPRESENTATION.tag, lot)

    async def share(self, net: Channel, state: State, rows: Rows, batch: Batch, title: str) -> None:
        """Send the party's local embeddings of a batch; at the active party, store all embeddings for later stages.

        Raises:
            PartyLost: no passive party's Z_k arrived.
        """
        seat, z = state.seat, local(state, rows, batch)
        if seat.me != seat.roster.active:
            await self.send(net, seat, z)
            return
        gathered = await self.gather(net, seat, rows, batch, seat.roster.blocks, z)
        if len(gathered.parts) == 1:
            raise PartyLost(gathered.silent[0], f"{title} has no other party to learn from")
        for name, (places, found) in gathered.parts.items():
            distillation.keep(state, name, as_block(rows.n, places, found))

    async def gather(
        self, net: Channel, seat: PartyContext, rows: Rows, batch: Batch, asked: Sequence[str], mine: Tensor | None
    ) -> Representations:
        """Wait for passive parties' local embeddings [n_k, z_p] of a batch, and return the embeddings of all parties.

        ``mine`` contains the local embeddings of the active party itself.

        Raises:
            MessageError: a message has an unexpected form, or encodes a number that is not finite.
        """
        assert rows.observed is not None
        gathered = Representations()
        for k, name in enumerate(seat.roster.blocks):
            places = batch.rows[rows.observed[batch.rows, k]]
            if name not in asked or not len(places):
                continue
            if name == seat.me:
                assert mine is not None
                gathered.parts[name] = (places, mine)
                continue
            try:
                gathered.parts[name] = (places, (await self._from(net, name, len(places))).to(seat.device))
            except PartyLost:
                gathered.silent.append(name)
        return gathered

    def shared(self, state: State, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the stored local embeddings side by side [n, sum of widths], a mask [n, K], and the rows' indices [n].

        The n rows are those of ``places`` for which a passive party's embeddings arrived. The mask marks the parties
        whose embeddings of a row arrived.
        """
        roster = state.seat.roster
        blocks = {name: kept for name in roster.blocks if (kept := distillation.kept(state, name)) is not None}
        z, present = side_by_side(blocks, self.widths(roster), places)
        came = present.sum(dim=1) > 1
        return z[came], present[came], places[came]

    async def _from(self, net: Channel, name: str, n: int) -> Tensor:
        found = []
        for first in range(0, n, self._fitting):
            lot = expected_tensors(min(self._fitting, n - first), self.passive, self.precision)
            found.append(decode_embeddings(await net.recv(name, REPRESENTATION.tag, lot), self.passive, self.precision))
        z = torch.cat(found)
        if not torch.isfinite(z).all():
            raise MessageError(f"message {REPRESENTATION.tag!r} from {name!r} to {net.me!r}: its quantized values "
                               "exceed the range of single precision")  # fmt: skip
        return z


def side_by_side(blocks: Mapping[str, Block], widths: Mapping[str, int], places: Tensor) -> tuple[Tensor, Tensor]:
    """Return local embeddings side by side [B, sum of widths], and a mask [B, K] of the present parties.

    The embeddings of absent parties are zero. ``blocks`` has the local embeddings of the parties that sent them.
    ``widths`` has the width of every party's local embedding, in the roster's order.
    """
    embeddings, masks = [], []
    for name, width in widths.items():
        z = torch.zeros(len(places), width, device=places.device)
        present = torch.zeros(len(places), dtype=torch.bool, device=places.device)
        if name in blocks:
            found, held = blocks[name].take(places)
            z[held], present[held] = found, True
        embeddings.append(z)
        masks.append(present)
    return torch.cat(embeddings, dim=1), torch.stack(masks, dim=1)


def as_block(n: int, places: Tensor, values: Tensor) -> Block:
    """Return the ``Block`` of n aligned rows in which the rows at ``places`` [n_k] have ``values`` [n_k, ...]."""
    position = torch.full((n,), -1, device=values.device)
    position[places] = torch.arange(len(places), device=values.device)
    return Block(values.contiguous(), position)
