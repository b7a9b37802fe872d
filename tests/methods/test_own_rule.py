"""An error describes a user's rule that is incomplete, has weights, or returns wrong shapes."""

import json
import runpy
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from anyparty.api.federation import Federation
from anyparty.core.predictions import NO_NUMBER
from anyparty.core.seeds import Seeds
from anyparty.core.types import Capabilities, MessageSpec
from anyparty.errors import AnypartyWarning, ConfigError, Diverged
from anyparty.methods.method_registry import method, settings_of
from anyparty.methods.split.laser import Laser
from anyparty.methods.split.rule import EMBEDDING, GRADIENT, Rule, RuleAnswer
from anyparty.methods.split.split_method import Split
from tests.worlds import Table, predict, states_of, train, weights, world

Maximum = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "your_own_method.py"))["Maximum"]
CAN = {"title": "Mine", "paper": "none", "trains_on": "all", "predicts_for": "all", "needs": "any"}
MESSAGES = (EMBEDDING, GRADIENT)


def rule(**changed):
    """Replace some parts of Maximum."""
    return type("Mine", (Maximum,), {"can": Maximum().can} | changed)()


class Query(Maximum, nn.Module):
    """A rule with its own layer that weighs the parties."""

    def __init__(self):
        nn.Module.__init__(self)
        self.q = nn.Linear(16, 1)


@dataclass(frozen=True, kw_only=True)
class Gates(Maximum):
    gates: dict = field(default_factory=dict)
    sharp: float = 1.0


class TestWeights:
    """Weights that would not be trained or saved are rejected; fixed values are accepted."""

    @pytest.mark.parametrize(
        ("made", "named"),
        [
            (Query, "the rule Query is a network with its own weights"),
            (
                lambda: rule(q=nn.Linear(4, 1)),
                "the rule Mine holds weights, 'q', which would be neither trained nor saved",
            ),
            (lambda: Gates(gates={"a": nn.Parameter(torch.ones(3))}), "the rule Gates holds weights, 'gates'"),
            (type("Own", (Laser,), {"q": nn.Linear(4, 1)}), "the rule Own holds weights, 'q'"),
            (lambda: rule(each=[nn.Linear(4, 1)] * 2), "holds weights, 'each'"),
            (lambda: rule(scale=torch.ones(3, requires_grad=True)), "holds weights, 'scale'"),
            (lambda: rule(norm=nn.BatchNorm1d(3, affine=False)), "holds weights, 'norm'"),
        ],
    )
    def test_refused(self, made, named):
        with pytest.raises(ConfigError, match=f"{named}.*Weights belong to the head: .*make_head"):
            Split(rule=made(), embedding=16)

    def test_made_in_the_first_batch(self):
        def losses(self, *given):
            object.__setattr__(self, "late", nn.Linear(5, 1))
            return Maximum.losses(self, *given)

        made = Split(rule=rule(losses=losses), embedding=5)
        with pytest.raises(ConfigError, match="the rule Mine holds weights, 'late'"):
            train(made, world())

    @pytest.mark.parametrize("held", [nn.Tanh(), torch.ones(3), [nn.ReLU()], {"t": torch.ones(2)}, np.ones(2), None])
    def test_what_is_fixed_is_taken(self, held):
        assert Split(rule=rule(held=held)).can.title == "Maximum"


