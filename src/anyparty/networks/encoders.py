"""Encoders of a party's own block, their decoders, and the registry of their names.

The encoders are a multilayer perceptron, an LSTM (Hochreiter, Schmidhuber 1997) for series, a ResNet for images, and a
user's own module. There are also a decoder of images, and autoencoders, which reconstruct their input from embeddings.

Notation  B rows, K parties, I inputs, H width of an embedding, D width of the first hidden layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import ceil, prod
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from anyparty.core.declared_types import as_declared
from anyparty.errors import ConfigError, blamed, nearest
from anyparty.networks.heads import ACTIVATIONS, StackedMLP
from anyparty.networks.modules import bear_single_rows, swap_dropout
from anyparty.networks.table_encoder import PiecewiseLinear, TableEncoder

Width = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class LSTM:
    """An LSTM on series of T steps with F features each, flattened step by step: [B, T * F] -> [B, outputs].

    Attributes:
        steps: T, the length of the series.
        hidden: the width of the state. The output layer reads the state of the last step.

    """

    steps: Width
    hidden: Width = 128

    def __post_init__(self) -> None:
        as_declared(self, LSTM, "lstm")

    def __call__(self, inputs: int, outputs: int) -> nn.Module:
        """Return a new network [B, inputs] -> [B, outputs].

        Raises:
            ConfigError: the block's width, ``inputs``, is not a multiple of the number of steps.
        """
        if inputs % self.steps:
            raise ConfigError(f"lstm: a block of width {inputs} does not hold {self.steps} steps of equal width")
        return _Series(self.steps, inputs // self.steps, self.hidden, outputs)


class _Series(nn.Module):
    def __init__(self, steps: int, features: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.split = nn.Unflatten(1, (steps, features))
        self.memory = nn.LSTM(features, hidden, batch_first=True)
        self.read = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        _, (last, _) = self.memory(self.split(x))
        read: Tensor = self.read(last[-1])
        return read


@dataclass(frozen=True, kw_only=True)
class ResNet:
    """A residual network on images, which are flattened in a party's block: [B, C * H * W] -> [B, outputs].

    Attributes:
        shape: channels, height, width.
        widths: the number of channels of each group of residual blocks. The first convolution has as many channels as
            the first group.
        depths: the number of residual blocks in each group; the default has the numbers of ResNet-18.

    """

    shape: tuple[Width, Width, Width]
    widths: tuple[Width, ...] = (64, 128, 256, 512)
    depths: tuple[Width, ...] = (2, 2, 2, 2)

    def __post_init__(self) -> None:
        as_declared(self, ResNet, "resnet")
        if not self.widths or len(self.widths) != len(self.depths):
            raise ConfigError(f"resnet: expected a width for every depth, got widths {self.widths} and depths "
                              f"{self.depths}")  # fmt: skip

    def __call__(self, inputs: int, outputs: int) -> nn.Module:
        """Return a new network [B, inputs] -> [B, outputs].

        Raises:
            ConfigError: the block's width, ``inputs``, is not the number of values of an image.
        """
        if inputs != prod(self.shape):
            raise ConfigError(
                f"resnet: images of shape {self.shape} have {prod(self.shape)} numbers, the block {inputs}"
            )
        before, stride = self.widths[0], 1
        layers: list[nn.Module] = [nn.Unflatten(1, self.shape), *_convolution(self.shape[0], before, 1), nn.ReLU()]
        for width, depth in zip(self.widths, self.depths, strict=True):
            for place in range(depth):
                layers.append(Residual(before, width, stride if place == 0 else 1))
                before = width
            stride = 2
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))


def _convolution(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)


class Residual(nn.Module):
    """A residual block: two 3 x 3 convolutions with a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *_convolution(inputs, outputs, stride), nn.ReLU(), *_convolution(outputs, outputs, 1)
        )
        same = inputs == outputs and stride == 1
        around = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.around = nn.Identity() if same else nn.Sequential(*around)

    def forward(self, x: Tensor) -> Tensor:
        """Add the convolutions' output to the skip connection: [B, C, H, W] -> [B, C', H', W']."""
        return nn.functional.relu(self.inner(x) + self.around(x))


