"""Passive parties infer labels from gradients; the docs say for which methods (benchmarks/label_leakage.py)."""

import re
from pathlib import Path

import pytest
from benchmarks.label_leakage import Case, attack, cases, of_dataset

from anyparty.config.method_factory import SCHEDULES
from anyparty.methods.method_registry import METHODS, method
from docs import generate_tables

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "messages.md"
RESULT = PAGE.parents[2] / "benchmarks" / "results" / "label_leakage.md"
SILENT = {"apc", "vfedtrans"}
# Messages that hold a derivative but are not called "gradient", because they reveal nothing about labels:
OTHERS = {("weight", "false-vfl-1"), ("weight", "false-vfl-2")}  # one number for all samples in stages with labels


@pytest.fixture(scope="module")
def frames():
    return of_dataset("breast-cancer", None)


@pytest.mark.parametrize(
    "case",
    [
        Case("", "laser"), Case("", "standard"), Case("", "standard", {"head_hidden": [64]}), Case("", "fedhssl"),
        Case("", "laser", schedule="flex"),
    ],
    ids=["laser", "standard", "MLP head", "fedhssl", "flex"],
)  # fmt: skip
def test_gradients_tell_labels(frames, case):
    found = attack(case, frames, 0)
    by_gradients, _, rows = found.stages["train"]
    assert rows == len(frames["active"])
    assert by_gradients > 0.95


def test_what_the_attacker_has_without_gradients_is_less(frames):
    by_gradients, by_embeddings, _ = attack(Case("", "laser"), frames, 0).stages["train"]
    assert by_embeddings < 0.8 < by_gradients


@pytest.mark.parametrize("name", METHODS)
def test_gradients_reach_the_passive_party_where_they_are_declared_and_nowhere_else(frames, name):
    """The messages are all those that the passive party received in a whole training."""
    small = {who: frame[:128] for who, frame in frames.items()}
    found = attack(Case("", name), small, 0)
    assert found.tags
    sent = bool({"gradient", "residual"} & found.tags.keys())
    assert sent == bool(method(name).can.gradients) == (name not in SILENT)
    assert bool(found.stages) == (name not in SILENT and name != "boosting")  # residuals are labels


@pytest.mark.parametrize("name", METHODS)
def test_a_derivative_that_goes_to_passive_parties_is_called_gradient(name):
    """A new method is then listed automatically, by its declared messages."""
    derivatives = {
        (message.tag, name)
        for message in method(name).can.messages
        if re.search(r"derivative|gradient", message.holds) and message.to != "active"
    }
    assert derivatives - OTHERS <= {("gradient", name)}


def test_the_page_lists_the_methods_that_send_gradients_and_those_that_do_not():
    (mark,) = (m for m in generate_tables.MARKED.finditer(PAGE.read_text(encoding="utf-8")) if m["name"] == "gradients")
    listed: dict[str, set[str]] = {"yes": set(), "no": set()}
    for line in mark[0].splitlines():
        if line.startswith(("| yes |", "| no |")):
            sends, names, _ = line.strip("| ").split(" | ")
            listed[sends] |= set(re.findall(r"`([\w-]+)`", names))
    assert listed["yes"] == {name for name in METHODS if method(name).can.gradients}
    assert listed["no"] == METHODS.keys() - listed["yes"] == SILENT


def test_the_result_has_every_case():
    """All methods and schedules are attacked, and the page has every number; boosting's residuals are the labels."""
    assert {case.method for case in cases()} == METHODS.keys() - {"boosting"}
    assert {case.schedule for case in cases()} - {""} == SCHEDULES.keys()
    text = RESULT.read_text(encoding="utf-8")
    assert [case.title for case in cases() if f"| {case.title} |" not in text] == []
    assert "--quick" not in text


def test_the_command_says_it(call):
    shown = " ".join(call("methods").stdout.split())
    for name in SILENT:
        assert re.search(rf"{name}\b[^:.]*: sends no gradients to passive parties\.", shown)
    said = r"laser, sum, fedhssl: sends gradients to passive parties\. They can learn: with two classes"
    assert re.search(said, shown)
