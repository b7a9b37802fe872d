"""The commands on valid input."""

import json
import re
import warnings
from pathlib import Path

import polars as pl
import pytest

import anyparty
from anyparty import METHODS, Federation, Model, config
from anyparty.api.runs import evaluate_run, predict_run
from anyparty.cli import console
from anyparty.cli.console import print_or_write, screen
from anyparty.errors import AnypartyWarning
from anyparty.methods.method_registry import parameters_of
from anyparty.methods.split.split_method import Split
from tests.conftest import Call, write_tables


def test_version_and_help_are_printed(call: Call) -> None:
    assert call("--version").stdout == f"anyparty {anyparty.__version__}\n"
    assert "train" in call("--help").stdout
    assert "Usage" in call().output


def test_all_methods_are_listed(call: Call) -> None:
    shown = call("methods")
    assert shown.exit_code == 0
    for name, rule in METHODS.items():
        assert name in shown.stdout
        assert rule().can.title in shown.stdout


@pytest.mark.parametrize("name", METHODS)
def test_one_method_shows_parameters_and_messages(call: Call, name: str) -> None:
    shown = call("methods", name).stdout
    parameter = "rounds" if name == "boosting" else "embedding"
    assert parameter in shown
    meanings = {key: said for of in parameters_of(name) for key, said in console._documented_attributes(of).items()}
    assert " ".join(meanings[parameter].split()[:4]) in shown
    assert all(message.tag in shown for message in METHODS[name]().can.messages)


def test_every_parameter_is_documented() -> None:
    for of in (*METHODS.values(), Split):
        names = console._default_parameters(of).keys()
        assert names == names & console._documented_attributes(of).keys()


def test_a_user_defined_method_shows_its_parameters(work: Path, call: Call) -> None:
    (work / "own_rules.py").write_text(
        "from dataclasses import dataclass, field\n\nfrom anyparty.methods.split.plug import Plug\n\n\n"
        "@dataclass(frozen=True)\nclass Mine(Plug):\n"
        '    """One.\n\n    Attributes:\n        temperature: how warm.\n        names: of whom.\n    """\n\n'
        "    temperature: float = 2.5\n    names: tuple[str, ...] = field(default_factory=lambda: ('a',))\n\n\n"
        "def make(temperature, width=4) -> Mine:\n    return Mine(temperature=temperature)\n\n\n"
        "MADE = Mine(temperature=1.0)\n"
    )
    shown = call("methods", "own_rules:Mine").stdout
    for said in (
        "PlugVFL (method.factory = 'own_rules:Mine')",
        "2.5",
        "how warm",
        "['a']",
        "pretrain_epochs",
        "gradient",
    ):
        assert said in shown, said
    assert "temperature" not in call("methods", "own_rules:MADE").stdout
    refused = call("methods", "own_rules:make")
    assert refused.exit_code == 2
    assert "method 'make': missing a required argument: 'temperature'" in refused.stderr


def test_align_shows_the_rows_of_each_party(work: Path, call: Call) -> None:
    shown = call("align", "credit.toml")
    assert shown.exit_code == 0
    assert "all 2" in shown.stdout
    assert '"all": rows that every party holds' in shown.stdout
    assert "category, 2 levels" in shown.stdout
    assert (
        "task: classification, classes no, yes; positive is yes, unless federation.positive names the other\n"
        in shown.stdout
    )
    assert not (work / "runs").exists()


REASON = "; reason: at most 20 different whole numbers"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([], f'task: classification, classes 0, 1, 2 and 5 more; federation.task = "regression" for numbers{REASON}\n'),
        (["--set", "federation.task=regression"], "task: regression, numbers from 0 to 7\n"),
    ],
)
def test_integer_labels_may_be_classes_or_numbers(work: Path, call: Call, settings: list[str], said: str) -> None:
    bank = pl.read_csv("bank.csv")
    bank.with_columns(pl.Series("default", [row % 8 for row in range(len(bank))])).write_csv("bank.csv")
    for command in ("align", "train"):
        shown = call(command, "credit.toml", *settings)
        assert shown.exit_code == 0, shown.output
        assert said in shown.stdout


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("command", ["align", "train"])
def test_a_class_that_is_read_as_missing_is_noted(work: Path, call: Call, command: str) -> None:
    bank = (work / "bank.csv").read_text(encoding="utf-8")
    some = bank.count(",no\n") // 2
    (work / "bank.csv").write_text(bank.replace(",no\n", ",None\n", some), encoding="utf-8")
    shown = call(command, "credit.toml")
    assert shown.exit_code == 0
    said = f"{some} of 100 cells of label column 'default' are 'None' ({some})"
    assert " ".join(shown.output.split()).count(said) == 1


