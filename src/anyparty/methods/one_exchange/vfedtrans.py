"""VFedTrans.  Huang, Wang, Han: "Vertical Federated Knowledge Transfer via Representation Distillation for Healthcare
Collaboration Networks", WWW 2023, in the form that APC-VFL's paper uses as a baseline (its section 6, appendix E.2).

Notation  N rows, K parties with columns, t the task (active) party, d a data (passive) party, I columns of t,
          r_d singular vectors with d, M width of an embedding.
Symbols   U_d   left singular vectors of [X_t X_d], of the rows that t and d have    [n_d, r_d].
          g_d   autoencoder of t's block: the student of U_d                         [n, I] -> [n, M].
Loss      of g_d, row i   ||x_i - f_d(g_d(x_i))||^2 + lambda * |U_d_i - g_d(x_i)| if t and d both have i

Stages    svd        FedSVD of t with every d in turn (``fedsvd``): five messages, or seven with the widths.
          distil     the active party trains every g_d on all of its rows; from this stage on, it works alone.
          classify   the active party trains a classifier of [x, g_1(x), ..., g_K-1(x)] on its labelled rows.

Roles.  If ``key_generator`` and ``server`` are two parties of the roster that hold no columns, no party can remove
another party's masks. If both are empty, the data party generates the keys and the task party is the server. Two
parties can then run the method without a third, but the task party learns the data party's rows up to a rotation
(``fedsvd.MESSAGES``).

Differences from the paper
- U_d is multiplied by sqrt(n_d), so its columns have a standard deviation of 1. Without this factor, the entries of U_d
  would shrink with the number of rows.
- Both distances in the loss are sums: over the columns of x, and over the singular vectors. With means in place of
  sums, the second distance would have I / r_d times the weight.
- M is a parameter. If t and d together have fewer than M columns, U_d is distilled only into the first units of g_d.
- With several data parties, the paper enriches x with one data party after the other. Here each g_d learns from x
  alone, and the classifier reads all g_d(x) side by side.
- The published program distils into the decoder's output. It also multiplies U by the mask once too often, which mixes
  the rows of U. Here g_d(x) is distilled, and a test compares U with the plain decomposition.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from anyparty.core import costs
from anyparty.core.predictions import Predictions
from anyparty.core.seeds import Seeds
from anyparty.core.types import Capabilities, Channel, Roster
from anyparty.errors import ConfigError, nearest
from anyparty.methods.method import Batch, PartyContext, Stage, State
from anyparty.methods.one_exchange import distillation, fedsvd
from anyparty.methods.one_exchange.classifier import ClassifierStage, EmbeddedRows, of_block
from anyparty.methods.one_exchange.distillation import Distance, DistillationLoss, Reduction
from anyparty.methods.one_exchange.exchange_once import as_block
from anyparty.networks.encoders import Autoencoder
from anyparty.networks.heads import ACTIVATIONS
from anyparty.problem.rows import Rows

TITLE = "VFedTrans"


@dataclass(frozen=True, kw_only=True)
class VFedTrans:
    """The method VFedTrans: singular vectors of common rows, distilled into embeddings of the active party's own rows.

    Attributes:
        embedding: M, the width of the representation for each data party, which limits the number of singular vectors.
            The paper uses the number of columns of both parties together.
        student_hidden: hidden widths of the students' encoders if the active party's encoder is a multilayer
            perceptron. Its dropout and normalisation are used for the students too. An encoder of another kind is used
            as the students' encoder.
        activation: activation after the hidden layers.
        distillation: λ, the weight of the distance to the singular vectors.
        distance: distance of a student's embedding to the singular vectors: "mse" or "mae".
        reduction: "sum" over a row's numbers, or their "mean".
        append: whether the classifier reads x, the active party's columns, in addition to the representations.
        classifier: "logistic" ("ridge" in regression), the name of a scikit-learn estimator, or "head": a network. The
            published program uses "MLPClassifier".
        classifier_settings: keyword arguments of that estimator; {"hidden_layer_sizes": [100, 100, 50]} in the
            published program.
        head_hidden: hidden widths of the head.
        key_generator: the party without columns that draws the masks; if empty, the data party draws them.
        server: the party without columns that computes the decomposition; if empty, the active party computes it.
        masks: "secret": masks are drawn from the system's secret randomness. "seeded": masks follow from the run's
            seed, which all parties know, for experiments that must be bit-identical when repeated.

    """

    embedding: int = 32
    student_hidden: tuple[int, ...] = (64, 64)
    activation: str = "sigmoid"
    distillation: float = 0.001
    distance: Distance = "mae"
    reduction: Reduction = "sum"
    append: bool = True
    classifier: str = "logistic"
    classifier_settings: Mapping[str, Any] = field(default_factory=dict)
    head_hidden: tuple[int, ...] = ()
    key_generator: str = ""
    server: str = ""
    masks: Literal["secret", "seeded"] = "secret"

    def __post_init__(self) -> None:
        names = ("embedding", "student_hidden", "head_hidden")
        choices: dict[str, tuple[str, Sequence[str]]] = {
            "activation": (self.activation, tuple(ACTIVATIONS)),
            **distillation.choices(self),
            "masks": (self.masks, ("secret", "seeded")),
        }
        distillation.check(
            "vfedtrans",
            widths={name: getattr(self, name) for name in names},
            at_least_0={"distillation": self.distillation},
            choices=choices,
        )
        roles = (self.key_generator, self.server)
        if bool(roles[0]) != bool(roles[1]) or (roles[0] and roles[0] == roles[1]):
            raise ConfigError(f"vfedtrans: key_generator {roles[0]!r} and server {roles[1]!r} must be two parties, or "
                              "neither named: a server with the keys could remove the masks")  # fmt: skip

    @property
    def can(self) -> Capabilities:
        """The capabilities: the method trains on all rows of the active party, and predicts from its block alone."""
        return Capabilities(
            title=TITLE,
            paper="Huang et al. 2023",
            trains_on="all rows of the active party; learns from the others through shared rows",
            predicts_for="the active party's rows, from its own block",
            needs="any",
            predicts_alone=True,
            unlabelled=True,
            messages=fedsvd.MESSAGES,
        )

    @property
    def _ending(self) -> ClassifierStage:
        return ClassifierStage.of(self, TITLE)

    def published_costs(self, ran: costs.RunShape) -> list[costs.FormulaTraffic]:
        """Compute the traffic of each data party's decomposition with equation (10) of the APC-VFL paper."""
        return [
            costs.FormulaTraffic(party=name, equation="(10)", counts={"aligned": count, "x_t": ran.columns})
            for name, count in ran.shared.items()
        ]

    # Functions that make and use the networks

    def begin(self, seat: PartyContext, seeds: Seeds) -> State:
        """Make the active party's students and classifier; the other parties have no network.

        Raises:
            ConfigError: the active party has no columns; there is no data party; or ``key_generator`` or ``server`` is
                not in the roster, or holds columns or labels.
        """
        roster = seat.roster
        distillation.active_block(roster, TITLE)
        data = distillation.others(roster)
        if not data:
            raise ConfigError(f"{TITLE} needs a passive party with columns to learn from")
        self._check_roles(roster)
        if seat.me != roster.active:
            return State(seat)
        encoder = distillation.student(seat, self.student_hidden, self.activation)
        modules: dict[str, torch.nn.Module] = {}
        for k in range(len(data)):
            with seeds.own.drawing("student", k):
                modules[f"student{k}"] = Autoencoder(encoder, seat.inputs, self.embedding, party=seat.me)
        assert seat.task is not None
        width = self.embedding * len(data) + (seat.inputs if self.append else 0)
        with seeds.own.drawing("classifier"):
            modules["classifier"] = self._ending.module(seat.task, width, seeds)
        return distillation.place(State(seat), modules)

    def _check_roles(self, roster: Roster) -> None:
        for role in ("key_generator", "server"):
            name = getattr(self, role)
            if name and name not in roster.names:
                raise ConfigError(f"vfedtrans: {role} = {name!r} is not a party{nearest(name, roster.names)}")
            if name and (name in roster.blocks or name in roster.labelers):
                raise ConfigError(f"vfedtrans: {role} = {name!r} holds columns or labels; name a party that has none")

    def roles(self, roster: Roster, data: str) -> fedsvd.Roles:
        """Return the role of each party in the decomposition with one data party."""
        return fedsvd.Roles(
            task=roster.active, data=data, server=self.server or roster.active, keys=self.key_generator or data
        )

    def features(self, state: State, x: Tensor) -> Tensor:
        """Return the classifier's input, x and all students' embeddings side by side: [B, I] -> [B, I + (K - 1) M]."""
        count = len(distillation.others(state.seat.roster))
        learnt = [distillation.embed(state, f"student{k}", x) for k in range(count)]
        return torch.cat([x, *learnt] if self.append else learnt, dim=1)

    def classified(self, state: State, rows: Rows, places: Tensor) -> EmbeddedRows:
        """Return the classifier's input for the active party's rows among ``places`` [B]."""
        return of_block(state, rows, places, self.features)

    def embed(self, state: State, rows: Rows, places: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the classifier's input as the active party's embeddings; ``None`` at all other parties."""
        if state.seat.me != state.seat.roster.active:
            return None
        found = self.classified(state, rows, places)
        return found.held, found.u

    # Functions for training

    def stages(self, seat: PartyContext) -> Sequence[Stage]:
        """Return the stages "svd", "distil" and "classify"."""
        roster = seat.roster

        return (
            Stage(
                name="svd",
                step=self._svd,
                rows=lambda rows: distillation.some_aligned(rows, roster, TITLE),
                epochs=0,
                validates=False,
                with_validation=True,
            ),
            Stage(
                name="distil",
                step=self._learn,
                rows=lambda rows: distillation.own(rows, roster),
                parties="active",
                loss=self._learnt,
                remark=lambda _: distillation.idle_encoder(seat, TITLE),
            ),
            self._ending.stage(lambda rows: distillation.labelled_own(rows, roster)),
        )

    async def _svd(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:
        """Run the decomposition with every data party in turn; at the active party, keep the singular vectors."""
        seat = state.seat
        for data in distillation.others(seat.roster):
            roles = self.roles(seat.roster, data)
            places, x = batch.rows, None
            if net.me in {roles.task, roles.data}:
                assert rows.block is not None
                if net.me == roles.task:
                    assert rows.observed is not None
                    places = places[rows.observed[places, seat.roster.blocks.index(data)]]
                x = rows.block.take(places)[0]
            u = await fedsvd.decompose(net, roles, x, self.embedding, self._secret(batch, data))
            if u is not None:
                scaled = (u * len(u) ** 0.5).to(seat.device, torch.float32)
                distillation.keep(state, data, as_block(rows.n, places, scaled))
        return None

    def _secret(self, batch: Batch, data: str) -> bytes:
        if self.masks == "secret":
            return secrets.token_bytes(fedsvd.KEY)
        return batch.seeds.number("masks", data).to_bytes(fedsvd.KEY, "little")

    async def _learn(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:  # noqa: ARG002
        """Train the student g_d of every data party; return the sum of the students' losses."""
        data = distillation.others(state.seat.roster)
        return sum(
            distillation.fit(state, f"student{k}", batch, lambda k=k: self._loss(state, k, rows, batch))  # type: ignore[misc]
            for k in range(len(data))
        )

    def _learnt(self, state: State, rows: Rows, batch: Batch) -> float | None:
        if distillation.held(rows, batch) is None:
            return None
        count = len(distillation.others(state.seat.roster))
        return sum(self._loss(state, k, rows, batch).item() for k in range(count))

    def _loss(self, state: State, k: int, rows: Rows, batch: Batch) -> Tensor:
        teacher = distillation.kept(state, distillation.others(state.seat.roster)[k])
        return DistillationLoss.of(self).on(state, f"student{k}", teacher, rows, batch)

    # Functions for prediction

    async def predict(
        self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]  # noqa: ARG002
    ) -> Predictions | None:  # fmt: skip
        """Return, at the active party, answers from this party's block; no message is sent."""
        leads = state.seat.me == state.seat.roster.active
        return self._ending.alone(state, rows, batch, asked) if leads else None
