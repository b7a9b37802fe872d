"""Errors of commands: one sentence on stderr, exit code 2, no stack trace.

Warnings are sentences on stderr, too.
"""

import errno
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import polars as pl
import pytest
from polars.exceptions import ComputeError

from anyparty import Federation
from anyparty.api.runs import evaluate_run, model_for_run
from anyparty.errors import AnypartyWarning, ConfigError, ModelError
from tests.conftest import Call
from tests.sentences.snapshots import Sentences


def refused(result) -> str:
    """Return the only sentence of a rejected command."""
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr.strip()


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


WRONG = (
    "train.epoch=5", "training.epochs=5", "train.epochs=0", "train.epochs=many", "train.epochs", "train=5",
    "method.name=lazer", "method.name=[1]", "method.embeding=8", "optimizer.name=adm", "encoder.activation=rely",
    "encoder.factory=nowhere:make", "federation.label=defualt", "federation.label=customer",
    "parties.bank.id=custmer", "federation.active=bnk", "parties.shop.table=shp.csv", "parties.shop.drop=['twn']",
    "train.metric=accurancy", "train.device=gpu", "run.folder=", "train.test=0.9",
)  # fmt: skip


def test_invalid_settings_are_refused(work: Path, call: Call, sentences: Sentences) -> None:
    said = {setting: refused(call("train", "credit.toml", "--set", setting)) for setting in WRONG}
    sentences.compare("commands", said)


def test_a_setting_that_is_wrong_at_all_parties_is_reported_for_each(work: Path, call: Call) -> None:
    result = call("train", "credit.toml", "--set", "federation.id=custmer")
    assert result.exit_code == 2
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == [
        "party 'bank', bank.csv",
        "party 'shop', shop.csv",
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_nets", "cannot import factory 'my_nets': write it as 'module:name'"),
        ("my_nets.py:make", "cannot import factory 'my_nets.py:make': write it as 'module:name'"),
        (
            "my_net:make",
            "cannot import factory 'my_net:make': there is no module 'my_net'; commands search the folder of",
        ),
        ("good:maek", "cannot import factory 'good:maek': {}/good.py has no 'maek'; did you mean 'make'?"),
        (
            "good:WIDTH",
            "factory 'good:WIDTH' is an object of type int; expected a subclass of torch.nn.Module",
        ),
        ("torn:make", "cannot import factory 'torn:make': {}/torn.py:2: SyntaxError: '(' was never closed"),
        ("lacks:make", "cannot import factory 'lacks:make': {}/lacks.py:1: ModuleNotFoundError: No module named 'nix'"),
        ("ends:make", "cannot import factory 'ends:make': {}/ends.py:3: SystemExit: 3"),
        ("breaks:make", "cannot import factory 'breaks:make': {}/breaks.py:2: ZeroDivisionError: division by zero"),
    ],
)
def test_encoders_that_cannot_be_imported_are_refused(work: Path, call: Call, name: str, said: str) -> None:
    group = "parties.shop.encoder" if name in {"good:maek", "good:WIDTH"} else "encoder"
    for file, text in {
        "good": "WIDTH = 3\n\ndef make(inputs, outputs):\n    pass\n", "torn": "\nmake(\n", "lacks": "import nix\n",
        "ends": "import sys\n\nsys.exit(3)\n", "breaks": "WIDTH = 0\nHALF = 1 / WIDTH\n",
    }.items():  # fmt: skip
        (work / f"{file}.py").write_text(text, encoding="utf-8")
        sys.modules.pop(file, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(work), *sys.path])
        shown = refused(call("train", "credit.toml", "--set", f"{group}.factory={name}"))
    assert f"{group}.factory" in shown
    assert "party 'bank'" in shown if group == "encoder" else "shop" in shown
    assert said.format(work) in shown
    assert ("write it as" in shown) == ("write it as" in said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("return nn.Linear(inputs, WIDTH)", "fails.py:5: NameError: name 'WIDTH' is not defined"),
        ("return nn.Linear(inputs, -outputs)", "fails.py:5: RuntimeError: Trying to create tensor with negative dim"),
        ("return nn.Linear(inputs=inputs)", "fails.py:5: TypeError: "),
    ],
)
def test_an_encoder_that_fails_on_creation_is_reported(work: Path, call: Call, line: str, said: str) -> None:
    text = f"from torch import nn\n\n\ndef make(inputs, outputs) -> nn.Module:\n    {line}\n"
    (work / "fails.py").write_text(text, encoding="utf-8")
    sys.modules.pop("fails", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(work), *sys.path])
        shown = refused(call("train", "credit.toml", "--set", "parties.shop.encoder.factory=fails:make"))
    assert "party 'shop': its encoder cannot be made of (inputs, outputs) = (3, 64): " in shown
    assert f"{work}/{said}" in shown


