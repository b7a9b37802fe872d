"""FALSE-VFL's networks and random numbers: one party's feature side, the active party's label side (figures 1 and 3).

The functions depend only on tensors: they use no channel and no optimizer, and random numbers are passed as noise.

Notation  B rows, B_k those of them that party k has, L importance samples, K parties, D width of z, T width of h,
          F columns of a party, C outputs. The table of symbols has the name in the paper, then the name in this file.
Symbols   x^k    x           a party's block                                             [B_k, F];
          z      z           the latent vector that generates blocks and label           [L, B, D];
          h      top         the top latent vector, h ~ N(0, I)                          [L, B, T];
          q_phi_k(x^k)       mean and variance of z, given party k's block alone         [B_k, 2 D].
Missing   MAR (FALSE-VFL-I): whether a party has a row may depend on observed blocks, but not on missing blocks.
          MNAR (FALSE-VFL-II): it may also depend on the party's block itself, observed or not.

The Gaussians have diagonal covariances (Kingma, Welling 2014). Their combination over parties, ``aggregate``, is that
of FALSE-VFL, equation (1) and appendix B.

The active party draws the samples of z. Every row has its own random numbers. Numbers common to all rows would give all
rows the same sampling error, which a mean over rows would not remove. A row's numbers are independent of each other:
they are neither pairs of opposite sign, nor balanced vectors as the function ``balanced`` returns. With balanced
numbers, a party that gets a row's samples could compute the posterior's mean, which may be another party's embedding of
the row (docs/decisions/0014).

Under MNAR, a party draws samples of its own block for rows that it does not have. The random numbers of these samples
are common to all rows, and balanced. The party does not know these rows' ids, and sends no sample.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from anyparty.core.seeds import Seeds
from anyparty.core.types import Task
from anyparty.methods.method import State
from anyparty.networks.encoders import MLP, Deconvolution, Factory, ResNet
from anyparty.networks.objective import answers, losses

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian N(mean, diag std^2) over vectors: mean and std [..., D]."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, outputs: Tensor, floor: float) -> Gaussian:
        """Convert a network's outputs [..., 2 D] to a Gaussian over [..., D].

        The first half is the mean. The standard deviation is softplus of the second half, plus ``floor``.
        """
        mean, raw = outputs.chunk(2, dim=-1)
        return cls(mean, functional.softplus(raw) + floor)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density of x [..., D] -> [...]; leading dimensions are broadcast.

        >>> Gaussian(torch.zeros(2), torch.ones(2)).log_prob(torch.zeros(2))  # log 1 / (2 pi)
        tensor(-1.8379)
        """
        away = (x - self.mean) / self.std
        return -(0.5 * away.square() + self.std.log()).sum(dim=-1) - x.shape[-1] * HALF_LOG_2PI

    def at(self, noise: Tensor) -> Tensor:
        """Return mean + std * noise, which is a sample if ``noise`` [..., D] is standard normal."""
        return self.mean + self.std * noise


