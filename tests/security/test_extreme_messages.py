"""Numbers far beyond those that their sender sent before are rejected, so a message cannot ruin a model.

Other messages are accepted.  Without bounds, training would use the attacks in this file without a warning.
"""

import asyncio
from dataclasses import dataclass, field

import pytest
import torch

from anyparty.api.federation import Federation
from anyparty.api.training_run import check
from anyparty.config import Config
from anyparty.config.method_factory import SCHEDULES
from anyparty.core.types import Channel, TensorSpec
from anyparty.errors import AnypartyWarning, ConfigError, Diverged, ExtremeMessage, MessageError, PartyLost
from anyparty.methods.method_registry import METHODS, method
from anyparty.methods.schedules.virtual_clock import VirtualClock
from anyparty.serving.batch_executor import CrossThreadChannel
from anyparty.training import control_messages
from anyparty.training.epoch_end import share_decision
from anyparty.training.loop import play
from anyparty.training.party_run import PartyRun, RunHooks
from anyparty.transport import memory
from anyparty.transport.contract import FACTOR, FEW, LEAST, MOST, Bounds, ContractChannel
from tests import worlds
from tests.methods.cases import ADAM, CASES
from tests.methods.schedules.scheduled_runs import SPEEDS, under
from tests.slow_parameters import slow_but
from tests.transport.test_reliable import CALM, Air, run
from tests.worlds import Table, Wiretap, world

WANT = {"h": TensorSpec((-1,))}


def taken(sizes, *, training=True, held=None, expect=WANT):
    """Send messages of these sizes; return the number of messages accepted before one is rejected."""
    held = Bounds() if held is None else held
    for number, size in enumerate(sizes):
        if held.check("b", "up", {"h": torch.tensor([0.0, -size])}, expect, training=training):
            return number
    return len(sizes)


class TestBounds:
    @pytest.mark.parametrize("first", [1e30, 1.1 * MOST])
    def test_the_first_message_has_a_bound_too(self, first):
        assert taken([first]) == 0
        assert taken([0.9 * MOST]) == 1

    @pytest.mark.parametrize("before", [1, 3, FEW, FEW + 1, 500])
    def test_one_far_beyond_the_others_is_refused(self, before):
        assert taken([2.0] * before + [2.5 * FACTOR]) == before
        assert taken([2.0] * before + [1.5 * FACTOR]) == before + 1

    def test_it_is_refused_again_and_changes_no_bound(self):
        held = Bounds()
        assert taken([2.0] * 10, held=held) == 10
        for _ in range(100):
            assert taken([1e4], held=held) == 0
        assert taken([2.0], held=held) == 1

    def test_small_numbers_are_never_refused(self):
        assert taken([1e-9] * 20 + [0.9 * LEAST]) == 21
        assert taken([1e-9] * 20 + [1.1 * LEAST]) == 20

    def test_zeros_say_nothing_of_the_next_message(self):
        assert taken([0.0] * 20 + [5e3]) == 21
        assert taken([5e3] + [0.0] * 20 + [5e3]) == 22

    def test_gradients_that_shrink_leave_the_bound_where_it_was(self):
        shrinking = [10.0 * 0.9**step for step in range(400)]
        assert taken([*shrinking, 10.0]) == 401

    def test_one_large_message_among_the_first_does_not_widen_the_bound(self):
        assert taken([2.0, 1e3, *[2.0] * FEW, 1e4]) == FEW + 2

    def test_the_eighth_message_is_compared_with_the_largest_and_the_ninth_with_the_median(self):
        few = [1e3] + [2.0] * (FEW - 2)
        assert taken([*few, 1e4]) == FEW
        assert taken([*few, 2.0, 1e4]) == FEW

    def test_a_large_message_outside_training_does_not_widen_the_bound_of_training(self):
        held = Bounds()
        assert taken([2.0], held=held) == 1
        assert taken([1e6], held=held, training=False) == 1
        assert taken([2.5 * FACTOR], held=held) == 0

    def test_a_sender_cannot_soon_raise_its_bound(self):
        """Send a thousand honest messages, then messages that are as large as the bound allows."""
        held, most = Bounds(), 0.0
        assert taken([1.0] * 1000, held=held) == 1000
        for _ in range(900):
            most = held._sizes["b", "up", "h"].bound
            assert taken([most], held=held) == 1
        assert most < 2 * FACTOR

    def test_lanes_and_tensors_are_held_apart(self):
        held, expect = Bounds(), {"small": TensorSpec((1,)), "large": TensorSpec((1,))}
        for _ in range(20):
            both = {"small": torch.tensor([1.0]), "large": torch.tensor([1e6])}
            assert held.check("b", "up", both, expect, training=True) is None
        swapped = {"small": torch.tensor([1e6]), "large": torch.tensor([1e6])}
        assert held.check("b", "up", swapped, expect, training=True).name == "small"
        for lane in (("c", "up"), ("b", "down")):
            assert held.check(*lane, swapped, expect, training=True) is None

    @pytest.mark.parametrize("tensor", [torch.tensor([2**40]), torch.tensor([True]), torch.empty(0)])
    def test_whole_numbers_and_empty_tensors_have_none(self, tensor):
        assert Bounds().check("b", "up", {"h": tensor}, WANT, training=True) is None

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_every_float_dtype_is_held(self, dtype):
        held = Bounds()
        assert held.check("b", "up", {"h": torch.ones(3, dtype=dtype)}, WANT, training=True) is None
        assert held.check("b", "up", {"h": torch.full((3,), -2e4, dtype=dtype)}, WANT, training=True) is not None

    def test_squares_have_the_square_of_the_factor(self):
        expect = {"h": TensorSpec((-1,), squares=True)}
        assert taken([20.0] * 10 + [10 * FACTOR**2], expect=expect) == 11
        assert taken([20.0] * 10 + [40 * FACTOR**2], expect=expect) == 10

    def test_an_odd_row_is_answered_and_what_is_no_number_of_a_column_is_not(self):
        assert taken([1.0] * 20 + [0.9 * MOST, 1.1 * MOST], training=False) == 21


