"""FALSE-VFL at a party with columns: the party's messages of a batch, and its computations in training.

In every batch:
    party -> active    embedding    mean and variance of z, for the rows that the party has
    active -> party    samples      z_l
    party -> active    likelihood   log p(x^k | z_l)
In a training batch, if encoders learn:
    active -> party    weight       u_l, the gradient of the loss with respect to log p(x^k | z_l), or 0 for a sample of
                                    negligible weight; in stage 2, which uses labels, one number for all samples, which
                                    reveals nothing
    party -> active    slope        the gradient of u_l log p(x^k | z_l) with respect to z_l, for each z_l whose u_l is
                                    not 0
    active -> party    gradient     the gradient of the loss with respect to the embedding

Raw blocks and reconstructions stay at their party. Samples are first weighted without an autograd graph. Then the
"followed" samples, those whose u_l is not 0, pass through the networks again, with a graph. This is faster, because
most samples have negligible weight and the forward pass is only a third of the work (docs/decisions/0010).

If a party is lost during a batch, the weights lack the party's factor, or the sum of gradients lacks its gradient.

Notation as in ``distributions``. N is the number of followed samples among a batch's L x B samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anyparty.core.draws import normal
from anyparty.core.types import Channel, MessageSpec, TensorSpec, finite
from anyparty.errors import Diverged, remark
from anyparty.methods.false_vfl.distributions import FeatureNetworks, SampleStreams, balanced
from anyparty.methods.method import Batch, PartyContext
from anyparty.methods.split.rule import embedding
from anyparty.problem.rows import Rows

FALLEN, MANY = 1.1, 0.5  # remark if over half of the standard deviations are below 1.1 x their lower bound


@dataclass(frozen=True, kw_only=True)
class BatchTurn:
    """One party's processing of a batch: the rows, sizes and settings that it needs, and its computations.

    Attributes:
        net: the party's channel to the other parties.
        seat: the party's context.
        rows: the party's data of all aligned rows.
        batch: the B rows to process.
        L: number of importance samples of a row.
        D: width of z.
        T: width of h.
        asked: the parties whose blocks may be used.
        mnar: whether parties also send likelihoods for rows that they do not have.
        follows: whether encoders learn, so that the active party needs gradients with respect to z.
        common: whether the noise is independent of the batch, as in prediction. The noise of z then depends on the row,
            and all rows share the noise of blocks.
        own_decoder: whether the decoder is a user's own, which may draw random numbers.
        missed: the parties whose blocks are ignored, because no chain of common rows connects them to a label.
        draws: at the active party, the random streams of samples of z in prediction.

    """

    net: Channel
    seat: PartyContext
    rows: Rows
    batch: Batch
    L: int
    D: int
    T: int
    asked: Sequence[str]
    mnar: bool
    follows: bool = False
    common: bool = False
    own_decoder: bool = False
    missed: Sequence[str] = ()
    draws: SampleStreams | None = None

    def sampling(self, present: Tensor) -> tuple[Tensor, Tensor]:
        """Return the noise of the active party's samples: [L, B, D] for z and [L, B, T] for h.

        ``present`` [B, K] marks the parties that have each row.
        """
        if not self.common:
            return self.noise("z", self.batch.rows, self.D), self.noise("h", self.batch.rows, self.T)
        assert self.draws is not None
        names = None if self.rows.names is None else self.rows.names.gather(self.batch.rows.cpu().numpy())
        drawn = self.draws.normal(self.batch.seeds, present, names, self.L, self.D + self.T).to(self.seat.device)
        return drawn[..., : self.D], drawn[..., self.D :]

    def noise(self, name: str, rows: Tensor, width: int) -> Tensor:
        """Return private standard normal numbers of the rows with the indices ``rows`` [n]: [L, n, width]."""
        axes = (rows.to(self.seat.device), *(torch.arange(n, device=self.seat.device) for n in (self.L, width)))
        return normal(self.batch.own_key(name), *axes).transpose(0, 1)

    def block_noise(self, rows: Tensor, width: int) -> Tensor:
        """Return the noise of the party's block in ``rows`` [n], which it does not have (MNAR): [L, n, width]."""
        name = f"block of {self.seat.me}"
        if not self.common:
            return self.noise(name, rows, width)
        drawn = balanced(self.L, width, self.batch.seeds.torch("prediction", name))
        return drawn.unsqueeze(1).to(self.seat.device).expand(-1, len(rows), -1)

    def encode(
        self, side: FeatureNetworks, encoder: Sequence[nn.Parameter] = (), decoder: Sequence[nn.Parameter] = ()
    ) -> PartyBatch | None:
        """Encode the party's rows of the batch; return ``None`` if the party does not take part in the batch.

        ``encoder`` and ``decoder`` are those parameters of the two networks that the stage trains. ``decoder`` includes
        the parameters of the missing indicator.

        Raises:
            Diverged: the party's embeddings are not finite.
            ConfigError: the output of the party's encoder has a wrong shape.
        """
        if self.seat.me not in self.asked:
            return None
        assert self.rows.block is not None
        x, held = self.rows.block.take(self.batch.rows)
        known = self.rows.block.known(self.batch.rows, held)
        noise = None
        if self.mnar:
            lacking = torch.ones_like(self.batch.rows, dtype=torch.bool)
            lacking[held.to(lacking.device)] = False
            noise = self.block_noise(self.batch.rows[lacking], x.shape[1])
        if not len(held):
            views = x.new_zeros(0, 2 * self.D)
            return PartyBatch(side, x, known, held, views, noise, encoder, decoder) if self.mnar else None
        with torch.set_grad_enabled(self.follows), self._drawing("encoder draws"):
            views = side.encode(x)
        self.finite(views, f"party {self.seat.me!r}: its embeddings are")
        return PartyBatch(side, x, known, held, views, noise, encoder, decoder)

    def decode(self, own_batch: PartyBatch, z: Tensor) -> Tensor:
        """Return the log-likelihoods of the party's block without an autograd graph: z [L, n, D] -> [L, n].

        Raises:
            Diverged: the log-likelihoods are not finite.
        """
        if self.follows and self.batch.step_id[-1] == 0:  # only in the first batch of an epoch
            self._look_at_floor(own_batch.side, z[:1])
        with torch.no_grad(), self._drawing("decoder draws"):
            log_p = own_batch.side.log_likelihood(own_batch.x, own_batch.held, z, own_batch.noise, own_batch.known)
        return self.finite(log_p, f"party {self.seat.me!r}: log-likelihoods of its block are")

    def follow(self, own_batch: PartyBatch, z: Tensor, u: Tensor) -> Tensor:
        """Propagate the gradient u [L, n] back through the decoder; return the gradient of N followed samples, [N, D].

        The followed samples are those of z [L, n, D] for which u is not zero, in the order of ``Tensor.nonzero``.
        ``own_batch`` is the party's data of the batch.

        Raises:
            Diverged: the returned gradient is not finite.
        """
        sample, row = u.nonzero(as_tuple=True)
        picked = z[sample, row].requires_grad_()
        if not len(row):
            return picked.detach()
        held = torch.ones(u.shape[1], dtype=torch.bool, device=u.device)
        if self.mnar:  # under MNAR, z covers all rows of the batch
            held[:] = False
            held[own_batch.held] = True
        # ``place`` is a row's index: among the party's rows, or for other rows among the rows that the party lacks.
        own, place = held[row], torch.where(held, held.cumsum(0), (~held).cumsum(0)) - 1
        noise = own_batch.noise
        if noise is not None:
            noise = noise[sample[~own], place[row[~own]]].unsqueeze(0)
        mine, at = place[row[own]], own.nonzero().squeeze(1)
        known = None if own_batch.known is None else own_batch.known[mine]
        with torch.enable_grad(), self._drawing("decoder draws"):
            log_p = own_batch.side.log_likelihood(own_batch.x[mine], at, picked.unsqueeze(0), noise, known)[0]
        torch.autograd.backward(log_p, u[sample, row], inputs=[picked, *own_batch.decoder])
        assert picked.grad is not None
        return self.finite(picked.grad, f"party {self.seat.me!r}: slopes of its log-likelihoods are")

    def answers_for(self, own_batch: PartyBatch) -> int:
        """Return the number of rows for which the party sends likelihoods: its own rows, or under MNAR all rows."""
        return len(self.batch.rows) if self.mnar else len(own_batch.held)

    async def answer(self, own_batch: PartyBatch) -> None:
        """Run a passive party's side of a batch: send embeddings and likelihoods; if encoders learn, also gradients."""
        active, n = self.seat.roster.active, self.answers_for(own_batch)
        if len(own_batch.held):
            await self.net.send(active, "embedding", {"h": own_batch.views.detach()})
        z = (await self.net.recv(active, "samples", {"z": TensorSpec((self.L, n, self.D))}))["z"].to(self.seat.device)
        await self.net.send(active, "likelihood", {"log_p": self.decode(own_batch, z)})
        if not self.follows:
            return
        u = (await self.net.recv(active, "weight", {"u": TensorSpec((self.L, n))}))["u"].to(self.seat.device)
        await self.net.send(active, "slope", {"z": self.follow(own_batch, z, u)})
        if len(own_batch.held):
            back = await self.net.recv(active, "gradient", {"g": TensorSpec(tuple(own_batch.views.shape))})
            own_batch.backward(back["g"])

    def _look_at_floor(self, side: FeatureNetworks, z: Tensor) -> None:
        """Emit a remark if most of the standard deviations that the decoder outputs are close to their lower bound."""
        with torch.no_grad(), self._drawing("decoder draws"):
            share = float((side.decode(z).std < FALLEN * side.floor).float().mean())
        if share > MANY:
            remark(
                f"party {self.seat.me!r}: its decoder's standard deviation has reached floor = {side.floor:g} for "
                "most numbers of its block: columns are constant or determined by others; leave out constants and "
                "copies (if columns are only correlated, the floor works as intended)"
            )

    def _drawing(self, name: str) -> AbstractContextManager[None]:
        if not (self.own_decoder if name == "decoder draws" else self.seat.draws):
            return nullcontext()
        return self.batch.drawing(name, self.seat.me, device=self.seat.device)

    def finite(self, tensor: Tensor, what: str) -> Tensor:
        """Return the tensor if it is finite; ``what`` begins the error message.

        Raises:
            Diverged: the tensor contains NaN or infinity.
        """
        if not finite(tensor.detach()):
            raise Diverged(f"{what} no longer numbers at {self.batch}: lower the learning rate, or look for "
                           f"extreme values in the parties' columns")  # fmt: skip
        return tensor


