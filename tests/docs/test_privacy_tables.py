"""docs/reference/messages.md has the messages that the code declares, and runs send the messages on the page."""

import re
from pathlib import Path

import pytest

from anyparty.config.method_factory import SCHEDULES
from anyparty.core.types import Roster, Task
from anyparty.deployment.site.site_training import roster_of
from anyparty.errors import UserError
from anyparty.methods.method_registry import METHODS
from anyparty.problem.party_view import public
from anyparty.transport.contract import roles
from docs import generate_tables
from tests.report import site_runs
from tests.slow_parameters import LABEL_HOLDERS, slow_but

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "messages.md"


def lines(name: str) -> list[list[str]]:
    """Return the cells of a table of the page."""
    (mark,) = (
        mark for mark in generate_tables.MARKED.finditer(PAGE.read_text(encoding="utf-8")) if mark["name"] == name
    )
    rows = [line.strip("| ").split(" | ") for line in mark[0].splitlines() if line.startswith("| `")]
    assert rows
    return rows


Promise = tuple[str, str, str, bool]


def promised(method: str, *more: str) -> set[Promise]:
    """Return (message, from, to, whether every run sends it) for all lines of a method."""
    found = set()
    for name in ("alignment", "run", "methods", *more):
        for tag, *of, way, holds, _ in lines(name):
            if of in ([], [generate_tables.ALL_METHODS]) or f"`{method}`" in of[0].split(", "):
                frm, to = way.split(" → ")
                found.add((tag.strip("`"), frm, to, "Sent only if" not in holds))
    return found


def found(crossed: list[dict], roster: Roster, said: set[Promise]) -> set[Promise]:
    """Return the lines of the page that match the messages sent; each message must have one."""
    seen = set()
    for row in crossed:
        frm, to = roles(roster, row["sender"]), roles(roster, row["receiver"])
        fits = {line for line in said if line[0] == row["tag"] and line[1] in frm and line[2] in to}
        assert fits, f"{row['sender']} -> {row['receiver']}: {row['tag']} stands nowhere on the page"
        seen |= fits
    return seen


@pytest.mark.parametrize("name", generate_tables.PAGES)
def test_a_page_has_what_the_code_declares(name):
    page = (generate_tables.DOCS / name).read_text(encoding="utf-8")
    assert generate_tables.with_tables(page, generate_tables.PAGES[name]()) == page, (
        "run: python -m docs.generate_tables"
    )


def test_all_that_other_label_holders_are_told_of_the_task_is_declared():
    """Each field of the task has a word here, and the page has these words."""
    words = {
        "kind": "regression",
        "classes": "the classes",
        "mean": "mean",
        "scale": "scale of",
        "weights": "weight of",
    }
    assert words.keys() == public(Task(kind="classification", label_type="integer")).keys()
    (holds,) = [holds for tag, _, holds, _ in lines("run") if tag == "`setup`"]
    assert [word for word in words.values() if word not in holds] == []


@pytest.mark.slow
def test_stale_tables_are_replaced(tmp_path):
    for name in generate_tables.PAGES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (generate_tables.DOCS / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("how many rows each party has |", "nothing |"), encoding="utf-8")
    generate_tables.main(tmp_path)
    for name in generate_tables.PAGES:
        assert (tmp_path / name).read_text(encoding="utf-8") == (generate_tables.DOCS / name).read_text(
            encoding="utf-8"
        )


def test_a_page_without_a_table_is_rejected():
    with pytest.raises(UserError, match="lacks a place for table 'alignment'"):
        generate_tables.with_tables("# nothing", generate_tables.privacy_tables())
    with pytest.raises(UserError, match="no table 'methds'; did you mean 'methods'"):
        generate_tables.with_tables("<!-- table: methds -->\n<!-- end -->", generate_tables.privacy_tables())


@pytest.mark.filterwarnings("ignore:the labels of party 'clinic' are not used")  # a method that has one host
@pytest.mark.parametrize("two_label_holders", LABEL_HOLDERS, ids=["one label holder", "two"])
@pytest.mark.parametrize("method", slow_but(METHODS, {"laser", "apc", "vfedtrans"}))
def test_messages_are_those_on_the_page(tmp_path, method, two_label_holders):
    config, sites = site_runs.settings(method, two_label_holders=two_label_holders), site_runs.build(tmp_path)
    site_runs.play(sites, config)
    roster, crossed, said = roster_of(sites["bank"], config), site_runs.ledger(sites), promised(method)
    assert {row["sender"] for row in crossed} == set(site_runs.NAMES)
    seen = found(crossed, roster, said)
    assert not {line for line in said - seen if line[3]}, f"the page promises what no party of a {method} run sent"
    assert two_label_holders == any(row["tag"] == "without-cells" for row in crossed)
    hosts = two_label_holders and any(line[0] == "outputs" for line in said)
    assert hosts == any(row["tag"] == "outputs" for row in crossed) == any(row["tag"] == "labelled" for row in crossed)
    site_runs.predict(sites, config)
    asked = promised(method, "prediction") - promised(method)
    predicted = site_runs.ledger(sites, "predictions.json")
    assert found(predicted, roster, said | asked) >= asked
    assert not {row["tag"] for row in predicted} & {"gradient", "verdict", "plan"}


@pytest.mark.parametrize("clock", [None, {"real": True, "timeout": 0.02}], ids=["virtual", "real"])
@pytest.mark.parametrize("schedule", slow_but(SCHEDULES, {"flex", "adaptive-flex", "sync-max"}))
def test_messages_under_a_schedule_are_those_on_the_page(tmp_path, schedule, clock):
    config, sites = site_runs.settings(schedule=schedule, clock=clock), site_runs.build(tmp_path)
    site_runs.play(sites, config)
    seen = found(site_runs.ledger(sites), roster_of(sites["bank"], config), promised("laser", "schedules"))
    tags = {line[0] for line in seen}
    assert ("snapshot" in tags) != ("gradient" in tags)
    assert {"pace", "rate"} <= tags if schedule == "adaptive-flex" else not {"pace", "rate"} & tags
    assert ({"fits", "turns"} <= tags) == (clock is not None and schedule.startswith("sync"))


def test_every_place_that_the_page_names_is_there():
    named = re.findall(r"\]\((\.\./[^)#]+)\)", PAGE.read_text(encoding="utf-8"))
    assert named
    assert [name for name in named if not (PAGE.parent / name).exists()] == []


def test_the_list_of_the_methods_command_is_up_to_date() -> None:
    assert generate_tables.METHODS_FILE.read_text(encoding="utf-8") == generate_tables.methods_list(), (
        "run: python -m docs.generate_tables"
    )