def test_a_missing_settings_file_is_reported(work: Path, call: Call) -> None:
    assert "no such settings file" in refused(call("train", "creditt.toml"))
    assert "no such settings file" in refused(call("align", "creditt.toml"))


def test_settings_that_are_not_toml_are_refused(work: Path, call: Call) -> None:
    (work / "credit.toml").write_text("[federation", encoding="utf-8")
    assert "this is not TOML" in refused(call("train", "credit.toml"))


def test_an_unknown_method_gets_a_suggestion(call: Call) -> None:
    assert refused(call("methods", "ensembel")) == "no method 'ensembel'; did you mean 'ensemble'?"


def test_an_existing_run_is_not_overwritten(work: Path, call: Call) -> None:
    assert call("train", "credit.toml", "-q").exit_code == 0
    assert (work / "runs" / "credit-laser-seed1" / "config.toml").stat().st_mode & 0o777 == 0o600
    assert "holds a run already" in refused(call("train", "credit.toml", "-q"))
    assert call("train", "credit.toml", "-q", "--resume").exit_code == 0


def test_a_run_that_failed_at_once_can_be_repeated(work: Path, call: Call) -> None:
    assert "train.device" in refused(call("train", "credit.toml", "--set", "train.device=gpu"))
    assert call("train", "credit.toml", "-q").exit_code == 0


def test_an_empty_run_folder_name_is_refused(work: Path, call: Call) -> None:
    """An unset variable in --run "$FOLDER" must not write the run into the current folder."""
    before = {path.name for path in work.iterdir()}
    done = call("train", "credit.toml", "-q", "--run", "")
    assert done.exit_code == 2
    assert "the text is empty; name a folder" in done.stderr
    assert {path.name for path in work.iterdir()} == before


@pytest.mark.parametrize(
    ("config", "words"), [("config.toml", ["--run", "."]), ("credit.toml", ["--set", "run.folder=."])]
)
def test_a_run_does_not_overwrite_a_foreign_config_file(work: Path, call: Call, config: str, words: list[str]) -> None:
    shutil.copy("credit.toml", "config.toml")
    said = refused(call("train", config, *words))
    assert "config.toml: " in said
    assert "the run's settings would overwrite" in said
    assert (work / "config.toml").read_bytes() == (work / "credit.toml").read_bytes()
    assert not (work / "record.json").exists()


def test_unwritable_paths_are_reported_with_a_remedy(work: Path, call: Call, run: Path) -> None:
    (work / "file").write_text("")
    there = "free space, change its permissions, or name another place"
    said = refused(call("report", run, "--out", "file/page"))
    assert "file/page/figures/" in said
    assert "cannot be written (Not a directory)" in said
    assert there in refused(call("demo", "file/demo"))


@pytest.mark.parametrize("lacking", ["record.json", "config.toml"])
def test_a_run_killed_while_it_created_its_folder_can_be_repeated(work: Path, call: Call, lacking: str) -> None:
    """record.json is written first, so a lone config.toml does not belong to a run."""
    assert "'rmse' is for a regression" in refused(
        call("train", "credit.toml", "--run", "run", "--set", "train.metric=rmse")
    )
    for file in {lacking, "config.toml"}:
        (work / "run" / file).unlink()
    assert "holds no run to resume" in refused(call("train", "credit.toml", "--run", "run", "--resume"))
    assert call("train", "credit.toml", "-q", "--run", "run").exit_code == 0
    assert call("train", "run/config.toml", "-q", "--run", "run", "--resume").exit_code == 0


def test_resuming_without_a_run_is_refused(work: Path, call: Call) -> None:
    assert "holds no run to resume" in refused(call("train", "credit.toml", "-q", "--resume"))


def test_resuming_with_other_settings_is_refused(work: Path, call: Call) -> None:
    assert call("train", "credit.toml", "-q").exit_code == 0
    said = refused(call("train", "credit.toml", "-q", "--resume", "--set", "optimizer.lr=0.5"))
    assert "optimizer.lr: was 0.001, is 0.5" in said


