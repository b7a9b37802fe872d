"""FALSE-VFL-I and II.  Hong, Park, Hwang: "Deep Latent Variable Model based Vertical Federated Learning with Flexible
Alignment and Labeling Scenarios", arXiv 2505.11035: sections 3 and 4, appendices A to C; MIWAE, not-MIWAE and supMIWAE
across parties.

Notation  B rows, K parties, L importance samples, D width of z, T width of h, C outputs.
Symbols   O_n    observed[n]   parties that have row n, never empty                                     [B, K] bool
          m_n    O_n as K numbers: 1 for a party that has row n, 0 for a party that does not
          z, h   latent vectors: p(h) = N(0, I), p_theta_0(z | h), p_theta_k(x^k | z), p_psi(y | z)
          pi_k   missing indicator: the probability that party k has a row, given its block; parameters xi
          theta, phi, psi   parameters of the decoders, the encoders and the discriminator
Posterior q(z | x^O) = N(mean of mu_k, inverse of the summed precisions 1 / sigma_k^2), k in O              (1)
          q(h | z) = N(...) by the global encoder
Weights   w_l = prod_{k in O} p(x^k | z_l) p(z_l | h_l) p(h_l) / (q(z_l | x^O) q(h_l | z_l))
          II: times prod_{k in O} pi_k(x^k) prod_{k not in O} (1 - pi_k(x^k_l)), x^k_l ~ p(x^k | z_l)      (A.2)
Stage 1   all rows, labelled or not:  maximise mean_n log (1/L) sum_l w_nl  over theta, phi (and xi)    (3.3.2)
Stage 2   labelled rows, theta fixed: maximise mean_n log (1/L) sum_l w_nl p_psi(y_n | z_nl)  over psi, phi (3.3.3)
Answer    p(y | x^O) = sum_l alpha_l p_psi(y | z_l), alpha_l = w_l / sum_j w_j                          (3.3.4)

Choices that the paper leaves open
- The paper gives no L. Here L is 10 in training and 50 in prediction (supMIWAE: 50).
- Samples whose share of their row's weight is below ``negligible`` are left out of stage 1's gradient. If parties have
  many columns, most samples are left out (docs/decisions/0010). With ``negligible = 0`` the gradient is exact.
- The paper fixes theta in stage 2 and does not say whether phi is trained. By default it is (``train_encoders``); one
  experiment with fixed phi had lower scores.
- In prediction, a row's samples of z are drawn from random numbers that depend on the row's id, the parties that have
  the row, and the run's seed or secret (``sampling``). FALSE-VFL-II draws a missing block from numbers common to all
  rows, balanced over the L samples. An answer therefore depends only on the row, not on its batch or its place in the
  batch, and sampling errors differ between rows. In training every batch draws new numbers, from streams of the active
  party.
- A standard deviation is softplus(output) + ``floor``. By default the floor is .1 of a standardised column's standard
  deviation. The paper gives no lower bound (docs/decisions/0012).
- If cells of a row are empty at a party that has the row, the party's factor is p of the known columns, as in MIWAE.
  The encoder and the missing indicator read imputed values in these cells. A missing category counts as a level.
- With ``balance`` a labelled row's term has the weight of its class.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from anyparty.core.predictions import Predictions, members, refuse_without_labels
from anyparty.core.seeds import Seeds
from anyparty.core.types import Capabilities, Channel
from anyparty.errors import ConfigError, some
from anyparty.methods.false_vfl.active_party import WeightedBatch, labels, learn, weigh
from anyparty.methods.false_vfl.distributions import (
    LABEL_SIDE,
    SampleStreams,
    bound,
    feature_side,
    followed,
    label_networks,
    label_side,
    mirrored,
    mixture,
    trained,
)
from anyparty.methods.false_vfl.passive_party import MESSAGES, BatchTurn, PartyBatch
from anyparty.methods.method import Batch, PartyContext, Stage, State
from anyparty.methods.split.exchange import Gathered, predictions
from anyparty.methods.split.rule import RuleAnswer
from anyparty.networks.encoders import MLP, Factory, build
from anyparty.networks.heads import Connectivity, shared, untied
from anyparty.networks.optimizer import Optimizer
from anyparty.problem.rows import Rows

PRETRAIN, TRAIN = "pretrain", "train"
LEARNS = {
    PRETRAIN: ("encoder", "decoder", "indicator", "global_encoder", "global_decoder"),
    TRAIN: ("encoder", "global_encoder", "discriminator"),
}
ENCODES, DECODES = ("encoder",), ("decoder", "indicator")
VIEW = "concatenated mean and standard deviation"
AT_ONCE = 2**22  # maximum number of values of z in one message of a prediction (16 MiB)
ALL_LABELLED = "every row has a label, so that pretraining saw only labelled rows"
ALWAYS = "every row is held by {}: sets of parties without these are not learnt, and their predictions may be far off"
UNTIED = "no party that has this row shares training rows, directly or through other parties, with a labelled row"


@dataclass(frozen=True, kw_only=True)
class FalseVFL(ABC):
    """The code that FALSE-VFL-I and II share: everything except the missing indicators.

    Attributes:
        embedding: D, width of z, the latent vector; a party's embedding is a mean and a variance of z.
        top: T, width of h, the latent vector above z.
        samples: L, the number of importance samples of a row in training; the paper does not give it.
        negligible: samples whose share of their row's weight is below this number are left out of the gradient of
            stage ``pretrain``; with 0, the gradient is exact.
        predict_samples: L in prediction; the paper does not give it.
        hidden: hidden widths of the global encoder and decoder.
        head_hidden: hidden widths of the discriminator.
        decoder_hidden: hidden widths of the parties' decoders. By default they are those of the party's MLP encoder, in
            reverse order; a party with a ResNet encoder gets a decoder of transposed convolutions.
        floor: the least standard deviation of z, h and a column, in units of a prepared column.
        train_encoders: whether the encoders also learn in stage ``train``.
        pretrain_epochs: number of epochs of stage ``pretrain``; by default as many as in stage ``train``.
        pretrain_batch_size: number of rows of a batch in stage ``pretrain``; by default as many as in stage ``train``.
        pretrain_lr: learning rate of stage ``pretrain``; by default each party's own.
        make_decoder: a user's own decoder, (D, 2 x width of the block) -> module. The module gets samples as rows and
            must not mix rows, as batch normalisation does.

    """

    embedding: int = 128
    top: int = 64
    samples: int = 10
    negligible: float = 1e-3
    predict_samples: int = 50
    hidden: tuple[int, ...] = (128, 128)
    head_hidden: tuple[int, ...] = (128,)
    decoder_hidden: tuple[int, ...] | None = None
    floor: float = 0.1
    train_encoders: bool = True
    pretrain_epochs: int | None = None
    pretrain_batch_size: int | None = None
    pretrain_lr: float | None = None
    make_decoder: Factory | None = None

    title: ClassVar[str]
    section: ClassVar[str]
    mnar: ClassVar[bool]

    def __post_init__(self) -> None:
        for name in ("embedding", "top", "samples", "predict_samples", "pretrain_epochs", "pretrain_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{self.title}: {name} must be at least 1, got {value}")
        for name in ("hidden", "head_hidden", "decoder_hidden"):
            _widths(self.title, name, getattr(self, name) or ())
        if not 0 <= self.negligible < 1:
            raise ConfigError(f"{self.title}: negligible is a share of a row's weight, from 0 to below 1, got "
                              f"{self.negligible}")  # fmt: skip
        for name in ("floor", "pretrain_lr"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{self.title}: {name} must be a number above 0, got {value}")

    @property
    def can(self) -> Capabilities:
        """The capabilities: the method trains on any row, labelled or not, and predicts for any row."""
        return Capabilities(
            title=self.title,
            paper=f"Hong, Park, Hwang 2025, {self.section}",
            trains_on="all rows that at least one party has, then the labelled ones of these",
            predicts_for="any row, by samples of a latent vector that are weighted by the parties that have the row",
            needs="any",
            messages=MESSAGES,
            unlabelled=True,
            without_labels=True,
        )

    def begin(self, seat: PartyContext, seeds: Seeds) -> State:
        """Make a party's encoder and decoder, the active party's label networks, and one optimizer per stage."""
        if seat.roster.K < 1:
            raise ConfigError("no party holds columns: there is nothing to learn from")
        state = State(seat)
        if seat.inputs:
            with seeds.own.drawing("encoder", seat.me):
                state.modules |= self._feature_side(seat)
        if seat.me == seat.roster.active:
            assert seat.task is not None
            with seeds.own.drawing("heads", seat.me):
                state.modules |= label_networks(seat.task, self.embedding, self.top, self.hidden, self.head_hidden)
                state.modules |= {"tied": Connectivity(seat.roster.K), "draws": SampleStreams(seeds)}
        for module in state.modules.values():
            module.to(seat.device)
        for stage in (PRETRAIN, TRAIN):
            parameters = trained(state, self.learns(stage))
            if parameters:
                state.optimizers[stage] = self._optimizer(seat, stage).build(parameters)
        return state

    def _feature_side(self, seat: PartyContext) -> dict[str, nn.Module]:
        decoder = self.make_decoder or mirrored(seat.encoder, self.decoder_hidden, self.hidden)
        return {
            "encoder": build(seat.encoder, seat.inputs, 2 * self.embedding, party=seat.me, holds=VIEW),
            "decoder": build(decoder, self.embedding, 2 * seat.inputs, party=seat.me),
        }

    def learns(self, stage: str) -> tuple[str, ...]:
        """Return the names of the networks that one stage trains."""
        return LEARNS[stage] if stage == PRETRAIN or self.train_encoders else ("discriminator",)

    def _optimizer(self, seat: PartyContext, stage: str) -> Optimizer:
        if stage == TRAIN or self.pretrain_lr is None:
            return seat.optimizer
        return replace(seat.optimizer, lr=self.pretrain_lr)

    def turn(self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str], *, L: int) -> BatchTurn:
        """Return the ``BatchTurn`` by which a party processes a batch in prediction, with ``L`` samples per row."""
        draws = state.modules.get("draws")
        return BatchTurn(
            net=net,
            seat=state.seat,
            rows=rows,
            batch=batch,
            L=L,
            D=self.embedding,
            T=self.top,
            asked=asked,
            mnar=self.mnar,
            common=True,
            own_decoder=self.make_decoder is not None,
            draws=draws if isinstance(draws, SampleStreams) else None,
        )

    # Functions for training

    def stages(self, seat: PartyContext) -> Sequence[Stage]:
        """Return the two stages: "pretrain" without labels, then "train" with labels."""
        blocks = seat.roster.blocks
        first = Stage(
            name=PRETRAIN, step=partial(self.step, PRETRAIN), rows=held_rows, validates=False,
            epochs=self.pretrain_epochs, batch_size=self.pretrain_batch_size,
            optimizer=self._optimizer(seat, PRETRAIN), remark=partial(_coverage, blocks),
        )  # fmt: skip
        nothing = seat.task is not None and not seat.task.outputs
        return first, Stage(name=TRAIN, step=partial(self.step, TRAIN), rows=labelled_rows, optional=nothing,
                            remark=None if nothing else partial(_untied_blocks, blocks))  # fmt: skip

    async def step(self, stage: str, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:
        """Run one party's side of the training on a batch; at the active party, return the loss.

        Raises:
            Diverged: a tensor contains NaN or infinity.
        """
        learns, loss = self.learns(stage), None
        turn = replace(
            self.turn(net, state, rows, batch, state.seat.roster.blocks, L=self.samples),
            follows="encoder" in learns, common=False,
        )  # fmt: skip
        for name, module in state.modules.items():
            module.train(name in learns)
        if stage in state.optimizers:
            state.optimizers[stage].zero_grad()
        own_batch = None
        if "encoder" in state.modules:
            encoder, decoder = (trained(state, set(learns) & set(names)) for names in (ENCODES, DECODES))
            own_batch = turn.encode(feature_side(state, self.floor), encoder, decoder)
        if state.seat.me == state.seat.roster.active:
            loss = await self._loss(stage, turn, state, own_batch)
        elif own_batch is not None:
            await turn.answer(own_batch)
        if stage in state.optimizers:
            state.optimizers[stage].step()
        return loss

    async def _loss(self, stage: str, turn: BatchTurn, state: State, own_batch: PartyBatch | None) -> float:
        """Return the loss of a batch at the active party, and compute the gradients of all parties.

        pretrain   minus the mean of log (1/L) sum_l w_nl over all rows                             (3.3.2)
        train      minus the mean of log (1/L) sum_l w_nl p_psi(y_n | z_nl) over labelled rows      (3.3.3)
        """
        side = label_side(state, self.floor)
        weighed = await weigh(turn, side, own_batch)
        known, log_w = labels(turn) if stage == TRAIN else None, weighed.log_w
        tied = state.modules["tied"]
        assert isinstance(tied, Connectivity)
        tied.note(weighed.gathered.observed, None if known is None else known[1])
        if known is not None:
            with torch.no_grad():
                log_w = log_w + side.log_label(weighed.z, known[0])
        share = side.share(weighed.gathered.observed.any(dim=1), known)
        loss = -(share * bound(log_w)).sum()
        turn.finite(loss, "the loss is")
        u = -turn.batch.share * share * followed(log_w, self.negligible if known is None else 0.0)
        mine = trained(state, set(self.learns(stage)) & set(LABEL_SIDE))
        await learn(turn, side, own_batch, weighed, u, mine, known)
        return loss.item()

    # Functions for prediction

    async def weighed(
        self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str], missed: Sequence[str] = ()
    ) -> WeightedBatch | None:
        """Draw and weight samples of z, together with the other parties; at the active party, return the samples."""
        turn = replace(self.turn(net, state, rows, batch, asked, L=self.predict_samples), missed=missed)
        own_batch = turn.encode(feature_side(state, self.floor)) if "encoder" in state.modules else None
        if state.seat.me == state.seat.roster.active:
            return await weigh(turn, label_side(state, self.floor), own_batch)
        if own_batch is not None:
            await turn.answer(own_batch)
        return None

    def embed(self, state: State, rows: Rows, places: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the party's rows among ``places``, as positions in ``places`` [B_k], and their means of z [B_k, D]."""
        if rows.block is None:
            return None
        x, held = rows.block.take(places)
        with torch.no_grad():
            return held, feature_side(state, self.floor).encode(x)[:, : self.embedding]

    def chunks(self, rows: Tensor) -> Sequence[Tensor]:
        """Split rows [B] into one or more chunks, so that the samples of a chunk fit into one message."""
        return torch.split(rows, max(1, AT_ONCE // (self.predict_samples * self.embedding)))

    async def predict(
        self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]
    ) -> Predictions | None:
        """Run one party's side of a prediction by self-normalised importance sampling (section 3.3.4).

        Raises:
            PredictionError: no row had a label in training.
        """
        if state.seat.task is not None:
            refuse_without_labels(state.seat.task)
        parts, known, held, scores = [], [], [], []
        tied = state.modules.get("tied")
        missed = [state.seat.roster.blocks[k] for k in tied.missed] if isinstance(tied, Connectivity) else []
        for chunk in self.chunks(batch.rows):
            weighed = await self.weighed(net, state, rows, replace(batch, rows=chunk), asked, missed)
            if weighed is not None:
                parts.append(weighed.gathered)
                known.append(weighed.known(state.seat.roster))
                held.append(weighed.held)
                with torch.no_grad():
                    answers = label_side(state, self.floor).answers(weighed.z)
                    scores.append(mixture(weighed.log_w, answers))
        if not parts:
            return None
        observed = torch.cat(known)
        silent = list(dict.fromkeys(name for gathered in parts for name in gathered.silent))
        answer = RuleAnswer(scores=torch.cat(scores), answered=observed.any(dim=1), took_part=observed, reason=UNTIED)
        present = torch.cat(held) if missed else observed
        return predictions(answer, state.seat, asked, Gathered(present, silent=silent), self.title)


@dataclass(frozen=True, kw_only=True)
class FalseVFL1(FalseVFL):
    """FALSE-VFL-I: whether a party has a row may depend on observed blocks, but not on missing blocks (MAR)."""

    title: ClassVar[str] = "FALSE-VFL-I"
    section: ClassVar[str] = "section 3.3"
    mnar: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class FalseVFL2(FalseVFL):
    """FALSE-VFL-II: whether a party has a row may depend on the party's block itself, observed or not (MNAR).

    Attributes:
        indicator_hidden: hidden widths of the parties' missing indicators; FALSE-VFL-I has no such parameter.

    """

    indicator_hidden: tuple[int, ...] = (128, 128)

    title: ClassVar[str] = "FALSE-VFL-II"
    section: ClassVar[str] = "appendix A.2"
    mnar: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _widths(self.title, "indicator_hidden", self.indicator_hidden)

    def _feature_side(self, seat: PartyContext) -> dict[str, nn.Module]:
        return super()._feature_side(seat) | {"indicator": MLP(hidden=self.indicator_hidden)(seat.inputs, 1)}


def _widths(title: str, name: str, widths: Sequence[int]) -> None:
    if any(width < 1 for width in widths):
        raise ConfigError(f"{title}: {name} must be at least 1, got {list(widths)}")


# Functions that select the rows of each stage, and functions that make remarks on these rows


def held_rows(at: Rows) -> Tensor:
    """Return a mask [N] of the rows of stage 1: those that at least one party has."""
    assert at.observed is not None
    return at.observed.any(dim=1)


def labelled_rows(at: Rows) -> Tensor:
    """Return a mask [N] of the rows of stage 2: the rows of stage 1 that have a label."""
    assert at.labeled is not None
    return at.labeled & held_rows(at)


def _coverage(blocks: tuple[str, ...], at: Rows) -> str:
    """Return a remark if all rows of stage 1 have labels, or if some parties have every row; else return ""."""
    assert at.observed is not None
    always = members(at.observed[held_rows(at)].all(dim=0).cpu(), blocks)
    known = ALWAYS.format(" and ".join(always)) if always and len(blocks) > 1 else ""
    return "; ".join(filter(None, ("" if (held_rows(at) & ~labelled_rows(at)).any() else ALL_LABELLED, known)))


def _untied_blocks(blocks: tuple[str, ...], at: Rows) -> str:
    """Return a remark on the parties whose blocks no chain of common rows connects to a label, if there are any."""
    assert at.observed is not None
    missed = untied(shared(at.observed), at.observed[labelled_rows(at)].any(dim=0))
    names = some([blocks[k] for k in missed])
    return f"no shared rows connect the block of {names} to a label, so that predictions ignore it" if missed else ""
