"""Limit how much memory a block of code may allocate, so that a small file cannot request a huge network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class TooLargeError(Exception):
    """The block requested more numbers than the limit allows."""


class AllocationLimit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raise ``TooLargeError`` if a block makes tensors of more than ``most`` numbers in total.

    An operation whose first argument is the size is counted, and stopped, before it allocates. A clone is counted after
    it was made. Other operations are not counted.

    >>> with AllocationLimit(10):
    ...     torch.zeros(3, 3).shape
    torch.Size([3, 3])
    >>> with AllocationLimit(10):
    ...     torch.zeros(10**15)
    Traceback (most recent call last):
    anyparty.networks.allocation.TooLargeError: 1000000000000000 numbers, and 10 are allowed
    """

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most, self.made = most, 0

    @property
    def exceeded(self) -> bool:
        """True if the block requested more numbers than allowed, even if it caught the error."""
        return self.made > self.most

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count the numbers that an operation makes."""
        asked = 0
        if args and isinstance(args[0], list | tuple | torch.Size) and all(isinstance(size, int) for size in args[0]):
            asked = math.prod(args[0])  # the size is the first argument of empty, zeros, ones, full, rand and randn
            self._count(asked)
        made = func(*args, **(kwargs or {}))
        if not asked and isinstance(made, Tensor):
            self._count(made.numel() if func is torch.ops.aten.clone.default else 0)
        return made

    def _count(self, numbers: int) -> None:
        self.made += numbers
        if self.exceeded:
            raise TooLargeError(f"{self.made} numbers, and {self.most} are allowed")
