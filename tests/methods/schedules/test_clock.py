"""The virtual clock: durations, iterations and traces, checked by hand and against the published table III."""

import os

import numpy as np
import pytest

from anyparty.core.seeds import Seeds
from anyparty.errors import ConfigError
from anyparty.methods.schedules.flex import Flex
from anyparty.methods.schedules.schedule import PBCD, SyncMax, SyncMin
from anyparty.methods.schedules.virtual_clock import VirtualClock, google_trace, machines, trace_of

IMAGENET = {"server": 1.0, "p1": 10 / 2, "p2": 10 / 4, "p3": 10 / 6, "p4": 10 / 8}
MODELNET = {"server": 1.0} | {f"p{g}{i}": 20 / tau for g, tau in enumerate((5, 10, 15, 20)) for i in range(3)}


def round_of(schedule, clock, parties):
    made = schedule.iterations(clock, list(parties), 0)
    return made, schedule.lasts(clock, made, 0)


class TestTableIII:
    @pytest.mark.parametrize("latency", [1.0, 10.0, 50.0])
    def test_rounds_of_imagenet(self, latency):
        clock = VirtualClock(iteration=IMAGENET, latency=latency, timeout=10)
        assert round_of(PBCD(), clock, IMAGENET) == (dict.fromkeys(IMAGENET, 1), pytest.approx(latency + 5))
        assert round_of(SyncMin(), clock, IMAGENET) == (dict.fromkeys(IMAGENET, 2), pytest.approx(latency + 10))
        assert round_of(SyncMax(), clock, IMAGENET) == (dict.fromkeys(IMAGENET, 10), pytest.approx(latency + 50))
        made, lasts = round_of(Flex(), clock, IMAGENET)
        assert list(made.values()) == [10, 2, 4, 6, 8]
        assert lasts == pytest.approx(latency + 10)

    @pytest.mark.parametrize(
        ("schedule", "times"),
        [
            (PBCD(), (73.06, 182.66, 669.74)),
            (SyncMin(), (299.48, 544.50, 1633.50)),
            (SyncMax(), (520.05, 611.82, 1019.70)),
            (Flex(), (113.26, 205.92, 617.76)),
        ],
    )
    def test_published_times_are_one_number_of_rounds(self, schedule, times):
        """Time over a round's duration gives the same number of rounds at every latency, to the printed digits."""
        rounds = []
        for latency, total in zip((1.0, 10.0, 50.0), times, strict=True):
            clock = VirtualClock(iteration=IMAGENET, latency=latency, timeout=10)
            rounds.append(total / round_of(schedule, clock, IMAGENET)[1])
        assert rounds == pytest.approx([rounds[0]] * 3, rel=2e-3)

    def test_iterations_of_modelnet(self):
        made, _ = round_of(Flex(), VirtualClock(iteration=MODELNET, timeout=20), MODELNET)
        assert list(made.values()) == [20, 5, 5, 5, 10, 10, 10, 15, 15, 15, 20, 20, 20]


class TestSpeeds:
    def test_whoever_is_not_named_takes_one(self):
        clock = VirtualClock(iteration={"a": 3.0}, timeout=7)
        assert (clock.fits("a", 0), clock.fits("b", 0)) == (2, 7)

    def test_what_fits_exactly_fits(self):
        assert 1.2 / 0.4 < 3
        assert VirtualClock(iteration=0.4, timeout=1.2).fits("a", 0) == 3

    def test_none_fits(self):
        assert VirtualClock(iteration=11, timeout=10).fits("a", 0) == 0

    def test_synchronous_rounds_make_at_least_one(self):
        clock = VirtualClock(iteration={"a": 1.0, "b": 30.0}, timeout=10, latency=2)
        assert round_of(SyncMin(), clock, ["a", "b"]) == ({"a": 1, "b": 1}, 32)

    def test_a_trace(self):
        """An iteration takes (1 - c)^-1, so floor(20 (1 - c)) iterations fit into a timeout of 20."""
        clock = VirtualClock(timeout=20, use={"a": (0.0, 0.5, 0.77)})
        assert [clock.fits("a", r) for r in range(4)] == [20, 10, 4, 20]
        assert clock.takes("a", 1) == 2.0
        assert [clock.restarts(r) for r in (0, 3, 4, 6, 7)] == [0, 0, 1, 1, 2]

    def test_a_single_sample_stands_for_all_rounds(self):
        assert VirtualClock(use={"a": (0.5,), "b": (0.1, 0.2, 0.3)}).restarts(7) == 2
        assert VirtualClock(use={"a": (0.5,)}).restarts(7) == 0

    def test_time_costs_no_time(self):
        """A thousand rounds of thirty years each: the test passes if it ends at all."""
        clock = VirtualClock(iteration=IMAGENET, latency=1e9, timeout=1e9)
        for r in range(1000):
            made = SyncMin().iterations(clock, list(IMAGENET), r)
            assert SyncMin().lasts(clock, made, r) > 1e9


