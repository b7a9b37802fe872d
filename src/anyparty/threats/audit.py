"""Train while recording what each party receives, run all attacks, and compare their guesses with the truth.

    report = anyparty.threats.run("runs/credit-laser-seed0")          # trains the run's settings again
    report = anyparty.threats.run(federation, "laser", epochs=5)      # the arguments of Federation.train

A run's folder does not keep the messages of training.  The attacks therefore train again, from the run's settings and
tables.  The same seed gives the same messages, bit for bit, if the run was trained in one process by the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table as RichTable
from rich.text import Text

from anyparty.api import runs
from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.config.user_code import allowing
from anyparty.core.seeds import Seeds
from anyparty.core.types import Task
from anyparty.errors import ConfigError, nearest
from anyparty.methods.method import Method
from anyparty.problem.rows import Rows
from anyparty.tables.preprocessing import Prepare
from anyparty.threats.attack import Aid, Attack, Guess, Indices
from anyparty.threats.columns import AttributeInference, EmbeddingInversion, EqualitySolving
from anyparty.threats.gradients import (
    GradientClusters,
    GradientCosine,
    GradientDirection,
    GradientNorm,
    GradientSign,
)
from anyparty.threats.known_labels import MessageRegression, ModelCompletion, RowUse
from anyparty.threats.measures import (
    MeasuredGuess,
    PreparedColumn,
    Truth,
    accuracy,
    assigned_accuracy,
    attributes_auroc,
    auroc,
    columns_measure,
    label_measure,
    measured,
)
from anyparty.threats.view import Floats, ReceivedView, recording

ATTACKS: Mapping[str, Attack] = {
    attack.name: attack
    for attack in (
        GradientNorm(), GradientCosine(), GradientSign(), GradientDirection(), GradientClusters(), ModelCompletion(),
        MessageRegression(), RowUse(), EmbeddingInversion(), EqualitySolving(), AttributeInference(),
    )
}  # fmt: skip
MEMBERSHIP, MEMBERSHIP_PAPER = "membership", "Yeom, Giacomelli, Fredrikson, Jha 2018"
READER = "a reader of answers"  # the attacker of the membership attack, who need not be a party
FEWEST = 20  # a guess about fewer rows is not scored
MOST = 5_000  # the largest number of rows of each kind in the membership attack
MOST_ATTRIBUTES = 30


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """The result of one attack by one attacker.

    Attributes:
        attack: the attack's name.
        paper: its source.
        target: "labels", "columns", "attributes" or "membership".
        attacker: the party that attacks.
        victim: the party whose labels or columns are attacked.
        assumes: the attacker's knowledge beyond its own data, its networks and its messages.
        known: the number of rows that the attacker knows from outside.
        source: the messages that were used, in words.
        score: the score; ``None`` if the attack could not be made.
        alone: the score of the same attack without messages, from the attacker's own columns.
        correct: the share of rows whose label is guessed right.
        constant: the share of the most frequent class.
        columns: the score of each column, or of each attribute.
        skipped: the reason why the attack could not be made.
    """

    attack: str
    paper: str
    target: str
    attacker: str
    victim: str
    assumes: str
    known: int = 0
    source: str = ""
    score: MeasuredGuess | None = None
    alone: float | None = None
    correct: float | None = None
    constant: float | None = None
    columns: Mapping[str, float] = field(default_factory=dict)
    skipped: str = ""

    @property
    def informs(self) -> bool:
        """True if the interval of the score is above chance, and above the score of the attacker's own columns."""
        score = self.score
        return score is not None and score.beats_chance and (self.alone is None or score.low > self.alone)

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        if self.score is None:
            return f"{self.attacker} cannot use {self.attack}: {self.skipped}."
        score, aid = self.score, f"With {self.known:,} known {'labels' if self.target == 'labels' else 'rows'}"
        begin = f"{aid if self.known else 'With no known label'}, {self.attacker}"
        own = "" if self.alone is None else f" (its own columns without messages: {self.alone:.3f})"
        value = f"{score.metric} {score.value:.3f}, chance {score.chance:.3f}"
        if self.target == "membership":
            begin = "With the true labels, a reader of answers"
        if not score.beats_chance:
            return f"{begin} infers no more about {self._object} than chance does ({value})."
        if self.correct is not None and self.constant is not None:
            return (f"{begin} tells the label of {self.correct:.1%} of {score.rows:,} rows, where the most frequent "
                    f"class is right for {self.constant:.1%} ({value}){own}.")  # fmt: skip
        if self.target == "columns":
            best = max(self.columns, key=self.columns.__getitem__)
            return (f"{begin} reconstructs {self.victim}'s columns with a mean score of {score.value:.3f} (1 is exact, "
                    f"chance {score.chance:.3f}), best {best} with {self.columns[best]:.3f}{own}.")  # fmt: skip
        return f"{begin} infers {self._object}: {value}{own}."

    @property
    def _object(self) -> str:
        return {"labels": "the labels", "membership": "which rows were used for training"}.get(
            self.target, f"{self.victim}'s {self.target}"
        )


