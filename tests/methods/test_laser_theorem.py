"""LASER-VFL's estimate is unbiased (Lemma 1 of Valdeira, Wang, Chi, ICLR 2025), and its parts match the paper.

Letters as in ``anyparty.methods.split.laser``: B rows, K parties, M heads, O_n parties that hold row n.
"""

from fractions import Fraction
from functools import partial
from itertools import permutations
from math import comb

import pytest
import torch

from anyparty.methods.method_registry import method
from anyparty.methods.split import laser
from anyparty.methods.split.laser import Laser, order_of, running_means, size_weights
from anyparty.methods.split.rule import draw_noise
from anyparty.transport.contract import ContractChannel
from tests import worlds
from tests.methods.reference import Joint, subsets_with
from tests.worlds import Table, world

FOUR = torch.tensor([  # four parties; presence patterns of four, three, two and one party in one batch
    [True, True, True, True],
    [True, False, True, True],
    [False, True, False, True],
    [False, False, True, False],
    [True, False, False, False],
])  # fmt: skip


def orders_of(observed, owners):
    """Yield every order of the other observed parties that ``order_of`` may draw, for all rows and heads at once.

    Cycling each row's and head's own list visits all of its orders equally often: |O|-1 <= 3, so 3! = 6 draws are
    enough, and the mean over them is the expectation.
    """
    B, K = observed.shape
    for draw in range(6):
        order = torch.empty(B, len(owners), K, dtype=torch.int64)
        for n in range(B):
            for slot, m in enumerate(owners):
                others = [k for k in range(K) if observed[n, k] and k != m]
                absent = [k for k in range(K) if not observed[n, k] and k != m]
                mixed = list(permutations(others))
                order[n, slot] = torch.tensor([m, *mixed[draw % len(mixed)], *absent])
        yield order


