"""After an epoch the active party readmits parties that ask to rejoin, with their own last checkpoint."""

import asyncio
from types import SimpleNamespace

import pytest
import torch

import anyparty
from anyparty.core.types import Party, Roster
from anyparty.deployment.site import alignment_cache
from anyparty.errors import AlignmentError, PartyLost
from anyparty.methods.method_registry import method
from anyparty.training import control_messages, epoch_end
from anyparty.training.checkpoint import RunPosition
from anyparty.training.party_run import RunHooks, StaticMembership
from anyparty.transport import memory
from tests import worlds

VERSION = torch.tensor(list(anyparty.__version__.encode()), dtype=torch.uint8)
ROSTER = Roster((Party(name="a", labels=True), Party(name="b")), "a")
PLAN = {name: torch.arange(3) for name in ("train", "patterns", "validation", "scored")}
SETTINGS = {"method": "laser"}


class OneWaitingParty:
    run = "now"

    def __init__(self):
        self.waiting, self.lost = ["b"], {}

    def gone(self):
        return {"b": "it gave no sign of life"} if self.waiting else {}

    def waiting_to_rejoin(self):
        return list(self.waiting)

    def admit(self, name):
        self.waiting.remove(name)

    def lose(self, name, why):
        self.lost[name] = why


def readmit(*, settings=SETTINGS, moments=((0, 1), (0, 2)), shut=False):
    membership, record, progress = OneWaitingParty(), {}, RunPosition(epoch=4, best=0.9, best_epoch=1)
    part = SimpleNamespace(hooks=RunHooks(membership=membership), agreed=SETTINGS)

    async def a(net):
        return await epoch_end._let_in(part, net, progress, PLAN, record, shut=shut)

    async def b(net):
        try:
            start = await control_messages.begin(net, ROSTER, settings, moments)
            plan = await net.recv("a", "plan", control_messages.PLAN)
        except PartyLost:
            return None
        return start, plan["train"].tolist()

    heard = memory.play({"a": a, "b": b})
    return heard["a"], heard["b"], membership, record, progress


def test_a_rejoining_party_continues_from_its_own_last_checkpoint():
    back, (start, rows), membership, record, progress = readmit()
    assert back == ("b",)
    assert start == control_messages.ResumePoint(own=(0, 2), now=(0, 5))
    assert rows == [0, 1, 2]
    assert record == {"absent": {"b": "it gave no sign of life"}, "back": ["b"]}
    assert progress.best is None  # the best epoch without it is not comparable
    assert not membership.lost


def test_a_rejoining_party_without_a_checkpoint_has_initial_weights():
    _, (start, _), *_ = readmit(moments=())
    assert start == control_messages.ResumePoint(own=None, now=(0, 5))


def test_checkpoints_of_later_epochs_than_the_runs_are_ignored():
    _, (start, _), *_ = readmit(moments=((0, 3), (0, 9)))
    assert start.own == (0, 3)


def test_a_party_with_other_settings_is_refused_and_the_run_continues():
    back, heard, membership, record, progress = readmit(settings={"method": "local"})
    assert back == ()
    assert heard is None
    assert "party 'b' runs with other settings than the active party 'a': method" in membership.lost["b"]
    assert "back" not in record
    assert progress.best == pytest.approx(0.9)


@pytest.mark.parametrize("same", [True, False])
def test_a_party_that_rejoins_with_another_alignment_is_refused(same):
    number = torch.arange(16, dtype=torch.uint8)

    async def a(net):
        try:
            await alignment_cache.welcome(number, ROSTER, net, "b")
        except AlignmentError as error:
            return str(error)

    async def b(net):
        await net.send("a", "alignment", {"number": number if same else number + 1, "version": VERSION})
        try:
            return (await net.recv("a", "realign", alignment_cache.NUMBER))["number"]
        except PartyLost:
            return None

    heard = memory.play({"a": a, "b": b})
    assert (heard["a"] is None) is same
    assert (heard["b"] is not None) is same
    assert same or "party 'b' rejoined with another alignment" in heard["a"]


def test_a_rejoining_party_gets_no_verdict_on_the_epoch_it_missed(monkeypatch):
    sent = []

    class Net:
        me = "a"

        async def send(self, to, tag, tensors):
            sent.append((to, tag, tensors["back"].tolist()))

    roster = Roster((*ROSTER.parties, Party(name="c")), "a")

    async def readmit(*_, **__):
        return ("b",)

    monkeypatch.setattr(epoch_end, "_let_in", readmit)
    part = SimpleNamespace(leads=True, seat=SimpleNamespace(roster=roster))
    decided = asyncio.run(epoch_end.share_decision(part, Net(), RunPosition(), PLAN, {}, validates=False, last=False))
    assert decided.back == ("b",)
    assert sent == [("c", "verdict", [0, 1, 0])]


def test_no_party_is_readmitted_at_the_end():
    back, heard, membership, *_ = readmit(shut=True)
    assert (back, heard) == ((), None)
    assert membership.waiting == ["b"]


def test_parties_may_rejoin_after_every_epoch_except_the_last_of_a_stage():
    looked = []

    class Watched(StaticMembership):
        def waiting_to_rejoin(self):
            looked.append(1)
            return ()

    worlds.train(method("laser", embedding=4), worlds.world(), epochs=4, membership=Watched())
    assert len(looked) == 3
