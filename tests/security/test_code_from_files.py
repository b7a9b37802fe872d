"""A run's or a model's folder never executes code, and never reads or allocates more than it holds."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from anyparty import config as settings
from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.api.runs import evaluate_run, predict_run
from anyparty.artifacts.model_files import Manifest, sha256, write_manifest
from anyparty.config import Config
from anyparty.deployment.site.site_prediction import StoredPart
from anyparty.errors import CodeNotAllowed, ConfigError, ModelError
from anyparty.report import page
from anyparty.serving import application
from tests.conftest import adopt
from tests.deployment import test_site_training as site_training_tests

CANARY = "canary"
COMMANDS = (
    "evaluate RUN", "predict RUN", "report RUN", "train RUN/config.toml --run RUN --resume",
    "train RUN/config.toml --run NEW",
)  # fmt: skip
CODE = """
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from anyparty.methods.split.plug import Plug

Path({canary!r}).touch()


@dataclass(frozen=True, kw_only=True)
class Mine(Plug):
    pass


class Net(nn.Linear):
    pass


def make(inputs: int, outputs: int) -> nn.Module:
    return Net(inputs, outputs)


def unannotated(inputs, outputs):
    Path({canary!r}).touch()


def of_another_kind() -> str:
    Path({canary!r}).touch()
"""
METHODS = {
    "a function of os": 'factory = "os:system"\ncommand = "touch {canary}"',
    "builtins.exec": 'factory = "builtins:exec"\nsource = "open({canary!r}, \'w\')"',
    "subprocess.run": 'factory = "subprocess:run"\nargs = ["touch", "{canary}"]',
    "a class of an installed package": 'factory = "typer.testing:CliRunner"',
    "a module beside the run": 'factory = "evil:Mine"',
    "a relative module": 'factory = ".evil:Mine"',
    "a file": 'factory = "./evil.py:Mine"',
    "a path through an allowed name": 'factory = "evil:os.system"\ncommand = "touch {canary}"',
}
ENCODERS = {
    "an encoder of os": 'factory = "os:system"',
    "an encoder beside the run": 'factory = "evil:Net"',
    "an encoder of an installed package": 'factory = "typer.testing:CliRunner"',
}


def crossed(ways, inputs):
    """Return each way with two of the inputs, and the first way with each input: all ways share the reading."""
    (first, *others), (one, *_, last) = ways, inputs
    return [*((first, each) for each in inputs), *((way, each) for way in others for each in (one, last))]


@pytest.fixture(autouse=True)
def _no_leftovers(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    sys.modules.pop("evil", None)
    yield
    sys.modules.pop("evil", None)


@pytest.fixture
def received(trained: Path, tmp_path: Path, monkeypatch) -> Path:
    """Return a run as received by mail, with a module beside it; the current folder is another."""
    mail = tmp_path / "mail"
    shutil.copytree(trained, mail)
    run = mail / "runs" / "credit-laser-seed1"
    for folder in (mail, run.parent, run):
        (folder / "evil.py").write_text(CODE.format(canary=str(tmp_path / CANARY)), encoding="utf-8")
    for name in ("bank", "shop"):
        _edit(run / "config.toml", str(trained / f"{name}.csv"), str(mail / f"{name}.csv"))
    adopt(run)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return run


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def _poison(run: Path, which: str) -> Path:
    """Change the run's settings so that they name code; return the file that must not appear."""
    canary = run.parents[2] / CANARY
    config = run / "config.toml"
    if which in METHODS:
        _edit(config, '[method]\nname = "laser"', '[method]\nname = "mine"\n' + METHODS[which].format(canary=canary))
        return canary
    text = config.read_text(encoding="utf-8")
    head, _, rest = text.partition("[encoder]\n")
    _, _, tail = rest.partition("\n[optimizer]")
    config.write_text(f"{head}[encoder]\n{ENCODERS[which]}\n\n[optimizer]{tail}", encoding="utf-8")
    return canary


def _job(run: Path) -> None:
    """Predict at a site whose job contains the run's settings."""
    site = site_training_tests.Site("bank", run.parents[1] / "bank.csv", run, parties=("bank", "shop"))
    StoredPart.of(site, Config.of(settings.load(run / "config.toml").model_dump(exclude_none=True)))


WAYS: dict[str, Callable[[Path], object]] = {
    "evaluate": evaluate_run,
    "predict": predict_run,
    "serve": application,
    "report --model": lambda run: page.write([run], run / "page", model=True),
    "federate predict": _job,
    "train the run's own settings": lambda run: Federation.from_config(run / "config.toml").train(),
    "resume": lambda run: Federation.from_config(run / "config.toml").train(folder=run, resume=True, epochs=4),
    "Model.load": Model.load,
}


