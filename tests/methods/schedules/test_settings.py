"""Schedules from settings: TOML, ``Federation.train``, and errors."""

import json
import tomllib

import polars as pl
import pytest

from anyparty import Federation, Model
from anyparty import config as settings
from anyparty.config import Config
from anyparty.config.method_factory import SCHEDULES, carried, clock, schedule, scheduled
from anyparty.core.seeds import Seeds
from anyparty.errors import ConfigError, ResumeError
from anyparty.methods.method_registry import method
from anyparty.methods.schedules.flex import AdaptiveFlex, Flex
from anyparty.methods.schedules.schedule import LocalIterations
from anyparty.methods.schedules.vafl import VAFL
from anyparty.networks.optimizer import Optimizer
from tests import worlds
from tests.methods.schedules.scheduled_runs import under
from tests.worlds import world

TIMED = """
[schedule]
name = "flex"
mu = 0.1

[clock]
iteration = { bank = 1.0, shop = 4.0 }
latency = 2.0
timeout = 8.0
"""


def config_of(**groups):
    return Config.of(groups)


class TestByName:
    def test_every_one(self):
        for name, make in SCHEDULES.items():
            made, local = schedule(name)
            assert isinstance(made, make)
            assert made.title
            assert local == LocalIterations()

    def test_parameters_of_both_kinds(self):
        assert schedule("adaptive-flex", A=1, labels="shared") == (
            AdaptiveFlex(A=1.0),
            LocalIterations(labels="shared"),
        )
        assert schedule("adaptive-flex", A={"a": 0.5})[0] == AdaptiveFlex(A={"a": 0.5})

    @pytest.mark.parametrize(
        ("name", "parameters", "said"),
        [
            ("flexx", {}, r"no schedule 'flexx'; did you mean 'flex'\?"),
            ("flex", {"A": 1.0}, "schedule 'flex' has no parameter 'A'"),
            ("flex", {"labls": "shared"}, r"no parameter 'labls'; did you mean 'labels'\?"),
            ("flex", {"labels": "mine"}, "schedule 'flex': labels: .*got 'mine'"),
            ("flex", {"mu": -1.0}, "mu must be a number and not negative, got -1.0"),
            ("flex", {"mu": "much"}, "schedule 'flex': mu: .*got 'much'"),
            ("flex", {"momentum": 0.9}, "schedule 'flex': momentum: "),
            ("adaptive-flex", {"A": 0}, "A must be a positive number"),
            ("p-bcd", {"title": "x"}, "no parameter 'title'"),
        ],
    )
    def test_refuses(self, name, parameters, said):
        with pytest.raises(ConfigError, match=said):
            schedule(name, **parameters)

    def test_a_clock(self, tmp_path):
        (tmp_path / "cpu.csv").write_text("a,b\n0.5,0\n")
        assert clock(trace=tmp_path / "cpu.csv", latency=2).use == {"a": (0.5,), "b": (0.0,)}
        with pytest.raises(ConfigError, match="set only one of them"):
            clock(trace=tmp_path / "cpu.csv", use={"a": (0.1,)})
        with pytest.raises(ConfigError, match=r"clock has no parameter 'timout'; did you mean 'timeout'\?"):
            clock(timout=3)


