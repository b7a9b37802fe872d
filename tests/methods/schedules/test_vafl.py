"""VAFL: the order of meetings, and the embeddings of other parties that a meeting uses."""

import pytest
import torch
from torch.nn import functional

from anyparty.errors import ConfigError, PartyLost
from anyparty.methods.method_registry import method
from anyparty.methods.schedules.virtual_clock import VirtualClock
from tests import worlds
from tests.methods.schedules.scheduled_runs import ADAM, EVERYBODY, LINEAR, run, under, whole
from tests.worlds import SGD, Table, world

CLOCK = VirtualClock(
    iteration={"a": 2.5, "b": 1.0, "c": 4.0}, latency=1
)  # a is ready every 2.5 time units, b every 2, c every 5; only b and c need round trips


def test_parties_take_turns_in_the_order_of_the_clock():
    """b is ready at 2, 4, 6, 8, 10 ..., a at 2.5, 5, 7.5, 10 ..., c at 5, 10 ...; a comes before c at the same time."""
    of, made, order = whole(), under("vafl", clock=CLOCK), []
    states = worlds.begin(made, of)
    for number in range(8):
        before, at = worlds.weights(states), Table()
        worlds.step(made, of, states, of.places(), number=number, at=at)
        moved = {name for name, tensor in worlds.weights(states).items() if (tensor != before[name]).any()}
        who = {name.split("/")[0] for name in moved if "encoder" in name}
        assert len(who) == 1
        assert any(name.startswith("a/heads") for name in moved)
        assert [note[1] for note in at.notes if note[2] == "gradient"] == sorted(who - {"a"})
        order.append((*who, states["a"].kept["time"].item()))
    assert order == [("b", 2), ("a", 2.5), ("b", 4), ("a", 5), ("c", 5), ("b", 6), ("a", 7.5), ("b", 8)]


def test_a_rejoined_party_knows_which_party_is_next():
    """c's clock is behind the others', but c takes part again from its own meeting on, at 5."""
    of, made = whole(), under("vafl", clock=CLOCK)
    states, met = worlds.begin(made, of), []
    for number in range(8):
        at = Table()
        worlds.step(made, of, states, of.places(), number=number, at=at, leaves={"c"} if 0 < number < 4 else ())
        met.append([note[1] for note in at.notes if note[2] == "gradient"])
    assert met[4:] == [["c"], ["b"], [], ["b"]]
    assert worlds.same_bits(*({k: v for k, v in states[n].kept.items() if k in {"ready", "round"}} for n in "ac"))


def test_vafl_with_one_party_equals_the_plain_step():
    of = whole(K=1)
    assert worlds.same_bits(run(method("laser", embedding=5), of)[0], run(under("vafl"), of)[0])


def test_stale_embeddings_are_those_last_received_for_the_same_rows():
    of, at = whole(N=12), Table()
    trained = worlds.train(under("vafl", clock=CLOCK), of, epochs=4, batch_size=4, at=at)
    kept = trained["a"].state.kept
    assert kept["seen"].all()
    batches = [note[3]["h"] for note in at.notes if note[2] == "embedding" and note[0] == "c"]
    assert 3 < len(batches) < 12  # three in the first epoch, then one whenever c is ready
    for h in batches[-1]:
        assert (kept["embeddings"][:, 2] == h).all(dim=1).any()


def second_visit(made, of, states, rows, at=None):
    """Play the first meeting of the second epoch; return the active party's loss."""
    batch = worlds.Batch(rows, worlds.Seeds(0), ("train", 1, 0), number=1)
    stage = {name: worlds.stage_of(made, of.seat(name)) for name in of.roster.names}
    parts = {name: (lambda net, name=name: stage[name].step(net, states[name], of.rows[name], batch)) for name in stage}
    return (at or Table()).play(of.roster, made.can.messages, parts)["a"]