# ---- attacks


@dataclass
class Forger(Wiretap):
    """A party whose messages of one tag are multiplied, except the first ``after``."""

    tag: str = "embedding"
    after: int = 0
    factor: float = 1e30
    sent: int = field(default=0)

    async def send(self, to, tag, tensors):
        if tag == self.tag:
            self.sent += 1
            if self.sent > self.after:
                tensors = {name: tensor * self.factor for name, tensor in tensors.items()}
        return await super().send(to, tag, tensors)


def forged(by, **how):
    """Return a table with a party that forges its messages."""

    def carry(parts, wrap):
        return memory.play(parts, lambda net: wrap(Forger(net, [], **how) if net.me == by else net))

    return Table(carrier=carry)


ATTACKS = {
    "from the first batch": ("b", {}, 1),
    "from the second epoch": ("b", {"after": 3}, 2),
    "by 10,000": ("b", {"after": 12, "factor": 1e4}, 5),
    "gradients": ("a", {"tag": "gradient", "after": 3, "factor": 1e30}, 1),
}


@pytest.mark.parametrize("K", [2, 4])
@pytest.mark.parametrize("attack", ATTACKS)
def test_it_is_refused_and_the_sentence_names_everything(attack, K):
    by, how, epoch = ATTACKS[attack]
    of = world(K=K, observed=torch.ones(24, K, dtype=torch.bool))
    how = how | {"after": 3 * (K - 1)} if by == "a" else how  # it sends one gradient per batch to each other party
    with pytest.raises(ExtremeMessage) as refused:
        worlds.train(method("laser", embedding=4), of, epochs=6, at=forged(by, **how))
    said, tag = str(refused.value), how.get("tag", "embedding")
    assert f"message {tag!r} from {by!r} to " in said
    assert f"stage 'train', epoch {epoch + (by == 'a')}, batch 1: " in said
    assert "holds " in said
    assert "the bound for messages of this party is " in said
    assert isinstance(refused.value, MessageError)
    assert isinstance(refused.value, Diverged)  # the other possible cause


def test_a_run_of_which_checkpoints_are_kept_says_where(tmp_path):
    with pytest.raises(ExtremeMessage, match=r"epoch 2, batch 1: .* the weights after epoch 1 are saved in "):
        worlds.train(method("laser", embedding=4), world(K=2), folder=tmp_path, checkpoint_every=1,
                     at=forged("b", after=3))  # fmt: skip


def test_what_is_forged_in_validation_is_refused_as_well():
    of = world(K=2, N=32, observed=torch.ones(32, 2, dtype=torch.bool))
    training = torch.arange(32) < 24
    with pytest.raises(ExtremeMessage, match="'embedding' from 'b' to 'a' at stage 'train', epoch 1, validation: 'h' "):
        worlds.train(method("laser", embedding=4), of, training=training, validation=torch.arange(24, 32),
                     at=forged("b", after=3))  # fmt: skip


