"""FedSVD: the singular vectors of two parties' columns side by side, although neither party has the other's columns.

Chai, Wang, Zhang, Yang, Cai, Chen, Yang: "Practical Lossless Federated Singular Vector Decomposition over
Billion-Scale Data", KDD 2022; as VFedTrans uses it, for the left singular vectors.

Notation  m rows that both parties have, n_i columns of party i, n = n_t + n_d, b rows of a block, r singular vectors;
          A' is the transpose of a matrix A.
Symbols   X = [X_t X_d]  columns of the task party t and the data party d                          [m, n].
          P    random orthogonal, block-diagonal in blocks of b rows, so it is never stored as [m, m].
          Q    random orthogonal [n, n]; party i gets Q_i, the rows of Q for its columns             [n_i, n].
          R    random; t adds R and d subtracts R, so that R cancels in the sum                    [m, n].
Protocol  key generator -> t, d   a key of P, the rows Q_i, a key of R; a mask is drawn from a key of 32 bytes.
          t, d -> server          P X_i Q_i + R,  P X_i Q_i - R.
          server                  the sum is P X Q = (P U) S (Q' V)'; the server sends P U to t.
          t                       U = P' (P U).

The result is lossless: P and Q are orthogonal and R cancels in the sum, so the result equals the U of the plain
decomposition, except for rounding errors. If columns repeat other columns or are constant, singular values are 0 except
for rounding errors. Their vectors depend only on the masks and are left out. r is therefore at most the rank.

The computation is in double precision, and P U is rounded to single precision. The sign of each column of U is chosen
so that its largest entry is positive. Masks are drawn from torch's generator, whose whole state is set from secret
bits. It is not a cryptographic generator: the masks protect against curious parties, not against a determined attacker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anyparty.core.seeds import Seeds
from anyparty.core.types import Channel, MessageSpec, TensorSpec
from anyparty.errors import MessageError

BLOCK = 256  # b, the number of rows of each block on the diagonal of P
NOISE = 100.0  # standard deviation of R; standardised columns have standard deviation 1
KEY = 32  # number of bytes of a key from which masks are drawn
WIDEST = 20_000  # maximum number of columns of a party, because Q has n^2 numbers
NOTHING = 1e-6  # singular values below this share of the greatest singular value count as 0

MESSAGES = (
    MessageSpec(
        tag="width",
        frm="any",
        to="any",
        holds="how many columns the sender's prepared block has",
        learns="the number of columns",
    ),
    MessageSpec(
        tag="key",
        frm="any",
        to="block",
        holds="the keys from which the masks P and R are drawn, and the receiver's rows Q_i of the mask Q, [n_i, n]",
        learns="nothing about any party's data; a party that has the keys can remove the masks P and R, so the server "
        "must not have the keys",
    ),
    MessageSpec(
        tag="masked",
        frm="block",
        to="any",
        holds="the sender's masked block: P X_i Q_i + R or P X_i Q_i - R, [m, n] in double precision",
        learns="a separate server sees the sum P X Q: the joint singular values, also of every 256 consecutive rows. "
        "If the active party is the server, it knows P and R and sees X_d Q_d: the passive party's rows up to "
        "an unknown rotation, and so every distance between rows",
    ),
    MessageSpec(
        tag="factor",
        frm="any",
        to="active",
        holds="P U, masked left singular vectors, [m, r]",
        learns="the active party sees U: the shared rows in the space of the joint columns, up to scale",
        when="a separate party is the server",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The names of the parties in the roles of a decomposition: task party, data party, server and key generator."""

    task: str
    data: str
    server: str
    keys: str


