"""If nothing is missing, or there is one party, or nothing to sample, a method equals a simpler one."""

import re
from functools import partial

import pytest
import torch

from anyparty.core.types import Task
from anyparty.errors import ConfigError
from anyparty.methods.method_registry import made_again, method, settings_of
from anyparty.methods.split.combinatorial import subsets
from anyparty.methods.split.local import draw_winner
from anyparty.methods.split.plug import Plug
from anyparty.methods.split.rule import HeadOutputs
from anyparty.methods.split.standard import Standard
from anyparty.networks.optimizer import Optimizer
from tests import worlds
from tests.methods.reference import Joint
from tests.worlds import SGD, world

TWO_CLASSES = Task(kind="classification", classes=("no", "yes"))


def trained(of, name, optimizer=SGD, settings=None, **parameters):
    """Train for three epochs; return the weights and the answers for all rows."""
    made = method(name, embedding=5, **parameters)
    states = worlds.states_of(worlds.train(made, of, optimizer=optimizer, **(settings or {})))
    return worlds.weights(states), worlds.answers_of(worlds.predict(made, of, states))


def close(one, other, atol=1e-5):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.allclose(one[name], other[name], atol=atol, equal_nan=True), name


LINEAR = {"head_hidden": ()}


class TestOneParty:
    @pytest.mark.parametrize(
        ("complex_one", "simple_one"),
        [
            (("laser", LINEAR), ("local", {})),
            (("laser", LINEAR | {"normalize": False}), ("local", {})),
            (("laser", LINEAR | {"tasks": "all"}), ("local", {})),
            (("laser", LINEAR | {"heads": "active"}), ("local", {})),
            (("laser", LINEAR | {"heads": "one"}), ("local", {})),
            (("laser", LINEAR | {"heads": "one", "tasks": "all", "normalize": False}), ("local", {})),
            (("standard", {"absent": "zeros"}), ("standard", {})),
            (("laser", {"head_hidden": (4,)}), ("local", {"head_hidden": (4,)})),
            (("combinatorial", {}), ("standard", {})),
            (("local", {}), ("standard", {})),
            (("plug", {"dropout": 0.0}), ("standard", {})),
            (("plug", {"dropout": 0.7}), ("standard", {})),
        ],
    )
    def test_is_the_simpler_method(self, complex_one, simple_one):
        of = world(K=1, N=30, kind="regression" if complex_one[0] == "plug" else "classification")
        (weights, answers), (expected, plain) = (
            trained(of, name, **parameters) for name, parameters in (complex_one, simple_one)
        )
        close(weights, expected, atol=2e-6)
        assert torch.allclose(answers["scores"], plain["scores"], atol=2e-6)
        assert torch.equal(answers["took_part"], plain["took_part"])

    @pytest.mark.parametrize("kind", ["classification", "regression"])
    def test_combinatorial_plug_and_local_are_standard_to_the_last_bit(self, kind):
        of = world(K=1, N=30, kind=kind)
        expected, _ = trained(of, "standard")
        for name in ("combinatorial", "plug", "local", "ensemble"):
            assert worlds.same_bits(trained(of, name)[0], expected), name


class TestOneHead:
    def test_ensemble_trains_exactly_as_local(self):
        of = world(N=40)
        for parameters in ({}, {"head_hidden": (4,)}):
            assert worlds.same_bits(trained(of, "ensemble", **parameters)[0], trained(of, "local", **parameters)[0])

    def test_ensemble_of_one_voter_answers_as_local(self):
        """If only one party has the row, there is nothing to vote on."""
        of = world(N=40)
        alone = of.observed.sum(1) == 1
        vote, local = trained(of, "ensemble")[1], trained(of, "local")[1]
        assert torch.equal(vote["scores"][alone], local["scores"][alone])

    def test_combinatorial_trains_the_whole_set_as_standard(self):
        """The predictor of all parties shares nothing with the others, and sees the rows that all parties have."""
        of = world(N=35)
        made, states = method("combinatorial", embedding=5), None
        states = worlds.begin(made, of)
        worlds.step(made, of, states, of.places())
        gradient = worlds.gradients(states)["a/heads/first.weight"][-1]  # for the subset {a, b, c}
        fewer = worlds.begin(made, of)
        worlds.step(made, of, fewer, of.observed.all(1).nonzero().squeeze(1))
        assert torch.allclose(gradient, worlds.gradients(fewer)["a/heads/first.weight"][-1], atol=1e-6)
        assert gradient.abs().max() > 1e-3