class TestOverAMethod:
    def test_none_is_the_method_itself(self):
        made = method("laser")
        assert scheduled(made, Config()) is made

    def test_a_clock_alone_is_refused(self):
        with pytest.raises(ConfigError, match="a clock without a schedule does nothing"):
            scheduled(method("laser"), config_of(clock={"latency": 2.0}))

    def test_a_method_that_is_no_split_method(self):
        with pytest.raises(ConfigError, match="schedule 'flex' needs a split method, and APC-VFL is not one"):
            scheduled(method("apc"), config_of(schedule={"name": "flex"}))

    def test_a_stage_of_pretraining_before_it(self):
        with pytest.raises(
            ConfigError, match=r"schedule 'flex' cannot be combined with pretraining: set method\.pretrain"
        ):
            scheduled(method("laser", pretrain="simsiam"), config_of(schedule={"name": "flex"}))

    def test_what_does_not_fit_the_parties(self):
        of = world()
        for made, said in (
            (
                under("flex", labels="shared"),
                "labels = 'shared' needs labels at every party, and 'b', 'c' has no labels",
            ),
            (under("flex", clock=clock(iteration={"aa": 2.0})), r"no party 'aa'.*did you mean 'a'"),
            (under("flex", clock=clock(iteration=3.0, timeout=2.0)), "shorter than the fastest iteration, 3"),
            (under("sync-min", clock=clock(iteration=3.0, timeout=2.0)), "shorter than the fastest iteration"),
            (under("flex", labels="shared", parameters={"hosting": "labelers"}), "hosting = 'active'"),
            (
                under("flex", "standard", clock=clock(iteration={"b": 11.0, "c": 12.5})),
                r"no iteration of 'b', 'c' fits into a time-out of 10\.0, and Standard VFL needs .* to 12\.5",
            ),
            (
                under("flex", "standard", clock=clock(iteration={"b": 11.0}), parameters={"absent": "zeros"}),
                r"no iteration of 'b' fits into a time-out of 10\.0, and Standard VFL needs",
            ),
        ):
            with pytest.raises(ConfigError, match=said):
                worlds.begin(made, world(labelers=(0, 2)) if "hosting" in said else of)
        worlds.begin(under("p-bcd", clock=clock(iteration=3.0, timeout=2.0)), of)  # has no timeout
        worlds.begin(under("flex", clock=clock(iteration={"b": 11.0, "c": 12.5})), of)  # a can still learn
        worlds.begin(under("flex", "standard", clock=clock(iteration={"a": 11.0})), of)  # a host makes at least one
        worlds.begin(under("sync-max", "standard", clock=clock(iteration={"b": 11.0})), of)  # no party is left out

    def test_a_server_learns_nothing_by_itself(self):
        slow = clock(iteration={"a": 11.0, "b": 12.0, "c": 13.0})
        with pytest.raises(
            ConfigError, match=r"a time-out of 10\.0 is shorter than the fastest iteration, 11: no party"
        ):
            worlds.begin(under("flex", clock=slow), world(server=True))

    def test_machines_that_are_busy_at_first_are_none_that_never_learn(self):
        busy = clock(use=dict.fromkeys("abc", (0.95, 0.0, 0.0)))
        for of in ("laser", "standard"):
            worlds.begin(under("flex", of, clock=busy), world())

    @pytest.mark.parametrize(
        ("name", "ticks", "said"),
        [
            ("vafl", clock(), "proven for Flex-VFL, not for VAFL"),
            ("flex", clock(real=True), "unknown in advance"),
        ],
    )
    def test_an_estimate_that_nobody_asks_for_is_refused(self, name, ticks, said):
        with pytest.raises(ConfigError, match=f"smoothness = 2 would do nothing, because .*{said}"):
            under(name, clock=ticks, smoothness=2.0)

    def test_adaptive_rates_and_falling_ones_are_two_ways_to_say_one_thing(self):
        falling, of = Optimizer(name="sgd", lr=0.1, schedule="cosine"), world()
        with pytest.raises(ConfigError, match=r"Adaptive Flex-VFL sets the learning rate .* take 'flex'"):
            under("adaptive-flex").begin(of.seat("a", optimizer=falling), Seeds(0))
        under("flex").begin(of.seat("a", optimizer=falling), Seeds(0))

    def test_every_party_must_have_the_same(self):
        """Parties compare the method's text, so it must contain the schedule and the clock."""
        texts = {repr(under(name, clock=clock(latency=late))) for name in SCHEDULES for late in (1.0, 2.0)}
        assert len(texts) == 2 * len(SCHEDULES)


