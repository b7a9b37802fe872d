"""A late party under the real clock: the others continue as if it had left, and it rejoins by itself."""

import asyncio
from typing import Any

import pytest
import torch

from anyparty.config.method_factory import clock
from anyparty.core.types import Channel, TensorSpec
from anyparty.errors import ConfigError, MessageError, PartyLost
from anyparty.methods.schedules.real_clock import RealClock, RoundChannel
from anyparty.transport import memory
from tests import controlled_clocks, worlds
from tests.methods.schedules.scheduled_runs import ADAM, EVERYBODY, run, slowed, under, whole
from tests.methods.schedules.test_real_clock import Wound
from tests.worlds import Table

LATE = 0.3  # seconds; much longer than a host waits


@pytest.fixture(autouse=True)
def _time_stands_while_anybody_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_run", controlled_clocks.run)


def late(party: str, batches: range) -> Table:
    """Return a table that delays a party's embeddings of some batches."""
    return slowed(**{party: lambda n: LATE if n in batches else 0.0})


def hurried(name: str = "flex", **changes: Any) -> Any:
    """Make a method with one iteration per round, whose hosts wait for a twentieth of a second."""
    return under(name, clock=RealClock(timeout=0.5, grace=0.05, now=Wound()), **changes)


class TestARound:
    @pytest.mark.parametrize(("name", "labels"), [("flex", "active"), ("flex", "shared"), ("adaptive-flex", "active")])
    def test_goes_on_as_if_the_party_had_left(self, name, labels):
        weights = {}
        for how in ("late", "left"):
            of, made = whole(**EVERYBODY), hurried(name, labels=labels, parameters={"hosting": "active"})
            states = worlds.begin(made, of)
            worlds.step(made, of, states, of.places())  # the first round of an epoch waits for all parties
            before = worlds.weights(states)
            at = late("c", range(1)) if how == "late" else Table()
            worlds.step(made, of, states, of.places(), number=1, at=at, leaves={"c"} if how == "left" else ())
            weights[how] = worlds.weights(states)
            same = {key for key, tensor in weights[how].items() if torch.equal(tensor, before[key])}
            assert {key[0] for key in same} == {"c"}
        assert worlds.same_bits(weights["late"], weights["left"])

    def test_answers_the_party_at_once_with_nothing(self):
        of, made, at = whole(), hurried(), late("c", range(1))
        states = worlds.begin(made, of)
        worlds.step(made, of, states, of.places(), number=1, at=at)
        sizes = {to: tuple(tensors["g"].shape) for _, to, tag, tensors in at.notes if tag == "gradient"}
        assert sizes == {"b": (12, 5), "c": (0, 5)}
        assert states["a"].kept["missed"] == 1

    def test_with_heads_at_several_parties(self):
        """Each host continues on its own; the party skips the round only if no host has its embeddings."""
        of, made = whole(**EVERYBODY), hurried(parameters={"hosting": "labelers"})
        states = worlds.begin(made, of)
        before = worlds.weights(states)
        worlds.step(made, of, states, of.places(), number=1, at=late("c", range(2)))
        moved = {name.split("/encoder")[0] for name, w in worlds.weights(states).items() if (w != before[name]).any()}
        assert {"a", "b"} <= moved

    def test_the_first_of_an_epoch_waits(self):
        of, made = whole(), hurried()
        states = worlds.begin(made, of)
        worlds.step(made, of, states, of.places(), at=late("c", range(1)))
        assert "missed" not in states["a"].kept

    @pytest.mark.parametrize(
        ("name", "of", "parameters"),
        [
            ("p-bcd", "laser", {}), ("sync-min", "laser", {}), ("flex", "standard", {}),
            ("flex", "standard", {"absent": "zeros"}),
        ],
    )  # fmt: skip
    def test_schedules_and_methods_that_need_everybody_wait(self, name, of, parameters):
        clock = RealClock(timeout=0.5, grace=0.05, now=Wound())
        made, world = under(name, of, clock, parameters=parameters), whole()
        states = worlds.begin(made, world)
        worlds.step(made, world, states, world.places(), number=1, at=late("c", range(1)))
        assert "missed" not in states["a"].kept