@dataclass(frozen=True, kw_only=True)
class ThreatReport:
    """The results of all attacks on one training.

    Attributes:
        method: the method's name for readers.
        seed: the seed of the training and of the attacks.
        epochs: the number of trained epochs.
        results: the results, in the order of attackers and attacks.
    """

    method: str
    seed: int
    epochs: int
    results: Sequence[AttackResult]

    def strongest(self) -> list[AttackResult]:
        """Return the best result that tells more than chance and own columns, by attacker, victim and target."""
        found: dict[tuple[str, str, str], tuple[float, AttackResult]] = {}
        for each in self.results:
            key = each.attacker, each.victim, each.target
            if each.score is not None and each.informs and each.score.value > found.get(key, (-np.inf,))[0]:
                found[key] = each.score.value, each
        return [best for _, best in found.values()]

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values, with each result's sentence."""
        return {"method": self.method, "seed": self.seed, "epochs": self.epochs,
                "results": [{**asdict(each), "sentence": each.sentence} for each in self.results]}  # fmt: skip

    @classmethod
    def of_json(cls, saved: Mapping[str, Any]) -> ThreatReport:
        """Rebuild a report from the output of ``to_json``."""
        results = []
        for each in saved["results"]:
            values = {name: value for name, value in each.items() if name != "sentence"}
            score = values.pop("score")
            results.append(AttackResult(**values, score=None if score is None else MeasuredGuess(**score)))
        return cls(method=saved["method"], seed=saved["seed"], epochs=saved["epochs"], results=results)

    def render(self) -> RichTable:
        """Return the table for a terminal."""
        table = RichTable(title=f"{self.method}, {self.epochs} epochs: what parties can infer", title_justify="left")
        for heading in ("attacker", "attack", "about"):
            table.add_column(heading)
        for heading in ("score", "95 % interval", "chance", "own columns"):
            table.add_column(heading, justify="right")
        for cells in self.cells():
            table.add_row(*map(Text, cells))
        return table

    def cells(self) -> Iterator[list[str]]:
        """Yield the cells of each row of the table: attacker, attack, about, score, interval, chance, own columns."""
        for each in self.results:
            about = each.target if each.target == "membership" else f"{each.target} of {each.victim}"
            score = each.score
            if score is None:
                yield [each.attacker, each.attack, about, each.skipped, "", "", ""]
            else:
                own = "" if each.alone is None else f"{each.alone:.3f}"
                yield [each.attacker, each.attack, about, f"{score.metric} {score.value:.3f}",
                       f"{score.low:.3f} to {score.high:.3f}", f"{score.chance:.3f}", own]  # fmt: skip


