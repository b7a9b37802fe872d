"""Invalid messages of a real process are rejected with its name, and do not affect other messages."""

import asyncio
import os
from pathlib import Path

import pytest
import torch

from anyparty.core.types import MessageSpec, Party, Roster, TensorSpec
from anyparty.deployment.flare import federation_folder
from anyparty.errors import MessageError
from anyparty.transport.codec import Header, encode
from anyparty.transport.contract import ContractChannel
from anyparty.transport.reliable_buffers import Envelope

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")

NAMES = ("bank", "shop", "clinic")
ROSTER = Roster(tuple(Party(name=name) for name in NAMES), "bank")
TAGS = ("honest", "doubled", "late", "cut", "garbage", "foreign", "shape", "kind", "nan", "names", "large", "after")
DECLARED = [MessageSpec(tag=tag, frm="passive", to="active", holds="x", learns="x") for tag in TAGS]
EXPECT = {"x": TensorSpec((2, 3))}


def x(value):
    return {"x": torch.full((2, 3), float(value))}


async def send_invalid_messages(site, config, net):
    """Let the shop send one invalid message in each lane, while the clinic is honest."""
    if site.party == "bank":
        heard = await listen(ContractChannel(net, ROSTER, DECLARED))
        await net.send("shop", "heard", {})
        return heard
    if site.party == "clinic":
        for value in range(20):
            await net.send("bank", "honest", x(value))
        return "honest"
    endpoint = net

    def send_raw(tag, data, number=0):
        endpoint.carrier.put("bank", Envelope(life=endpoint.incarnation, tag=tag, number=number).write(), data)

    def encoded(tag, tensors=None, number=0, **changes):
        header = {"run": endpoint.run, "frm": "shop", "to": "bank", "tag": tag, "number": number} | changes
        return encode(Header(**header), tensors or x(1))

    await net.send("bank", "honest", x(1))
    while endpoint.backlog("bank"):  # messages put on the line by hand are not sent again: the bank must be ready
        await asyncio.sleep(0.01)
    for _ in range(3):
        send_raw("doubled", encoded("doubled"))
    send_raw("doubled", encoded("doubled", x(2), number=1), number=1)
    send_raw("late", encoded("late", x(3), number=1), number=1)  # the second message arrives first
    await asyncio.sleep(0.5)
    send_raw("late", encoded("late", x(2)))
    send_raw("cut", encoded("cut")[:-5])
    send_raw("garbage", b"\x80\x04K\x01." * 20)
    send_raw("foreign", encoded("foreign", frm="clinic"))
    send_raw("shape", encoded("shape", {"x": torch.zeros(3, 2)}))
    send_raw("kind", encoded("kind", {"x": torch.zeros(2, 3, dtype=torch.int64)}))
    send_raw("nan", encoded("nan", {"x": torch.tensor([[0, 1, 2], [3, float("nan"), 5]])}))
    send_raw("names", encoded("names", {"y": torch.zeros(2, 3)}))
    send_raw("large", encoded("large", {"x": torch.zeros(2, 3_000_000)}))
    await net.send("bank", "after", x(7))
    await net.recv("bank", "heard", {})  # messages of a party that has left are not read
    return "lied"


async def listen(net):
    """Read every lane of the shop, then the clinic's numbers, which the invalid messages must not affect."""
    heard = {}
    for tag in TAGS:
        try:
            heard[tag] = [float((await net.recv("shop", tag, EXPECT))["x"][0, 0])]
            if tag in {"doubled", "late"}:
                heard[tag].append(float((await net.recv("shop", tag, EXPECT))["x"][0, 0]))
        except MessageError as error:
            heard[tag] = str(error)
    heard["clinic"] = [float((await net.recv("clinic", "honest", EXPECT))["x"][0, 0]) for _ in range(20)]
    return heard


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from tests.ports import free_port  # noqa: PLC0415 - the parties' processes, which import this file, have no tests

    folder = tmp_path_factory.mktemp("lies") / "fed"
    site = {"parts": {"train": f"{Path(__file__).stem}:send_invalid_messages"}, "threads": 1}
    federation_folder.init(folder, ROSTER, port=free_port(), site=site)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        try:
            federation_folder.start(folder, 240.0)
            yield folder
        finally:
            federation_folder.stop(folder)
    assert federation_folder.processes(folder) == []


@pytest.mark.net
def test_invalid_messages_are_refused_and_valid_ones_are_received(folder):
    job = federation_folder.submit(folder, "")
    status = federation_folder.wait(folder, job, 300)
    heard = federation_folder.outcome(folder, "bank", job)["result"]
    assert heard["clinic"] == list(range(20))
    assert heard["honest"] == [1]
    assert heard["doubled"] == [1, 2]
    assert heard["late"] == [2, 3]
    assert heard["after"] == [7]
    said = {
        "cut": ("'shop'", "cut short"),
        "garbage": ("'shop'",),
        "foreign": ("'shop' sent", "'clinic'"),
        "shape": ("message 'shape' from 'shop'", "torch.float32 [2, 3], got torch.float32 [3, 2]"),
        "kind": ("message 'kind' from 'shop'", "got torch.int64"),
        "nan": ("message 'nan' from 'shop'", "'x' holds NaN or infinity"),
        "names": ("message 'names' from 'shop'", "expected tensors ['x'], got ['y']"),
        "large": ("message 'large' from 'shop'", "got torch.float32 [2, 3000000]"),
    }
    for tag, words in said.items():
        assert isinstance(heard[tag], str), f"{tag} was taken: {heard[tag]}"
        for word in words:
            assert word in heard[tag]
    assert status == "FINISHED:COMPLETED"
