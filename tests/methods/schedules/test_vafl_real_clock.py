"""VAFL on the real clock: the host meets the party that is ready first, and all parties end the epoch together."""

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch

from anyparty.errors import Diverged, PartyLost
from anyparty.methods.method_registry import method
from anyparty.methods.schedules.real_clock import RealClock
from anyparty.transport import memory
from tests import controlled_clocks, worlds
from tests.methods.cases import OwnEncoder
from tests.methods.schedules.scheduled_runs import ADAM, run, slowed, under, whole
from tests.methods.schedules.test_real_clock import Wound
from tests.worlds import Table, World, world


@pytest.fixture(autouse=True)
def _time_stands_while_anybody_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_run", controlled_clocks.run)


def steadily(**pauses: float) -> Table:
    """Return a table that always delays the embeddings of some parties."""
    return slowed(**{name: lambda _, pause=pause: pause for name, pause in pauses.items()})


def vafl(of: str = "laser", **changes: Any) -> Any:
    return under("vafl", of, RealClock(now=Wound()), **changes)


def meetings(at: Table) -> Counter[str]:
    """Count how often each passive party received a derivative of its rows."""
    return Counter(to for _, to, tag, tensors in at.notes if tag == "gradient" and len(tensors["g"]))


def test_an_epoch_has_as_many_rounds_as_batches():
    weights, history, at = run(vafl(), whole(N=40), encoder=OwnEncoder, batch_size=4, epochs=3)
    assert [epoch["rounds"] for epoch in history] == [10, 20, 30]
    assert 0 < history[0]["time_s"] < history[1]["time_s"]
    met = meetings(at)
    assert met["b"] + met["c"] + int(weights["a/encoder/calls"]) == 30
    assert min(met["b"], met["c"], int(weights["a/encoder/calls"])) >= 6  # all parties are equally fast here


def test_a_faster_party_takes_more_turns():
    _, _, at = run(vafl(), whole(N=80, server=True), batch_size=4, epochs=2, at=steadily(a=0.002, b=0.002, c=0.05))
    met = meetings(at)
    assert sum(met.values()) == 40
    assert met["c"] < 0.5 * min(met["a"], met["b"])


def test_late_messages_of_an_epoch_are_answered_without_gradients():
    _, _, at = run(vafl(), whole(N=40, server=True), batch_size=4, epochs=1)
    nothing = Counter(to for _, to, tag, tensors in at.notes if tag == "gradient" and not len(tensors["g"]))
    assert max(nothing.values()) == 1
    sent = Counter(note[0] for note in at.notes if note[2] == "embedding")
    assert sent == meetings(at) + nothing


def test_a_fast_party_may_go_through_all_batches():
    """The others never send in time: all meetings are with the fast party, and validation still works."""
    of = whole(N=24, server=True)
    _, history, at = run(vafl(), of, batch_size=8, epochs=2, at=steadily(b=0.4, c=0.4), validation=torch.arange(20, 24))
    assert meetings(at)["a"] >= 4
    assert all("validation" in epoch for epoch in history)


def test_vafl_with_one_party_equals_the_plain_step():
    of = whole(K=1)
    assert worlds.same_bits(run(method("laser", embedding=5), of)[0], run(vafl(), of)[0])


@pytest.mark.parametrize("of", ["laser", "standard"])
def test_the_loss_decreases_with_missing_blocks(of):
    there = torch.rand(160, 3, generator=torch.Generator().manual_seed(1)) > 0.25
    there[~there.any(1), 0] = True
    _, history, _ = run(vafl(of), world(observed=there, classes=2), epochs=25, batch_size=20, optimizer=ADAM)
    assert history[-1]["loss"] < 0.9 * max(epoch["loss"] for epoch in history[:3])


def test_training_does_not_wait_for_a_party_without_rows():
    there = torch.ones(24, 3, dtype=torch.bool)
    there[:, 2] = False
    _, history, at = run(vafl(), world(observed=there), batch_size=4, epochs=2)
    assert meetings(at)["c"] == 0
    assert history[-1]["rounds"] == 12


def play(of: World, made: Any, states: Any, meetings: int, leaves: str = "") -> tuple[list[Any], Table]:
    """Run an epoch with a number of meetings, without the party that leaves; return a's losses and the table."""
    losses: list[Any] = []

    async def stays(name: str, net: Any) -> None:
        stage = worlds.stage_of(made, of.seat(name))
        for number in range(meetings):
            loss = await stage.step(net, states[name], of.rows[name], worlds.batch_of(of.places(), number))
            if name == "a":
                losses.append(loss)
            await asyncio.sleep(0)
        await stage.finish(net, states[name], of.rows[name])

    async def left(net: Any) -> None:
        """Take no part."""

    parts = {name: left if name in leaves else partial(stays, name) for name in of.roster.names}
    at = Table()
    at.play(of.roster, made.can.messages, parts)
    return losses, at


def test_training_continues_without_a_party_that_leaves():
    of, made = whole(), vafl()
    losses, at = play(of, made, worlds.begin(made, of), 6, leaves="c")
    assert meetings(at)["b"] >= 2
    assert len([loss for loss in losses if loss is not None]) >= 4


def test_a_departure_costs_at_most_one_round():
    of, made = whole(), vafl()
    losses, _ = play(of, made, worlds.begin(made, of), 12, leaves="c")
    assert losses.count(None) <= 1


def test_a_method_that_needs_all_parties_has_no_loss_at_first():
    of, made = whole(), vafl("standard")
    assert play(of, made, worlds.begin(made, of), 1)[0] == [None]


def test_a_method_that_needs_all_parties_stops_if_one_leaves():
    of, made = whole(), vafl("standard")
    with pytest.raises(PartyLost, match="party 'c' is gone: Standard VFL cannot train without it"):
        play(of, made, worlds.begin(made, of), 6, leaves="c")


def test_a_diverging_run_ends_at_all_parties():
    with pytest.raises(Diverged, match=r"no longer numbers|the loss is"):
        run(vafl(), whole(N=40), batch_size=4, epochs=30, optimizer=worlds.Optimizer(name="sgd", lr=1e30))