def orthogonal(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Return uniformly random orthogonal matrices [count, size, size] float64."""
    q, r = torch.linalg.qr(torch.randn(count, size, size, generator=generator, dtype=torch.float64))
    turned: Tensor = q * torch.diagonal(r, dim1=1, dim2=2).sign().unsqueeze(1)
    return turned


@dataclass(frozen=True)
class RowMask:
    """The mask P, stored as G blocks ``whole`` [G, b, b] and a smaller last block ``last`` [m - G b, m - G b]."""

    whole: Tensor
    last: Tensor

    @classmethod
    def of(cls, m: int, key: Tensor, block: int = BLOCK) -> RowMask:
        """Draw the mask of m rows from a key."""
        generator = drawn_with(bytes(key))
        return cls(orthogonal(m // block, block, generator), orthogonal(1, m % block, generator)[0])

    def apply(self, x: Tensor) -> Tensor:
        """Return the masked rows P x [m, c] of x."""
        return self._times(x, self.whole, self.last)

    def undo(self, x: Tensor) -> Tensor:
        """Return the rows P' x [m, c], from which the mask P has been removed."""
        return self._times(x, self.whole.mT, self.last.mT)

    def _times(self, x: Tensor, whole: Tensor, last: Tensor) -> Tensor:
        count, size = whole.shape[:2]
        first = whole @ x[: count * size].view(count, size, x.shape[1])
        return torch.cat([first.flatten(0, 1), last @ x[count * size :]])


def drawn_with(key: bytes) -> torch.Generator:
    """Return a random generator whose state is set from all 32 bytes of a key; a seed of torch has only four bytes."""
    return Seeds(0, key).own.torch("mask")


def keys_for(widths: Mapping[str, int], secret: bytes) -> dict[str, dict[str, Tensor]]:
    """Return, for each party, a key of P, the party's rows of Q, and a key of R.

    P, Q and R are derived from the key generator's secret of 32 bytes. None of the three reveals anything about the
    other two.
    """
    p, q, r = (hashlib.blake2b(name, digest_size=KEY, key=secret).digest() for name in (b"P", b"Q", b"R"))
    rows = torch.split(orthogonal(1, sum(widths.values()), drawn_with(q))[0], list(widths.values()))
    both = {name: torch.frombuffer(bytearray(key), dtype=torch.uint8) for name, key in (("p", p), ("r", r))}
    return {name: {**both, "q": own.contiguous()} for name, own in zip(widths, rows, strict=True)}


def masked(x: Tensor, key: Mapping[str, Tensor], sign: int) -> Tensor:
    """Return P X_i Q_i + sign * R, [m, n], for a party's rows X_i [m, n_i]."""
    m, n = len(x), key["q"].shape[1]
    noise = torch.randn(m, n, generator=drawn_with(bytes(key["r"])), dtype=torch.float64)
    return RowMask.of(m, key["p"]).apply(x.double() @ key["q"]) + sign * NOISE * noise


def left_vectors(x: Tensor, r: int) -> Tensor:
    """Return the first r left singular vectors of a matrix, or as many as its rank: [m, <= r]."""
    if not len(x):
        return x.new_zeros(0, 0)
    u, s, _ = torch.linalg.svd(x, full_matrices=False)
    rank = int((s > NOTHING * s[:1]).sum())
    kept: Tensor = u[:, : min(r, rank)]
    return kept


def unmasked(u: Tensor, key: Mapping[str, Tensor]) -> Tensor:
    """Return U [m, r] from P U, with each column's largest entry positive."""
    u = RowMask.of(len(u), key["p"]).undo(u.double())
    if not u.numel():
        return u
    largest = u.gather(0, u.abs().argmax(dim=0, keepdim=True))
    return u * largest.sign()


async def decompose(net: Channel, roles: Roles, x: Tensor | None, rank: int, secret: bytes) -> Tensor | None:
    """Run one party's side of a decomposition; at the task party, return U [m, r] float64, r <= min(rank, m, n).

    Args:
        net: the party's channel.
        roles: the party in each role.
        x: at the task party and the data party, the party's columns of the m rows that both parties have: [m, n_i]
            float32. Both parties must have the rows in the same order.
        rank: the highest number of singular vectors.
        secret: 32 bytes that only the key generator may know.

    Raises:
        MessageError: a party reports no columns, or more than ``WIDEST``; or the masked matrices differ in shape.

    """
    key = await _key(net, roles, x, secret)
    mine = u = None
    if x is not None and key is not None:
        mine = masked(x.cpu(), key, 1 if net.me == roles.task else -1)
        if net.me != roles.server:
            await send(net, roles.server, "masked", "x", mine)
    if net.me == roles.server:
        u = await _serve(net, roles, mine, rank)
    if net.me != roles.task:
        return None
    assert x is not None
    assert key is not None
    if u is None:
        u = await recv(net, roles.server, "factor", "u", TensorSpec((len(x), -1)))
    return unmasked(u, key)


async def _key(net: Channel, roles: Roles, x: Tensor | None, secret: bytes) -> dict[str, Tensor] | None:
    """Send this party's number of columns to the key generator, and return the keys that the generator sends back.

    At the key generator, send the other parties their keys, and return the generator's own keys if it holds columns.
    """
    holders = (roles.task, roles.data)
    if net.me == roles.keys:
        widths = {}
        for name in holders:
            if name == net.me:
                assert x is not None
                widths[name] = x.shape[1]
            else:
                widths[name] = int((await net.recv(name, "width", {"n": TensorSpec((1,), torch.int64)}))["n"])
                if not 1 <= widths[name] <= WIDEST:
                    raise MessageError(f"message 'width' from {name!r}: expected between 1 and {WIDEST:,} columns, "
                                       f"got {widths[name]:,}")  # fmt: skip
        keys = keys_for(widths, secret)
        for name in holders:
            if name != net.me:
                await net.send(name, "key", keys[name])
        return keys.get(net.me)
    if net.me not in holders:
        return None
    assert x is not None
    await net.send(roles.keys, "width", {"n": torch.tensor([x.shape[1]])})
    drawn = TensorSpec((KEY,), torch.uint8)
    return await net.recv(roles.keys, "key", {"p": drawn, "q": TensorSpec((x.shape[1], -1), torch.float64), "r": drawn})


async def _serve(net: Channel, roles: Roles, mine: Tensor | None, rank: int) -> Tensor:
    """Decompose the sum of the two masked matrices; send P U to the task party unless the task party is the server.

    Raises:
        MessageError: the two masked matrices differ in shape.
    """
    parts = []
    for name in (roles.task, roles.data):
        if name == net.me:
            assert mine is not None
            parts.append(mine)
        else:
            parts.append(await recv(net, name, "masked", "x", TensorSpec((-1, -1), torch.float64)))
    if parts[0].shape != parts[1].shape:
        raise MessageError(f"messages 'masked' to {net.me!r}: {roles.task!r} sent {list(parts[0].shape)}, "
                           f"{roles.data!r} {list(parts[1].shape)}; both should have the same rows")  # fmt: skip
    u = left_vectors(parts[0] + parts[1], rank).float()
    if net.me != roles.task:
        await send(net, roles.task, "factor", "u", u)
    return u


LOT_BYTES = 1 << 28


def fitting(row_bytes: int) -> int:
    """Return the highest number of rows that fit into one message if a row has ``row_bytes`` bytes."""
    return max(1, LOT_BYTES // max(1, row_bytes))


async def send(net: Channel, to: str, tag: str, name: str, x: Tensor) -> None:
    """Send x [m, n] in several messages, each with a tensor called ``name``.

    Every message has the number of rows that ``fitting`` returns, except the last message, which has fewer, perhaps 0.
    """
    most = fitting(x.shape[1] * x.element_size())
    for first in range(0, len(x) + 1, most):
        await net.send(to, tag, {name: x[first : first + most]})


async def recv(net: Channel, frm: str, tag: str, name: str, expect: TensorSpec) -> Tensor:
    """Return a tensor [m, n] that ``send`` sent in several messages; -1 in ``expect`` allows a dimension of any size.

    Raises:
        MessageError: the number of rows is not the expected one, or a message has too many rows.
    """
    rows, columns = expect.shape
    lots: list[Tensor] = []
    while True:
        lots.append((await net.recv(frm, tag, {name: TensorSpec((-1, columns), expect.dtype)}))[name])
        columns, got = lots[0].shape[1], sum(map(len, lots))
        most = fitting(columns * lots[0].element_size())
        if len(lots[-1]) > most:
            raise MessageError(
                f"message {tag!r} from {frm!r} to {net.me!r}: {name!r} has {len(lots[-1])} rows at "
                f"once, expected at most {most}"
            )
        last = len(lots[-1]) < most
        if rows >= 0 and (got > rows or (last and got < rows)):
            raise MessageError(
                f"message {tag!r} from {frm!r} to {net.me!r}: {name!r} should have {rows} rows, got {got}"
            )
        if last:
            return lots[0] if len(lots) == 1 else torch.cat(lots)