class TestTraining:
    @pytest.mark.parametrize("name", ["flex", "adaptive-flex"])
    def test_late_messages_are_passed_over_and_the_party_comes_back(self, name):
        """Its second and third batch of the first epoch are late; from the second epoch on it is in time."""
        at = late("c", range(1, 3))
        of = worlds.world(K=3, observed=torch.ones(60, 3, dtype=torch.bool), classes=2, echo=True)
        _, history, at = run(hurried(name), of, epochs=5, batch_size=15, optimizer=ADAM, at=at)
        assert 1 <= history[0]["missed_rounds"] <= 3
        assert history[-1]["missed_rounds"] == history[0]["missed_rounds"]
        assert history[-1]["loss"] < 0.9 * history[0]["loss"]
        gradients = [len(tensors["g"]) for _, to, tag, tensors in at.notes if tag == "gradient" and to == "c"]
        assert gradients[0] == 15
        assert gradients.count(0) == history[0]["missed_rounds"]
        assert gradients[-16:] == [15] * 16

    @pytest.mark.parametrize("name", ["flex", "adaptive-flex"])
    @pytest.mark.parametrize("how", [{}, {"labels": "shared"}, {"parameters": {"hosting": "labelers"}}])
    def test_who_is_late_in_the_last_round_of_an_epoch_takes_part_in_validation(self, name, how):
        """Its messages for training and those for validation have the same tag."""
        of = whole(N=24, **EVERYBODY)
        made = hurried(name, **({"parameters": {"hosting": "active"}} | how))
        to = 2 if "hosting" in str(how) else 1  # number of hosts that receive its embeddings
        weights, history, _ = run(made, of, batch_size=3, epochs=3, training=torch.arange(24) < 12,
                                   validation=torch.arange(12, 24), at=late("c", range(3 * to, 4 * to)))  # fmt: skip
        assert [epoch["missed_rounds"] for epoch in history] == [1, 1, 1]  # afterwards it is in time
        assert all("validation" in epoch for epoch in history)
        assert all(torch.isfinite(each).all() for each in weights.values())

    def test_who_is_late_and_leaves_is_not_waited_for(self):
        """The host has continued without it; at the end of the epoch it learns that no message will come."""
        of, made = whole(**EVERYBODY), hurried(parameters={"hosting": "active"})
        states = worlds.begin(made, of)
        stages = {name: worlds.stage_of(made, of.seat(name)) for name in "abc"}
        batch = worlds.batch_of(of.places(), 1)

        async def stays(name: str, net: Channel) -> None:
            await stages[name].step(net, states[name], of.rows[name], batch)
            await stages[name].finish(net, states[name], of.rows[name])

        async def leaves(net: Channel) -> None:
            await asyncio.sleep(LATE)

        Table().play(of.roster, made.can.messages,
                     {"a": lambda net: stays("a", net), "b": lambda net: stays("b", net), "c": leaves})  # fmt: skip
        assert states["a"].kept["missed"] == 1


class TestDated:
    def play(self, sent: list[int], **changes: Any) -> Any:
        expect = {"h": TensorSpec((2, 3))}

        async def sender(net: Channel) -> None:
            for step in sent:
                await RoundChannel(net, ("train", 0, step)).send(
                    "b", "embedding", {"h": torch.full((2, 3), float(step))}
                )

        async def receiver(net: Channel) -> Any:
            return await RoundChannel(net, ("train", 0, 4), **changes).recv("a", "embedding", expect)

        return memory.play({"a": sender, "b": receiver})["b"]

    def test_takes_what_is_of_its_round(self):
        assert self.play([2, 3, 4])["h"][0, 0] == 4

    def test_refuses_what_is_of_a_later_one(self):
        with pytest.raises(MessageError, match=r"'embedding' from 'a' to 'b': it is of epoch and batch \(0, 5\)"):
            self.play([3, 5])

    def test_says_who_is_late(self):
        async def never(net: Channel) -> None:
            await asyncio.sleep(0.2)
            await net.close()

        async def receiver(net: Channel) -> Any:
            with pytest.raises(PartyLost, match="'embedding' arrived too late for this round of 'b'"):
                await RoundChannel(net, ("train", 0, 4), within=0.02).recv("a", "embedding", {"h": TensorSpec((2, 3))})

        memory.play({"a": never, "b": receiver})


class TestSettings:
    def test_grace_is_the_timeout_unless_given(self):
        assert RealClock(timeout=3.0).waits == 3.0
        assert clock(real=True, timeout=3.0, grace=1.0).waits == 1.0

    def test_refuses(self):
        with pytest.raises(ConfigError, match="grace must be a positive number of seconds, got 0"):
            RealClock(grace=0)
        with pytest.raises(ConfigError, match="grace only applies to the real clock; set real = true"):
            clock(grace=1.0)