def run(
    source: Federation | Path | str,
    method: str | Method | None = None,
    *,
    attackers: Sequence[str] | None = None,
    attacks: Sequence[str] | None = None,
    known: int = 10,
    auxiliary: float = 0.1,
    resamples: int = 200,
    allow_code: Sequence[str] = (),
    **train: Any,
) -> ThreatReport:
    """Train while recording, run the attacks, and return what they infer.

    Args:
        source: a federation, or the folder of a run, whose settings and tables are used.
        method: the method; by default the method of the settings.
        attackers: the parties that attack; by default all parties, each alone.
        attacks: the names of the attacks; by default all of ``ATTACKS``, and "membership".
        known: the number of labels of each class that an informed attacker knows; five times as many if the labels are
            numbers. An attacker on attributes knows twice as many rows.
        auxiliary: the share of the victim's training rows whose columns an attacker on columns knows.
        resamples: the number of resamples for intervals, and of permutations for chance.
        allow_code: user modules that the run's settings may load.
        train: other arguments of ``Federation.train``, such as ``epochs``.

    Raises:
        ConfigError: a party or an attack is unknown, or a training setting cannot be used.
        ModelError: the folder holds no run, or its tables have changed.

    """
    federation = source if isinstance(source, Federation) else _federation_of(source, allow_code)
    names = federation.roster.names
    attackers, attacks = attackers or names, attacks or [*ATTACKS, MEMBERSHIP]
    for what, chosen, existing in (("party", attackers, names), ("attack", attacks, [*ATTACKS, MEMBERSHIP])):
        for name in chosen:
            if name not in existing:
                raise ConfigError(f"there is no {what} {name!r}{nearest(name, existing)}")
    if known < 1 or not 0 < auxiliary < 1 or resamples < 1:
        raise ConfigError(f"expected known and resamples of at least 1 and auxiliary between 0 and 1, got known = "
                          f"{known}, resamples = {resamples}, auxiliary = {auxiliary}")  # fmt: skip
    views = {name: ReceivedView(me=name, roster=federation.roster) for name in attackers}
    model = federation.train(method, channel=partial(recording, views), **train | {"execution": "protocol"})
    return ThreatReport(
        method=model.method.can.title, seed=model.seed, epochs=len(model.history),
        results=list(Audit(model, views, known, auxiliary, resamples).results(attacks)),
    )  # fmt: skip


def _federation_of(folder: Path | str, allow_code: Sequence[str]) -> Federation:
    federation = runs.federation_of_run(folder)
    return replace(federation, config=federation.config.allowing(allowing(allow_code, str(folder))))