@dataclass(frozen=True)
class PartyBatch:
    """One party's data of a batch, encoded.

    Attributes:
        side: the party's networks.
        x: [B_k, F], the party's block of the rows that it has.
        known: [B_k, F], a mask of the cells that were not empty; ``None`` if no cell was empty.
        held: [B_k], the indices of the party's rows in the batch.
        views: [B_k, 2 D], the embeddings: mean and variance of z.
        noise: under MNAR, the noise of the party's block in rows that it does not have, [L, B - B_k, F].
        encoder: the encoder's parameters that the stage trains.
        decoder: the parameters of decoder and missing indicator that the stage trains.

    """

    side: FeatureNetworks
    x: Tensor
    known: Tensor | None
    held: Tensor
    views: Tensor
    noise: Tensor | None
    encoder: Sequence[nn.Parameter]
    decoder: Sequence[nn.Parameter]

    def backward(self, gradient: Tensor) -> None:
        """Propagate the gradient with respect to the embedding back through the encoder."""
        if self.views.requires_grad and self.encoder:
            torch.autograd.backward(self.views, gradient.to(self.views.device), inputs=self.encoder)


EMBEDDING = embedding(
    "active", "mean and variance of z given party k's block, [B_k, 2 D], for those rows of the batch that it has"
)
LIKELIHOOD = MessageSpec(
    tag="likelihood",
    frm="block",
    to="active",
    holds="log p(x_k | z_l), [L, B_k]; under MNAR with the log-probability that the party has the row or lacks it, "
    "[L, B]",
    learns="how well each sample of z explains a block that the active party does not see",
)
WEIGHT = MessageSpec(
    tag="weight",
    frm="active",
    to="block",
    holds="in pretraining the derivative of the loss by the log-likelihoods, [L, B_k] ([L, B] under MNAR), zero for "
    "samples of negligible weight; in stage train one constant in place of all derivatives",
    learns="in pretraining which samples explain a row best for all parties together; in stage train nothing",
)
SLOPE = MessageSpec(
    tag="slope",
    frm="block",
    to="active",
    holds="the derivative of the log-likelihoods by those N samples whose weight is not zero, times that weight, "
    "[N, D]",
    learns="in which direction to move a sample so that it explains a block that the active party does not see: "
    "slightly more about the block than the embedding reveals",
)
SAMPLES = MessageSpec(
    tag="samples",
    frm="active",
    to="block",
    holds="z_l, [L, B_k, D], for the party's rows of the batch; under MNAR for all rows, [L, B, D]",
    learns="party k sees, for each row, the joint latent distribution of the parties that have the row; if only one "
    "other party has it, an estimate of that party's mean and variance from L samples (more exact with every "
    "epoch of training); under MNAR also for rows that it does not have",
)
GRADIENT = MessageSpec(
    tag="gradient",
    frm="active",
    to="block",
    holds="the derivative of the loss by the embedding, [B_k, 2 D]",
    learns="in pretraining how the receiver's embedding of a row differs from that of all parties together; in stage "
    "train something about labels: we measured only one attack, the first singular direction, which did not separate "
    "two classes",
)
IMPUTATION = MessageSpec(
    tag="imputation",
    frm="active",
    to="block",
    holds="z_l, [L, B, D], and their weights, [L, B], for the rows whose block, or empty cells, the party wants to "
    "impute: all rows that it lacks, or all that it has",
    learns="what the other parties' blocks reveal about the party's own columns, which is the purpose of the request",
    when="a party's missing blocks or empty cells are imputed (impute)",
)
MESSAGES = (EMBEDDING, SAMPLES, LIKELIHOOD, WEIGHT, SLOPE, GRADIENT, IMPUTATION)
