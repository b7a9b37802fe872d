"""Joint execution computes the steps of the protocol: the same weights up to rounding, and the same ledger."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from anyparty.api.federation import Federation
from anyparty.artifacts.record import RunRecord
from anyparty.errors import ConfigError, Diverged
from anyparty.methods.method_registry import method
from anyparty.methods.split import joint_steps
from anyparty.methods.split.joint_steps import StackedEncoders
from anyparty.methods.split.rule import Rule, every_row
from anyparty.methods.split.split_method import Split
from anyparty.networks.encoders import MLP
from anyparty.networks.optimizer import CustomOptimizer, Optimizer
from anyparty.training.joint import JointExecution
from anyparty.transport.ledger import Ledger
from tests import worlds
from tests.api.test_train_tables import tables
from tests.methods.cases import ADAM, CASES, OwnEncoder
from tests.methods.test_own import Maximum
from tests.worlds import SGD, Table, world

SPLIT = [
    case for case in CASES if case.of in {"local", "standard", "ensemble", "combinatorial", "plug", "laser", "sum"}
]
OPTIMIZERS = {
    "adam": ADAM, "adamw": Optimizer(name="adamw", lr=0.01, weight_decay=0.1, schedule="cosine"),
    "momentum": Optimizer(name="sgd", lr=0.05, momentum=0.9, weight_decay=1e-3),
}  # fmt: skip


def uncounted(*_):
    """Count no message."""


def both(made, of, **settings):
    """Train by messages and jointly; return weights, histories and ledgers of both."""
    found = []
    for jointly in (False, True):
        at, own = Table(), Ledger()
        joint = JointExecution(of.roster.names, of.roster.active, own) if jointly else None
        trained = worlds.train(made, of, at=at, joint=joint, **settings)
        at.ledger.merge(own)
        history = [record.get("loss") for record in trained[of.roster.active].history]
        found.append((worlds.weights(worlds.states_of(trained)), history, at.ledger.rows(), joint))
    return found


def assert_alike(found, tolerance=2e-5):
    (weights, history, ledger, _), (others, other_history, other_ledger, _) = found
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        scale = max(1.0, float(tensor.double().abs().max())) if tensor.numel() else 1.0
        assert torch.allclose(tensor.double(), others[name].double(), rtol=0, atol=tolerance * scale), name
    assert [each is None for each in history] == [each is None for each in other_history]
    pairs = [pair for pair in zip(history, other_history, strict=True) if pair[0] is not None]
    assert [one for one, _ in pairs] == pytest.approx([other for _, other in pairs], rel=1e-4, abs=1e-6)
    assert ledger == other_ledger


@pytest.mark.parametrize("case", SPLIT, ids=lambda case: case.title)
def test_all_split_methods_train_alike(case):
    """Batches lack parties and labels, and unobserved and unlabelled cells are NaN."""
    of = case.draw(N=40, labeled=torch.arange(40) % 5 != 3, garbage=True)
    optimizer = list(OPTIMIZERS.values())[len(case.title) % 3]
    found = both(case.make(), of, epochs=2, encoder=case.encoder, optimizer=optimizer)
    assert_alike(found)
    ran = found[1][3].ran
    assert ran.pop("pretrain", "protocol: ").startswith("protocol: ")
    jointly = len(case.make().hosts(of.roster)) == 1
    assert all((each == "joint") == jointly for each in ran.values())


@pytest.mark.parametrize("K", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", ["laser", "plug", "local"])
def test_any_number_of_parties(name, K):
    of = world(K=K, N=40, observed=worlds.all_patterns(40, K))
    assert_alike(both(method(name, embedding=5), of, epochs=2, optimizer=ADAM))


@pytest.mark.parametrize("encoder", [
    MLP(hidden=()), MLP(hidden=(6, 5), activation="gelu"), MLP(hidden=(7, 7), dropout=0.4),
    MLP(hidden=(7,), norm=True), MLP(hidden=(6, 4), dropout=0.2, norm=True), OwnEncoder,
])  # fmt: skip
def test_any_encoder(encoder):
    of = world(N=40)
    found = both(method("laser", embedding=5), of, epochs=2, encoder=encoder, optimizer=ADAM)
    assert_alike(found)
    assert found[1][3].ran == {"train": "joint"}


@pytest.mark.parametrize("name", ["laser", "standard", "local"])
@pytest.mark.parametrize("K", [2, 4])
def test_validation_is_the_same(name, K):
    """Scores are equal, and the messages that the protocol would have sent are counted."""
    of = world(K=K, N=40, observed=worlds.all_patterns(40, K))
    settings = {"epochs": 2, "optimizer": ADAM, "validation": torch.arange(28, 40)}
    assert_alike(both(method(name, embedding=5), of, **settings))
    scores = []
    for joint in (None, JointExecution(of.roster.names, of.roster.active, Ledger())):
        trained = worlds.train(method(name, embedding=5), of, joint=joint, **settings)
        scores += [[record["validation"] for record in trained[of.roster.active].history]]
    for one, other in zip(*scores, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6, nan_ok=True)


def test_parties_with_different_encoders_and_optimizers():
    """Their encoders are called one after the other, and each optimizer makes its own step."""
    of, made = world(N=40), method("laser", embedding=5)
    encoders = {"a": MLP(hidden=(4,)), "b": MLP(hidden=(6,), dropout=0.3), "c": OwnEncoder}
    optimizers = {"a": ADAM, "b": SGD, "c": Optimizer(name="adam", lr=0.002)}
    seat = type(of).seat
    patched = partial(lambda self, name, *_: seat(self, name, encoders[name], optimizers[name]), of)
    object.__setattr__(of, "seat", patched)
    assert_alike(both(made, of, epochs=2))


def test_a_users_rule():
    assert_alike(both(Split(rule=Maximum(), embedding=5), world(N=40), epochs=2, optimizer=ADAM))


class Total(Rule):
    """One head on the sum of the embeddings, which relies on zeros where they are not observed."""

    def losses(self, host, heads, h, observed, y, noise):
        return every_row(host.loss(heads(h.sum(dim=1, keepdim=True)).squeeze(1), y))

    def outputs(self, host, heads, h, observed):
        return heads(h.sum(dim=1, keepdim=True)), observed.any(dim=1, keepdim=True)


class WithoutWhere:
    """The module torch, in which ``where`` ignores its mask."""

    def __getattr__(self, name):
        return getattr(torch, name)

    @staticmethod
    def where(_, value, __):
        return value


@pytest.mark.filterwarnings("ignore:Total. the embedding of an absent party changes the losses")
@pytest.mark.parametrize("broken", ["x", "h"])
def test_unobserved_cells_do_not_matter(broken, monkeypatch):
    """Without either of the two masks, NaN in unobserved cells reach the weights."""
    made, results = Split(rule=Total(), embedding=5), []
    for garbage in (False, True):
        of = world(N=40, garbage=garbage)
        joint = JointExecution(of.roster.names, "a", Ledger())
        results.append(worlds.weights(worlds.states_of(worlds.train(made, of, joint=joint, optimizer=ADAM))))
    assert worlds.same_bits(*results)
    if broken == "x":  # cells of rows that the party does not have
        monkeypatch.setattr(joint_steps, "_whole", lambda rows: torch.full((rows.n, rows.block.x.shape[1]), torch.nan))
    else:
        monkeypatch.setattr(joint_steps, "torch", WithoutWhere())
    joint = JointExecution(of.roster.names, "a", Ledger())
    try:
        other = worlds.weights(worlds.states_of(worlds.train(made, of, joint=joint, optimizer=ADAM)))
    except Diverged:
        return
    assert not worlds.same_bits(results[0], other)


def test_a_party_without_rows_in_a_batch_makes_no_step():
    """Adam would move its weights by its momentum."""
    observed = torch.ones(16, 3, dtype=torch.bool)
    observed[8:, 2] = False
    of, made = world(N=16, observed=observed), method("laser", embedding=5)
    for encoder in (worlds.SMALL, OwnEncoder):
        states = worlds.begin(made, of, optimizer=ADAM, encoder=encoder)
        steps = made.joint(made.step, states, of.rows, uncounted)
        for number, rows in enumerate((torch.arange(8), torch.arange(8, 16))):
            before = worlds.weights(states)
            for batch in steps.batches([worlds.batch_of(rows, number)]):
                steps.step(batch)
            after = worlds.weights(states)
            moved = {name for name, tensor in after.items() if not torch.equal(before[name], tensor)}
            assert any(name.startswith("a/encoder") for name in moved)
            assert any(name.startswith("c/encoder") for name in moved) == (number == 0)


@pytest.mark.parametrize("name", ["laser", "plug"])
def test_a_batch_without_labels_moves_no_head(name):
    labeled = torch.arange(24) < 14
    of, made = world(labeled=labeled), method(name, embedding=5)
    states = worlds.begin(made, of, optimizer=ADAM)
    steps = made.joint(made.step, states, of.rows, uncounted)
    batches = [worlds.batch_of(torch.arange(14)), worlds.batch_of(torch.arange(14, 24), 1)]
    for batch in steps.batches(batches):
        before = worlds.weights(states)
        loss = steps.step(batch)
    assert loss is None
    after = worlds.weights(states)
    assert all(torch.equal(before[key], after[key]) for key in before if "heads" in key)
    assert any(not torch.equal(before[key], after[key]) for key in before if "encoder" in key)


@pytest.mark.parametrize("first", ["protocol", "joint"])
def test_a_run_is_resumed_in_the_other_execution(first, tmp_path):
    of, made = world(N=40), method("laser", embedding=5)

    def run(execution, epochs, folder, **more):
        joint = JointExecution(of.roster.names, "a", Ledger()) if execution == "joint" else None
        trained = worlds.train(made, of, joint=joint, optimizer=ADAM, folder=tmp_path / folder, epochs=6,
                               checkpoint_every=1, watch=worlds_stop(epochs), **more)  # fmt: skip
        return worlds.weights(worlds.states_of(trained))

    whole = run("protocol", 6, "whole")
    with pytest.raises(KeyError):
        run(first, 3, "run")
    other = {"protocol": "joint", "joint": "protocol"}[first]
    resumed = run(other, 6, "run", resume=True)
    for name, tensor in whole.items():
        assert torch.allclose(tensor.double(), resumed[name].double(), atol=2e-5), name


def worlds_stop(epochs):
    class Stops(worlds.Callback):
        def on_epoch_end(self, record):
            if record["epoch"] == epochs < 6:
                raise KeyError

    return Stops()


def test_joint_runs_are_the_same_bits_twice_and_after_a_resume(tmp_path):
    of, made = world(N=40), method("laser", embedding=5)
    encoder = MLP(hidden=(7, 6), dropout=0.3)

    def run(epochs, folder, **more):
        joint = JointExecution(of.roster.names, "a", Ledger())
        trained = worlds.train(made, of, joint=joint, optimizer=ADAM, encoder=encoder, folder=tmp_path / folder,
                               epochs=6, checkpoint_every=1, watch=worlds_stop(epochs), **more)  # fmt: skip
        return worlds.weights(worlds.states_of(trained))

    whole = run(6, "whole")
    assert worlds.same_bits(whole, run(6, "again"))
    with pytest.raises(KeyError):
        run(3, "run")
    assert worlds.same_bits(whole, run(6, "run", resume=True))


class Gated(MLP):
    """A subclass of the built-in perceptron, whose activation has a weight."""

    def __call__(self, inputs, outputs):
        return nn.Sequential(nn.Linear(inputs, 6), nn.PReLU(), nn.Linear(6, outputs))


def test_a_subclass_of_the_perceptron_trains_its_own_layers():
    found = both(method("laser", embedding=5), world(N=40), epochs=2, optimizer=ADAM, encoder=Gated())
    assert_alike(found)
    assert found[1][3].ran == {"train": "joint"}


@pytest.mark.parametrize("encoder", [worlds.SMALL, OwnEncoder])
def test_a_batch_of_pseudo_labels_without_any_sure_row(encoder):
    """Encoders make a step with a gradient of zero, as in the protocol."""
    of, everyone = world(N=40, labeled=torch.arange(40) < 6), torch.ones(40, dtype=torch.bool)
    made = method("laser", embedding=5, unlabelled="pseudo", sure=0.999)
    found = both(made, of, epochs=3, batch_size=4, optimizer=ADAM, encoder=encoder, training=everyone)
    assert_alike(found)
    assert found[1][3].ran == {"train": "joint", "pseudo": "joint"}


class Frozen(Split):
    """A method whose parties do not train, by a change of a part of the protocol."""

    def backward(self, state, h, own, received):
        super().backward(state, h, own, received)
        state.optimizers["encoder"].zero_grad()


class Wrapped(Split):
    """A method whose stage has another step."""

    def stages(self, seat):
        return tuple(replace(stage, step=self.other) for stage in super().stages(seat))

    async def other(self, net, state, rows, batch):
        return await self.step(net, state, rows, replace(batch, share=0.1))


@pytest.mark.parametrize(("kind", "part"), [(Frozen, "'backward'"), (Wrapped, "'step'")])
def test_a_method_that_changes_the_protocol_is_not_computed_jointly(kind, part):
    made, of = kind(rule=Maximum(), embedding=5), world(N=40)
    found = both(made, of, epochs=2)
    assert_alike(found, tolerance=0)
    assert found[1][3].ran == {"train": f"protocol: {kind.__name__} has its own {part}"}
    with pytest.raises(ConfigError, match="has its own"):
        worlds.train(made, of, joint=JointExecution(of.roster.names, "a", Ledger(), "joint"))


def test_parties_that_share_a_module_are_not_computed_jointly():
    of, made, shared = world(K=2), method("laser", embedding=5), nn.Linear(3, 5)
    joint = JointExecution(of.roster.names, "a", Ledger())
    worlds.train(made, of, encoder=lambda *_: shared, joint=joint)
    assert joint.ran == {"train": "protocol: parties share parameters"}


class OwnOptimizer(torch.optim.Optimizer):
    """An optimizer that counts its steps, and gives each parameter new memory, as many tutorials do."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.steps = 0

    def step(self):
        self.steps += 1
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.data = parameter.data - 0.1 / self.steps * parameter.grad


