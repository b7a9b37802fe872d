"""The temperature is found again, also behind class weights, and few rows move it only a little."""

import pytest
import torch

from anyparty.core.predictions import Predictions, predicted_class
from anyparty.core.types import Task
from anyparty.metrics.calibration import temperature_of


def drawn(n, weights=()):
    """Return a task, natural probabilities [n, C] and labels drawn from them."""
    generator = torch.Generator().manual_seed(0)
    p = (1.5 * torch.randn(n, 3, generator=generator)).softmax(1)
    task = Task(kind="classification", classes=("a", "b", "c"), weights=weights)
    return task, p, torch.multinomial(p, 1, generator=generator)[:, 0]


@pytest.mark.parametrize("weights", [(), (0.5, 1.0, 4.0)])
@pytest.mark.parametrize("true", [0.5, 1.0, 2.0])
def test_the_temperature_is_found(weights, true):
    task, p, y = drawn(20_000, weights)
    network = p.log() + torch.tensor(weights or (1.0, 1.0, 1.0)).log()  # logits before they are sharpened
    some = torch.ones(len(p), 1, dtype=torch.bool)
    raw = Predictions(task=task, blocks=("x",), scores=(true * network).softmax(1), took_part=some, asked=some[0])
    found = temperature_of(task, raw.unweighted().scores, y)
    assert found == pytest.approx(true, rel=0.05)
    fitted = Task(kind="classification", classes=task.classes, weights=weights, temperature=true)
    back = Predictions(task=fitted, blocks=("x",), scores=raw.scores, took_part=some, asked=some[0]).calibrated()
    torch.testing.assert_close(back.unweighted().scores, p, rtol=1e-3, atol=1e-5)
    assert torch.equal(predicted_class(task, back.unweighted().scores), predicted_class(task, raw.unweighted().scores))


def test_few_rows_move_it_little():
    task, p, _ = drawn(10)
    assert temperature_of(task, p, p.argmax(1)) == pytest.approx(0.8, abs=0.2)
    assert temperature_of(task, p[:0], p[:0].argmax(1)) == 1
