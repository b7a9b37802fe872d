"""The real clock: iterations until a timeout in seconds, counted by a clock that the test controls."""

import tomllib
from dataclasses import dataclass, field

import pytest
import torch

from anyparty.config import Config
from anyparty.config.method_factory import clock, scheduled
from anyparty.errors import ConfigError
from anyparty.methods.method_registry import method
from anyparty.methods.schedules import real_clock
from anyparty.methods.schedules.real_clock import RealClock
from anyparty.methods.schedules.schedule import SyncMax, SyncMin
from tests import worlds
from tests.methods.cases import OwnEncoder
from tests.methods.schedules.scheduled_runs import ADAM, run, slowed, under, whole
from tests.worlds import Table


@dataclass
class Wound:
    """A clock that advances by ``step`` each time that it is read."""

    step: float = 1.0
    at: float = field(default=0.0)

    def __call__(self) -> float:
        self.at += self.step
        return self.at


class TestTurns:
    def test_as_many_as_end_within_the_timeout(self):
        ticks = Wound(step=0.0)
        made = []
        for t in RealClock(timeout=7.0, now=ticks).turns():
            ticks.at += 2.0
            made.append(t)
        assert made == [0, 1, 2]  # a fourth would end at 8

    def test_at_least_one(self):
        ticks = Wound(step=0.0)
        for t in RealClock(timeout=1.0, now=ticks).turns():
            ticks.at += 20.0
            assert t == 0

    @pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
    def test_refuses(self, timeout):
        with pytest.raises(ConfigError, match="timeout must be a positive number of seconds"):
            RealClock(timeout=timeout)


class TestRounds:
    def test_every_party_iterates_until_its_own_timeout(self):
        """Each reading takes a second: within 20 seconds all three parties make several iterations, P-BCD one."""
        calls = {}
        for name in ("flex", "p-bcd"):
            made = under(name, clock=RealClock(timeout=20.0, now=Wound()))
            weights, history, _ = run(made, whole(), encoder=OwnEncoder, batch_size=12, epochs=1)
            calls[name] = [int(weights[f"{party}/encoder/calls"]) for party in "abc"]
            assert "time" not in history[0]
            assert (history[0]["time_s"] > 0, history[0]["rounds"]) == (True, 1)
        assert calls["p-bcd"] == [1, 1, 1]
        assert min(calls["flex"]) > 1

    def test_seconds_add_up(self):
        _, history, _ = run(under("flex", clock=RealClock(timeout=5.0, now=Wound())), whole(), batch_size=4, epochs=2)
        assert [epoch["rounds"] for epoch in history] == [3, 6]
        assert history[1]["time_s"] > history[0]["time_s"] > 3 * 5 / 2

    def test_with_a_timeout_for_one_it_is_p_bcd(self):
        runs = [run(under(name, clock=RealClock(timeout=0.5, now=Wound())), whole()) for name in ("flex", "p-bcd")]
        assert worlds.same_bits(runs[0][0], runs[1][0])

    def test_the_loss_falls_with_a_third_of_blocks_missing(self):
        there = torch.rand(200, 4, generator=torch.Generator().manual_seed(1)) > 0.3
        there[~there.any(1), 0] = True
        made = under("flex", clock=RealClock(timeout=8.0, now=Wound()))
        _, history, _ = run(made, worlds.world(K=4, observed=there, classes=2), epochs=6, batch_size=20, optimizer=ADAM)
        assert history[-1]["loss"] < 0.9 * history[0]["loss"]

    def test_adaptive_flex_begins_with_a_dummy_round(self):
        """tau_k is unknown before the first round, so its rate is 0; the second round has the optimizer's rate."""
        of, made = whole(), under("adaptive-flex", "standard", RealClock(timeout=20.0, now=Wound()))
        states = worlds.begin(made, of)
        before, rates = worlds.weights(states), []
        for number in range(2):
            at = Table()
            worlds.step(made, of, states, of.places(), number=number, at=at)
            rates.append([tensors["rate"].item() for _, _, tag, tensors in at.notes if tag == "rate"])
            assert worlds.same_bits(before, worlds.weights(states)) is (number == 0)
        assert rates == [[0.0, 0.0], [pytest.approx(worlds.SGD.lr)] * 2]


class TestSettings:
    def test_are_read(self):
        assert clock(real=True, timeout=2.5) == RealClock(timeout=2.5)
        config = Config.of({"schedule": {"name": "flex"}, "clock": {"real": True, "timeout": 3.0}})
        again = Config.of(tomllib.loads(config.to_toml()))
        assert scheduled(method("laser"), again).clock == RealClock(timeout=3.0)

    def test_speeds_have_no_place_beside_it(self):
        with pytest.raises(
            ConfigError, match=r"'latency', 'use' cannot be combined with real = true, .*; leave out one"
        ):
            clock(real=True, latency=2.0, use={"a": (0.5,)}, iteration=1.0)


class TestSync:
    @pytest.mark.parametrize("name", ["sync-min", "sync-max"])
    def test_all_make_as_many_as_they_agree_on_from_the_second_round(self, name):
        made, calls = under(name, clock=RealClock(timeout=40.0, now=Wound())), []
        for epochs in (1, 2):
            weights, *_ = run(made, whole(), encoder=OwnEncoder, batch_size=12, epochs=epochs)
            calls.append([int(weights[f"{party}/encoder/calls"]) for party in "abc"])
        assert calls[0] == [1, 1, 1]
        assert len(set(calls[1])) == 1
        assert calls[1][0] > 3

    @pytest.mark.parametrize(("name", "expected"), [("sync-min", 2), ("sync-max", 10)])
    def test_the_slowest_or_the_fastest_says_how_many(self, name, expected):
        """Iterations take 1, 2 and 5 seconds, and the timeout is 10."""
        of, made = whole(), under(name, clock=RealClock(timeout=10.0, now=Wound(step=0.0)))
        states = worlds.begin(made, of, encoder=OwnEncoder)
        for took, state in zip((1.0, 2.0, 5.0), states.values(), strict=True):
            real_clock.note(state, 4, 4 * took)
        at = Table()
        worlds.step(made, of, states, of.places(), at=at)
        assert [int(states[name].modules["encoder"].calls) for name in "abc"] == [expected] * 3
        assert sorted(int(note[3]["fits"]) for note in at.notes if note[2] == "fits") == [2, 5]

    def test_waiting_for_others_is_no_part_of_an_iteration(self):
        """b's embeddings arrive after a hundred seconds, and a's derivatives wait for them; no party counts as slow."""
        clock, of = Wound(step=0.0), whole()
        made = under("sync-min", clock=(ticks := RealClock(timeout=40.0, now=clock)))
        states = worlds.begin(made, of)

        def on_its_way(_: int) -> float:
            clock.at += 100.0
            return 0.0

        worlds.step(made, of, states, of.places(), at=slowed(b=on_its_way))
        assert clock.at == 100.0
        assert min(real_clock.fits(state, ticks) for state in states.values()) > 40

    def test_an_iteration_that_does_not_fit_is_made_once(self):
        state = worlds.begin(under("sync-min"), whole())["b"]
        assert real_clock.fits(state, RealClock(timeout=1.0)) == real_clock.UNKNOWN
        real_clock.note(state, 1, 30.0)
        assert real_clock.fits(state, RealClock(timeout=1.0)) == 0
        assert SyncMin().common([0, 7]) == 1
        assert (SyncMin().common([]), SyncMax().common([])) == (1, 1)