@pytest.mark.parametrize("wraps", ["another wrapper", "another thread's wrapper"])
def test_a_wrapped_channel_has_the_bounds_of_the_current_step(wraps, monkeypatch):
    """The forged numbers are within the bounds for validation, so the channel must know that the party trains."""

    def wrapped(channel, *arguments):
        inner = ContractChannel(channel, *arguments)
        if wraps == "another wrapper":
            return Wiretap(inner, [])
        return CrossThreadChannel(inner, asyncio.get_running_loop())

    monkeypatch.setattr(worlds, "ContractChannel", wrapped)
    of = world(K=2, observed=torch.ones(24, 2, dtype=torch.bool))
    with pytest.raises(ExtremeMessage, match=r"'embedding' from 'b' to 'a' at stage 'train', epoch 5, batch 1: "):
        worlds.train(method("laser", embedding=4), of, epochs=6, at=forged("b", after=12, factor=1e4))


# ---- continuing without the party


def guarded(lose=None):
    """Return the bank's channel, on which a test places arrived messages, and the line below it."""

    @dataclass
    class Line(Channel):
        me: str = "a"
        values: list = field(default_factory=list)

        async def recv(self, frm, tag, expect):
            return {"h": torch.tensor([self.values.pop(0)])}

    line = Line()
    return line, ContractChannel(line, world(K=3).roster, (), lose=lose)


def recv(net, frm="b"):
    return asyncio.run(net.recv(frm, "up", WANT))


def test_a_dropped_party_is_given_up_for_good():
    lost = []
    line, net = guarded(lambda *said: lost.append(said))
    net.set_step("stage 'train', epoch 2, batch 1", training=True)
    line.values = [1.0, 1e30, 1.0]
    recv(net)
    with (
        pytest.warns(AnypartyWarning, match="party 'b' is dropped: message 'up' from 'b' to 'a' at .*epoch 2"),
        pytest.raises(PartyLost, match=r"'h' holds 1e\+30"),
    ):
        recv(net)
    assert [name for name, _ in lost] == ["b"]
    with pytest.raises(PartyLost, match=r"'h' holds 1e\+30"):
        recv(net)
    assert line.values == [1.0]  # its later messages are not read
    assert float(recv(net, "c")["h"]) == 1.0


def test_nobody_goes_on_without_the_active_party():
    line, net = guarded(lambda *_: pytest.fail("it was given up"))
    net.me, line.values = "b", [1e30]
    with pytest.raises(ExtremeMessage, match="from 'a' to 'b'"):
        recv(net, "a")


def posts(of, *, forger=None, lose=True, **settings):
    """Train over the reliable transport in memory, with a thread per party; return each party's result."""
    made = method("laser", embedding=4)
    chosen = worlds.TrainSettings(**{"epochs": 4, "batch_size": 8, "patience": None, "keep": "last"} | settings)

    def part(name):

        async def played(net):
            membership = net.membership
            line = Forger(net, [], after=6) if name == forger else net
            wired = ContractChannel(
                line, of.roster, (*made.can.messages, *control_messages.MESSAGES), membership.lose if lose else None
            )
            return await play(
                PartyRun(
                    seat=of.seat(name),
                    method=made,
                    rows=of.rows[name],
                    settings=chosen,
                    agreed={"settings": "same"},
                    training=of.usable,
                    validation=torch.arange(0),
                    hooks=RunHooks(membership=membership),
                ),
                wired,
            )

        return played

    return run(Air(), *map(part, of.roster.names), names=of.roster.names, patience=CALM)


def test_the_others_train_on_without_a_dropped_party():
    of = world(K=3, observed=torch.ones(24, 3, dtype=torch.bool))
    with pytest.warns(AnypartyWarning, match="party 'b' is dropped"):
        ended = posts(of, forger="b")
    assert isinstance(ended["b"], PartyLost)  # PartyLost for the active party, which may end before its reason arrives
    records = ended["a"].history
    assert [record.get("absent", {}).keys() for record in records] == [set(), set(), {"b"}, {"b"}]
    assert "epoch 3, batch 1" in records[2]["absent"]["b"]
    assert len(ended["c"].history) == 0
    assert all(torch.isfinite(weight).all() for weight in worlds.weights({"a": ended["a"].state}).values())


