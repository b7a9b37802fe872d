"""Tools for networks: dropout by row, batches of a single row, buffers of any length, stored vectors, a memory limit.

A single row has no standard deviation, and torch refuses to train batch normalisation on a batch of one row. Such
batches are common in vertical data: a party may hold one row of a batch, or the last batch may have one row.

The allocation limit stops a small model file from requesting a huge network.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode

from anyparty.core.draws import uniform
from anyparty.errors import ConfigError


def bear_single_rows(module: nn.Module) -> nn.Module:
    """Let batch normalisation use its running statistics for a batch with one number per channel; return the module.

    Raises:
        ConfigError: a layer of batch normalisation does not track running statistics.
    """
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            if not layer.track_running_stats:
                raise ConfigError(
                    f"the answer of {layer} for a row depends on the other rows of its batch, also in prediction, "
                    "where a batch may have one row: leave track_running_stats on"
                )
            layer.register_forward_pre_hook(_rest, with_kwargs=True)
            layer.register_forward_hook(_resume, always_call=True)
    return module


def _rest(layer: nn.Module, given: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
    (x,) = *given, *named.values()
    if layer.training and x.numel() == x.shape[1]:
        layer.train(False)
        layer.resting = True  # type: ignore[assignment]


def _resume(layer: nn.Module, given: Any, made: Any) -> None:  # noqa: ARG001
    if layer.__dict__.pop("resting", False):
        layer.train()


# Dropout by row: the numbers of a row do not depend on the other rows of the batch

_ELEMENTS, _CHANNELS = (nn.Dropout,), (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class RowDropout(nn.Module):
    """Dropout whose random numbers depend on a key and on the row: [B, ...] -> [B, ...].

    Without numbers by row (see ``draw_by_row``), or if the first axis does not have one entry per row, the numbers come
    from torch's generator, as in ``torch.nn.Dropout``.

    Args:
        p: the probability that an entry, or a channel, is set to zero.
        channels: whether whole channels [B, channels, ...] are set to zero.
        number: the number of this layer in its network; each layer has numbers of its own.

    """

    def __init__(self, p: float, number: int, *, channels: bool = False) -> None:
        super().__init__()
        self.p, self.number, self.channels = p, number, channels
        self.draws: tuple[int, Tensor] | None = None  # the key, and the indices of the rows [B]
        self.calls = 0  # earlier calls in the same forward pass; each call has numbers of its own

    def extra_repr(self) -> str:
        """Return the layer's parameters as text."""
        return f"p={self.p}, channels={self.channels}"

    def forward(self, x: Tensor) -> Tensor:
        """Set entries or channels to zero, and scale the others by 1 / (1 - p); in evaluation mode return x."""
        if not self.training or not self.p:
            return x
        if self.p == 1:  # below, the gradient would be 0 / 0
            return 0.0 * x
        shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if self.channels else x.shape
        if self.draws is None or len(self.draws[1]) != len(x):
            lots = torch.rand(shape, device=x.device)
        else:
            key, rows = self.draws
            numbers = torch.arange(math.prod(shape[1:]), device=x.device)
            layer, call = (torch.tensor([number], device=x.device) for number in (self.number, self.calls))
            lots = uniform(key, layer, call, rows.to(x.device), numbers).view(shape)
            self.calls += 1
        return torch.where(lots >= self.p, x / (1 - self.p), 0.0)


def swap_dropout(module: nn.Module) -> nn.Module:
    """Replace the dropout layers of a network by ``RowDropout``, and return the network."""
    if type(module) in {*_ELEMENTS, *_CHANNELS}:
        module = nn.Sequential(module)
    swapped: dict[nn.Module, RowDropout] = {}
    # ``named_children`` would leave out the second name of a layer that is used twice
    for parent, name, layer in [(each, *child) for each in module.modules() for child in each._modules.items()]:  # noqa: SLF001
        if isinstance(layer, _DropoutNd) and type(layer) in {*_ELEMENTS, *_CHANNELS}:
            if layer not in swapped:
                made = RowDropout(layer.p, len(swapped), channels=type(layer) in _CHANNELS)
                swapped[layer] = made.train(layer.training)
            setattr(parent, name, swapped[layer])
    return module


