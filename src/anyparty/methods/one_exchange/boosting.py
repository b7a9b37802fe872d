"""Boosting: LightGBM's trees over the columns of several parties, with one or two exchanges of messages.

A method of this project, in no paper. LightGBM: Ke et al., "LightGBM: A Highly Efficient Gradient Boosting Decision
Tree", NeurIPS 2017. The stages of ``exchange = "scores"`` are Newton steps (Friedman, Hastie, Tibshirani: "Additive
logistic regression", Annals of Statistics 2000), whose fits are cross-fitted like the first level of stacking (Wolpert,
Neural Networks 1992): the score of a training row comes from trees that did not see its label.

Notation  n labelled training rows, n_k of them that party k has, d_k columns of party k, C classes; R = 1, or C if
          there are more than two classes.
Symbols   F   the active party's current model, as margins (log-odds) of each row               [n, R].
          p   its probabilities, or in regression its standardised number                        [n, R].
          r   residuals y - p                                                                    [n, R].
          h   curvature p (1 - p) of the loss, 1 in regression                                   [n, R].
          z_k scores: party k's trees, fitted to r / h with weights h on its own columns         [n_k, R].

Stages    exchange = "scores"
  scores     F is the frequency of each class, or the mean: the active party sends r and h, and receives every z_k.
  scores2    unless ``rounds = 1``: F is cross-fitted to the active party's columns and all z_k of the first stage.
  trees      the active party fits trees to its own columns and all z_k.
          exchange = "bins"
  bins       every passive party sends its columns as numbers of bins: half of a column's bounds are quantiles of the
             party's rows, and half are spread over its distinct values (``table_encoder.bounds_of``).
  trees      the active party fits trees to its own columns and all bins.

The last trees are fitted to every row twice: with all columns and scores of its parties, and with those of a random
subset of them; what is absent is a missing cell. Each party stays in the subset with probability ``keep``.

Answer    A row that only the active party has is answered by trees on its columns alone. Any other row is answered by
          the last trees, from the scores or bins of the parties that have it and are asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from anyparty.core.declared_types import as_declared
from anyparty.core.draws import uniform
from anyparty.core.predictions import Predictions
from anyparty.core.seeds import Seeds
from anyparty.core.types import Capabilities, Channel, MessageSpec, Task, TensorSpec
from anyparty.errors import AlignmentError, ConfigError, MessageError, PartyLost
from anyparty.methods.method import Batch, PartyContext, Stage, State
from anyparty.methods.one_exchange import distillation
from anyparty.methods.one_exchange.classifier import NOBODY
from anyparty.methods.one_exchange.exchange_once import as_block
from anyparty.networks.boosted_trees import Bins, BoostedTrees, Objective, TreeSettings, cross_fit, fit_trees, lightgbm
from anyparty.networks.modules import any_length
from anyparty.networks.objective import answers
from anyparty.networks.table_encoder import bounds_of
from anyparty.problem.rows import Rows

if TYPE_CHECKING:
    from lightgbm import Booster

Parts: TypeAlias = Mapping[str, tuple[Tensor, Tensor]]
"""For each party, its columns or scores of the rows of a batch [n_k, d_k], and the indices of these rows [n_k]."""

TITLE = "Boosting"
LOT = 16384  # the largest number of rows of a message
SURE = 0.01  # the smallest and largest probabilities that residuals are computed from: SURE and 1 - SURE
RESIDUAL = MessageSpec(
    tag="residual",
    frm="active",
    to="block",
    holds="residuals of the labels of the receiver's training rows, and the curvature of the loss (not in regression), "
    "[n_k, R] each; sent once or twice in training",
    learns="the label of each of its training rows, exactly, and the active party's estimate of it",
)
SCORE = MessageSpec(
    tag="score",
    frm="block",
    to="active",
    holds="scores from trees on the sender's columns, [n_k, R] in each round of training and [n_k, rounds R] in "
    "prediction",
    learns="the active party sees R numbers that summarise a row's columns as far as they predict the label; no other "
    "party sees anything",
)
BINS = MessageSpec(
    tag="bins",
    frm="block",
    to="active",
    holds="all columns of the sender's rows, each cell as the number of its bin, [n_k, d_k]; sent once in training, "
    "and for rows to be predicted",
    learns="the active party sees the order of a column's cells, and which of them are in the same bin: a categorical "
    "column entirely; no bounds of bins are sent",
    when='exchange = "bins", and the sender\'s own settings consent',
    consent=True,
)


class Layout(nn.Module):
    """The number of columns that the last trees read from each of K parties; 0 for a party that sent none."""

    widths: Tensor

    def __init__(self, parties: int) -> None:
        super().__init__()
        self.register_buffer("widths", torch.zeros(parties, dtype=torch.int64))
        any_length(self, "widths")


@dataclass(frozen=True, kw_only=True)
class Boosting:
    """The method Boosting: trees at the active party that read scores or bins of the other parties.

    Attributes:
        exchange: "scores": passive parties learn the labels of their training rows, and send one score a row (with
            more than two classes, one for each class). "bins": passive parties learn nothing and show their binned
            columns, which each of them must allow in its own settings.
        rounds: the number of exchanges of residuals and scores, 1 or 2.
        bins: the largest number of bins of a column.
        trees: the number of trees of the active party.
        learning_rate: the learning rate of all trees.
        leaves: the largest number of leaves of a tree of the active party.
        columns: the share of the columns, drawn at random, that each tree reads; of at most four columns, all.
        score_trees: the number of trees of a passive party, for each fold.
        score_leaves: the largest number of leaves of a tree of a passive party.
        folds: the number of parts into which training rows are divided for scores.
        keep: the probability with which a party stays in the random subset of a row's second copy.

    """

    exchange: Literal["scores", "bins"] = "scores"
    rounds: Annotated[int, Field(ge=1, le=2)] = 2
    bins: Annotated[int, Field(ge=16, le=255)] = 255
    trees: Annotated[int, Field(ge=1)] = 150
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 0.05
    leaves: Annotated[int, Field(ge=2, le=4096)] = 31
    columns: Annotated[float, Field(gt=0, le=1)] = 1.0
    score_trees: Annotated[int, Field(ge=1)] = 80
    score_leaves: Annotated[int, Field(ge=2, le=4096)] = 8
    folds: Annotated[int, Field(ge=2)] = 5
    keep: Annotated[float, Field(gt=0, lt=1)] = 0.5

    def __post_init__(self) -> None:
        as_declared(self, Boosting, "boosting")

    @property
    def can(self) -> Capabilities:
        """The capabilities: the method trains on and predicts rows of any set of parties."""
        return Capabilities(
            title=TITLE,
            paper="none: a method of this project",
            trains_on="labelled rows that at least one party has",
            predicts_for="any row, by trees that read the columns or scores of the parties that have it",
            needs="any",
            messages=(RESIDUAL, SCORE) if self.exchange == "scores" else (BINS,),
        )

    @property
    def _last(self) -> TreeSettings:
        return TreeSettings(
            trees=self.trees, rate=self.learning_rate, leaves=self.leaves, least=20, columns=self.columns
        )  # fmt: skip

    @property
    def _scoring(self) -> TreeSettings:
        return TreeSettings(
            trees=self.score_trees, rate=self.learning_rate, leaves=self.score_leaves, least=50, columns=self.columns
        )  # fmt: skip

    def begin(self, seat: PartyContext, seeds: Seeds) -> State:  # noqa: ARG002
        """Make a party's trees, which are not fitted yet.

        Raises:
            ConfigError: a loss was given, or LightGBM cannot be loaded.
        """
        if seat.loss is not None:
            raise ConfigError(f"loss: {TITLE} has losses of its own; leave it out, or choose another method")
        lightgbm()
        state, modules = State(seat), dict[str, nn.Module]()
        if seat.me == seat.roster.active:
            assert seat.task is not None
            modules = {"layout": Layout(seat.roster.K), "own": BoostedTrees(outputs_of(seat.task)),
                       "trees": BoostedTrees(outputs_of(seat.task))}  # fmt: skip
        elif seat.me in seat.roster.blocks:
            scores = {_scores(stage): BoostedTrees() for stage in range(self.rounds)}
            modules = {"bins": Bins()} if self.exchange == "bins" else {**scores}
        return distillation.place(state, modules)

    # Functions for training

    def stages(self, seat: PartyContext) -> Sequence[Stage]:
        """Return the stages that the method's parameters require; the module's docstring describes all stages."""
        single = partial(Stage, rows=_usable, epochs=0)
        first = [single(name="bins", step=self._share_bins, validates=False)]
        if self.exchange == "scores":
            first = [
                single(name=_scores(stage), step=partial(self._share_scores, stage), validates=False)
                for stage in range(self.rounds)
            ]
        remark = distillation.idle_encoder(seat, TITLE)
        last = single(name="trees", step=self._fit, remark=lambda _: remark)
        return (*(first if distillation.others(seat.roster) else ()), last)

    async def _share_scores(self, stage: int, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:
        """Exchange residuals for scores; a passive party fits its trees, and the active party keeps the scores."""
        seat, folds = state.seat, (uniform(batch.key("folds"), batch.rows) * self.folds).long()
        if seat.me == seat.roster.active:
            held = _held(rows, batch.rows, distillation.others(seat.roster), seat)
            residual, curvature = self._residuals(stage, state, rows, batch, folds)
            for name, at in held.items():
                await _send(net, name, "residual", {"residual": residual[at], "curvature": curvature[at]})
            await _keep(net, state, rows, batch, held, SCORE.tag)
            return None
        x, held_here = _cells(rows, batch.rows)
        if len(x):
            expected = {name: TensorSpec((len(x), -1)) for name in ("residual", "curvature")}
            got = await _receive(net, seat.roster.active, "residual", expected, len(x))
            residual, curvature = (got[name].to(x.device) for name in ("residual", "curvature"))
            if not curvature.shape[1]:
                curvature = torch.ones_like(residual)
            if residual.shape != curvature.shape or not residual.shape[1] or not (curvature > 0).all():
                raise MessageError(f"message 'residual' from {seat.roster.active!r} to {net.me!r}: expected a positive "
                                   "curvature for each residual")  # fmt: skip
            members, scores = cross_fit(x, residual / curvature, folds[held_here], self._scoring,
                                        batch.key("scores"), weight=curvature)  # fmt: skip
            _trees(state, _scores(stage)).set_trees(members)
            await _send(net, seat.roster.active, SCORE.tag, {"score": scores})
        return None

    def _residuals(
        self, stage: int, state: State, rows: Rows, batch: Batch, folds: Tensor
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return r and h, [n, R] each, of labelled rows; in a regression, h is 1 and left out: [n, 0]."""
        seat, y = state.seat, _labels(rows, batch.rows)
        task = seat.task
        assert task is not None
        margins: Tensor | None = None
        if stage:
            parts = _kept(state, rows, batch.rows)
            x, _ = _joined(seat, parts, _widths(seat, parts), len(y))
            margins = cross_fit(x, y.unsqueeze(1), folds, self._last, batch.key("margins"),
                                objective=_objective(task), classes=outputs_of(task))[1].to(y.device)  # fmt: skip
        if task.kind == "regression":
            now = y.mean() if margins is None else margins[:, 0]
            residual = (y - now).float()
            return (residual - residual.mean()).unsqueeze(1), residual.new_zeros(len(y), 0)
        weights = torch.tensor(task.weights or [1.0] * task.outputs, device=y.device)
        true = nn.functional.one_hot(y.long(), task.outputs) * 1.0
        if margins is None:
            counts = (true * weights).sum(dim=0) + 1
            p = (counts / counts.sum()).expand_as(true)
        else:
            p = margins.softmax(dim=1) if len(weights) > 2 else torch.cat([1 - margins.sigmoid(), margins.sigmoid()], 1)
        p, own = p.clamp(SURE, 1 - SURE), weights[y.long()].unsqueeze(1)
        first = 1 if outputs_of(task) == 1 else 0  # with two classes, the numbers of the second one
        return ((true - p) * own)[:, first:], (p * (1 - p) * own)[:, first:]

    async def _share_bins(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:
        """At a passive party, fit bins and send all columns; at the active party, keep them."""
        seat = state.seat
        if seat.me == seat.roster.active:
            held = _held(rows, batch.rows, distillation.others(seat.roster), seat)
            await _keep(net, state, rows, batch, held, BINS.tag)
            return None
        x, _ = _cells(rows, batch.rows)
        if len(x):
            bins = _bins(state)
            columns = [column[~column.isnan()].double().cpu().numpy() for column in x.T]
            bins.set_bounds([bounds_of(values, self.bins - 2) if len(values) else np.zeros(1) for values in columns])
            await _send(net, seat.roster.active, BINS.tag, {"code": bins(x)})
        return None

    async def _fit(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:  # noqa: ARG002
        """At the active party, fit trees to its own columns, and trees to all columns and scores that arrived."""
        seat, task = state.seat, state.seat.task
        if seat.me != seat.roster.active:
            return None
        assert task is not None
        parts = _kept(state, rows, batch.rows)
        widths = _widths(seat, parts)
        if not sum(widths):
            raise AlignmentError(f"{TITLE}: {seat.me!r} has no columns, and nothing arrived from another party")
        state.modules["layout"].widths = torch.tensor(widths, device=seat.device)
        x, present = _joined(seat, parts, widths, len(batch.rows))
        y, blocks = _labels(rows, batch.rows), seat.roster.blocks
        seed, here = batch.key("trees"), present.any(dim=1)
        if seat.me in parts and len(parts[seat.me][1]):
            own, at = parts[seat.me]
            _trees(state, "own").set_trees([[self._fitted(task, own, y[at], seed)]])
        parties = torch.arange(len(blocks), device=seat.device)
        subset = present & (uniform(batch.key("subset"), batch.rows.to(seat.device), parties) < self.keep)
        subset = torch.where(subset.any(dim=1, keepdim=True), subset, present)
        columns = subset.repeat_interleave(torch.tensor(widths, device=seat.device), dim=1)
        masked = x.masked_fill(~columns, torch.nan)
        both = torch.cat([x[here], masked[here]])
        _trees(state, "trees").set_trees([[self._fitted(task, both, y[here].repeat(2), seed)]])
        return None

    def _fitted(self, task: Task, x: Tensor, y: Tensor, seed: int) -> Booster:
        weight = torch.tensor(task.weights, device=y.device)[y.long()] if task.weights else None
        return fit_trees(
            x, y, self._last, seed, objective=_objective(task), classes=task.outputs, weight=weight
        )  # fmt: skip

    # Functions for prediction

    async def predict(
        self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]
    ) -> Predictions | None:
        """Run one party's side of a prediction; at the active party, return the answers."""
        seat, batch = state.seat, replace(batch, rows=batch.rows.to(state.seat.device))
        x, at = _cells(rows, batch.rows) if seat.me in asked else (torch.zeros(0, 0), batch.rows[:0])
        if seat.me != seat.roster.active:
            if len(x):
                await _send(net, seat.roster.active, *self._sent(state, x))
            return None
        parts, silent = {seat.me: (x, at)} if len(x) else {}, list[str]()
        others = [name for name in distillation.others(seat.roster) if name in asked]
        for name, place in _held(rows, batch.rows, others, seat).items():
            try:
                parts[name] = (await _values(net, name, self._tag, len(place)), place)
            except PartyLost:
                silent.append(name)
        return self._answers(state, batch, parts, asked, silent)

    @property
    def _tag(self) -> str:
        return SCORE.tag if self.exchange == "scores" else BINS.tag

    def _sent(self, state: State, x: Tensor) -> tuple[str, dict[str, Tensor]]:
        """Return the message for rows x: its tag and tensors; without columns, if the party was lost in training."""
        if self.exchange == "bins":
            bins = _bins(state)
            return BINS.tag, {"code": bins(x) if len(bins.bounds) else torch.zeros(len(x), 0, dtype=torch.uint8)}
        trees = [_trees(state, _scores(stage)) for stage in range(self.rounds)]
        known = all(each.fitted for each in trees)
        return SCORE.tag, {"score": torch.cat([each(x) for each in trees], dim=1) if known else x[:, :0]}

    def _answers(
        self, state: State, batch: Batch, parts: Parts, asked: Sequence[str], silent: Sequence[str]
    ) -> Predictions:
        """Return the answers to a batch from the parties' columns and scores of its rows."""
        seat, task = state.seat, state.seat.task
        assert task is not None
        blocks, trees, own = seat.roster.blocks, _trees(state, "trees"), _trees(state, "own")
        widths = dict(zip(blocks, state.modules["layout"].get_buffer("widths").tolist(), strict=True))
        for name, (values, _) in parts.items():
            if trees.fitted and name != seat.me and values.shape[1] not in {0, widths[name]}:
                raise MessageError(f"message {self._tag!r} from {name!r} to {seat.me!r}: expected {widths[name]} "
                                   f"columns, got {values.shape[1]}: train again")  # fmt: skip
        known = {name: part for name, part in parts.items() if name == seat.me or part[0].shape[1]}
        if trees.fitted:
            known = {name: part for name, part in known.items() if widths[name]}
        present = torch.zeros(len(batch.rows), len(blocks), dtype=torch.bool, device=seat.device)
        for name, (_, at) in known.items():
            present[at, blocks.index(name)] = True
        outputs = torch.full((len(batch.rows), task.outputs), torch.nan, device=seat.device)
        alone = present.sum(dim=1) == 1
        alone &= present[:, blocks.index(seat.me)] if seat.me in blocks else False
        alone &= own.fitted
        if alone.any():
            place = torch.full((len(batch.rows),), -1, device=seat.device)
            place[known[seat.me][1]] = torch.arange(len(known[seat.me][1]), device=seat.device)
            outputs[alone] = _outputs(task, own(known[seat.me][0][place[alone]]))
        if (several := present.any(dim=1) & ~alone).any():
            x, _ = _joined(seat, known, list(widths.values()), len(batch.rows)) if trees.fitted else (present, None)
            outputs[several] = _outputs(task, trees(x[several]))
        scores = answers(task, outputs)
        lacking = (~present.any(dim=1)).nonzero().squeeze(1).tolist()
        return Predictions(
            task=task, blocks=blocks, scores=scores.cpu(), took_part=present.cpu(),
            asked=torch.tensor([name in asked for name in blocks]), silent=tuple(silent), predictor=TITLE,
            reasons=dict.fromkeys(lacking, NOBODY),
        )  # fmt: skip


# Functions of one party's data


def outputs_of(task: Task) -> int:
    """Return R: the number of classes if there are more than two, otherwise 1."""
    return task.outputs if task.outputs > 2 else 1


def _objective(task: Task) -> Objective:
    if task.kind == "regression":
        return "regression"
    return "multiclass" if task.outputs > 2 else "binary"


def _outputs(task: Task, margins: Tensor) -> Tensor:
    """Return outputs [n, C] for margins [n, R]: with two classes, the first one has margin 0."""
    return torch.cat([torch.zeros_like(margins), margins], dim=1) if _objective(task) == "binary" else margins


def _scores(stage: int) -> str:
    return "scores" if stage == 0 else f"scores{stage + 1}"


def _trees(state: State, name: str) -> BoostedTrees:
    found = state.modules[name]
    assert isinstance(found, BoostedTrees)
    return found


def _bins(state: State) -> Bins:
    found = state.modules["bins"]
    assert isinstance(found, Bins)
    return found


def _usable(rows: Rows) -> Tensor:
    """Return a mask [N] of the labelled rows that a party has."""
    assert rows.labeled is not None
    assert rows.observed is not None
    return rows.labeled & rows.observed.any(dim=1)


def _labels(rows: Rows, places: Tensor) -> Tensor:
    assert rows.y is not None
    return rows.y[places]


def _cells(rows: Rows, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return a party's cells [n_k, d_k] of its rows among ``places``, NaN for empty ones, and the rows' indices."""
    if rows.block is None:
        return torch.zeros(0, 0), places[:0]
    x, at = rows.block.take(places)
    known = rows.block.known(places, at)
    return x if known is None else torch.where(known, x, torch.nan), at


def _held(rows: Rows, places: Tensor, names: Sequence[str], seat: PartyContext) -> dict[str, Tensor]:
    """Return the indices [n_k] in ``places`` of the rows of each party that has one of them."""
    assert rows.observed is not None
    observed = rows.observed[places]
    found = {name: observed[:, seat.roster.blocks.index(name)].nonzero().squeeze(1) for name in names}
    return {name: at for name, at in found.items() if len(at)}


def _kept(state: State, rows: Rows, places: Tensor) -> Parts:
    """Return the active party's own cells of the rows at ``places``, and what the other parties sent for them."""
    seat, parts = state.seat, dict[str, tuple[Tensor, Tensor]]()
    for name in seat.roster.blocks:
        block = distillation.kept(state, name)
        if name == seat.me:
            parts[name] = _cells(rows, places)
        elif block is not None:
            parts[name] = block.take(places)
    return parts


def _widths(seat: PartyContext, parts: Parts) -> list[int]:
    return [parts[name][0].shape[1] if name in parts else 0 for name in seat.roster.blocks]


def _joined(seat: PartyContext, parts: Parts, widths: Sequence[int], n: int) -> tuple[Tensor, Tensor]:
    """Return all columns side by side [n, F], NaN for absent ones, and which party has which row [n, K]."""
    present, columns = torch.zeros(n, seat.roster.K, dtype=torch.bool, device=seat.device), []
    for k, (name, width) in enumerate(zip(seat.roster.blocks, widths, strict=True)):
        x = torch.full((n, width), torch.nan, device=seat.device)
        if name in parts:
            values, at = parts[name]
            x[at], present[at, k] = values.to(seat.device), True
        columns.append(x)
    return torch.cat(columns, dim=1), present


async def _send(net: Channel, to: str, tag: str, tensors: Mapping[str, Tensor]) -> None:
    """Send tensors [n, ...] in messages of at most ``LOT`` rows."""
    for first in range(0, len(next(iter(tensors.values()))), LOT):
        await net.send(to, tag, {name: tensor[first : first + LOT] for name, tensor in tensors.items()})


async def _receive(net: Channel, frm: str, tag: str, expected: Mapping[str, TensorSpec], n: int) -> dict[str, Tensor]:
    """Receive tensors of n rows, whose width the sender chooses, from messages of at most ``LOT`` rows."""
    lots = []
    for first in range(0, n, LOT):
        rows = min(LOT, n - first)
        lots.append(await net.recv(frm, tag, {k: replace(v, shape=(rows, *v.shape[1:])) for k, v in expected.items()}))
    if any(lot[name].shape[1] != lots[0][name].shape[1] for lot in lots for name in expected):
        raise MessageError(f"message {tag!r} from {frm!r} to {net.me!r}: its number of columns changes")
    return {name: torch.cat([lot[name] for lot in lots]) for name in expected}


async def _values(net: Channel, frm: str, tag: str, n: int) -> Tensor:
    """Receive the scores or bins of n rows, [n, d_k]; an empty cell is NaN."""
    if tag == SCORE.tag:
        return (await _receive(net, frm, tag, {"score": TensorSpec((n, -1))}, n))["score"]
    codes = (await _receive(net, frm, tag, {"code": TensorSpec((n, -1), torch.uint8)}, n))["code"]
    return codes.float().masked_fill(codes == Bins.EMPTY, torch.nan)


async def _keep(net: Channel, state: State, rows: Rows, batch: Batch, held: Mapping[str, Tensor], tag: str) -> None:
    """Receive what the parties in ``held`` send, and store it beside what they sent in an earlier stage.

    A party that is lost counts as one that has no row, also in an earlier stage.
    """
    for name, at in held.items():
        before = distillation.kept(state, name)
        try:
            values = (await _values(net, name, tag, len(at))).to(state.seat.device)
        except PartyLost:
            for key in [key for key in state.kept if key.startswith(f"{name}/")]:
                del state.kept[key]
            continue
        if before is not None:
            values = torch.cat([before.take(batch.rows)[0], values], dim=1)
        distillation.keep(state, name, as_block(rows.n, batch.rows[at], values))