class TestUnbiased:
    """The mean of the loss, and of its gradient, over all draws equals the sum over all subsets, (5)."""

    @pytest.mark.parametrize(
        ("parameters", "normalize", "kind"),
        [
            ({}, True, "classification"), ({}, False, "regression"), ({"heads": "labels"}, True, "regression"),
            ({"heads": "labels"}, False, "classification"), ({"heads": "active"}, True, "classification"),
            ({"heads": "active"}, False, "regression"), ({"head_hidden": (4,)}, True, "regression"),
            ({"head_hidden": (4,)}, False, "classification"),
        ],
    )  # fmt: skip
    def test_over_all_orders(self, normalize, parameters, kind, monkeypatch):
        of = world(K=4, observed=FOUR, labelers=(0, 3), kind=kind)
        made = method("laser", embedding=5, normalize=normalize, **parameters)
        plan = made.plan(of.roster)
        owners, rows = plan.owners, plan.trains_on(of.observed).nonzero().squeeze(1)
        losses, gradients, drawn = [], [], []
        for order in orders_of(FOUR[rows], owners):
            monkeypatch.setattr(laser, "order_of", lambda *given, order=order: drawn.append(given) or order)
            states = worlds.begin(made, of)
            losses.append(worlds.step(made, of, states, rows))
            gradients.append(worlds.gradients(states))
        assert len(drawn) == 6
        joint = Joint(made, of, worlds.begin(made, of))
        exact = joint.laser_exact(rows.tolist(), normalize=normalize)
        parameters = joint.parameters()
        expected = torch.autograd.grad(exact, list(parameters.values()), allow_unused=True)
        assert sum(losses) / 6 == pytest.approx(exact.item(), rel=1e-5)
        if len(owners) > 1:
            assert max(losses) - min(losses) > 1e-4  # a single draw does not equal it
        for name, gradient in zip(parameters, expected, strict=True):
            mean = sum(g[name].double() for g in gradients) / 6
            assert torch.allclose(mean, torch.zeros_like(mean) if gradient is None else gradient, atol=1e-5), name

    def test_the_exact_form_is_the_sum(self):
        of = world(K=4, observed=FOUR)
        for normalize in (True, False):
            made = method("laser", embedding=5, tasks="all", normalize=normalize)
            states = worlds.begin(made, of)
            exact = Joint(made, of, states).laser_exact(list(range(5)), normalize=normalize).item()
            assert worlds.step(made, of, states, of.places()) == pytest.approx(exact, rel=1e-6)

    @pytest.mark.parametrize("normalize", [True, False])
    def test_one_head_for_all_is_the_papers_with_equal_heads(self, normalize):
        """g_1 = ... = g_K: sum_m sum_{S with m} 1/|S| loss = sum_S loss, in value and in every answer."""
        of = world(K=4, observed=FOUR)
        every = method("laser", embedding=5, tasks="all", normalize=normalize)
        one = method("laser", embedding=5, tasks="all", normalize=normalize, heads="one")
        of_every, of_one = worlds.begin(every, of), worlds.begin(one, of)
        for party in of.roster.blocks:
            of_one[party].modules["encoder"].load_state_dict(of_every[party].modules["encoder"].state_dict())
        single = of_one[of.roster.active].modules["heads"].state_dict()
        same = {name: tensor.expand(4, *tensor.shape[1:]).clone() for name, tensor in single.items()}
        of_every[of.roster.active].modules["heads"].load_state_dict(same)
        answers = [
            worlds.answers_of(worlds.predict(made, of, states))["scores"]
            for made, states in ((every, of_every), (one, of_one))
        ]
        assert torch.allclose(*answers, atol=1e-6)
        losses = [worlds.step(made, of, states, of.places()) for made, states in ((every, of_every), (one, of_one))]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)

    @pytest.mark.parametrize("normalize", [True, False])
    def test_one_head_over_all_orders(self, normalize, monkeypatch):
        """The mean over all 24 orders of four parties is the sum over all subsets."""
        of = world(K=4, observed=FOUR[:1])
        made, losses = method("laser", embedding=5, normalize=normalize, heads="one"), []
        for order in permutations(range(4)):
            monkeypatch.setattr(laser, "order_of", lambda *_, order=order: torch.tensor(order).view(1, 1, 4))
            losses.append(worlds.step(made, of, worlds.begin(made, of), of.places()))
        exact = Joint(made, of, worlds.begin(made, of)).one_head([0], None, normalize=normalize).item()
        assert sum(losses) / 24 == pytest.approx(exact, rel=1e-5)
        assert max(losses) - min(losses) > 1e-4


def lots(B, K):
    """Return the random numbers of LASER-VFL's orders for B rows, with a head for each of K parties: [B, K, K]."""
    of = world(K=K)
    made, batch = method("laser"), worlds.batch_of(torch.arange(B))
    return draw_noise(made.plan(of.roster), made.host(of.seat("a")), [batch], batch.rows.unsqueeze(0), K)[0]["order"]


