"""Each attack finds a planted leak, and finds nothing if the labels or columns are permuted afterwards."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from anyparty.core.seeds import Seeds
from anyparty.core.types import Party, Roster
from anyparty.methods.method import Batch
from anyparty.problem.rows import Block, Rows
from anyparty.threats.attack import Aid
from anyparty.threats.audit import ATTACKS
from anyparty.threats.measures import (
    PreparedColumn,
    attributes_auroc,
    auroc,
    columns_measure,
    label_measure,
    measured,
)
from anyparty.threats.view import ReceivedView

N, D, H = 400, 3, 6
ROSTER = Roster((Party(name="lead", labels=True), Party(name="shop")), "lead")
LABELS = [name for name, attack in ATTACKS.items() if attack.target == "labels"]
COLUMNS = [name for name, attack in ATTACKS.items() if attack.target != "labels"]
RNG = np.random.default_rng


def view(me="shop", *, received=None, sent=None, plan=None):
    """Return a view of one epoch, with values [N, ...] received, or sent, in batches of random order."""
    rng = RNG(1)
    x = torch.from_numpy(rng.normal(size=(N, D))).float()
    observed = torch.ones(N, 2, dtype=torch.bool)
    rows = Rows(n=N, block=Block(x, torch.arange(N)), observed=observed if me == "lead" else None)
    made = ReceivedView(me=me, roster=ROSTER, rows=rows)
    if plan is not None:
        made.add("lead", "plan", plan, sent=False)
    other = "shop" if me == "lead" else "lead"
    for step, batch in enumerate(torch.split(torch.from_numpy(rng.permutation(N)), 64)):
        made.set_step(Batch(batch, Seeds(0), ("train", 0, step), number=step), training=True)
        for was_sent, values in ((False, received), (True, sent)):
            if values is not None:
                tag = "gradient" if me == "shop" and not was_sent else "embedding"
                made.add(other, tag, {"v": torch.from_numpy(values[batch.numpy()]).float()}, sent=was_sent)
    return made


def labels(classes):
    rng = RNG(2)
    if not classes:
        return rng.normal(size=N)
    return rng.choice(classes, size=N, p=np.arange(1, classes + 1)[::-1] / np.arange(1, classes + 1).sum()).astype(
        float
    )


def gradients(y, classes):
    """Return the gradients (p - y) W of an untrained model whose last layer is linear, with a little noise."""
    rng = RNG(3)
    if not classes:
        wrong = -y[:, None]
    else:
        shares = np.bincount(y.astype(int), minlength=classes) / N
        wrong = shares - np.eye(classes)[y.astype(int)]
    return wrong @ rng.normal(size=(wrong.shape[1], H)) + rng.normal(size=(N, H)) * 0.02


def aid(y, classes, k=10):
    rng = RNG(4)
    if not classes:
        rows = np.sort(rng.choice(N, 50, replace=False))
    else:
        rows = np.sort(np.concatenate([rng.choice(np.flatnonzero(y == c), k, replace=False) for c in range(classes)]))
    return Aid(classes=classes, rows=rows, values=y[rows])


def scored(guess, y, known, classes, *, permuted):
    metric, measure = label_measure(classes, named=guess.named)
    counted = ~np.isin(guess.rows, known.rows)
    truth = y[guess.rows[counted]]
    truth = RNG(5).permutation(truth) if permuted else truth
    return measured(metric, measure, truth, guess.values[counted], RNG(6), 100)


def leak(name, y, classes):
    """Return a view in which the message that this attack reads tells the label."""
    if name == "row-use":
        return view(plan={"train": torch.arange(N), "patterns": torch.from_numpy(y * 2).round().long()})
    if name == "model-completion":
        return view(sent=gradients(y, classes))
    return view(received=gradients(y, classes))


@pytest.mark.parametrize("classes", [0, 2, 4])
@pytest.mark.parametrize("name", LABELS)
def test_an_attack_on_labels_finds_a_planted_leak_and_nothing_in_permuted_labels(name, classes):
    attack, y = ATTACKS[name], labels(classes)
    if not attack.applies(classes):
        pytest.skip("not for such labels")
    known = (
        aid(y, classes) if attack.informed else Aid(classes=classes, rows=np.empty(0, dtype=int), values=np.empty(0))
    )
    (guess,) = attack.infer(leak(name, y, classes), known)
    assert set(guess.rows) == set(range(N))
    found = scored(guess, y, known, classes, permuted=False)
    assert found.beats_chance
    assert found.value > 0.85
    nothing = scored(guess, y, known, classes, permuted=True)
    assert not nothing.beats_chance
    assert nothing.value <= nothing.chance_high + 0.05


@pytest.mark.parametrize("name", LABELS)
def test_an_attack_on_labels_finds_nothing_in_messages_without_labels(name):
    attack, y = ATTACKS[name], labels(2)
    noise = RNG(8).normal(size=(N, H))
    seen = view(received=noise, sent=noise, plan={"train": torch.arange(N), "patterns": torch.arange(N) % 3})
    known = aid(y, 2)
    (guess,) = attack.infer(seen, known if attack.informed else replace(known, rows=known.rows[:0], values=y[:0]))
    assert not scored(guess, y, known, 2, permuted=False).beats_chance


@pytest.mark.parametrize("name", LABELS)
def test_without_messages_there_is_no_guess(name):
    y = labels(2)
    assert ATTACKS[name].infer(view(), aid(y, 2)) == []


def test_own_columns_are_the_comparison_of_an_informed_attack():
    y = view().rows.block.x[:, 0].numpy() > 0
    known = aid(y.astype(float), 2)
    alone = ATTACKS["message-regression"].alone(view(), known, np.arange(N))
    assert auroc(y, alone.values) > 0.95
    assert ATTACKS["gradient-norm"].alone(view(), known, np.arange(N)) is None


def columns_view(x):
    """Return the active party's view of embeddings that a linear encoder with H >= D computes."""
    return view("lead", received=x @ RNG(9).normal(size=(D, H)) + 1.0)