def test_resuming_with_the_parties_in_another_order_is_refused(work: Path, call: Call) -> None:
    """Networks belong to a party's position: another order would exchange the heads."""
    assert call("train", "credit.toml", "-q").exit_code == 0
    bank, shop = '[parties.bank]\ntable = "bank.csv"\n', '[parties.shop]\ntable = "shop.csv"\n'
    change(work / "credit.toml", f"{bank}\n{shop}", f"{shop}\n{bank}")
    said = refused(call("train", "credit.toml", "-q", "--resume"))
    assert "the settings list the parties in another order: it was bank, shop, is shop, bank; restore" in said


def test_resuming_with_other_tables_is_refused(work: Path, call: Call) -> None:
    assert call("train", "credit.toml", "-q").exit_code == 0
    change(work / "shop.csv", "Ulm", "Rom")
    assert "the tables changed" in refused(call("train", "credit.toml", "-q", "--resume"))


def test_a_run_whose_tables_changed_is_not_scored(work: Path, call: Call) -> None:
    assert call("train", "credit.toml", "-q").exit_code == 0
    change(work / "shop.csv", "Ulm", "Rom")
    assert "the table of party 'shop'" in refused(call("evaluate", "runs/credit-laser-seed1"))
    (work / "shop.csv").unlink()
    assert "there is no file" in refused(call("evaluate", "runs/credit-laser-seed1"))


def test_an_unfinished_run_cannot_predict(work: Path, call: Call) -> None:
    assert call("train", "credit.toml", "-q").exit_code == 0
    (work / "runs" / "credit-laser-seed1" / "model.json").unlink()
    assert "has not finished" in refused(call("predict", "runs/credit-laser-seed1"))


@pytest.mark.parametrize("command", ["align", "train"])
def test_a_table_that_is_not_csv_is_refused(work: Path, call: Call, command: str) -> None:
    for content, said in (
        ("customer,город,default\nc1,2,no\n".encode("cp1251"), "its encoding is not evident"),
        (b"<!DOCTYPE html><html></html>", "bank.csv is an HTML page, not a table"),
        (b'[{"customer": 1}]', "bank.csv is JSON, not a table"),
        (b"", "bank.csv is empty"),
    ):
        (work / "bank.csv").write_bytes(content)
        assert said in refused(call(command, "credit.toml"))
    for name, content in (("bank.csv.gz", b"\x1f\x8b\x08 cut"), ("bank.parquet", b"PAR1 cut")):
        (work / name).write_bytes(content)
        assert f"{name} cannot be read" in refused(call(command, "credit.toml", "--set", f"parties.bank.table={name}"))


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_missing_run_is_reported(work: Path, call: Call, command: str) -> None:
    assert "not the folder of a run" in refused(call(command, "runs"))


def test_evaluate_without_test_rows_is_refused(work: Path, call: Call) -> None:
    assert call("train", "credit.toml", "-q", "--set", "train.test=0").exit_code == 0
    assert "no labelled row to score" in refused(call("evaluate", "runs/credit-laser-seed1"))


def test_tables_and_parties_that_do_not_fit_the_run_are_refused(
    run: Path, trained: Path, call: Call, sentences: Sentences
) -> None:
    given = (
        ["--parties", "shap"], ["--parties", ""], ["--table", "shop.csv"], ["--table", "shap={}/shop.csv"],
        ["--table", "shop={}/shap.csv"], ["--table", "shop={}/shop.csv", "--table", "shop={}/shop.csv"],
        ["--table", "shop={}/shop.csv", "--parties", "bank"], ["--table", "shop={}/bank.csv"],
    )  # fmt: skip
    said = {
        " ".join(words): refused(call("predict", run, *(word.format(trained) for word in words))) for words in given
    }
    sentences.places |= {str(trained): "TRAINED", str(Path.cwd()): "HERE"}
    sentences.compare("commands-on-runs", said)


def test_scores_need_the_labels(run: Path, trained: Path, call: Call) -> None:
    assert "labels are at 'bank'" in refused(call("evaluate", run, "--table", f"shop={trained / 'shop.csv'}"))