def test_train_shows_overlap_and_scores(work: Path, call: Call) -> None:
    shown = call("train", "credit.toml")
    assert shown.exit_code == 0
    assert "120 rows of all tables together" in shown.stdout
    assert (
        "task: classification, classes no, yes; positive is yes, unless federation.positive names the other\n"
        in shown.stdout
    )
    assert "auroc" in shown.stdout
    assert Model.load(work / "runs" / "credit-laser-seed1").roster.active == "bank"


def test_train_without_test_rows_reports_that_none_were_scored(work: Path, call: Call) -> None:
    shown = call("train", "credit.toml", "--set", "train.test=0", "--run", "here")
    assert shown.exit_code == 0, shown.stderr
    assert "No rows were held out (train.test = 0 of 100 labelled rows): score others with" in shown.stdout
    assert (work / "here" / "model.json").exists()
    assert call("report", "here", "--out", "report").exit_code == 0
    page = (work / "report" / "index.html").read_text(encoding="utf-8")
    assert "no labelled rows were held out for the test (train.test = 0 of 100 labelled rows)" in page


def test_report_prints_the_test_score_before_the_messages(work: Path, call: Call) -> None:
    assert call("train", "credit.toml", "--set", "train.epochs=1", "--run", "here").exit_code == 0
    shown = call("report", "here", "--no-model")
    assert shown.exit_code == 0, shown.stderr
    scores, _, messages = shown.stdout.partition("Messages sent in")
    assert re.search(r"^here \(laser\): test accuracy 0\.\d+$", scores, flags=re.MULTILINE)
    assert "embedding" in messages


def test_quiet_training_prints_nothing(work: Path, call: Call) -> None:
    shown = call("train", "credit.toml", "-q", "--set", "method.name=local")
    assert shown.output == ""
    assert (work / "runs" / "credit-local-seed1" / "model.json").exists()


def test_training_works_with_one_party(work: Path, call: Call) -> None:
    text = (work / "credit.toml").read_text(encoding="utf-8")
    (work / "alone.toml").write_text(text.replace('[parties.shop]\ntable = "shop.csv"', ""), encoding="utf-8")
    assert call("train", "alone.toml", "-q").exit_code == 0
    assert call("predict", "runs/alone-laser-seed1").exit_code == 0


def test_settings_may_name_the_folder(work: Path, call: Call) -> None:
    assert call("train", "credit.toml", "-q", "--set", "run.folder=elsewhere").exit_code == 0
    assert (work / "elsewhere" / "record.json").exists()


def test_evaluate_scores_the_rows_that_training_held_out(work: Path, call: Call) -> None:
    model = Federation.from_config(config.load("credit.toml")).train(folder="run")
    again = evaluate_run("run")
    assert again.to_json() == model.evaluate().to_json()
    assert again.overall["rows"] == 20  # a fifth of the bank's hundred labelled rows
    assert call("evaluate", "run").exit_code == 0


def test_evaluate_works_from_another_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "accuracy" in call("evaluate", run).stdout


