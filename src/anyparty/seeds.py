"""One root seed, many named streams.

Every random choice asks for a stream by name, so that adding one choice never moves another, and a run that
resumes at epoch 7 draws what the uninterrupted run drew there.

    >>> Seeds(7).numpy("split").integers(100) == Seeds(7).numpy("split").integers(100)
    np.True_

The root stands in the settings that all parties share, so whoever knows them knows every stream: also a party's first
weights, with which its rows could be computed from its first embeddings.  A party at home therefore has a ``secret``,
and what is its own alone (first weights, dropout, views of its rows) comes from the streams of ``seeds.own``:

    >>> secret = Seeds(7, bytes(32))
    >>> secret.number("split") == Seeds(7).number("split"), secret.own.number("encoder") == Seeds(7).number("encoder")
    (True, False)
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Generator

_Device = torch.device  # below, ``torch`` is a method
_DRAWING = threading.RLock()  # torch has one stream for all threads; the prediction service computes in two
_WORDS = 624  # of the Mersenne Twister's state
_WORDS_AT = 24  # in torch's form of it, a word in eight bytes; behind the first seed, what is left and what is next
_BYTES = 5056  # of that form


@dataclass(frozen=True)
class Seeds:
    """The root of all named random streams of a run; with a party's secret, also of those that nobody else can draw."""

    root: int
    secret: bytes = field(default=b"", repr=False)

    @property
    def own(self) -> Seeds:
        """The streams of the party itself: those of the root where it keeps no secret."""
        return _Own(self.root, self.secret) if self.secret else self

    def number(self, *name: str | int) -> int:
        """Return the 63-bit seed of the stream ``name``."""
        return int.from_bytes(self._digest(*name)[:8], "little") >> 1

    def torch(self, *name: str | int) -> Generator:
        """Return a fresh torch generator (CPU) for the stream ``name``."""
        return torch.Generator().manual_seed(self.number(*name))

    def numpy(self, *name: str | int) -> np.random.Generator:
        """Return a fresh numpy generator for the stream ``name``."""
        return np.random.default_rng(self.number(*name))

    @contextmanager
    def drawing(self, *name: str | int, device: _Device | None = None) -> Iterator[None]:
        """Let modules that draw by themselves (first weights, dropout) draw from the stream ``name``.

        Never around an await.  Torch's own stream goes on as if nothing had been drawn.  One thread at a time.
        """
        if device is not None and device.type != "cpu":
            with torch.random.fork_rng([device], device_type=device.type):
                torch.manual_seed(self.number(*name))
                yield
            return
        with _DRAWING:
            before = torch.default_generator.get_state()  # as fork_rng, in a fortieth of the time
            self._begin(torch.default_generator, *name)
            try:
                yield
            finally:
                torch.default_generator.set_state(before)

    def _begin(self, generator: Generator, *name: str | int) -> None:
        generator.manual_seed(self.number(*name))

    def _digest(self, *name: str | int) -> bytes:
        return hashlib.sha256(self._text(*name)).digest()

    def _text(self, *name: str | int) -> bytes:
        return "/".join(str(part) for part in (self.root, *name)).encode()


class _Own(Seeds):
    """Streams of a secret of 32 bytes: torch's seed has 32 bits on a CPU, which can all be tried, its state 19,937."""

    def torch(self, *name: str | int) -> Generator:
        generator = Generator()
        self._begin(generator, *name)
        return generator

    def numpy(self, *name: str | int) -> np.random.Generator:
        return np.random.default_rng(int.from_bytes(self._digest(*name), "little"))

    def _begin(self, generator: Generator, *name: str | int) -> None:
        generator.manual_seed(self.number(*name))  # whose state says that all words are to be used
        state = generator.get_state()
        if len(state) != _BYTES:
            raise RuntimeError(f"torch {torch.__version__} keeps its generator in {len(state)} bytes, not in {_BYTES}")
        words = np.frombuffer(hashlib.shake_256(self._digest(*name)).digest(4 * _WORDS), dtype="<u4").astype("<u8")
        state[_WORDS_AT : _WORDS_AT + 8 * _WORDS] = torch.frombuffer(bytearray(words.tobytes()), dtype=torch.uint8)
        generator.set_state(state)

    def _digest(self, *name: str | int) -> bytes:
        return hashlib.blake2b(self._text(*name), digest_size=32, key=self.secret).digest()
