import math

import pytest
import torch
from torch import nn

from anyparty.networks.heads import ACTIVATIONS, ModuleHeads, StackedLinear, StackedMLP


def separate(stack, m, activation):
    """Return network m of a stack as torch's own layers."""
    layers = []
    for layer in (stack.first, *[layer for layer in stack.rest if isinstance(layer, StackedLinear)]):
        linear = nn.Linear(layer.weight.shape[2], layer.weight.shape[1])
        with torch.no_grad():
            linear.weight.copy_(layer.weight[m])
            linear.bias.copy_(layer.bias[m])
        layers += [linear, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


class TestDraws:
    @pytest.mark.parametrize("inputs", [1, 4, 50])
    def test_as_torchs_linear_layer_draws(self, inputs):
        """Weight and bias are uniform in +-1/sqrt(inputs), so sd = bound/sqrt(3)."""
        torch.manual_seed(0)
        mine, torchs = StackedLinear(40, inputs, 30), [nn.Linear(inputs, 30) for _ in range(40)]
        bound = 1 / math.sqrt(inputs)
        for own, theirs in (
            (mine.weight, torch.stack([layer.weight for layer in torchs])),
            (mine.bias, torch.stack([layer.bias for layer in torchs])),
        ):
            for drawn in (own.detach(), theirs.detach()):
                assert drawn.abs().max() <= bound
                assert drawn.abs().max() > 0.97 * bound
                assert abs(drawn.mean()) < 0.06 * bound
                assert drawn.std() == pytest.approx(bound / math.sqrt(3), rel=0.05)

    def test_no_two_copies_are_alike(self):
        weight = StackedLinear(3, 4, 5).weight
        assert not torch.equal(weight[0], weight[1])


@pytest.mark.parametrize(
    ("copies", "hidden", "activation"),
    [(1, (), "relu"), (5, (), "relu"), (1, (6, 4), "relu"), *((5, (6, 4), name) for name in sorted(ACTIVATIONS))],
)
class TestStackedMLP:
    def make(self, copies, hidden, activation):
        torch.manual_seed(1)
        return StackedMLP(copies, (7, *hidden, 3), activation)

    def test_equals_a_loop_of_separate_networks(self, copies, hidden, activation):
        stack, u = self.make(copies, hidden, activation), torch.randn(9, copies, 7)
        expected = torch.stack([separate(stack, m, activation)(u[:, m]) for m in range(copies)], dim=1)
        assert torch.allclose(stack(u), expected, atol=1e-6)

    def test_its_gradients_too(self, copies, hidden, activation):
        stack, u = self.make(copies, hidden, activation), torch.randn(9, copies, 7)
        stack(u).pow(2).sum().backward()
        for m in range(copies):
            alone = separate(stack, m, activation)
            alone(u[:, m]).pow(2).sum().backward()
            assert torch.allclose(stack.first.weight.grad[m], alone[0].weight.grad, atol=1e-5, rtol=1e-4)
            assert torch.allclose(stack.first.bias.grad[m], alone[0].bias.grad, atol=1e-5, rtol=1e-4)

    def test_the_first_layer_commutes_with_means(self, copies, hidden, activation):
        """Check finish(mean_f products(h_f)) == forward(mean_f h_f) for tasks of one, two and all parties."""
        stack, h = self.make(copies, hidden, activation), torch.randn(9, 4, 7)
        products = stack.products(h)  # [B, F, M, D]
        tasks = [(0,), (1, 3), (0, 1, 2, 3)]
        means = torch.stack([products[:, S].mean(1) for S in tasks], dim=2)  # [B, M, T, D]
        outputs = stack.finish(means)
        assert outputs.shape == (9, copies, 3, 3)
        for t, S in enumerate(tasks):
            u = h[:, S].mean(1, keepdim=True).expand(-1, copies, -1)
            assert torch.allclose(outputs[:, :, t], stack(u), atol=1e-6)


def test_a_single_copy_is_a_linear_layer_to_the_last_bit():
    stack, u = StackedMLP(1, (7, 3)), torch.randn(9, 1, 7)
    assert torch.equal(stack(u)[:, 0], separate(stack, 0, "relu")(u[:, 0]))


def test_modules_of_a_users_own_have_the_same_face():
    modules = [nn.Sequential(nn.Tanh(), nn.Linear(7, 3)) for _ in range(4)]
    heads, h = ModuleHeads(modules, 7, 3), torch.randn(9, 5, 7)
    u = torch.randn(9, 4, 7)
    assert torch.equal(heads(u), torch.stack([module(u[:, m]) for m, module in enumerate(modules)], dim=1))
    means = heads.products(h)[:, [1, 2]].mean(1).unsqueeze(2)
    assert torch.allclose(heads.finish(means)[:, 2, 0], modules[2](h[:, [1, 2]].mean(1)))
    assert len(list(heads.parameters())) == 8