class TestDraws:
    def test_the_owner_first_and_the_absent_last(self):
        observed = worlds.all_patterns(15, 4).repeat(20, 1)
        for owners in (torch.arange(4), torch.tensor([2]), torch.tensor([3, 1])):
            order = order_of(torch.rand(300, len(owners), 4), observed, owners)
            assert order.shape == (300, len(owners), 4)
            assert torch.equal(order.sort(2).values, torch.arange(4).expand(300, len(owners), 4))
            assert torch.equal(order[:, :, 0], owners.expand(300, -1))
            for n in range(300):
                for slot, m in enumerate(owners.tolist()):
                    size = int(observed[n].sum())
                    if observed[n, m]:
                        assert observed[n, order[n, slot, :size]].all()

    @pytest.mark.parametrize("O", [(0, 1, 2, 3), (0, 1, 3), (1, 2)])
    @pytest.mark.parametrize("draws", [4_000, pytest.param(200_000, marks=pytest.mark.slow)])
    def test_each_prefix_is_uniform_over_the_subsets_of_its_size(self, O, draws):  # noqa: E741
        """Run a chi-square test at five standard deviations, over the comb(|O|-1, i-1) subsets of size i with m."""
        observed = torch.zeros(draws, 4, dtype=torch.bool)
        observed[:, list(O)] = True
        order = order_of(lots(draws, 4), observed, torch.arange(4))
        for m in O:
            for i in range(1, len(O) + 1):
                wanted = [S for S in subsets_with(m, O) if len(S) == i]
                codes = (2 ** order[:, m, :i]).sum(1)
                counts = torch.tensor([int((codes == sum(2**k for k in S)).sum()) for S in wanted])
                assert counts.sum() == draws
                assert len(wanted) == comb(len(O) - 1, i - 1)
                expected = draws / len(wanted)
                freedom = len(wanted) - 1
                chi_square = float(((counts - expected) ** 2 / expected).sum())
                assert chi_square <= freedom + 5 * (2 * freedom) ** 0.5, (m, i, counts)

    def test_rows_and_heads_draw_apart(self):
        """Two rows, or two heads, have the same second party of seven as often as by chance."""
        order = order_of(lots(4000, 8), torch.ones(4000, 8, dtype=torch.bool), torch.arange(8))
        rows = (order[::2, 0, 1] == order[1::2, 0, 1]).float().mean()
        assert rows == pytest.approx(1 / 7, abs=0.04)
        heads = (order[:, 0, 1] == order[:, 1, 1]).float().mean()
        assert heads == pytest.approx(6 / 49, abs=0.03)  # excluding both heads' own parties

    def test_draws_follow_the_moment(self):
        of = world(K=4, observed=FOUR)
        made = method("laser", embedding=5)
        losses = [worlds.step(made, of, worlds.begin(made, of), of.places(), number=number) for number in (0, 0, 1)]
        assert losses[0] == losses[1] != losses[2]


class TestWeights:
    """a_i = comb(|O|-1, i-1)/i.  Over |O| heads and all sizes they sum to 2^|O| - 1, the number of subsets."""

    @pytest.mark.parametrize("K", [1, 2, 5, 20, 64])
    def test_sums(self, K):
        table, shares = size_weights(K, normalize=False), size_weights(K, normalize=True)
        assert torch.isfinite(table).all()
        assert torch.isfinite(shares).all()
        for o in range(1, K + 1):
            assert sum(Fraction(comb(o - 1, i - 1), i) for i in range(1, o + 1)) * o == 2**o - 1
            assert o * table[o].double().sum().item() == pytest.approx(2**o - 1, rel=1e-5)
            assert o * shares[o].double().sum().item() == pytest.approx(1, rel=1e-5)
            assert not table[o, o:].any()
        assert not table[0].any()

    @pytest.mark.parametrize("heads", ["every", "labels", "active"])
    def test_a_row_counts_once_with_any_set_of_heads(self, heads):
        of = world(K=4, observed=worlds.all_patterns(15, 4), labelers=(0, 3))
        for normalize in (True, False):
            rule = Laser(heads=heads, normalize=normalize)
            made = method("laser", embedding=5, heads=heads, normalize=normalize)
            weight = rule._weights(made.host(of.seat("a")), of.observed, torch.float32)
            plan = made.plan(of.roster)
            trained = plan.trains_on(of.observed)
            assert not weight[~trained].any()
            owners = list(plan.owners)
            size, count = of.observed.sum(1).double(), of.observed[:, owners].sum(1)
            expected = torch.ones(15).double() if normalize else count * (2**size - 1) / size
            assert torch.allclose(weight.sum((1, 2)).double()[trained], expected[trained], rtol=1e-6)


