"""Bounds on the numbers in messages: one far beyond what its sender has sent before is refused.

NaN and infinity are refused elsewhere; 1e30 is a number, and ruins a model all the same.  In training the receiver
keeps the greatest absolute value of each tensor of each message, by sender, tag and tensor.  The bound is

    first message            MOST
    up to the eighth         FACTOR x the largest so far
    later                    FACTOR x the median so far, or the highest that this median has been

and at least LEAST, at most MOST.  Outside of training steps it is MOST: there a number changes an answer and no weight,
and one odd row must not end a run.  FACTOR and MOST are squared for numbers that grow with the square of a party's own
(``Expect.squares``), as log-densities do: one cell far from the others makes them large in an honest run.

The median is that of all messages, so a sender that raises its numbers step by step has to send more large messages
than small ones first.  Gradients that shrink in training leave the bound where it was.  The measurements are in
``docs/decisions/0015-bounds-on-messages.md``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from anyparty.terms import Expect, Tensors

FACTOR = 1000.0
LEAST = 1.0  # smaller numbers ruin nothing
MOST = 1e8  # larger ones are never taken
FEW = 8  # messages before their median counts
PER_DOUBLING = 4  # bins of the histogram that gives the median


@dataclass
class Magnitudes:
    """The sizes of one tensor in the messages of one sender and tag."""

    factor: float = FACTOR
    most: float = MOST
    count: int = 0
    largest: float = 0.0
    median: float = 0.0
    _bins: Counter[int] = field(default_factory=Counter)

    @property
    def bound(self) -> float:
        """The largest absolute value that the next message may hold."""
        usual = self.largest if self.count < FEW else self.median
        return min(self.most, max(LEAST, self.factor * usual)) if self.count else self.most

    def add(self, value: float) -> None:
        """Note the greatest absolute value of a message; zero says nothing of its sender's numbers."""
        if value == 0:
            return
        self.count += 1
        self.largest = max(self.largest, value)
        self._bins[math.floor(PER_DOUBLING * math.log2(value))] += 1
        if self.count >= FEW:
            self.median = max(self.median, self._middle())

    def _middle(self) -> float:
        """Return the median so far, to a tenth."""
        seen = 0
        for place in sorted(self._bins):
            seen += self._bins[place]
            if 2 * seen >= self.count:
                return float(2 ** ((place + 0.5) / PER_DOUBLING))
        raise AssertionError


@dataclass(frozen=True)
class Extreme:
    """A tensor beyond its bound: its name, its greatest absolute value, and the bound."""

    name: str
    value: float
    bound: float

    def __str__(self) -> str:
        """Return the words for an error's sentence."""
        return f"{self.name!r} holds {self.value:.3g}, the bound for messages of this party is {self.bound:.3g}"


@dataclass
class Bounds:
    """What one party has received so far, by sender, tag and tensor."""

    _sizes: dict[tuple[str, str, str], Magnitudes] = field(default_factory=dict)

    def check(
        self, frm: str, tag: str, tensors: Tensors, expect: Mapping[str, Expect], *, training: bool
    ) -> Extreme | None:
        """Return the first tensor that is beyond its bound; note the others while ``training``."""
        for name, tensor in tensors.items():
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            least, most = torch.stack(tensor.detach().aminmax()).tolist()
            value = max(-least, most)
            power = 2 if expect[name].squares else 1
            sizes = self._sizes.setdefault((frm, tag, name), Magnitudes(FACTOR**power, MOST**power))
            bound = sizes.bound if training else MOST**power
            if not value <= bound:
                return Extreme(name, value, bound)
            if training:
                sizes.add(value)
        return None
