import copy

import pytest
import torch
from torch import nn

from anyparty.errors import ConfigError
from anyparty.networks.encoders import MLP, Copies, build


def widths(module):
    return [(layer.in_features, layer.out_features) for layer in module.modules() if isinstance(layer, nn.Linear)]


class TestMLP:
    def test_layers(self):
        assert widths(MLP(hidden=(8, 6))(3, 5)) == [(3, 8), (8, 6), (6, 5)]
        assert widths(MLP(hidden=())(3, 5)) == [(3, 5)]
        full = MLP(hidden=(8,), activation="gelu", norm=True, dropout=0.1)(3, 5)
        assert [type(layer) for layer in full] == [nn.Linear, nn.LayerNorm, nn.GELU, nn.Dropout, nn.Linear]
        assert full[3].p == 0.1

    @pytest.mark.parametrize(
        ("bad", "sentence"),
        [
            ({"hidden": (8, 0)}, r"encoder: hidden\[1\]: expected at least 1, got 0"),
            ({"activation": "rleu"}, "no activation 'rleu'; did you mean 'relu'"),
            ({"dropout": 1.0}, "encoder: dropout: expected less than 1, got 1.0"),
            ({"dropout": float("nan")}, "encoder: dropout: expected a finite number, got nan"),
        ],
    )
    def test_refuses(self, bad, sentence):
        with pytest.raises(ConfigError, match=sentence):
            MLP(**bad)


class TestCopies:
    @pytest.mark.parametrize(
        "encoder", [MLP(hidden=(4,)), MLP(hidden=(), activation="tanh"), MLP(hidden=(4,), norm=True)]
    )
    def test_every_copy_sees_the_same_rows(self, encoder):
        torch.manual_seed(0)
        copies, x = Copies(encoder, 3, 5, 2), torch.randn(6, 5)
        out = copies(x)
        assert out.shape == (6, 3, 2)
        assert not torch.allclose(out[:, 0], out[:, 1])
        assert torch.equal(copies(x[2:4]), out[2:4])

    def test_a_users_own_module_is_made_once_for_each(self):
        made = []

        def factory(inputs, outputs):
            made.append((inputs, outputs))
            return nn.Linear(inputs, outputs)

        module, x = build(factory, 5, 2, 3), torch.randn(6, 5)
        assert made == [(5, 2)] * 3
        assert torch.equal(module(x)[:, 1], module.stack[1](x))

    def test_gradients_of_copies_do_not_mix(self):
        copies = Copies(MLP(hidden=(4,)), 3, 5, 2)
        copies(torch.randn(6, 5))[:, 1].sum().backward()
        grad = copies.stack.first.weight.grad
        assert grad[1].any()
        assert not grad[0].any()
        assert not grad[2].any()


