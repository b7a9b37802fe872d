"""Each classic mistake in a user's method fails ``check_method`` with a sentence on place, mistake and remedy."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from anyparty.errors import ConfigError
from anyparty.methods.split.combinatorial import Combinatorial
from anyparty.methods.split.module_method import module_method
from anyparty.methods.split.rule import HeadPlan, mean_over
from anyparty.testing import check_method
from tests.testing.test_rule_check import Mean


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


class ClassWeights(Mean):
    """Weighs classes by their frequency in the batch, where rows without a label have the label 0."""

    def losses(self, host, heads, h, observed, y, noise):
        each, counts = super().losses(host, heads, h, observed, y, noise)
        return each / (y.unsqueeze(0) == y.unsqueeze(1)).to(each.dtype).sum(dim=1, keepdim=True), counts


class FirstIsActive(Mean):
    """Gives the first party a double weight, because it is taken for the active one."""

    def outputs(self, host, heads, h, observed):
        weight = torch.where(observed, 1.0 + (torch.arange(h.shape[1], device=h.device) == 0), 0.0).to(h.dtype)
        total = torch.where(observed.unsqueeze(2), h, 0.0) * weight.unsqueeze(2)
        mean = total.sum(dim=1) / weight.sum(dim=1, keepdim=True).clamp(min=1)
        return heads(mean.unsqueeze(1)), observed.any(dim=1, keepdim=True)


class ThreeInPlan(Mean):
    def plan(self, roster, task, width):
        return HeadPlan(inputs=width, reads=tuple(roster.blocks.index(name) for name in "abc"))


class NoRows(Mean):
    def plan(self, roster, task, width):
        return HeadPlan(inputs=width, trains_on=lambda observed: torch.zeros(len(observed), dtype=torch.bool))


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            BatchMean(),
            r"BatchMean, losses \(test_mistakes.py, line \d+\): the losses of a row change if .* no mean over rows",
        ),
        (ClassWeights(), "the losses of a row change with the labels of other rows, also of rows without a label"),
        (
            FirstIsActive(),
            "losses .*: the losses change if the parties change places .*: find the active party by host",
        ),
        (ThreeInPlan(), "plan: fails with 1 party: .* take the number of parties from roster.K"),
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
        (ThreeParties(), r"the rule fails: .* \(8 rows of 1 party\): assume no number and no order of parties"),
        (Mean0(), "expected two tensors from losses, .*: take no mean over rows"),
    ],
)
def test_a_mistake_is_named(rule, said):
    with pytest.raises(ConfigError, match=said):
        check_method(rule)


class ModuleMean(nn.Module):
    """A module without a fault, for ``module_method``."""

    def __init__(self, K, H, C):
        super().__init__()
        self.out, self.query = nn.Linear(H, C), nn.Linear(H, 1)

    def mean(self, h, observed):
        return torch.where(observed.unsqueeze(2), h, 0.0).sum(dim=1) / observed.sum(dim=1, keepdim=True).clamp(min=1)

    def forward(self, h, observed):
        return self.out(self.mean(h, observed))


class MaskIgnored(ModuleMean):
    """A softmax over all parties, absent ones included."""

    def forward(self, h, observed):
        return self.out((self.query(h).softmax(dim=1) * h).sum(dim=1))


class EmbeddingDetached(ModuleMean):
    def forward(self, h, observed):
        return self.out(self.mean(h.detach(), observed))


class BatchCentred(ModuleMean):
    def forward(self, h, observed):
        mean = self.mean(h, observed)
        return self.out(mean - mean.mean(dim=0))


class OwnDropout(ModuleMean):
    def forward(self, h, observed):
        return self.out(nn.functional.dropout(self.mean(h, observed), 0.5))


class DeviceFixed(ModuleMean):
    def forward(self, h, observed):
        return self.out(self.mean(h, observed) * torch.ones(h.shape[2], dtype=h.dtype))


class TypeFixed(ModuleMean):
    def forward(self, h, observed):
        return self.out(self.mean(h, observed).float()).float()


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (MaskIgnored, (r"MaskIgnored, losses \(test_mistakes.py, line \d+\): the embedding of an absent party changes "
         "the losses .*: select embeddings by observed, as torch.where")),
        (EmbeddingDetached, "no loss has a gradient for the embeddings of a, b, c, .*: use h without detach"),
        (BatchCentred, "the losses of a row change if other rows are left out .* take no mean over rows"),
        (OwnDropout, "two calls with equal arguments give different losses .*: take random numbers from noise"),
        (DeviceFixed, "a head cannot compute on another device .*: make tensors on the device of the input"),
        (TypeFixed, "the rule fails: .* make tensors with the dtype of h"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_module_is_named(module, said):
    with pytest.raises(ConfigError, match=said):
        check_method(module_method(module, embedding=4))


def test_a_module_without_a_fault_passes():
    check_method(module_method(ModuleMean, embedding=4))
