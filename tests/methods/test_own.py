"""The method of docs/how-to/your-method.md passes the checks of every method; errors in user methods are reported."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.core.seeds import Seeds
from anyparty.errors import ConfigError
from anyparty.methods.method import Batch
from anyparty.methods.method_registry import method
from anyparty.methods.schedules.flex import Flex
from anyparty.methods.schedules.scheduled import Scheduled
from anyparty.methods.split.rule import every_row
from anyparty.methods.split.split_method import Split
from tests.methods.cases import Case
from tests.methods.checks import CHECKS
from tests.worlds import loss_of, predict, train, world

Maximum = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "your_own_method.py"))["Maximum"]
BY_NAME = {"refuses bad parameters", "gradients equal the joint reference"}
OWN = Case(title="maximum", of="maximum", own=lambda: Split(rule=Maximum(), embedding=5))


@pytest.mark.parametrize("check", sorted(CHECKS.keys() - BY_NAME))
def test_the_examples_method(check, tmp_path):
    CHECKS[check](OWN, tmp_path)


class Drawn(Maximum):
    """Answers depend on a number that is not in any network."""

    def __init__(self):
        self.by = 1 + torch.rand(1)

    def outputs(self, host, heads, h, observed):
        answered, valid = super().outputs(host, heads, h, observed)
        return answered * self.by, valid


def test_what_no_network_holds_is_found(tmp_path):
    with pytest.raises(AssertionError):
        CHECKS["a model is its networks"](replace(OWN, own=lambda: Split(rule=Drawn(), embedding=5)), tmp_path)


def test_its_loss_is_where_its_embeddings_are():
    """On a GPU, the loss must not mix its tensors with those on the CPU."""
    made = Split(rule=Maximum(), embedding=5)
    of = world()
    state = made.begin(of.seat("a"), Seeds(0))
    state.modules["heads"].to("meta")
    h, observed = torch.zeros(4, 3, 5, device="meta"), torch.ones(4, 3, dtype=torch.bool, device="meta")
    y = torch.zeros(4, dtype=torch.int64, device="meta")
    host = replace(made.host(of.seat("a")), everyone=torch.empty(0), owners=torch.empty(0))
    noise = {"stays": torch.rand(4, 3, device="meta")}
    each, counts = made.rule.losses(host, state.modules["heads"], h, observed, y, noise)
    assert each.device.type == counts.device.type == "meta"


class Flat(Maximum):
    def outputs(self, host, heads, h, observed):
        answered, valid = super().outputs(host, heads, h, observed)
        return answered.squeeze(1), valid


class Whole(Maximum):
    def losses(self, host, heads, h, observed, y, noise):
        return h.sum(dim=(1, 2)).mean()


def slip(name, answer):
    """Replace one function of the method."""
    return Split(rule=type("Slip", (Maximum,), {name: answer})())


def planned(**changes):
    """Change the plan of the method."""
    return slip("plan", lambda self, *given: replace(Maximum.plan(self, *given), **changes))


def wrong(_, host, heads, h, observed, y, noise):
    """Compute a loss with heads on all embeddings side by side, although the plan states the width of one."""
    return every_row(host.loss(heads(h.flatten(1).unsqueeze(1)).squeeze(1), y))


class Twice(nn.Module):
    def forward(self, u):
        return u, u


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (Maximum(), r"Maximum\(\) is a rule of a split method: give Split\(rule=...\)"),
        (Split(rule=Flat()), r"Flat: expected outputs \[B, M, C\] and their validity \[B, M\], got \["),
        (Split(rule=Whole()), r"Whole: expected two tensors from losses, .*, got \[\] of torch.float32: take no mean"),
        (planned(inputs=65),
         r"expected inputs \[B, 1, 65\], .* declares 1 head with inputs of width 65; .* \[.*, 1, 64\]"),
        (planned(heads=3), r"expected inputs \[B, 3, 64\], .* 3 heads with .* pass \[.*, 1, 64\]"),
        (slip("losses", wrong), r"expected inputs \[B, 1, 64\], .*; its loss or outputs pass \[.*, 1, 128\]: make the"),
        (slip("losses", lambda *given: every_row(given[2].products(given[3][..., 1:]).mean((1, 2, 3)))),
         r"expected inputs \[B, F, 64\], .* pass \[.*, 2, 63\]"),
        (replace(planned(inputs=65), make_head=nn.Linear), r"expected inputs \[B, 1, 65\]"),
        (slip("plan", lambda *_: 64), r"Slip: expected a HeadPlan from plan, got a int"),
        (planned(heads=0), r"Slip: expected heads of the plan to be a whole number of at least 1, got 0"),
        (planned(inputs=2.5), r"Slip: expected inputs of the plan to be a whole number of at least 1, got 2.5"),
        (planned(encoders=0), "Slip: expected encoders of the plan to be .* of at least 1, got 0"),
        (planned(trains_on=lambda observed: observed),
         r"expected trains_on to return true or false for each row, bool \[(\d+)\], got \[\1, 2\] of torch.bool"),
        (planned(trains_on=lambda observed: observed.any(dim=0)), r"trains_on .*, got \[2\] of torch.bool"),
        (planned(trains_on=lambda observed: observed.sum(dim=1)), r"trains_on .* of torch.int64"),
        (planned(trains_on=lambda _: True), "Slip: expected trains_on to return true or false .*, got a bool"),
        (slip("losses", lambda *given: every_row(Maximum.losses(*given)[0][:, 0].detach())),
         "Slip: the loss of a batch has no gradient"),
        (slip("losses", lambda *given: Maximum.losses(*given)[0].sum().item()), "two tensors from losses, .* a float"),
        (slip("losses", lambda *given: (Maximum.losses(*given)[0], given[4][:, :1].float())),
         r"Slip: expected losses to be floating-point numbers and counts to be bool \[.*, 1\], got .* torch.float32"),
        (method("laser", make_head=lambda inputs, outputs: nn.Linear(inputs, outputs + 1)),
         r"make_head: for .* rows a head of yours answered \[.*, 3\], expected \[.*, 2\]"),
        (method("laser", make_head=nn.Linear(32, 2)), r"make_head should be a function of \(inputs, outputs\)"),
        (method("laser", make_head=lambda inputs: nn.Linear(inputs, 2)),
         r"make_head: no head can be made of \(inputs, outputs\) = \(64, 2\): .* takes 1 positional argument"),
        (method("plug", make_head=lambda *_: "head"), "make_head must make a torch.nn.Module, got str"),
        (method("plug", make_head=lambda *_: Twice()), "a head of yours should give a tensor, it gives a tuple"),
    ],
)  # fmt: skip
def test_slips(made, said, work):
    tables = {name: work / f"{name}.csv" for name in ("bank", "shop")}
    with pytest.raises(ConfigError, match=said):
        Federation.from_tables(tables, label="default", id="customer").train(made, epochs=1)


def test_a_schedule_given_in_python_needs_nothing_to_be_loaded(work, tmp_path):
    tables = {name: work / f"{name}.csv" for name in ("bank", "shop")}
    given = Scheduled(split=method("laser"), schedule=Flex())
    model = Federation.from_tables(tables, label="default", id="customer").train(given, epochs=1)
    model.save(tmp_path / "model")
    assert Model.load(tmp_path / "model").predict(tables).frame().equals(model.predict(tables).frame())


@pytest.mark.parametrize("name", ["local", "laser", "combinatorial"])
@pytest.mark.parametrize("parameters", [{}, {"tasks": "all"}])
def test_heads_of_a_users_own_learn_from_rows_that_are_there_alone(name, parameters):
    """Rows that a party lacks, and sets of parties that a row does not have, do not affect batch statistics."""
    if parameters and name != "laser":
        return
    made = method(name, embedding=5, make_head=lambda i, o: nn.Sequential(nn.BatchNorm1d(i), nn.Linear(i, o)),
                  **parameters)  # fmt: skip
    of = world()
    state = made.begin(of.seat("a"), Seeds(0))
    heads, seen = state.modules["heads"], []
    for module in heads.each:
        module.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    observed = torch.tensor([[1, 0, 0]] * 6 + [[1, 1, 0]] * 3 + [[0, 0, 1]] * 2, dtype=torch.bool)
    encoders = made.plan(of.roster).encoders
    width = (encoders,) if encoders > 1 else ()
    h = torch.randn(11, 3, *width, 5)
    batch = Batch(torch.arange(11), Seeds(0))
    loss_of(made, of, "a", heads, h, batch, observed, torch.zeros(11, dtype=torch.int64))
    # a: 9 rows alone and 3 with b; b: 3 and 3; c: 2.  Combinatorial orders its subsets a, b, ab, c.
    assert seen == {"local": [9, 3, 2], "laser": [12, 6, 2], "combinatorial": [9, 3, 3, 2]}[name]


@pytest.mark.parametrize("name", ["laser", "combinatorial", "plug"])
def test_a_head_that_writes_into_what_it_is_given_is_no_other_heads_input(name):
    """Heads with and without in-place operations train the same weights, and give the same answers."""
    of = world()

    def answers(inplace):
        def head(inputs, outputs):
            return nn.Sequential(nn.LeakyReLU(0.1, inplace=inplace), nn.Linear(inputs, outputs))

        made = method(name, embedding=5, make_head=head, **({"dropout": 0.0} if name == "plug" else {}))
        trained = train(made, of, epochs=2)
        return predict(made, of, {party: each.state for party, each in trained.items()}).scores

    assert torch.equal(answers(inplace=True), answers(inplace=False))


@pytest.mark.parametrize("name", ["embedding", "samples", "floor"])
def test_a_truth_value_is_no_number(name):
    with pytest.raises(ConfigError, match=f"method 'false-vfl-1': {name}: expected a (whole )?number, got True"):
        method("false-vfl-1", **{name: True})
    assert method("false-vfl-1", train_encoders=False)


def test_numbers_of_numpy_are_kept_as_python_s():
    given = {
        "n_estimators": np.int64(5),
        "max_depth": None,
        "ccp_alpha": np.float64(0.5),
        "class_weight": {0: np.int8(2)},
    }
    made = method("apc", embedding=np.int64(8), classifier="RandomForestClassifier", classifier_settings=given)
    assert made.classifier_settings == given
    assert json.loads(json.dumps(made.classifier_settings))["class_weight"] == {"0": 2}
    assert type(made.embedding) is int


@pytest.mark.parametrize("value", [len, object(), {1, 2}])
def test_what_no_saved_model_can_hold_is_refused_before_training(value):
    with pytest.raises(ConfigError, match=r"classifier_settings: a saved model cannot store max_features = "):
        method("apc", classifier_settings={"max_features": value})
