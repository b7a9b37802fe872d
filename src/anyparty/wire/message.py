"""What crosses a network: a small header and raw little-endian tensors, in safetensors form.  Never pickle.

    8 bytes                 length of what follows, little-endian
    JSON                    names, dtypes, shapes, offsets; under ``__metadata__`` the five fields of ``Header``
    the tensors' own bytes  back to back, nothing between, nothing after

About 300 bytes beside the tensors.  Whatever is not exactly this is refused with a sentence; nothing else is raised,
whatever the bytes are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from anyparty.errors import MessageError
from anyparty.terms import Tensors

MOST_BYTES = 1 << 30  # of one message: what a receiver is ready to hold in memory
MOST_HEADER_BYTES = 1 << 16
FIELDS_BYTES = 4 * 1024  # of a header: its five fields, at most
MOST_NAME = 200  # letters of a run, party or tag
DTYPES = frozenset({
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Header:
    """Which message this is: the ``number``-th (from 0) of its lane (``frm``, ``to``, ``tag``) in a run."""

    run: str
    frm: str
    to: str
    tag: str
    number: int

    def __str__(self) -> str:
        """Return the words for an error's sentence."""
        return f"message {self.tag!r} no. {self.number} from {self.frm!r} to {self.to!r}"


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message as it arrived."""

    header: Header
    tensors: dict[str, Tensor]


def encode(header: Header, tensors: Tensors, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the bytes of a message.

    Raises:
        MessageError: larger than ``most_bytes``, or as ``check_form``.
    """
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if size > most_bytes:
        raise MessageError(f"{header} would hold {size} bytes, the limit is {most_bytes}; send smaller batches")
    check_form(tensors, str(header))
    metadata = {name: str(value) for name, value in asdict(header).items()}
    return save(_apart(tensors), metadata=metadata)


def check_form(tensors: Tensors, what: str) -> None:
    """Hold tensors to what a message can be made of, over whatever channel; ``what`` names it in errors.

    Raises:
        MessageError: a tensor of a dtype that does not cross, or more tensors, or longer names, than a header holds.
    """
    if not isinstance(tensors, Mapping) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise MessageError(f"{what} should hold tensors by name, as {{'h': h}} does, got a {type(tensors).__name__}")
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise MessageError(f"{what}: {name!r} is {tensor.dtype}, which does not cross between parties")
    if sum(map(len, tensors)) + 100 * len(tensors) < MOST_HEADER_BYTES // 8:  # there is room by far
        return
    end = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    described = {name: {"dtype": "BOOL", "shape": list(tensor.shape), "data_offsets": [end, end]}
                 for name, tensor in tensors.items()}  # fmt: skip
    long = FIELDS_BYTES + len(json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode())
    if long > MOST_HEADER_BYTES:
        raise MessageError(f"{what} has {len(tensors)} tensors, whose names and shapes take {long} bytes, the limit is "
                           f"{MOST_HEADER_BYTES}; send fewer at once, or stack them")  # fmt: skip


def decode(data: bytes, source: str = "a peer", *, most_bytes: int = MOST_BYTES) -> Message:
    """Return the message that ``data`` holds; ``source`` says in errors who handed it over.

    Raises:
        MessageError: cut short, trailing bytes, too large, another format, or a header that is not ours.
    """
    if len(data) > most_bytes + MOST_HEADER_BYTES:
        raise MessageError(f"{source} sent {len(data)} bytes in one message, the limit is {most_bytes}; refused unread")
    long = int.from_bytes(data[:8], "little")
    if long > MOST_HEADER_BYTES:
        raise MessageError(f"{source} sent a header of {long} bytes, expected at most {MOST_HEADER_BYTES}: "
                           f"this is not a message of anyparty's")  # fmt: skip
    try:
        tensors = load(bytes(data))
        metadata = json.loads(data[8 : 8 + long]).get("__metadata__")
    except (SafetensorError, LookupError, ValueError, TypeError, OverflowError, RuntimeError, AssertionError) as error:
        raise MessageError(f"{source} sent {len(data)} bytes, expected one whole message (header and tensors, nothing "
                           f"after): cut short or foreign ({str(error).splitlines()[0][:100]})") from None  # fmt: skip
    header = _header(metadata, source)
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise MessageError(f"{header}: {name!r} is {tensor.dtype}, which does not cross between parties")
        if tensor.dtype == torch.bool and (tensor.view(torch.uint8) > 1).any():
            raise MessageError(f"{header}: {name!r} should be true or false, a byte of it is neither")
    return Message(header=header, tensors=tensors)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, contiguous, no two in one storage."""
    apart, seen = {}, set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        place = own.untyped_storage().data_ptr()
        apart[name] = own.clone() if place in seen else own
        seen.add(place)
    return apart


def _header(metadata: object, source: str) -> Header:
    """Read the header's five fields, no more and no less."""
    names = [field.name for field in fields(Header)]
    if not isinstance(metadata, dict) or sorted(metadata) != sorted(names):
        got = sorted(metadata) if isinstance(metadata, dict) else "none"
        raise MessageError(f"{source} sent a message whose header should hold {names}, got {got}"[:400])
    for name, value in metadata.items():
        if not 0 < len(value) <= MOST_NAME or not value.isprintable():
            raise MessageError(f"{source} sent a message whose {name} should be 1 to {MOST_NAME} printable letters, "
                               f"got {value[:40]!r} ({len(value)} letters)")  # fmt: skip
    number = metadata.pop("number")
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise MessageError(f"{source} sent a message whose number should be 0, 1, 2, ..., got {number[:40]!r}")
    return Header(number=int(number), **metadata)
