"""Pseudo-labels: errors and remarks; their losses and checks are among those of all methods (test_checks.py)."""

import pytest
import torch

from anyparty.config.method_factory import scheduled
from anyparty.errors import ConfigError
from anyparty.methods.method_registry import method
from anyparty.methods.split.pseudo_labels import ALL_LABELLED, SURE, UNLABELLED, PseudoLabelled, _record
from tests import worlds
from tests.methods.cases import ADAM
from tests.methods.schedules.test_settings import config_of
from tests.worlds import world


def pseudo(of="laser", **parameters):
    return method(of, **{"unlabelled": "pseudo", "embedding": 5, **parameters})


@pytest.mark.parametrize("of", ["local", "standard", "ensemble", "combinatorial", "plug", "laser"])
def test_any_split_method_may_have_them(of):
    made = pseudo(of)
    assert isinstance(made, PseudoLabelled)
    assert made.can.unlabelled
    assert made.can.title == f"{method(of).can.title}, pseudo-labels"
    assert made.can.messages == method(of).can.messages


def test_what_they_refuse():
    with pytest.raises(ConfigError, match="needs all predictors at the active party: set hosting = 'active'"):
        pseudo(hosting="labelers")
    with pytest.raises(ConfigError, match="a predicted number has no confidence"):
        worlds.begin(pseudo(), world(kind="regression"))
    with pytest.raises(
        ConfigError, match=r"schedule 'flex' cannot be combined with pseudo-labels: set method\.unlabelled ="
    ):
        scheduled(pseudo(), config_of(schedule={"name": "flex"}))


def test_after_pretraining_too():
    made = pseudo(pretrain="simsiam", unlabelled_epochs=3, unlabelled_batch_size=7)
    there = world(scarce=True)
    stages = made.stages(there.seat("a"))
    assert [stage.name for stage in stages] == ["pretrain", "train", "pseudo"]
    assert (stages[2].epochs, stages[2].batch_size) == (3, 7)
    labelled, every = stages[1].rows(there.rows["a"]), stages[2].rows(there.rows["a"])
    assert torch.equal(labelled, there.usable)
    assert torch.equal(every, there.observed.any(dim=1))


def test_it_goes_on_with_what_the_stage_before_has_trained():
    assert [stage.continues for stage in pseudo().stages(world().seat("a"))] == [False, True]


@pytest.mark.parametrize(("sure", "share"), [(0.0, 1.0), (0.9999, 0.0)])
def test_an_epoch_says_how_many_rows_it_learnt_from(sure, share):
    trained = worlds.train(pseudo(sure=sure), world(N=40, scarce=True), epochs=2, training=torch.ones(40).bool())
    history = trained["a"].history
    assert [record.get("pseudo_labels") for record in history] == [None, None, share, share]


def test_the_share_of_an_epoch_is_its_own():
    state = worlds.begin(pseudo(), world())["a"]
    state.kept |= {SURE: torch.tensor(3), UNLABELLED: torch.tensor(4)}
    assert _record(state) == {"pseudo_labels": 0.75}
    assert _record(state) == {}


def test_with_nothing_sure_labelled_rows_teach_as_before():
    """The second stage then equals the first, over the same batches without their unlabelled rows."""
    there = world(N=40, scarce=True)
    made = pseudo(sure=0.9999)
    states, plain = worlds.begin(made, there), worlds.begin(method("laser", embedding=5), there)
    rows = there.places()
    worlds.step(made, there, states, rows, stage="pseudo")
    labelled = there.usable.nonzero().squeeze(1)
    worlds.step(made, there, plain, labelled, stage="pseudo")
    for name, gradient in worlds.gradients(plain).items():
        assert torch.allclose(worlds.gradients(states)[name], gradient, atol=1e-6), name


