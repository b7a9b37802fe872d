"""FALSE-VFL-I and II.  Hong, Park, Hwang: "Deep Latent Variable Model based Vertical Federated Learning with Flexible
Alignment and Labeling Scenarios", arXiv 2505.11035: sections 3 and 4, appendices A to C; MIWAE, not-MIWAE and supMIWAE
across parties.

Letters   B rows, K parties, L importance samples, D width of z, T width of h, C outputs.
Symbols   O_n    observed[n]   parties that have row n, never empty                                     [B, K] bool
          m_n    the mask as numbers: 1 where observed
          z, h   latent vectors: p(h) = N(0, I), p_theta_0(z | h), p_theta_k(x^k | z), p_psi(y | z)
Posterior q(z | x^O) = N(mean of mu_k, inverse of the summed precisions 1 / sigma_k^2), k in O              (1)
          q(h | z) = N(...) by the global encoder
Weights   w_l = prod_{k in O} p(x^k | z_l) p(z_l | h_l) p(h_l) / (q(z_l | x^O) q(h_l | z_l))
          II: times prod_{k in O} pi_k(x^k) prod_{k not in O} (1 - pi_k(x^k_l)), x^k_l ~ p(x^k | z_l)      (A.2)
Stage 1   all rows, labelled or not:  maximise mean_n log (1/L) sum_l w_nl  over theta, phi (and xi)    (3.3.2)
Stage 2   labelled rows, theta fixed: maximise mean_n log (1/L) sum_l w_nl p_psi(y_n | z_nl)  over psi, phi (3.3.3)
Answer    p(y | x^O) = sum_l alpha_l p_psi(y | z_l), alpha_l = w_l / sum_j w_j                          (3.3.4)

What the paper leaves open, and what stands here
- It gives no L: 10 in training, 50 in prediction (supMIWAE: 50).
- Samples that have less than ``negligible`` of their row's weight are left out of stage 1's gradient, most of them
  where parties have many columns (decision 10); with 0 it is exact.
- It fixes theta in stage 2 and does not say whether phi moves: ``train_encoders``, on; without it a look had less.
- The samples of a prediction are drawn with numbers of the row's own, by its id, who has it, and the run's seed or
  secret (``false_vfl_draws``); a block that is lacking (II) with numbers common to all rows, balanced over the L.  So
  an answer depends on the row alone, neither on its batch nor on its place, and is not off alike in all rows.  Training
  draws anew for every batch, from streams of the active party's own.
- Deviations are softplus plus ``floor``, .1 of a standardised column; it names no bound (decision 12).
- An empty cell in a row that a party has: its factor is p of the columns that are known, as MIWAE's; encoder and
  missing indicator see the cell filled in.  A category's missing cells are a level, explained as the others are.
- With ``balance`` a labelled row's term is weighted by its class.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from anyparty.blocks.blocks import Rows
from anyparty.errors import ConfigError
from anyparty.methods.exchange import Gathered, predictions
from anyparty.methods.false_vfl_draws import Draws
from anyparty.methods.false_vfl_exchange import Turn
from anyparty.methods.false_vfl_lead import Weighed, weigh
from anyparty.methods.false_vfl_messages import MESSAGES
from anyparty.methods.false_vfl_nets import (
    feature_side,
    label_networks,
    label_side,
    mirrored,
    mixture,
    trained,
)
from anyparty.methods.false_vfl_rows import UNTIED, anybodys, labelled, which_sets, without_labels
from anyparty.methods.false_vfl_step import PRETRAIN, TRAIN, step
from anyparty.methods.fusion import Answer
from anyparty.methods.method import Batch, Seat, Stage, State
from anyparty.nets.mlp import MLP, Factory, build
from anyparty.nets.optimizer import Optimizer
from anyparty.nets.taught import Tied
from anyparty.predictions import Predictions, refuse_without_labels
from anyparty.seeds import Seeds
from anyparty.terms import Capabilities, Channel

LEARNS = {
    PRETRAIN: ("encoder", "decoder", "indicator", "global_encoder", "global_decoder"),
    TRAIN: ("encoder", "global_encoder", "discriminator"),
}
VIEW = "mean and deviation side by side"
AT_ONCE = 2**22  # numbers of z in one message of prediction: 16 MiB


@dataclass(frozen=True, kw_only=True)
class FalseVFL(ABC):
    """What FALSE-VFL-I and II share: all but the missing indicators.

    Attributes:
        embedding: D, width of z, the latent vector that every party's embedding speaks of.
        top: T, width of h, the latent vector above it.
        samples: L in training.
        negligible: samples of less than this share of their row's weight are left out of stage 1's gradient.
        predict_samples: L in prediction.
        hidden: hidden widths of the global encoder and decoder.
        head_hidden: hidden widths of the discriminator.
        decoder_hidden: hidden widths of the parties' decoders; without, those of a party's MLP encoder in reverse, or
            transposed convolutions behind a ResNet.
        floor: what no standard deviation falls below, in units of a prepared column.
        train_encoders: whether the encoders go on learning in stage 2.
        pretrain_epochs: epochs of stage 1; without, as many as stage 2.
        pretrain_batch_size: rows of a batch in stage 1; without, as many as in stage 2.
        pretrain_lr: learning rate of stage 1; without, each party's own.
        make_decoder: a user's own decoder, (D, 2 x width of the block) -> module; it sees samples as rows and must
            take each by itself (no batch normalisation).

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
        """Trains on any row, labelled or not; predicts for any row."""
        return Capabilities(
            title=self.title,
            paper=f"Hong, Park, Hwang 2025, {self.section}",
            trains_on="all rows that anybody has, then those of them with a label",
            predicts_for="any row, by samples of a latent vector weighed by the parties that have it",
            needs="any",
            messages=MESSAGES,
            unlabelled=True,
            without_labels=True,
        )

    def begin(self, seat: Seat, seeds: Seeds) -> State:
        """Make a party's encoder and decoder, at the active party the label side too, and an optimizer a stage."""
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
                state.modules |= {"tied": Tied(seat.roster.K), "draws": Draws(seeds)}
        for module in state.modules.values():
            module.to(seat.device)
        for stage in (PRETRAIN, TRAIN):
            parameters = trained(state, self.learns(stage))
            if parameters:
                state.optimizers[stage] = self._optimizer(seat, stage).build(parameters)
        return state

    def _feature_side(self, seat: Seat) -> dict[str, nn.Module]:
        decoder = self.make_decoder or mirrored(seat.encoder, self.decoder_hidden, self.hidden)
        return {
            "encoder": build(seat.encoder, seat.inputs, 2 * self.embedding, party=seat.me, holds=VIEW),
            "decoder": build(decoder, self.embedding, 2 * seat.inputs, party=seat.me),
        }

    def learns(self, stage: str) -> tuple[str, ...]:
        """Return the networks that a stage trains."""
        return LEARNS[stage] if stage == PRETRAIN or self.train_encoders else ("discriminator",)

    def _optimizer(self, seat: Seat, stage: str) -> Optimizer:
        if stage == TRAIN or self.pretrain_lr is None:
            return seat.optimizer
        return replace(seat.optimizer, lr=self.pretrain_lr)

    def turn(self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str], *, L: int) -> Turn:
        """Return a party's turn in a batch of prediction."""
        draws = state.modules.get("draws")
        return Turn(net=net, seat=state.seat, rows=rows, batch=batch, L=L, D=self.embedding, T=self.top, asked=asked,
                    mnar=self.mnar, common=True, own_decoder=self.make_decoder is not None,
                    draws=draws if isinstance(draws, Draws) else None)  # fmt: skip

    # Training

    def stages(self, seat: Seat) -> Sequence[Stage]:
        """Return both stages: without labels, then with them."""
        first = Stage(
            name=PRETRAIN, step=partial(step, self, PRETRAIN), rows=anybodys, validates=False,
            epochs=self.pretrain_epochs, batch_size=self.pretrain_batch_size,
            optimizer=self._optimizer(seat, PRETRAIN),
            remark=partial(which_sets, seat.roster.blocks),
        )  # fmt: skip

        nothing = seat.task is not None and not seat.task.outputs
        return first, Stage(name=TRAIN, step=partial(step, self, TRAIN), rows=labelled, optional=nothing,
                            remark=None if nothing else partial(without_labels, seat.roster.blocks))  # fmt: skip

    # Prediction

    async def weighed(
        self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str], missed: Sequence[str] = ()
    ) -> Weighed | None:
        """Play a party's part in weighing samples for a few rows; the active party gets them."""
        turn = replace(self.turn(net, state, rows, batch, asked, L=self.predict_samples), missed=missed)
        home = turn.encode(feature_side(state, self.floor)) if "encoder" in state.modules else None
        if state.seat.me == state.seat.roster.active:
            return await weigh(turn, label_side(state, self.floor), home)
        if home is not None:
            await turn.answer(home)
        return None

    def chunks(self, rows: Tensor) -> Sequence[Tensor]:
        """Return rows in parts whose samples fit into a message: [B] -> parts of it, at least one."""
        return torch.split(rows, max(1, AT_ONCE // (self.predict_samples * self.embedding)))

    async def predict(
        self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]
    ) -> Predictions | None:
        """Play a party's part in predicting a batch by self-normalised importance sampling (section 3.3.4).

        Raises:
            PredictionError: no row had a label in training.
        """
        if state.seat.task is not None:
            refuse_without_labels(state.seat.task)
        parts, known, held, scores = [], [], [], []
        tied = state.modules.get("tied")
        missed = [state.seat.roster.blocks[k] for k in tied.missed] if isinstance(tied, Tied) else []
        for chunk in self.chunks(batch.rows):
            weighed = await self.weighed(net, state, rows, replace(batch, rows=chunk), asked, missed)
            if weighed is not None:
                parts.append(weighed.there)
                known.append(weighed.known(state.seat.roster))
                held.append(weighed.held)
                with torch.no_grad():
                    answers = label_side(state, self.floor).answers(weighed.z)
                    scores.append(mixture(weighed.log_w, answers))
        if not parts:
            return None
        observed = torch.cat(known)
        silent = list(dict.fromkeys(name for there in parts for name in there.silent))
        answer = Answer(scores=torch.cat(scores), answered=observed.any(dim=1), took_part=observed, reason=UNTIED)
        there = torch.cat(held) if missed else observed
        return predictions(answer, state.seat, asked, Gathered(there, silent=silent), self.title)


@dataclass(frozen=True, kw_only=True)
class FalseVFL1(FalseVFL):
    """FALSE-VFL-I: who has which row may depend on what is observed, not on what is not (MAR)."""

    title: ClassVar[str] = "FALSE-VFL-I"
    section: ClassVar[str] = "section 3.3"
    mnar: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class FalseVFL2(FalseVFL):
    """FALSE-VFL-II: who has which row may depend on that very block, seen or not (MNAR).

    Attributes:
        indicator_hidden: hidden widths of the parties' missing indicators.

    """

    indicator_hidden: tuple[int, ...] = (128, 128)

    title: ClassVar[str] = "FALSE-VFL-II"
    section: ClassVar[str] = "appendix A.2"
    mnar: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _widths(self.title, "indicator_hidden", self.indicator_hidden)

    def _feature_side(self, seat: Seat) -> dict[str, nn.Module]:
        return super()._feature_side(seat) | {"indicator": MLP(hidden=self.indicator_hidden)(seat.inputs, 1)}


def _widths(title: str, name: str, widths: Sequence[int]) -> None:
    if any(width < 1 for width in widths):
        raise ConfigError(f"{title}: {name} must be at least 1, got {list(widths)}")