class LogProb(torch.autograd.Function):
    """The log-density of x under ``Gaussian.of(outputs, floor)``: outputs [..., 2 D], x [..., D] -> [...].

    There is no gradient with respect to x.

    If a mask ``known`` [..., D] is given, only the known numbers of x count. Unknown numbers may have any finite value.

    The gradient is computed here and not by autograd, because these tensors are as large as a decoder's outputs.
    ``forward`` stores only the gradient, in one tensor of the outputs' shape; autograd would store six tensors.
        a = (x - mean) / std        d/d mean = a / std      d/d raw = (a^2 - 1) / std * (1 - exp(floor - std))
    """

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, x: Tensor, floor: float, known: Tensor | None = None) -> Tensor:
        """Return the log-density [...] of x, and store its gradient with respect to the outputs for ``backward``."""
        mean, raw = outputs.chunk(2, dim=-1)
        std = functional.softplus(raw).add_(floor)
        precise = std.reciprocal()
        away = (x - mean).mul_(precise)
        square = away.square()
        each = (0.5 * square).add_(std.log())
        count = x.shape[-1] if known is None else known.sum(dim=-1, dtype=x.dtype)
        if known is not None:
            each.mul_(known)
        found: Tensor = each.sum(dim=-1).neg_() - count * HALF_LOG_2PI
        if ctx.needs_input_grad[0]:
            slope = (floor - std).expm1_().neg_()  # derivative of softplus: sigmoid(raw) = 1 - exp(-softplus(raw))
            if known is not None:
                away.mul_(known)
                slope.mul_(known)
            by_raw = square.sub_(1).mul_(slope).mul_(precise)
            ctx.save_for_backward(torch.cat([away.mul_(precise), by_raw], dim=-1))
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient with respect to the network's outputs, and ``None`` for all other inputs."""
        (by_outputs,) = ctx.saved_tensors
        return gradients[0].unsqueeze(-1) * by_outputs, None, None, None


def standard(x: Tensor) -> Tensor:
    """Return the log-density of x [..., D] under N(0, I) -> [...]."""
    return -0.5 * x.square().sum(dim=-1) - x.shape[-1] * HALF_LOG_2PI


def aggregate(mean: Tensor, variance: Tensor, observed: Tensor) -> Gaussian:
    """Return the Gaussian q(z | x^O) of FALSE-VFL's equation (1).

    The mean is the average of the observed parties' means. The precision, which is 1 / variance, is the sum of the
    observed parties' precisions.

    Args:
        mean: [B, K, D], any value if not observed.
        variance: [B, K, D], any value if not observed.
        observed: [B, K] bool.

    Returns:
        A Gaussian over [B, D]; N(0, I) for a row that no party has.

    >>> one = torch.ones(1, 1, 1)
    >>> both = aggregate(torch.cat([one, 3 * one], 1), torch.cat([one, one / 3], 1), torch.tensor([[True, True]]))
    >>> both.mean.item(), both.std.square().item()  # the precisions 1 and 3 add up to 4
    (2.0, 0.25)

    """
    seen = observed.unsqueeze(2)
    count = observed.sum(dim=1, keepdim=True)
    center = torch.where(seen, mean, 0.0).sum(dim=1) / count.clamp(min=1)
    precision = torch.where(seen, 1 / torch.where(seen, variance, 1.0), 0.0).sum(dim=1)
    return Gaussian(center, torch.where(count > 0, precision, 1.0).rsqrt())


LABEL_SIDE = ("global_encoder", "global_decoder", "discriminator")


