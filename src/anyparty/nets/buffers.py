"""Buffers whose length training decides: a saved module is loaded however many rows it holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def any_length(module: nn.Module, *names: str) -> None:
    """Let ``load_state_dict`` give the buffers ``names`` of a module the length of what is loaded."""

    def room(module: nn.Module, tensors: dict[str, Any], prefix: str, *_: Any) -> None:
        for name in names:
            if prefix + name in tensors:
                device = module.get_buffer(name).device
                setattr(module, name, torch.empty_like(tensors[prefix + name], device=device))

    module.register_load_state_dict_pre_hook(room)  # type: ignore[no-untyped-call]
