"""Autoencoders: an encoder, and a decoder that reconstructs the encoder's input from its embedding.

Notation  B rows, K parties, I inputs, H width of an embedding, D width of the first hidden layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from anyparty.networks.heads import ACTIVATIONS
from anyparty.networks.mlp import MLP, Factory, build


class Autoencoder(nn.Module):
    """An encoder [B, I] -> [B, H] and a decoder [B, H] -> [B, I].

    The decoder of a multilayer perceptron has its hidden layers in reverse order. The decoder of another network has
    one hidden layer of width H.

    Args:
        encoder: factory of the encoder.
        inputs: I.
        outputs: H.
        activation: the activation that is applied to the embedding; no activation if empty.
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
            ConfigError: a user's own encoder returns another shape.
        """
        return self.last(self.encoder(x))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embedding [B, H] and its reconstruction [B, I]."""
        z = self.encode(x)
        return z, self.decoder(z)


class JointAutoencoder(nn.Module):
    """An autoencoder of the concatenated embeddings of K parties; a row may lack some of the embeddings.

    For concatenated embeddings, the first layer is a sum over parties: W z = sum_k W_k z_k. If row n lacks party k, the
    term of party k is replaced by a trained vector a_k [D], so that absence is not mistaken for an embedding of zeros.
    If no party is absent, the network is the plain autoencoder of the concatenation. With two parties it always is.

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
        """Return the joint embedding [B, H] of z [B, sum of widths]; z is zero for parties not ``observed`` [B, K]."""
        u: Tensor = self.first(z)
        if self.absent is not None:
            u = u + (~observed).to(z.dtype) @ self.absent
        joint: Tensor = self.rest(u)
        return joint

    def forward(self, z: Tensor, observed: Tensor) -> Tensor:
        """Return the mean squared error of each row over the embeddings that the row has: [B]."""
        there = observed[:, self.owner].to(z.dtype)
        off = (z - self.decoder(self.encode(z, observed))) ** 2
        mean: Tensor = (off * there).sum(dim=1) / there.sum(dim=1)
        return mean
