"""Bounds on the numbers in messages: reject numbers far beyond the sender's earlier ones.

NaN and infinity are rejected elsewhere, but a finite number such as 1e30 can also ruin a model.  In training, the
receiver records the maximum absolute value of each received tensor, by sender, tag and tensor name.  The bound for the
next tensor with the same sender, tag and tensor name is:

    first message            MOST
    second to eighth         FACTOR x the largest recorded value
    later                    FACTOR x the largest value that the median of the recorded values has had

The bound is never below LEAST or above MOST.  Outside of training steps the bound is MOST: numbers there change an
answer but no weight, and one unusual row must not end a run.  FACTOR and MOST are squared for numbers that grow with
the square of the sender's data (``TensorSpec.squares``), such as log-densities, because one outlying cell makes these
numbers large in an honest run.

The median is taken over all messages, so a sender that raises its numbers gradually must first send more large messages
than small ones.  Gradients that shrink during training do not lower the bound.  The measurements are in
``docs/decisions/0015-bounds-on-messages.md``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from anyparty.core.types import Tensors, TensorSpec

FACTOR = 1000.0
LEAST = 1.0  # smaller numbers do no harm
MOST = 1e8  # larger numbers are always rejected
FEW = 8  # the number of messages before the median is used
PER_DOUBLING = 4  # histogram bins for each factor of two, to compute the median


@dataclass
class Magnitudes:
    """Maximum absolute values of one tensor in the messages of one sender and tag."""

    factor: float = FACTOR
    most: float = MOST
    count: int = 0
    largest: float = 0.0
    median: float = 0.0
    _bins: Counter[int] = field(default_factory=Counter)

    @property
    def bound(self) -> float:
        """The maximum absolute value allowed in the next message."""
        usual = self.largest if self.count < FEW else self.median
        return min(self.most, max(LEAST, self.factor * usual)) if self.count else self.most

    def add(self, value: float) -> None:
        """Record the maximum absolute value of a message, unless it is zero."""
        if value == 0:
            return
        self.count += 1
        self.largest = max(self.largest, value)
        self._bins[math.floor(PER_DOUBLING * math.log2(value))] += 1
        if self.count >= FEW:
            self.median = max(self.median, self._middle())

    def _middle(self) -> float:
        """Return the median of the recorded values, with a relative error of about 10 %."""
        seen = 0
        for place in sorted(self._bins):
            seen += self._bins[place]
            if 2 * seen >= self.count:
                return float(2 ** ((place + 0.5) / PER_DOUBLING))
        raise AssertionError


@dataclass(frozen=True)
class ExtremeValue:
    """A tensor beyond its bound: its name, its maximum absolute value, and the bound."""

    name: str
    value: float
    bound: float

    def __str__(self) -> str:
        """Describe the violation for an error message."""
        return f"{self.name!r} holds {self.value:.3g}, the bound for messages of this party is {self.bound:.3g}"


@dataclass
class Bounds:
    """Magnitudes of the tensors that one party has received, by sender, tag and tensor name."""

    _sizes: dict[tuple[str, str, str], Magnitudes] = field(default_factory=dict)

    def check(
        self, frm: str, tag: str, tensors: Tensors, expect: Mapping[str, TensorSpec], *, training: bool
    ) -> ExtremeValue | None:
        """Return the first tensor beyond its bound, or None; if ``training``, record the tensors before it."""
        for name, tensor in tensors.items():
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            least, most = torch.stack(tensor.detach().aminmax()).tolist()
            value = max(-least, most)
            power = 2 if expect[name].squares else 1
            sizes = self._sizes.setdefault((frm, tag, name), Magnitudes(FACTOR**power, MOST**power))
            bound = sizes.bound if training else MOST**power
            if not value <= bound:
                return ExtremeValue(name, value, bound)
            if training:
                sizes.add(value)
        return None