def test_invalid_output_files_of_predict_are_refused(run: Path, work: Path, call: Call) -> None:
    assert "ends in .parquet or .csv" in refused(call("predict", run, "--out", "answers.xlsx"))
    (work / "file").touch()
    assert "file/answers.csv: cannot be written" in refused(call("predict", run, "--out", "file/answers.csv"))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), ComputeError("No space left")])
def test_predict_reports_a_full_disk(
    run: Path, work: Path, call: Call, monkeypatch: pytest.MonkeyPatch, kind: str, error: Exception
) -> None:
    out = work / f"answers.{kind}"
    assert call("predict", run, "--out", out).exit_code == 0
    assert out.stat().st_mode & 0o777 == 0o600
    before, there = out.read_bytes(), sorted(work.iterdir())

    def full(_: pl.DataFrame, file: Path) -> None:
        file.write_bytes(b"half of")
        raise error

    monkeypatch.setattr(pl.DataFrame, f"write_{kind}", full)
    assert f"answers.{kind}: cannot be written (No space left" in refused(call("predict", run, "--out", out))
    assert out.read_bytes() == before
    assert sorted(work.iterdir()) == there


def test_a_truncated_model_is_refused(work: Path, call: Call) -> None:
    assert call("train", "credit.toml", "-q").exit_code == 0
    weights = work / "runs" / "credit-laser-seed1" / "parties" / "bank" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    assert "model.safetensors: this is not the file that the model was saved with" in refused(
        call("predict", "runs/credit-laser-seed1")
    )


def test_a_run_from_data_frames_needs_tables(work: Path, call: Call) -> None:
    frames = {name: pl.read_csv(f"{name}.csv") for name in ("bank", "shop")}
    Federation.from_tables(frames, id="customer", label="default").train(folder="run", epochs=2)
    assert "trained from data frames" in refused(call("evaluate", "run"))
    with pytest.warns(AnypartyWarning, match="the rows that its run held out are scored"):
        assert evaluate_run("run", frames).overall["rows"] == 20


def test_a_run_from_a_machine_with_another_device_predicts_on_the_cpu(
    run: Path, trained: Path, tmp_path: Path, call: Call
) -> None:
    """It predicts on the CPU unless a device is named."""
    there = Path(shutil.copytree(run, tmp_path / "run"))
    settings = (there / "config.toml").read_text(encoding="utf-8")
    assert 'device = "cpu"' in settings
    (there / "config.toml").write_text(settings.replace('device = "cpu"', 'device = "cuda:77"'), encoding="utf-8")
    words = ["--table", f"shop={trained / 'shop.csv'}", "--out"]
    for folder, out in ((run, "here.csv"), (there, "there.csv")):
        result = call("predict", folder, *words, tmp_path / out)
        assert result.exit_code == 0, result.output
    assert (tmp_path / "here.csv").read_bytes() == (tmp_path / "there.csv").read_bytes()
    with pytest.raises(ConfigError, match=r"device: 'cuda:77' cannot be used here"):
        model_for_run(there, device="cuda:77")


@pytest.mark.filterwarnings("default")
def test_a_warning_is_printed_as_a_sentence(run: Path, trained: Path, tmp_path: Path, call: Call) -> None:
    towns = (trained / "shop.csv").read_text(encoding="utf-8").replace("Ulm", "ulm").replace("Bonn", "bonn")
    (tmp_path / "shop.csv").write_text(towns, encoding="utf-8")
    result = call("predict", run, "--table", f"shop={tmp_path / 'shop.csv'}")
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("party 'shop', shop.csv: training saw none of the categories of column 'town'")
    assert result.stderr.count("\n") == 1, result.stderr


def test_warnings_of_other_packages_are_left_to_python(run: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def deprecated(*_: object, **__: object) -> None:
        warnings.warn("this will go", DeprecationWarning, stacklevel=1)
        raise ModelError("this is why it stops")

    monkeypatch.setattr("anyparty.api.runs.predict_run", deprecated)
    with pytest.warns(DeprecationWarning, match="this will go"):
        assert refused(call("predict", run)) == "this is why it stops"


def test_the_stack_trace_is_shown_on_request(work: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYPARTY_DEBUG", "1")
    result = call("train", "nowhere.toml")
    assert "no such settings file" in str(result.exception)


def test_an_error_in_a_real_shell_has_exit_code_2(work: Path) -> None:
    words = [sys.executable, "-m", "anyparty", "methods", "lazer"]
    shown = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr == "no method 'lazer'; did you mean 'laser'?\n"