@dataclass(frozen=True, kw_only=True)
class Deconvolution:
    """A decoder of images: latent vectors [B, D] -> [B, 2 C H W].

    The first half of the outputs are the flattened means of all pixels. The second half has one number per pixel, which
    the caller converts to a standard deviation.

    Attributes:
        shape: channels, height, width.
        widths: the number of channels before the first and before the second transposed convolution.

    """

    shape: tuple[int, int, int]
    widths: tuple[int, int] = (64, 32)

    def __call__(self, inputs: int, outputs: int) -> nn.Module:
        """Return a new network [B, inputs] -> [B, outputs].

        Raises:
            ConfigError: ``outputs`` is not twice the number of values of an image.
        """
        if outputs != 2 * prod(self.shape):
            raise ConfigError(
                f"decoder: images of shape {self.shape} have {prod(self.shape)} numbers, the block {outputs // 2}"
            )
        return _Up(self.shape, self.widths, inputs)


class _Up(nn.Module):
    def __init__(self, shape: tuple[int, int, int], widths: tuple[int, int], inputs: int) -> None:
        super().__init__()
        self.shape = shape
        start = (widths[0], ceil(shape[1] / 4), ceil(shape[2] / 4))
        self.layers = nn.Sequential(
            nn.Linear(inputs, prod(start)),
            nn.ReLU(),
            nn.Unflatten(1, start),
            nn.ConvTranspose2d(widths[0], widths[1], 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(widths[1], 2 * shape[0], 4, 2, 1),
        )

    def forward(self, z: Tensor) -> Tensor:
        _, height, width = self.shape
        image: Tensor = self.layers(z)[:, :, :height, :width]  # [B, 2 C, H, W]
        mean, raw = image.chunk(2, dim=1)
        return torch.cat([mean.flatten(1), raw.flatten(1)], dim=1)


Factory = Callable[[int, int], nn.Module]
"""A factory of encoders: (width of the prepared block, H) -> module that maps [B, width] to [B, H]."""


@dataclass(frozen=True, kw_only=True)
class MLP:
    """A multilayer perceptron: inputs -> hidden ... -> H. An activation follows every layer except the last one."""

    hidden: tuple[Width, ...] = (64,)
    activation: str = "relu"
    dropout: Share = 0.0
    norm: bool = False

    def __post_init__(self) -> None:
        as_declared(self, MLP, "encoder")
        if self.activation not in ACTIVATIONS:
            raise ConfigError(f"encoder: no activation {self.activation!r}{nearest(self.activation, ACTIVATIONS)}")

    def __call__(self, inputs: int, outputs: int) -> nn.Module:
        """Return a new network [B, inputs] -> [B, outputs]."""
        layers: list[nn.Module] = []
        for width in self.hidden:
            layers.append(nn.Linear(inputs, width))
            if self.norm:
                layers.append(nn.LayerNorm(width))
            layers.append(ACTIVATIONS[self.activation]())
            if self.dropout:
                layers.append(nn.Dropout(self.dropout))
            inputs = width
        return nn.Sequential(*layers, nn.Linear(inputs, outputs))


class Copies(nn.Module):
    """M encoders of one block: [B, inputs] -> [B, M, H].

    In the method Combinatorial, a party has one encoder for every set of parties that contains the party.
    """

    def __init__(self, encoder: Factory, copies: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.copies = copies
        plain = isinstance(encoder, MLP) and not (encoder.norm or encoder.dropout)
        if plain:
            assert isinstance(encoder, MLP)
            self.stack: nn.Module = StackedMLP(copies, (inputs, *encoder.hidden, outputs), encoder.activation)
        else:
            self.stack = nn.ModuleList(encoder(inputs, outputs) for _ in range(copies))

    def forward(self, x: Tensor) -> Tensor:
        """Encode the same rows with every copy: [B, inputs] -> [B, M, H]."""
        if isinstance(self.stack, nn.ModuleList):
            return torch.stack([module(x) for module in self.stack], dim=1)
        return self.stack(x.unsqueeze(1).expand(-1, self.copies, -1))  # type: ignore[no-any-return]


def _guarded(module: nn.Module, width: int, outputs: int, whose: str, holds: str) -> nn.Module:
    """Wrap a user's module, so that it gets a copy of its input, and the width of its output is checked.

    ``width`` and ``outputs`` are the numbers of inputs and outputs per row. ``whose`` begins an error message. If the
    expected output is not an embedding, ``holds`` describes this output in the message.
    """

    def look(_: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        wanted = [*given[0].shape[:-1], outputs]
        if not isinstance(made, Tensor):
            raise ConfigError(f"{whose}its encoder should give a tensor {wanted}, it gives a {type(made).__name__}")
        if list(made.shape) != wanted:
            raise ConfigError(f"{whose}its encoder should give {wanted}{holds and f', {holds}'}, it gives "
                              f"{list(made.shape)}")  # fmt: skip
        if made.dtype != given[0].dtype:
            raise ConfigError(f"{whose}its encoder should give {given[0].dtype}, it gives {made.dtype}")

    module.float()
    module.register_forward_pre_hook(lambda _, given: (given[0].clone(), *given[1:]))
    module.register_forward_hook(look)
    _try(module, width, whose)
    return module


def _try(module: nn.Module, width: int, whose: str) -> None:
    """Raise an error if a module fails on a batch of two rows or of one row, or if its output has no gradient.

    Torch's lazy layers infer their widths in these trials.
    """
    training = {part: part.training for part in module.modules()}
    module.eval()
    for rows in (2, 1):
        try:
            with torch.random.fork_rng(devices=[]):  # the trials must not change torch's global random state
                made = module(torch.zeros(rows, width))
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{whose}its encoder fails on [{rows}, {width}] zeros, on which it is tried on the CPU "
                              f"before it is trained: {blamed(error)}") from error  # fmt: skip
        if not made.requires_grad and any(parameter.requires_grad for parameter in module.parameters()):
            raise ConfigError(f"{whose}its encoder gives no gradient, so that it could not be trained: detach nothing "
                              f"in its forward, and leave torch.no_grad() out")  # fmt: skip
    for part, as_before in training.items():
        part.training = as_before


def build(
    encoder: Factory, inputs: int, outputs: int, copies: int = 1, *, party: str = "", holds: str = "",
    sample: Tensor | None = None,
) -> nn.Module:  # fmt: skip
    """Return a party's encoder [B, inputs] -> [B, H], or [B, M, H] for M copies.

    The encoder's batch normalisation accepts batches of a single row (see ``bear_single_rows``). A user's own module
    computes in single precision. The module gets a copy of its input, and may change this copy. Error messages contain
    the name in ``party``. If the expected output is not an embedding, ``holds`` describes it in these messages.
    ``sample`` [n, inputs] are the party's prepared training rows, to which the bins of a ``TableEncoder`` are fitted.

    Raises:
        ConfigError: the user's factory is a module, fails, does not accept two widths, or does not return a module; or
            the returned module fails or gives no gradient. The message includes the failing line of the user's code.
    """
    if isinstance(encoder, nn.Module):
        raise ConfigError(f"party {party!r}: its encoder should be a function of (inputs, outputs) that makes one, "
                          f"not the module itself")  # fmt: skip

    def checked(width: int, embedding: int) -> nn.Module:
        whose = f"party {party!r}: " if party else ""
        try:
            module = encoder(width, embedding)
            if not isinstance(module, nn.Module):
                raise ConfigError(f"its encoder must make a torch.nn.Module, got {type(module).__name__}")
            module = swap_dropout(bear_single_rows(module))
        except ConfigError as error:
            raise ConfigError(whose + str(error).removeprefix(whose)) from None
        except Exception as error:
            raise ConfigError(f"{whose}its encoder cannot be made of (inputs, outputs) = {(width, embedding)}: "
                              f"{blamed(error)}") from error  # fmt: skip
        return module if isinstance(encoder, MLP | TableEncoder) else _guarded(module, width, embedding, whose, holds)

    own = checked(inputs, outputs) if copies == 1 else None
    made = own or Copies(encoder if isinstance(encoder, MLP) else checked, copies, inputs, outputs)
    if sample is not None:
        for layer in made.modules():
            if isinstance(layer, PiecewiseLinear):
                layer.fit(sample)
    return made


ENCODERS: dict[str, type[MLP | ResNet | LSTM | TableEncoder]] = {
    "mlp": MLP, "resnet": ResNet, "lstm": LSTM, "table": TableEncoder,
}  # fmt: skip


def describe(encoder: Factory) -> dict[str, Any] | None:
    """Return an encoder's kind and settings as plain data; ``None`` for a user's own encoder.

    >>> describe(MLP(hidden=(8,)))["hidden"]
    (8,)
    """
    name = next((name for name, kind in ENCODERS.items() if isinstance(encoder, kind)), None)
    return None if name is None else {"kind": name, **asdict(encoder)}  # type: ignore[call-overload]


def restore(description: Mapping[str, Any]) -> Factory:
    """Return the described encoder; ``description`` is a result of ``describe``, perhaps converted to JSON and back."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in description.items()
    }
    return ENCODERS[values.pop("kind")](**values)


class Autoencoder(nn.Module):
    """An encoder [B, I] -> [B, H] and a decoder [B, H] -> [B, I].

    The decoder of a multilayer perceptron has its hidden layers in reverse order. The decoder of another network has
    one hidden layer of width H.

    Args:
        encoder: factory of the encoder.
        inputs: I, the width of the block.
        outputs: H, the width of an embedding.
        activation: the name of the activation that is applied to the embedding; if empty, no activation is applied.
        party: the name of the encoder's party, for error messages.

    """

    def __init__(self, encoder: Factory, inputs: int, outputs: int, *, activation: str = "", party: str = "") -> None:
        super().__init__()
        mirror = MLP(hidden=(outputs,))
        if isinstance(encoder, MLP):
            mirror = MLP(hidden=encoder.hidden[::-1], activation=encoder.activation)
        self.encoder = build(encoder, inputs, outputs, party=party)
        self.last = ACTIVATIONS[activation]() if activation else nn.Identity()
        self.decoder = mirror(outputs, inputs)

    def encode(self, x: Tensor) -> Tensor:
        """Return the embedding: [B, I] -> [B, H].

        Raises:
            ConfigError: the output of a user's own encoder has a wrong shape.
        """
        return self.last(self.encoder(x))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embedding [B, H] and its reconstruction [B, I]."""
        z = self.encode(x)
        return z, self.decoder(z)


class JointAutoencoder(nn.Module):
    """An autoencoder of the concatenated embeddings of K parties; a row may lack some of the embeddings.

    The first layer of concatenated embeddings is a sum over parties: W z = sum_k W_k z_k. If party k lacks a row, a
    trained vector a_k [D] replaces the party's term, so that absence is not mistaken for an embedding of zeros. With
    two parties there are no vectors a_k, because every row then has both embeddings.

    Args:
        widths: the widths of the parties' embeddings, in order.
        hidden: widths of the encoder's hidden layers; the decoder has them in reverse order.
        outputs: H, the width of the joint embedding.
        activation: the activation after every layer except the decoder's last layer.

    """

    owner: Tensor

    def __init__(self, widths: Sequence[int], hidden: Sequence[int], outputs: int, activation: str) -> None:
        super().__init__()
        layers = [*hidden, outputs]
        self.register_buffer("owner", torch.repeat_interleave(torch.tensor(widths)), persistent=False)
        self.first = nn.Linear(sum(widths), layers[0])
        self.absent = nn.Parameter(torch.zeros(len(widths), layers[0])) if len(widths) > 2 else None
        rest: list[nn.Module] = [ACTIVATIONS[activation]()]
        for before, after in pairwise(layers):
            rest += [nn.Linear(before, after), ACTIVATIONS[activation]()]
        self.rest = nn.Sequential(*rest)
        self.decoder = MLP(hidden=tuple(hidden)[::-1], activation=activation)(outputs, sum(widths))

    def encode(self, z: Tensor, observed: Tensor) -> Tensor:
        """Return the joint embedding [B, H] of local embeddings z [B, sum of widths].

        ``observed`` [B, K] marks the parties that have each row; z is zero for all other parties.
        """
        u: Tensor = self.first(z)
        if self.absent is not None:
            u = u + (~observed).to(z.dtype) @ self.absent
        joint: Tensor = self.rest(u)
        return joint

    def forward(self, z: Tensor, observed: Tensor) -> Tensor:
        """Return the mean squared reconstruction error of each row, over those embeddings that the row has: [B]."""
        present = observed[:, self.owner].to(z.dtype)
        off = (z - self.decoder(self.encode(z, observed))) ** 2
        mean: Tensor = (off * present).sum(dim=1) / present.sum(dim=1)
        return mean