@contextmanager
def draw_by_row(module: nn.Module, key: int, rows: Tensor) -> Iterator[None]:
    """Let the dropout layers of a network draw by row in a ``with`` block.

    Args:
        module: the network.
        key: the key of the numbers (see ``core.draws``).
        rows: [B] int64, the indices of the rows that the network gets in this block.

    """
    layers = [layer for layer in module.modules() if isinstance(layer, RowDropout)]
    for layer in layers:
        layer.draws, layer.calls = (key, rows), 0
    try:
        yield
    finally:
        for layer in layers:
            layer.draws = None


def any_length(module: nn.Module, *names: str) -> None:
    """Let ``load_state_dict`` accept any length for the module's buffers that are listed in ``names``."""

    def room(module: nn.Module, tensors: dict[str, Any], prefix: str, *_: Any) -> None:
        for name in names:
            if prefix + name in tensors:
                device = module.get_buffer(name).device
                setattr(module, name, torch.empty_like(tensors[prefix + name], device=device))

    module.register_load_state_dict_pre_hook(room)  # type: ignore[no-untyped-call]


class VectorMemory(nn.Module):
    """A memory of one vector per id, with the parties whose data the vector depends on; saved and loaded like weights.

    Ids are stored and found as the 64-bit BLAKE2b hash of their text.

    Args:
        width: M, the width of a vector.
        parties: K, the number of parties.

    """

    keys: Tensor
    vectors: Tensor
    took_part: Tensor

    def __init__(self, width: int, parties: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("vectors", torch.zeros(0, width))
        self.register_buffer("took_part", torch.zeros(0, parties, dtype=torch.bool))
        any_length(self, "keys", "vectors", "took_part")

    def remember(self, ids: Iterable[str], vectors: Tensor, took_part: Tensor) -> None:
        """Store vectors [n, M], one for each id; ``took_part`` [n, K] marks the parties whose data a vector uses.

        All vectors that were stored earlier are discarded.
        """
        keys, order = _keys(ids).sort()
        self.keys = keys.to(vectors.device)
        self.vectors, self.took_part = vectors[order].clone(), took_part[order].clone()

    def find(self, ids: Iterable[str]) -> Tensor:
        """Return, for each id, the index of its vector; -1 if the memory does not contain the id: [B] int64."""
        asked = _keys(ids).to(self.keys.device)
        if not len(self.keys):
            return torch.full_like(asked, -1)
        at = torch.searchsorted(self.keys, asked).clamp(max=len(self.keys) - 1)
        return torch.where(self.keys[at] == asked, at, -1)


def _keys(ids: Iterable[str]) -> Tensor:
    digests = b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in ids)
    return torch.from_numpy(np.frombuffer(digests, dtype="<i8").astype(np.int64))


class TooLargeError(Exception):
    """The tensors made in an ``AllocationLimit`` block have more numbers in total than the limit allows."""


class AllocationLimit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A ``with`` block that raises ``TooLargeError`` if it makes tensors of more than ``most`` numbers in total.

    Operations whose first argument is a size, such as ``torch.zeros``, are counted before they allocate. ``clone`` is
    counted after it has allocated. All other operations are not counted.

    >>> with AllocationLimit(10):
    ...     torch.zeros(3, 3).shape
    torch.Size([3, 3])
    >>> with AllocationLimit(10):
    ...     torch.zeros(10**15)
    Traceback (most recent call last):
    anyparty.networks.modules.TooLargeError: 1000000000000000 numbers, and 10 are allowed
    """

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most, self.made = most, 0

    @property
    def exceeded(self) -> bool:
        """True if the block requested more numbers than allowed, even if code in the block caught the error."""
        return self.made > self.most

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a tensor operation, and count the numbers of the tensor that it makes."""
        asked = 0
        if args and isinstance(args[0], list | tuple | torch.Size) and all(isinstance(size, int) for size in args[0]):
            asked = math.prod(args[0])  # the first argument of torch.zeros and similar functions is a size
            self._count(asked)
        made = func(*args, **(kwargs or {}))
        if not asked and isinstance(made, Tensor):
            self._count(made.numel() if func is torch.ops.aten.clone.default else 0)
        return made

    def _count(self, numbers: int) -> None:
        self.made += numbers
        if self.exceeded:
            raise TooLargeError(f"{self.made} numbers, and {self.most} are allowed")
