"""Time of one exchange: python -m benchmarks.one_exchange [--quick].

APC-VFL on Credit, from tables in memory to predictions of the active party: 20,000 rows with five columns, and a
passive party with the other columns of 10,000 of them; the paper's networks, batches and patience. Target: 2 minutes on
2 cores.
FedSVD of 10,000 rows and 30 columns, compared with numpy's decomposition of all columns. Target: 10 seconds.
Needs ANYPARTY_DATA.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import torch

from anyparty.api.federation import Federation
from anyparty.config import Encoder
from anyparty.core.seeds import Seeds
from anyparty.core.types import Channel
from anyparty.data import datasets
from anyparty.experiments import suites
from anyparty.experiments.one_exchange_suite import OneExchangeSuite
from anyparty.experiments.party_tables import by_columns
from anyparty.methods.one_exchange import fedsvd
from anyparty.transport import memory
from benchmarks.page import Page, quick_asked, target
from benchmarks.timing import Spread

MOST_S, MOST_SVD_S = 120.0, 10.0
ROWS = 10_000
TASK_COLUMNS, DATA_COLUMNS, RANK = 12, 18, 32
SECRET = bytes(range(32))  # the secret of the key generator


def apc(*, quick: bool) -> tuple[dict[str, float], int]:
    """Train and predict; return the seconds of each part, and the number of predictions."""
    suite = suites.load("apc-fig5")
    assert isinstance(suite, OneExchangeSuite)
    entry = suite.datasets["credit"]
    data = datasets.load("credit", progress=False)
    places = Seeds(0).numpy("rows").permutation(len(data.y_train))[: entry.rows]
    frames = by_columns(data, places, {"active": entry.columns}, {"active": entry.rows, "passive": entry.aligned[0]},
                        labels="active")  # fmt: skip
    began = time.perf_counter()
    model = Federation.from_tables(frames, label="label").train(
        "apc", encoder={name: Encoder.model_validate(suite.encoders[name]).make() for name in frames},
        optimizer=suite.optimizer, test=0.0, score_training=0, batch_size=entry.batch_size,
        **suite.train | ({"epochs": 2} if quick else {}),
    )  # fmt: skip
    trained = time.perf_counter()
    answers = model.predict({"active": frames["active"].drop("label")})
    ended = time.perf_counter()
    took: dict[str, float] = {}
    for record in model.history:
        took[str(record["stage"])] = took.get(str(record["stage"]), 0.0) + float(record["seconds"])
    took["all else of training"] = trained - began - sum(took.values())
    return took | {"answers": ended - trained, "in all": ended - began}, len(answers.scores)


def decomposed(rows: int) -> tuple[float, float, float]:
    """Return the seconds of FedSVD and of numpy's SVD, and the largest difference between their left spaces."""
    generator = torch.Generator().manual_seed(0)
    blocks = {"task": torch.randn(rows, TASK_COLUMNS, generator=generator),
              "data": torch.randn(rows, DATA_COLUMNS, generator=generator)}  # fmt: skip
    roles = fedsvd.Roles(task="task", data="data", server="task", keys="data")

    async def part(name: str, net: Channel) -> Any:
        return await fedsvd.decompose(net, roles, blocks[name], RANK, SECRET)

    began = time.perf_counter()
    u = memory.play({name: partial(part, name) for name in blocks})["task"].numpy()
    ours = time.perf_counter() - began
    began = time.perf_counter()
    plain = np.linalg.svd(torch.cat(list(blocks.values()), 1).double().numpy(), full_matrices=False)[0][:, : u.shape[1]]
    return ours, time.perf_counter() - began, float(np.abs(u @ (u.T @ plain) - plain).max())


def main(*, quick: bool) -> None:
    """Write the page."""
    page = Page("one_exchange", "One exchange: APC-VFL on Credit, FedSVD", quick)
    took, answered = apc(quick=quick)
    page.table("APC-VFL on Credit, 20,000 rows of which 10,000 are aligned", ("", "seconds"),
               [[name, f"{seconds:.1f}"] for name, seconds in took.items()])  # fmt: skip
    page.say(f"{answered:,} answers by the active party alone. In all against {MOST_S:g} s: "
             f"{target(took['in all'], MOST_S)}.")  # fmt: skip
    several = [decomposed(1_000 if quick else ROWS) for _ in range(1 if quick else 5)]
    ours, plain, off = (Spread.of(list(each)) for each in zip(*several, strict=True))
    page.table(f"FedSVD, {TASK_COLUMNS} and {DATA_COLUMNS} columns", ("rows", "seconds", "numpy", "off by"),
               [[f"{1_000 if quick else ROWS:,}", str(ours), str(plain), f"{off.high:.1e}"]])  # fmt: skip
    page.say(f"Off by: the largest entry of what numpy's left singular vectors lack in the space of ours. Seconds, "
             f"medians and quartiles of 5, against {MOST_SVD_S:g} s: {target(ours.median, MOST_SVD_S)}.")  # fmt: skip
    page.write()


if __name__ == "__main__":
    main(quick=quick_asked(__doc__))
