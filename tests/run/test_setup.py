"""What the active party says of rows and task is read as anybody's: a sentence, whatever the bytes are."""

import asyncio

import pytest
import torch

from anyparty.errors import MessageError
from anyparty.run.party import share_setup
from anyparty.terms import Party, Roster

ROSTER = Roster((Party(name="bank", labels=True), Party(name="shop", labels=True)), "bank")


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
def test_a_task_that_is_none_is_a_sentence(task, observed):
    with pytest.raises(MessageError, match=r"message 'setup' from 'bank' to 'shop': expected a task and who has each"):
        asyncio.run(share_setup(Net(task, observed), ROSTER, None))
