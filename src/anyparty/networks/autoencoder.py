"""Autoencoders: an encoder, and a decoder that brings its embedding back to what it was given.

Letters   B rows, K parties, I inputs, H width of an embedding, D width of the first hidden layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from anyparty.networks.heads import ACTIVATIONS
from anyparty.networks.mlp import MLP, Factory, build


class Autoencoder(nn.Module):
    """An encoder [B, I] -> [B, H] and its mirror image [B, H] -> [B, I].

    Where the encoder is a multilayer perceptron, the decoder has its hidden layers in inverse order; where it is a
    network of another kind, one hidden layer of width H.

    Args:
        encoder: what makes the encoder.
        inputs: I.
        outputs: H.
        activation: applied to the embedding too; none if empty.
        party: whose it is, for errors.

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
            ConfigError: a user's own encoder gives another shape.
        """
        return self.last(self.encoder(x))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embedding [B, H] and what the decoder makes of it [B, I]."""
        z = self.encode(x)
        return z, self.decoder(z)


class JointAutoencoder(nn.Module):
    """An autoencoder over the embeddings of K parties side by side, of which a row may lack some.

    Side by side, the first layer is a sum over parties: W z = sum_k W_k z_k.  Where row n lacks party k, its term is
    left out and a vector a_k of the network's own [D] stands in, so that absence is not taken for an embedding of
    zeros.  With no party absent, and always with two, it is the plain autoencoder over the concatenation.

    Args:
        widths: of the parties' embeddings, in order.
        hidden: widths of the encoder's hidden layers; the decoder has them in inverse order.
        outputs: H, the width of the joint embedding.
        activation: after every layer but the decoder's last.

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
        """Return the joint embedding [B, H] of z [B, sum of widths], zero where observed [B, K] is not."""
        u: Tensor = self.first(z)
        if self.absent is not None:
            u = u + (~observed).to(z.dtype) @ self.absent
        joint: Tensor = self.rest(u)
        return joint

    def forward(self, z: Tensor, observed: Tensor) -> Tensor:
        """Return each row's mean squared error over the embeddings that it has: [B]."""
        there = observed[:, self.owner].to(z.dtype)
        off = (z - self.decoder(self.encode(z, observed))) ** 2
        mean: Tensor = (off * there).sum(dim=1) / there.sum(dim=1)
        return mean
