"""Make training and prediction independent of PyTorch's global settings in the user's program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def usual_torch() -> Iterator[None]:
    """Compute with PyTorch's usual settings, and restore those of the caller afterwards.

    Within the context, or a function that it decorates, new tensors are float32 and on the CPU, and gradients are
    computed.  Otherwise ``torch.set_default_dtype``, ``torch.set_default_device`` and a surrounding ``torch.no_grad()``
    or ``torch.inference_mode()`` would change or break training.
    """
    dtype = torch.get_default_dtype()
    with ExitStack() as stack:
        if dtype != torch.float32:
            torch.set_default_dtype(torch.float32)
            stack.callback(torch.set_default_dtype, dtype)
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(mode=False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        if torch.get_default_device() != torch.device("cpu"):  # the context would slow down every call
            stack.enter_context(torch.device("cpu"))
        yield
