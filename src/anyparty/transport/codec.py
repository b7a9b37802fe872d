"""The encoding of messages in safetensors format, without pickle: a small header and raw little-endian tensors.

    8 bytes                 length of the JSON text, little-endian
    JSON                    names, dtypes, shapes, offsets; under ``__metadata__`` the five fields of ``Header``
    the tensors' own bytes  one tensor directly after another, and nothing after the last one

The overhead is about 300 bytes.  Decoding input of any other form raises ``MessageError``, never another exception.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from anyparty.core.types import Tensors
from anyparty.errors import MessageError

MOST_BYTES = 1 << 30  # maximum size of a message that a receiver accepts, in bytes
MOST_HEADER_BYTES = 1 << 16
FIELDS_BYTES = 4 * 1024  # maximum size of the five fields of a ``Header``, in bytes
MOST_NAME = 200  # maximum length of the name of a run, a party or a tag, in characters
DTYPES = frozenset({
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Header:
    """The identity of a message.

    ``frm`` is the sender and ``to`` the receiver.  ``number`` is the index, from 0, of the message among the messages
    with the same run, sender, receiver and tag.
    """

    run: str
    frm: str
    to: str
    tag: str
    number: int

    def __str__(self) -> str:
        """Describe the message for the text of an error."""
        return f"message {self.tag!r} no. {self.number} from {self.frm!r} to {self.to!r}"


@dataclass(frozen=True, kw_only=True)
class Message:
    """A decoded message."""

    header: Header
    tensors: dict[str, Tensor]


def encode(header: Header, tensors: Tensors, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return a message as bytes.

    Raises:
        MessageError: the tensors exceed ``most_bytes``, or fail ``check_form``.
    """
    size = sum(tensor.nbytes for tensor in tensors.values())
    if size > most_bytes:
        raise MessageError(f"{header} would hold {size} bytes, the limit is {most_bytes}; send smaller batches")
    check_form(tensors, str(header))
    metadata = {name: str(value) for name, value in asdict(header).items()}
    return save(_apart(tensors), metadata=metadata)


def check_form(tensors: Tensors, what: str) -> None:
    """Check that tensors can be sent over any channel; ``what`` describes the message in errors.

    Raises:
        MessageError: a dtype cannot be sent, or the tensors' names and shapes do not fit into a header.
    """
    if not isinstance(tensors, Mapping):
        raise MessageError(f"{what} should hold tensors by name, as {{'h': h}} does, got a {type(tensors).__name__}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise MessageError(f"{what}: {name!r} should be a tensor, got a {type(tensor).__name__}")
        if tensor.dtype not in DTYPES:
            raise MessageError(f"{what}: {name!r} is {tensor.dtype}, which cannot be sent between parties")
    # No exact check is needed if a rough estimate is far below the limit.
    if sum(map(len, tensors)) + 100 * len(tensors) < MOST_HEADER_BYTES // 8:
        return
    end = sum(tensor.nbytes for tensor in tensors.values())
    described = {name: {"dtype": "BOOL", "shape": list(tensor.shape), "data_offsets": [end, end]}
                 for name, tensor in tensors.items()}  # fmt: skip
    long = FIELDS_BYTES + len(json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode())
    if long > MOST_HEADER_BYTES:
        raise MessageError(f"{what} has {len(tensors)} tensors, whose names and shapes take {long} bytes, the limit is "
                           f"{MOST_HEADER_BYTES}; send fewer at once, or stack them")  # fmt: skip


def decode(data: bytes, source: str = "a peer", *, most_bytes: int = MOST_BYTES) -> Message:
    """Convert the bytes of ``encode`` back to a message; ``source`` describes the sender in errors.

    Raises:
        MessageError: the data are truncated, too large or of another format, or have trailing bytes or a wrong header.
    """
    if len(data) > most_bytes + MOST_HEADER_BYTES:
        raise MessageError(f"{source} sent {len(data)} bytes in one message, the limit is {most_bytes}; refused unread")
    long = int.from_bytes(data[:8], "little")
    if long > MOST_HEADER_BYTES:
        raise MessageError(f"{source} sent a header of {long} bytes, expected at most {MOST_HEADER_BYTES}: "
                           "this is not a message of anyparty")  # fmt: skip
    try:
        tensors = load(bytes(data))
        metadata = json.loads(data[8 : 8 + long]).get("__metadata__")
    except (SafetensorError, LookupError, ValueError, TypeError, OverflowError, RuntimeError, AssertionError) as error:
        raise MessageError(f"{source} sent {len(data)} bytes, expected one whole message (header and tensors, nothing "
                           f"after): cut short or foreign ({str(error).splitlines()[0][:100]})") from None  # fmt: skip
    header = _header(metadata, source)
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise MessageError(f"{header}: {name!r} is {tensor.dtype}, which cannot be sent between parties")
        if tensor.dtype == torch.bool and (tensor.view(torch.uint8) > 1).any():
            raise MessageError(f"{header}: {name!r} should hold only the bytes 0 and 1")
    return Message(header=header, tensors=tensors)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors on the CPU, each with its own storage."""
    apart, seen = {}, set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        place = own.untyped_storage().data_ptr()
        apart[name] = own.clone() if place in seen else own
        seen.add(place)
    return apart


def _header(metadata: object, source: str) -> Header:
    """Convert the metadata of a message to its header; ``source`` describes the sender in errors.

    Raises:
        MessageError: the metadata does not have exactly the five fields, or a value is invalid.
    """
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
