"""APC-VFL.  Irureta, Imaz, Lojo, Fernandez-Marques, Perona, González: "Towards Active Participant Centric Vertical
Federated Learning: Some Representations May Be All You Need", sections 4 and 6, figures 3 and 4, equation (5).

Notation  N rows, K parties with columns (including the active party), I_k width of party k's block, I width of the
          active party's block; z_k width of party k's local embedding, M width of the joint embedding z_A and of the
          enriched embedding g3(x), C outputs.
Symbols   g1   autoencoder of a party's own block, at each party             [n, I_k] -> [n, z_k].
          Z_k  g1's embeddings of party k's aligned rows, sent once          [n_k, z_k].
          g2   autoencoder of all Z_k side by side, at the active party      [n, sum_k z_k] -> [n, M].
          z_A  g2's embedding of an aligned row: the teacher                 [n, M].
          g3   autoencoder of the active party's block: the student          [n, I] -> [n, M].
          f3   decoder of the autoencoder g3                                 [n, M] -> [n, I].
Loss      of g3, row i   ||x_i - f3(g3(x_i))||^2 + lambda * distance(z_A_i, g3(x_i)) if i is aligned            (5)

Stages    represent   every party trains g1 alone, on its aligned rows.
          share       every passive party sends Z_k, the only message of the method.
          joint       the active party trains g2; from this stage on, it works alone.
          teach       the active party computes z_A of every aligned row, and deletes all Z_k.
          distil      the active party trains g3 on all of its rows, labelled or not.
          classify    the active party trains a classifier of g3(x) on all of its labelled rows.
With lambda = 0 (the paper's ablation), only the last two stages remain, and no message is sent.

More than two parties.  The paper has one passive party. Here a row is aligned if the active party and at least one
passive party have it. Party k trains g1 on the aligned rows that it has, and sends Z_k of these rows. If a passive
party k lacks a row, g2 does not reconstruct the missing embedding, and its first layer uses a learnt vector a_k in
place of the product of the party's weights and the embedding. Every aligned row thus has a teacher from exactly the
parties that have it. A row is no longer aligned if all passive parties that have it were lost before they sent Z_k.

Differences from the paper
- Early stopping follows the settings ``train.patience`` and ``train.validation``; the paper has patience 10 and a tenth
  of the rows. Every party stops its training by its own loss, independently of the other parties. With ``classifier =
  "head"``, early stopping of the head uses the run's metric, or the head's loss if the head reads joint embeddings
  (``classify_on = "joint"``). The classifier is not fitted to validation rows.
- (5) is written with norms, which are sums over a row's numbers, but called MSE and MAE, which are means. The setting
  ``reduction`` chooses between them.

In two variants, the classifier also reads joint embeddings. They are chosen with ``classify_on``:

"joint"    The paper's variant for full alignment (figure 4): the classifier reads z_A, so prediction needs messages
           with the passive parties' Z_k.
"either"   Not in the paper: the active party's model stores z_A of the rows that were exchanged in training. The
           classifier reads u = [0, z_A, 1] for these rows, and u = [g3(x), 0, 0] for all other rows, [B, 2 M + 1].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from anyparty.core import costs
from anyparty.core.predictions import Predictions
from anyparty.core.seeds import Seeds
from anyparty.core.types import Capabilities, Channel
from anyparty.errors import AlignmentError, ConfigError
from anyparty.methods.method import Batch, PartyContext, Stage, State
from anyparty.methods.one_exchange import distillation, exchange_once
from anyparty.methods.one_exchange import exchange_once as exchange
from anyparty.methods.one_exchange.classifier import ClassifierStage, EmbeddedRows, of_block
from anyparty.methods.one_exchange.distillation import Distance, DistillationLoss, Reduction
from anyparty.methods.one_exchange.exchange_once import REPRESENTATION, RepresentationSharing, as_block, side_by_side
from anyparty.networks.encoders import Autoencoder, JointAutoencoder
from anyparty.networks.heads import ACTIVATIONS
from anyparty.networks.modules import VectorMemory
from anyparty.networks.objective import losses
from anyparty.problem.rows import Rows

TITLE = "APC-VFL"
TEACHER = "teacher"


@dataclass(frozen=True, kw_only=True)
class Apc:
    """The method APC-VFL: one exchange of representations, after which the active party works alone.

    Attributes:
        embedding: M, the width of the joint embedding (g2's) and of the enriched embedding (g3's).
        active_embedding: the width of the active party's local embedding (g1's).
        passive_embedding: z_p, the width of every passive party's local embedding; the bytes sent are proportional to
            it.
        joint_hidden: hidden widths of g2's encoder; g1 uses the party's own ``encoder``.
        student_hidden: hidden widths of g3's encoder if the active party's encoder is a multilayer perceptron. Its
            dropout and normalisation are used for g3 too. An encoder of another kind is used as g3's encoder.
        activation: activation of g2 and g3 after every layer, and of the local embeddings.
        distillation: λ of equation (5); 0 is the ablation, without any exchange, and one party suffices.
        distance: distance of the student's embedding to the teacher's: "mse" or "mae".
        reduction: "sum" over a row's numbers, as equation (5) is written, or their "mean", as MSE and MAE are defined.
        classify_on: the input of the classifier. "own": the active party's enriched embedding. "joint": the joint
            embedding, which needs a passive party in prediction too (figure 4). "either": for rows that were exchanged
            in training, the joint embedding, which the model stores; for all other rows, the enriched embedding.
        classifier: "logistic" ("ridge" in regression), the name of a scikit-learn estimator, or "head": a network with
            early stopping on validation rows.
        classifier_settings: keyword arguments of that estimator.
        head_hidden: hidden widths of the head.
        precision: precision of the numbers that are sent: "float32", "float16", or "uint8" or "uint4", which quantise
            each column to 8 or 4 bits per number.

    """

    embedding: int = 256
    active_embedding: int = 128
    passive_embedding: int = 256
    joint_hidden: tuple[int, ...] = (256,)
    student_hidden: tuple[int, ...] = (256,)
    activation: str = "selu"
    distillation: float = 0.01
    distance: Distance = "mse"
    reduction: Reduction = "sum"
    classify_on: Literal["own", "joint", "either"] = "own"
    classifier: str = "logistic"
    classifier_settings: Mapping[str, Any] = field(default_factory=dict)
    head_hidden: tuple[int, ...] = ()
    precision: Literal["float32", "float16", "uint8", "uint4"] = "float32"

    def __post_init__(self) -> None:
        names = ("embedding", "active_embedding", "passive_embedding", "joint_hidden", "student_hidden", "head_hidden")
        distillation.check(
            "apc",
            widths={name: getattr(self, name) for name in names},
            at_least_0={"distillation": self.distillation},
            choices=self._choices(),
        )
        if self.classify_on == "joint" and self.precision in exchange_once.BITS:
            raise ConfigError(f"apc: precision {self.precision!r} computes its quantization steps from all rows that "
                              "are sent together; with classify_on = 'joint' rows are sent again for prediction; use "
                              "'float16'")  # fmt: skip

    def _choices(self) -> dict[str, tuple[str, Sequence[str]]]:
        return {
            "activation": (self.activation, tuple(ACTIVATIONS)),
            **distillation.choices(self),
            "classify_on": (self.classify_on, ("own", "joint", "either")),
            "precision": (self.precision, exchange_once.PRECISIONS),
        }

    @property
    def can(self) -> Capabilities:
        """The capabilities: the method trains on all rows of the active party.

        By default it predicts from the active party's block alone.
        """
        joint, holds, answers = self.classify_on == "joint", REPRESENTATION.holds, "from its own block"
        if joint:
            holds = f"{holds}; again for rows to be predicted"
        elif self.classify_on == "either":
            holds = f"{holds}; the joint embeddings that the active party computes from it stay in its model"
            answers = f"{answers}, and for rows that were sent in training from their joint embeddings"
        return Capabilities(
            title=TITLE,
            paper="Irureta et al., sections 4 and 6",
            trains_on="rows that the active and a passive party have" if joint else
                      "all rows of the active party; learns from the others through shared rows",
            predicts_for="rows that the active and a passive party have" if joint else
                         f"the active party's rows, {answers}",
            needs="any",
            predicts_alone=not joint, unlabelled=True,
            messages=(replace(REPRESENTATION, holds=holds),) if self.exchanges else (),
        )  # fmt: skip

    @property
    def exchanges(self) -> bool:
        """True if parties exchange messages in training; False in the ablation."""
        return self.distillation > 0 or self.classify_on != "own"

    @property
    def sharing(self) -> RepresentationSharing:
        """The exchange by which the active party receives all local embeddings, with the method's settings."""
        return RepresentationSharing(
            active=self.active_embedding, passive=self.passive_embedding, precision=self.precision
        )

    @property
    def _ending(self) -> ClassifierStage:
        return ClassifierStage.of(self, TITLE, self._fitted_to if self.classify_on == "either" else None)

    def published_costs(self, ran: costs.RunShape) -> list[costs.FormulaTraffic]:
        """Compute the traffic of each passive party's message with equation (6)."""
        if not self.exchanges:
            return []
        return [
            costs.FormulaTraffic(party=name, equation="(6)", counts={"aligned": count, "z_p": self.passive_embedding})
            for name, count in ran.shared.items()
        ]

    # Functions that make and use the networks

    def begin(self, seat: PartyContext, seeds: Seeds) -> State:
        """Make a party's local autoencoder, and at the active party all other networks.

        Raises:
            ConfigError: the active party has no columns, or there is no passive party to learn from.
        """
        roster = seat.roster
        distillation.active_block(roster, TITLE)
        if self.exchanges and not distillation.others(roster):
            raise ConfigError(f"{TITLE} needs a passive party with columns to learn from; with distillation = 0 and "
                              f"classify_on = 'own' the active party trains alone")  # fmt: skip
        modules: dict[str, nn.Module] = {}
        for name in self._networks(seat):
            with seeds.own.drawing(name, seat.me):
                modules[name] = self._make(name, seat, seeds)
        return distillation.place(State(seat), modules)

    def _networks(self, seat: PartyContext) -> tuple[str, ...]:
        first = ("g1",) if self.exchanges and seat.me in seat.roster.blocks else ()
        if seat.me != seat.roster.active:
            return first
        return (*first, *(("g2",) if self.exchanges else ()), *(("g3",) if self.classify_on != "joint" else ()),
                *(("memory",) if self.classify_on == "either" else ()), "classifier")  # fmt: skip

    def _make(self, name: str, seat: PartyContext, seeds: Seeds) -> nn.Module:
        widths = self.sharing.widths(seat.roster)
        if name == "g1":
            return Autoencoder(seat.encoder, seat.inputs, widths[seat.me], activation=self.activation, party=seat.me)
        if name == "g2":
            return JointAutoencoder(list(widths.values()), self.joint_hidden, self.embedding, self.activation)
        if name == "g3":
            encoder = distillation.student(seat, self.student_hidden, self.activation)
            return Autoencoder(encoder, seat.inputs, self.embedding, activation=self.activation, party=seat.me)
        if name == "memory":
            return representation_memory(self.embedding, seat.roster.K)
        assert seat.task is not None
        width = either_width(self.embedding) if self.classify_on == "either" else self.embedding
        return self._ending.module(seat.task, width, seeds)

    def classified(self, state: State, rows: Rows, places: Tensor) -> EmbeddedRows:
        """Return the classifier's input for the active party's rows among ``places`` [B].

        The input is the enriched embedding g3(x), or with ``classify_on = "either"`` the vector u of the module's
        docstring.
        """
        own = self._own(state, rows, places)
        return embed_either(state, rows, places, own) if self.classify_on == "either" else own

    def embed(self, state: State, rows: Rows, places: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the party's rows among ``places``, as positions in ``places``, and their embeddings.

        The embeddings are the classifier's input if the party has g3, otherwise Z_k. The result is ``None`` if the
        party has neither g3 nor g1.
        """
        if "g3" in state.modules:
            found = self.classified(state, rows, places)
            return found.held, found.u
        return distillation.embedded(state, "g1", rows, places) if "g1" in state.modules else None

    def _fitted_to(self, state: State, rows: Rows, places: Tensor) -> EmbeddedRows:
        return embed_both(state, rows, places, self._own(state, rows, places))

    def _own(self, state: State, rows: Rows, places: Tensor) -> EmbeddedRows:
        return of_block(state, rows, places, lambda state, x: distillation.embed(state, "g3", x))

    # Functions for training

    def stages(self, seat: PartyContext) -> Sequence[Stage]:
        """Return the stages that the method's parameters require; the module's docstring describes all stages."""
        roster = seat.roster

        def aligned(rows: Rows) -> Tensor:
            return distillation.some_aligned(rows, roster, TITLE)

        def labelled(rows: Rows) -> Tensor:
            found = distillation.labelled_own(rows, roster)
            return found & aligned(rows) if self.classify_on == "joint" else found

        first = (
            Stage(name="represent", step=exchange.represent, rows=aligned, loss=exchange.represented),
            Stage(name="share", step=self._share, rows=aligned, epochs=0, validates=False, with_validation=True),
            Stage(name="joint", step=self._join, rows=aligned, parties="active", loss=self._joined),
            Stage(name="teach", step=self._store_joint, rows=aligned, epochs=0, validates=False, with_validation=True,
                  parties="active"),
        )  # fmt: skip
        if self.classify_on == "joint":
            return (*first, variant_stage(self._ending, TEACHER, labelled))
        idle = "" if self.exchanges else distillation.idle_encoder(seat, f"{TITLE} without an exchange")
        student = Stage(
            name="distil",
            step=self._learn,
            rows=lambda rows: distillation.own(rows, roster),
            parties="active",
            loss=self._learnt,
            remark=lambda _: idle,
        )
        return (*(first if self.exchanges else ()), student, self._ending.stage(labelled))

    async def _share(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:
        """Send the party's local embeddings; at the active party, store all embeddings until the stage "teach"."""
        await self.sharing.share(net, state, rows, batch, TITLE)
        return None

    async def _join(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:  # noqa: ARG002
        """Train g2, the joint autoencoder, on the batch; return the loss."""
        z, present, came = self.sharing.shared(state, batch.rows)
        return (
            distillation.fit(state, "g2", batch, lambda: state.modules["g2"](z, present).mean()) if len(came) else None
        )

    def _joined(self, state: State, rows: Rows, batch: Batch) -> float | None:  # noqa: ARG002
        z, present, came = self.sharing.shared(state, batch.rows)
        return state.modules["g2"](z, present).mean().item() if len(came) else None

    async def _store_joint(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:  # noqa: ARG002
        """Store the joint embedding of each row for which a local embedding arrived; delete all local embeddings."""
        z, present, came = self.sharing.shared(state, batch.rows)
        joint = exchange.joint(state, z, present)
        if self.classify_on == "either":
            remember_joint(state, rows, came, joint, present, but=batch.held_out)
        state.kept.clear()
        distillation.keep(state, TEACHER, as_block(rows.n, came, joint))
        return None

    async def _learn(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:  # noqa: ARG002
        """Train g3, the student, on the batch; return the loss (5)."""
        return distillation.fit(state, "g3", batch, lambda: self._student_loss(state, rows, batch))

    def _learnt(self, state: State, rows: Rows, batch: Batch) -> float | None:
        return None if distillation.held(rows, batch) is None else self._student_loss(state, rows, batch).item()

    def _student_loss(self, state: State, rows: Rows, batch: Batch) -> Tensor:
        return DistillationLoss.of(self).on(state, "g3", distillation.kept(state, TEACHER), rows, batch)

    # Functions for prediction

    async def predict(
        self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]
    ) -> Predictions | None:
        """Return, at the active party, the answers to a batch.

        Messages are sent only if the classifier reads the joint embedding (``classify_on = "joint"``).
        """
        if self.classify_on == "joint":
            return await predict_jointly(self._ending, self.sharing, net, state, rows, batch, asked)
        leads = state.seat.me == state.seat.roster.active
        return self._ending.alone(state, rows, batch, asked) if leads else None


def variant_stage(ending: ClassifierStage, teacher: str, labelled: Callable[[Rows], Tensor]) -> Stage:
    """Return the stage that fits the classifier to joint embeddings z_A, stored under the name ``teacher`` (figure 4).

    If the classifier is a head, its loss on validation rows decides early stopping and which weights to keep. The
    active party computes this loss alone, because it has stored the joint embeddings of these rows. To compute the
    run's metric instead, it would need messages from the passive parties, which may be offline during this stage.
    """

    def known(state: State, rows: Rows, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return joint embeddings [n, M] and labels [n] of those rows of a batch for which both are known."""
        kept = distillation.kept(state, teacher)
        assert kept is not None
        assert rows.y is not None
        assert rows.labeled is not None
        if not (rows.labeled & (kept.position >= 0)).any():
            raise AlignmentError(
                f"{ending.title} on joint embeddings: no labelled row is left that the active and a "
                "passive party have: the passive parties with such rows were lost before they sent their embeddings"
            )
        joint, held = kept.take(places := distillation.labelled(rows, batch))
        return joint, rows.y[places[held]]

    async def classify(net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:  # noqa: ARG001
        return ending.learn(state, *known(state, rows, batch), batch)

    def classified(state: State, rows: Rows, batch: Batch) -> float | None:
        joint, y = known(state, rows, batch)
        assert state.seat.task is not None
        return (
            losses(state.seat.task, state.modules["classifier"](joint), y, state.seat.loss).mean().item()
            if len(y)
            else None
        )

    head = ending.classifier == "head"
    return Stage(
        name="classify",
        step=classify,
        rows=labelled,
        parties="active",
        validates=False,
        epochs=None if head else 0,
        loss=classified if head else None,
    )


async def predict_jointly(
    ending: ClassifierStage,
    sharing: RepresentationSharing,
    net: Channel,
    state: State,
    rows: Rows,
    batch: Batch,
    asked: Sequence[str],
) -> Predictions | None:
    """Run one party's side of a prediction from joint embeddings; at the active party, return the answers.

    A row gets an answer if the local embeddings of the active party and of at least one passive party are known.
    """
    seat, batch = state.seat, replace(batch, rows=batch.rows.to(state.seat.device))
    z = exchange.local(state, rows, batch) if {seat.me, seat.roster.active} <= set(asked) else None
    if seat.me != seat.roster.active:
        await sharing.send(net, seat, z)
        return None
    gathered = await sharing.gather(net, seat, rows, batch, asked if seat.me in asked else (), z)
    blocks = {name: as_block(rows.n, *part) for name, part in gathered.parts.items()}
    joint, present = side_by_side(blocks, sharing.widths(seat.roster), batch.rows)
    a = distillation.active_block(seat.roster, ending.title)
    held = (present[:, a] & (present.sum(dim=1) > 1)).nonzero().squeeze(1)
    u, took = exchange.joint(state, joint[held], present[held]), torch.zeros_like(present)
    took[held] = present[held]
    why = f"{ending.title} on joint embeddings predicts rows that {seat.me!r} and a passive party have and were asked "
    why += "for"
    return ending.answer(state, rows, batch, asked, held=held, u=u, took_part=took, why=why, silent=gathered.silent)


def either_width(M: int) -> int:
    """Return the width, 2 M + 1, of the classifier's input u with ``classify_on = "either"``."""
    return 2 * M + 1


def representation_memory(M: int, parties: int) -> nn.Module:
    """Return an empty memory, in which the active party stores joint embeddings of width M by id."""
    return VectorMemory(M, parties)


def remember_joint(
    state: State, rows: Rows, places: Tensor, joint: Tensor, present: Tensor, *, but: Tensor | None = None
) -> None:
    """Store ``joint``, the joint embeddings z_A [n, M] of the rows at ``places`` [n].

    ``present`` [n, K] marks the parties whose local embeddings of these rows arrived. The rows at ``but`` [b] are not
    stored, because they are validation rows, which must be scored like rows that were not exchanged in training.
    """
    if but is not None:
        kept = ~torch.isin(places, but.to(places.device))
        places, joint, present = places[kept], joint[kept], present[kept]
    assert rows.block is not None
    assert rows.ids is not None
    ids = rows.ids.gather(rows.block.position[places].cpu().numpy())
    _memory(state).remember(ids, joint, present)


def embed_either(state: State, rows: Rows, places: Tensor, own: EmbeddedRows) -> EmbeddedRows:
    """Return the classifier's input u for the active party's rows among ``places`` [B].

    ``own`` has the enriched embeddings g3(x) of these rows. Rows with a stored joint embedding z_A get u = [0, z_A, 1].
    All other rows get u = [g3(x), 0, 0].
    """
    assert rows.block is not None
    assert rows.ids is not None
    known = _memory(state)
    at = known.find(rows.ids.gather(rows.block.position[places][own.held].cpu().numpy()))
    stored = at >= 0
    joint, took = torch.zeros_like(own.u), own.took_part.clone()
    joint[stored], took[stored] = known.vectors[at[stored]], known.took_part[at[stored]]
    mine = torch.where(stored.unsqueeze(1), 0.0, own.u)
    return EmbeddedRows(own.held, torch.cat([mine, joint, stored.unsqueeze(1).to(own.u.dtype)], dim=1), took)


def embed_both(state: State, rows: Rows, places: Tensor, own: EmbeddedRows) -> EmbeddedRows:
    """Return the inputs u to which the classifier is fitted, for the rows at ``places`` [B].

    ``own`` has the enriched embeddings g3(x) of these rows. A row with a stored joint embedding z_A occurs twice: once
    as u = [0, z_A, 1], and once as u = [g3(x), 0, 0].
    """
    u, M = embed_either(state, rows, places, own), own.u.shape[1]
    stored = u.u[:, -1] == 1
    new = torch.cat([own.u[stored], torch.zeros_like(u.u[stored][:, M:])], dim=1)
    return EmbeddedRows(
        torch.cat([u.held, u.held[stored]]), torch.cat([u.u, new]), torch.cat([u.took_part, own.took_part[stored]])
    )


def _memory(state: State) -> VectorMemory:
    found = state.modules["memory"]
    assert isinstance(found, VectorMemory)
    return found
