"""``--json``: every command that prints a table has it, and prints the keys that the reference documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer.main

import anyparty
from anyparty.cli import demo as local_demo
from anyparty.cli.app import app
from anyparty.cli.json_keys import JSON_KEYS
from anyparty.deployment import coordinator
from anyparty.deployment.flare import federation_folder
from tests.cli.test_demo import made_up
from tests.conftest import Call

WITHOUT = {  # commands that print sentences, write files or wait
    "serve", "federate init", "federate approve", "federate start", "federate demo", "federate stop", "party request",
    "party install", "party start",
}  # fmt: skip
ALWAYS = {"federate status"}  # prints JSON without the option


def objects_at(value: Any, path: str) -> Iterator[dict[str, Any]]:
    """Yield the objects at a path of keys; lists are entered."""
    if isinstance(value, list):
        for each in value:
            yield from objects_at(each, path)
    elif not path:
        assert isinstance(value, dict)
        yield value
    else:
        key, _, rest = path.partition(".")
        yield from objects_at(value[key], rest)


def check(command: str, printed: str) -> dict[str, Any]:
    """Compare the keys of a command's output with the documented ones, and return the output."""
    found: dict[str, Any] = json.loads(printed)
    documented = JSON_KEYS[command]
    for parent in {key.rpartition(".")[0] for key in documented}:
        children = {key[len(parent) :].lstrip(".") for key in documented if key.rpartition(".")[0] == parent}
        seen = list(objects_at(found, parent))
        assert seen, f"{command}: no object at {parent!r} shows the documented keys"
        for each in seen:
            assert set(each) == children, parent or "the object itself"
    return found