class TestWhole:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (Maximum, r"Split: expected a rule, got its class Maximum: make one, Maximum\(\)"),
            (
                None,
                r"Split: expected a rule, an object of a class that inherits from Rule, got None; .* method\('laser'\)",
            ),
            ("laser", "Split: expected a rule, .* got 'laser'"),
            (rule(can=lambda _: Maximum().can), "Split: can of the rule Mine is a function: write @property above it"),
            (
                rule(can={"title": "Mine"}),
                "Split: can of the rule Mine should be Capabilities, .*, got {'title': 'Mine'}",
            ),
        ],
    )
    def test_another_kind(self, given, said):
        with pytest.raises(ConfigError, match=said):
            Split(rule=given)

    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            ({"cann": property(lambda _: Maximum().can)}, "can"),
            ({"Can": Maximum().can}, "can"),
            ({"capabilities": Capabilities(**CAN, messages=MESSAGES)}, "can"),
            ({"plans": lambda *_: None}, "plan"),
            ({"anwser": lambda *_: None}, "answer"),
        ],
    )
    def test_a_misspelt_name_is_refused(self, given, meant):
        (name,) = given
        made = type("Mine", (Rule,), {"losses": Maximum.losses, "outputs": Maximum.outputs, **given})()
        with pytest.raises(ConfigError, match=f"the rule Mine defines '{name}', which nothing reads.* '{meant}'. A "
                                              "rule may define can, plan, losses, outputs, answer"):  # fmt: skip
            Split(rule=made)

    def test_names_of_helpers_are_accepted(self):
        own = {"penalty": lambda *_: None, "outputs_of_mine": lambda *_: None, "scale": 3.0, "_cann": property(str)}
        made = type("Mine", (Rule,), {"losses": Maximum.losses, "outputs": Maximum.outputs, **own})()
        assert Split(rule=made).can.title == "Mine"

    @pytest.mark.parametrize(("name", "now"), [("loss", "losses"), ("reads", "plan"), ("support", "answer")])
    def test_the_contract_of_version_0_1_is_refused(self, name, now):
        with pytest.raises(ConfigError, match=f"defines '{name}', .* version 0.1; '{now}' has .* losses.host"):
            Split(rule=rule(**{name: lambda *_: None}))

    def test_a_parameter_may_be_called_like_a_former_function(self):
        @dataclass(frozen=True, kw_only=True)
        class Parameters(Maximum):
            hidden: tuple[int, ...] = (3,)

        assert Split(rule=Parameters()).can.title == "Parameters"

    def test_what_a_rule_must_have_is_named(self):
        with pytest.raises(TypeError, match="abstract methods losses, outputs"):
            type("Mine", (Rule,), {})()

    def test_a_misspelt_capability_lists_the_known_ones(self):
        made = rule(can=property(lambda _: Capabilities(**CAN, messages=MESSAGES, unlabeled=True)))
        said = r"can of the rule Mine fails: .*'unlabeled'; Capabilities takes title, paper, .*, unlabelled, "
        with pytest.raises(ConfigError, match=said):
            Split(rule=made)

    @pytest.mark.parametrize("given", [Split, Maximum])
    def test_a_class_is_no_method(self, given, work):
        with pytest.raises(
            ConfigError, match=rf"got the class {given.__name__}: make one, as with Split\(rule=\.\.\.\)"
        ):
            federation(work).train(given, epochs=1)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"embedding": "wide"}, "method: embedding: expected a whole number, got 'wide'"),
            ({"embedding": 16.5}, "method: embedding: .*, got 16.5"),
            ({"embedding": None}, "method: embedding: .*, got None"),
            ({"embedding": True}, "method: embedding: expected a whole number, got True"),
            ({"head_hidden": 8}, "method: head_hidden: expected a list, got 8"),
            ({"head_hidden": ("a",)}, r"method: head_hidden\[0\]: expected a whole number"),
            ({"head_hidden": (0,)}, "widths must be at least 1, got embedding 64, head_hidden"),
        ],
    )
    def test_parameters_are_checked_as_by_name(self, given, said):
        with pytest.raises(ConfigError, match=said):
            Split(rule=Maximum(), **given)

    def test_parameters_are_taken_as_by_name(self):
        laser = method("laser").rule
        made = Split(rule=laser, embedding=16.0, head_hidden=[np.int64(4)])
        assert made == method("laser", embedding=16, head_hidden=(4,))
        assert json.dumps(settings_of(made)) == '{"name": "laser", "embedding": 16, "head_hidden": [4]}'
        assert Split(rule=laser, embedding="16").embedding == 16


class TestCapabilities:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"needs": "anybody"}, "Mine: needs is 'all' or 'any', not 'anybody'"),
            ({"needs": "All"}, "Mine: needs is 'all' or 'any', not 'All'"),
            ({"trains_with": "every"}, "Mine: trains_with is 'all' or 'any', not 'every'"),
            (
                {"messages": EMBEDDING},
                r"Mine: messages is one declaration, of 'embedding'; .* has a comma, \(MESSAGE,\)",
            ),
            (
                {"messages": ("embedding",)},
                r"Mine: expected messages to be a tuple of MessageSpec, got \('embedding',\)",
            ),
            ({"messages": None}, "Mine: expected messages to be a tuple of MessageSpec, got None"),
        ],
    )
    def test_words(self, given, said):
        with pytest.raises(ConfigError, match=said):
            Capabilities(**{**CAN, "messages": MESSAGES, **given})

    @pytest.mark.parametrize("end", ["frm", "to"])
    def test_roles(self, end):
        given = {"tag": "h", "frm": "block", "to": "host", "holds": "h", "learns": "h", end: "server"}
        with pytest.raises(ConfigError, match=f"message 'h': {end} is 'block', 'host', .* or 'any', not 'server'"):
            MessageSpec(**given)


def federation(work):
    tables = {name: work / f"{name}.csv" for name in ("bank", "shop")}
    return Federation.from_tables(tables, label="default", id="customer")


def outputs(change):
    return {"outputs": lambda self, *given: change(*Maximum.outputs(self, *given))}


def plan(**changes):
    return {"plan": lambda self, *given: replace(Maximum.plan(self, *given), **changes)}