@dataclass
class Audit:
    """The attacks on one trained model, and the truth with which their guesses are compared.

    Attributes:
        model: the model, with the rows of its training in memory.
        views: each attacker's view of the training.
        known, auxiliary, resamples: as in ``run``.
    """

    model: Model
    views: Mapping[str, ReceivedView]
    known: int
    auxiliary: float
    resamples: int

    def __post_init__(self) -> None:
        assert self.model.held_out is not None
        assert self.model.taught is not None
        self.rows: Mapping[str, Rows] = self.model.held_out[0]
        self.taught: Indices = self.model.taught.numpy()
        self.task: Task = self.model.task
        self.classes = self.task.outputs if self.task.kind == "classification" else 0
        for name, view in self.views.items():
            view.rows, view.state = self.rows[name], self.model.members[name].state

    def results(self, attacks: Iterable[str]) -> Iterator[AttackResult]:
        """Yield the results of the attacks with these names."""
        chosen = [ATTACKS[name] for name in attacks if name != MEMBERSHIP]
        for view in self.views.values():
            for attack in chosen:
                if attack.target != "labels":
                    yield from self._on_columns(attack, view)
                elif view.me not in self.model.roster.labelers and self.task.outputs and attack.applies(self.classes):
                    yield from self._on_labels(attack, view)
        if MEMBERSHIP in attacks and self.task.outputs:
            yield self._on_membership()

    def _draw(self, *name: str) -> np.random.Generator:
        return Seeds(self.model.seed).numpy("attack", *name)

    # Labels

    def _on_labels(self, attack: Attack, view: ReceivedView) -> Iterator[AttackResult]:
        active = self.model.roster.active
        result = partial(AttackResult, attack=attack.name, paper=attack.paper, target="labels", attacker=view.me,
                         victim=active, assumes=attack.assumes)  # fmt: skip
        y, _ = self._labels(active)
        aid = Aid(classes=self.classes, rows=np.empty(0, dtype=np.int64), values=np.empty(0))
        if attack.informed:
            rows = self._known_rows(np.intersect1d(self.taught, view.held), y, self._draw(attack.name, view.me))
            aid = replace(aid, rows=rows, values=y[rows])
        guesses = attack.infer(view, aid)
        if not guesses:
            yield result(skipped="no message has values of its rows", known=len(aid.rows))
        for guess in guesses:
            about = partial(result, known=len(aid.rows), source=guess.source)
            yield self._scored_labels(about, attack, view, aid, guess)

    def _scored_labels(self, result: Any, attack: Attack, view: ReceivedView, aid: Aid, guess: Guess) -> AttackResult:
        roster = self.model.roster
        y, labeled = self._labels(guess.other if guess.other in roster.labelers else roster.active)
        counted = labeled[guess.rows] & ~np.isin(guess.rows, aid.rows)
        truth = y[guess.rows[counted]]
        if len(truth) < FEWEST or len(np.unique(truth)) < 2:
            return result(skipped=f"it reaches {len(truth)} labelled rows, or all of one class")  # type: ignore[no-any-return]
        metric, measure = label_measure(self.classes, named=guess.named)
        score = measured(metric, measure, truth, guess.values[counted], self._draw(attack.name, view.me, "score"),
                         self.resamples)  # fmt: skip
        without, alone = attack.alone(view, aid, guess.rows), None
        if without is not None:
            there = labeled[without.rows] & ~np.isin(without.rows, aid.rows)
            alone = measure(y[without.rows[there]], without.values[there])
        correct = constant = None
        if self.classes:
            best = guess.values if guess.classes is None else guess.classes.astype(np.float64)
            correct = (accuracy if guess.named else assigned_accuracy)(truth, best[counted])
            constant = float(np.bincount(truth.astype(np.int64)).max() / len(truth))
        return result(score=score, alone=alone, correct=correct, constant=constant)  # type: ignore[no-any-return]

    def _labels(self, party: str) -> tuple[Truth, Truth]:
        """Return a label holder's labels [N] and the mask [N] of labelled rows."""
        y, labeled = self.rows[party].y, self.rows[party].labeled
        assert y is not None
        assert labeled is not None
        return y.cpu().double().numpy(), labeled.cpu().numpy()

    def _known_rows(self, among: Indices, y: Truth, rng: np.random.Generator) -> Indices:
        """Draw the rows whose labels an informed attacker knows."""
        if not self.classes:
            return np.sort(rng.choice(among, min(5 * self.known, len(among)), replace=False))
        drawn = []
        for label in range(self.classes):
            rows = among[y[among] == label]
            drawn.append(rng.choice(rows, min(self.known, len(rows)), replace=False))
        return np.sort(np.concatenate(drawn))

    # Columns and attributes

    def _on_columns(self, attack: Attack, view: ReceivedView) -> Iterator[AttackResult]:
        result, made = partial(AttackResult, attack=attack.name, paper=attack.paper, target=attack.target,
                               attacker=view.me, assumes=attack.assumes), False  # fmt: skip
        for victim in self.model.roster.blocks:
            if victim == view.me:
                continue
            held, x, columns = self._columns(victim)
            pool, rng = np.intersect1d(held, self.taught), self._draw(attack.name, view.me, victim)
            wanted = 2 * self.known if attack.target == "attributes" else max(FEWEST, int(self.auxiliary * len(pool)))
            rows = np.sort(rng.choice(pool, min(wanted, len(pool)), replace=False))
            if attack.target == "attributes":
                x, columns = _attributes(x, columns, np.searchsorted(held, rows))
            if not columns:
                continue
            aid = Aid(classes=self.classes, seed=self.model.seed, victim=victim, rows=rows,
                      values=x[np.searchsorted(held, rows)])  # fmt: skip
            for guess in attack.infer(view, aid):
                made = True
                about = partial(result, victim=victim, known=len(rows), source=guess.source)
                yield self._scored_columns(about, attack, view, aid, guess, held, x, columns)
        if not made:
            others = [name for name in self.model.roster.blocks if name != view.me]
            yield result(victim=", ".join(others), skipped="no message has values of another party's rows")

    def _scored_columns(
        self, result: Any, attack: Attack, view: ReceivedView, aid: Aid, guess: Guess, held: Indices, x: Floats,
        columns: Sequence[PreparedColumn],
    ) -> AttackResult:  # fmt: skip
        def compared(guess: Guess) -> tuple[Floats, Floats]:
            new = ~np.isin(guess.rows, aid.rows) & np.isin(guess.rows, held)
            return x[np.searchsorted(held, guess.rows[new])], guess.values[new]

        truth, values = compared(guess)
        if len(truth) < FEWEST:
            return result(skipped=f"it reaches {len(truth)} rows")  # type: ignore[no-any-return]
        attributes = attack.target == "attributes"
        metric, measure = ("AUROC", attributes_auroc) if attributes else ("mean score", columns_measure(columns))
        score = measured(metric, measure, truth, values, self._draw(attack.name, view.me, aid.victim, "score"),
                         self.resamples)  # fmt: skip
        without = attack.alone(view, aid, np.intersect1d(guess.rows, view.held))
        own = compared(without) if without is not None else ()
        each = {
            column.name: auroc(truth[:, n], values[:, n]) if attributes else column.score(truth, values)
            for n, column in enumerate(columns)
        }
        return result(score=score, alone=measure(*own) if own and len(own[0]) >= FEWEST else None, columns=each)  # type: ignore[no-any-return]

    def _columns(self, party: str) -> tuple[Indices, Floats, list[PreparedColumn]]:
        """Return the rows [n] that a party has, its prepared columns [n, D] of them, and where each column is."""
        block, prepare = self.rows[party].block, self.model.members[party].prepare
        assert block is not None
        assert prepare is not None
        position = block.position.cpu().numpy()
        held = np.flatnonzero(position >= 0)
        x = block.x[torch.from_numpy(position[held]).to(block.x.device)].flatten(1).double().cpu().numpy()
        return held, x, _prepared_columns(prepare)

    # Membership

    def _on_membership(self) -> AttackResult:
        """Guess that rows with a small loss were used for training: the attack of Yeom et al., CSF 2018.

        Answers for training rows and test rows are requested from the trained model.
        """
        assert self.model.held_out is not None
        rows, alignment, test = self.model.held_out
        active, rng = self.model.roster.active, self._draw(MEMBERSHIP)
        result = partial(AttackResult, attack=MEMBERSHIP, paper=MEMBERSHIP_PAPER, target=MEMBERSHIP, attacker=READER,
                         victim=active, assumes="the true labels of the requested rows")  # fmt: skip
        if min(len(test), len(self.taught)) < FEWEST:
            return result(skipped=f"there are {len(test)} test rows")
        loss, member = [], []
        for is_member, among in ((1, self.taught), (0, test.numpy())):
            wanted = np.sort(rng.choice(among, min(MOST, len(among)), replace=False))
            order = alignment.as_given(wanted, active)
            scores = replace(self.model, held_out=(rows, alignment, torch.from_numpy(wanted))).predict().scores.numpy()
            y = self._labels(active)[0][wanted[order]]
            if self.classes:
                each = -np.log(np.clip(scores[np.arange(len(y)), y.astype(np.int64)], 1e-12, None))
            else:
                each = np.abs(scores[:, 0] - (y * self.task.scale + self.task.mean))
            loss.append(each[~np.isnan(each)])
            member.append(np.full(len(loss[-1]), is_member))
        truth, guess = np.concatenate(member), -np.concatenate(loss)
        score = measured("AUROC", auroc, truth, guess, rng, self.resamples)
        return result(score=score, known=len(guess))