@pytest.mark.parametrize(("way", "which"), crossed(WAYS, [*METHODS, *ENCODERS]))
def test_code_that_a_folder_names_is_not_run(received, which, way):
    canary = _poison(received, which)
    if way in {"report --model", "Model.load"}:  # a report gives the reason on its page; Model.load reads no settings
        WAYS[way](received)
    else:
        with pytest.raises(ConfigError, match=r"^[^\n]*(factory|the party's own settings do not allow it)[^\n]*$"):
            WAYS[way](received)
    assert not canary.exists()
    assert "evil" not in sys.modules
    assert not {str(received), *map(str, received.parents[:2])} & set(sys.path)


@pytest.mark.slow  # the functions of the commands are tested above
@pytest.mark.parametrize(("words", "which"), crossed(COMMANDS, ["a module beside the run", "an encoder of os"]))
def test_commands_do_not_run_it_either(received, call, which, words):
    canary = _poison(received, which)
    result = call(*(word.replace("RUN", str(received)) for word in words.split()))
    assert not canary.exists()
    assert "Traceback" not in result.output
    if "report" not in words:
        assert result.exit_code == 2
        (line,) = [line for line in result.stderr.splitlines() if "factory" in line]
        assert "standard library" in line or "--allow-code" in line or "write it as 'module:name'" in line
    else:
        assert result.exit_code == 0


def test_the_user_can_allow_a_module(received, call, monkeypatch):
    canary = _poison(received, "an encoder beside the run")
    with pytest.raises(CodeNotAllowed, match=r"'evil:Net'.*--allow-code evil, in Python allow_code=\('evil',\)"):
        evaluate_run(received)
    with pytest.raises(CodeNotAllowed):
        evaluate_run(received, allow_code=("evil.other", "evi"))
    assert not canary.exists()
    monkeypatch.chdir(received.parents[1])  # folder of the user's own copy of the module
    result = call("evaluate", received, "--allow-code", "evil")
    assert canary.exists()  # the module was imported; an error reports that the weights are of another network
    assert "its weights do not fit" in result.stderr


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("evil:os.system", "defined in another module, 'posix'"),
        ("evil:subprocess.run", "defined in another module, 'subprocess'"),
        ("evil:Plug", "defined in another module, 'anyparty.methods.split.plug'"),
        ("evil:Path", "defined in another module, 'pathlib"),
        ("evil:Net", "another kind of class"),
        ("evil:unannotated", "a function whose return annotation is missing"),
        ("evil:of_another_kind", "a function whose return annotation is another"),
        ("evil:make", "a function whose return annotation is another"),
        ("os:system", "standard library"),
        ("builtins:exec", "standard library"),
    ],
)
def test_even_an_allowed_module_gives_only_a_method_of_its_own(received, monkeypatch, reference, said):
    _edit(received / "config.toml", '[method]\nname = "laser"', f'[method]\nname = "mine"\nfactory = "{reference}"')
    monkeypatch.syspath_prepend(received.parents[1])
    canary = received.parents[2] / CANARY
    with pytest.raises(ConfigError, match=said):
        evaluate_run(received, allow_code=("evil", "os", "builtins"))
    canary.unlink(missing_ok=True)  # the import of the allowed module created it; after that, no code may be called
    with pytest.raises(ConfigError, match=said):
        evaluate_run(received, allow_code=("evil", "os", "builtins"))
    assert not canary.exists()


