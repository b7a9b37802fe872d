"""Rounds of P-BCD, Sync and Flex-VFL over split methods, compared with simpler cases and a slow version."""

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from anyparty.config.method_factory import SCHEDULES
from anyparty.errors import PartyLost
from anyparty.methods.method_registry import method
from anyparty.methods.schedules.virtual_clock import VirtualClock
from anyparty.networks.encoders import MLP
from anyparty.networks.modules import RowDropout
from anyparty.networks.optimizer import Optimizer
from tests import worlds
from tests.methods.cases import OwnEncoder
from tests.methods.schedules.scheduled_runs import ADAM, EVERYBODY, LINEAR, MOMENTUM, SPEEDS, run, under, whole
from tests.worlds import SGD, Table, world

ONE = VirtualClock(iteration=6.0, timeout=10, latency=3)
UNLIKE = VirtualClock(iteration=SPEEDS, timeout=10, latency=3)  # a makes 10 iterations, b 5, c 2
DRAWS = MLP(hidden=(7,), dropout=0.3)


class TestOneIteration:
    @pytest.mark.parametrize(
        ("of", "labels"),
        [("local", "active"), ("standard", "shared"), ("ensemble", "active"), ("combinatorial", "shared"),
         ("plug", "active"), ("laser", "active"), ("laser", "shared")],
    )  # fmt: skip
    def test_p_bcd_is_the_plain_step(self, of, labels):
        """Shared labels, with which every party computes its own loss, give the same bits too."""
        there, settings = world(**EVERYBODY), {"encoder": DRAWS if of == "laser" else worlds.SMALL, "optimizer": ADAM}
        plain = run(method(of, embedding=5), there, **settings)
        timed = run(under("p-bcd", of, labels=labels), there, **settings)
        assert worlds.same_bits(plain[0], timed[0])
        assert [epoch["loss"] for epoch in plain[1]] == [epoch["loss"] for epoch in timed[1]]
        assert (plain[2].ledger.rows() == timed[2].ledger.rows()) is (labels == "active")

    @pytest.mark.parametrize("optimizer", [SGD, MOMENTUM])
    def test_p_bcd_is_the_plain_step_with_heads_at_label_holders(self, optimizer):
        there, parameters = world(labelers=(0, 2)), {"hosting": "labelers"}
        plain = run(method("laser", embedding=5, **parameters), there, optimizer=optimizer)
        timed = run(under("p-bcd", parameters=parameters, momentum="kept"), there, optimizer=optimizer)
        assert worlds.same_bits(plain[0], timed[0])
        assert plain[2].ledger.rows() == timed[2].ledger.rows()

    def test_p_bcd_with_a_server(self):
        there = world(server=True)
        assert worlds.same_bits(run(method("plug", embedding=5), there)[0], run(under("p-bcd", "plug"), there)[0])

    @pytest.mark.parametrize("labels", ["active", "shared"])
    @pytest.mark.parametrize("other", ["flex", "sync-min", "sync-max"])
    def test_others_are_p_bcd(self, other, labels):
        there = world(**EVERYBODY)
        first = run(under("p-bcd", clock=ONE, labels=labels), there, optimizer=MOMENTUM)
        second = run(under(other, clock=ONE, labels=labels), there, optimizer=MOMENTUM)
        assert worlds.same_bits(first[0], second[0])
        assert [epoch["time"] for epoch in first[1]] == [27.0, 54.0]  # three rounds of 3 + 6 per epoch
        assert [epoch["time"] for epoch in second[1]] == ([39.0, 78.0] if other == "flex" else [27.0, 54.0])

    def test_local_momentum_plays_no_part(self):
        there = world()
        first = run(under("p-bcd"), there, optimizer=SGD)[0]
        assert worlds.same_bits(first, run(under("p-bcd"), there, optimizer=MOMENTUM)[0])
        assert not worlds.same_bits(first, run(under("p-bcd", momentum="kept"), there, optimizer=MOMENTUM)[0])


