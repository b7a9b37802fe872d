"""The active party's messages about rows and task are checked like any others; wrong ones cause a clear error."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl
import pytest
import torch

from anyparty.core.types import ChannelWrapper, Party, Roster
from anyparty.deployment.site.site_prediction import predict_at_site
from anyparty.errors import ConfigError, MessageError
from anyparty.tables.table import read_table
from anyparty.training.party import share_setup
from anyparty.transport import memory
from tests.deployment.test_site_training import run, settings, world

ROSTER = Roster((Party(name="bank", labels=True), Party(name="shop", labels=True)), "bank")
TABLE = read_table(pl.DataFrame({"id": [1, 2, 3], "y": ["a", "b", "a"]}), party="shop", id="id", label="y")


class Net:
    me = "shop"

    def __init__(self, task, observed):
        self.said = {"use": torch.zeros(3, dtype=torch.int8), "task": torch.tensor(list(task), dtype=torch.uint8),
                     "observed": torch.zeros(observed, dtype=torch.uint8)}  # fmt: skip

    async def recv(self, frm, tag, expect):
        return self.said


@pytest.mark.parametrize(
    ("task", "observed"),
    [(b"\xff\xfe", 6), (b'{"x": 1}', 6), (b"[1, 2]", 6), (b'{"kind": "classification"}', 5), (b"[" * 100_000, 6)],
    ids=["no text", "no task", "a list", "other rows", "deep"],
)
def test_an_invalid_task_causes_a_clear_error(task, observed):
    with pytest.raises(
        MessageError, match=r"message 'setup' from 'bank' to 'shop': expected a task and which parties have each"
    ):
        asyncio.run(share_setup(Net(task, observed), ROSTER, TABLE, np.arange(3), None))


@dataclass
class ChangedMessages(ChannelWrapper):
    """A channel that changes its party's messages of one kind."""

    tag: str
    change: Callable

    async def send(self, to, tag, tensors):
        return await super().send(to, tag, self.change(tensors) if tag == self.tag else tensors)


def test_a_setup_with_another_number_of_rows_causes_a_clear_error(tmp_path):
    def shortened(said):
        return said | {"use": said["use"][:-1]}

    with pytest.raises(
        MessageError, match=r"'setup' from 'bank' to '\w+': it has 236 rows, but the alignment here has 237"
    ):
        run(world(tmp_path), settings(epochs=1), partial(ChangedMessages, tag="setup", change=shortened))


def test_presence_with_another_number_of_rows_causes_a_clear_error(tmp_path):
    sites, config = world(tmp_path), settings(epochs=1)
    run(sites, config)

    def other_rows(said):
        return said | {"observed": torch.zeros(5, dtype=torch.uint8)}

    parts = {name: partial(predict_at_site, site, config) for name, site in sites.items()}
    with pytest.raises(
        ConfigError,
        match=r"'bank' sent 5 cells of presence \(which party has which row\); expected 237 rows x 3 parties",
    ):
        memory.play(parts, partial(ChangedMessages, tag="wanted", change=other_rows))