def commands(of: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, child in getattr(of, "commands", {}).items():
        if getattr(child, "commands", None):
            yield from commands(child, (*words, name))
        else:
            yield " ".join((*words, name)), child


def test_every_command_that_prints_a_table_has_a_json_option() -> None:
    known = dict(commands(typer.main.get_command(app)))
    having = {name for name, each in known.items() if any("--json" in option.opts for option in each.params)}
    assert having == set(known) - WITHOUT - ALWAYS
    assert {name.removesuffix(" NAME").removesuffix(" --list") for name in JSON_KEYS} == having | ALWAYS


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "RUN"],
        ["predict", "RUN"],
        ["report", "RUN", "--out", "page.html"],
        ["align", "credit.toml"],
        ["train", "credit.toml", "--set", "train.epochs=1"],
        ["train", "credit.toml", "--quiet", "--set", "train.epochs=1"],
        ["init", "bank.csv", "shop.csv"],
        ["inspect-encoder", "credit.toml", "--epochs", "2", "--every", "1", "--folds", "3"],
        ["attack", "credit.toml", "--set", "train.epochs=1"],
        ["methods"],
        ["check", "torch.nn:Linear"],
        ["settings", "train"],
        ["cite", "laser"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_json_keys_equal_the_documented_ones(work: Path, run: Path, call: Call, words: list[str]) -> None:
    shown = call(*(run if word == "RUN" else word for word in words), "--json")
    check(words[0], shown.stdout)


def test_a_single_method_is_printed_as_json(call: Call) -> None:
    found = check("methods NAME", call("methods", "laser", "--json").stdout)
    assert found["name"] == "laser"
    assert "embedding" in {each["name"] for each in found["parameters"]}
    assert all(each["meaning"] for each in found["parameters"])


def test_json_values_equal_those_of_the_table(run: Path, tmp_path: Path, call: Call) -> None:
    found = check("predict", call("predict", run, "--parties", "bank", "--json").stdout)
    call("predict", run, "--parties", "bank", "--out", tmp_path / "answers.parquet")
    frame = pl.read_parquet(tmp_path / "answers.parquet")
    assert found["answered"] == 100
    assert found["answered_by"] == [{"parties": ["bank"], "rows": 100}]
    assert [row["prediction"] for row in found["rows"]] == frame["prediction"].to_list()
    kept = check("predict", call("predict", run, "--out", tmp_path / "all.csv", "--json").stdout)
    assert (kept["rows"], kept["out"]) == (None, str(tmp_path / "all.csv"))


def test_the_list_of_published_tables_is_printed_as_json(call: Call) -> None:
    found = check("bench --list", call("bench", "--list", "--json").stdout)
    assert {"LASER-VFL", "Flex-VFL", "APC-VFL", "FALSE-VFL"} == {each["paper"] for each in found["entries"]}


def test_an_error_leaves_stdout_empty(work: Path, call: Call) -> None:
    for words in (["evaluate", "nowhere"], ["train", "none.toml"], ["methods", "lazer"]):
        shown = call(*words, "--json")
        assert (shown.exit_code, shown.stdout) == (2, "")
        assert shown.stderr


def test_compare_prints_json(work: Path, call: Call) -> None:
    words = ["credit.toml", "--methods", "local,ensemble", "--seeds", 2, "--missing", 0, "--set", "train.epochs=1"]
    found = check("compare", call("compare", *words, "--json").stdout)
    assert [row["method"] for row in found["differences"]] == ["ensemble"]
    assert {row["method"] for row in found["scores"]} == {"local", "ensemble"}


def test_sweep_prints_json(work: Path, call: Call) -> None:
    pytest.importorskip("optuna")
    (work / "sweep.toml").write_text("settings = 'credit.toml'\n[space]\n\"optimizer.lr\" = [0.001, 0.01]\n"
                                     "\"train.epochs\" = [1]\n")  # fmt: skip
    found = check("sweep", call("sweep", "sweep.toml", "--json").stdout)
    assert [row["status"] for row in found["runs"]] == ["done", "done"]
    assert {"run", "optimizer.lr"} <= set(found["runs"][0])


def test_impute_and_likelihood_print_json(work: Path, call: Call) -> None:
    changes = [word for change in ("method.name=false-vfl-1", "train.epochs=1", "run.folder=runs/false")
               for word in ("--set", change)]  # fmt: skip
    call("train", "credit.toml", "--quiet", *changes)
    filled = check("impute", call("impute", "runs/false", "--party", "shop", "--json").stdout)
    assert len(filled["rows"]) == 30
    likely = check("likelihood", call("likelihood", "runs/false", "--json").stdout)
    assert set(likely["rows"][0]) == {"id", "log_likelihood", "parties"}


def test_bench_prints_json(tmp_path: Path, call: Call) -> None:
    words = ["apc-kept", "--dataset", "breast-cancer", "--method", "local", "--seeds", 1, "--quick"]
    found = check("bench", call("bench", *words, "--folder", tmp_path / "runs", "--json").stdout)
    assert {cell["facts"]["dataset"] for cell in found["cells"]} == {"breast-cancer"}


def test_demo_prints_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    monkeypatch.setattr(local_demo, "run", lambda *_, **__: made_up({"Local": [0.9, 0.8], "Standard VFL": [0.7, None]}))
    found = check("demo", call("demo", tmp_path, "--json").stdout)
    assert "Standard VFL cannot answer if a party is away." in found["verdicts"]


def test_federate_commands_print_json(work: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    answers = work / "answers.parquet"
    pl.DataFrame({"customer": ["c001"], "prediction": ["yes"]}).write_parquet(answers)
    outcomes = {
        "bank": {"sentence": "", "result": {"silent": ["shop"], "evaluation": {"overall": {"accuracy": 0.9}}}},
        "shop": {"sentence": "shop: stopped", "result": None},
    }
    ended = coordinator.JobResult(job="job 1", status="FINISHED:COMPLETED", outcomes=outcomes)
    monkeypatch.setattr(coordinator, "train", lambda *_, **__: ended)
    monkeypatch.setattr(coordinator, "predict", lambda *_, **__: (ended, answers))
    monkeypatch.setattr(federation_folder, "read_federation", lambda _: {"active": "bank", "parties": ["bank", "shop"]})
    job = {"job_id": "job 1", "status": "RUNNING", "submit_time_iso": "2026-11-25", "duration": "1 s"}
    monkeypatch.setattr(
        federation_folder, "ask_server", lambda *_, **__: {"server": "idle", "sites": [], "jobs": [job]}
    )
    trained = check("federate train", call("federate", "train", "house", "credit.toml", "--json").stdout)
    assert trained["parties"] == {"bank": "done", "shop": "shop: stopped"}
    assert trained["evaluation"] == {"accuracy": 0.9}
    predicted = check("federate predict", call("federate", "predict", "house", "credit.toml", "--json").stdout)
    assert predicted["silent"] == ["shop"]
    assert predicted["rows"] == [{"customer": "c001", "prediction": "yes"}]
    check("federate status", call("federate", "status", "house").stdout)


def test_numbers_that_are_not_finite_become_null(capsys: pytest.CaptureFixture[str]) -> None:
    from anyparty.cli.console import screen  # noqa: PLC0415

    screen(as_json=True).result(lambda: {"score": float("nan"), "place": Path("runs"), "version": anyparty.__version__})
    assert json.loads(capsys.readouterr().out) == {"score": None, "place": "runs", "version": anyparty.__version__}
