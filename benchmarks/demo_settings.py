"""Choose the demo's settings on validation rows, equal for all methods: ``python -m benchmarks.demo_settings``.

The program tries learning rates, encoders and widths on the demo's tables, with the demo's gaps.  It prints the
log-loss on validation rows at the best epoch, as the mean over the six methods and two seeds.  Test rows are never
scored.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from itertools import product
from pathlib import Path

from joblib import Parallel, delayed, parallel_config

from anyparty import config
from anyparty.api.federation import Federation
from anyparty.cli import demo_data
from anyparty.core.seeds import Seeds
from anyparty.experiments.compared_missing import without_blocks
from anyparty.methods.method_registry import SPLIT
from anyparty.networks.encoders import MLP
from anyparty.networks.optimizer import Optimizer

RATES = (0.003, 0.01, 0.03)
HIDDEN: tuple[tuple[int, ...], ...] = ((), (64,))
WIDTHS = (16, 32)
SEEDS = 2


def validation_loss(federation: Federation, rate: float, hidden: tuple[int, ...], width: int) -> float:
    """Return the mean log-loss on validation rows over methods and seeds."""
    losses = []
    for seed, name in product(range(SEEDS), SPLIT):
        train = federation.config.train.model_copy(update={"seed": seed, "test": demo_data.HELD_OUT})
        seeded = replace(federation, config=federation.config.model_copy(update={"train": train}))
        model = without_blocks(seeded, demo_data.ABSENT, Seeds(seed))[0].train(
            name, parameters={"embedding": width}, encoder=MLP(hidden=hidden), optimizer=Optimizer(lr=rate)
        )
        losses.append(model.history[model.best_epoch - 1]["validation"]["log_loss"])
    return float(sum(losses) / len(losses))


def main() -> None:
    """Print the loss of each combination, then the best."""
    settings = config.from_values(tomllib.loads(demo_data.SETTINGS), source="demo", folder=Path())
    federation = Federation.from_config(settings, demo_data.whole_tables())
    grid = list(product(RATES, HIDDEN, WIDTHS))
    with parallel_config(backend="loky", inner_max_num_threads=1):
        losses = Parallel(n_jobs=2, return_as="generator")(delayed(validation_loss)(federation, *each) for each in grid)
        found = {}
        for (rate, hidden, width), loss in zip(grid, losses, strict=True):
            found[loss] = f"lr {rate:<6} hidden {list(hidden)!s:<5} embedding {width}"
            print(f"{found[loss]}: {loss:.4f}", flush=True)
    print(f"best: {found[min(found)]}")


if __name__ == "__main__":
    main()
