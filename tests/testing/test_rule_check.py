"""All rules of the project and its examples pass ``check_rule``, and rules with a classic mistake fail."""

import runpy
from dataclasses import replace
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
from anyparty.testing import check_rule

Maximum = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "your_own_method.py"))["Maximum"]
RULES = [
    Local(), Ensemble(), Ensemble(vote="soft"), Standard(), Standard(absent="zeros"), Combinatorial(), Plug(),
    Plug(dropout=0.0), Laser(normalize=False), Laser(heads="one"), Laser(tasks="all"),
    Laser(heads="one", tasks="all", normalize=False), Sum(), Sum(keep=0.2), Maximum(),
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_rules_of_the_project_pass(rule):
    check_rule(rule)


def test_laser_with_a_head_at_the_active_party_needs_columns_there():
    """A server without columns cannot have such a head, so the check of this kind of active party is refused."""
    with pytest.raises(ConfigError, match="heads='active' asks for a head at a party that holds labels and columns"):
        check_rule(Laser(heads="active"))


def test_methods_with_heads_of_a_user_pass():
    check_rule(method("laser", embedding=4, make_head=lambda i, o: nn.Sequential(nn.BatchNorm1d(i), nn.Linear(i, o))))

    class Mean(nn.Module):
        def __init__(self, K, H, C):
            super().__init__()
            self.out = nn.Linear(H, C)

        def forward(self, h, observed):
            return self.out(h.sum(dim=1) / observed.sum(dim=1, keepdim=True))

    check_rule(module_method(Mean, embedding=4, drop=0.3))


class Mean(Rule):
    """A rule without a fault: one head on the mean."""

    def losses(self, host, heads, h, observed, y, noise):
        return every_row(host.loss(self.outputs(host, heads, h, observed)[0].squeeze(1), y))

    def outputs(self, host, heads, h, observed):
        return heads(mean_over(h, observed).unsqueeze(1)), observed.any(dim=1, keepdim=True)


class BatchMean(Mean):
    def losses(self, host, heads, h, observed, y, noise):
        each, counts = super().losses(host, heads, h, observed, y, noise)
        return each.mean().expand(len(h), 1), counts


class BatchStatistics(Mean):
    def outputs(self, host, heads, h, observed):
        return super().outputs(host, heads, h - h.mean(dim=0), observed)


class Neighbour(Mean):
    """A gradient for another row's embedding, although the value is the same."""

    def losses(self, host, heads, h, observed, y, noise):
        each, counts = super().losses(host, heads, h, observed, y, noise)
        other = h.roll(1, 0).sum(dim=(1, 2)).unsqueeze(1)
        return each + other - other.detach(), counts


class Order(Mean):
    def losses(self, host, heads, h, observed, y, noise):
        each, counts = super().losses(host, heads, h, observed, y, noise)
        return each * torch.arange(1, len(h) + 1).unsqueeze(1), counts


class Drawing(Mean):
    def losses(self, host, heads, h, observed, y, noise):
        keep = torch.rand(h.shape[:2]) > 0.5
        return super().losses(host, heads, torch.where(keep.unsqueeze(2), h, 0.0), observed, y, noise)


class BooleanIndexing(Mean):
    def outputs(self, host, heads, h, observed):
        several, outputs = observed.sum(dim=1) > 1, heads(mean_over(h, observed).unsqueeze(1))
        outputs = outputs.clone()
        outputs[several] = 2 * outputs[several]
        return outputs, observed.any(dim=1, keepdim=True)


class Branch(Mean):
    def outputs(self, host, heads, h, observed):
        outputs, valid = super().outputs(host, heads, h, observed)
        return (2 * outputs if observed.sum() >= 0 else outputs), valid


class Item(Mean):
    def losses(self, host, heads, h, observed, y, noise):
        each, counts = super().losses(host, heads, h, observed, y, noise)
        return each * (1.0 + 0.0 * h.sum().item()), counts


class Divided(Mean):
    """The mask is applied after a root: the loss is a number, and its gradient is not."""

    def losses(self, host, heads, h, observed, y, noise):
        each, counts = super().losses(host, heads, h, observed, y, noise)
        root = h.pow(2).sum(dim=2).sqrt()  # its slope at 0 is infinite
        return each + torch.where(observed, root, 0.0).sum(dim=1, keepdim=True), counts


class Attention(Mean):
    """A softmax over parties without the mask, which gives absent parties a part."""

    def outputs(self, host, heads, h, observed):
        weight = h.sum(dim=2).softmax(dim=1).unsqueeze(2)
        return heads((weight * h).sum(dim=1, keepdim=True)), observed.any(dim=1, keepdim=True)


class Multiplied(Mean):
    def outputs(self, host, heads, h, observed):
        total = (h * observed.unsqueeze(2)).sum(dim=1, keepdim=True)
        return heads(total / observed.sum(dim=1).clamp(min=1).view(-1, 1, 1)), observed.any(dim=1, keepdim=True)


class Detached(Mean):
    def losses(self, host, heads, h, observed, y, noise):
        return super().losses(host, heads, h.detach(), observed, y, noise)


class DetachedParty(Mean):
    """The gradient reaches the first party alone."""

    def losses(self, host, heads, h, observed, y, noise):
        h = torch.cat([h[:, :1], h[:, 1:].detach()], dim=1)
        return super().losses(host, heads, h, observed, y, noise)


class AnswersNobody(Mean):
    def outputs(self, host, heads, h, observed):
        outputs, valid = super().outputs(host, heads, h, observed)
        return outputs, torch.ones_like(valid)


class WrongSet(Combinatorial):
    """The sets are in reverse order where a row looks for its predictor."""

    def plan(self, roster, task, width):
        plan = super().plan(roster, task, width)
        sets = plan.sets
        return replace(plan, sets=replace(sets, of_row=lambda observed: sets.count - 1 - sets.of_row(observed)))


class FixedType(Mean):
    def outputs(self, host, heads, h, observed):
        outputs, valid = super().outputs(host, heads, h, observed)
        return outputs.float(), valid


class FixedDevice(Mean):
    def outputs(self, host, heads, h, observed):
        outputs, valid = super().outputs(host, heads, h, observed)
        return outputs + torch.arange(outputs.shape[2]) * 0.1, valid


class ActiveFirst(Mean):
    """The active party is taken for the first one, although it may hold no columns."""

    def outputs(self, host, heads, h, observed):
        own = h.index_select(1, torch.tensor([host.k], device=h.device))
        outputs, valid = super().outputs(host, heads, h, observed)
        return outputs + torch.zeros_like(own).sum(), valid


class ThreeParties(Mean):
    def outputs(self, host, heads, h, observed):
        outputs, valid = super().outputs(host, heads, h, observed)
        return outputs + 0.0 * torch.where(observed, 0.0, 0.0).view(-1, 1, 3).sum(dim=2, keepdim=True), valid


class Mean0(Mean):
    """A mean over rows, in the form of version 0.1."""

    def losses(self, host, heads, h, observed, y, noise):
        return host.loss(self.outputs(host, heads, h, observed)[0].squeeze(1), y).mean()


class NoRows(Mean):
    def plan(self, roster, task, width):
        return HeadPlan(inputs=width, trains_on=lambda observed: torch.zeros(len(observed), dtype=torch.bool))


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (BatchMean(), "the losses of a row change if other rows are left out .* take no mean over rows"),
        (BatchStatistics(), "the losses of a row change if other rows are left out"),
        (Neighbour(), "the loss of a row has a gradient for another row's embeddings"),
        (Order(), "the losses of a row change if other rows are left out"),
        (Drawing(), "two calls with equal arguments give different losses .*: take random numbers from noise"),
        (BooleanIndexing(), "needs the values of tensors, .*: use torch.where instead of if, of boolean indexing"),
        (Branch(), "needs the values of tensors"),
        (Item(), r"needs the values of tensors, .* leave .item\(\) out"),
        (Divided(), "the gradient of the loss of a row of a is not a number .*: replace values by torch.where before"),
        (NoRows(), "trains_on of the plan selects no row of any set of 3 parties"),
        (Attention(), "the embedding of an absent party changes the losses .*: select embeddings by observed"),
        (
            Multiplied(),
            "NaN in the embedding of an absent party reaches the losses .* a product with the mask",
        ),
        (Detached(), "no loss has a gradient for the embeddings of a, b, c, .*: use h without detach"),
        (DetachedParty(), "no loss has a gradient for the embeddings of b, c, .* or leave the party out of the plan's"),
        (AnswersNobody(), "a row that no party has gets an answer .*: mark it in valid"),
        (WrongSet(), "of_row gives a row predictor 6, which trained_by does not mark for this row"),
        (FixedType(), "the losses of embeddings of type torch.float64 have the type torch.float32 .* dtype of h"),
        (FixedDevice(), r"cannot compute on another device .*: make tensors on h.device"),
        (ActiveFirst(), r"the rule fails: .* \(14 rows of 3 parties and a server\): assume no number and no order"),
        (ThreeParties(), r"the rule fails: .* \(8 rows of 1 parties\): assume no number and no order of parties"),
        (Mean0(), "expected two tensors from losses, .*: take no mean over rows"),
    ],
)
def test_a_mistake_is_named(rule, said):
    check_rule(Mean())
    with pytest.raises(ConfigError, match=said):
        check_rule(rule)


class InPlace(Mean):
    """Clamps the labels of the batch, which other parts of the step may read too."""

    def losses(self, host, heads, h, observed, y, noise):
        return super().losses(host, heads, h, observed, y.clamp_(max=1), noise)


def test_a_change_of_an_argument_is_named():
    with pytest.raises(ConfigError, match=r"changes h, observed or y in place .*: compute a new tensor"):
        check_rule(InPlace())


@pytest.mark.parametrize("parties", [(), (0,), (3, 64)])
def test_the_number_of_parties_is_checked(parties):
    """Without any number nothing would be checked, and 64 parties have too many sets."""
    with pytest.raises(ConfigError, match=r"expected numbers of parties from 1 to 10, such as \(3, 1, 4\), got"):
        check_rule(Mean(), parties=parties)


def test_a_split_method_is_checked_with_its_embedding():
    check_rule(Split(rule=Laser(), embedding=7, head_hidden=(3,)))