def _prepared_columns(prepare: Prepare) -> list[PreparedColumn]:
    """Return the numeric and categorical columns of a party, with their positions; columns of words are left out."""
    numbers = [PreparedColumn(name=name, at=(n,)) for n, name in enumerate(prepare.numeric.columns)]
    first, categories = len(numbers), []
    for name, levels in zip(prepare.categorical.columns, prepare.categorical.levels, strict=True):
        categories.append(PreparedColumn(name=name, at=tuple(range(first, first + len(levels)))))
        first += len(levels)
    return numbers + categories


def _attributes(x: Floats, columns: Sequence[PreparedColumn], known: Indices) -> tuple[Floats, list[PreparedColumn]]:
    """Return yes/no attributes of rows [n, A]: a number above its median in the known rows, or its most frequent level.

    Attributes that all known rows share are left out.
    """
    found: list[Floats] = []
    names = []
    for column in columns:
        values = x[:, list(column.at)]
        if len(column.at) == 1:
            attribute, name = values[:, 0] > np.median(values[known, 0]), f"{column.name} above its median"
        else:
            level = values[known].sum(axis=0).argmax()
            attribute, name = values[:, level] > 0.5, f"the most frequent {column.name}"
        if len(np.unique(attribute[known])) == 2 and len(found) < MOST_ATTRIBUTES:
            names.append(PreparedColumn(name=name, at=(len(found),)))
            found.append(attribute.astype(np.float64))
    return np.stack(found, axis=1) if found else np.empty((len(x), 0)), names
