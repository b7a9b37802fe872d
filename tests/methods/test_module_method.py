"""A split method from one module: the attention of the examples passes all checks of methods."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from anyparty.errors import ConfigError
from anyparty.methods.split.module_method import PresenceHead, module_method
from tests.methods.cases import Case
from tests.methods.checks import CHECKS
from tests.slow_parameters import slow_but

Attention = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "attention.py"))["Attention"]
BY_NAME = {"refuses bad parameters", "gradients equal the joint reference"}
OWN = Case(title="attention", of="attention", own=lambda: module_method(Attention, embedding=5, drop=0.3))


@pytest.mark.parametrize(
    "check", slow_but(sorted(CHECKS.keys() - BY_NAME), {"a model is its networks", "unobserved cells do not matter"})
)
def test_attention_passes_the_checks_of_methods(check: str, tmp_path: Path) -> None:
    CHECKS[check](OWN, tmp_path)


def test_the_module_gets_embeddings_and_presence() -> None:
    class Look(nn.Module):
        def __init__(self, K: int, H: int, C: int) -> None:
            super().__init__()
            self.sizes = K, H, C

        def forward(self, h: Any, observed: Any) -> Any:
            return torch.stack([h[:, 0, 1], observed.sum(1)], dim=1)

    head = PresenceHead(Look, 2, 3, 2)
    assert head.module.sizes == (2, 3, 2)
    assert head(torch.tensor([[1.0, 5, 2, 0, 0, 0, 1, 0]])).tolist() == [[5.0, 1.0]]


@pytest.mark.parametrize("options", [{"of": nn.Linear(1, 1)}, {"of": Attention, "drop": 1.0}, {"of": 3}])
def test_mistakes(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="module_method"):
        module_method(**options)
