"""A focal loss, a one-cycle learning rate with a step per batch, clipped gradients, and a tracker of your own.

Run ``python examples/focal_loss.py``. To track with Weights & Biases, pass ``track=wandb.init().log``.
"""

import torch
from sklearn.datasets import load_breast_cancer
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR

from anyparty import Federation


def focal(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the focal loss of each row (Lin et al. 2017, gamma = 2): outputs [n, C], labels [n] -> [n]."""
    each = functional.cross_entropy(outputs, y, reduction="none")
    return (1 - torch.exp(-each)) ** 2 * each


def one_cycle(optimizer: torch.optim.Optimizer, steps: int) -> OneCycleLR:
    """Return a scheduler for all steps of the training; a function of (optimizer, steps) takes a step per batch."""
    return OneCycleLR(optimizer, max_lr=0.01, total_steps=steps)


def show(numbers: dict[str, float]) -> None:
    """Print the numbers that a tracker gets after every epoch."""
    print({name: round(value, 3) for name, value in numbers.items()})


X, y = load_breast_cancer(return_X_y=True)
federation = Federation.from_arrays({"clinic": X[:, :15], "laboratory": X[:, 15:]}, y)
model = federation.train("laser", epochs=8, loss=focal, scheduler=one_cycle, clip=1.0, track=show, patience=None)
print(model.evaluate())