@pytest.mark.parametrize("of", ["local", "ensemble", "combinatorial", "plug", "laser"])
def test_its_loss_by_hand(of):
    """b has only some rows: means of each predictor that uses b are over these rows."""
    observed, labelled = torch.ones(40, 2, dtype=torch.bool), torch.arange(40) < 10
    observed[25:, 1] = False
    x, y = {name: torch.randn(40, 3) for name in "ab"}, torch.arange(40) % 2
    exact = {"laser": {"tasks": "all"}, "plug": {"dropout": 0.0}}.get(of, {})
    there, theirs = worlds.given(x, y, observed, labelled), ~labelled & observed[:, 1]
    for threshold in (0.52, 0.56, 0.6, 0.65, 0.7, 0.8, 0.9):
        made = pseudo(of, sure=threshold, unlabelled_weight=2.0, **exact)
        states = worlds.begin(made, there)
        whole, heads = worlds.batch_of(torch.arange(1), stage="pseudo"), states["a"].modules["heads"]
        with torch.no_grad():
            h = torch.stack([states[name].modules["encoder"](x[name]) for name in "ab"], dim=1)
            h *= observed.view(40, 2, *[1] * (h.ndim - 2))
            guess, sure = made._guessed(states["a"], h, observed, there.rows["a"].key)
        if 0 < (sure & theirs).sum() < theirs.sum():
            break
    else:
        raise AssertionError("all rows of b are as sure")
    with torch.no_grad():
        told = torch.where(labelled, y, guess)

        def each(members):
            """Return the loss of every row [40], as if only ``members`` had it."""
            return torch.stack(
                [
                    worlds.loss_of(made, there, "a", heads, h[[n]], whole, torch.tensor([members]), told[[n]])
                    for n in range(40)
                ]
            )

        if of in {"plug", "laser"}:  # both are means over rows
            losses = torch.where(observed[:, 1], each([True, True]), each([True, False]))
            predictors = [(losses, observed[:, 0])]
        else:
            a, b, both = each([True, False]), each([False, True]), each([True, True])
            predictors = [(a, observed[:, 0]), (b, observed[:, 1])]
            predictors += [(both - a - b, observed.all(dim=1))] if of == "combinatorial" else []
        expected = sum(
            loss[has & labelled].mean() + 2.0 * loss[has & ~labelled & sure].sum() / (has & ~labelled).sum()
            for loss, has in predictors
        )
    assert worlds.step(made, there, states, there.places(), stage="pseudo") == pytest.approx(expected.item(), abs=1e-5)


def divided(*says):
    """Make an ensemble with pseudo-labels, with one party per given class, each more than .99 sure of its class."""
    made, there = pseudo("ensemble"), world(K=len(says), classes=2)
    states = worlds.begin(made, there)
    first = states["a"].modules["heads"].first
    with torch.no_grad():
        first.weight.zero_()
        first.bias.copy_(5.0 * torch.eye(2)[list(says)])
    return made, states["a"]


def guessed_for(made, state, key):
    B, K = len(key), state.seat.roster.K
    return made._guessed(state, torch.zeros(B, K, 5), torch.ones(B, K, dtype=torch.bool), key)


def test_a_tie_of_votes_follows_the_row_and_not_its_place():
    key = torch.arange(8) * 7919 + 13
    guess, _ = guessed_for(*divided(0, 1), key)
    assert 0 < guess.sum() < 8
    order = torch.randperm(8)
    assert torch.equal(guessed_for(*divided(0, 1), key[order])[0], guess[order])
    assert len(guessed_for(*divided(0, 1), key[:1].expand(8))[0].unique()) == 1


def test_in_training_the_key_is_that_of_prediction(monkeypatch):
    made, there, seen = pseudo("ensemble"), world(scarce=True), []
    guessed = PseudoLabelled._guessed
    monkeypatch.setattr(PseudoLabelled, "_guessed", lambda *given: seen.append(given[-1]) or guessed(*given))
    rows = there.places().flip(0)[:9]
    worlds.step(made, there, worlds.begin(made, there), rows, stage="pseudo")
    assert torch.equal(seen[0], there.rows["a"].key[rows])


@pytest.mark.parametrize(("says", "sure"), [((0, 0), True), ((0, 1), False), ((0, 0, 1), False), ((1, 1, 1), True)])
def test_an_ensemble_is_sure_where_all_who_vote_are_not_its_majority_alone(says, sure):
    guess, found = guessed_for(*divided(*says), torch.arange(4))
    assert found.tolist() == [sure] * 4
    if len(says) == 3:
        assert guess.tolist() == [says[0]] * 4


def test_without_rows_to_stand_in_for_it_says_so():
    made = pseudo()
    last = made.stages(world().seat("a"))[-1]
    assert last.remark(world().rows["a"]) == ALL_LABELLED
    assert last.remark(world(scarce=True).rows["a"]) == ""


@pytest.mark.slow
def test_rows_without_a_label_help_where_classes_lie_apart():
    """Use thirteen labels among 400 rows, and the mean of three seeds.

    Unlabelled rows harm if classes overlap (findings, 2026-11-22).
    """
    y, labeled, gains = torch.arange(400) % 3, torch.arange(400) % 32 == 0, []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = {name: torch.randn(3, 4, generator=generator)[y] + 0.7 * torch.randn(400, 4, generator=generator)
             for name in "abc"}  # fmt: skip
        there, right = worlds.given(x, y, worlds.all_patterns(400, 3), labeled=labeled), []
        for made in (method("laser", embedding=8), pseudo(embedding=8, unlabelled_epochs=40)):
            trained = worlds.train(made, there, epochs=30, batch_size=32, optimizer=ADAM, seed=seed,
                                   training=torch.ones(400).bool())  # fmt: skip
            answers = worlds.predict(made, there, worlds.states_of(trained))
            right.append((answers.scores.argmax(1) == y)[~labeled].float().mean().item())
        gains.append(right[1] - right[0])
    assert sum(gains) / 3 > 0.03