def test_a_run_with_relative_paths_is_evaluated_from_another_folder(
    work: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    assert call("train", "credit.toml", "-q").exit_code == 0
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert call("evaluate", work / "runs" / "credit-laser-seed1").exit_code == 0


def test_evaluate_scores_other_tables(run: Path, tmp_path: Path, call: Call) -> None:
    write_tables(tmp_path, rows=90)
    tables = {name: tmp_path / f"{name}.csv" for name in ("bank", "shop")}
    with pytest.warns(AnypartyWarning, match="the model was trained on 1 of the 70 scored rows"):  # equal by chance
        assert evaluate_run(run, tables).overall["rows"] == 70
    for path in tables.values():
        frame = pl.read_csv(path)
        frame.with_columns(pl.format("new{}", "customer").alias("customer")).write_csv(path)
    shown = call("evaluate", run, *(f"--table={name}={path}" for name, path in tables.items()))
    assert "bank + shop" in shown.stdout
    assert shown.stderr == ""


def test_evaluating_training_tables_scores_only_held_out_rows(run: Path, tmp_path: Path, call: Call) -> None:
    """Only the run's held-out rows are scored, wherever the tables are, with a warning."""
    write_tables(tmp_path)
    tables = {name: tmp_path / f"{name}.csv" for name in ("bank", "shop")}
    said = "the model was trained on these tables: only the rows that its run held out are scored"
    with pytest.warns(AnypartyWarning, match=said):
        assert evaluate_run(run, tables).to_json() == evaluate_run(run).to_json()
    with pytest.warns(AnypartyWarning, match=said):  # the other party is absent, as with other tables
        alone = evaluate_run(run, {"bank": tables["bank"]})
    assert alone.to_json() == evaluate_run(run, parties=["bank"]).to_json()
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert call("evaluate", run, f"--table=bank={tables['bank']}").stderr == f"{said}\n"


def test_evaluating_training_rows_in_other_tables_counts_them(run: Path, tmp_path: Path) -> None:
    write_tables(tmp_path)
    pl.read_csv(tmp_path / "shop.csv").head(50).write_csv(tmp_path / "shop.csv")
    said = "the model was trained on 65 of the 100 scored rows; score other rows for an unbiased result"
    with pytest.warns(AnypartyWarning, match=said):
        assert evaluate_run(run, {name: tmp_path / f"{name}.csv" for name in ("bank", "shop")}).overall["rows"] == 100


def test_a_run_with_a_label_only_active_party_can_be_evaluated(work: Path, call: Call) -> None:
    plain = ["credit.toml", "-q", "--set", "run.folder=run", "--set", "parties.bank.columns=false"]
    assert call("train", *plain).exit_code == 0
    kept = json.loads((work / "run" / "record.json").read_text())["evaluation"]
    assert evaluate_run("run").to_json() == kept
    with pytest.warns(AnypartyWarning, match="the rows that its run held out are scored"):
        again = evaluate_run("run", {"bank": "bank.csv", "shop": "shop.csv"})
    assert again.to_json() == kept
    refused = call("evaluate", "run", "--parties", "bank,shop")
    assert "party 'bank' holds no columns that could take part" in refused.stderr


def test_settings_are_checked_before_tables_are_read(work: Path, call: Call) -> None:
    (work / "shop.csv").write_text("no table")
    for change, said in (("method.name=Laser", "no method 'Laser'"), ("train.device=meta", "'meta' cannot be used"),
                         ("train.metric=acc", "there is no metric 'acc'")):  # fmt: skip
        assert said in call("train", "credit.toml", "--set", change).stderr


def test_a_run_may_be_moved_with_its_tables(tmp_path: Path, call: Call) -> None:
    write_tables(tmp_path / "before")
    assert call("train", tmp_path / "before" / "credit.toml", "-q").exit_code == 0
    here = (tmp_path / "before").rename(tmp_path / "here")
    run = here / "runs" / "credit-laser-seed1"
    assert "there is no file" in call("evaluate", run).stderr
    resumed = call("train", here / "credit.toml", "-q", "--resume")
    assert resumed.exit_code == 0, resumed.stderr
    assert call("evaluate", run).exit_code == 0  # from now on, it knows where they lie


def test_evaluate_may_use_only_some_parties(run: Path, call: Call) -> None:
    alone = evaluate_run(run, parties=["shop"])
    assert alone.asked == ("shop",)
    assert alone.overall["coverage"] < 1
    assert call("evaluate", run, "--parties", "shop").exit_code == 0


@pytest.mark.parametrize(("suffix", "read"), [(".parquet", pl.read_parquet), (".csv", pl.read_csv)])
def test_predict_writes_every_row(run: Path, tmp_path: Path, call: Call, suffix: str, read) -> None:
    out = tmp_path / "new" / f"answers{suffix}"
    shown = call("predict", run, "--out", out)
    assert shown.exit_code == 0
    answers = read(out)
    assert answers.columns == ["id", "prediction", "p(no)", "p(yes)", "parties", "reason"]
    assert len(answers) == 120
    assert set(answers["parties"]) == {"bank", "bank shop", "shop"}
    assert "120 rows are in" in shown.stdout


@pytest.mark.parametrize(("parties", "rows"), [("bank", 100), ("shop", 90), ("bank,shop", 120), ("shop, bank", 120)])
def test_predict_may_use_only_some_parties(run: Path, tmp_path: Path, call: Call, parties: str, rows: int) -> None:
    out = tmp_path / "answers.parquet"
    assert call("predict", run, "--parties", parties, "--out", out).exit_code == 0
    answers = pl.read_parquet(out)
    assert answers["prediction"].count() == rows
    assert answers.filter(pl.col("prediction").is_null())["reason"].null_count() == 0


def test_predict_works_without_the_table_of_a_party(run: Path, trained: Path, call: Call) -> None:
    shown = call("predict", run, "--table", f"shop={trained / 'shop.csv'}")
    assert shown.exit_code == 0
    assert "90 rows, asked: shop" in shown.stdout
    assert "The first 8 rows" in shown.stdout


def test_predict_does_not_need_tables_of_unused_parties(run: Path, trained: Path, call: Call) -> None:
    away = (trained / "bank.csv").rename(trained / "away.csv")
    try:
        shown = call("predict", run, "--parties", "shop")
        all_of_them = call("predict", run)
    finally:
        away.rename(trained / "bank.csv")
    assert shown.exit_code == 0
    assert "90 rows, asked: shop" in shown.stdout
    assert all_of_them.exit_code == 2
    assert "bank.csv" in all_of_them.stderr


def test_predict_does_not_overwrite_a_table(run: Path, trained: Path, tmp_path: Path, call: Call) -> None:
    new = tmp_path / "new.csv"
    new.write_bytes((trained / "shop.csv").read_bytes())
    for shown in (call("predict", run, "--table", f"shop={new}", "--out", new),
                  call("predict", run, "--out", trained / "shop.csv")):  # fmt: skip
        assert shown.exit_code == 2
        assert "this is a party's table, which would be overwritten" in shown.stderr


def test_predict_matches_columns_by_name(run: Path, trained: Path, tmp_path: Path, call: Call) -> None:
    shop = pl.read_csv(trained / "shop.csv")
    moved = shop.select("town", "visits", "customer").with_columns(pl.lit(7).alias("extra"))
    moved.reverse().write_csv(tmp_path / "moved.csv")
    straight, turned = (predict_run(run, {"shop": path}) for path in (trained / "shop.csv", tmp_path / "moved.csv"))
    assert turned.frame().equals(straight.frame().reverse()), "each in the order of its table"
    shop.drop("visits").write_csv(tmp_path / "less.csv")
    less = call("predict", run, "--table", f"shop={tmp_path / 'less.csv'}")
    assert less.exit_code == 2
    assert "'visits'" in less.stderr


def test_a_user_defined_encoder_trains(work: Path, call: Call) -> None:
    (work / "mynet.py").write_text(
        "from torch import nn\n\n\ndef make(inputs, outputs) -> nn.Module:\n    return nn.Linear(inputs, outputs)\n",
        encoding="utf-8",
    )
    text = (work / "credit.toml").read_text(encoding="utf-8")
    own = text + '\n[parties.shop.encoder]\nfactory = "mynet:make"\n'
    (work / "own.toml").write_text(own, encoding="utf-8")
    shown = call("train", "own.toml", "-q")
    assert shown.exit_code == 0, shown.output
    assert "--allow-code mynet" in call("evaluate", "runs/own-laser-seed1").stderr
    assert call("evaluate", "runs/own-laser-seed1", "--allow-code", "mynet").exit_code == 0
    assert call("predict", "runs/own-laser-seed1", "--allow-code", "mynet").exit_code == 0


def test_a_party_name_that_looks_like_markup_is_printed(work: Path, call: Call) -> None:
    text = (work / "credit.toml").read_text(encoding="utf-8")
    (work / "odd.toml").write_text(text.replace("[parties.shop]", '[parties."[red] shop"]'), encoding="utf-8")
    shown = call("align", "odd.toml")
    assert "[red] shop" in shown.stdout


def test_two_equal_runs_give_bit_identical_weights(work: Path, tmp_path: Path, call: Call) -> None:
    write_tables(tmp_path / "copy")
    weights = []
    for folder in (work, tmp_path / "copy"):
        assert call("train", folder / "credit.toml", "-q").exit_code == 0
        runs = folder / "runs" / "credit-laser-seed1" / "parties"
        weights.append([path.read_bytes() for path in sorted(runs.glob("*/model.safetensors"))])
    assert weights[0] == weights[1]


def test_train_supports_regression(work: Path, call: Call) -> None:
    shown = call("train", "credit.toml", "--set", "federation.label=income")
    assert shown.exit_code == 0, shown.output
    assert re.search(r"rmse", shown.stdout)


def test_markup_in_values_is_printed_literally(capsys: pytest.CaptureFixture[str]) -> None:
    """Rich would read :ab: as an emoji and [red] as a colour: a fingerprint, an id or a folder may hold either."""
    fingerprint = "SHA256:AB:CD:01"
    screen().print(fingerprint)
    print_or_write(pl.DataFrame({"[red]id": [":ok:"]}), None, screen())
    printed = capsys.readouterr().out
    assert all(text in printed for text in (fingerprint, "[red]id", ":ok:"))