class TestByHand:
    def test_running_means(self):
        """One row of three parties has products 1, 3, 8: head 0's order (0, 2, 1) has means 1, 4.5, 4.

        Head 1's order (1, 0, 2) has means 3, 2, 4.  For head 0, the gradient of the sum of all means by party 0's
        product is 1 + 1/2 + 1/3, as it is in all three; by party 2's, second in the order, 1/2 + 1/3; by party 1's 1/3.
        """
        products = torch.tensor([1.0, 3.0, 8.0]).view(1, 3, 1, 1).repeat(1, 1, 2, 1).requires_grad_()
        order = torch.tensor([[[0, 2, 1], [1, 0, 2]]])
        means = running_means(products, order)
        assert means.flatten().tolist() == pytest.approx([1, 4.5, 4, 3, 2, 4])
        means.sum().backward()
        third, second, first = 1 / 3, 1 / 2 + 1 / 3, 1 + 1 / 2 + 1 / 3
        assert products.grad[0, :, 0, 0].tolist() == pytest.approx([first, third, second])
        assert products.grad[0, :, 1, 0].tolist() == pytest.approx([second, first, third])

    def test_three_parties_one_row(self, monkeypatch):
        """Encoders f(x) = x, squared error, label 0, heads g_m(u) = u (regression), x = 1, 3, 8 at a, b, c.

        With the orders a: (a, c, b), b: (b, a, c), c: (c, b, a) the tasks' inputs are
            a: 1, (1+8)/2 = 4.5, 4      b: 3, 2, 4      c: 8, 5.5, 4
        a_i of |O| = 3: comb(2, i-1)/i = 1, 1, 1/3, so the loss is
            1 + 20.25 + 16/3  +  9 + 4 + 16/3  +  64 + 30.25 + 16/3  =  128.5 + 16  =  144.5;
        normalized, by 2^3 - 1 = 7: 20.642857.
        """
        of = world(K=3, N=1, d=1, kind="regression", observed=torch.ones(1, 3, dtype=torch.bool))
        of.rows["a"].y.zero_()
        for name, value in {"a": 1.0, "b": 3.0, "c": 8.0}.items():
            of.rows[name].block.x.fill_(value)
        order = torch.tensor([[[0, 2, 1], [1, 0, 2], [2, 1, 0]]])
        monkeypatch.setattr(laser, "order_of", lambda *_: order)
        for normalize, expected in ((False, 144.5), (True, 144.5 / 7)):
            made = method("laser", embedding=1, normalize=normalize, head_hidden=())
            states = worlds.begin(made, of, encoder=torch.nn.Identity)
            with torch.no_grad():
                states["a"].modules["heads"].first.weight.fill_(1.0)
                states["a"].modules["heads"].first.bias.zero_()
            assert worlds.step(made, of, states, torch.tensor([0])) == pytest.approx(expected, rel=1e-6)


class TestHeadsAtSeveralHosts:
    def test_their_orders_are_those_of_one_host_with_all_heads(self):
        """With equal draws at all hosts, every host's first head would have the same order of the other parties."""
        of = world(K=4, N=60, observed=torch.ones(60, 4, dtype=torch.bool), labelers=(0, 2))
        orders = {}
        for hosting in ("active", "labelers"):
            made = method("laser", embedding=5, hosting=hosting)
            hosts = made.topology(of.roster).hosts
            for host in hosts:
                plan, at, batch = made.plan(of.roster), made.host(of.seat(host)), worlds.batch_of(of.places())
                (noise,) = draw_noise(plan, at, [batch], batch.rows.unsqueeze(0), 4)
                drawn = order_of(noise["order"], of.observed, at.owners)
                orders[hosting] = orders.get(hosting, {}) | dict(zip(hosts[host], drawn.unbind(1), strict=True))
        assert sorted(orders["labelers"]) == [0, 1, 2, 3]
        for m, order in orders["active"].items():
            assert torch.equal(orders["labelers"][m], order)
        behind = {m: [[k for k in row if k not in {0, 2}] for row in orders["labelers"][m].tolist()] for m in (0, 2)}
        assert behind[0] != behind[2]