class TestBuild:
    def test_one_copy_has_no_axis_of_its_own(self):
        assert build(MLP(), 5, 2)(torch.randn(6, 5)).shape == (6, 2)
        assert build(MLP(), 5, 2, 2)(torch.randn(6, 5)).shape == (6, 2, 2)

    @pytest.mark.parametrize("copies", [1, 3])
    def test_refuses_what_is_no_module(self, copies):
        with pytest.raises(
            ConfigError, match=r"party 'shop': its encoder must make a torch\.nn\.Module, got builtin_function"
        ):
            build(lambda *_: len, 5, 2, copies, party="shop")

    def test_a_module_instead_of_a_factory_is_refused(self):
        """A common mistake is to pass the network instead of its factory."""
        with pytest.raises(ConfigError, match=r"party 'shop'.*a function .* that makes one, not the module itself"):
            build(nn.Linear(5, 2), 5, 2, party="shop")

    def test_deep_copies_are_apart(self):
        module = build(MLP(), 3, 2)
        twin = copy.deepcopy(module)
        with torch.no_grad():
            module[0].weight.zero_()
        assert twin[0].weight.any()

    def test_a_factory_that_takes_other_things_is_refused(self):
        with pytest.raises(ConfigError, match=r"party 'shop': its encoder cannot be made of \(inputs, outputs\) = "):
            build(lambda inputs: nn.Linear(inputs, 2), 5, 2, party="shop")  # type: ignore[call-arg]

    @pytest.mark.parametrize("copies", [1, 2])
    def test_a_users_own_may_change_its_input(self, copies):
        x = torch.randn(6, 5)
        before = x.clone()
        module = build(lambda i, o: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(i, o)), 5, 2, copies)
        module(x)
        assert torch.equal(x, before)

    @pytest.mark.parametrize(
        ("own", "said"),
        [
            (lambda i, _: nn.Linear(i, 9), r"should give \[2, 2\], it gives \[2, 9\]"),
            (lambda i, o: nn.Sequential(nn.Linear(i, o), Squeezed()), r"should give \[1, 2\], it gives \[2\]"),
            (nn.LSTM, r"should give a tensor \[2, 2\], it gives a tuple"),
            ("doubles", "should give torch.float32, it gives torch.float64"),
        ],
    )  # fmt: skip
    def test_an_answer_of_another_form_is_refused_by_name(self, own, said):
        with pytest.raises(ConfigError, match=f"party 'shop': its encoder {said}"):
            build(Doubles if own == "doubles" else own, 5, 2, party="shop")

    @pytest.mark.parametrize("copies", [1, 2])
    def test_one_that_fails_is_refused_with_the_line_that_does(self, copies):
        said = r"(?s)party 'shop': its encoder fails on \[2, 5\] .*test_encoders.py:\d+: RuntimeError: mat1 and mat2"
        with pytest.raises(ConfigError, match=said):
            build(lambda i, o: nn.Sequential(Narrow(i, o)), 5, 2, copies, party="shop")

    def test_one_without_a_gradient_is_refused_and_one_without_weights_is_not(self):
        with pytest.raises(ConfigError, match="party 'shop': its encoder gives no gradient, so that it could not be"):
            build(Detached, 5, 2, party="shop")
        assert build(lambda *_: nn.Identity(), 2, 2)(torch.ones(3, 2)).shape == (3, 2)

    def test_trying_it_leaves_no_trace(self):
        def own(i, o):
            return nn.Sequential(nn.Linear(i, o), nn.BatchNorm1d(o).eval(), Noise())

        torch.manual_seed(0)
        module, after = build(own, 5, 2), torch.randn(3)
        torch.manual_seed(0)
        plain = own(5, 2)
        assert torch.equal(after, torch.randn(3))
        assert [part.training for part in module.modules()] == [part.training for part in plain.modules()]
        assert all(torch.equal(value, plain.state_dict()[name]) for name, value in module.state_dict().items())

    def test_weights_in_double_precision_become_single(self):
        assert build(lambda i, o: nn.Linear(i, o).double(), 5, 2)(torch.randn(6, 5)).dtype == torch.float32

    def test_lazy_layers_learn_their_widths_at_once(self):
        module = build(lambda _, o: nn.LazyLinear(o), 5, 2)
        assert module.training
        assert module.weight.shape == (2, 5)

    def test_batch_normalisation_without_statistics_of_its_own_is_refused(self):
        own = nn.Sequential(nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 2))
        with pytest.raises(
            ConfigError, match=r"party 'shop': the answer of BatchNorm1d.* leave track_running_stats on"
        ):
            build(lambda *_: own, 5, 2, party="shop")


class Squeezed(nn.Module):
    """Drops every dimension of size one, including that of a single row."""

    def forward(self, x):
        return x.squeeze()


class Narrow(nn.Linear):
    """Accepts one column less than the block has."""

    def forward(self, x):
        return super().forward(x[:, 1:])


class Detached(nn.Linear):
    """Cannot be trained."""

    def forward(self, x):
        return super().forward(x).detach()


class Noise(nn.Module):
    """Draws random numbers also outside of training."""

    def forward(self, x):
        return x + torch.randn_like(x)


class Doubles(nn.Linear):
    """Outputs double precision."""

    def forward(self, x):
        return super().forward(x).double()