class TestTraces:
    def test_from_a_file(self, tmp_path):
        (tmp_path / "cpu.csv").write_text("a,b\n0.1,0.5\n0.2,0\n")
        assert trace_of(tmp_path / "cpu.csv") == {"a": (0.1, 0.2), "b": (0.5, 0.0)}

    def test_that_is_not_there(self, tmp_path):
        with pytest.raises(ConfigError, match=r"clock\.trace: .*none\.csv cannot be read"):
            trace_of(tmp_path / "none.csv")

    def test_that_is_no_numbers(self, tmp_path):
        (tmp_path / "cpu.csv").write_text("a\nmuch\n")
        with pytest.raises(ConfigError, match="column of CPU use"):
            trace_of(tmp_path / "cpu.csv")

    @pytest.mark.parametrize("text", ["a,b\n0.1,0.5\n0.2,\n", "a,b\n0.1,0.5\n0.2\n"])
    def test_with_an_empty_cell(self, tmp_path, text):
        (tmp_path / "cpu.csv").write_text(text)
        with pytest.raises(ConfigError, match=r"cpu\.csv has empty cells in column 'b': write a share for every round"):
            trace_of(tmp_path / "cpu.csv")

    def test_what_fits_is_known_over_the_whole_of_it(self):
        clock = VirtualClock(iteration={"b": 4.0}, timeout=10, use={"a": (0.95, 0.0), "b": (0.7,)})
        assert [clock.ever(name) for name in "abc"] == [True, False, True]
        assert [clock.least(name) for name in "abc"] == pytest.approx([1.0, 4 / 0.3, 1.0])

    def test_machines_are_drawn_by_the_seed(self):
        cpu = np.stack([np.full(5, 10.0 * m) for m in range(4)]).astype(np.float32)
        cpu[:, 0] += 5
        each = machines(cpu, "abcd", Seeds(0))
        assert sorted(trace[1] for trace in each.values()) == pytest.approx([0.0, 0.1, 0.2, 0.3])
        assert {len(trace) for trace in each.values()} == {5}
        mean = machines(cpu, "abcd", Seeds(0), average=True)
        assert all(mean[name] == pytest.approx((np.mean(each[name]),)) for name in each)
        assert each == machines(cpu, "abcd", Seeds(0))
        assert each != machines(cpu, "abcd", Seeds(2))

    @pytest.mark.slow
    @pytest.mark.skipif("ANYPARTY_DATA" not in os.environ, reason="ANYPARTY_DATA names no folder of data sets")
    def test_of_google(self):
        clock = VirtualClock(use=google_trace(["a", "b"], Seeds(0)))
        assert {len(trace) for trace in clock.use.values()} == {276}
        assert all(0 < clock.fits("a", r) < 10 for r in range(276))


class TestRefuses:
    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ({"iteration": 0.0}, "iteration must be a positive number of time units, got 0.0"),
            ({"iteration": {"a": -1.0}}, "iteration of party 'a' must be a positive"),
            ({"latency": 0.0}, "latency must be a positive"),
            ({"latency": float("nan")}, "latency must be a positive"),
            ({"timeout": -3.0}, "timeout must be a positive"),
            ({"timeout": float("inf")}, "timeout must be a positive"),
            ({"use": {"a": (0.5, 1.0)}}, "use of party 'a' must be"),
            ({"use": {"a": ()}}, "use of party 'a' must be"),
        ],
    )
    def test_times_that_are_none(self, values, said):
        with pytest.raises(ConfigError, match=said):
            VirtualClock(**values)

    @pytest.mark.parametrize("values", [{"iteration": {"shopp": 2.0}}, {"use": {"shopp": (0.5,)}}])
    def test_a_party_that_there_is_not(self, values):
        with pytest.raises(ConfigError, match=r"clock: there is no party 'shopp'.*did you mean 'shop'\?"):
            VirtualClock(**values).check(["bank", "shop"])


def test_iterations_without_end_are_refused():
    ticks = VirtualClock(iteration={"b": 1e-300}, timeout=1.0)
    with pytest.raises(ConfigError, match="party 'b' would make more than 1,000,000,000,000 iterations of 1e-300"):
        SyncMin().iterations(ticks, ["a", "b"], 0)