def test_an_entry_point_of_an_installed_package_is_loaded(received, tmp_path, monkeypatch):
    installed = tmp_path / "installed"
    (installed / "evil-1.dist-info").mkdir(parents=True)
    (installed / "evil.py").write_text(CODE.format(canary=str(tmp_path / CANARY)), encoding="utf-8")
    (installed / "evil-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    (installed / "evil-1.dist-info" / "entry_points.txt").write_text("[anyparty.encoders]\nnet = evil:Net\n")
    monkeypatch.syspath_prepend(installed)
    _poison(received, "an encoder beside the run")
    with pytest.raises(ModelError, match="its weights do not fit"):  # it was loaded, but is another network
        evaluate_run(received)
    _edit(received / "config.toml", '[method]\nname = "laser"', '[method]\nname = "m"\nfactory = "evil:Net"')
    with pytest.raises(CodeNotAllowed):  # the entry point group is for encoders
        evaluate_run(received)


def test_an_own_settings_file_may_name_code_and_the_command_says_which(work, call, tmp_path):
    (work / "evil.py").write_text(CODE.format(canary=str(tmp_path / CANARY)), encoding="utf-8")
    result = call("train", "credit.toml", "--set", "method.factory=evil:Mine", "--set", "train.epochs=1")
    assert result.exit_code == 0, result.output
    assert f"The settings load your own code: evil:Mine from {work / 'evil.py'}" in result.stdout
    run = work / "runs" / "credit-Mine-seed1"
    assert call("evaluate", run).exit_code == 2
    assert call("evaluate", run, "--allow-code", "evil").exit_code == 0
    assert "--allow-code evil" in call("report", run).stdout or "--allow-code evil" in (
        run / "report" / "index.html"
    ).read_text(encoding="utf-8")


def test_a_report_imports_no_method_and_no_encoder(received):
    _imports_none("report", str(received), "--no-model")


@pytest.mark.slow
def test_the_doctor_imports_no_method_and_no_encoder():
    _imports_none("doctor")


METHODS_AND_ENCODERS = (
    "anyparty.methods.false_vfl", "anyparty.methods.method_registry", "anyparty.methods.one_exchange",
    "anyparty.methods.split", "anyparty.networks",
)  # fmt: skip


def _imports_none(*words: str) -> None:
    done = subprocess.run(  # noqa: S603 - this Python
        [sys.executable, "-X", "importtime", "-m", "anyparty", *words], capture_output=True, text=True, check=False
    )
    assert "import time" in done.stderr
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time")]
    assert "anyparty.cli.app" in imported
    assert not [name for name in imported if name.startswith(METHODS_AND_ENCODERS)]


# ---- a model's files


@pytest.fixture
def model(received: Path) -> Path:
    """The model in the run."""
    return received


LOADS = {
    "Model.load": Model.load,
    "evaluate": evaluate_run,
    "predict": predict_run,
    "serve": application,
    "federate predict": lambda run: StoredPart.of(
        site_training_tests.Site("bank", run.parents[1] / "bank.csv", run, parties=("bank", "shop"))
    ),
}


PARTS = ["model.json", "parties/bank/party.json", "parties/bank/model.safetensors"]


@pytest.mark.parametrize("file", PARTS)
def test_a_changed_file_is_refused(model, file):
    data = bytearray((model / file).read_bytes())
    if file.endswith(".json"):
        data += b"\n"  # still the same JSON: only the hash tells
    else:
        data[-2] ^= 1
    (model / file).write_bytes(data)
    for load in LOADS.values():
        with pytest.raises(ModelError, match=f"{Path(file).name}: this is not the file that the model was saved with"):
            load(model)


@pytest.mark.parametrize("file", PARTS)
def test_a_manifest_without_a_part_is_refused(model, file):
    manifest = json.loads((model / "manifest.json").read_text())
    del manifest["files"][file]
    (model / "manifest.json").write_text(json.dumps(manifest))
    for load in LOADS.values():
        with pytest.raises(ModelError, match=rf"manifest\.json does not list {file}"):
            load(model)


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"format": 2, "files": {}}', '{"files": {"model.json": "x"}}'])
def test_a_model_without_a_whole_manifest_is_refused(model, text):
    (model / "manifest.json").unlink()
    if text is not None:
        (model / "manifest.json").write_text(text)
    for load in LOADS.values():
        with pytest.raises(ModelError, match=r"manifest\.json"):
            load(model)


@pytest.mark.parametrize("file", ["manifest.json", "parties/bank", *PARTS])
def test_a_symbolic_link_out_of_the_folder_is_refused(model, tmp_path, file):
    outside = tmp_path / "outside"
    shutil.move(model / file, outside)
    (model / file).symlink_to(outside)
    for load in LOADS.values():
        with pytest.raises(ModelError, match="a symbolic link leads out of the folder"):
            load(model)


@pytest.mark.parametrize("file", ["config.toml", "record.json"])
def test_a_symbolic_link_in_place_of_a_record_is_refused(model, tmp_path, file):
    shutil.move(model / file, tmp_path / "outside")
    (model / file).symlink_to(tmp_path / "outside")
    with pytest.raises(ModelError, match="a symbolic link leads out of the folder"):
        evaluate_run(model)
    with pytest.raises(ModelError, match="a symbolic link leads out of the folder"):
        page.write([model], tmp_path / "page")


def test_a_link_within_the_folder_and_a_linked_folder_are_fine(model, tmp_path):
    (model / "weights").write_bytes((model / "parties/bank/model.safetensors").read_bytes())
    (model / "parties/bank/model.safetensors").unlink()
    (model / "parties/bank/model.safetensors").symlink_to(model / "weights")
    (tmp_path / "linked").symlink_to(model)
    assert len(predict_run(tmp_path / "linked")) == 120