@pytest.mark.parametrize("name", COLUMNS)
def test_an_attack_on_columns_finds_a_planted_leak_and_nothing_in_permuted_columns(name):
    attack, x = ATTACKS[name], RNG(10).normal(size=(N, D))
    if attack.target == "attributes":
        x = (x > 0).astype(float)
    rows = np.sort(RNG(11).choice(N, 120, replace=False))  # enough for the decoder's network
    known = Aid(classes=2, victim="shop", rows=rows, values=x[rows])
    columns = [PreparedColumn(name=f"c{d}", at=(d,)) for d in range(D)]
    measure = attributes_auroc if attack.target == "attributes" else columns_measure(columns)
    for planted, seen in ((True, columns_view(x)), (False, columns_view(RNG(12).permutation(x)))):
        (guess,) = attack.infer(seen, known)
        new = ~np.isin(guess.rows, rows)
        found = measured("score", measure, x[guess.rows[new]], guess.values[new], RNG(13), 100)
        assert found.beats_chance == planted
        assert found.value > 0.9 or not planted
    assert attack.infer(view("lead"), known) == []


def test_equality_solving_is_exact_for_a_linear_encoder():
    x = RNG(14).normal(size=(N, D))
    rows = np.arange(H + 1)
    (guess,) = ATTACKS["equality-solving"].infer(
        columns_view(x), Aid(classes=2, victim="shop", rows=rows, values=x[rows])
    )
    assert np.abs(guess.values - x).max() < 1e-3


def test_scores_are_those_that_can_be_computed_by_hand():
    y = np.array([0, 0, 1, 1.0])
    assert auroc(y, np.array([0.1, 0.4, 0.35, 0.8])) == 0.75
    assert label_measure(2, named=False)[1](y, np.array([4.0, 3.0, 2.0, 1.0])) == 1.0
    assert label_measure(3, named=False)[1](np.array([0, 1, 2, 2.0]), np.array([2, 0, 1, 0.0])) == 0.75
    category = PreparedColumn(name="town", at=(0, 1))
    x = np.eye(2)[[0, 0, 0, 1]]
    assert category.score(x, x) == 1.0
    assert category.score(x, np.eye(2)[[0, 0, 0, 0]]) == 0.0