@pytest.mark.parametrize("wrap", [lambda net: net, lambda net: Wiretap(net, [])], ids=["plain", "wrapped"])
def test_a_dropped_party_is_not_let_in_again(wrap):
    class Knocking:
        run, admitted = "run", ()

        def gone(self):
            return {"b": "it was dropped"}

        def waiting_to_rejoin(self):
            return ["b"]

        def admit(self, name):
            pytest.fail("it was let in")

    of = world(K=2)
    _, net = guarded()
    net.dropped["b"] = "its numbers"
    net.channel.send = lambda *_: asyncio.sleep(0)
    net.declared = control_messages.MESSAGES
    net.__post_init__()
    part = PartyRun(
        seat=of.seat("a"),
        method=method("laser", embedding=4),
        rows=of.rows["a"],
        agreed={},
        settings=worlds.TrainSettings(),
        training=of.usable,
        validation=torch.arange(0),
        hooks=RunHooks(membership=Knocking()),
    )
    record = {}
    asyncio.run(share_decision(part, wrap(net), None, {}, record, validates=False, last=False))
    assert "back" not in record


def test_in_one_process_no_party_can_be_dropped():
    config = Config.of({"train": {"extreme": "drop"}}, "settings")
    with pytest.raises(ConfigError, match=r"train\.extreme = 'drop' goes on without a party, .* use train.extreme"):
        check(config)
    tables = {"a": {"id": ["1", "2"], "x": [1, 2], "y": ["u", "v"]}, "b": {"id": ["1", "2"], "z": [1, 2]}}
    import polars as pl  # noqa: PLC0415

    federation = Federation.from_tables({name: pl.DataFrame(table) for name, table in tables.items()}, label="y")
    with pytest.raises(ConfigError, match=r"train\.extreme = 'drop'"):
        federation.train("laser", extreme="drop")


# ---- honest runs


class Watched(Bounds):
    """Bounds that record how close messages came to them."""

    nearest = 0.0

    def check(self, frm, tag, tensors, expect, *, training):
        for name, tensor in tensors.items():
            before = self._sizes.get((frm, tag, name))
            if training and before is not None and before.count and tensor.is_floating_point() and tensor.numel():
                Watched.nearest = max(Watched.nearest, float(tensor.abs().max()) / before.bound)
        return super().check(frm, tag, tensors, expect, training=training)


def honest(train):
    """Train with and without bounds, and check that the weights have the same bits."""
    Watched.nearest, trained = 0.0, {}
    for bounded in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            held = Watched if bounded else lambda: None
            patch.setattr(worlds, "ContractChannel", lambda *words, held=held: ContractChannel(*words, bounds=held()))
            trained[bounded] = worlds.weights(worlds.states_of(train()))
    assert worlds.same_bits(trained[True], trained[False])
    assert Watched.nearest < 1


@pytest.mark.parametrize("case", slow_but(CASES, lambda case: case.title in METHODS), ids=lambda case: case.title)
def test_an_honest_run_of_every_method_is_never_refused(case):
    of = case.draw(N=24)
    validation = of.usable.nonzero().squeeze(1)[::6]
    training = of.usable.index_fill(0, validation, False)
    honest(lambda: case.train(of, epochs=4, training=training, validation=validation, keep="best"))


FURTHER = {"laser, not normalized", "laser, all tasks", "standard with own modules", "plug of numbers"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.title in METHODS.keys() | FURTHER], ids=lambda case: case.title
)
def test_a_long_honest_run_of_every_method_is_never_refused(case):
    of = case.draw(N=48)
    honest(lambda: case.train(of, epochs=40, optimizer=ADAM))


TIMED = [(name, of, "active") for name in SCHEDULES for of in ("local", "standard", "combinatorial", "plug", "laser")]
TIMED += [(name, "laser", "shared") for name in SCHEDULES if name != "vafl"]


@pytest.mark.parametrize(("name", "of", "labels"), slow_but(TIMED, lambda timed: timed[1] == "laser"))
def test_an_honest_run_of_every_schedule_is_never_refused(name, of, labels):
    there = world(labelers=(0, 1, 2)) if labels == "shared" else world()
    made = under(name, of, VirtualClock(iteration=SPEEDS, timeout=10, latency=3), labels=labels)
    honest(lambda: worlds.train(made, there, epochs=6))