@dataclass(frozen=True, kw_only=True)
class FeatureNetworks:
    """The networks of one party's feature side.

    Attributes:
        encoder: q_phi_k, [B, F] -> [B, 2 D].
        decoder: p_theta_k(x^k | z), [..., D] -> [..., 2 F].
        indicator: pi_xi_k, the probability, as a logit, that the party has the row, [..., F] -> [..., 1]; ``None`` in
            FALSE-VFL-I, which assumes MAR.
        floor: lower bound of all standard deviations.

    """

    encoder: nn.Module
    decoder: nn.Module
    indicator: nn.Module | None
    floor: float

    def encode(self, x: Tensor) -> Tensor:
        """Return mean and variance of z side by side: [B, F] -> [B, 2 D]."""
        view = Gaussian.of(self.encoder(x), self.floor)
        return torch.cat([view.mean, view.std.square()], dim=1)

    def decode(self, z: Tensor) -> Gaussian:
        """Return the distribution p(x^k | z) over [..., F]."""
        return Gaussian.of(self._decoded(z), self.floor)

    def explain(self, x: Tensor, z: Tensor, known: Tensor | None = None) -> Tensor:
        """Return log p(x^k | z_l) of rows x [B, F]: z [L, B, D] -> [L, B].

        If a mask ``known`` [B, F] is given, only the known cells are used.
        """
        found: Tensor = LogProb.apply(self._decoded(z), x, self.floor, known)  # type: ignore[no-untyped-call]
        return found

    def _decoded(self, z: Tensor) -> Tensor:
        out: Tensor = self.decoder(z.flatten(0, -2))
        return out.view(*z.shape[:-1], out.shape[-1])

    def log_likelihood(
        self, x: Tensor, held: Tensor, z: Tensor, noise: Tensor | None, known: Tensor | None = None
    ) -> Tensor:
        """Return the logarithm of the factor that the party contributes to the samples' weights.

        Under MAR, the result is log p(x^k | z_l) of the rows that the party has: x [B_k, F], z [L, B_k, D] -> [L, B_k].
        If some cells were empty, only the ``known`` cells [B_k, F] are used (in the paper, blocks are whole or
        missing).

        Under MNAR z covers all rows of the batch, [L, B, D] -> [L, B]. For a row that the party has, the result is
        log p(x^k | z_l) + log pi(x^k). For any other row, the result is log(1 - pi(x^k_l)), with x^k_l drawn from
        p(x^k | z_l) by ``noise`` [L, B - B_k, F] (appendix A.2).
        """
        if self.indicator is None:
            return self.explain(x, z, known)
        lacking = torch.ones(z.shape[1], dtype=torch.bool, device=z.device)
        lacking[held] = False
        rest = lacking.nonzero().squeeze(1)
        present = self.explain(x, z[:, held], known) + functional.logsigmoid(self.indicator(x)).squeeze(-1)
        assert noise is not None
        drawn = self.decode(z[:, rest]).at(noise)
        absent = functional.logsigmoid(-self.indicator(drawn.flatten(0, 1))).view(drawn.shape[:2])
        return torch.cat([present, absent], dim=1)[:, torch.cat([held, rest]).argsort()]


@dataclass(frozen=True)
class ImportanceSamples:
    """L importance samples for every row.

    Attributes:
        z: [L, B, D].
        log_ratio: log p(z | h) + log p(h) - log q(z | x^O) - log q(h | z), [L, B]: those summands of log w that the
            active party computes alone.

    """

    z: Tensor
    log_ratio: Tensor


@dataclass(frozen=True, kw_only=True)
class LabelNetworks:
    """The networks of the active party's label side.

    Attributes:
        encoder: q_phi_0(h | z), [..., D] -> [..., 2 T].
        decoder: p_theta_0(z | h), [..., T] -> [..., 2 D].
        discriminator: p_psi(y | z), [..., D] -> logits [..., C]; in regression, mean and deviation [..., 2]. ``None``
            if no row had a label.
        task: the prediction task.
        floor: lower bound of all standard deviations.

    """

    encoder: nn.Module
    decoder: nn.Module
    discriminator: nn.Module | None
    task: Task
    floor: float

    def posterior(self, views: Tensor, observed: Tensor) -> Gaussian:
        """Return q(z | x^O) of equation (1), from the embeddings ``views`` [B, K, 2 D] and ``observed`` [B, K]."""
        mean, variance = views.chunk(2, dim=2)
        return aggregate(mean, variance, observed)

    def draw(self, posterior: Gaussian, noise: tuple[Tensor, Tensor]) -> ImportanceSamples:
        """Draw (z_l, h_l) ~ q(z | x^O) q(h | z) from noise [L, B, D] and [L, B, T]; ``posterior`` is over [B, D]."""
        z = posterior.at(noise[0])
        above = Gaussian.of(self.encoder(z), self.floor)
        top = above.at(noise[1])
        prior = Gaussian.of(self.decoder(top), self.floor)
        log_p = prior.log_prob(z) + standard(top)
        return ImportanceSamples(z, log_p - posterior.log_prob(z) - above.log_prob(top))

    def log_label(self, z: Tensor, y: Tensor) -> Tensor:
        """Return log p(y | z_l): [L, B, D], [B] -> [L, B]."""
        assert self.discriminator is not None
        out: Tensor = self.discriminator(z)
        if self.task.kind == "regression":
            return Gaussian.of(out, self.floor).log_prob(y.unsqueeze(-1))
        return -losses(replace(self.task, weights=()), out, y.expand(out.shape[:2]))

    def answers(self, z: Tensor) -> Tensor:
        """Return answers [L, B, C]: class probabilities, or in a regression the number in the label's own units."""
        assert self.discriminator is not None
        out: Tensor = self.discriminator(z)
        return answers(self.task, out[..., : self.task.outputs])

    def share(self, wanted: Tensor, labels: tuple[Tensor, Tensor] | None) -> Tensor:
        """Return the weight of each row in the loss: [B].

        The loss is the weighted sum of the rows' bounds (see ``bound``). Rows outside the mask ``wanted`` [B] have the
        weight 0. In stage 2, ``labels`` has the labels y [B] and a mask [B] of the known labels. Rows without a known
        label then have the weight 0. The weight of a labelled row is proportional to the weight of its class.
        """
        if labels is None:
            return wanted / wanted.sum().clamp(min=1)
        y, known = labels
        wanted = wanted & known
        weight = torch.tensor(self.task.weights, device=y.device)[y] if self.task.weights else 1.0
        return weight * wanted / wanted.sum().clamp(min=1)