def answer(**changed):
    def given_to(_, given):
        said = {"scores": given.answers[:, 0], "answered": given.valid[:, 0], "took_part": given.observed}
        return RuleAnswer(**said | {name: change(given) for name, change in changed.items()})

    return {"answer": given_to}


TWO = r"Maximum: expected two tensors from outputs, the heads' answers \[B, M, C\] and for which rows .*, got "
FORM = r"Maximum: expected outputs \[B, M, C\] and their validity \[B, M\], got "
KIND = "Maximum: expected outputs to be floating-point numbers and their validity to be boolean, got "


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (outputs(lambda made, _: made), rf"{TWO}\[\d+, 1, 2\] of torch.float32"),
        (outputs(lambda *_: None), f"{TWO}None"),
        (outputs(lambda made, valid: (made, valid, valid)), rf"{TWO}a tuple of (\[.*\] of .*){{3}}"),
        (outputs(lambda made, valid: (made, valid[:, 0])), rf"{FORM}\[(\d+), 1, 2\] and \[\1\] for B = \1 rows and C"),
        (outputs(lambda made, valid: (made[..., :1], valid)), rf"{FORM}\[.*, 1, 1\] and .* C = 2"),
        (outputs(lambda made, valid: (made[1:], valid[1:])), rf"{FORM}\["),
        (outputs(lambda made, valid: (made, valid.float())), f"{KIND}torch.float32 and torch.float32"),
        (outputs(lambda made, valid: (made.long(), valid)), f"{KIND}torch.int64 and torch.bool"),
        ({"answer": lambda _, given: given.answers[:, 0]}, r"expected a RuleAnswer from answer, .*, got \[\d+, 2\]"),
        ({"answer": lambda *_: None}, "Maximum: expected a RuleAnswer from answer, .*, got None"),
        (answer(scores=lambda given: given.answers),
         r"Maximum: expected scores of the RuleAnswer to be numbers, \[(\d+), 2\], got \[\1, 1, 2\] of torch.float32"),
        (answer(answered=lambda given: given.valid), r"answered of .* to be true or false, \[(\d+)\], got \[\1, 1\]"),
        (answer(answered=lambda given: given.valid[:, 0].float()), r"answered of .*, got \[.*\] of torch.float32"),
        (answer(took_part=lambda given: given.observed[:, :1]), r"took_part of .*, \[(\d+), 2\], got \[\1, 1\]"),
        (answer(by_party=lambda given: given.answers), r"by_party of .* numbers, \[(\d+), 2, 2\], got \[\1, 1, 2\]"),
        (answer(scores=lambda _: 0.5), "scores of the RuleAnswer to be numbers, .* got a float"),
        (plan(owners=1), "Maximum: expected owners of the plan to be None, .*, whole numbers from 0 to 1, got 1"),
        (plan(owners=("bank",)), r"expected owners .*, got \('bank',\)"),
        (plan(owners=(0, 2)), r"expected owners .*, got \(0, 2\)"),
        (plan(owners=()), r"expected owners .* at least one party .* got \(\)"),
        (plan(reads=(0, 1, 2)), r"Maximum: expected reads .* numbers from 0 to 1, got \(0, 1, 2\)"),
        (plan(reads=("bank", "shop")), r"expected reads .*, got \('bank', 'shop'\)"),
        (plan(reads="owner"), "Maximum: reads = 'owner' needs heads with owners"),
        (plan(reads=()), r"expected reads .* at least one party .* got \(\)"),
        ({**plan(reads=(0,)), "can": Capabilities(**{**CAN, "needs": "all"}, messages=MESSAGES)},
         "Mine needs all parties, and its reads leaves out 'shop'"),
        ({"losses": lambda self, host, heads, h, observed, y, noise:
          Maximum.losses(self, host, heads, h, observed, y[:, None], noise)},
         r"losses: expected outputs \[(\d+), 1, 2\] for labels \[\1, 1\], got \[\1, 2\]"),
    ],
)  # fmt: skip
def test_forms(changed, said, work):
    with pytest.raises(ConfigError, match=said):
        federation(work).train(Split(rule=rule(**changed)), epochs=1)


@pytest.mark.parametrize("given", [range(2), [0, 1], np.arange(2), torch.arange(2), (k for k in range(2))])
def test_parties_are_any_whole_numbers(given):
    given = tuple(given)
    made = Split(rule=rule(**plan(reads=given, owners=list(given))))
    topology = made.topology(world(K=2).roster)
    assert topology.hosts == {"a": (0, 1)}
    assert topology.readers["b"] == ("a",)