class TestOnePredictorForEverySet:
    @pytest.mark.parametrize("parameters", [{}, {"head_hidden": (6,)}], ids=["linear heads", "hidden heads"])
    def test_it_answers_as_it_was_trained(self, parameters):
        """Algorithm 2 for the rows of a pattern equals the training output of the task S = O_n, the last prefix."""
        of = world(K=4, observed=worlds.all_patterns(15, 4))
        made = method("laser", embedding=5, **parameters)
        states = worlds.begin(made, of)
        answered = worlds.predict(made, of, states)
        host, heads = made.host(of.seat("a")), states["a"].modules["heads"]
        h = torch.zeros(15, 4, 5)
        for k, name in enumerate(of.roster.blocks):
            held = of.observed[:, k]
            h[held, k] = states[name].modules["encoder"](of.x[name][held]).detach()
        order = order_of(torch.rand(15, 4, 4), of.observed, host.owners)
        trained = heads.finish(running_means(heads.products(h), order))  # [B, M, T, C]
        for n in range(15):
            O = of.observed[n].nonzero().squeeze(1).tolist()  # noqa: E741
            for m in range(4):
                if m in O:
                    expected = trained[n, m, len(O) - 1].softmax(0)
                    assert torch.allclose(answered.by_party[n, m], expected, atol=1e-6)
                else:
                    assert torch.isnan(answered.by_party[n, m]).all()
            own = answered.by_party[n, O]
            assert torch.allclose(answered.scores[n], own.mean(0), atol=1e-6)

    def test_any_subset_of_the_parties_may_be_asked(self):
        of = world(K=4, observed=torch.ones(6, 4, dtype=torch.bool))
        made = method("laser", embedding=5)
        states = worlds.begin(made, of)
        joint = Joint(made, of, states)
        for S in [S for m in range(4) for S in subsets_with(m, (0, 1, 2, 3))]:
            answered = worlds.predict(made, of, states, asked=[of.roster.blocks[k] for k in S])
            u = sum(joint.f(k, 2) for k in S) / len(S)
            each = torch.stack([joint.head_of(m, u).softmax(0) for m in S])
            assert torch.allclose(answered.scores[2].double(), each.mean(0), atol=1e-6)
            assert answered.took_part[2].nonzero().squeeze(1).tolist() == list(S)


class TestManyParties:
    def step_with_saved_tensors(self, K):
        """Run one step with K parties; return the number of values that autograd saved for the backward pass."""
        observed = torch.rand(16, K, generator=torch.Generator().manual_seed(0)) < 0.7
        of = world(K=K, N=16, d=2, classes=16, observed=observed)
        made = method("laser", embedding=4)
        states, kept = worlds.begin(made, of), []

        def keep(tensor):
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            rows = of.observed.any(1).nonzero().squeeze(1)
            loss = worlds.step(made, of, states, rows)
        assert loss > 0
        assert all(torch.isfinite(w).all() for w in worlds.weights(states).values())
        assert all(g.any() for name, g in worlds.gradients(states).items() if "heads" in name)
        return sum(kept)

    def test_memory_grows_no_faster_than_the_square(self):
        kept = {K: self.step_with_saved_tensors(K) for K in (8, 16, 32, 64)}
        for K in (8, 16, 32):
            assert kept[2 * K] <= 4.2 * kept[K], kept

    def test_unnormalized_sixty_four_parties_have_a_finite_loss(self, monkeypatch):
        """With 2^64 - 1 subsets the paper's loss and gradients are huge, beyond the bound of messages, but finite."""
        monkeypatch.setattr(worlds, "ContractChannel", partial(ContractChannel, bounds=None))
        of = world(K=64, N=4, d=2, observed=torch.ones(4, 64, dtype=torch.bool))
        for normalize, most in ((False, 2.0**66), (True, 4.0)):
            made = method("laser", embedding=4, normalize=normalize)
            loss = worlds.step(made, of, worlds.begin(made, of), of.places(), at=Table())
            assert 0 < loss < most

    def test_the_exact_sum_says_how_far_it_goes(self):
        of = world(K=11, N=4)
        with pytest.raises(
            ValueError,
            match=r"LASER-VFL .* supports at most 10 parties, but there are 11; tasks = .sample. has no such limit",
        ):
            worlds.begin(method("laser", tasks="all"), of)
        with pytest.raises(
            ValueError,
            match="Combinatorial with these settings supports at most 8 parties, but there are 11; LASER-VFL",
        ):
            worlds.begin(method("combinatorial"), of)
