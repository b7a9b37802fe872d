"""Reports on runs of a user's own method: complete if the method is passed, with a reason otherwise."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial

import pytest
from torch import nn

from anyparty import config
from anyparty.api.federation import Federation
from anyparty.errors import ConfigError, ModelError
from anyparty.methods.split.rule import EMBEDDING, GRADIENT
from anyparty.methods.split.split_method import Split
from anyparty.methods.split.standard import Standard
from anyparty.report import page, party_set_scores
from anyparty.report.recorded_runs import find_runs
from anyparty.report.traffic import declared_messages, undeclared_tags
from tests.report import trained_runs
from tests.report.test_page import Reader


@dataclass(frozen=True, kw_only=True)
class Warm(Standard):
    """A user's own rule, which needs any one party."""

    temperature: float = 1.0
    needs: str = "any"

    @property
    def can(self):
        embedding = replace(EMBEDDING, learns="how warm a row is")
        return replace(super().can, title="Warm", messages=(embedding, GRADIENT))


WARM, WARMER = (Split(rule=Warm(temperature=each), embedding=4) for each in (0.5, 5.0))
ENCODERS = {"shop": nn.Linear}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train two own methods, the second with an own network, and two built-in ones; tests must not change the runs."""
    settings = trained_runs.write(tmp_path_factory.mktemp("own"), trained_runs.FIVE[:2])
    made = {name: trained_runs.train(settings, name, f"method.name={name}") for name in ("laser", "standard")}
    federation = Federation.from_config(config.load(settings))
    for name, how in {
        "warm": (WARM, {}),
        "warmer": (WARMER, {"encoder": {"shop": partial(nn.Linear)}}),
    }.items():
        federation.train(how[0], folder=settings.parent / name, **how[1])
        made[name] = settings.parent / name
    return made


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(party_set_scores, "RESAMPLES", 5)


def test_runs_with_their_methods_are_complete(runs, tmp_path):
    """Methods are passed by name or folder; two temperatures are two variants."""
    given = {"methods": {"warm": WARM, str(runs["warmer"]): WARMER}, "encoders": {"warmer": ENCODERS}}
    shown = Reader(page.write(runs.values(), tmp_path, **given))
    variants = {row[0] for table in shown.tables if table[0][0] == "variant" for row in table[1:]}
    assert any("own: Warm (method.own.rule.temperature = 0.5" in name for name in variants)
    assert "Not among the differences" not in shown.text
    assert "Not computed" not in shown.text
    assert sum(table[0][:2] == ["party", "contribution"] for table in shown.tables) == 4
    assert sum(table[0] == ["parties", "accuracy"] for table in shown.tables) == 4


@pytest.mark.slow
def test_a_missing_method_is_named_with_how_to_pass_it(runs, tmp_path):
    shown = Reader(page.write(runs.values(), tmp_path, methods={"warmer": WARMER}))
    assert "page.write(..., methods={'warm': METHOD})" in shown.text
    assert "page.write(..., encoders={'warmer': {'shop': ...}})" in shown.text
    assert shown.text.count("Not among the differences, which need the model and its tables: 'warm") == 2
    differs = next(table for table in shown.tables if table[0][0] == "variant")
    assert [row[:2] for row in differs[1:]] == [["standard", "laser"]]


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"methods": {"warm": WARMER}}, ModelError, "the one that was trained: rule.temperature was 0.5, is 5.0"),
        ({"methods": {"worm": WARM}}, ConfigError, "methods: 'worm' is not a run on the page; did .* 'warm'"),
        ({"encoders": {"shop": nn.Linear}}, ConfigError, "encoders: 'shop' is not a run on the page; known"),
        ({"methods": WARM}, ConfigError, r"methods: expected a mapping from names of runs, \{'warm': \.\.\.\}"),
    ],
)
def test_an_unknown_run_or_another_method_is_rejected(runs, tmp_path, given, kind, said):
    with pytest.raises(kind, match=said):
        page.write([runs["warm"], runs["laser"]], tmp_path, **given)


def test_declared_messages_are_explained_in_their_words(runs, tmp_path):
    shown = Reader(page.write(runs["warm"], tmp_path / "page", model=False))
    (row,) = shown.messages("embedding")
    assert (row[:3], row[4]) == (["embedding", "shop", "bank"], "how warm a row is")
    assert "not in the record" not in shown.text
    assert {row[2] for table in shown.tables if table[0][:3] == ["between", "and", "message"] for row in table[1:]} == {
        "embedding",
        "gradient",
    }


def test_an_older_record_has_no_declarations(runs, tmp_path):
    kept = json.loads((runs["warm"] / "record.json").read_text())
    del kept["declared"]
    (tmp_path / "record.json").write_text(json.dumps(kept))
    (tmp_path / "config.toml").write_bytes((runs["warm"] / "config.toml").read_bytes())
    shown = Reader(page.write(tmp_path, tmp_path / "page", model=False))
    (row,) = shown.messages("embedding")
    assert row[3:5] == ["not in the record", ""]
    assert "The record does not say what these messages reveal: embedding, gradient." in shown.text
    (run,) = find_runs([tmp_path])
    assert undeclared_tags(run.ledger, declared_messages(WARM.can.messages)) == []