class TestNobodyReads:
    """A party that no host reads sends nothing, learns nothing, and is not used in answers."""

    made = Split(rule=rule(**plan(reads=(0, 2))), embedding=5)

    def test_it_sends_nothing_and_learns_nothing(self):
        of, at = world(), Table()
        before = weights({"b": self.made.begin(of.seat("b"), Seeds(0))})
        trained = states_of(train(self.made, of, at=at))
        assert all(torch.equal(before[name], tensor) for name, tensor in weights({"b": trained["b"]}).items())
        answered = predict(self.made, of, trained, at=at)
        assert {(sender, tag) for sender, _, tag, _ in at.notes if tag == "embedding"} == {("c", "embedding")}
        assert not any("b" in (sender, to) and tag == "gradient" for sender, to, tag, _ in at.notes)
        assert not answered.took_part[:, 1].any()
        alone = of.observed[:, 1] & ~of.observed[:, 0] & ~of.observed[:, 2]
        assert alone.any()
        assert {answered.reasons[n] for n in alone.nonzero().squeeze(1).tolist()} == {
            "no head reads the embedding of a party that has this row"
        }
        assert answered.answered[of.observed[:, 0] | of.observed[:, 2]].all()

    def test_the_active_party_may_be_it(self):
        of, at = world(), Table()
        made = Split(rule=rule(**plan(reads=(1, 2))), embedding=5)
        answered = predict(made, of, states_of(train(made, of, at=at)), at=at)
        assert not answered.took_part[:, 0].any()
        assert {sender for sender, _, tag, _ in at.notes if tag == "embedding"} == {"b", "c"}

    def test_the_others_train_as_if_it_were_not_there(self):
        """The weights are the same to the last bit: rows that only it has are not used."""
        whole, of = Split(rule=Maximum(), embedding=5), world()
        lacks = of.observed.clone()
        lacks[:, 1] = False
        drawn = dict(zip("abc", of.x.values(), strict=True))
        other = world(observed=lacks)
        assert all(torch.equal(drawn[name], other.x[name]) for name in drawn)
        there = lacks.any(dim=1)
        one = weights(states_of(train(self.made, of, training=there)))
        two = weights(states_of(train(whole, other, training=there)))
        assert all(torch.equal(one[name], two[name]) for name in one if not name.startswith("b/"))

    def test_it_is_said(self, work, tmp_path):
        made = Split(rule=rule(**plan(reads=(0,))))
        federation(work).train(made, epochs=1, folder=tmp_path / "run")
        assert (
            "no head reads the embeddings of 'shop', which therefore sends nothing"
            in (tmp_path / "run/record.json").read_text()
        )

    def test_schedules_need_everybody_to_be_read(self, work):
        made = Split(rule=rule(**plan(reads=(0,))))
        with pytest.raises(ConfigError, match=r"schedule: .* no head of Maximum reads those of 'shop': name them in"):
            federation(work).train(made, epochs=1, schedule="flex", clock={"latency": 1.0, "timeout": 5.0})


class TestNoNumbers:
    """Networks may give no numbers in prediction, although the loss is a number."""

    broken = Split(rule=rule(**outputs(lambda made, valid: (made * torch.nan, valid))), embedding=5)

    def test_rows_say_why(self):
        of = world()
        answered = predict(self.broken, of, states_of(train(self.broken, of)))
        there = of.observed.any(dim=1)
        assert not answered.answered.any()
        assert not answered.took_part.any()
        assert {n: why for n, why in answered.reasons.items() if there[n]} == dict.fromkeys(
            there.nonzero().squeeze(1).tolist(), NO_NUMBER
        )

    @pytest.mark.parametrize("name", ["local", "laser"])
    def test_of_heads_that_ship(self, name):
        made, of = method(name, embedding=5), world()
        states = states_of(train(made, of))
        for weight in states["a"].modules["heads"].parameters():
            weight.data[0] = torch.nan  # a's own
        answered = predict(made, of, states)
        alone = of.observed[:, 0] & ~of.observed[:, 1:].any(dim=1)
        assert {answered.reasons[n] for n in alone.nonzero().squeeze(1).tolist()} == {NO_NUMBER}

    def test_validation_stops_the_run(self, work):
        with pytest.raises(
            Diverged, match="Maximum: in stage 'train' the loss is a number, but every answer for a validation"
        ):
            federation(work).train(self.broken, epochs=3)

    def test_some_are_told_of(self, work):
        def some(made, valid):
            return torch.where(torch.arange(len(made)).view(-1, 1, 1) % 4 == 0, torch.nan, made), valid

        made = Split(rule=rule(**outputs(some)), embedding=5)
        with pytest.warns(AnypartyWarning, match="stage 'train': the networks gave no number for some validation rows"):
            model = federation(work).train(made, epochs=1)
        assert set(model.predict().frame()["reason"].drop_nulls()) == {NO_NUMBER}
