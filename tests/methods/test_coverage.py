"""Networks that no labelled row has trained are not used in answers, alone or with others."""

from dataclasses import replace

import pytest
import torch

from anyparty.methods.method_registry import method
from anyparty.methods.split.combinatorial import UNTRAINED
from anyparty.methods.split.local import NOBODY
from anyparty.methods.split.pseudo_labels import PseudoLabelled
from anyparty.methods.split.split_method import UNREACHED
from anyparty.networks.heads import TrainedParties
from tests import worlds
from tests.worlds import world

FAMILY = ["local", "ensemble", "combinatorial", "plug", "laser"]
N = 60


def strange(labelled=40, **more):
    """a has the first rows, with labels; b some of these and later ones; c only the later ones, without labels."""
    there = torch.zeros(N, 3, dtype=torch.bool)
    there[:labelled, 0] = True
    there[10:50, 1] = True
    there[labelled:, 2] = True
    return world(observed=there, classes=2, labeled=torch.arange(N) < labelled, **more)


@pytest.mark.parametrize("name", FAMILY)
def test_a_party_without_a_labelled_row_does_not_take_part(name):
    of, made = strange(), method(name, embedding=4)
    trained = worlds.train(made, of, epochs=2)
    states = worlds.states_of(trained)
    said, without = worlds.predict(made, of, states), worlds.predict(made, of, states, asked=["a", "b"])
    known = of.observed[:, :2].any(1)
    assert torch.equal(said.answered, known)
    assert not said.took_part[:, 2].any()
    assert torch.equal(said.scores[known], without.scores[known])
    assert said.reasons == dict.fromkeys(range(50, N), UNREACHED)


@pytest.mark.parametrize("name", ["local", "ensemble", "laser"])
def test_an_unreached_party_does_not_take_part_with_several_hosts(name):
    """Rows that only the unreached party has get no number; answers for other rows do not use it."""
    of, alone = strange(labelers=(0, 1)), ["a", "b"]
    made = method(name, embedding=4, hosting="labelers")
    states = worlds.states_of(worlds.train(made, of, epochs=2))
    said, without = worlds.predict(made, of, states), worlds.predict(made, of, states, asked=alone)
    assert torch.equal(said.answered, of.observed[:, :2].any(1))
    assert torch.equal(said.scores[said.answered], without.scores[said.answered])
    assert set(said.reasons.values()) == {UNREACHED}


@pytest.mark.parametrize("name", ["local", "ensemble", "laser"])
def test_an_untrained_head_of_a_label_holder_does_not_take_part(name):
    """b has labels, but not of rows that it holds, so its own head stays untrained."""
    there = torch.zeros(N, 2, dtype=torch.bool)
    there[:40, 0] = there[30:, 1] = True
    of = world(K=2, observed=there, classes=2, labeled=torch.arange(N) < 40, labelers=(0, 1))
    of.rows["b"].labeled[30:] = False
    made = method(name, embedding=4, hosting="labelers")
    states = worlds.states_of(worlds.train(made, of, epochs=2))
    assert [states[who].modules["taught"].parties.tolist() for who in "ab"] == [[True, True], [False, False]]
    said = worlds.predict(made, of, states)
    assert torch.equal(said.answered, there[:, 0])
    assert said.reasons == dict.fromkeys(range(40, N), NOBODY)


def hosts(there, a):
    """Give a the labels of its rows below ``a``, and b those of its rows from there on.

    Each hosts its own head, and a hosts that of c too.
    """
    of = world(observed=there, classes=2, labelers=(0, 1))
    row = torch.arange(N)
    theirs = there[:, 1] & (row >= a)
    of.rows["a"] = replace(of.rows["a"], labeled=there[:, 0] & (row < a), labeled_at={"b": theirs})
    of.rows["b"] = replace(of.rows["b"], labeled=theirs)
    return of


def apart():
    """Create a world in which a and b share no row."""
    there = torch.zeros(N, 3, dtype=torch.bool)
    there[:20, 0] = there[20:50, 1] = there[:40, 2] = there[50:, 2] = True
    return hosts(there, 20)


def roundabout():
    """Create a world in which c shares only labelled rows of b; only c has the last rows."""
    there = torch.ones(N, 3, dtype=torch.bool)
    there[:20, 2] = there[55:, :2] = False
    return hosts(there, 20)


def untaught():
    """Create a world in which b has rows, but no labels."""
    there = torch.ones(N, 3, dtype=torch.bool)
    there[50:, 0] = there[40:55, 2] = False
    return hosts(there, N)


