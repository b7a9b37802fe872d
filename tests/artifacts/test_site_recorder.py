"""A party's own record exists from the first message on, is correct after a failure, and is continued on resume."""

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from anyparty.core.types import ChannelWrapper
from anyparty.errors import PartyLost
from tests.report import site_runs


def record(site: site_runs.Site) -> dict:
    return json.loads((site.folder / "record.json").read_text(encoding="utf-8"))


def sent(site: site_runs.Site, tag: str) -> int:
    return sum(row["messages"] for row in record(site)["ledger"] if row["tag"] == tag)


@dataclass
class FailingChannel(ChannelWrapper):
    """A channel that calls ``look``, and fails at one party's n-th message of a kind."""

    fail: tuple = ("shop", "embedding", 10**9)
    look: Callable | None = None
    count: int = 0

    async def send(self, to, tag, tensors):
        if (self.me, tag) == self.fail[:2]:
            self.count += 1
            if self.look is not None:
                self.look(self.count)
            if self.count == self.fail[2]:
                raise PartyLost("bank", "the line was cut")
        return await super().send(to, tag, tensors)


def test_a_finished_part_is_recorded_as_done(tmp_path):
    sites = site_runs.build(tmp_path)
    site_runs.play(sites, site_runs.settings())
    bank, shop = record(sites["bank"]), record(sites["shop"])
    assert bank["status"] == shop["status"] == "done"
    for shared in ("alignment", "agreed", "parties", "active", "settings", "rows"):
        assert bank[shared] == shop[shared], shared
    assert bank["table"] != shop["table"]
    assert [epoch["epoch"] for epoch in bank["history"]] == [1, 2]
    assert bank["evaluation"]["overall"]["rows"] > 0
    assert sum(pattern["rows"] for pattern in bank["overlap"]["patterns"]) == bank["rows"]
    assert bank["predicted"].startswith("task: classification")
    assert bank["stages"]["train"]["epochs"] == len(bank["history"])
    assert not {"evaluation", "overlap", "predicted"} & shop.keys()
    assert "table.csv" not in shop["settings"]


def test_the_record_is_updated_at_every_checkpoint(tmp_path):
    sites, seen = site_runs.build(tmp_path), {}

    def look(count):
        seen[count] = record(sites["shop"])

    site_runs.play(
        sites, site_runs.settings(epochs=3, checkpoint_every=1), lambda channel: FailingChannel(channel, look=look)
    )
    tags = {count: {row["tag"]: row["messages"] for row in kept["ledger"]} for count, kept in seen.items()}
    last = max(seen)
    assert seen[last]["status"] == "running"  # what a killed process would leave
    assert tags[1].keys() >= {"align-ids", "alignment"}
    assert "embedding" not in tags[1]
    assert 0 < tags[last]["embedding"] < last


def test_a_failed_part_records_its_ledger_and_its_error(tmp_path):
    sites = site_runs.build(tmp_path)
    with pytest.raises(PartyLost):
        site_runs.play(
            sites, site_runs.settings("standard"), lambda channel: FailingChannel(channel, ("shop", "embedding", 4))
        )
    shop = record(sites["shop"])
    assert (shop["status"], shop["error"]) == ("failed", "PartyLost: party 'bank' is gone: the line was cut")
    assert sent(sites["shop"], "embedding") == 3  # the fourth was not sent
    assert record(sites["bank"])["status"] == "failed"


def test_a_resumed_run_continues_its_ledger(tmp_path):
    sites = site_runs.build(tmp_path)
    site_runs.play(sites, site_runs.settings(epochs=2, checkpoint_every=1))
    first, began = sent(sites["shop"], "embedding"), record(sites["shop"])["began"]
    for site in sites.values():
        (site.folder / "checkpoints" / "00-000002.safetensors").unlink()
    seen = {}

    def look(count):
        seen.setdefault(count, record(sites["bank"]))

    site_runs.play(
        sites, site_runs.settings(epochs=2, checkpoint_every=1), lambda c: FailingChannel(c, look=look), resume=True
    )
    # if this run is killed at once, the record must match the checkpoints exactly
    assert [each["epoch"] for each in seen[1]["history"]] == [1]
    assert [each["epoch"] for each in record(sites["bank"])["history"]] == [1, 2]
    assert sent(sites["shop"], "embedding") > first
    assert record(sites["shop"])["began"] == began
    site_runs.play(sites, site_runs.settings(epochs=2, checkpoint_every=1))
    assert sent(sites["shop"], "embedding") == first  # a new run has a new ledger
