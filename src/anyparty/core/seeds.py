"""One root seed and many named random streams.

Every random choice has a stream of its own, selected by name. A new random choice in the program therefore never
changes the numbers of another choice. A run that resumes at epoch 7 draws the same numbers as an uninterrupted run.

    >>> Seeds(7).numpy("split").integers(100) == Seeds(7).numpy("split").integers(100)
    np.True_

The root is in the settings that all parties share, so that every party can compute all streams of the root. A party's
initial weights must not come from these streams, because other parties could then compute its rows from its first
embeddings. A party on its own machine therefore has a ``secret``. Its private draws (initial weights, dropout, views of
its rows) use the streams of ``seeds.own``:

    >>> secret = Seeds(7, bytes(32))
    >>> secret.number("split") == Seeds(7).number("split"), secret.own.number("encoder") == Seeds(7).number("encoder")
    (True, False)

``usual_torch`` makes training independent of the global settings of PyTorch in the user's program.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # other functions import torch when they need it, because the import takes seconds
    import torch as pytorch  # ``torch`` is also a method of the classes below
    from torch import Generator

_DRAWING = threading.RLock()  # held while a thread draws, because all threads share torch's generator
_WORDS = 624  # the number of 32-bit words in the state of the Mersenne Twister
_WORDS_AT = 24  # the offset in bytes of these words in torch's serialized state
_BYTES = 5056  # the size in bytes of torch's serialized state


@dataclass(frozen=True)
class Seeds:
    """All named random streams of a run; if a party's secret is given, also the party's private streams."""

    root: int
    secret: bytes = field(default=b"", repr=False)

    @property
    def own(self) -> Seeds:
        """The private random streams of the party; the shared streams if the party has no secret."""
        return _Own(self.root, self.secret) if self.secret else self

    def number(self, *name: str | int) -> int:
        """Return the 63-bit seed of the stream with this name."""
        return int.from_bytes(self.key(*name)[:8], "little") >> 1

    def key(self, *name: str | int) -> bytes:
        """Return 32 bytes of the stream with this name, for use as the key of a hash function."""
        return hashlib.sha256("/".join(map(str, (self.root, *name))).encode()).digest()

    def torch(self, *name: str | int) -> Generator:
        """Return a new torch generator (CPU) for the stream with this name."""
        from torch import Generator  # noqa: PLC0415

        return Generator().manual_seed(self.number(*name))

    def numpy(self, *name: str | int) -> np.random.Generator:
        """Return a new numpy generator for the stream with this name."""
        return np.random.default_rng(self.number(*name))

    @contextmanager
    def drawing(self, *name: str | int, device: pytorch.device | None = None) -> Iterator[None]:
        """Let torch modules (initial weights, dropout) use the stream with this name in a ``with`` block.

        The block must not contain an await. Torch's own generator is restored after the block. On the CPU, only one
        thread at a time can be in such a block; other threads wait.
        """
        import torch  # noqa: PLC0415

        if device is not None and device.type != "cpu":
            with torch.random.fork_rng([device], device_type=device.type):
                torch.manual_seed(self.number(*name))
                yield
            return
        with _DRAWING:
            before = torch.default_generator.get_state()  # much faster than torch.random.fork_rng
            torch.default_generator.set_state(self.torch(*name).get_state())
            try:
                yield
            finally:
                torch.default_generator.set_state(before)


class _Own(Seeds):
    """The random streams that depend on a party's secret of 32 bytes.

    The secret determines torch's whole generator state. A seed of torch's generator has only 32 bits, which could be
    guessed.
    """

    def numpy(self, *name: str | int) -> np.random.Generator:
        return np.random.default_rng(int.from_bytes(self.key(*name), "little"))

    def torch(self, *name: str | int) -> Generator:
        import torch  # noqa: PLC0415

        generator = super().torch(*name)  # starts at the first number of its state
        state = generator.get_state()
        if len(state) != _BYTES:
            raise RuntimeError(f"torch {torch.__version__} keeps its generator in {len(state)} bytes, not in {_BYTES}")
        words = np.frombuffer(hashlib.shake_256(self.key(*name)).digest(4 * _WORDS), dtype="<u4").astype("<u8")
        state[_WORDS_AT : _WORDS_AT + 8 * _WORDS] = torch.frombuffer(bytearray(words.tobytes()), dtype=torch.uint8)
        return generator.set_state(state)

    def key(self, *name: str | int) -> bytes:
        text = "/".join(map(str, (self.root, *name)))
        return hashlib.blake2b(text.encode(), digest_size=32, key=self.secret).digest()


@contextmanager
def usual_torch() -> Iterator[None]:
    """Use PyTorch's usual settings in a ``with`` block or a decorated function, and restore the caller's settings.

    Within the block, new tensors are float32 and on the CPU, and gradients are computed. The caller may have changed
    these settings with ``torch.set_default_dtype``, ``torch.set_default_device``, ``torch.no_grad()`` or
    ``torch.inference_mode()``, which would change or break training.
    """
    import torch  # noqa: PLC0415

    dtype = torch.get_default_dtype()
    with ExitStack() as stack:
        if dtype != torch.float32:
            torch.set_default_dtype(torch.float32)
            stack.callback(torch.set_default_dtype, dtype)
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(mode=False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        if torch.get_default_device() != torch.device("cpu"):
            stack.enter_context(torch.device("cpu"))  # only if necessary, because this slows down torch
        yield