class FusedOptimizer(torch.optim.Adam):
    """A fused optimizer with an argument and a computation of its own."""

    def __init__(self, parameters, scale):
        super().__init__(parameters, lr=0.02, fused=True)
        self.scale = scale

    def step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None if parameter.grad is None else parameter.grad.sign() * self.scale
        super().step()


def hooked(parameters):
    """Return a fused optimizer that keeps weights small by a hook."""
    made = torch.optim.SGD(parameters, lr=0.1, fused=True)
    made.register_step_post_hook(lambda *_: [each.data.clamp_(-0.1, 0.1) for each in parameters])
    return made


@pytest.mark.parametrize("make", [OwnOptimizer, lambda parameters: FusedOptimizer(parameters, 0.5), hooked])
def test_a_users_optimizer(make):
    """The last party has few rows; its optimizer makes a step only in batches with such a row."""
    observed = torch.ones(40, 3, dtype=torch.bool)
    observed[5:, 2] = False
    of, encoder = world(N=40, observed=observed), MLP(hidden=(7, 6))
    optimizer = CustomOptimizer(make=make)
    found = both(method("laser", embedding=5), of, epochs=3, batch_size=4, encoder=encoder, optimizer=optimizer)
    assert_alike(found)
    assert found[1][3].ran == {"train": "joint"}


