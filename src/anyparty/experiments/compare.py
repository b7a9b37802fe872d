"""``compare``: train several methods on identical rows with identical missing blocks, and compare their scores.

A block is a party's columns of a row.

comparison = anyparty.compare(federation, ["laser", "plug", "standard"], seeds=5, missing=[0, 0.3, 0.5])
comparison.paired("standard")
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from anyparty.api.federation import Federation
from anyparty.config import Config, config_of
from anyparty.core.declared_types import checked
from anyparty.core.seeds import Seeds
from anyparty.errors import ConfigError, RunError, some
from anyparty.experiments import runner
from anyparty.experiments.compared_methods import ComparedMethod, check_methods, compared_methods, described_option
from anyparty.experiments.compared_missing import Label, MissingBlocks, conditions
from anyparty.experiments.comparison import Comparison
from anyparty.experiments.comparison_run import ComparisonRun
from anyparty.experiments.sweep import TUNED, draw_configurations, search_space
from anyparty.metrics import METRICS, headline
from anyparty.networks.optimizer import Optimizer


@checked(by_hand=("federation", "methods", "missing"))
def compare(
    federation: Federation | Config | Path | str,
    methods: Any,
    *,
    seeds: int | Sequence[int] = 5,
    missing: Any = (0.0, 0.3, 0.5),
    metric: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    tune: int = 0,
    space: Mapping[str, Any] | None = None,
    folder: Path | str | None = None,
    jobs: int = 1,
    backend: str | None = None,
    console: Console | None = None,
    **training: Any,
) -> Comparison:
    """Train every method with every seed and missing rate, and score all methods on the same test rows.

    The test rows depend on the seed alone.  The missing blocks depend on the seed and the rate, and are equal for all
    methods.

    Args:
        federation: the federation, its settings, or the name of its settings file.
        methods: a list of methods, or a mapping from labels to methods. A method is a name, ``"module:name"`` of a
            user-defined method, a method object, or the rule of a split method. In a mapping, a method may also be a
            name with parameters, such as ``{"name": "laser", "embedding": 32}``.
        seeds: the number n of seeds, which are then 0, 1, ..., n - 1; or a list of seeds.
        missing: the blocks that are removed, in addition to those that the tables lack: a list of rates, which are
            probabilities that a party's block of a row is removed; of mechanisms, such as ``MNAR(p=0.7)`` of
            ``anyparty.data.missingness`` or one of your own; or of pairs ``(training, test)`` of rates or mechanisms.
        metric: the metric of tables and figures; by default accuracy, or RMSE for a regression.
        parameters: parameters such as ``{"embedding": 32}``. A method that is given by name gets only the parameters
            that it has.
        tune: number of configurations to try for each method and missing rate. The first configuration has the settings
            as given.  All further configurations are drawn at random from ``space``, and are the same for all methods.
            All configurations are tried with the first seed. The configuration with the best validation score is then
            used with all seeds. The search does not read test rows. With 0 there is no search, and the settings are
            used as given.
        space: for each setting to search, a list of choices or a range such as ``{"low": 1e-4, "high": 1e-1, "log":
            True}``. By default, learning rate, weight decay and batch size are searched.
        folder: folder of the records and the page.  Finished runs in this folder are not repeated, so the same call
            continues a comparison that was stopped.  ``None`` keeps everything in memory.
        jobs: number of parallel runs.
        backend: a joblib back end, "ray" or "dask"; by default processes of this machine.
        console: console for the planned runs and the progress bar; ``None`` shows neither.
        training: further arguments of ``Federation.train``, for all methods: epochs, batch_size, encoder, optimizer,
            scheduler, loss ...

    Returns:
        The scores and costs of all runs, with tables, figures and differences between methods.

    Raises:
        ConfigError: an argument is unknown or out of range.
        RunError: all runs failed.

    """
    if not isinstance(federation, Federation):
        federation = Federation.from_config(config_of(federation))
    chosen, rates, drawn = compared_methods(methods, parameters), conditions(missing), _seeds(seeds)
    _check(federation, chosen, training)
    shown = _metric(federation, metric)
    federation, training = _without_optimizer_object(federation, training)
    if console is not None:
        console.print(announcement(chosen, list(rates), drawn, tune), soft_wrap=True)
    plain = [planned(federation, each, rate, blocks, seed, training)
             for seed in drawn for rate, blocks in rates.items() for each in chosen]  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) if folder is None else Path(folder)
        execute = partial(runner.run_all, jobs=jobs, backend=backend, console=console)
        changes = _searched(plain, drawn[0], tune, space, partial(execute, folder=root / "search"))
        plan = [replace(run, changes=changes.get((run.method, run.missing), {})) for run in plain]
        result = execute(plan, root)
    if not result.records:
        raise RunError("\n".join(["all runs of the comparison failed:", *dict.fromkeys(result.failed.values())]))
    finished = [result.records[run.key] for run in plan if run.key in result.records]
    found = Comparison(
        records=finished, methods=[each.label for each in chosen], metric=shown, failed=result.failed,
        folder=None if folder is None else Path(folder), tuned=changes,
    )  # fmt: skip
    if folder is not None:
        found.write()
    return found


def announcement(methods: Sequence[ComparedMethod], rates: Sequence[Label], seeds: Sequence[int], tune: int) -> str:
    """Return a sentence with a comparison's methods, missing rates, seeds and number of runs."""
    consecutive = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    groups = {
        "method": ", ".join(each.label for each in methods),
        "missing rate": ", ".join(f"{rate:g}" if isinstance(rate, float) else rate for rate in rates),
        "seed": f"{seeds[0]} to {seeds[-1]}" if consecutive else ", ".join(map(str, seeds)),
    }
    counts = (len(methods), len(rates), len(seeds))
    listed = " × ".join(f"{_counted(n, name)} ({values})"
                        for n, (name, values) in zip(counts, groups.items(), strict=True))  # fmt: skip
    searched = _counted(len(methods) * len(rates) * tune, "run")
    search = f", after {searched} that search settings with the first seed" if tune else ""
    rate = next((rate for rate in rates if rate and isinstance(rate, float)), None)
    meaning = "" if rate is None else (
        f" At a missing rate of {rate:g}, each party's columns of a row are removed with probability {rate:g}."
    )  # fmt: skip
    return f"{_counted(math.prod(counts), 'run')}{search}: {listed}.{meaning}"


