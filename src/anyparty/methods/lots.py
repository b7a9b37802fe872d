"""Matrices with more rows than one message may hold cross in lots of rows; smaller ones in one message, as ever.

Who receives need not know how many rows there are: a lot with fewer rows than fit is the last one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyparty.errors import MessageError
from anyparty.terms import Channel, Expect

LOT_BYTES = 1 << 28


def fitting(row_bytes: int) -> int:
    """Return how many rows of so many bytes cross at once."""
    return max(1, LOT_BYTES // max(1, row_bytes))


async def send(net: Channel, to: str, tag: str, name: str, x: Tensor) -> None:
    """Send x [m, n] as tensor ``name``."""
    most = fitting(x.shape[1] * x.element_size())
    for first in range(0, len(x) + 1, most):
        await net.send(to, tag, {name: x[first : first + most]})


async def recv(net: Channel, frm: str, tag: str, name: str, expect: Expect) -> Tensor:
    """Return x [m, n] that ``send`` sent; a dimension of ``expect`` that is -1 may be anything.

    Raises:
        MessageError: not as many rows as expected, or lots that do not fit together.
    """
    rows, columns = expect.shape
    lots: list[Tensor] = []
    while True:
        lots.append((await net.recv(frm, tag, {name: Expect((-1, columns), expect.dtype)}))[name])
        columns, got = lots[0].shape[1], sum(map(len, lots))
        most = fitting(columns * lots[0].element_size())
        if len(lots[-1]) > most:
            raise MessageError(f"message {tag!r} from {frm!r} to {net.me!r}: {name!r} has {len(lots[-1])} rows at "
                               f"once, expected at most {most}")  # fmt: skip
        last = len(lots[-1]) < most
        if rows >= 0 and (got > rows or (last and got < rows)):
            raise MessageError(f"message {tag!r} from {frm!r} to {net.me!r}: {name!r} should have {rows} rows, "
                               f"got {got}")  # fmt: skip
        if last:
            return lots[0] if len(lots) == 1 else torch.cat(lots)
