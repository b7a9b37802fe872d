"""What a report says of cost: by pair and tag as sent, and by the paper's formulas, in the terminal and on the page."""

import pytest

from anyparty.report import costs
from anyparty.report.records import find

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


def test_of_parties_apart(tmp_path):
    """(6) is known at the active party; (9) takes a width that stays at home, so there it is left out."""
    for name, known in (("apc", ["shop", "clinic", ""]), ("standard", [])):
        sites = homes.build(tmp_path / name)
        homes.play(sites, homes.settings(name))
        (of,) = find([site.folder / "record.json" for site in sites.values()])
        found = costs.beside(of)
        assert [each.party for each in found] == known
        assert all(sum(one.bytes_sent for one in each.sent) == each.bytes_sent for each in found)
        assert costs.exchanged(of)
