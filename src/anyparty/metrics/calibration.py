"""The temperature of class probabilities, fitted to validation rows.

Guo, Pleiss, Sun, Weinberger: "On Calibration of Modern Neural Networks", ICML 2017, section 4.2 (temperature scaling).

Difference   log T has a normal prior with standard deviation .25, so that few rows move T only a little.
"""

from __future__ import annotations

import math

from torch import Tensor

from anyparty.core.predictions import tempered, weighted
from anyparty.core.types import Task

PRIOR = 0.25  # standard deviation of log T
BOUND = 1.5  # greatest |log T|


def temperature_of(task: Task, scores: Tensor, y: Tensor) -> float:
    """Return the temperature T with the smallest mean of -log p(label) and of -log prior(T).

    Args:
        task: the task, whose class weights were removed from the probabilities.
        scores: [n, C] probabilities at temperature 1.
        y: [n] int64, the labels.
    """
    from scipy.optimize import minimize_scalar  # noqa: PLC0415 - the import takes a while

    if not len(y):
        return 1.0
    p = weighted(task, scores.double())  # as the network gives them

    def cost(log_temperature: float) -> float:
        products = tempered(p, math.exp(log_temperature))
        if task.weights:
            products = products / products.new_tensor(task.weights)
            products = products / products.sum(dim=1, keepdim=True)
        likely = products.gather(1, y.unsqueeze(1)).clamp_min(1e-30).log().sum()
        return float(-likely) + log_temperature**2 / (2 * PRIOR**2)

    return math.exp(minimize_scalar(cost, bounds=(-BOUND, BOUND), method="bounded", options={"xatol": 1e-3}).x)
