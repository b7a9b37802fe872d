"""Suites load, name existing methods and data sets, and derive a run's key from the values that affect its result."""

import pytest

from anyparty.data import datasets
from anyparty.errors import ConfigError
from anyparty.experiments import suites
from anyparty.experiments.missing_blocks_suite import MissingBlocksSuite
from anyparty.experiments.suite import Selection, training_device
from anyparty.methods.method_registry import METHODS, method


@pytest.mark.parametrize("name", suites.names())
def test_every_run_of_a_suite_is_valid(name):
    made = suites.load(name)
    for run in made.runs(Selection(seeds=1, datasets=list(made.datasets))):
        assert run.dataset in datasets.NAMES
        if run.settings.get("reads") != "columns":
            assert run.settings["name"] in METHODS
            method(run.settings["name"], **run.settings["parameters"])


@pytest.mark.parametrize("name", [name for name in suites.names() if isinstance(suites.load(name), MissingBlocksSuite)])
def test_published_numbers_of_missing_blocks_fill_their_tables(name):
    made = suites.load(name)
    for dataset, tables in made.published.items():
        for published in tables.values():
            assert set(published) >= set(made.train_missing)
            assert all(len(cells) == len(made.test_missing) for cells in published.values())
        assert set(tables) <= set(made.datasets[dataset].methods)


def test_keys_differ_exactly_where_results_do():
    made = suites.load("laser-table1")
    runs = list(made.runs(Selection(seeds=2)))
    assert len({run.key for run in runs}) == len(runs)
    again = list(made.runs(Selection(seeds=2)))
    assert [run.key for run in runs] == [run.key for run in again]
    quick = list(made.runs(Selection(seeds=2, quick=True)))
    assert not {run.key for run in runs} & {run.key for run in quick}


def test_settings_may_change_with_the_missing_rate():
    made = suites.load("laser-table1")
    of = {run.missing: run.settings for run in made.runs(Selection(datasets=["hapt"], methods=["laser"], seeds=1))}
    assert of["0.1"]["optimizer"]["lr"] == 0.03
    assert (of["0.5"]["optimizer"]["lr"], of["0.5"]["optimizer"]["momentum"]) == (0.02, 0.7)
    assert of["0.5"]["optimizer"]["weight_decay"] == 1e-4


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: suites.load("laser-tabel1"), "no suite 'laser-tabel1'; did you mean 'laser-table1'?"),
        (
            lambda: list(suites.load("laser-table1").runs(Selection(datasets=["hatp"]))),
            "no data set 'hatp'; did you mean 'hapt'?",
        ),
        (
            lambda: list(suites.load("laser-table1").runs(Selection(methods=["lazer"]))),
            "no method 'lazer'; did you mean 'laser'?",
        ),
    ],
)
def test_unknown_names_get_a_suggestion(ask, said):
    with pytest.raises(ConfigError) as caught:
        ask()
    assert said in str(caught.value)


def test_heavy_data_sets_run_only_if_named():
    made = suites.load("laser-table1")
    assert {run.dataset for run in made.runs(Selection(seeds=1))} == {"hapt", "credit"}
    (run,) = [
        run
        for run in made.runs(Selection(datasets=["cifar10"], methods=["laser"], seeds=1, device="cuda"))
        if run.missing == "0.1"
    ]
    assert run.settings["train"] == {"device": "cuda"}
    assert run.settings["encoder"]["shape"] == (3, 16, 16)
    assert (run.settings["batch_size"], run.settings["embedding"]) == (1024, 1024)


@pytest.mark.parametrize("name", ["laser-table1", "flex-table3", "apc-fig5", "false-tables"])
def test_a_runs_key_does_not_depend_on_the_device(name):
    here, there = (list(suites.load(name).runs(Selection(seeds=1, device=device))) for device in ("cpu", "cuda"))
    assert [run.key for run in here] == [run.key for run in there]
    assert {training_device({"run": vars(run)}) for run in here} == {"cpu"}
    assert {training_device({"run": vars(run)}) for run in there} == {"cuda"}


def test_a_method_may_stop_at_a_number_of_parties():
    most = dict.fromkeys(("combinatorial", "laser"), 0)
    for run in suites.load("laser-fig2").runs(Selection(methods=list(most), seeds=1)):
        most[run.method] = max(most[run.method], run.parties)
    assert most == {"combinatorial": 7, "laser": 32}