DEEP = "[" * 100_000


@pytest.mark.parametrize("file", ["model.json", "manifest.json", "parties/bank/party.json", "record.json"])
@pytest.mark.parametrize("text", [DEEP, '{"a":' * 100_000, f'{{"method": {DEEP}{"]" * 100_000}}}'])
def test_json_that_is_nested_too_deeply_is_refused(model, file, text):
    (model / file).write_text(text)
    if file.startswith("parties"):
        write_manifest(model, ["bank", "shop"])
    with pytest.raises(ModelError, match=Path(file).name):
        evaluate_run(model)


def test_settings_that_are_nested_too_deeply_are_refused(model):
    (model / "config.toml").write_text(f"a = {DEEP}{']' * 100_000}")
    with pytest.raises(ConfigError, match=r"config\.toml.*nested too deeply"):
        evaluate_run(model)
    page.write([model], model / "page")  # says that settings are missing


def test_metadata_of_weights_that_is_nested_too_deeply_is_refused(model):
    from safetensors.torch import save_file  # noqa: PLC0415

    save_file({"a": torch.zeros(1)}, model / "parties/bank/model.safetensors", metadata={"anyparty": DEEP})
    write_manifest(model, ["bank", "shop"])
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        evaluate_run(model)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("parties/bank/party.json", lambda it: it["encoder"].update(hidden=[10**9, 10**9])),
        ("parties/bank/party.json", lambda it: it["encoder"].update(hidden=[60_000, 60_000])),
        ("parties/bank/party.json", lambda it: it.update(encoder={"kind": "lstm", "steps": 1, "hidden": 10**6})),
        ("model.json", lambda it: it["method"].update(embedding=10**12)),
        ("model.json", lambda it: it["method"].update(head_hidden=[10**6, 10**6])),
    ],
)
def test_sizes_are_compared_with_the_weights_before_anything_is_allocated(model, file, change):
    about = json.loads((model / file).read_text())
    change(about)
    (model / file).write_text(json.dumps(about))
    write_manifest(model, ["bank", "shop"])
    with pytest.raises(ModelError, match=r"describe networks that are far larger than the [\d,]+ numbers in"):
        Model.load(model)


def test_a_method_in_a_model_names_no_function(model):
    about = json.loads((model / "model.json").read_text())
    about["method"]["make_head"] = "os:system"
    (model / "model.json").write_text(json.dumps(about))
    write_manifest(model, ["bank", "shop"])
    with pytest.raises((ConfigError, ModelError), match="make_head"):
        Model.load(model)


def test_the_manifest_lists_every_part_with_its_hash(model):
    files = Manifest.read(model).files
    assert sorted(files) == ["model.json", *(f"parties/{name}/{file}" for name in ("bank", "shop")
                                             for file in ("model.safetensors", "party.json"))]  # fmt: skip
    assert all(sha256(model / name) == mark for name, mark in files.items())


@pytest.mark.parametrize("way", LOADS)
@pytest.mark.parametrize("manifest", [True, False])
@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("1", r"model\.json: a model in the older format 1; this version reads formats 3 to 4; use the version"),
        ("2", r"model\.json: a model in the older format 2; .* or train again"),
        ("3", r"manifest\.json"),  # a relabelled file has another hash, and format 3 has a manifest
        ("5", r"model\.json: a model in the newer format 5; .* install the version of anyparty that wrote it"),
        ("4.0", r"model\.json: a model in the unknown format 4.0"),
    ],
)
def test_a_model_with_another_format_is_refused(model, found, said, manifest, way):
    """Format 2 loaded in silence, and skipped the check of the manifest."""
    if not manifest:
        (model / "manifest.json").unlink()
    _edit(model / "model.json", '"format": 4', f'"format": {found}')
    with pytest.raises(ModelError, match=said):
        LOADS[way](model)


@pytest.mark.parametrize(("found", "age"), [("0", "older"), ("2", "newer"), ("null", "unknown")])
def test_a_manifest_of_another_format_is_refused(model, found, age):
    _edit(model / "manifest.json", '"format": 1', f'"format": {found}')
    with pytest.raises(
        ModelError, match=rf"manifest\.json: a manifest in the {age} format .*; this version reads format 1"
    ):
        Model.load(model)


def test_a_served_run_that_names_code_is_allowed_by_the_call(received):
    _poison(received, "an encoder beside the run")
    sys.path.append(str(received.parents[1]))
    with pytest.raises(ModelError, match="its weights do not fit"):
        asyncio.run(_served(received))


async def _served(run: Path) -> object:
    return application(run, allow_code=("evil",))