def _counted(n: int, name: str) -> str:
    return f"{n:,} {name}{'' if n == 1 else 's'}"


def planned(
    federation: Federation, method: ComparedMethod, rate: Label, blocks: MissingBlocks, seed: int,
    training: Mapping[str, Any],
) -> ComparisonRun:  # fmt: skip
    """Return the run of one method, condition and seed; the settings of the run determine the result completely."""
    config = federation.config.model_dump(mode="json", exclude={"parties", "run", "track"})
    settings: dict[str, Any] = {
        "method": method.described,
        "training": {key: described_option(value) for key, value in training.items() if key != "device"},
        "tables": {name: table.fingerprint for name, table in federation.tables.items()},
        "config": config,
    }
    if isinstance(rate, str):
        settings["blocks"] = [described_option(each) for each in (blocks.train, blocks.test)]
    return ComparisonRun(
        suite="compare", dataset="", method=method.label, seed=seed, missing=rate, blocks=blocks, settings=settings,
        federation=federation, compared=method, training=dict(training),
    )  # fmt: skip


def _searched(
    runs: Sequence[ComparisonRun], seed: int, tune: int, space: Mapping[str, Any] | None,
    execute: Callable[[list[ComparisonRun]], runner.SuiteResult],
) -> dict[tuple[str, Label], dict[str, Any]]:  # fmt: skip
    """Try configurations with one seed; return, by method and missing rate, the one configuration with the best score.

    Raises:
        ConfigError: ``tune`` is negative, the space is invalid, or there are no validation rows.
    """
    if tune < 0:
        raise ConfigError(f"tune: expected a number of configurations, such as 20, or 0 for none, got {tune!r}")
    if not tune:
        if space is not None:
            raise ConfigError("space has no effect without tune: give the number of configurations, such as tune=20")
        return {}
    configurations = [{}, *draw_configurations(search_space(space or TUNED), Seeds(0).numpy("tune"), tune - 1)]
    first = [run for run in runs if run.seed == seed]
    tried = [replace(run, changes=each, scored=False) for run in first for each in configurations]
    records = execute(tried).records
    best: dict[tuple[str, Label], tuple[float, dict[str, Any]]] = {}
    for run in tried:
        record = records.get(run.key)
        if record is None:
            continue
        if record["validation"] is None:
            raise ConfigError("tune: there are no validation rows to choose by; set validation above 0")
        value = record["validation"] * (1 if METRICS[record["metric"]].greater else -1)
        place = (run.method, run.missing)
        if place not in best or value > best[place][0]:
            best[place] = (value, dict(run.changes))
    return {place: changes for place, (_, changes) in best.items()}


