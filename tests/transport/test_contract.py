"""Undeclared messages are not sent, unexpected ones are rejected, and errors name the party, the fault and the fix."""

import math
from functools import partial

import pytest
import torch

from anyparty.core.types import Channel, ChannelWrapper, MessageSpec, Party, Roster, TensorSpec
from anyparty.errors import MessageError
from anyparty.methods.schedules.real_clock import RoundChannel
from anyparty.training.party_run import membership_of
from anyparty.transport import memory
from anyparty.transport.contract import ContractChannel, roles
from anyparty.transport.ledger import Ledger, MeteredChannel

ROSTER = Roster(
    (Party(name="bank", labels=True), Party(name="shop"), Party(name="lab", columns=False, labels=True)), "bank"
)
UP = MessageSpec(tag="up", frm="block", to="host", holds="h", learns="h")
DOWN = MessageSpec(tag="down", frm="active", to="passive", holds="g", learns="g")


def send_one(frm, to, tag, tensors, expect, declared=(UP, DOWN), **more):
    """Send one message, receive it, and return it."""

    async def send(net):
        await net.send(to, tag, tensors)

    async def receive(net):
        return await net.recv(frm, tag, expect)

    async def idle(net):
        pass

    parts = {name: {frm: send, to: receive}.get(name, idle) for name in ROSTER.names}
    return memory.play(parts, partial(ContractChannel, roster=ROSTER, declared=declared, **more))[to]


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"h": torch.ones(2, dtype=torch.complex64)}, "'h' is torch.complex64, which cannot be sent"),
        ({f"h{k}": torch.ones(1) for k in range(1500)}, "has 1500 tensors, whose names and shapes take"),
        ({"h" * 70_000: torch.ones(1)}, "has 1 tensors, whose names and shapes take"),
    ],
)
def test_in_process_channels_refuse_what_other_carriers_refuse(tensors, said):
    with pytest.raises(MessageError, match=f"message 'up' from 'shop' to 'bank'.*{said}"):
        send_one("shop", "bank", "up", tensors, {name: TensorSpec((1,)) for name in tensors})


H = {"h": torch.ones(3, 2)}
WANT = {"h": TensorSpec((3, 2))}


def test_roles_of_a_party_follow_from_the_roster():
    assert roles(ROSTER, "bank") == {"any", "active", "block", "host"}
    assert roles(ROSTER, "shop") == {"any", "passive", "block"}
    assert roles(ROSTER, "lab") == {"any", "passive", "host"}


@pytest.mark.parametrize(
    "wrap",
    [
        ChannelWrapper,
        partial(ContractChannel, roster=ROSTER, declared=()),
        partial(MeteredChannel, ledger=Ledger()),
        partial(RoundChannel, step_id=("train", 0, 4)),
    ],
    ids=["base", "contract", "metered", "round"],
)
def test_a_wrapper_forwards_the_step_and_the_questions_about_parties(wrap):
    class Carrier(Channel):
        me, membership, steps = "bank", "members", []

        def set_step(self, step, *, training):
            self.steps.append((step, training))

        def is_dropped(self, party):
            return party == "shop"

    net = wrap(Carrier())
    net.set_step("epoch 2", training=True)
    assert net.me == "bank"
    assert Carrier.steps == [("epoch 2", True)]
    assert [name for name in ROSTER.names if net.is_dropped(name)] == ["shop"]
    assert membership_of(net) == "members"


class TestSending:
    @pytest.mark.parametrize(
        ("frm", "to", "tag"),
        [
            ("shop", "bank", "up"),
            ("shop", "lab", "up"),
            ("bank", "lab", "up"),
            ("bank", "shop", "down"),
            ("bank", "lab", "down"),
        ],
    )
    def test_declared_messages_are_sent(self, frm, to, tag):
        assert torch.equal(send_one(frm, to, tag, H, WANT)["h"], H["h"])

    @pytest.mark.parametrize(
        ("frm", "to", "tag"),
        [
            ("shop", "bank", "labels"),  # this message is not declared
            ("bank", "shop", "up"),  # the receiver does not host a head
            ("lab", "bank", "up"),  # the sender does not have a block
            ("shop", "bank", "down"),  # the wrong direction
        ],
    )
    def test_undeclared_messages_are_refused(self, frm, to, tag):
        sentence = rf"party '{frm}' tried to send '{tag}' to '{to}'.*does not declare; declared are \['down', 'up'\]"
        with pytest.raises(MessageError, match=sentence):
            send_one(frm, to, tag, H, WANT)

    def test_without_declared_messages_none_can_be_sent(self):
        with pytest.raises(MessageError, match=r"declared are \[\]"):
            send_one("shop", "bank", "up", H, WANT, declared=())

    def test_a_message_to_an_unknown_party_is_refused(self):
        async def send(net):
            await net.send("bnak", "up", H)

        with pytest.raises(MessageError, match="tried to send 'up' to 'bnak'"):
            memory.play({"shop": send}, partial(ContractChannel, roster=ROSTER, declared=(UP,)))


class TestReceiving:
    @pytest.mark.parametrize(
        ("tensors", "expect", "sentence"),
        [
            ({"g": torch.ones(3, 2)}, WANT, r"expected tensors \['h'\], got \['g'\]"),
            (H | {"y": torch.ones(3)}, WANT, r"expected tensors \['h'\], got \['h', 'y'\]"),
            ({}, WANT, r"expected tensors \['h'\], got \[\]"),
            ({"h": torch.ones(4, 2)}, WANT, r"'h' should be torch.float32 \[3, 2\], got torch.float32 \[4, 2\]"),
            ({"h": torch.ones(3)}, WANT, r"should be torch.float32 \[3, 2\], got torch.float32 \[3\]"),
            ({"h": torch.ones(3, 2, 1)}, WANT, r"got torch.float32 \[3, 2, 1\]"),
            ({"h": torch.ones(3, 2).double()}, WANT, r"should be torch.float32 \[3, 2\], got torch.float64"),
            ({"h": torch.ones(3, 2).long()}, WANT, "got torch.int64"),
            ({"h": torch.tensor([[1.0, math.nan]])}, {"h": TensorSpec((1, 2))}, "'h' holds NaN or infinity"),
            ({"h": torch.tensor([[math.inf, 1.0]])}, {"h": TensorSpec((1, 2))}, "'h' holds NaN or infinity"),
            ({"h": torch.tensor([[math.inf, -math.inf]])}, {"h": TensorSpec((1, 2))}, "'h' holds NaN or infinity"),
        ],
    )
    def test_unexpected_tensors_are_refused(self, tensors, expect, sentence):
        with pytest.raises(MessageError, match=f"message 'up' from 'shop' to 'bank': .*{sentence}"):
            send_one("shop", "bank", "up", tensors, expect)

    @pytest.mark.parametrize(
        ("tensor", "expect"),
        [
            (torch.ones(5, 2), TensorSpec((-1, 2))),  # any length
            (torch.ones(0, 2), TensorSpec((-1, 2))),
            (torch.tensor([1, 2]), TensorSpec((2,), torch.int64)),
        ],
    )
    def test_expected_tensors_are_received(self, tensor, expect):
        assert torch.equal(send_one("shop", "bank", "up", {"h": tensor}, {"h": expect})["h"], tensor)

    def test_finite_numbers_with_an_infinite_sum_are_received(self):
        """Such numbers are beyond any bound, so the test sets no bound."""
        large = torch.full((4,), 3e38)
        assert torch.equal(
            send_one("shop", "bank", "up", {"h": large}, {"h": TensorSpec((4,))}, bounds=None)["h"], large
        )
