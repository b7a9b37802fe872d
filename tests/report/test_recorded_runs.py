"""Records are found, checked and merged; missing values are reported."""

import json
import shutil
from pathlib import Path

import pytest
import tomli_w

from anyparty.errors import ModelError, PartyLost
from anyparty.report import traffic
from anyparty.report.recorded_runs import find_runs
from anyparty.transport.ledger import Flow, Ledger, Tally
from tests.report import site_runs


@pytest.fixture(scope="module")
def house(tmp_path_factory) -> Path:
    """Make a federation's folder with three kits after a run; tests must not change it."""
    folder = tmp_path_factory.mktemp("house")
    sites = site_runs.build(folder / "kits")
    for name in sites:
        (folder / "kits" / name / "local").mkdir()
        own = {"party": name, "active": "bank", "parties": list(site_runs.NAMES)}
        (folder / "kits" / name / "local" / "anyparty.toml").write_text(tomli_w.dumps(own))
    (folder / "kits" / "admin").mkdir()
    site_runs.play(sites, site_runs.settings())
    return folder


def records(house: Path, names=site_runs.NAMES) -> list[Path]:
    return [house / "kits" / name / "runs" / "record.json" for name in names]


@pytest.fixture
def copied(house, tmp_path) -> list[Path]:
    """Copy the three records, so that tests can change them."""
    return [Path(shutil.copy(path, tmp_path / f"{path.parts[-3]}.json")) for path in records(house)]


def change(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_federations_folder_holds_every_partys_record(house):
    (run,) = find_runs([house])
    assert (run.status, run.active, run.parties) == ("done", "bank", site_runs.NAMES)
    assert (run.method, run.seed, len(run.history)) == ("laser", 0, 2)
    assert run.evaluation["overall"]["rows"] > 0
    assert run.overlap["rows"] == run.rows
    assert set(run.tables) == set(run.versions) == set(site_runs.NAMES)
    assert run.missing == ()
    every = [json.loads(path.read_text())["ledger"] for path in records(house)]
    assert traffic.total_traffic(run.ledger).bytes_sent == sum(row["bytes_sent"] for rows in every for row in rows)
    assert run.ledger.rows() == sorted((row for rows in every for row in rows), key=lambda row: list(row.values())[:3])


def test_records_given_one_by_one_are_one_run(house):
    (whole,), (apart,) = find_runs([house]), find_runs(records(house))
    assert apart.ledger.rows() == whole.ledger.rows()
    assert apart.missing == ()


def test_parties_without_a_record_are_named(house):
    (run,) = find_runs(records(house, ["shop", "clinic"]))
    assert "the record of 'bank'; its messages are not counted" in run.missing
    assert any("active party; only that record has" in what for what in run.missing)
    assert {flow.sender for flow in run.ledger.flows} == {"shop", "clinic"}


def test_records_of_two_runs_are_rejected(copied):
    bank, shop, clinic = copied
    other = json.loads(shop.read_text())["agreed"] | {"train": "other"}
    change(shop, agreed=other, alignment="ff")
    said = "alignment is one at bank, clinic and another at shop; train is one at bank, clinic and another at shop"
    with pytest.raises(ModelError, match=said):
        find_runs(copied)
    change(clinic, job="b")
    change(bank, job="a")
    with pytest.raises(ModelError, match="job is one at bank and another at clinic"):
        find_runs([bank, clinic])


def test_a_party_counts_once(copied):
    with pytest.raises(ModelError, match=r"two records of party 'bank', .* is the second"):
        find_runs([copied[0], copied[0]])


def test_the_gaps_of_an_older_record_are_reported(copied):
    for path in copied:
        values = json.loads(path.read_text())
        for key in ("agreed", "alignment", "job", "format"):
            values.pop(key)
        path.write_text(json.dumps(values))
    (run,) = find_runs(copied)
    assert "shop: the alignment of the run" in run.missing


def test_a_record_of_a_later_version_is_rejected(copied):
    change(copied[1], format=99)
    with pytest.raises(ModelError, match=r"shop.json: a record in the newer format 99; this version reads format 1"):
        find_runs(copied)


def test_a_run_in_one_process(run):
    (found,) = find_runs([run])
    kept = json.loads((run / "record.json").read_text())
    assert (found.name, found.folder, found.status) == (run.name, run, "done")
    assert found.ledger.rows() == kept["ledger"]
    assert found.active == "bank"
    assert found.command == f"anyparty train {run / 'config.toml'} --run NEW-FOLDER"


def test_a_run_without_a_ledger_says_so(run, tmp_path):
    kept = json.loads((run / "record.json").read_text())
    kept.pop("ledger")
    (tmp_path / "record.json").write_text(json.dumps(kept))
    (found,) = find_runs([tmp_path])
    assert "the ledger of messages" in found.missing
    assert found.ledger.rows() == []


@pytest.mark.parametrize("what", ["nothing", "folder", "file"])
def test_a_path_without_a_run_is_rejected(tmp_path, what):
    path = tmp_path / what
    if what == "folder":
        path.mkdir()
    if what == "file":
        path.write_text("no JSON")
    with pytest.raises(ModelError, match="is not a run: expected the folder" if what != "file" else "not readable"):
        find_runs([path])


def test_a_run_that_failed_says_why(tmp_path):
    sites = site_runs.build(tmp_path)

    class Cut(site_runs.Look):
        async def send(self, to, tag, tensors):
            if self.me == "bank" and self.count(tag) > 5:
                raise PartyLost("shop", "the line was cut")
            await self.channel.send(to, tag, tensors)

    with pytest.raises(PartyLost):
        site_runs.play(sites, site_runs.settings("standard"), Cut)
    (run,) = find_runs([site.folder for site in sites.values()])
    assert run.status == "failed"
    assert "bank: PartyLost: party 'shop' is gone: the line was cut" in run.error
    assert traffic.total_traffic(run.ledger, tag="embedding").messages > 0


def test_pairs_and_tags_by_hand():
    flows = {
        Flow("a", "b", "up"): Tally(5, 500), Flow("b", "a", "down"): Tally(4, 400), Flow("b", "a", "end"): Tally(1, 3),
        Flow("c", "a", "up"): Tally(2, 10_000),
    }  # fmt: skip
    ledger = Ledger(flows)
    first, second = traffic.traffic_by_pair(ledger, ["a", "b", "c"])
    assert (first.one, first.other, first.rounds) == ("a", "c", 0)
    assert (second.one, second.other, second.rounds) == ("a", "b", 5)
    assert second.back == Tally(5, 403)
    assert traffic.traffic_by_tag(ledger) == {"up": Tally(7, 10_500), "down": Tally(4, 400), "end": Tally(1, 3)}