class TestNothingMissing:
    def test_standard_does_not_see_rows_that_somebody_lacks(self):
        """Changing the cells of those rows does not change a bit of the weights."""
        of, other = world(N=40), world(N=40)
        for name, rows in other.rows.items():
            lacking = (~of.observed.all(1) & (rows.block.position >= 0)).nonzero().squeeze(1)
            rows.block.x[rows.block.position[lacking]] = 1e3
            assert not torch.equal(rows.block.x, of.rows[name].block.x)
        assert worlds.same_bits(trained(of, "standard")[0], trained(other, "standard")[0])

    def test_plug_without_dropout_holds_standard(self):
        """g(concat h) with weights W/K side by side equals g'(mean h) with W."""
        of = world(observed=torch.ones(12, 3, dtype=torch.bool))
        plug, standard = (method(name, embedding=5, **p) for name, p in (("plug", {"dropout": 0.0}), ("standard", {})))
        states, wide = worlds.begin(standard, of), worlds.begin(plug, of)
        with torch.no_grad():
            heads = wide["a"].modules["heads"].first
            heads.weight.copy_(states["a"].modules["heads"].first.weight.repeat(1, 1, 3) / 3)
            heads.bias.copy_(states["a"].modules["heads"].first.bias)
        one, other = worlds.predict(standard, of, states), worlds.predict(plug, of, wide)
        assert torch.allclose(one.scores, other.scores, atol=1e-6)
        assert worlds.step(standard, of, states, of.places()) == pytest.approx(
            worlds.step(plug, of, wide, of.places()), rel=1e-5
        )

    def test_a_row_that_only_a_party_that_left_has_is_nobodys(self):
        """Its embeddings would all be zeros, so plug trains as if the row were not in the batch."""
        of, made = world(N=28), method("plug", embedding=5, dropout=0.0)
        left = of.observed[:, :2].any(dim=1).nonzero().squeeze(1)
        every, known = (
            worlds.step(made, of, worlds.begin(made, of), rows, leaves={"c"}) for rows in (of.places(), left)
        )
        assert every == pytest.approx(known)

    def test_normalized_laser_is_the_papers_with_another_learning_rate(self):
        """If all K = 3 parties hold a row, its weights sum to 2^3 - 1 = 7."""
        of = world(N=32, observed=torch.ones(32, 3, dtype=torch.bool))
        papers, _ = trained(of, "laser", Optimizer(name="sgd", lr=0.01), normalize=False)
        ours, _ = trained(of, "laser", Optimizer(name="sgd", lr=0.07), normalize=True)
        close(papers, ours)


class TestNothingToSample:
    @pytest.mark.parametrize("normalize", [True, False])
    def test_two_parties_have_one_task_of_each_size(self, normalize):
        """With S_m1 = {m} and S_m2 = {both}, the sample equals the exact sum."""
        of = world(K=2, N=40)
        sampled, exact = (trained(of, "laser", tasks=tasks, normalize=normalize) for tasks in ("sample", "all"))
        close(sampled[0], exact[0])

    def test_hosting_moves_heads_and_nothing_else(self):
        """The losses of heads at two label holders sum to that of the same heads at one."""
        of, one = world(N=42, labelers=(0, 2)), world(N=42, labelers=(0,))
        for name, parameters in (("laser", {"tasks": "all"}), ("local", {})):
            apart = method(name, embedding=5, hosting="labelers", **parameters)
            together = method(name, embedding=5, **parameters)
            states, whole = worlds.begin(apart, of), worlds.begin(together, one)
            a, c, all_heads = (s.modules["heads"].first for s in (states["a"], states["c"], whole["a"]))
            with torch.no_grad():
                for part in ("weight", "bias"):
                    getattr(all_heads, part).copy_(torch.cat([getattr(a, part), getattr(c, part)]))
            worlds.step(apart, of, states, of.places())
            worlds.step(together, one, whole, one.places())
            for party in "abc":
                encoders = (worlds.gradients({party: s[party]}) for s in (states, whole))
                mine, theirs = ({k: g for k, g in grads.items() if "encoder" in k} for grads in encoders)
                close(mine, theirs, atol=1e-6)
            assert torch.allclose(torch.cat([a.weight.grad, c.weight.grad]), all_heads.weight.grad, atol=1e-6)


