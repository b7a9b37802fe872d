"""Error messages of `bench`, `federate` and `party`, and `bench --so-far`."""

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from anyparty.cli.app import app

runner = CliRunner()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench", "laser-tabel1"], "no suite 'laser-tabel1'; did you mean 'laser-table1'?"),
        (["bench", "laser-table1", "--dataset", "hatp"], "no data set 'hatp'; did you mean 'hapt'?"),
        (["bench", "laser-table1", "--method", "lazer"], "no method 'lazer'; did you mean 'laser'?"),
        (["federate", "init", "none.toml", "house"], "no such settings file"),
        (["federate", "status", "nowhere"], "nowhere"),
        (["party", "start", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_cause_one_sentence_without_a_stack_trace(words, said):
    result = runner.invoke(app, words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_a_suite_without_data_lists_every_failed_run(tmp_path):
    words = ["bench", "laser-table1", "--dataset", "hapt", "--method", "laser", "--seeds", "1", "--quick"]
    result = runner.invoke(app, [*words, "--folder", str(tmp_path / "runs"), "--data-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.count("hapt-laser-k4-") >= 3
    assert result.stderr.count("is not there: looked in") == 1
    assert "all 3 runs failed" in result.stderr


def test_so_far_shows_finished_runs_while_others_are_running(tmp_path):
    words = ["bench", "apc-kept", "--dataset", "breast-cancer", "--folder", str(tmp_path / "runs"), "--quick"]
    nothing = runner.invoke(app, [*words, "--so-far"])
    assert nothing.exit_code == 2
    assert "none of the 100 runs is finished; leave out --so-far to run them" in nothing.stderr
    whole = runner.invoke(app, [*words, "--method", "local", "--seeds", "1"])
    with FileLock(tmp_path / "runs" / ".lock"):
        part = runner.invoke(app, [*words, "--so-far"])
    assert part.exit_code == 0
    assert "2 of 100 done\n" in part.stdout
    of_local = [[line for line in each.stdout.splitlines() if line.startswith("| Local |")] for each in (whole, part)]
    assert len(of_local[0]) >= 3
    assert of_local[0] == of_local[1]
