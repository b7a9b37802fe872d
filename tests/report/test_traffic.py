"""Costs in a report: messages by pair and tag, and the paper's formulas, on the terminal and on the page."""

import pytest

from anyparty.api.federation import Federation
from anyparty.report.recorded_runs import find_runs
from anyparty.report.traffic import EXCHANGE_HEADERS, FORMULA_HEADERS, compare_with_formulas
from tests.report import site_runs, trained_runs
from tests.report.test_page import Reader, page


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = trained_runs.write(tmp_path_factory.mktemp("costs"), trained_runs.FIVE[:3])
    return trained_runs.train(settings, "run", "method.name=apc", "method.embedding=4", "method.passive_embedding=5")


def test_formulas_beside_messages(run):
    (of,) = find_runs([run])
    found = compare_with_formulas(of)
    assert [each.party for each in found] == ["shop", "clinic", ""]
    for each in found[:2]:
        assert sum(one.bytes_sent for one in each.sent) == each.bytes_sent > 0
        assert [one.tag for one in each.sent] == ["representation"]
    assert found[2].cells == ["all", "(6)", "2", "2", f"{found[2].bytes_sent:,}", f"{found[2].bytes_sent:,}"]


def test_on_the_page_and_in_the_terminal(run, tmp_path, call):
    shown = Reader(page.write([run], tmp_path / "page", model=False))
    assert shown.table(*FORMULA_HEADERS).keys() == {"shop", "clinic", "all"}
    assert shown.table(*EXCHANGE_HEADERS)["bank"][1:4] == ["representation", "1", "1"]
    said = call("report", run, "--no-model", "--out", tmp_path / "out")
    assert said.exit_code == 0
    assert "Messages sent in run" in said.stdout
    assert "formula" not in said.stdout  # a reader of the terminal need not know the paper


@pytest.mark.parametrize(("name", "alone"), [("apc", ["shop", "clinic"]), ("standard", []), ("vfedtrans", [])])
def test_sites_have_the_costs_of_one_process(tmp_path, name, alone):
    """The active party's record suffices for (6); (9) and (10) need the passive parties' records."""
    sites, settings = site_runs.build(tmp_path / "homes"), site_runs.settings(name, test=0.0, validation=0.0)
    site_runs.play(sites, settings)
    paths = [site.folder / "record.json" for site in sites.values()]
    (of,) = find_runs(paths)
    found = {each.party: (each.equation, each.rounds, each.bytes_sent) for each in compare_with_formulas(of)}
    tables = {party: site.table for party, site in sites.items()}
    whole = Federation.from_config(settings, tables).train()
    assert found.keys() == {"shop", "clinic", ""}
    for each in whole.costs["published"]:
        assert found[each["party"]] == (each["equation"], each["rounds"], each["bytes_sent"])
    (active,) = find_runs(paths[:1])
    assert [each.party for each in compare_with_formulas(active)] == ([*alone, ""] if alone else [])