def test_a_round_equals_a_slow_version():
    """The rows' second meeting, with b, uses the first embeddings of a and c, and the present encoder of b and head."""
    of, made = whole(), under("vafl", "standard", VirtualClock(iteration={"a": 9.0, "b": 1.0, "c": 9.0}, latency=1))
    states = worlds.begin(made, of, encoder=LINEAR)
    stale = {name: states[name].modules["encoder"](of.x[name]).detach() for name in "ac"}
    worlds.step(made, of, states, of.places())
    encoder, heads = states["b"].modules["encoder"], states["a"].modules["heads"]
    mean = (stale["a"] + encoder(of.x["b"]) + stale["c"]) / 3
    loss = functional.cross_entropy(heads(mean[:, None])[:, 0], of.y)
    parameters = [*encoder.parameters(), *heads.parameters()]
    moved = torch.autograd.grad(loss, parameters)
    expected = [parameter.detach() - SGD.lr * g for parameter, g in zip(parameters, moved, strict=True)]
    at = Table()
    assert second_visit(made, of, states, of.places(), at) == pytest.approx(loss.item())
    assert [note[:3] for note in at.notes] == [("b", "a", "embedding"), ("a", "b", "gradient")]
    for one, other in zip(parameters, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_training_continues_without_a_party_that_leaves():
    of, made = world(), under("vafl", clock=CLOCK)
    states = worlds.begin(made, of)
    before = worlds.weights(states)
    assert worlds.step(made, of, states, of.places(), leaves={"c"}) > 0  # the meeting with b
    assert worlds.step(made, of, states, of.places(), leaves={"b", "c"}, number=1) > 0  # the meeting with a
    after = worlds.weights(states)
    assert worlds.same_bits(*({k: v for k, v in w.items() if k[0] == "c"} for w in (before, after)))


@pytest.mark.parametrize("name", ["laser", "plug"])
def test_a_party_that_has_not_sent_a_row_counts_as_lacking_it(name):
    """c was away in the first epoch, so the loss is that of a world in which c has no row."""
    clock, losses = VirtualClock(iteration={"a": 9.0, "b": 1.0, "c": 9.0}, latency=1), []
    there = worlds.all_patterns(28, 3)
    without = there & torch.tensor([True, True, False])
    rows = without.any(dim=1).nonzero().squeeze(1)
    for observed, leaves in ((there, {"c"}), (without, ())):
        of, made = world(observed=observed), under("vafl", name, clock)
        states = worlds.begin(made, of)
        worlds.step(made, of, states, rows, leaves=leaves)
        every = of.places() if leaves and name == "plug" else rows
        losses.append(second_visit(made, of, states, every))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("absent", ["refuse", "zeros"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_method_that_needs_all_parties_stops_if_one_leaves(number, absent):
    """As under P-BCD; the first meeting is with b, the second with c."""
    clock = VirtualClock(iteration={"a": 9.0, "b": 1.0, "c": 1.5}, latency=1)
    of, made = whole(), under("vafl", "standard", clock, parameters={"absent": absent})
    states = worlds.begin(made, of)
    for each in range(number):
        worlds.step(made, of, states, of.places(), number=each)
    with pytest.raises(PartyLost, match="party 'c' is gone: Standard VFL cannot train without it"):
        worlds.step(made, of, states, of.places(), number=number, leaves={"c"})


def test_rounds_with_a_party_without_rows_are_counted():
    """c is ready at 5, as the last of the first five meetings, and again at 10."""
    there = torch.ones(12, 3, dtype=torch.bool)
    there[:, 2] = False
    _, history, _ = run(under("vafl", clock=CLOCK), world(observed=there), epochs=2, batch_size=3)
    assert ["idle_meetings" in record for record in history] == [False, True]
    assert history[-1]["idle_meetings"] == 1
    assert history[-1]["rounds"] == 8


def test_the_loss_decreases_with_a_server_and_missing_blocks():
    there = torch.rand(120, 3, generator=torch.Generator().manual_seed(1)) > 0.3
    there[~there.any(1), 0] = True
    of = world(observed=there, classes=2, server=True)
    _, history, _ = run(under("vafl", clock=CLOCK), of, epochs=20, batch_size=20, optimizer=ADAM)
    assert history[-1]["loss"] < 0.85 * history[0]["loss"]


def test_unsupported_options_are_refused():
    with pytest.raises(ConfigError, match="labels = 'active'"):
        under("vafl", labels="shared")
    with pytest.raises(ConfigError, match="hosting = 'active'"):
        worlds.begin(under("vafl", parameters={"hosting": "labelers"}), world(**EVERYBODY))
