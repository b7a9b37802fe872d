"""Runs write one record each, are skipped if finished, repeated if incomplete, and do not stop each other."""

import csv
import importlib.util
import io
import json
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from rich.console import Console

from anyparty import experiments
from anyparty.core.storage import write_json
from anyparty.errors import ConfigError, RunError
from anyparty.experiments import experiment, party_tables, runner, suites
from anyparty.experiments.experiment import render
from anyparty.experiments.missing_blocks_results import difference, is_outside
from anyparty.experiments.missing_blocks_suite import MissingBlocksRun, MissingBlocksSuite
from anyparty.experiments.results import SCORE
from anyparty.experiments.suite import Selection


def tiny(**changes) -> MissingBlocksSuite:
    """Create a suite on Breast Cancer, which ships with a dependency: two methods, two epochs."""
    entry = {
        "metric": "client_accuracy", "unit": "accuracy, %", "batch_size": 64, "embedding": 4,
        "encoder": {"hidden": [4]},
        "methods": {
            name: {"title": name.title(), "name": name, "epochs": 2, "optimizer": {"lr": 0.01}}
            for name in ("laser", "standard")
        },
    }  # fmt: skip
    return MissingBlocksSuite.model_validate(
        {
            "name": "tiny", "title": "Tiny", "paper": "None", "parties": [3], "train_missing": ["0.1"],
            "test_missing": ["0.0", "0.5"], "differs": ["In all."], "datasets": {"breast-cancer": entry},
            "published": {"breast-cancer": {"laser": {"0.1": [[10.0, 0.5], [99.9, 50.0]]}}}, **changes,
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> tuple[Path, list[MissingBlocksRun], runner.SuiteResult]:
    folder = tmp_path_factory.mktemp("runs")
    runs = list(tiny().runs(Selection(seeds=2)))
    return folder, runs, runner.run_all(runs, folder)


def test_every_run_writes_a_record(done):
    folder, runs, result = done
    assert not result.failed
    assert set(result.records) == {run.key for run in runs} == {path.name for path in folder.iterdir() if path.is_dir()}


def test_finished_runs_are_skipped_and_incomplete_ones_repeated(done):
    folder, runs, _ = done
    records = [folder / run.key / "record.json" for run in runs]
    before = {path: path.stat().st_mtime_ns for path in records}
    records[0].write_text(records[0].read_text()[:40])
    result = runner.run_all(runs, folder)
    assert len(result.records) == len(runs)
    changed = [path for path in records if path.stat().st_mtime_ns != before[path]]
    assert changed == [records[0]]
    assert set(json.loads(records[0].read_text())["scores"]) == {"0.0", "0.5"}


def test_a_failed_run_is_reported_and_does_not_stop_the_others(done, tmp_path):
    _, runs, _ = done
    whole = next(run for run in runs if run.seed == 0 and run.method == "laser")
    broken = replace(whole, settings={**whole.settings, "optimizer": {"lr": -1.0}})
    result = runner.run_all([broken, next(run for run in runs if run.method == "standard")], tmp_path)
    assert len(result.records) == 1
    (sentence,) = result.failed.values()
    assert "lr: expected more than 0, got -1.0" in sentence


@pytest.mark.filterwarnings("error")
def test_a_replaced_worker_process_causes_no_warning(done, tmp_path, monkeypatch):
    """Joblib replaces a worker that has grown or was idle; the user need not act."""
    said = "A worker stopped while some jobs were given to the executor. This can be caused by a too short timeout."
    attempt = runner.attempt

    def replaced(run, folder, data_dir):
        warnings.warn(said, stacklevel=2)
        return attempt(run, folder, data_dir)

    monkeypatch.setattr(runner, "attempt", replaced)
    assert not runner.run_all(done[1][:1], tmp_path).failed
    with pytest.raises(UserWarning, match="A worker stopped"):
        warnings.warn(said, stacklevel=1)


@pytest.mark.filterwarnings("default")
@pytest.mark.slow
def test_warnings_are_recorded_and_shown_once(done, tmp_path):
    """They are shown above the progress bar, also from two processes."""
    _, runs, _ = done
    settings = dict(runs[0].settings, name="false-vfl-1", epochs=1, batch_size=16, parameters={"floor": 9.0, "top": 2})
    both = [replace(run, settings=settings) for run in runs if run.method == runs[0].method]
    shown = Console(file=io.StringIO(), width=200)
    result = runner.run_all(both, tmp_path, jobs=2, console=shown)
    assert not result.failed
    told = [record["warned"] for record in result.records.values()]
    assert len(told) == 2
    for sentences in told:
        assert sentences == sorted(set(sentences))
        assert all("standard deviation has reached floor = 9" in sentence for sentence in sentences)
    text = shown.file.getvalue()
    assert all(text.count(sentence) == 1 for sentence in set().union(*told))
    assert "UserWarning" not in text
    assert runner.stored_record(tmp_path, both[0]) == result.records[both[0].key]
    said = Console(file=io.StringIO(), width=200)
    runner.run_all(both, tmp_path, console=said)
    assert "standard deviation has reached" not in said.file.getvalue()


def test_a_record_that_cannot_be_written_does_not_stop_the_others(done, tmp_path):
    _, runs, _ = done
    (tmp_path / runs[0].key).write_text("a file where the folder should be")
    result = runner.run_all(runs[:2], tmp_path)
    assert list(result.records) == [runs[1].key]
    assert "record.json: cannot be written" in result.failed[runs[0].key]


def test_an_error_file_is_removed_when_the_run_succeeds(done, tmp_path, monkeypatch):
    run = done[1][0]
    with monkeypatch.context() as patched:
        patched.setattr(type(run), "execute", lambda *_: 1 / 0)
        assert "ZeroDivisionError" in runner.run_all([run], tmp_path).failed[run.key]
    assert (tmp_path / run.key / "error.txt").exists()
    assert runner.run_all([run], tmp_path).records[run.key]["code"] == runner.source_hash()
    assert [path.name for path in (tmp_path / run.key).iterdir()] == ["record.json"]


def test_a_page_shows_its_selection_quick_mode_and_versions(done, tmp_path, monkeypatch):
    _, runs, result = done
    for run in runs:
        record = result.records[run.key] | {"versions": {"anyparty": "0.0.1" if run.seed else "0.0.2"}}
        record["code"] = f"code{run.seed}"
        write_json(tmp_path / run.key / "record.json", record)
    monkeypatch.setattr(experiment.suites, "load", lambda _: tiny())
    whole = experiments.run("tiny", seeds=2, folder=tmp_path)
    assert "- versions: anyparty 0.0.1; and anyparty 0.0.2" in whole.markdown
    assert "- code: the runs executed 2 versions of the source: code0, code1" in whole.markdown
    assert "mean nothing" not in whole.markdown
    one = experiments.run("tiny", methods=["laser"], missing=["0.1"], seeds=1, folder=tmp_path)
    assert (tmp_path / "table.md").read_text() == whole.markdown
    assert one.page.name == "table-laser-0-1.md"
    assert one.page.read_text() == one.markdown
    assert {path.name for path in tmp_path.glob("*0-1*")} == {
        "table-laser-0-1.md", "table-laser-0-1.csv", "plot-laser-0-1.png", "plot-laser-0-1.svg"
    }  # fmt: skip
    assert "--method laser --missing 0.1 --seeds 1" in one.markdown
    monkeypatch.setattr(experiment.runner, "run_all", lambda *_, **__: result)
    quick = experiments.run("tiny", quick=True, folder=tmp_path).markdown
    assert quick.splitlines()[:3] == ["# Tiny", "", experiment.QUICK.format("1/10 of the epochs")]


def test_two_suites_in_one_folder_are_refused(done, tmp_path):
    _, runs, _ = done
    with FileLock(tmp_path / ".lock"), pytest.raises(ConfigError, match="another suite is running in this folder"):
        runner.run_all(runs, tmp_path)


def test_the_same_seed_draws_the_same_masks_for_every_method(done):
    _, _, result = done
    for seed in (0, 1):
        masks = {
            tuple(s["missing"] for s in r["scores"].values())
            for r in result.records.values()
            if r["run"]["seed"] == seed
        }
        assert len(masks) == 1


def test_the_table_shows_our_scores_above_those_of_the_paper(done):
    _, _, result = done
    made = tiny()
    page = render(made, result.records, {"seeds": "2"})
    cells = made.read_cells(result.records)
    assert len(cells) == 4
    far, near = (cell for cell in cells if cell["method"] == "laser")
    assert is_outside(far)
    assert not is_outside(near)
    mean, spread = far.mean_spread(SCORE)
    assert difference(far) == pytest.approx(mean - 10.0)
    text = page.markdown
    assert f"{mean:.1f} ± {spread:.1f}** ▲" in text or f"{mean:.1f} ± {spread:.1f} ▲" in text
    assert "| *paper* | 10.0 ± 0.5 | 99.9 ± 50.0 | |" in text
    assert "- In all." in text
    assert page.csv.count("\n") == 5
    one = render(made, {name: r for name, r in result.records.items() if r["run"]["seed"] == 0}, {})
    of_both, of_one = (list(csv.DictReader(io.StringIO(found.csv))) for found in (page, one))
    assert all(float(line["std"]) >= 0 for line in of_both)
    assert [line["std"] for line in of_one] == [""] * 4  # a single seed has no spread
    assert {line["outside_both_spreads"] for line in of_both} == {"True", "False", ""}
    assert {line["outside_both_spreads"] for line in of_one} == {""}


def test_plots_are_written(done, tmp_path):
    made = tiny()
    render(made, done[2].records, {}).plot(tmp_path / "plot")
    assert (tmp_path / "plot.png").stat().st_size > 5000
    assert "<svg" in (tmp_path / "plot.svg").read_text()


def test_several_numbers_of_parties_are_columns_of_the_table(done, tmp_path):
    made = tiny(parties=[2, 3])
    page = render(made, done[2].records, {})
    laser = next(cell for cell in page.cells if (cell["method"], cell["test"]) == ("laser", "0.5"))
    row = next(line for line in page.markdown.splitlines() if line.startswith("| Laser |") and "±" in line)
    assert row.startswith("| Laser | | ")  # there is no run with two parties
    assert "| method | K = 2 | K = 3 |" in page.markdown
    assert "CPU seconds of a training epoch, breast-cancer, missing 0.1:" in page.markdown
    assert f"| Laser | | {laser.mean('epoch_seconds'):.2f} |" in page.markdown
    took = [r["cpu_seconds"] / 2 for r in done[2].records.values() if r["run"]["method"] == "laser"]
    assert laser.mean("epoch_seconds") == pytest.approx(sum(took) / len(took))
    page.plot(tmp_path / "plot")
    assert ">CPU seconds of an epoch</text>" in (tmp_path / "plot.svg").read_text()


def test_a_missing_data_set_is_reported(tmp_path):
    """An existing page stays."""
    page = tmp_path / "runs" / "table.md"
    page.parent.mkdir()
    page.write_text("- command: `another`")
    said = r"(?s)all 3 runs failed, and no page is written\n'hapt-laser-.*UCI 341"
    with pytest.raises(RunError, match=said):
        experiments.run("laser-table1", datasets=["hapt"], methods=["laser"], seeds=1, quick=True,
                  data_dir=tmp_path, folder=tmp_path / "runs")  # fmt: skip
    assert page.read_text() == "- command: `another`"


def test_the_folder_of_the_environment_is_searched_with_others(call, tmp_path, monkeypatch):
    """--data-dir is the only folder; ANYPARTY_DATA comes before the cache and downloads."""
    given, nothing = [], experiments.Report(cells=[], markdown="", folder=tmp_path, failed={})
    monkeypatch.setattr(experiments, "run", lambda *_, **how: given.append(how["data_dir"]) or nothing)
    monkeypatch.setenv("ANYPARTY_DATA", str(tmp_path))
    assert call("bench", "laser-table1").exit_code == 0
    assert call("bench", "laser-table1", "--data-dir", tmp_path / "mine").exit_code == 0
    assert given == [None, tmp_path / "mine"]


def test_the_command_of_a_page_names_the_device():
    assert experiment._command("apc-fig5", Selection(device="cuda"), 2).endswith("--jobs 2 --device cuda")
    assert "--device" not in experiment._command("apc-fig5", Selection(), 2)


def test_missingness_mechanisms_are_found_by_name():
    assert str(party_tables.mechanism_of("0.25")) == str(party_tables.mechanism_of(" 0.25"))
    with pytest.raises(ConfigError, match="no missingness 'betta'; did you mean 'beta'"):
        party_tables.mechanism_of("betta")
    named = {"MNAR 7": {"name": "mnar", "p": 0.7}}
    assert str(party_tables.mechanism_of("MNAR 7", named)) == "MNAR(p=0.7)"


def test_a_record_that_lacks_a_score_is_not_finished(done):
    folder, runs, _ = done
    path = folder / runs[0].key / "record.json"
    whole = path.read_text()
    record = json.loads(whole)
    del record["scores"]["0.5"]
    path.write_text(json.dumps(record))
    try:
        assert runner.stored_record(folder, runs[0]) is None
        assert runner.stored_record(folder, runs[1]) is not None
    finally:
        path.write_text(whole)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_gives_the_same_numbers(done, tmp_path):
    """The test starts the cluster; dask's own warnings are ignored."""
    pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    _, runs, here = done
    there = runner.run_all(runs, tmp_path, jobs=2, backend="dask")
    assert not there.failed
    assert there.records.keys() == here.records.keys()
    for key, record in there.records.items():
        assert record["scores"] == here.records[key]["scores"]


def test_an_unknown_back_end_is_reported(done, tmp_path):
    _, runs, _ = done
    with pytest.raises(ConfigError, match="no back end 'dusk'; did you mean 'dask'"):
        runner.run_all(runs, tmp_path, backend="dusk")
    if importlib.util.find_spec("ray") is None:
        with pytest.raises(ConfigError, match="back end 'ray' is not installed: pip install ray"):
            runner.run_all(runs, tmp_path, backend="ray")


def test_a_page_counts_the_runs_of_each_device(done, tmp_path, monkeypatch):
    folder, runs, _ = done
    made = shutil.copytree(folder, tmp_path / "runs")
    monkeypatch.setattr(experiment.suites, "load", lambda _name: tiny())
    assert "by device" not in experiments.run("tiny", seeds=2, folder=made, so_far=True).markdown
    path = made / runs[0].key / "record.json"
    record = json.loads(path.read_text())
    record["run"]["settings"]["train"] = {"device": "cuda"}
    write_json(path, record)
    assert (
        "- runs by device: 3 on cpu, 1 on cuda" in experiments.run("tiny", seeds=2, folder=made, so_far=True).markdown
    )


def test_an_unknown_device_is_reported_before_the_first_run(tmp_path):
    with pytest.raises(ConfigError, match=r"--device: 'gpu' cannot be used here \(torch knows no such device\)"):
        experiments.run("laser-table1", datasets=["hapt"], device="gpu", folder=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_page_names_its_metric_and_the_rates_reached(done):
    page = render(tiny(), done[2].records, {})
    assert "heads, each on the rows that the party has (`client_accuracy`)" in page.markdown
    lines = list(csv.DictReader(io.StringIO(page.csv)))
    assert {line["metric"] for line in lines} == {"client_accuracy"}
    (laser, *_) = (cell for cell in page.cells if (cell["method"], cell["test"]) == ("laser", "0.5"))
    assert 0.3 < laser.mean("missing_at_test") < 0.5  # .5 would leave rows without any block
    assert f"0.5: {laser.mean('missing_at_test'):.1%}." in page.markdown


def test_a_single_missing_rate_can_be_selected():
    several = tiny(train_missing=["0.1", "0.5"], published={})
    assert {run.missing for run in several.runs()} == {"0.1", "0.5"}
    assert {run.missing for run in several.runs(Selection(missing=["0.5"]))} == {"0.5"}
    with pytest.raises(ConfigError, match=r"the suite has no mechanism of missing blocks '0\.6'"):
        list(several.runs(Selection(missing=["0.6"])))


@pytest.mark.parametrize("suite", ["apc-fig5", "flex-table3"])
def test_other_suites_refuse_missing_rates_and_user_defined_methods(suite):
    with pytest.raises(ConfigError, match=r"the suite has no mechanism of missing blocks '0\.1'"):
        list(suites.load(suite).runs(Selection(missing=["0.1"])))
    with pytest.raises(ConfigError, match=f"suite '{suite}' takes no method of your own") as refused:
        experiments.run(suite, methods=["mine:Mine"])
    takers = [name for name in suites.names() if isinstance(suites.load(name), MissingBlocksSuite)]
    assert all(name in str(refused.value) for name in takers)
    assert "'mine:Mine'" in str(refused.value)
    assert "anyparty compare" in str(refused.value)


MINE = """
from dataclasses import dataclass
from anyparty.methods.split.plug import Plug


@dataclass(frozen=True, kw_only=True)
class Mine(Plug):
    strength: float = 1.0
"""


def test_a_method_of_your_own_is_compared_with_the_papers(call, tmp_path, monkeypatch):
    """It is trained like LASER-VFL, and an edit of its source repeats its runs."""
    (tmp_path / "mine_bench.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(experiment.suites, "load", lambda _: tiny())
    words = ["bench", "tiny", "--method", "laser", "--method", "mine_bench:Mine", "--seeds", "1", "--folder", "runs"]
    shown = call(*words)
    assert shown.exit_code == 0, shown.output
    assert "| mine_bench:Mine |" in shown.stdout
    assert "mine_bench:Mine: not in the paper; trained as the suite's LASER-VFL" in shown.stdout
    records = [json.loads(path.read_text()) for path in Path("runs").glob("*/record.json")]
    of_own = [record["run"] for record in records if record["run"]["method"] == "mine_bench:Mine"]
    assert len(records) == 2
    assert of_own[0]["settings"]["described"]["code"]
    assert "table-laser-mine_bench-Mine.md" in {path.name for path in Path("runs").iterdir()}
    assert call("bench", "tiny", "--method", "mine_bench:Mone").exit_code != 0
