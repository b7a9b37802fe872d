"""What a report says of cost: by pair and tag as sent, and by the paper's formulas, in the terminal and on the page."""

import pytest

from anyparty.report import costs
from anyparty.report.records import find
from anyparty.run.federation import Federation

from . import homes, trained
from .test_page import Reader, page


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = trained.write(tmp_path_factory.mktemp("costs"), trained.FIVE[:3])
    return trained.train(settings, "run", "method.name=apc", "method.embedding=4", "method.passive_embedding=5")


def test_formulas_beside_what_was_sent(run):
    (of,) = find([run])
    found = costs.beside(of)
    assert [each.party for each in found] == ["shop", "clinic", ""]
    for each in found[:2]:
        assert sum(one.bytes_sent for one in each.sent) == each.bytes_sent > 0
        assert [one.tag for one in each.sent] == ["representation"]
    assert found[2].cells == ["all", "(6)", "2", "2", f"{found[2].bytes_sent:,}", f"{found[2].bytes_sent:,}"]


def test_on_the_page_and_in_the_terminal(run, tmp_path, call):
    shown = Reader(page.write([run], tmp_path / "page", model=False))
    assert shown.table(*costs.BESIDE).keys() == {"shop", "clinic", "all"}
    assert shown.table(*costs.SENT)["bank"][1:4] == ["representation", "1", "1"]
    said = call("report", run, "--no-model", "--out", tmp_path / "out")
    assert said.exit_code == 0
    assert "By the formulas of Irureta et al., appendix E" in said.stdout
    assert "apc's own messages" in said.stdout


@pytest.mark.parametrize(("name", "alone"), [("apc", ["shop", "clinic"]), ("standard", []), ("vfedtrans", [])])
def test_of_parties_apart_as_of_one_process(tmp_path, name, alone):
    """(6) is known at the active party; (9) and (10) take what stands in a passive party's own record alone."""
    sites, settings = homes.build(tmp_path / "homes"), homes.settings(name, test=0.0, validation=0.0)
    homes.play(sites, settings)
    paths = [site.folder / "record.json" for site in sites.values()]
    (of,) = find(paths)
    found = {each.party: (each.equation, each.rounds, each.bytes_sent) for each in costs.beside(of)}
    tables = {party: site.table for party, site in sites.items()}
    whole = Federation.from_config(settings, tables).train()
    assert found.keys() == {"shop", "clinic", ""}
    for each in whole.costs["published"]:
        assert found[each["party"]] == (each["equation"], each["rounds"], each["bytes_sent"])
    (active,) = find(paths[:1])
    assert [each.party for each in costs.beside(active)] == ([*alone, ""] if alone else [])
