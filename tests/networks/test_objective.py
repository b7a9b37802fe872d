import pytest
import torch
from torch.nn import functional

from anyparty.core.types import Task
from anyparty.errors import ConfigError
from anyparty.networks import objective
from anyparty.networks.objective import answers, losses

NUMBERS = Task(kind="regression", mean=10.0, scale=4.0)


def classes(C, weights=()):
    return Task(kind="classification", classes=tuple(map(str, range(C))), weights=weights)


class TestLosses:
    @pytest.mark.parametrize(
        ("C", "rows", "weighted"),
        [(2, 40, False), (2, objective.WORTH_PADDING, True), (3, 1, False), (3, objective.WORTH_PADDING, False),
         (16, 40, True), (20, objective.WORTH_PADDING, True)],
    )  # fmt: skip
    def test_cross_entropy_row_by_row(self, C, rows, weighted):
        """The reference is a plain logsumexp in double precision, including its gradient."""
        generator = torch.Generator().manual_seed(C)
        outputs = (torch.randn(rows, C, generator=generator) * 3).requires_grad_()
        y = torch.randint(C, (rows,), generator=generator)
        weights = tuple((torch.arange(C) + 1.0).tolist()) if weighted else ()
        got = losses(classes(C, weights), outputs, y)
        got.sum().backward()
        slow = outputs.detach().double().requires_grad_()
        expected = torch.logsumexp(slow, 1) - slow.gather(1, y[:, None])[:, 0]
        expected = expected * torch.tensor(weights).double()[y] if weighted else expected
        expected.sum().backward()
        assert torch.allclose(got.double(), expected, rtol=1e-5, atol=1e-5)
        assert outputs.grad.shape == (rows, C)
        assert torch.allclose(outputs.grad.double(), slow.grad, rtol=1e-4, atol=1e-5)

    def test_any_number_of_axes(self):
        outputs, y = torch.randn(5, 3, 4, 2), torch.randint(2, (5, 3, 4))
        each = losses(classes(2), outputs, y)
        assert each.shape == (5, 3, 4)
        assert torch.allclose(each[2, 1, 3], functional.cross_entropy(outputs[2, 1, 3], y[2, 1, 3]))

    def test_squared_error(self):
        """The loss is 1 for a prediction of 1.5 and a label of 0.5."""
        assert losses(NUMBERS, torch.tensor([[1.5], [-1.0]]), torch.tensor([0.5, -1.0])).tolist() == [1.0, 0.0]

    @pytest.mark.parametrize(
        ("task", "outputs", "y", "said"),
        [
            (NUMBERS, (8, 1, 1), (8,), r"outputs \[8, 1\] for labels \[8\], got \[8, 1, 1\]: take out .*squeeze\(1\)"),
            (NUMBERS, (8,), (8,), r"outputs \[8, 1\] for labels \[8\], got \[8\]$"),
            (NUMBERS, (8, 1), (8, 1), r"outputs \[8, 1, 1\] for labels \[8, 1\], got \[8, 1\]$"),
            (NUMBERS, (8, 2), (8,), r"outputs \[8, 1\] for labels \[8\], got \[8, 2\]$"),
            (NUMBERS, (1, 1), (8,), r"outputs \[8, 1\] for labels \[8\], got \[1, 1\]$"),
            (classes(3), (8, 1, 3), (8,), r"outputs \[8, 3\] for labels \[8\], got \[8, 1, 3\]: take out .*squeeze"),
            (classes(3), (8, 2), (8,), r"outputs \[8, 3\] for labels \[8\], got \[8, 2\]$"),
        ],
    )
    def test_an_axis_too_many_or_too_few_is_said(self, task, outputs, y, said):
        """Without the check, [8, 1] and [8] would broadcast to 64 squares, one for each prediction and label."""
        with pytest.raises(ConfigError, match=f"losses: expected {said}"):
            losses(task, torch.zeros(outputs), torch.zeros(y, dtype=torch.int64))

    def test_more_outputs_than_classes_may_have_labels(self):
        assert losses(classes(2), torch.zeros(4, 3), torch.tensor([0, 1, 1, 0])).shape == (4,)


class TestAnswers:
    def test_probabilities(self):
        """Equal logits give equal probabilities; logits log 3 and 0 give three to one."""
        p = answers(classes(2), torch.tensor([[[0.0, 0.0]], [[0.0, float(torch.tensor(3.0).log())]]]))
        assert p.flatten().tolist() == pytest.approx([0.5, 0.5, 0.25, 0.75])

    def test_numbers_in_the_labels_own_units(self):
        """With a mean of 10 and a deviation of 4, an output of 0.5 is 12."""
        assert answers(NUMBERS, torch.tensor([[0.5]])).item() == 12.0

    def test_an_offset_beside_which_a_deviation_is_nothing_in_single_precision(self):
        far = Task(kind="regression", mean=1.7e9, scale=10.0)
        assert answers(far, torch.tensor([[0.5], [-0.1]])).flatten().tolist() == pytest.approx(
            [1_700_000_005.0, 1_699_999_999.0], abs=1e-5
        )
