"""FedHSSL: self-supervised learning across and within parties, then fine-tuning on the rows that all parties have.

He, Kang, Zhao, Luo, Fan, Han, Yang: "A Hybrid Self-Supervised Learning Framework for Vertical Federated Learning", IEEE
Transactions on Big Data 2024, in the form of SimSiam, BYOL or MoCo. The SimSiam form is a baseline of FALSE-VFL (Hong,
Park, Hwang, arXiv 2505.11035, appendix D.1), with zeros in place of absent parties in prediction.

Notation  B rows, B_k rows that party k has, K parties, H width of a representation, C outputs; A is the active party.
Symbols   c_k        cross-party encoder, with projector and predictor outputs z^c, p^c of c_k(x)      [B_k, H].
          b_k, t_k   local bottom and top encoder, with projector and predictor outputs z, p of t_k(b_k(x))   [B_k, H].
          h_k        t_k(b_k(x)) and c_k(x) side by side, the embedding that fine-tuning fuses         [B_k, 2 H].

Stage "pretrain": every step uses rows that at least one party has.
  1. across   party k sends z^c_k, and A sends z^c_A; the losses are over rows that k and A have. No gradient is sent
              (``stop`` marks a tensor through which no gradient passes):
              k minimises -cos(p^c_k, stop(z^c_A)); A minimises the mean over k of -cos(p^c_A, stop(z^c_k)).
  2. within   SimSiam of two views; in addition, z^c_k guides each view:
              (s(p, z') + s(p', z)) / 2 + ``guide`` (s(p, z^c) + s(p', z^c)) / 2, with s(a, b) = -cos(a, stop(b)).
              With BYOL and MoCo, target networks compute the second argument of s and the z^c that is sent.
              MoCo has another s, the loss l of ``pretraining``.
  3. mean     once per epoch, every party sets the weights of t_k, its projector and its predictor to their mean over
              all parties (partial aggregation).
Stage "train": one linear head on all h_k side by side, trained on the labelled rows that all parties have.
Answer    for any row that at least one party has, with zeros in place of absent h_k.

Differences   Steps 1 and 2 take place in every batch, not in separate epochs. Step 3 takes place at the start of an
              epoch, so all parties start from one top encoder. This encoder is the mean of K independent draws, so its
              weights are 1 / sqrt(K) as large as those that torch draws. Views are made as in ``pretraining``. If the
              encoder is an MLP, b_k and t_k together are as deep as c_k, and t_k is the last layer. If the encoder is a
              user's own module, b_k is this module, and t_k is an additional layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim.swa_utils import AveragedModel

from anyparty.core.predictions import Predictions
from anyparty.core.seeds import Seeds
from anyparty.core.types import Capabilities, Channel, MessageSpec, TensorSpec
from anyparty.errors import ConfigError, Diverged, PartyLost
from anyparty.methods.method import Batch, PartyContext, Stage, State
from anyparty.methods.split.pretraining import FORMS, STAGE, TARGET, SelfSupervised, predictor, projector
from anyparty.methods.split.rule import EMBEDDING, GRADIENT
from anyparty.methods.split.split_method import Split
from anyparty.methods.split.standard import Standard
from anyparty.networks.encoders import MLP, Factory, build
from anyparty.problem.rows import Rows

LEARNS = (
    "the receiver sees a projection of every row that both sender and receiver have: no raw feature, but everything "
    "that the projection retains of it"
)
REPRESENTATIONS = (
    MessageSpec(
        tag="representation",
        frm="block",
        to="active",
        learns=LEARNS,
        holds="z^c_k, the projected cross-party representation of the party's rows of the batch, [B_k, H]",
    ),
    MessageSpec(
        tag="representation",
        frm="active",
        to="block",
        learns=LEARNS,
        holds="z^c_A, the active party's projected representation of the receiver's rows of the batch, [B_k, H]; "
        "zeros for rows that the active party lacks",
    ),
)
TOP = MessageSpec(
    tag="top",
    frm="block",
    to="active",
    holds="the weights of the local top encoder, and of its projector and predictor; sent once in every epoch",
    learns="the distribution of the party's representations: the weights depend on sums over its rows",
)
MEAN = MessageSpec(
    tag="mean",
    frm="active",
    to="block",
    holds="the mean over all parties of the weights that the message top holds; sent once in every epoch",
    learns="the distribution of the representations of all parties together; with two parties therefore also that of "
    "the other party",
)

SHARED = ("top", "projector", "predictor")
Represent = Callable[["Encoders", Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class AlignedFineTuning(Standard):
    """The rule of fine-tuning: one head over concatenated embeddings, trained on the rows that all parties have."""

    absent: Literal["refuse", "zeros"] = "zeros"

    @property
    def can(self) -> Capabilities:
        """The capabilities of FedHSSL."""
        return Capabilities(
            title="FedHSSL",
            paper="He et al. 2024; Hong, Park, Hwang 2025, app. D.1",
            trains_on="all rows that at least one party has, then labelled rows that all parties have",
            predicts_for="any row, with zeros in place of absent embeddings",
            needs="any",
            trains_with="all",
            messages=(*REPRESENTATIONS, TOP, MEAN, EMBEDDING, GRADIENT),
            unlabelled=True,
        )


class Encoders(nn.Module):
    """A party's encoders: [B, inputs] -> local and cross-party representation side by side, [B, 2 H]."""

    def __init__(self, bottom: nn.Module, cross: nn.Module, H: int) -> None:
        super().__init__()
        self.bottom, self.top, self.cross = bottom, nn.Sequential(nn.ReLU(), nn.Linear(H, H)), cross

    def local(self, x: Tensor) -> Tensor:
        """Return the local representation: [B, inputs] -> [B, H]."""
        return self.top(self.bottom(x))  # type: ignore[no-any-return]

    def across(self, x: Tensor) -> Tensor:
        """Return the cross-party representation: [B, inputs] -> [B, H]."""
        return self.cross(x)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Return the local and the cross-party representation side by side: [B, inputs] -> [B, 2 H]."""
        return torch.cat([self.local(x), self.across(x)], dim=1)


@dataclass(frozen=True, kw_only=True)
class FedHSSL(SelfSupervised):
    """The method FedHSSL: self-supervised learning across and within parties, followed by fine-tuning.

    Attributes:
        embedding: H, the width of each half of a party's embedding: the local and the cross-party half.
        head_hidden: widths of the head's hidden layers; [] is the paper's linear layer.
        guide: weight of the loss by which the cross-party encoder guides the local encoder.
        pretrain: the loss of self-supervised learning: "simsiam", "byol" or "moco".

    """

    embedding: int = 64
    head_hidden: tuple[int, ...] = ()
    guide: float = 0.5
    pretrain: Literal["simsiam", "byol", "moco"] = "simsiam"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.guide < math.inf:
            raise ConfigError(f"fedhssl: guide must be a number and not negative, got {self.guide}")
        if self.pretrain not in FORMS[1:]:
            raise ConfigError(
                "fedhssl: pretrain must be 'simsiam', 'byol' or 'moco', because pretraining is part of the method"
            )
        if self.embedding < 1:
            raise ConfigError(f"fedhssl: embedding must be at least 1, got {self.embedding}")
        self.split  # noqa: B018 - this validates the other parameters

    @cached_property
    def split(self) -> Split:
        """The split method that fine-tunes the encoders and the head."""
        return Split(rule=AlignedFineTuning(), embedding=2 * self.embedding, head_hidden=self.head_hidden)

    @property
    def can(self) -> Capabilities:
        """The capabilities of the fine-tuning rule."""
        return self.split.can

    def begin(self, seat: PartyContext, seeds: Seeds) -> State:
        """Make a party's encoders, projectors and predictors with their optimizers; at the active party, also the head.

        Raises:
            ConfigError: the active party holds no columns, so the other parties have no representation to compare with.
        """
        if seat.roster.active not in seat.roster.blocks:
            raise ConfigError(f"FedHSSL compares every party with the active one, and {seat.roster.active!r} holds no "
                              f"columns; use false-vfl-1, or a split method with pretrain = 'simsiam'")  # fmt: skip
        state = self.split.begin(replace(seat, encoder=self._encoders(seat)), seeds)
        state.seat = seat
        if seat.inputs:
            with seeds.own.drawing("projector", seat.me):
                for name in ("", "cross_"):
                    state.modules[f"{name}projector"] = projector(self.embedding).to(seat.device)
                    state.modules[f"{name}predictor"] = predictor(self.embedding).to(seat.device)
            trained = {name: module for name, module in state.modules.items() if name != "heads"}
            state.optimizers[STAGE] = self.build(trained)
            self.add_targets(state.modules, "encoder", "projector", "cross_projector")
        return state

    def _encoders(self, seat: PartyContext) -> Factory:
        def make(inputs: int, _: int) -> nn.Module:
            lower = seat.encoder
            if isinstance(lower, MLP):
                lower = replace(lower, hidden=lower.hidden[:-1])
            bottom, cross = (build(each, inputs, self.embedding, party=seat.me) for each in (lower, seat.encoder))
            return Encoders(bottom, cross, self.embedding)

        return make

    def stages(self, seat: PartyContext) -> Sequence[Stage]:
        """Return the stages "pretrain" and "train"."""
        return (self.stage(self._step), *self.split.stages(seat))

    async def _step(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:
        """Run one party's side of self-supervised learning on a batch; at the active party, return the loss.

        Raises:
            Diverged: the loss is not a finite number.
        """
        if "encoder" not in state.modules or rows.block is None:
            return None
        if batch.step_id[-1] == 0:
            await self._aggregate(net, state)
        me, roster = state.seat.me, state.seat.roster
        x, held = rows.block.take(batch.rows)
        p = t = x.new_zeros(len(x), self.embedding)
        enough = len(held) > 1  # batch normalisation needs two rows or more
        if enough:
            z, t = self._seen(state, batch, "cross_projector", Encoders.across, x, "cross draws")
            p = state.modules["cross_predictor"](z)
        if me == roster.active:
            pairs = await self._lead(net, state, rows, batch, held, t)
        else:
            pairs = await self._follow(net, roster.active, t) if len(held) else []
        if not enough:
            return None
        loss = self._within(state, x, batch, t)
        for own_rows, received in pairs:
            loss = loss + self.loss(p[own_rows], received.to(p.device)) / len(pairs)
        value = loss.item()
        if not math.isfinite(value):
            raise Diverged(f"party {me!r}: the loss is {value} at {batch}: lower pretrain_lr, or look for "
                           f"extreme values in its columns")  # fmt: skip
        self.descend(state.optimizers[STAGE], batch.share * loss)
        self.follow(state.modules)
        return value if me == roster.active else None

    def _within(self, state: State, x: Tensor, batch: Batch, cross: Tensor) -> Tensor:
        """Return the loss of step 2, "within", on the party's rows x [B_k, inputs].

        The loss compares two views of x with each other and with ``cross`` [B_k, H], the representations from the
        cross-party encoder. The module's docstring defines the steps.
        """
        ends = []
        for number, view in enumerate(self.views(x, batch.own(f"views of {state.seat.me}"))):
            z, t = self._seen(state, batch, "projector", Encoders.local, view, f"view {number} draws")
            ends.append((state.modules["predictor"](z), t))
        (p, t), (p2, t2) = ends
        alike = self.loss(p, t2) + self.loss(p2, t)
        guided = self.loss(p, cross) + self.loss(p2, cross)
        return (alike + self.guide * guided) / 2

    def _seen(
        self, state: State, batch: Batch, projector: str, represent: Represent, x: Tensor, draws: str
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return the projections of ``x``, and the targets that the predictors' outputs should match: [B, H] each.

        The targets are the projections themselves, or with BYOL and MoCo the outputs of target networks.
        """
        me, device = state.seat.me, state.seat.device
        with batch.drawing(draws, me, device=device):
            z = state.modules[projector](represent(_encoders_of(state), x))
        followers = state.modules.get(f"{TARGET}encoder")
        if followers is None:
            return z, z.detach()
        assert isinstance(followers, AveragedModel)
        assert isinstance(followers.module, Encoders)
        with torch.no_grad(), batch.drawing(f"target {draws}", me, device=device):
            return z, state.modules[f"{TARGET}{projector}"](represent(followers.module, x))

    async def _lead(
        self, net: Channel, state: State, rows: Rows, batch: Batch, held: Tensor, z: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """At the active party, exchange representations of common rows with every passive party.

        Return a pair for each passive party that has rows in common with the active party: the indices of these rows in
        ``z``, and the passive party's z^c of these rows.
        """
        roster, pairs = state.seat.roster, []
        assert rows.observed is not None
        observed = rows.observed[batch.rows]
        place = torch.full((len(batch.rows),), -1, device=held.device)
        place[held] = torch.arange(len(held), device=held.device)  # a row's index in the batch -> its index in z
        for k, name in enumerate(roster.blocks):
            common = observed[:, k].nonzero().squeeze(1)
            if name == roster.active or not len(common):
                continue
            try:
                got = await net.recv(name, "representation", {"z": TensorSpec((len(common), self.embedding))})
            except PartyLost:
                continue
            at = place[common]
            both = at >= 0
            sent = z.new_zeros(len(common), self.embedding)
            sent[both] = z[at[both]]
            await net.send(name, "representation", {"z": sent})
            known = got["z"].to(z.device)[both]
            if len(known) and known.any():
                pairs.append((at[both], known))
        return pairs

    async def _follow(self, net: Channel, active: str, z: Tensor) -> list[tuple[Tensor, Tensor]]:
        """At a passive party, exchange representations of common rows with the active party.

        Return at most one pair: the indices in ``z`` of the rows that both parties have, and the active party's z^c of
        these rows.
        """
        await net.send(active, "representation", {"z": z})
        got = (await net.recv(active, "representation", {"z": TensorSpec(tuple(z.shape))}))["z"]
        both = got.any(dim=1)
        return [(both.to(z.device).nonzero().squeeze(1), got[both])] if both.any() else []

    async def _aggregate(self, net: Channel, state: State) -> None:
        """Replace the weights of top encoder, projector and predictor by their means over all parties.

        This is step 3, "mean", of the module's docstring.
        """
        roster, mine = state.seat.roster, [p for module in _shared(state).values() for p in module.parameters()]
        vector = parameters_to_vector(mine).detach().unsqueeze(0)  # [1, W]
        expect = {"w": TensorSpec(tuple(vector.shape))}
        if net.me == roster.active:
            total, parties, present = vector.clone(), 1, []
            for name in roster.blocks:
                if name == net.me:
                    continue
                try:
                    total += (await net.recv(name, "top", expect))["w"].to(vector.device)
                except PartyLost:
                    continue
                parties += 1
                present.append(name)
            vector = total / parties
            for name in present:
                await net.send(name, "mean", {"w": vector})
        else:
            await net.send(roster.active, "top", {"w": vector})
            vector = (await net.recv(roster.active, "mean", expect))["w"].to(vector.device)
        with torch.no_grad():
            for parameter, values in zip(mine, torch.split(vector[0], [p.numel() for p in mine]), strict=True):
                parameter.copy_(values.view_as(parameter))

    def remarks(self, state: State, rows: Rows, training: Tensor) -> Iterator[str]:
        """Return remarks on networks that training did not reach, as in the split method."""
        return self.split.remarks(state, rows, training)

    def embed(self, state: State, rows: Rows, places: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the party's rows among ``places``, as positions in ``places``, and the embeddings for a prediction."""
        return self.split.embed(state, rows, places)

    async def predict(
        self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]
    ) -> Predictions | None:
        """Run one party's side of a prediction, in which zeros take the place of absent embeddings."""
        return await self.split.predict(net, state, rows, batch, asked)


def _encoders_of(state: State) -> Encoders:
    encoders = state.modules["encoder"]
    assert isinstance(encoders, Encoders)
    return encoders


def _shared(state: State) -> Mapping[str, nn.Module]:
    """Return, by name, the modules whose weights are averaged over all parties."""
    return {name: _encoders_of(state).top if name == "top" else state.modules[name] for name in SHARED}