class TestSeveralIterations:
    @pytest.mark.parametrize("labels", ["active", "shared"])
    def test_equal_speeds_make_flex_sync(self, labels):
        clock, there = VirtualClock(iteration=2.0, timeout=8, latency=5), world(**EVERYBODY)
        runs = [run(under(name, clock=clock, labels=labels), there) for name in ("flex", "sync-min", "sync-max")]
        assert worlds.same_bits(runs[0][0], runs[1][0])
        assert worlds.same_bits(runs[0][0], runs[2][0])
        assert runs[0][1] == runs[1][1] == runs[2][1]
        assert [epoch["time"] for epoch in runs[0][1]] == [39.0, 78.0]
        assert not worlds.same_bits(runs[0][0], run(under("p-bcd", clock=clock, labels=labels), there)[0])

    @pytest.mark.parametrize(
        ("name", "tau", "lasts"),
        [
            ("p-bcd", (1, 1, 1), 8),
            ("flex", (10, 5, 2), 13),
            ("sync-min", (2, 2, 2), 13),
            ("sync-max", (10, 10, 10), 53),
        ],
    )
    def test_as_many_as_the_clock_says(self, name, tau, lasts):
        """A user's own encoder counts its calls: one per local iteration."""
        there, made = whole(), under(name, clock=UNLIKE)
        weights, history, _ = run(made, there, encoder=OwnEncoder, batch_size=4, epochs=1)
        assert [int(weights[f"{party}/encoder/calls"]) for party in "abc"] == [3 * t for t in tau]
        assert (history[0]["time"], history[0]["rounds"]) == (3 * lasts, 3)

    @pytest.mark.parametrize("labels", ["active", "shared"])
    def test_equal_a_slow_version(self, labels):
        """Compare with Algorithm 1 over Standard VFL in one process; a hosts the head."""
        of = whole(**EVERYBODY)
        states = worlds.begin(under("flex", "standard"), of, encoder=LINEAR)
        expected, loss = slow_round(of, states, {"a": 10, "b": 5, "c": 2}, labels)
        made = under("flex", "standard", UNLIKE, labels=labels)
        assert worlds.step(made, of, states, of.places()) == pytest.approx(loss)
        found = worlds.weights(states)
        for name, tensor in expected.items():
            assert torch.allclose(found[name], tensor, atol=1e-6), name

    def test_with_heads_at_several_parties_equals_a_slow_version(self):
        """In LASER-VFL with heads at a and c, each host recomputes its own loss, but keeps the other's derivative."""
        of = whole(labelers=(0, 2))
        parameters = {"hosting": "labelers", "tasks": "all"}
        made, tau = under("flex", clock=UNLIKE, parameters=parameters), {"a": 10, "b": 5, "c": 2}
        states, batch = worlds.begin(made, of, encoder=LINEAR), worlds.batch_of(of.places())
        encoders = {name: deepcopy(states[name].modules["encoder"]) for name in tau}
        heads = {name: deepcopy(states[name].modules["heads"]) for name in "ac"}
        start = {name: encoder(of.x[name]).detach().requires_grad_() for name, encoder in encoders.items()}

        def loss(host, h):
            return worlds.loss_of(made.split, of, host, heads[host], torch.stack([h[name] for name in "abc"], 1), batch)

        received = {host: torch.autograd.grad(loss(host, start), list(start.values())) for host in heads}
        start = {name: h.detach() for name, h in start.items()}
        for k, name in enumerate(tau):
            for _ in range(tau[name]):
                h = encoders[name](of.x[name])
                theirs = sum((h * received[host][k]).sum() for host in heads if host != name)
                if name in heads:
                    _descend(torch.nn.ModuleList([encoders[name], heads[name]]), loss(name, start | {name: h}) + theirs)
                else:
                    _descend(encoders[name], theirs)
        worlds.step(made, of, states, of.places())
        for name, network in encoders.items():
            for one, other in zip(network.parameters(), states[name].modules["encoder"].parameters(), strict=True):
                assert torch.allclose(one, other, atol=1e-6), name
        for name, network in heads.items():
            for one, other in zip(network.parameters(), states[name].modules["heads"].parameters(), strict=True):
                assert torch.allclose(one, other, atol=1e-6), name

    def test_dropout_is_drawn_once_a_round(self):
        """All iterations of a round minimise the same loss, and the received derivative belongs to the same network."""
        there, made = world(**EVERYBODY), under("flex", clock=UNLIKE)
        states, masks = worlds.begin(made, there, encoder=DRAWS), []
        (dropout,) = (each for each in states["b"].modules["encoder"].modules() if isinstance(each, RowDropout))

        def add_mask(layer, given, _):
            layer.calls = 0
            masks.append(layer.forward(torch.ones_like(given[0])))  # the mask of the same call

        dropout.register_forward_hook(add_mask)
        for number in range(2):
            worlds.step(made, there, states, there.places(), number=number)
        assert len(masks) == 2 * 5
        assert all(torch.equal(mask, masks[5 * (n // 5)]) for n, mask in enumerate(masks))
        assert not torch.equal(masks[0], masks[5])

    def test_a_server_moves_by_itself(self):
        """The server's head makes ten iterations on unchanged embeddings."""
        of = whole(server=True)
        clock = VirtualClock(iteration={"server": 1.0, "a": 10.0, "b": 10.0, "c": 10.0}, timeout=10)
        made = under("flex", "standard", clock)
        states, h = worlds.begin(made, of, encoder=LINEAR), {}
        for name in of.roster.blocks:
            h[name] = states[name].modules["encoder"](of.x[name]).detach()
        head = deepcopy(states["server"].modules["heads"])
        for _ in range(10):
            _descend(head, functional.cross_entropy(head(torch.stack(list(h.values())).mean(0)[:, None])[:, 0], of.y))
        worlds.step(made, of, states, of.places())
        for one, other in zip(head.parameters(), states["server"].modules["heads"].parameters(), strict=True):
            assert torch.allclose(one, other, atol=1e-6)

    def test_training_loss_falls_with_a_third_of_blocks_missing(self):
        there = torch.rand(200, 4, generator=torch.Generator().manual_seed(1)) > 0.3
        there[~there.any(1), 0] = True
        of = world(K=4, observed=there, classes=2)
        clock = VirtualClock(iteration={"a": 1.0, "b": 1.0, "c": 2.0, "d": 5.0}, timeout=5)
        _, history, _ = run(under("flex", "laser", clock), of, epochs=8, batch_size=20, optimizer=ADAM)
        losses = [epoch["loss"] for epoch in history]
        assert losses[-1] < 0.9 * losses[0]


def slow_round(of, states, tau, labels):
    """Compute one round of Algorithm 1 over Standard VFL by gradient descent, with autograd throughout."""
    encoders = {name: deepcopy(states[name].modules["encoder"]) for name in tau}
    head = deepcopy(states["a"].modules["heads"])
    start = {name: encoder(of.x[name]).detach() for name, encoder in encoders.items()}

    def loss(h, g):
        return functional.cross_entropy(g(torch.stack([h[name] for name in "abc"]).mean(0)[:, None])[:, 0], of.y)

    first = loss(start, head).item()
    frozen = deepcopy(head)
    leaves = {name: h.clone().requires_grad_() for name, h in start.items()}
    received = dict(zip("abc", torch.autograd.grad(loss(leaves, frozen), list(leaves.values())), strict=True))
    for name, iterations in tau.items():
        for _ in range(iterations):
            h = encoders[name](of.x[name])
            if name == "a":
                _descend(torch.nn.ModuleList([encoders[name], head]), loss(start | {name: h}, head))
            elif labels == "shared":
                _descend(encoders[name], loss(start | {name: h}, frozen))
            else:
                _descend(encoders[name], (h * received[name]).sum())
    moved = {f"{name}/encoder/{key}": tensor for name in tau for key, tensor in encoders[name].state_dict().items()}
    return moved | {f"a/heads/{key}": tensor for key, tensor in head.state_dict().items()}, first


def _descend(module, loss):
    parameters = list(module.parameters())
    with torch.no_grad():
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.sub_(SGD.lr * gradient)


class TestWhoIsMissing:
    LATE = VirtualClock(iteration={"a": 1.0, "b": 2.0, "c": 11.0}, timeout=10, latency=1)

    @pytest.mark.parametrize("labels", ["active", "shared"])
    def test_a_party_that_misses_the_deadline_takes_no_part(self, labels):
        of, at = world(**EVERYBODY), Table()
        made = under("flex", clock=self.LATE, labels=labels)
        states = worlds.begin(made, of)
        before = worlds.weights(states)
        assert worlds.step(made, of, states, of.places(), at=at) > 0
        moved = {
            name.split("/")[0] for name, tensor in worlds.weights(states).items() if (tensor != before[name]).any()
        }
        assert moved == {"a", "b"}
        assert not any("c" in note[:2] for note in at.notes)

    @pytest.mark.parametrize("labels", ["active", "shared"])
    def test_nobody_waits_for_it(self, labels):
        """The party is available but does not send; a host that waited for it would wait forever."""
        _, history, at = run(under("flex", clock=self.LATE, labels=labels), world(**EVERYBODY))
        assert [epoch["time"] for epoch in history] == [33.0, 66.0]
        assert not [note for note in at.notes if "c" in note[:2] and note[2] in {"embedding", "gradient", "snapshot"}]

    @pytest.mark.parametrize("labels", ["active", "shared"])
    def test_the_others_do_as_if_it_were_gone(self, labels):
        of, clock = world(**EVERYBODY), VirtualClock(iteration={"a": 1.0, "b": 2.0, "c": 2.0}, timeout=10)
        late = worlds.begin(made := under("flex", clock=self.LATE, labels=labels), of)
        worlds.step(made, of, late, of.places())
        gone = worlds.begin(made := under("flex", clock=clock, labels=labels), of)
        worlds.step(made, of, gone, of.places(), leaves={"c"})
        assert worlds.same_bits(worlds.weights(late), worlds.weights(gone))

    @pytest.mark.parametrize("labels", ["active", "shared"])
    def test_rows_that_it_alone_has_are_nobodys(self, labels):
        """Such rows do not affect the other parties in any local iteration."""
        weights: list[dict[str, torch.Tensor]] = []
        there = world(**EVERYBODY).observed
        without = there.clone()
        without[:, 2] = False
        for observed in (there, without):
            a_world = world(observed=observed, **EVERYBODY)
            made = under("flex", "plug", clock=self.LATE, labels=labels, parameters={"dropout": 0.0})
            states = worlds.begin(made, a_world)
            worlds.step(made, a_world, states, observed.any(1).nonzero().squeeze(1))
            weights.append(worlds.weights(states))
        assert weights[0].keys() == weights[1].keys()
        for name, tensor in weights[0].items():
            assert torch.allclose(tensor, weights[1][name], atol=1e-6), name

    @pytest.mark.parametrize("absent", ["refuse", "zeros"])
    def test_a_method_that_learns_while_all_are_there_lets_the_round_pass(self, absent):
        of, given = whole(N=16), {"parameters": {"absent": absent}}
        clock = VirtualClock(timeout=10, latency=1, use={"c": (0.0, 0.95)})  # late in every second round
        _, history, at = run(under("flex", "standard", clock, **given), of, batch_size=8, epochs=1)
        first = run(under("flex", "standard", VirtualClock(timeout=10, latency=1), **given), of, batch_size=8, epochs=1)
        assert history[0]["time"] == first[1][0]["time"] == 22.0
        assert sum(row["messages"] for row in at.ledger.rows() if row["tag"] == "embedding") == 2
        assert sum(row["messages"] for row in first[2].ledger.rows() if row["tag"] == "embedding") == 4
        assert history[0]["loss"] > 0.5  # from the one round that took place

    def test_a_server_waits_for_nobody_where_all_are_late(self):
        of, at = world(server=True), Table()
        made = under(
            "flex", clock=VirtualClock(timeout=10, use=dict.fromkeys("abc", (0.95, 0.0)))
        )  # all are late in the first round
        assert worlds.step(made, of, worlds.begin(made, of), of.places(), at=at) is None
        assert not at.notes

    def test_a_host_that_is_slow_makes_one_iteration(self):
        of, clock = whole(), VirtualClock(iteration={"a": 12.0, "b": 2.0, "c": 5.0}, timeout=10, latency=1)
        weights, history, _ = run(under("flex", clock=clock), of, encoder=OwnEncoder, batch_size=12, epochs=1)
        assert [int(weights[f"{party}/encoder/calls"]) for party in "abc"] == [1, 5, 2]
        assert history[0]["time"] == 13.0

    @pytest.mark.parametrize("labels", ["active", "shared"])
    def test_a_party_without_rows_of_the_batch_takes_no_part(self, labels):
        observed = torch.ones(12, 3, dtype=torch.bool)
        observed[:6, 2] = False
        of = world(observed=observed, **EVERYBODY)
        made, at = under("flex", clock=UNLIKE, labels=labels), Table()
        states = worlds.begin(made, of)
        before = worlds.weights(states)
        worlds.step(made, of, states, torch.arange(6), at=at)
        moved = {
            name.split("/")[0] for name, tensor in worlds.weights(states).items() if (tensor != before[name]).any()
        }
        assert moved == {"a", "b"}
        assert not any("c" in note[:2] for note in at.notes)

    def test_synchronous_rounds_do_not_wait_for_it(self):
        observed = torch.ones(12, 3, dtype=torch.bool)
        observed[:, 2] = False
        _, history, _ = run(under("p-bcd", clock=UNLIKE), world(observed=observed), batch_size=12, epochs=1)
        assert history[0]["time"] == 5.0  # latency 3, and 2 for b; c would take 5

    def test_one_that_leaves_is_lost_where_all_are_needed(self):
        of, made = whole(), under("flex", "standard", UNLIKE)
        with pytest.raises(PartyLost, match="party 'b' is gone"):
            worlds.step(made, of, worlds.begin(made, of), of.places(), leaves={"b"})


class TestLabels:
    def test_rows_without_a_label_at_the_party_teach_it_nothing(self):
        """With shared labels, a party trains on the rows whose labels it has; the other rows have weight 0."""
        of = whole(**EVERYBODY)
        made = under("p-bcd", "standard", labels="shared")
        known = torch.arange(12) % 2 == 0
        of.rows["b"] = replace(of.rows["b"], y=torch.where(known, of.y, 999), labeled=known)
        states = worlds.begin(made, of, encoder=LINEAR)
        x, weight = of.x["b"], states["b"].modules["encoder"][0].weight
        h = {name: states[name].modules["encoder"](of.x[name]) for name in "abc"}
        out = states["a"].modules["heads"](torch.stack(list(h.values())).mean(0)[:, None])[:, 0]
        each = functional.cross_entropy(out, of.y, reduction="none") / 12
        expected = weight - SGD.lr * torch.autograd.grad(each[known].sum(), weight)[0]
        worlds.step(made, of, states, of.places())
        assert torch.allclose(states["b"].modules["encoder"][0].weight, expected, atol=1e-6)
        assert len(x) == 12

    def test_what_crosses(self):
        """With ``shared``, a party receives the heads and embeddings of its own rows: K (|theta_0| + B sum_k O_k)."""
        of, sizes = whole(**EVERYBODY), {}
        for labels in ("active", "shared"):
            made, at = under("flex", "standard", UNLIKE, labels=labels), Table()
            worlds.step(made, of, worlds.begin(made, of), of.places(), at=at)
            assert {note[2] for note in at.notes} == {"embedding", "gradient" if labels == "active" else "snapshot"}
            assert {message.tag for message in made.can.messages} == {note[2] for note in at.notes}
            sizes[labels] = {row["tag"]: row["bytes_sent"] for row in at.ledger.rows() if "b" in row.values()}
        assert sizes["active"] == {"embedding": 4 * 12 * 5, "gradient": 4 * 12 * 5}
        assert sizes["shared"] == {"embedding": 4 * 12 * 5, "snapshot": 4 * (5 * 3 + 3 + 2 * 12 * 5) + 3}

    def test_a_party_sees_others_embeddings_of_its_own_rows_alone(self):
        of, at = world(**EVERYBODY), Table()
        made = under("flex", clock=UNLIKE, labels="shared")
        worlds.step(made, of, worlds.begin(made, of), of.places(), at=at)
        (phi,) = (tensors for _, to, tag, tensors in at.notes if to == "b" and tag == "snapshot")
        both = (of.observed[:, 1:2] & of.observed).sum(0)
        assert [len(phi["h/a"]), len(phi["h/c"])] == [both[0], both[2]]
        assert "h/b" not in phi


CASES = {
    **{name: {"name": name} for name in SCHEDULES},
    "flex, shared labels": {"name": "flex", "labels": "shared"},
    "adaptive-flex, shared labels": {"name": "adaptive-flex", "labels": "shared", "mu": 0.1},
    "flex at label holders": {"name": "flex", "parameters": {"hosting": "labelers"}},
    "adaptive-flex at label holders": {"name": "adaptive-flex", "parameters": {"hosting": "labelers"}},
}
TRACE = VirtualClock(iteration=SPEEDS, timeout=10, latency=3, use={"b": (0.0, 0.3, 0.9), "c": (0.1, 0.0)})


@pytest.mark.parametrize("case", CASES)
class TestEverySchedule:
    def test_same_over_another_carrier(self, case):
        of = world(N=20, **EVERYBODY)
        runs = [
            run(under(**CASES[case], clock=TRACE), of, optimizer=MOMENTUM, at=Table(carrier))
            for carrier in (Table().carrier, partial(worlds.by_hand, seed=1), partial(worlds.by_hand, seed=2))
        ]
        for other in runs[1:]:
            assert worlds.same_bits(runs[0][0], other[0])
            assert runs[0][1] == other[1]
            assert runs[0][2].ledger.rows() == other[2].ledger.rows()

    def test_resumed_equals_uninterrupted(self, case, tmp_path):
        of = world(N=20, **EVERYBODY)
        go = partial(run, under(**CASES[case], clock=TRACE), of, optimizer=Optimizer(name="adam", lr=0.05))
        weights, history, _ = go(epochs=4)
        go(epochs=2, folder=tmp_path)
        resumed = go(epochs=4, folder=tmp_path, resume=True)
        assert worlds.same_bits(weights, resumed[0])
        assert history == resumed[1]
        assert [epoch["rounds"] for epoch in history] == [3, 6, 9, 12]
        assert all(later["time"] > sooner["time"] for sooner, later in pairwise(history))

    def test_a_trace_that_is_shorter_than_the_run_begins_anew_and_says_so(self, case):
        """In 12 rounds, c's 2 samples restart after 2, 4, 6, 8 and 10 rounds; with VAFL, c's own meetings count."""
        _, history, at = run(under(**CASES[case], clock=TRACE), world(N=20, **EVERYBODY), epochs=4)
        anew = [epoch.get("trace_began_anew", 0) for epoch in history]
        if case != "vafl":
            assert anew == [1, 2, 4, 5]
            return
        met = Counter(note[1] for note in at.notes if note[2] == "gradient")  # b has 3 samples
        assert anew[-1] == max((met["b"] - 1) // 3, (met["c"] - 1) // 2)
        assert anew[0] == 0

    def test_only_declared_messages_cross(self, case):
        of, at = world(**EVERYBODY), Table()
        made = under(**CASES[case], clock=TRACE)
        run(made, of, at=at, epochs=5)
        tags = {note[2] for note in at.notes} - {"hello", "start", "plan", "verdict"}
        assert tags == {message.tag for message in made.can.messages if not message.when}