class TestNumbersByHand:
    def test_subsets_of_three(self):
        """Subset number S has bit k for party k: 1 = {0}, 2 = {1}, 3 = {0, 1}, ... 7 = {0, 1, 2}.

        Party 0 is in 1, 3, 5, 7 and serves them with its encoders 0, 1, 2, 3; party 1 in 2, 3, 6, 7.
        """
        members, slot = subsets(3)
        assert [[k for k in range(3) if row[k]] for row in members.tolist()] == [
            [0], [1], [0, 1], [2], [0, 2], [1, 2], [0, 1, 2]
        ]  # fmt: skip
        assert slot.tolist() == [[0, -1, 1, -1, 2, -1, 3], [-1, 0, 1, -1, -1, 2, 3], [-1, -1, -1, 0, 1, 2, 3]]

    def test_local_prefers_the_active_party(self):
        of = world(N=28, labelers=(1,))
        made = method("local", embedding=5)
        answered = worlds.predict(made, of, worlds.begin(made, of))
        for n, held in enumerate(of.observed.tolist()):
            chosen = 1 if held[1] else held.index(True)
            assert answered.took_part[n].tolist() == [k == chosen for k in range(3)]
            assert torch.equal(answered.scores[n], answered.by_party[n, chosen])

    def test_votes(self):
        """If two of three say yes, at 0.9 and 0.6, the answer is yes at 0.75.

        A tie is broken by the row's key.  Soft votes give the mean.
        """
        p = torch.tensor([[0.1, 0.9], [0.4, 0.6], [0.8, 0.2]])
        given = partial(
            HeadOutputs, task=TWO_CLASSES, owners=torch.arange(3), key=torch.tensor([5]), k=0, answers=p.unsqueeze(0)
        )
        ensemble, soft = (method("ensemble", vote=vote).rule for vote in ("hard", "soft"))
        everyone = given(valid=torch.ones(1, 3, dtype=torch.bool), observed=torch.ones(1, 3, dtype=torch.bool))
        assert torch.allclose(ensemble.answer(everyone).scores, torch.tensor([[0.25, 0.75]]))
        assert torch.allclose(soft.answer(everyone).scores, p.mean(0, keepdim=True))
        tie = torch.tensor([[True, False, True]])
        tied = ensemble.answer(given(valid=tie, observed=tie)).scores
        assert any(torch.allclose(tied, one.unsqueeze(0)) for one in (p[0], p[2]))

    def test_ties_are_drawn_evenly_and_follow_the_key(self):
        for C in (2, 3, 5):
            votes = torch.ones(20_000, C, dtype=torch.int64)
            for key in (torch.arange(20_000), torch.randint(-(2**62), 2**62, (20_000,))):
                winner = draw_winner(votes, key)
                share = torch.bincount(winner, minlength=C) / len(winner)
                assert (share - 1 / C).abs().max() < 0.02, (C, share)
                order = torch.randperm(len(key))
                assert torch.equal(draw_winner(votes, key[order]), winner[order])
        leading = torch.tensor([[2, 1, 2, 0]]).expand(1000, -1)
        assert set(draw_winner(leading, torch.arange(1000)).tolist()) == {0, 2}

    def test_party_dropout_drops_passive_parties_and_never_the_host(self):
        """A dropped party's gradient is zero in 0.6 +- 0.12 (3 sigma) of 150 draws, and never for the active party."""
        of = world(observed=torch.ones(6, 3, dtype=torch.bool))
        made = method("plug", embedding=5, dropout=0.6)
        dropped = {"a": 0, "b": 0, "c": 0}
        for number in range(150):
            states = worlds.begin(made, of)
            worlds.step(made, of, states, of.places(), number=number)
            for name in dropped:
                dropped[name] += not states[name].modules["encoder"][0].weight.grad.any()
        assert dropped["a"] == 0
        assert abs(dropped["b"] / 150 - 0.6) < 0.12
        assert abs(dropped["c"] / 150 - 0.6) < 0.12

    def test_the_reference_on_a_row_worked_by_hand(self):
        """One row, parties a and b, encoders f(x) = x, one linear head each: logits W_m mean(x_S).

        L = [l(W_a x_a) + 1/2 l(W_a (x_a+x_b)/2)] + [l(W_b x_b) + 1/2 l(W_b (x_a+x_b)/2)]   (5)
        """
        of = world(K=2, N=1, d=2, classes=2, observed=torch.ones(1, 2, dtype=torch.bool))
        made = method("laser", embedding=2, normalize=False)
        states = worlds.begin(made, of, encoder=torch.nn.Identity)
        heads, (xa, xb), y = states["a"].modules["heads"].first, (of.x["a"][0], of.x["b"][0]), int(of.y[0])

        def loss(m, u):
            return -torch.log_softmax(heads.weight[m] @ u + heads.bias[m], 0)[y]

        mean = (xa + xb) / 2
        by_hand = loss(0, xa) + loss(0, mean) / 2 + loss(1, xb) + loss(1, mean) / 2
        slow = Joint(made, of, states).laser_exact([0], normalize=False)
        assert slow.item() == pytest.approx(by_hand.item(), rel=1e-6)
        assert worlds.step(made, of, states, torch.tensor([0])) == pytest.approx(by_hand.item(), rel=1e-6)


