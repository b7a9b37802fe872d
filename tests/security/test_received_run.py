"""A run or a model from another person: which files are opened, and how much is read."""

import hashlib
import json
import os
import shutil
import tomllib

import pytest
import tomli_w

from anyparty.api.model import Model
from anyparty.api.runs import evaluate_run, frame, own_tables, predict_run, settings_of
from anyparty.artifacts.model_files import Manifest
from anyparty.core import figure_style as style
from anyparty.core.storage import MAX_TEXT_BYTES
from anyparty.errors import ModelError

SECRET = "a secret sentence of another file"  # noqa: S105 - not a password
FILES = ("record.json", "config.toml", "model.json", "manifest.json", "parties/bank/party.json")
WEIGHTS = "parties/bank/model.safetensors"


@pytest.fixture
def received(run, tmp_path, monkeypatch):
    """A copy of a run, as after unpacking an archive."""
    monkeypatch.setattr(style, "png", lambda _: b"")  # figures take seconds
    shutil.copytree(run, tmp_path / "received", ignore=shutil.ignore_patterns("report"))
    return tmp_path / "received"


def commands(call, folder):
    """Return the exit code and the output of each command that reads a run."""
    words = [("report", folder, "--out", folder.parent / "page"), ("predict", folder), ("evaluate", folder)]
    ended = [call(*each) for each in words]
    assert all(isinstance(each.exception, SystemExit | None) for each in ended)
    return {each[0]: (end.exit_code, end.output) for each, end in zip(words, ended, strict=True)}


# ---- files outside the folder


def test_a_received_run_opens_no_table_outside_its_folder(received, tmp_path, call):
    """A named pipe in place of the table would block the command if it were opened."""
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "other.csv").write_text(f"{SECRET}\n{SECRET}\n")
    settings = tomllib.loads((received / "config.toml").read_text())
    for table in ("pipe.csv", "other.csv"):
        for party in settings["parties"].values():
            party["table"] = str(tmp_path / table)
        (received / "config.toml").write_text(tomli_w.dumps(settings))
        shown = commands(call, received)
        assert [shown[name][0] for name in ("predict", "evaluate")] == [2, 2]
        page = (tmp_path / "page" / "index.html").read_text()
        for text in (shown["predict"][1], shown["evaluate"][1], page):
            assert "this folder is a copy" in " ".join(text.split())
        assert not any(SECRET in text for text in (page, *(text for _, text in shown.values())))


def test_a_link_in_a_received_run_is_not_followed(received, tmp_path, call):
    (tmp_path / "other.txt").write_text(SECRET)
    for name in ("record.json", "config.toml", "model.json"):
        kept = (received / name).read_bytes()
        (received / name).unlink()
        (received / name).symlink_to(tmp_path / "other.txt")
        for _, text in commands(call, received).values():
            assert SECRET not in text
        if name != "model.json":
            with pytest.raises(ModelError, match="leads out of the folder"):
                frame(str(received)) if name == "record.json" else settings_of(received)
        (received / name).unlink()
        (received / name).write_bytes(kept)


def test_a_copied_run_uses_the_tables_that_the_user_names(received, run):
    tables = own_tables(run)
    assert predict_run(received, tables).frame().equals(predict_run(run).frame())
    with pytest.warns(UserWarning, match="only the rows that its run held out are scored"):
        assert evaluate_run(received, tables).overall == evaluate_run(run).overall
    with pytest.raises(ModelError, match="this folder is a copy"):
        predict_run(received)


def test_a_copied_run_may_hold_its_tables(received, run):
    settings = tomllib.loads((received / "config.toml").read_text())
    for name, path in own_tables(run).items():
        shutil.copy(path, received / f"{name}.csv")
        settings["parties"][name]["table"] = f"{name}.csv"
    (received / "config.toml").write_text(tomli_w.dumps(settings))
    assert predict_run(received).frame().equals(predict_run(run).frame())


def test_a_renamed_run_is_no_copy(run, tmp_path):
    folder = run.with_name("renamed")
    before = predict_run(run).frame()
    run.rename(folder)
    try:
        assert predict_run(folder).frame().equals(before)
    finally:
        folder.rename(run)


# ---- names in a manifest


@pytest.mark.parametrize("name", ["../secret", "parties/../../secret", "/etc/passwd", "a//b", "..\\secret", ".", ""])
def test_a_name_in_a_manifest_that_leads_out_of_the_folder_is_refused(received, name):
    path = received / "manifest.json"
    values = json.loads(path.read_text())
    values["files"][name] = hashlib.sha256(b"").hexdigest()
    path.write_text(json.dumps(values))
    with pytest.raises(ModelError, match="expected the name of a file inside the folder"):
        Manifest.read(received)
    with pytest.raises(ModelError, match="this is not a manifest of anyparty"):
        Model.load(received)


# ---- files that are not regular, or huge


@pytest.mark.parametrize("file", [*FILES, WEIGHTS])
def test_a_named_pipe_in_place_of_a_file_is_refused(received, file, call):
    (received / file).unlink()
    os.mkfifo(received / file)
    shown = commands(call, received)
    assert [shown[name][0] for name in ("predict", "evaluate")] == [2, 2]
    assert "it is not a regular file" in " ".join(shown["predict"][1].split())


@pytest.mark.parametrize("file", FILES)
def test_a_huge_file_is_refused(received, file, call):
    """It has a gigabyte, of which the disk stores nothing."""
    with (received / file).open("r+b") as opened:
        opened.truncate(1 << 30)
    shown = commands(call, received)
    assert shown["predict"][0] == 2
    assert f"it has 1,073,741,824 bytes, and the limit is {MAX_TEXT_BYTES:,}" in " ".join(shown["predict"][1].split())