def bound(log_w: Tensor) -> Tensor:
    """Return log (1/L) sum_l w_l, the importance-weighted bound (Burda et al. 2016): log w [L, B] -> [B]."""
    return log_w.logsumexp(dim=0) - math.log(len(log_w))


def followed(log_w: Tensor, negligible: float) -> Tensor:
    """Return the derivative of ``bound`` with respect to the log-weights: [L, B].

    The derivative is w_l / sum_j w_j; values below ``negligible`` are replaced by 0.
    """
    weight = log_w.softmax(dim=0)
    return torch.where(weight < negligible, 0.0, weight)


def mixture(log_w: Tensor, answered: Tensor) -> Tensor:
    """Return sum_l alpha_l answer_l with alpha_l = w_l / sum_j w_j (section 3.3.4): [L, B], [L, B, C] -> [B, C].

    The weights alpha_l are computed in the precision of the answers. In a lower precision, their sum would deviate from
    1. This would shift regression answers that are far from 0.
    """
    return torch.einsum("lb,lbc->bc", log_w.to(answered.dtype).softmax(dim=0), answered)


def feature_side(state: State, floor: float) -> FeatureNetworks:
    """Collect a party's networks on the feature side (encoder, decoder and, in FALSE-VFL-II, missing indicator)."""
    modules = state.modules
    return FeatureNetworks(
        encoder=modules["encoder"], decoder=modules["decoder"], indicator=modules.get("indicator"), floor=floor
    )


def label_side(state: State, floor: float) -> LabelNetworks:
    """Collect the active party's networks on the label side (global encoder, global decoder, discriminator)."""
    assert state.seat.task is not None
    encoder, decoder, discriminator = (state.modules.get(name) for name in LABEL_SIDE)
    assert encoder is not None
    assert decoder is not None
    return LabelNetworks(
        encoder=encoder, decoder=decoder, discriminator=discriminator, task=state.seat.task, floor=floor
    )


def trained(state: State, names: Collection[str]) -> list[nn.Parameter]:
    """Return the trainable parameters of the networks listed in ``names``, in the order of ``state.modules``."""
    modules = [module for name, module in state.modules.items() if name in names]
    return [parameter for module in modules for parameter in module.parameters() if parameter.requires_grad]