def test_rules_that_need_everybody_say_so():
    assert Standard().can.needs == "all"
    assert Plug().can.needs == "any"


@pytest.mark.parametrize(
    ("idle", "switch"),
    [({"pretrain_epochs": 3}, "pretrain = 'simsiam'"), ({"corrupt": 0.1, "pretrain": "none"}, "pretrain = 'simsiam'"),
     ({"sure": 0.5}, "unlabelled = 'pseudo'"), ({"unlabelled_weight": 2.0}, "unlabelled = 'pseudo'")],
)  # fmt: skip
def test_parameters_that_would_do_nothing_are_refused(idle, switch):
    with pytest.raises(ConfigError, match=f"would do nothing without {switch}"):
        method("laser", **idle)
    method("laser", pretrain="none", unlabelled="ignore")


AT_ONE = "here: the heads belong to no party, and all stand at the active one"
NO_STUDENT = "with classify_on = 'joint', which has no student"
ALONE = "with distillation = 0 and classify_on = 'own': the active party trains alone"


@pytest.mark.parametrize(
    ("name", "beside", "idle", "said"),
    [
        ("laser", {"pretrain": "simsiam"}, {"pretrain_follow": 0.9}, "without pretrain = 'byol' or 'moco'"),
        ("laser", {"pretrain": "byol"}, {"pretrain_temperature": 0.5}, "without pretrain = 'moco'"),
        ("fedhssl", {}, {"pretrain_temperature": 0.5}, "without pretrain = 'moco'"),
        ("fedhssl", {"pretrain": "simsiam"}, {"pretrain_follow": 0.9}, "without pretrain = 'byol' or 'moco'"),
        ("apc", {}, {"head_hidden": [64]}, "without classifier = 'head'"),
        ("vfedtrans", {"classifier": "ridge"}, {"head_hidden": [64]}, "without classifier = 'head'"),
        ("apc", {"classifier": "head"}, {"classifier_settings": {"C": 3}}, "with classifier = 'head', a network"),
        ("vfedtrans", {"classifier": "head"}, {"classifier_settings": {"C": 3}}, "with classifier = 'head', a network"),
        ("apc", {"distillation": 0}, {"joint_hidden": [7], "passive_embedding": 3}, ALONE),
        ("apc", {"distillation": 0}, {"precision": "uint4"}, ALONE),
        ("apc", {"distillation": 0, "classify_on": "either"}, {"distance": "mae"}, "with distillation = 0"),
        ("vfedtrans", {"distillation": 0}, {"distance": "mse"}, "with distillation = 0"),
        ("apc", {"classify_on": "joint"}, {"distillation": 0.5, "distance": "mae", "reduction": "mean"}, NO_STUDENT),
        ("apc", {"classify_on": "joint"}, {"student_hidden": [3]}, NO_STUDENT),
        ("plug", {}, {"hosting": "labelers"}, AT_ONE),
        ("standard", {"absent": "zeros"}, {"hosting": "labelers"}, AT_ONE),
        ("combinatorial", {}, {"hosting": "labelers"}, AT_ONE),
        ("laser", {"heads": "one"}, {"hosting": "labelers"}, AT_ONE),
        ("plug", {"make_head": torch.nn.Linear}, {"head_hidden": [3]}, "with make_head, which makes the whole head"),
    ],
)  # fmt: skip
def test_so_are_those_that_another_one_switches_off(name, beside, idle, said):
    with pytest.raises(ConfigError, match=re.escape(f"would do nothing {said}")) as refused:
        method(name, **beside, **idle)
    assert all(repr(parameter) in str(refused.value) for parameter in idle)
    method(name, **beside)
    made_again(name, **beside, **idle)  # an earlier version may have trained a model with them


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("apc", {"distillation": 0.0}), ("apc", {"classify_on": "joint"}), ("apc", {"classifier": "head"}),
     ("vfedtrans", {}), ("fedhssl", {}), ("laser", {"pretrain": "simsiam"})],
)  # fmt: skip
def test_defaults_that_do_nothing_may_be_said(name, parameters):
    made = method(name, **parameters)
    whole = settings_of(made, with_defaults=True)
    assert method(whole.pop("name"), **whole) == made
