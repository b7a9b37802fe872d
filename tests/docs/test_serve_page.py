"""The commands, paths, answers and limits in docs/how-to/serve.md exist."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer.main

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from anyparty.cli.app import app as commands
from anyparty.serving import application
from anyparty.serving.http_app import RowAnswer
from anyparty.serving.service_settings import ServiceLimits

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "serve.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)


def lines():
    return [line for kind, text in BLOCKS if kind == "console" for line in text.splitlines() if line.strip()]


def test_commands_parse():
    given = [line for line in lines() if line.startswith("anyparty ")]
    assert given
    for line in given:
        command, words = typer.main.get_command(commands), shlex.split(line, comments=True)[1:]
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context("anyparty", words, resilient_parsing=False)


def test_the_request_and_answer_are_valid(run):
    (asked,) = [line for line in lines() if line.startswith("curl")]
    words = shlex.split(asked)
    assert json.loads(words[words.index("-d") + 1]) == {"ids": ["c0300"]}
    (answer,) = [json.loads(text) for kind, text in BLOCKS if kind == "json"]
    for each in answer["answers"]:
        assert set(each) == set(RowAnswer.model_fields)
        RowAnswer.model_validate(each)
    paths = set(application(run).openapi()["paths"]) | {"/openapi.json"}
    assert set(re.findall(r"^\| `(?:GET|POST) (/[\w/.]+)`", PAGE, re.MULTILINE)) == paths


def test_limits_are_the_defaults():
    limits = ServiceLimits()
    few, many = f"up to {limits.ids} ids; waits {limits.budget_ms:g} ms", f"up to {limits.batch_ids:,} ids"
    connected = f"At most {limits.connections} clients can be connected"
    assert f"At most {limits.at_once} requests are open" in PAGE
    assert re.search(rf"{connected} at the same time, of which at most\s+{limits.client_connections} have", PAGE)
    for words in (few, many, f"waits {limits.batch_budget_ms / 1e3:g} s", f"most {limits.most_budget_ms / 1e3:g} s"):
        assert words in PAGE