class TestTOML:
    def test_is_read(self, work):
        (work / "timed.toml").write_text((work / "credit.toml").read_text() + TIMED)
        read = settings.load(work / "timed.toml", ["clock.trace=cpu.csv"])
        assert read.schedule.parameters == {"mu": 0.1}
        assert read.clock.iteration == {"bank": 1.0, "shop": 4.0}
        assert read.clock.trace == work / "cpu.csv"
        assert Config.of(tomllib.loads(read.to_toml())) == read

    @pytest.mark.parametrize(
        ("change", "said"),
        [("clock.latencey=3", r"no setting 'clock.latencey'; did you mean 'latency'\?"),
         ("clock.latency=soon", "clock.latency: "), ("schedule.mu=0.1", "schedule.name: ")],
    )  # fmt: skip
    def test_refuses(self, work, change, said):
        with pytest.raises(ConfigError, match=said):
            settings.load(work / "credit.toml", [change])

    def test_trains_from_the_command_line(self, work, call):
        (work / "timed.toml").write_text((work / "credit.toml").read_text() + TIMED)
        shown = call("train", "timed.toml", "--quiet")
        assert shown.exit_code == 0, shown.output
        (record,) = (work / "runs").glob("*/record.json")
        history = json.loads(record.read_text())["history"]
        assert [epoch["time"] for epoch in history] == [10.0 * epoch["rounds"] for epoch in history]
        assert call("evaluate", record.parent).exit_code == 0

    @pytest.mark.parametrize(
        ("change", "said"),
        [("schedule.name=flxe", "no schedule 'flxe'"), ("clock.latency=0", "clock: latency must be a positive number"),
         ("clock.iteration.shopp=2.0", "there is no party 'shopp'")],
    )  # fmt: skip
    def test_says_what_is_wrong_in_a_sentence(self, work, call, change, said):
        (work / "timed.toml").write_text((work / "credit.toml").read_text() + TIMED)
        shown = call("train", "timed.toml", "--quiet", "--set", change)
        assert shown.exit_code != 0
        assert said in shown.output
        assert "Traceback" not in shown.output


class TestCarried:
    """A job is sent to sites that do not have this machine's files."""

    def test_cpu_use_from_a_file_goes_along_as_numbers(self, tmp_path):
        (tmp_path / "cpu.csv").write_text("a,b\n0.5,0\n0.25,0.125\n")
        config = config_of(schedule={"name": "flex"}, clock={"trace": str(tmp_path / "cpu.csv"), "timeout": 3.0})
        sent = carried(config).to_toml()
        assert "cpu.csv" not in sent
        again = Config.of(tomllib.loads(sent))
        assert scheduled(method("laser"), again) == scheduled(method("laser"), config)
        assert again.clock.use == {"a": (0.5, 0.25), "b": (0.0, 0.125)}

    def test_a_file_that_cannot_be_read_is_named_before_anything_leaves(self, tmp_path):
        with pytest.raises(ConfigError, match=r"none\.csv cannot be read"):
            carried(config_of(schedule={"name": "flex"}, clock={"trace": str(tmp_path / "none.csv")}))

    def test_without_a_trace_nothing_changes(self):
        config = config_of(schedule={"name": "flex"}, clock={"latency": 2.0})
        assert carried(config) is config


class TestFederation:
    @pytest.fixture
    def federation(self, work):
        tables = {name: pl.read_csv(work / f"{name}.csv") for name in ("bank", "shop")}
        return Federation.from_tables(tables, id="customer", label="default")

    def test_trains_and_predicts(self, federation, tmp_path):
        timed = {"iteration": {"bank": 1.0, "shop": 5.0}, "timeout": 5.0, "latency": 10.0}
        model = federation.train("laser", schedule="flex", clock=timed, epochs=2, folder=tmp_path / "run")
        assert [epoch["time"] for epoch in model.history] == [15.0 * epoch["rounds"] for epoch in model.history]
        assert Model.load(tmp_path / "run").predict({"bank": "bank.csv"}).answered.all()
        with pytest.raises(ResumeError, match=r"setting schedule\.name"):
            federation.train("laser", schedule="p-bcd", clock=timed, epochs=2, folder=tmp_path / "run", resume=True)

    def test_parameters_beside_the_name(self, federation):
        model = federation.train("plug", schedule={"name": "adaptive-flex", "A": 0.01}, epochs=1)
        assert {"pace", "rate"} <= {flow.tag for flow in model.ledger.flows}

    @pytest.mark.parametrize(
        ("given", "said"),
        [({"schedule": "vaffl"}, r"no schedule 'vaffl'; did you mean 'vafl'\?"),
         ({"schedule": {"mu": 1.0}}, "schedule.name"), ({"schedule": "flex", "clock": {"timeout": -1}}, "positive"),
         ({"schedule": "flex", "clock": {"speed": 1}}, "no setting 'speed'"), ({"clock": {}}, "without a schedule")],
    )  # fmt: skip
    def test_refuses(self, federation, given, said):
        with pytest.raises(ConfigError, match=said):
            federation.train("laser", epochs=1, **given)


def test_titles_say_both():
    assert under("vafl", "standard").can.title == "Standard VFL, VAFL"
    assert (VAFL().at_once, Flex().at_once) == (True, False)