def test_trained_parameters_hold_no_weights_of_other_parties():
    """A file that torch.save writes holds the whole memory of which a tensor is a part."""
    of = world(K=3)
    joint = JointExecution(of.roster.names, "a", Ledger())
    trained = worlds.train(method("laser", embedding=5), of, joint=joint, encoder=MLP(hidden=(7, 6)))
    for party in trained.values():
        for parameter in party.state.modules["encoder"].parameters():
            assert parameter.untyped_storage().nbytes() == parameter.numel() * parameter.element_size()


def test_random_numbers_are_drawn_for_few_batches_at_once(monkeypatch):
    """The numbers of all rows of an epoch would need K K numbers for each row."""
    monkeypatch.setattr(joint_steps, "MOST_DRAWN", 8 * 3 * 3)
    drawn, draw = [], joint_steps.draw_noise
    monkeypatch.setattr(joint_steps, "draw_noise", lambda *given: drawn.append(given) or draw(*given))
    of, made = world(N=24), method("laser", embedding=5)
    batches = made.joint(made.step, worlds.begin(made, of), of.rows, uncounted).batches(
        [worlds.batch_of(rows, number) for number, rows in enumerate(torch.arange(24).split(8))]
    )
    for number, _ in enumerate(batches, 1):
        assert len(drawn) == number


