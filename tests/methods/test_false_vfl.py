"""FALSE-VFL's claims: theorem C.1 with a known likelihood, its weights by hand, and a planted parameter under MNAR."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

from anyparty.core.seeds import Seeds
from anyparty.core.types import ChannelWrapper, Task
from anyparty.errors import AlignmentError, ConfigError
from anyparty.methods.false_vfl.distributions import (
    FeatureNetworks,
    LabelNetworks,
    balanced,
    bound,
    feature_side,
    followed,
    mixture,
)
from anyparty.methods.false_vfl.false_vfl import UNTIED, FalseVFL1, FalseVFL2
from anyparty.methods.false_vfl.generation import _fill, impute, log_likelihood
from anyparty.methods.method import Batch
from anyparty.methods.method_registry import method
from anyparty.networks.encoders import MLP, ResNet
from anyparty.networks.optimizer import Optimizer
from anyparty.training.callbacks import Callback
from anyparty.training.loop import predict_rows
from tests import worlds
from tests.methods.cases import OwnEncoder
from tests.methods.reference_false_vfl import Joint
from tests.worlds import world

TWO = Task(kind="classification", classes=("no", "yes"))
SMALL = {"embedding": 3, "top": 2, "hidden": (8,), "head_hidden": (8,), "samples": 4, "predict_samples": 12}


class Linear(nn.Module):
    """Outputs a Gaussian with mean W u and a constant deviation."""

    def __init__(self, weight: torch.Tensor, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.raw = torch.tensor(std).expm1().log()  # its softplus is std

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        mean = u @ self.weight.T
        return torch.cat([mean, self.raw.expand_as(mean)], dim=-1)


DRAWS = torch.Generator().manual_seed(5)


def normal(*shape):
    return torch.randn(*shape, generator=DRAWS)


class TestTheBound:
    """With h ~ N(0, I_2), z = W h + .6 e in R^3, x^k = A_k z + s_k e in R^2, log p(x^O) is known in closed form."""

    W = normal(3, 2)
    A = (normal(2, 3), normal(2, 3))
    s = (0.7, 1.1)
    x = (normal(400, 2), normal(400, 2))
    of_z = W @ W.T + 0.36 * torch.eye(3)  # the covariance of z

    def gain(self, A, s):
        """Return the matrix that maps a block to the mean of z: E[z | x] = gain x."""
        return self.of_z @ A.T @ torch.linalg.inv(A @ self.of_z @ A.T + (s**2).diag())

    def parties(self):
        """Return networks whose encoders halve the true mean and have a large deviation."""
        return [
            FeatureNetworks(
                encoder=Linear(0.5 * self.gain(A, torch.full((2,), s)), 1.8),
                decoder=Linear(A, s),
                indicator=None,
                floor=0.0,
            )
            for A, s in zip(self.A, self.s, strict=True)
        ]

    def log_w(self, L, observed, rows=400, seed=0, known=(None, None)):
        """Return the log-weights of all rows, for parties ``observed`` and cells ``known``."""
        generator = torch.Generator().manual_seed(seed)
        above = Linear(self.W.T @ torch.linalg.inv(self.of_z), 1.0)
        side = LabelNetworks(
            encoder=above, decoder=Linear(self.W, 0.6), discriminator=nn.Linear(3, 2), task=TWO, floor=0.0
        )
        sides, mask = self.parties(), torch.tensor(observed).expand(rows, 2)
        views = torch.stack([party.encode(x[:rows]) for party, x in zip(sides, self.x, strict=True)], dim=1)
        noise = torch.randn(L, rows, 3, generator=generator), torch.randn(L, rows, 2, generator=generator)
        draws = side.draw(side.posterior(views, mask), noise)
        held = torch.arange(rows)
        terms = [
            party.log_likelihood(x[:rows], held, draws.z, None, cells)
            for party, x, here, cells in zip(sides, self.x, observed, known, strict=True)
            if here
        ]
        return draws.log_ratio + sum(terms)

    def exact(self, observed):
        """Return log p(x^O) of every row: x^O is normal with covariance A (W W' + .36) A' + s^2."""
        A = torch.cat([A for A, here in zip(self.A, observed, strict=True) if here])
        s = torch.cat([torch.full((2,), s) for s, here in zip(self.s, observed, strict=True) if here])
        x = torch.cat([x for x, here in zip(self.x, observed, strict=True) if here], dim=1)
        return MultivariateNormal(torch.zeros(len(s)), A @ self.of_z @ A.T + (s**2).diag()).log_prob(x)

    def test_with_an_empty_cell_it_is_that_of_the_others(self):
        """The cell's fill value only enters the encoder: the proposal is worse, but the likelihood is the same."""
        known = torch.tensor([[False, True]]).expand(400, 2)
        A, s = torch.cat([self.A[0], self.A[1][1:]]), torch.tensor([self.s[0]] * 2 + [self.s[1]])
        x = torch.cat([self.x[0], self.x[1][:, 1:]], dim=1)
        exact = MultivariateNormal(torch.zeros(3), A @ self.of_z @ A.T + (s**2).diag()).log_prob(x).mean().item()
        with torch.no_grad():
            means = [bound(self.log_w(L, (True, True), known=(None, known))).mean().item() for L in (1, 16, 4096)]
        assert means == sorted(means)
        assert exact - 0.03 < means[-1] < exact + 0.01

    @pytest.mark.parametrize("observed", [(True, True), (True, False), (False, True)])
    def test_it_grows_with_the_number_of_samples_and_stays_below_the_likelihood(self, observed):
        with torch.no_grad():
            means = [bound(self.log_w(L, observed)).mean().item() for L in (1, 4, 16, 64, 1024)]
        exact = self.exact(observed).mean().item()
        assert all(less < more for less, more in pairwise(means)), means
        assert means[-1] < exact + 0.01
        assert means[-1] == pytest.approx(exact, abs=0.05)  # and converges to it
        assert means[0] < exact - 0.2  # from far below

    def test_prediction_is_importance_sampling_of_the_posterior(self):
        """E[z_1 | x] is linear in x and known; the weighted mean of z must equal it."""
        with torch.no_grad():
            side_z, log_w = [], []
            for seed in range(4):
                log_w.append(self.log_w(2000, (True, True), rows=20, seed=seed))
                side_z.append(self._z(2000, 20, seed))
            found = mixture(torch.cat(log_w), torch.cat(side_z))
        gain = self.gain(torch.cat(self.A), torch.tensor(self.s).repeat_interleave(2))
        expected = torch.cat(self.x, dim=1)[:20] @ gain.T
        assert (found - expected).abs().mean() < 0.05
        assert (torch.cat(side_z).mean(0) - expected).abs().mean() > 0.2  # the unweighted mean does not

    def _z(self, L, rows, seed):
        generator = torch.Generator().manual_seed(seed)
        views = torch.stack([p.encode(x[:rows]) for p, x in zip(self.parties(), self.x, strict=True)], dim=1)
        mean, variance = views.chunk(2, dim=2)
        return mean.mean(1) + (1 / variance).sum(1).rsqrt() * torch.randn(L, rows, 3, generator=generator)


class TestSamplesFollowed:
    """Only samples with a relevant weight contribute to the gradient."""

    log_w = 3 * normal(5, 40)

    def test_those_with_too_little_of_a_rows_weight_are_left_out(self):
        weight = self.log_w.softmax(0)
        found = followed(self.log_w, 0.01)
        assert torch.equal(found, torch.where(weight < 0.01, 0.0, weight))
        assert 0 < (found == 0).float().mean() < 0.8

    def test_all_of_them_are_the_derivative_of_the_bound(self):
        log_w = self.log_w.clone().requires_grad_()
        bound(log_w).sum().backward()
        assert torch.allclose(followed(self.log_w, 0.0), log_w.grad)

    def test_slopes_cross_for_these_alone(self):
        of, made = world(N=12, echo=True), method("false-vfl-1", **SMALL | {"negligible": 0.3})
        at = worlds.Table()
        worlds.step(made, of, worlds.begin(made, of), torch.arange(12), at=at, stage="pretrain")
        weights = {to: tensors["u"] for _, to, tag, tensors in at.notes if tag == "weight"}
        slopes = {frm: tensors["z"] for frm, _, tag, tensors in at.notes if tag == "slope"}
        assert weights.keys() == slopes.keys() == set(of.roster.blocks) - {of.roster.active}
        for party, u in weights.items():
            assert ((u != 0).sum(0) <= 3).all()  # of 4 samples, at most 3 can have a weight of .3
            assert slopes[party].shape == ((u != 0).sum(), made.embedding)

    @pytest.mark.parametrize("name", ["false-vfl-1", "false-vfl-2"])
    def test_where_labels_count_parties_are_told_nothing_of_weights(self, name):
        """With class weights, the sum of a row's derivatives would reveal the weight of its class."""
        of, made = world(N=12, echo=True), method(name, **SMALL)
        weighed = replace(of, task=replace(of.task, weights=tuple(1.5 + k for k in range(of.task.outputs))))
        at = worlds.Table()
        worlds.step(made, weighed, worlds.begin(made, weighed), torch.arange(12), at=at, stage="train")
        told = [tensors["u"].unique() for _, _, tag, tensors in at.notes if tag == "weight"]
        assert len(told) == 2
        assert all(len(numbers) == 1 for numbers in told)


def test_a_class_counts_in_the_second_stage_by_its_weight():
    of, made, losses = world(N=12, echo=True), method("false-vfl-1", **SMALL), []
    for weight in (1.0, 2.0):
        weighed = replace(of, task=replace(of.task, weights=(weight,) * of.task.outputs))
        losses.append(worlds.step(made, weighed, worlds.begin(made, weighed), torch.arange(12), stage="train"))
    assert losses[1] == pytest.approx(2 * losses[0])


def test_networks_that_a_stage_does_not_train_are_not_in_training():
    of, made = world(N=12, echo=True), method("false-vfl-1", **SMALL | {"train_encoders": False})
    states = worlds.begin(made, of, encoder=OwnEncoder)
    worlds.step(made, of, states, torch.arange(12), stage="train")
    assert all(not states[name].modules["encoder"].calls for name in of.roster.blocks)


@dataclass
class Until(ChannelWrapper):
    """A channel of a party that dies just before it sends ``last``."""

    last: str | None

    async def send(self, to, tag, tensors):
        if tag == self.last:
            raise ProcessLookupError(tag)
        return await super().send(to, tag, tensors)


def play(made, of, use, *, last=None, at=None):
    """Let every party run ``use(net, party)``; b dies just before it sends ``last``."""

    async def part(party, net):
        with suppress(ProcessLookupError):
            return await use(Until(net, last) if party == "b" else net, party)

    parts = {party: partial(part, party) for party in of.roster.names}
    return (at or worlds.Table()).play(of.roster, made.can.messages, parts)


@pytest.mark.parametrize("last", ["likelihood", "slope"])
@pytest.mark.parametrize("name", ["false-vfl-1", "false-vfl-2"])
def test_a_party_that_dies_within_a_batch_is_missed(name, last):
    of, made = world(N=12, echo=True), method(name, **SMALL)
    states, batch = worlds.begin(made, of), worlds.batch_of(torch.arange(12), stage="pretrain")
    before = worlds.weights(states)

    def step(net, party):
        return worlds.stage_of(made, of.seat(party), "pretrain").step(net, states[party], of.rows[party], batch)

    at = worlds.Table()
    loss = play(made, of, step, last=last, at=at)["a"]
    after = worlds.weights(states)
    assert math.isfinite(loss)
    assert all(torch.isfinite(tensor).all() for tensor in after.values())
    assert {to for _, to, tag, _ in at.notes if tag == "gradient"} == {"c"}
    moved = {name.split("/")[0] for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert moved == {"a", "c"}


@pytest.mark.parametrize("name", ["false-vfl-1", "false-vfl-2"])
class TestAPartyThatDiesBeforeItsLikelihood:
    """The party's embedding arrives, but not its likelihood, without which samples do not describe its rows."""

    @staticmethod
    def world_of(name):
        """Return the world, the method, trained networks, and the mask of rows that only b has."""
        of, made = world(N=56, echo=True), method(name, **SMALL)
        states = worlds.states_of(worlds.train(made, of, epochs=1))
        return of, made, states, of.observed[:, 1] & (of.observed.sum(dim=1) == 1)

    def test_it_has_no_part_in_answers(self, name):
        of, made, states, alone = self.world_of(name)

        def use(net, party):
            return predict_rows(made, net, states[party], of.rows[party], of.places(), of.roster.blocks, Seeds(0))

        said = play(made, of, use, last="likelihood")["a"]
        assert torch.equal(said.answered, ~alone)
        assert torch.equal(said.scores.isnan().any(dim=1), alone)
        assert torch.equal(said.took_part, of.observed & torch.tensor([True, False, True]))
        assert said.silent == ("b",)
        assert said.reasons.keys() == set(alone.nonzero().flatten().tolist())
        assert said.reasons == worlds.predict(made, of, states, leaves={"b"}).reasons

    def test_nor_in_likelihoods(self, name):
        of, made, states, alone = self.world_of(name)
        batch = Batch(of.places(), Seeds(0))

        def use(net, party):
            return log_likelihood(made, net, states[party], of.rows[party], batch, of.roster.blocks)

        assert torch.equal(play(made, of, use, last="likelihood")["a"].isnan(), alone)

    @pytest.mark.parametrize("owner", ["a", "c"])
    def test_nor_in_what_is_filled_in(self, name, owner):
        of, made, states, alone = self.world_of(name)
        batch = Batch(of.places(), Seeds(0))

        def use(net, party):
            asked = of.roster.blocks
            return impute(made, net, states[party], of.rows[party], batch, asked, owner=owner, S=3)

        filled = play(made, of, use, last="likelihood")[owner]
        for block in (filled.mean, *filled.samples):
            assert torch.equal(block.isnan(), alone.unsqueeze(1).expand_as(block))


def direct(made, of, states):
    """Compute section 3.3.4 by rows and samples in double precision, with the random numbers of prediction."""
    L, seeds = made.predict_samples, Seeds(0)
    joint = Joint(replace(made, samples=L), of, states, worlds.batch_of(of.places()))
    whose = ["".join(str(int(here)) for here in row) for row in of.observed]
    known = [[f"row {n}"] if who[0] == "1" else [] for n, who in enumerate(whose)]  # a has the ids of its rows
    rows = [("samples", who, *name) for who, name in zip(whose, known, strict=True)]
    eps = torch.stack([torch.randn(L, 5, generator=seeds.torch(*row)) for row in rows], dim=1).double()
    joint.eps_z, joint.eps_h = eps.split([3, 2], dim=2)
    joint.block_noise = lambda party, _, sample: balanced(L, 3, seeds.torch("prediction", f"block of {party}"))[sample]
    return joint, lambda n: torch.stack([joint.log_weight(n, sample, labels=False) for sample in range(L)])


@pytest.mark.parametrize("name", ["false-vfl-1", "false-vfl-2"])
def test_answers_equal_a_direct_computation(name):
    of, made = world(N=14, echo=True), method(name, **SMALL)
    states = worlds.states_of(worlds.train(made, of, epochs=1))
    answered = worlds.predict(made, of, states)
    joint, log_weights = direct(made, of, states)
    for n in range(of.n):
        log_w, q = log_weights(n), joint.posterior(n)
        answers = [joint.net("a", "discriminator", q.mean + q.stddev * e).softmax(0) for e in joint.eps_z[:, n]]
        expected = sum(alpha * answer for alpha, answer in zip(log_w.softmax(0), answers, strict=True))
        assert answered.scores[n].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("name", ["false-vfl-1", "false-vfl-2"])
def test_a_rows_likelihood_is_the_mean_of_its_weights(name):
    of, made = world(N=14, echo=True), method(name, **SMALL)
    states, batch = worlds.states_of(worlds.train(made, of, epochs=1)), Batch(of.places(), Seeds(0))

    def use(net, party):
        return log_likelihood(made, net, states[party], of.rows[party], batch, of.roster.blocks)

    found = play(made, of, use)["a"]
    _, log_weights = direct(made, of, states)
    for n in range(of.n):
        expected = log_weights(n).logsumexp(0) - math.log(made.predict_samples)
        assert found[n].item() == pytest.approx(expected.item(), abs=1e-4)


class TestWhatBlocksAreDrawnWith:
    """L numbers per column, common to all rows: a mean over rows does not reduce their error."""

    @pytest.mark.parametrize("L", [1, 2, 7, 50])
    def test_each_of_them_is_normal_by_itself(self, L):
        drawn = torch.stack([balanced(L, 3, torch.Generator().manual_seed(seed)) for seed in range(3000)])
        assert drawn.shape == (3000, L, 3)
        assert torch.isfinite(drawn).all()
        assert drawn.mean(0).abs().max() < 0.09  # five standard errors, 1 / sqrt 3000
        assert (drawn.std(0) - 1).abs().max() < 0.07
        assert torch.corrcoef(drawn[:, 0].T).fill_diagonal_(0).abs().max() < 0.09

    @pytest.mark.parametrize("L", [7, 50])
    def test_means_of_a_column_and_of_its_squares_are_nearer_than_of_independent_ones(self, L):
        drawn = balanced(L, 400, torch.Generator().manual_seed(0))
        assert drawn.mean(0).std() < 0.3 / math.sqrt(L)  # 1 / sqrt L if independent
        assert drawn.square().mean(0).std() < 0.7 * math.sqrt(2 / L)
        assert drawn.T.corrcoef().fill_diagonal_(0).square().mean().sqrt() < 1.2 / math.sqrt(L - 1)

    def test_a_party_draws_its_blocks_so_in_prediction_and_anew_for_every_row_in_training(self):
        made, of = FalseVFL2(**SMALL), world(K=2, N=6, observed=torch.tensor([[True, False]] * 6))
        turn = made.turn(None, worlds.begin(made, of)["b"], of.rows["b"], Batch(of.places(), Seeds(0)), ("b",), L=50)
        drawn = turn.block_noise(of.places(), 40)
        assert (drawn == drawn[:, :1]).all()
        assert drawn[:, 0].mean(0).abs().max() < 0.1
        training = replace(turn, common=False)
        noise = training.block_noise(of.places(), 40)
        assert noise.shape == (50, 6, 40)
        assert (noise[:, :1] != noise[:, 1:]).all()
        assert torch.equal(training.block_noise(of.places()[[4, 1]], 40), noise[:, [4, 1]])


def test_samples_of_a_block_spread_as_its_decoder_says():
    """The decoder outputs N(3, 4) for every z."""
    made, L = FalseVFL1(embedding=1, top=1, floor=1e-6), 10
    of = world(K=2, N=2, d=1, observed=torch.tensor([[True, False]] * 2))
    state, decoder = worlds.begin(made, of)["b"], nn.Linear(1, 2)
    with torch.no_grad():
        decoder.weight.zero_()
        decoder.bias.copy_(torch.tensor([3.0, math.log(math.expm1(2.0))]))
    state.modules["decoder"] = decoder
    turn = made.turn(None, state, of.rows["b"], Batch(of.places(), Seeds(0)), ("a",), L=L)
    told = {"z": torch.zeros(L, 2, 1), "weight": torch.full((L, 2), 1 / L)}
    filled = _fill(made, turn, state, told, 2000, counts=False)
    assert filled.samples.mean(dim=0).flatten().tolist() == pytest.approx([3.0] * 2, abs=0.2)
    assert filled.samples.std(dim=0).flatten().tolist() == pytest.approx([2.0] * 2, rel=0.1)


class TestMissingNotAtRandom:
    """Party b has a row with probability sigmoid(-2 x_b), so it lacks rows with large values."""

    @staticmethod
    def planted(N=2000, seed=0):
        generator = torch.Generator().manual_seed(seed)
        of = world(K=2, N=N, d=2, observed=torch.ones(N, 2, dtype=torch.bool))
        common = torch.randn(N, 1, generator=generator)
        x = {name: common + 0.7 * torch.randn(N, d, generator=generator) for name, d in (("a", 2), ("b", 1))}
        has = torch.rand(N, generator=generator) < torch.sigmoid(-2 * x["b"][:, 0])
        return worlds.given(x, of.y, torch.stack([torch.ones(N, dtype=torch.bool), has], dim=1))

    @staticmethod
    def pretrained(made, of):
        optimizer = Optimizer(name="adam", lr=5e-3)
        return worlds.train(made, of, epochs=30, batch_size=100, optimizer=optimizer, encoder=MLP(hidden=(16,)))

    @staticmethod
    def filled_in(made, of, trained):
        """Return the means of party b's imputed values and of the true ones, for rows that it lacks."""
        lacking = (~of.observed[:, 1]).nonzero().squeeze(1)
        batch = Batch(lacking, Seeds(0))

        def part(name):
            return lambda net: impute(made, net, trained[name].state, of.rows[name], batch, ("a", "b"), owner="b")

        found = worlds.Table().play(of.roster, made.can.messages, {name: part(name) for name in "ab"})
        assert found["a"] is None
        return found["b"].mean.mean().item(), of.x["b"][lacking].mean().item()

    def test_what_is_filled_in_is_as_likely_to_be_missing_as_the_row_is_to_lack_it(self):
        """With z ~ N(0, .09), x | z ~ N(z, 1), missing where x > 0, x is half-normal with mean sqrt(1.09 * 2 / pi).

        z alone carries almost no information about x: the mean of x | z with the same weights is .06.
        """
        made, L = FalseVFL2(embedding=1, top=1, floor=1e-6), 4000
        of = world(K=2, N=2, d=1, observed=torch.tensor([[True, False]] * 2))
        state = worlds.begin(made, of)["b"]
        one = torch.tensor([0.0, torch.expm1(torch.tensor(1.0)).log()])
        decoder, indicator = torch.nn.Linear(1, 2), torch.nn.Linear(1, 1)
        with torch.no_grad():
            decoder.weight.copy_(torch.tensor([[1.0], [0.0]]))  # mean z, deviation 1
            decoder.bias.copy_(one)
            indicator.weight.fill_(-20.0)
            indicator.bias.zero_()
        state.modules |= {"decoder": decoder, "indicator": indicator}
        turn = made.turn(None, state, of.rows["b"], Batch(of.places(), Seeds(0)), ("a", "b"), L=L)
        z = 0.3 * torch.randn(L, 2, 1, generator=torch.Generator().manual_seed(0))
        log_w = turn.decode(turn.encode(feature_side(state, made.floor)), z)
        half = math.sqrt(1.09 * 2 / math.pi)
        filled = _fill(made, turn, state, {"z": z, "weight": log_w.softmax(0)}, 500, counts=True)
        assert filled.mean.flatten().tolist() == pytest.approx([half] * 2, abs=0.05)
        assert filled.samples.mean().item() == pytest.approx(half, abs=0.1)
        assert (filled.samples > -0.2).all()

    @pytest.mark.slow
    def test_two_recovers_the_planted_parameter_and_fills_in_without_the_bias_of_one(self):
        of, of_latent = self.planted(), {**SMALL, "samples": 5, "floor": 0.1}
        one, two = FalseVFL1(**of_latent), FalseVFL2(**of_latent, indicator_hidden=())
        trained = {made: self.pretrained(made, of) for made in (one, two)}
        slope = trained[two]["b"].state.modules["indicator"][0].weight.item()
        assert slope == pytest.approx(-2.0, abs=0.6)
        (biased, truth), (right, _) = (self.filled_in(made, of, each) for made, each in trained.items())
        assert truth > 0.5
        assert abs(right - truth) < 0.6 * abs(biased - truth), (biased, right, truth)


class TestBadInput:
    def test_no_unlabelled_rows(self):
        of = world(echo=True)
        answered = worlds.predict(made := method("false-vfl-1", **SMALL), of, worlds.states_of(worlds.train(made, of)))
        assert bool(answered.answered.all())

    def test_no_labelled_rows(self):
        of = world(labeled=torch.zeros(24, dtype=torch.bool))
        stages = []
        with pytest.raises(
            AlignmentError, match="all rows that at least one party has, then the labelled ones of these"
        ):
            worlds.train(
                method("false-vfl-1", **SMALL), of, training=torch.ones(24, dtype=torch.bool), watch=Stages(stages)
            )  # fmt: skip
        assert stages == ["pretrain"]

    @pytest.mark.parametrize("name", ["false-vfl-1", "false-vfl-2"])
    def test_a_party_that_no_training_row_has(self, name):
        observed = worlds.all_patterns(56, 3)
        training = ~observed[:, 2]
        of, made = world(observed=observed, echo=True), method(name, **SMALL)
        states = worlds.states_of(worlds.train(made, of, training=training))
        answered, without = (worlds.predict(made, of, states, **asked) for asked in ({}, {"asked": ("a", "b")}))
        assert torch.equal(answered.answered, observed[:, :2].any(dim=1)), "not from its first weights"
        assert not answered.took_part[:, 2].any()
        assert set(answered.reasons.values()) == {UNTIED}
        known = answered.answered
        assert torch.allclose(answered.scores[known], without.scores[known], atol=1e-6)

    @pytest.mark.slow
    def test_constant_columns_are_floored_and_said(self):
        of = world(N=60, echo=True)
        of = worlds.given(of.x | {"b": torch.ones(60, 3)}, of.y, of.observed)
        made = method("false-vfl-1", **SMALL | {"floor": 0.05})
        with pytest.warns(UserWarning, match=r"party 'b': its decoder's standard deviation has reached floor = 0.05"):
            trained = worlds.train(made, of, epochs=60, optimizer=Optimizer(name="adam", lr=0.02))
        assert all(math.isfinite(record["loss"]) for record in trained["a"].history)
        decoded = feature_side(trained["b"].state, 0.05).decode(torch.randn(100, 3))
        assert 0.05 <= decoded.std.min() < 0.06

    def test_unlabelled_rows_labels_do_not_matter(self):
        """The values in place of unknown labels do not change a bit of any weight, in either stage."""
        labeled, found = torch.arange(40) % 3 == 0, []
        for garbage in (False, True):
            of = world(N=40, labeled=labeled, garbage=garbage, echo=True, kind="regression")
            made = method("false-vfl-1", **SMALL)
            found.append(
                worlds.weights(
                    worlds.states_of(worlds.train(made, of, training=torch.ones(40, dtype=torch.bool), epochs=2))
                )
            )
        assert worlds.same_bits(*found)

    def test_images_of_unequal_size(self):
        """Party a has 4 x 4 pixels, b 3 x 6: each may have its own encoder; an error names one that does not fit."""
        observed = torch.ones(12, 2, dtype=torch.bool)
        x = {"a": normal(12, 16), "b": normal(12, 18)}
        of, made = worlds.given(x, world(K=2, N=12).y, observed), method("false-vfl-1", **SMALL)
        square, wide = (ResNet(shape=shape, widths=(4,), depths=(1,)) for shape in ((1, 4, 4), (1, 3, 6)))
        with pytest.raises(ConfigError, match=r"party 'b': resnet: images of shape .* have 16 numbers, the block 18"):
            worlds.train(made, of, encoder=square)
        each = lambda inputs, outputs: (square if inputs == 16 else wide)(inputs, outputs)  # noqa: E731
        trained = worlds.train(made, of, encoder=each, epochs=1)
        assert torch.isfinite(worlds.predict(made, of, worlds.states_of(trained)).scores).all()

    def test_an_encoder_of_the_wrong_width(self):
        with pytest.raises(ConfigError, match=r"its encoder should give \[\d+, 6\], concatenated mean"):
            worlds.train(method("false-vfl-1", **SMALL), world(), encoder=lambda inputs, _: nn.Linear(inputs, 4))


class TestUnlabelledRows:
    def test_the_first_stage_trains_on_them_and_the_second_does_not(self):
        labeled = torch.arange(24) < 6
        of, made = world(labeled=labeled), method("false-vfl-1", **SMALL)
        rows = {stage.name: stage.rows(of.rows["a"]) for stage in made.stages(of.seat("a"))}
        assert bool(rows["pretrain"].all())
        assert torch.equal(rows["train"], labeled)

    def test_stages_have_epochs_batches_and_rates_of_their_own(self):
        of = world(N=24)
        made = method("false-vfl-1", **SMALL, pretrain_epochs=4, pretrain_batch_size=12, pretrain_lr=0.5)
        seen = []
        worlds.train(made, of, epochs=2, batch_size=8, watch=Batches(seen))
        assert seen == [12] * 8 + [8] * 6
        first, second = made.stages(of.seat("a"))
        assert first.optimizer.lr == 0.5
        assert second.optimizer is None


@dataclass
class Stages(Callback):
    names: list

    def on_stage_begin(self, stage: str, epochs: int, rows: int, first_epoch: int) -> None:
        self.names.append(stage)


@dataclass
class Batches(Callback):
    sizes: list

    def on_batch_end(self, rows: int, loss: float) -> None:
        self.sizes.append(rows)
