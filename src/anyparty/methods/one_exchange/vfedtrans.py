"""VFedTrans.  Huang, Wang, Han: "Vertical Federated Knowledge Transfer via Representation Distillation for Healthcare
Collaboration Networks", WWW 2023; as APC-VFL compares itself with it (its section 6, appendix E.2).

Letters   N rows, K parties with columns, t the task (active) party, d a data (passive) party, I columns of t,
          r_d singular vectors with d, M width of an embedding.
Symbols   U_d   left singular vectors of [X_t X_d], of the rows that both have       [n_d, r_d]
          g_d   autoencoder of t's block: the student of U_d                         [n, I] -> [n, M]
Loss      of g_d, row i   ||x_i - f_d(g_d(x_i))||^2 + lambda * |U_d_i - g_d(x_i)| if t and d both have i

Stages    svd        FedSVD of t with every d in turn (``fedsvd``): five messages, seven with the widths
          distil     every g_d, on all rows of the active party; from here on it is alone
          classify   a classifier of [x, g_1(x), ..., g_K-1(x)], on its labelled rows

Roles.  ``key_generator`` and ``server`` name two parties of the roster that hold no columns: then nobody can take off
another's masks.  Where neither is named, the data party generates the keys and the task party is the server: two
parties alone can run it, and the task party then learns the data party's rows up to a rotation (``fedsvd.MESSAGES``).

Where we differ, knowingly
- U_d times sqrt(n_d): columns of deviation one, for entries of U shrink with the number of rows.
- Distances are sums over columns and over singular vectors: lambda weighs r_d / I of what it does beside means.
- M is a setting; where t and d have fewer columns together, the first units are distilled and the rest are free.
- With more data parties, the paper enriches x again and again; here each g_d learns from x, and all are put together.
- The published program distils the decoder's output, and multiplies U by the mask once too often, which scatters it
  over rows: here the embedding is distilled, and a test holds U to the plain decomposition.
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
from anyparty.data.blocks import Rows
from anyparty.errors import ConfigError, nearest
from anyparty.methods.method import Batch, PartyContext, Stage, State
from anyparty.methods.one_exchange import distillation, fedsvd
from anyparty.methods.one_exchange.classifier import ClassifierStage, EmbeddedRows, of_block
from anyparty.methods.one_exchange.distillation import Distance, DistillationLoss, Reduction
from anyparty.methods.one_exchange.exchange_once import as_block
from anyparty.networks.autoencoder import Autoencoder
from anyparty.networks.heads import ACTIVATIONS

TITLE = "VFedTrans"


@dataclass(frozen=True, kw_only=True)
class VFedTrans:
    """Singular vectors of the common rows, distilled into a representation of the active party's own.

    Attributes:
        embedding: M, the width of the representation that each data party's knowledge gets, and the most singular
            vectors that are taken; the paper's is the number of columns of both together.
        student_hidden: hidden widths of the encoders, where the active party's own is not of another kind; dropout and
            normalisation are that one's.
        activation: after the hidden layers.
        distillation: lambda.
        distance: "mse" or "mae" to the singular vectors.
        reduction: "sum" over a row's numbers, or their "mean".
        append: whether the classifier reads x too, or the representations alone.
        classifier: "logistic" ("ridge" for numbers), the name of a scikit-learn estimator, or "head": a network.
        classifier_settings: what that estimator is made with.
        head_hidden: hidden widths of the head.
        key_generator: the party without columns that draws the masks; empty: the data party itself.
        server: the party without columns that decomposes; empty: the active party.
        masks: drawn from the system's "secret" randomness, or "seeded" by the run's seed, which all parties know: for
            experiments that must repeat to the last bit.

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
                              f"neither named: a server with the keys could take the masks off")  # fmt: skip

    @property
    def can(self) -> Capabilities:
        """Trains on all of the active party's rows; predicts from its block alone."""
        return Capabilities(
            title=TITLE,
            paper="Huang et al. 2023",
            trains_on="all rows of the active party; learns from the others by rows that they have too",
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
        """Return what (10) counts of each data party's decomposition."""
        return [
            costs.FormulaTraffic(party=name, equation="(10)", counts={"aligned": count, "x_t": ran.columns})
            for name, count in ran.shared.items()
        ]

    # Networks

    def begin(self, seat: PartyContext, seeds: Seeds) -> State:
        """Make the active party's students and classifier; the others have no network.

        Raises:
            ConfigError: the active party has no columns, there is no data party, or a role is no party's.
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
                raise ConfigError(f"vfedtrans: {role} = {name!r} is no party{nearest(name, roster.names)}")
            if name and (name in roster.blocks or name in roster.labelers):
                raise ConfigError(f"vfedtrans: {role} = {name!r} holds columns or labels; name a party that has none")

    def roles(self, roster: Roster, data: str) -> fedsvd.Roles:
        """Return who plays what in the decomposition with a data party."""
        return fedsvd.Roles(
            task=roster.active, data=data, server=self.server or roster.active, keys=self.key_generator or data
        )

    def features(self, state: State, x: Tensor) -> Tensor:
        """Return what the classifier reads of rows: [B, I] -> [B, I + (K - 1) M]."""
        count = len(distillation.others(state.seat.roster))
        learnt = [distillation.embed(state, f"student{k}", x) for k in range(count)]
        return torch.cat([x, *learnt] if self.append else learnt, dim=1)

    def classified(self, state: State, rows: Rows, places: Tensor) -> EmbeddedRows:
        """Return what the classifier reads of the rows at ``places`` [B] that the active party has."""
        return of_block(state, rows, places, self.features)

    # Training

    def stages(self, seat: PartyContext) -> Sequence[Stage]:
        """Return the stages above."""
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
        """Decompose with every data party in turn; at the active party, keep the singular vectors."""
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
        """Train every student; return the sum of their losses."""
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

    # Prediction

    async def predict(
        self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]  # noqa: ARG002
    ) -> Predictions | None:  # fmt: skip
        """Answer from the active party's block, without a message."""
        leads = state.seat.me == state.seat.roster.active
        return self._ending.alone(state, rows, batch, asked) if leads else None
