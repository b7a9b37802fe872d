"""A split method resolves its topology once, when a run begins."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from anyparty.methods.method import HasHosts, hosts_of
from anyparty.methods.method_registry import method
from anyparty.methods.schedules.virtual_clock import VirtualClock
from anyparty.methods.split.local import Local
from anyparty.methods.split.plug import Plug
from anyparty.methods.split.split_method import Split
from tests.methods.schedules.scheduled_runs import under
from tests.worlds import predict, states_of, train, world

ASKED = ("can", "plan")


def test_heads_at_their_own_parties():
    """Parties a and c hold labels. The head of b stands at a, which therefore reads b."""
    topology = Split(rule=Local(), embedding=5, hosting="labelers").topology(world(labelers=(0, 2)).roster)
    assert (topology.blocks, topology.active, topology.owners) == (("a", "b", "c"), "a", (0, 1, 2))
    assert (topology.hosts, topology.heads) == ({"a": (0, 1), "c": (2,)}, {"a": 2, "c": 1})
    assert topology.reads == {"a": ("a", "b"), "c": ("c",)}
    assert topology.readers == {"a": ("a",), "b": ("a",), "c": ("c",)}
    assert (topology.copies, topology.width, topology.head_inputs, topology.unread) == (1, (5,), 5, ())


def test_one_head_at_a_server_without_columns():
    topology = Split(rule=Plug(), embedding=5).topology(world(server=True).roster)
    assert topology.active not in topology.blocks
    assert topology.hosts == {topology.active: ()}
    assert (topology.owners, topology.heads, topology.head_inputs) == (None, {topology.active: 1}, 15)
    assert topology.readers[topology.active] == ()
    assert topology.parties == (*topology.blocks, topology.active)


def test_it_is_resolved_once_for_a_roster():
    asked = Counter()

    class Counting(Plug):
        def plan(self, *given):
            asked["plan"] += 1
            return super().plan(*given)

    made, roster = Split(rule=Counting(), embedding=5), world().roster
    before = asked["plan"]
    assert made.topology(roster) == made.topology(world().roster)
    assert asked["plan"] == before + 1
    assert made.topology(world(server=True).roster) != made.topology(roster)
    assert made == Split(rule=made.rule, embedding=5)  # the stored topologies do not count when methods are compared


def test_several_encoders_a_party():
    topology = method("combinatorial", embedding=5).topology(world().roster)
    assert (topology.copies, topology.width) == (4, (4, 5))


def test_rows_of_unread_parties_count_as_nobodys():
    class First(Plug):
        def plan(self, roster, task, width):
            return replace(super().plan(roster, task, width), reads=(0,))

    observed = torch.tensor([[True, True, False], [False, True, True]])
    topology = Split(rule=First(), embedding=5).topology(world().roster)
    assert topology.unread == ("b", "c")
    assert topology.without_unread(observed).tolist() == [[True, False, False], [False, False, False]]
    assert observed.sum() == 4  # the argument is not changed


@pytest.mark.parametrize("parameters", [{}, {"pretrain": "simsiam"}, {"unlabelled": "pseudo"}])
def test_stages_and_schedules_around_a_split_method_keep_its_hosts(parameters):
    roster = world(labelers=(0, 2)).roster
    made = method("laser", embedding=5, **parameters)
    assert hosts_of(made, roster) == ("a",)
    if "unlabelled" not in parameters:
        assert hosts_of(method("laser", embedding=5, hosting="labelers", **parameters), roster) == ("a", "c")
    if "pretrain" not in parameters:
        assert hosts_of(under("flex", parameters=parameters), roster) == ("a",)


@pytest.mark.parametrize("name", ["fedhssl", "false-vfl-1", "apc"])
def test_other_methods_have_no_hosts_but_the_active_party(name):
    assert not isinstance(method(name), HasHosts)
    assert hosts_of(method(name), world(labelers=(0, 2)).roster) == ("a",)


def test_a_schedule_with_shared_labels_uses_all_of_them():
    roster = world(labelers=(0, 1, 2)).roster
    assert under("flex", labels="shared").label_users(roster) == ("a", "b", "c")
    assert under("flex").label_users(roster) == ("a",)


class Counting(Local):
    """Local, which counts calls."""

    asked = Counter()

    def __getattribute__(self, name):
        if name in ASKED:
            Counting.asked[name] += 1
        return super().__getattribute__(name)


class TestNoBatchAsksTheRule:
    def asked(self, made, of, epochs):
        assert made.can.title  # cached at its first use
        Counting.asked.clear()
        trained = train(made, of, epochs=epochs)
        return dict(Counting.asked), states_of(trained)

    @pytest.mark.parametrize("hosting", ["active", "labelers"])
    def test_in_training(self, hosting):
        one, other = (Split(rule=Counting(), embedding=5, hosting=hosting) for _ in range(2))
        of = world(labelers=(0, 2))
        assert self.asked(one, of, 1)[0] == self.asked(other, of, 3)[0]
        assert "plan" not in self.asked(one, of, 1)[0]  # the roster's plan is already known

    @pytest.mark.parametrize("name", ["flex", "vafl"])
    def test_under_a_schedule(self, name):
        of, counts = world(), []
        for epochs in (1, 3):
            made = under(name, clock=VirtualClock(latency=1.0, timeout=10.0))
            object.__setattr__(made, "split", Split(rule=Counting(), embedding=5))
            counts.append(self.asked(made, of, epochs)[0])
        assert counts[0] == counts[1]

    def test_in_prediction(self):
        made, of = Split(rule=Counting(), embedding=5, hosting="labelers"), world(labelers=(0, 2))
        states = self.asked(made, of, 1)[1]
        Counting.asked.clear()
        predict(made, of, states)
        assert set(Counting.asked) <= {"can"}  # its title and messages