class TestSettings:
    def run(self, folder=None, name="laser", **settings):
        federation = Federation.from_tables(tables(), id="id", label="bad")
        return federation.train(name, epochs=2, folder=folder, **settings)

    @pytest.mark.parametrize(("execution", "ran"), [
        ("auto", {"train": "joint"}), ("joint", {"train": "joint"}), ("protocol", {"all": "protocol"}),
    ])  # fmt: skip
    def test_the_record_states_the_execution(self, execution, ran, tmp_path):
        self.run(tmp_path / "run", execution=execution)
        assert RunRecord.read(tmp_path / "run" / "record.json").execution == ran

    def test_a_method_without_a_joint_form_trains_by_messages(self, tmp_path):
        self.run(tmp_path / "run", "apc")
        ran = RunRecord.read(tmp_path / "run" / "record.json").execution
        assert {each.partition(":")[0] for each in ran.values()} == {"local", "protocol"}
        with pytest.raises(ConfigError, match=r"execution = 'joint': stage '.*' cannot be computed jointly, because"):
            self.run(tmp_path / "other", "apc", execution="joint")

    @pytest.mark.parametrize(("first", "then", "ran"), [
        ("joint", "joint", {"train": "joint"}), ("joint", "protocol", {"train": "joint", "all": "protocol"}),
        ("protocol", "joint", {"train": "joint", "all": "protocol"}),
    ])  # fmt: skip
    def test_the_record_of_a_resumed_run_names_both_executions(self, first, then, ran, tmp_path):
        class Stops(worlds.Callback):
            def on_epoch_end(self, record):
                raise KeyError

        with pytest.raises(KeyError):
            self.run(tmp_path / "run", execution=first, checkpoint_every=1, watch=Stops())
        for _ in range(2):  # the second call finds a run that has ended, and trains nothing
            self.run(tmp_path / "run", execution=then, checkpoint_every=1, resume=True)
            assert RunRecord.read(tmp_path / "run" / "record.json").execution == ran

    def test_what_diverges_is_named_as_in_the_protocol(self):
        wild = Optimizer(name="sgd", lr=1e30)
        said = r"at stage 'train', epoch \d+, batch \d+: lower .*learning rate"
        with pytest.raises(Diverged, match=said):
            self.run(execution="joint", optimizer=wild, batch_size=8)


def test_frozen_and_own_encoders_are_not_stacked():
    of, made = world(), method("laser", embedding=5)
    states = list(worlds.begin(made, of).values())
    assert StackedEncoders.of(states) is not None
    states[1].modules["encoder"][0].weight.requires_grad_(False)
    assert StackedEncoders.of(states) is None
    for encoder in (nn.Linear, Gated()):
        assert StackedEncoders.of(list(worlds.begin(made, of, encoder=encoder).values())) is None