@pytest.mark.parametrize("name", ["local", "ensemble", "laser"])
def test_a_host_predicts_rows_that_the_active_partys_labels_do_not_reach(name):
    of, made = apart(), method(name, embedding=4, hosting="labelers")
    states = worlds.states_of(worlds.train(made, of, epochs=2))
    assert [states[who].modules["taught"].missed for who in "ab"] == [[1], [0]]
    said = worlds.predict(made, of, states)
    assert said.answered.all()
    assert torch.equal(said.took_part[:, 1], of.observed[:, 1])
    if name != "ensemble":
        assert torch.equal(~said.by_party[:, 1].isnan().any(dim=1), of.observed[:, 1])
    gone = worlds.predict(made, of, states, leaves=["b"])
    assert gone.reasons == dict.fromkeys(range(40, 50), "no party that was asked and answered has this row")


@pytest.mark.parametrize("draw", [apart, roundabout, untaught])
@pytest.mark.parametrize(("name", "more"), [("local", {}), ("ensemble", {"vote": "soft"}), ("laser", {})])
def test_took_part_names_the_parties_whose_columns_change_the_answer(name, more, draw):
    """Change the columns of one party after another."""
    of, made = draw(), method(name, embedding=4, hosting="labelers", **more)
    states = worlds.states_of(worlds.train(made, of, epochs=2))
    said = worlds.predict(made, of, states)
    for k, party in enumerate(of.roster.blocks):
        rows = of.rows[party]
        other = replace(of, rows=of.rows | {party: replace(rows, block=replace(rows.block, x=rows.block.x + 1.0))})
        moved = (worlds.predict(made, other, states).scores != said.scores).any(dim=1) & said.answered
        assert torch.equal(moved, said.took_part[:, k]), party


def test_a_party_read_only_by_a_silent_host_does_not_take_part():
    of, made = roundabout(), method("laser", embedding=4, hosting="labelers")
    states = worlds.states_of(worlds.train(made, of, epochs=2))
    for said in (worlds.predict(made, of, states), worlds.predict(made, of, states, leaves=["b"])):
        assert torch.equal(said.took_part[:, 2], of.observed.all(dim=1) & ("b" not in said.silent))
        assert said.reasons == dict.fromkeys(range(55, N), NOBODY)  # c was reached, but not its own head


def test_a_set_of_parties_without_a_labelled_row_gives_no_prediction():
    """Both parties have labelled rows, but no labelled row is at both."""
    there = torch.zeros(N, 2, dtype=torch.bool)
    there[:30, 0] = there[30:50, 1] = there[50:] = True
    of, made = (
        world(K=2, observed=there, labeled=torch.arange(N) < 50, server=True),
        method("combinatorial", embedding=4),
    )
    states = worlds.states_of(worlds.train(made, of, epochs=2))
    said = worlds.predict(made, of, states)
    assert said.answered.tolist() == [True] * 50 + [False] * 10
    assert set(said.reasons.values()) == {UNTRAINED}
    assert worlds.predict(made, of, states, asked=of.roster.blocks[:1]).answered[50:].all()


def test_pseudo_labels_train_a_party_without_a_labelled_row():
    of, made = strange(), method("laser", embedding=4, unlabelled="pseudo", sure=0.0)
    assert isinstance(made, PseudoLabelled)
    states = worlds.states_of(worlds.train(made, of, epochs=2, training=torch.ones(N, dtype=torch.bool)))
    assert worlds.predict(made, of, states).answered.all()


@pytest.mark.parametrize("name", ["laser", "local", "ensemble", "plug"])
def test_an_untrained_party_gives_no_pseudo_labels(name):
    """c is confident about its rows only because of its initial weights, so they must not be trained on."""
    there = torch.zeros(N, 2, dtype=torch.bool)
    there[:40, 0] = there[40:, 1] = True
    of = world(K=2, observed=there, classes=2, labeled=torch.arange(N) < 40, server=True)
    made = method(name, embedding=4, unlabelled="pseudo", sure=0.0)
    trained = worlds.train(made, of, epochs=2, training=torch.ones(N, dtype=torch.bool))
    said = worlds.predict(made, of, worlds.states_of(trained))
    assert torch.equal(said.answered, of.labeled)
    history = next(part.history for part in trained.values() if part.history)
    assert [record["pseudo_labels"] for record in history if record["stage"] == "pseudo"] == [0.0, 0.0]


def test_trained_parties_are_saved_with_the_heads():
    one, other = TrainedParties(3), TrainedParties(3)
    one.note(torch.tensor([[True, False, False], [True, True, False]]))
    assert one.missed == [2]
    other.load_state_dict(one.state_dict())
    assert other.missed == [2]
    assert TrainedParties(3).missed == []
