"""All rules of the project and its examples pass ``check_method``, which tries them with the parties they accept."""

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from anyparty.errors import ConfigError
from anyparty.methods.method_registry import method
from anyparty.methods.split.combinatorial import Combinatorial
from anyparty.methods.split.laser import Laser
from anyparty.methods.split.local import Ensemble, Local
from anyparty.methods.split.module_method import module_method
from anyparty.methods.split.plug import Plug
from anyparty.methods.split.rule import HeadPlan, Rule, every_row, mean_over
from anyparty.methods.split.split_method import Split
from anyparty.methods.split.standard import Standard
from anyparty.methods.split.sum import Sum
from anyparty.testing import check_method

EXAMPLES = Path(__file__).parents[2] / "examples"
Maximum = runpy.run_path(str(EXAMPLES / "your_own_method.py"))["Maximum"]
attention = runpy.run_path(str(EXAMPLES / "attention.py"))["attention"]
RULES = [
    Local(), Ensemble(), Ensemble(vote="soft"), Standard(), Standard(absent="zeros"), Combinatorial(), Plug(),
    Plug(dropout=0.0), Laser(normalize=False), Laser(heads="one"), Laser(tasks="all"),
    Laser(heads="one", tasks="all", normalize=False), Sum(), Sum(keep=0.2), Maximum(),
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_rules_of_the_project_pass(rule):
    check_method(rule)


def test_cases_that_a_method_refuses_are_left_out():
    """A server without columns cannot have Laser's head, and a rule may need two parties."""
    check_method(Laser(heads="active"))
    check_method(TwoParties())
    with pytest.raises(ConfigError, match="trains_on of the plan selects no row of any set of 1 party: return a mask"):
        check_method(TwoParties(), parties=(1,))


def test_methods_with_heads_of_a_user_pass():
    check_method(method("laser", embedding=4, make_head=lambda i, o: nn.Sequential(nn.BatchNorm1d(i), nn.Linear(i, o))))
    check_method(method("laser", embedding=4, make_head=zero_head))
    check_method(module_method(MeanModule, embedding=4, drop=0.3))
    check_method(attention)


def test_the_split_method_inside_another_method_is_checked():
    check_method(method("laser", embedding=4, pretrain="simsiam"), parties=(2,))
    with pytest.raises(ConfigError, match=r"expected a rule or a split method, such as .*, got Apc"):
        check_method(method("apc"))
    with pytest.raises(ConfigError, match="got its class Laser: make one"):
        check_method(Laser)


def zero_head(inputs, outputs):
    """A head that begins with weights of zero, and passes on no gradient in the first step."""
    head = nn.Linear(inputs, outputs)
    nn.init.zeros_(head.weight)
    return head


class MeanModule(nn.Module):
    def __init__(self, K, H, C):
        super().__init__()
        self.out = nn.Linear(H, C)

    def forward(self, h, observed):
        total = torch.where(observed.unsqueeze(2), h, 0.0).sum(dim=1)
        return self.out(total / observed.sum(dim=1, keepdim=True).clamp(min=1))


class Mean(Rule):
    """A rule without a fault: one head on the mean."""

    def losses(self, host, heads, h, observed, y, noise):
        return every_row(host.loss(self.outputs(host, heads, h, observed)[0].squeeze(1), y))

    def outputs(self, host, heads, h, observed):
        return heads(mean_over(h, observed).unsqueeze(1)), observed.any(dim=1, keepdim=True)


class TwoParties(Mean):
    """Trains on rows that at least two parties have, so that there is nothing to check with one party."""

    def plan(self, roster, task, width):
        return HeadPlan(inputs=width, trains_on=lambda observed: observed.sum(dim=1) >= 2)


class InPlace(Mean):
    """Clamps the labels of the batch, which other parts of the step may read too."""

    def losses(self, host, heads, h, observed, y, noise):
        return super().losses(host, heads, h, observed, y.clamp_(max=1), noise)


def test_a_change_of_an_argument_is_named():
    with pytest.raises(ConfigError, match=r"changes h, observed or y in place .*: compute a new tensor"):
        check_method(InPlace())


@pytest.mark.parametrize("parties", [(), (0,), (3, 64)])
def test_the_number_of_parties_is_checked(parties):
    """Without any number nothing would be checked, and 64 parties have too many sets."""
    with pytest.raises(ConfigError, match=r"expected numbers of parties from 1 to 10, such as \(3, 1, 4\), got"):
        check_method(Mean(), parties=parties)


def test_a_split_method_is_checked_with_its_embedding():
    check_method(Split(rule=Laser(), embedding=7, head_hidden=(3,)))
