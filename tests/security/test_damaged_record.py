"""Damaged, nested, huge or wrongly typed files of a run cause an error message, never a stack trace."""

import json
import shutil
import tomllib

import pytest
import tomli_w

from anyparty.api.model import Model
from anyparty.core import figure_style as style
from anyparty.errors import AnypartyError

pytestmark = pytest.mark.slow  # a report is written for each damage
DEEP = 20_000
WRONG = {
    "null": None, "true": True, "number": 7, "huge number": 10**400, "text": "x", "list": [], "list of text": ["x"],
    "list of tables": [{}], "table": {}, "table of tables": {"x": {}}, "table of lists": {"x": [1]},
    "markup": "<script>alert(1)</script>", "surrogate": "\ud800",
}  # fmt: skip
WHOLE = {
    "empty": b"", "not UTF-8": b"\xff\xfe\x00", "null": b"null", "number": b"3", "list": b"[]", "table": b"{}",
    "nested lists": b"[" * DEEP, "nested lists, closed": b"[" * DEEP + b"]" * DEEP,
    "nested tables": b'{"a":' * DEEP, "nested in a key": b'{"history":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "digits": b'{"rows": ' + b"9" * 10_000 + b"}", "infinity": b'{"rows": Infinity}', "NaN": b'{"best_epoch": NaN}',
    "exponent": b'{"rows": 1e999}', "same key": b'{"format": 1, "format": 2}', "zeros": b"\x00" * 4096,
}  # fmt: skip
TOML = {
    "nested lists": b"a = " + b"[" * DEEP, "nested lists, closed": b"a = " + b"[" * DEEP + b"]" * DEEP,
    "nested tables": b"[" + b".".join([b"a"] * DEEP) + b"]", "nested inline": b"a = " + b"{a=" * DEEP,
    "digits": b"[train]\nepochs = " + b"9" * 10_000, "same key": b"a = 1\na = 2",
}  # fmt: skip
KEYS = (
    "format", "status", "error", "began", "ended", "versions", "tables", "rows", "overlap", "history", "ledger",
    "best_epoch", "costs", "evaluation", "remarks", "declared", "party", "parties", "active", "settings", "agreed",
    "shape", "alignment", "job",
)  # fmt: skip
GROUPS = ("federation", "parties", "encoder", "optimizer", "method", "schedule", "clock", "train", "run", "track")


@pytest.fixture
def copy(run, tmp_path, monkeypatch):
    monkeypatch.setattr(style, "png", lambda _: b"")  # figures take seconds, and would be the same
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("report"))
    return tmp_path / "run"


def of_commands(call, copy):
    """Return an entry for each command that ended neither successfully nor with an error message."""
    ends = {}
    for words in (("report", copy, "--no-model", "--out", copy / "page"), ("predict", copy)):
        ended = call(*words)
        if not isinstance(ended.exception, SystemExit | None) or ended.exit_code not in {0, 2}:
            ends[words[0]] = f"{type(ended.exception).__name__}: {str(ended.exception)[:90]}"
    try:
        Model.load(copy)
    except AnypartyError:
        pass
    except Exception as error:
        ends["Model.load"] = f"{type(error).__name__}: {str(error)[:90]}"
    return ends


@pytest.mark.parametrize("damage", WHOLE)
@pytest.mark.parametrize("file", ["record.json", "model.json"])
def test_a_file_that_is_something_else(copy, call, file, damage):
    (copy / file).write_bytes(WHOLE[damage])
    assert of_commands(call, copy) == {}


@pytest.mark.parametrize("damage", [*WHOLE, *(f"toml: {name}" for name in TOML)])
def test_settings_that_are_something_else(copy, call, damage):
    (copy / "config.toml").write_bytes(TOML[damage[6:]] if damage.startswith("toml: ") else WHOLE[damage])
    assert of_commands(call, copy) == {}


@pytest.mark.parametrize("key", KEYS)
def test_a_record_of_which_one_value_is_of_another_kind(copy, call, key):
    path, ends = copy / "record.json", {}
    whole = json.loads(path.read_text())
    for damage, value in list(WRONG.items())[KEYS.index(key) % 2 :: 2]:
        path.write_text(json.dumps(whole | {key: value}))
        if found := of_commands(call, copy):
            ends[damage] = found
    assert ends == {}


@pytest.mark.parametrize("group", GROUPS)
def test_settings_of_which_one_group_is_of_another_kind(copy, call, group):
    path, ends = copy / "config.toml", {}
    whole = tomllib.loads(path.read_text())
    values = {name: value for name, value in WRONG.items() if name not in {"null", "huge number", "surrogate"}}
    for damage, value in list(values.items())[GROUPS.index(group) % 2 :: 2]:
        path.write_text(tomli_w.dumps(whole | {group: value}))
        if found := of_commands(call, copy):
            ends[damage] = found
    assert ends == {}


@pytest.mark.parametrize("where", [
    ("evaluation", "overall"), ("evaluation", "by_count"), ("evaluation", "by_pattern"), ("evaluation", "classes"),
    ("overlap", "held"), ("overlap", "alone"), ("overlap", "blocks"),
])  # fmt: skip
def test_a_record_of_which_a_deeper_value_is_of_another_kind(copy, call, where):
    whole, ends = json.loads((copy / "record.json").read_text()), {}
    for damage in ("null", "number", "text", "list", "table", "list of text", "table of tables"):
        whole[where[0]][where[1]] = WRONG[damage]
        (copy / "record.json").write_text(json.dumps(whole))
        if found := of_commands(call, copy):
            ends[damage] = found
    assert ends == {}
