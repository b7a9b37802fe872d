"""``~`` means the user's home folder in every path: in Python, in settings and on the command line."""

import polars as pl
import pytest

from anyparty import Federation, Model
from anyparty import config as settings
from anyparty.api.runs import default_folder, evaluate_run, predict_run, settings_of
from anyparty.core.storage import user_path
from anyparty.errors import ConfigError
from tests.conftest import SETTINGS, write_tables

GIVEN = {"id": "customer", "label": "default"}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Make a home folder with tables, and another current folder, in which no file may appear."""
    write_tables(tmp_path / "home")
    (tmp_path / "home" / "credit.toml").write_text(SETTINGS.replace('"bank.csv"', '"~/bank.csv"'), encoding="utf-8")
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    yield tmp_path / "home"
    assert not list((tmp_path / "here").iterdir())


def test_python_calls_expand_the_home_folder(home):
    federation = Federation.from_tables({"bank": "~/bank.csv", "shop": home / "shop.csv"}, **GIVEN)
    assert federation.config.parties["bank"].table == home / "bank.csv"
    model = federation.train("laser", epochs=1, folder="~/runs/one")
    assert (home / "runs" / "one" / "record.json").is_file()
    model.save("~/model")
    again = Model.load("~/model").predict({"bank": "~/bank.csv"}).labels()
    assert again == predict_run("~/runs/one", {"bank": "~/bank.csv"}).labels()
    assert evaluate_run("~/runs/one").overall["rows"] > 0
    model.predict().write("~/answers.csv")
    assert (home / "answers.csv").is_file()


def test_settings_expand_the_home_folder(home):
    text = SETTINGS + '[run]\nfolder = "~/runs/two"\n[clock]\ntrace = "~/trace.csv"\n'
    (home / "two.toml").write_text(text, encoding="utf-8")
    config = settings.load("~/two.toml")
    assert config.run.folder == home / "runs" / "two"
    assert config.clock.trace == home / "trace.csv"
    assert settings.load("~/credit.toml").parties["bank"].table == home / "bank.csv"
    assert Federation.from_config("~/credit.toml").tables["bank"].source == "bank.csv"
    assert (
        default_folder("~/credit.toml", config.model_copy(update={"run": settings.RunSettings()})).parent.parent == home
    )


def test_commands_expand_the_home_folder(home, call):
    made = call("train", "~/credit.toml", "--quiet", "--set", "run.folder=~/runs/set")
    assert made.exit_code == 0, made.output
    assert settings_of("~/runs/set").train.epochs == 3
    made = call("train", "~/credit.toml", "--quiet", "--run=~/runs/option")
    assert made.exit_code == 0, made.output
    made = call("predict", "~/runs/option", "--table", "bank=~/bank.csv", "--out", "~/answers.csv")
    assert made.exit_code == 0, made.output
    assert len(pl.read_csv(home / "answers.csv")) == 100
    assert call("report", "~/runs/option", "--out=~/page").exit_code == 0
    assert list((home / "page").iterdir())


def test_an_unknown_user_in_a_path_is_reported():
    with pytest.raises(ConfigError, match="~no-such-user-here/x: there is no home folder for this user"):
        user_path("~no-such-user-here/x")