def _without_optimizer_object(federation: Federation, training: dict[str, Any]) -> tuple[Federation, dict[str, Any]]:
    """Return settings and arguments with an ``Optimizer`` moved from the arguments into the settings."""
    if not isinstance(training.get("optimizer"), Optimizer):
        return federation, training
    config = federation.config
    parties = {name: party.model_copy(update={"optimizer": None}) for name, party in config.parties.items()}
    update = {"optimizer": training["optimizer"], "parties": parties}
    rest = {key: value for key, value in training.items() if key != "optimizer"}
    return replace(federation, config=config.model_copy(update=update)), rest


def _check(federation: Federation, methods: Sequence[ComparedMethod], training: Mapping[str, Any]) -> None:
    for key in ("seed", "folder", "resume", "watch", "track", "progress", "method", "split"):
        if key in training:
            instead = {
                "seed": "; seeds=[...] lists seeds",
                "folder": "",
                "method": "; list it in methods",
                "split": "; give it to Federation.from_tables, or write it in the settings",
            }
            raise ConfigError(f"compare: {key!r} cannot be set for all runs{instead.get(key, '')}")
    own = {key: value for key, value in training.items() if key not in TRAIN_OBJECTS}
    check_methods(methods, federation.config, own)
    if not training.get("test", federation.config.train.test):
        raise ConfigError("compare: there are no test rows to score, because train.test is 0; set test above 0")


TRAIN_OBJECTS = {"encoder", "optimizer", "scheduler", "clip", "loss", "schedule", "clock"}
"""Arguments of ``Federation.train`` that are not settings of [train]."""


def _metric(federation: Federation, metric: str | None) -> str:
    """Return the metric of tables and figures: the requested metric; by default accuracy, or RMSE for a regression.

    Raises:
        ConfigError: the metric is unknown or does not fit the task.
    """
    task = federation.task(federation.split(federation.config.train))
    return headline(task, metric or ("accuracy" if task.kind == "classification" else "rmse"))[0]


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    """Return the list of seeds; a number n stands for the seeds 0 to n - 1.

    Raises:
        ConfigError: the number of seeds is below 1, or a seed is negative or listed twice.
    """
    drawn = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    wrong = [seed for seed in drawn if seed < 0]
    if not drawn or wrong or len(set(drawn)) < len(drawn):
        raise ConfigError(f"seeds: expected a number of seeds, such as 5, or a list of different whole numbers of at "
                          f"least 0, got {seeds!r}{some(wrong) and f' with {some(wrong)}'}")  # fmt: skip
    return drawn
