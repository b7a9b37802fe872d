"""Encode embeddings for messages: in single or half precision, or quantised to 8 or 4 bits per number.

Notation  n rows, H numbers per row, b bits per number.
Code      column c, between its least and greatest number:     q = round((z_c - low_c) / step_c)
                                                               step_c = (high_c - low_c) / (2^b - 1)
          and back:  low_c + step_c q,  which is at most step_c / 2 away from z_c
          (uniform affine quantisation: Jacob et al., CVPR 2018, equation (1), with a scale for each column)

    >>> sent = encode(torch.tensor([[0.0, 5.0], [1.0, 5.0]]), "uint4")
    >>> sent["z"].shape, decode(sent, 2, "uint4").tolist()
    (torch.Size([2, 1]), [[0.0, 5.0], [1.0, 5.0]])
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyparty.core.types import Tensors, TensorSpec

PLAIN = {"float32": torch.float32, "float16": torch.float16}
BITS = {"uint8": 8, "uint4": 4}
PRECISIONS = (*PLAIN, *BITS)


def encode(z: Tensor, precision: str) -> dict[str, Tensor]:
    """Return the tensors to send for embeddings z [n, H], by name.

    They are ``z`` itself, or the code of ``z`` with each column's ``low`` and ``step``. A code of 4 bits packs two
    columns into a byte: [n, ceil(H / 2)].
    """
    if precision in PLAIN:
        return {"z": z.to(PLAIN[precision])}
    low, high = torch.aminmax(z, dim=0)
    step = (high - low) / (2 ** BITS[precision] - 1)
    q = ((z - low) / torch.where(step > 0, step, 1.0)).round().to(torch.uint8)
    return {"z": _packed(q) if BITS[precision] == 4 else q, "low": low, "step": step}


def decode(sent: Tensors, width: int, precision: str) -> Tensor:
    """Return the embeddings [n, H] from received tensors; ``width`` is H."""
    if precision in PLAIN:
        return sent["z"].float()
    q = _unpacked(sent["z"], width) if BITS[precision] == 4 else sent["z"]
    return sent["low"] + sent["step"] * q.float()


def expected(n: int, width: int, precision: str) -> dict[str, TensorSpec]:
    """Return the specification of the tensors that the receiver of n rows expects."""
    if precision in PLAIN:
        return {"z": TensorSpec((n, width), PLAIN[precision])}
    columns = -(-width * BITS[precision] // 8)
    return {"z": TensorSpec((n, columns), torch.uint8), "low": TensorSpec((width,)), "step": TensorSpec((width,))}


def size(n: int, width: int, precision: str) -> int:
    """Return the number of bytes that are sent for n rows.

    >>> [size(250, 256, precision) for precision in PRECISIONS]
    [256000, 128000, 66048, 34048]
    """
    whole = expected(n, width, precision).values()
    return sum(torch.Size(each.shape).numel() * each.dtype.itemsize for each in whole)


def _packed(q: Tensor) -> Tensor:
    """Pack two columns into a byte, the first into its low half: [n, H] -> [n, ceil(H / 2)]."""
    q = torch.nn.functional.pad(q, (0, q.shape[1] % 2))
    return q[:, ::2] | (q[:, 1::2] << 4)


def _unpacked(q: Tensor, width: int) -> Tensor:
    return torch.stack([q & 15, q >> 4], dim=2).flatten(1)[:, :width]
