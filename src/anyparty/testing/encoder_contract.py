"""Check an encoder for mistakes that training would not show: a network from a party's columns to embeddings."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn

from anyparty.core.draws import normal
from anyparty.core.seeds import Seeds, usual_torch
from anyparty.errors import ConfigError, blamed
from anyparty.networks.encoders import Factory, build

ROWS = 12
TOLERANCE = 1e-4  # relative; encoders compute in single precision
STEP = 0.1


def check_encoder(encoder: Factory, *, inputs: int = 12, outputs: int = 5) -> None:
    """Check a factory of encoders on small random batches.

    Args:
        encoder: a class or function of (inputs, outputs) that makes a module [B, inputs] -> [B, outputs].
        inputs: the number of prepared columns, for example C H W for images of shape [C, H, W].
        outputs: H, the width of an embedding.

    Raises:
        ConfigError: the encoder fails a check; the message names the mistake and its remedy.

    """
    name = getattr(encoder, "__name__", type(encoder).__name__)
    with usual_torch():
        module, x = _made(encoder, inputs, outputs, name), _columns(inputs)
        for check in CHECKS:
            check(name, deepcopy(module), x)
        _check_saved(name, encoder, module, x, outputs)
        _check_devices(name, deepcopy(module), x)


def _made(encoder: Factory, inputs: int, outputs: int, name: str, seed: int = 0) -> nn.Module:
    with Seeds(seed).drawing("encoder"):
        return build(encoder, inputs, outputs, party=name)


def _columns(inputs: int) -> Tensor:
    return normal(Seeds(0).number("x"), torch.arange(ROWS), torch.arange(inputs)).float()


def _alike(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=TOLERANCE * float(one.detach().abs().max().clamp(min=1.0)))


def _error(name: str, mistake: str, remedy: str) -> ConfigError:
    return ConfigError(f"{name}, encoder: {mistake}: {remedy}")


def _check_random_numbers(name: str, module: nn.Module, x: Tensor) -> None:
    """Two predictions are equal, and two steps with equal seeds of torch are equal."""
    module.eval()
    if not torch.equal(module(x), module(x)):
        raise _error(name, "two predictions of the same rows differ", "draw random numbers in training alone, as "
                     "nn.Dropout does, and store nothing between calls")  # fmt: skip
    found = []
    for _ in range(2):
        with Seeds(0).drawing("encoder draws"):
            found.append(deepcopy(module).train()(x))
    if not torch.equal(*found):
        raise _error(name, "two training steps with the same seed differ", "draw random numbers with torch, and with "
                     "no generator of your own")  # fmt: skip


def _check_independent_rows(name: str, module: nn.Module, x: Tensor) -> None:
    """In prediction, a row's embedding does not depend on the other rows."""
    module.eval()
    whole = module(x)
    for rows in (slice(0, 1), slice(None, None, 2)):
        if not _alike(whole[rows], module(x[rows])):
            raise _error(name, "in prediction, the embedding of a row changes if other rows are left out",
                         "take no statistics of the batch in eval mode, as nn.BatchNorm1d does")  # fmt: skip


def _check_gradients(name: str, module: nn.Module, x: Tensor) -> None:
    """Every parameter gets a gradient."""
    made = module.train()(x)
    target = normal(Seeds(0).number("target"), torch.arange(made.numel())).float().view_as(made)
    (made * target).sum().backward()
    missed = [key for key, each in module.named_parameters() if each.requires_grad and each.grad is None]
    if missed:
        raise _error(name, f"no gradient reaches the parameter {missed[0]!r}", "use it in forward without detach, or "
                     "set its requires_grad to False")  # fmt: skip
    if not all(torch.isfinite(each.grad).all() for each in module.parameters() if each.grad is not None):
        raise _error(name, "a gradient is not a number", "replace values by torch.where before a division, a root or a "
                     "logarithm, not after it")  # fmt: skip


def _check_inputs(name: str, module: nn.Module, x: Tensor) -> None:
    """The embedding depends on the columns."""
    module.eval()
    if _alike(module(x), module(x + STEP * x.flip(0))):
        raise _error(name, "the embedding does not depend on the columns", "compute it from the argument of forward")


def _check_devices(name: str, module: nn.Module, x: Tensor) -> None:
    """The module computes on the device of its input; PyTorch's device "meta" stands for a GPU."""
    module.eval()
    try:
        made = module.to("meta")(x.to("meta"))
    except Exception as error:
        if "device" in str(error):
            raise _error(name, f"it cannot compute on another device ({blamed(error)})", "make tensors on x.device, or "
                         "register them with register_buffer") from error  # fmt: skip
        return  # an encoder may read values, which the device "meta" does not have
    if made.device.type != "meta":
        raise _error(name, "the embedding is not on the device of the columns", "make tensors on x.device")


def _check_saved(name: str, encoder: Factory, module: nn.Module, x: Tensor, outputs: int) -> None:
    """A new module with the saved weights gives the same embeddings."""
    other = _made(encoder, x.shape[1], outputs, name, seed=1)
    for part in (module, other):
        part.eval()
    other.load_state_dict(module.state_dict())
    if not _alike(module(x), other(x)):
        raise _error(name, "a new encoder with the saved weights gives other embeddings", "hold every weight as "
                     "nn.Parameter, and every module in nn.ModuleList or as an attribute, so that all are trained and "
                     "saved")  # fmt: skip


Check = Callable[[str, nn.Module, Tensor], None]
CHECKS: tuple[Check, ...] = (
    _check_random_numbers, _check_inputs, _check_independent_rows, _check_gradients,
)  # fmt: skip