def mirrored(encoder: Factory, hidden: tuple[int, ...] | None, otherwise: tuple[int, ...]) -> Factory:
    """Return the factory of a party's decoder.

    If ``hidden`` is given, the decoder is an MLP with these hidden widths. If ``hidden`` is ``None``, the decoder
    depends on the encoder. For an MLP, it has the encoder's hidden widths in reverse order. For a ResNet, it consists
    of transposed convolutions. For any other encoder, it is an MLP with the hidden widths in ``otherwise``.
    """
    if hidden is None and isinstance(encoder, MLP):
        return MLP(hidden=encoder.hidden[::-1], activation=encoder.activation)
    if hidden is None and isinstance(encoder, ResNet):
        return Deconvolution(shape=encoder.shape)
    return MLP(hidden=otherwise if hidden is None else hidden)


def label_networks(
    task: Task, D: int, T: int, hidden: tuple[int, ...], head_hidden: tuple[int, ...]
) -> dict[str, nn.Module]:
    """Return the active party's networks: global encoder, global decoder and, if there are labels, discriminator."""
    made = [MLP(hidden=hidden)(D, 2 * T), MLP(hidden=hidden)(T, 2 * D)]
    if task.outputs:
        made.append(MLP(hidden=head_hidden)(D, task.outputs if task.kind == "classification" else 2))
    return dict(zip(LABEL_SIDE, made, strict=False))


KEY = 32


class SampleStreams(nn.Module):
    """The key from which the active party derives the random numbers of z; it is saved with this party's networks.

    Attributes:
        key: [32] uint8. The key is zero if the run has no secret, and in models of earlier versions. The random numbers
            then follow from the run's seed.

    """

    key: Tensor

    def __init__(self, seeds: Seeds) -> None:
        super().__init__()
        key = torch.zeros(KEY, dtype=torch.uint8)
        if seeds.secret:
            key = torch.randint(256, (KEY,), dtype=torch.uint8, generator=seeds.own.torch("predictions"))
        self.register_buffer("key", key)

    @property
    def secret(self) -> bool:
        """True if the key is not zero, so that the random numbers are secret."""
        return bool(self.key.any())

    def normal(self, seeds: Seeds, present: Tensor, names: pl.Series | None, L: int, width: int) -> Tensor:
        """Return standard normal numbers for rows: [L, B, width].

        The numbers of a row depend on the row's id in ``names`` [B] and on the set of parties that have the row, as
        marked in ``present`` [B, K]. A party that alone has a row can compute the numbers for this set; it learns
        nothing about the numbers for larger sets. Rows without an id get equal numbers if the same parties have them.
        Without a key, the numbers follow from ``seeds``.
        """
        own = Seeds(0, self.key.cpu().numpy().tobytes()).own if self.secret else seeds
        drawn = torch.empty(len(present), L, width)
        ids = [None] * len(present) if names is None else names.to_list()
        for n, (parties, name) in enumerate(zip(present.tolist(), ids, strict=True)):
            row = ["samples", "".join("1" if here else "0" for here in parties)] + ([] if name is None else [name])
            torch.randn(L, width, generator=own.torch(*row), out=drawn[n])
        return drawn.transpose(0, 1).contiguous().to(present.device)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.setdefault(f"{prefix}key", torch.zeros_like(self.key))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def balanced(L: int, width: int, generator: Generator) -> Tensor:
    """Return L balanced vectors of standard normal numbers, [L, width]; each single vector is standard normal.

    In each dimension, each of L intervals of equal probability contains one of the L numbers (Latin hypercube; McKay,
    Beckman, Conover, Technometrics 1979). If a function f is a sum of functions that each depend on a single dimension,
    the mean of f over the L vectors is close to the expectation of f under N(0, I).
    """
    lots = torch.rand(L, width, 2, generator=generator, dtype=torch.float64)
    share = (lots[..., 0].argsort(dim=0) + lots[..., 1]) / L
    drawn: Tensor = torch.special.ndtri(share.clamp(min=1e-12))
    return drawn.float()
