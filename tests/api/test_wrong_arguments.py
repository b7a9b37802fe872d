"""Every wrong argument of the public functions is an anyparty error that names the argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import anyparty
from anyparty import MLP, Federation, Model, Optimizer, compare, impute, log_likelihood, method, runs
from anyparty.errors import AnypartyError
from anyparty.sklearn import VerticalClassifier, VerticalRegressor

N = 60
IDS = [f"c{row}" for row in range(N)]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2))
TABLES = {
    "bank": pl.DataFrame({"customer": IDS, "income": X[:, 0], "default": [row % 2 for row in range(N)]}),
    "shop": pl.DataFrame({"customer": IDS, "visits": X[:, 1]}),
}
LABELS = np.arange(N) % 2


def made(**changes: Any) -> Any:
    return Federation.from_tables(**({"tables": TABLES, "id": "customer", "label": "default"} | changes))


@pytest.fixture(scope="module")
def federation() -> Federation:
    return made()


@pytest.fixture(scope="module")
def model(federation: Federation) -> Model:
    return federation.train("laser", epochs=1)


FEDERATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "id: number": ({"id": 0}, "id"),
    "id: None": ({"id": None}, "id"),
    "id: list of numbers": ({"id": [0]}, "id"),
    "id: number by party": ({"id": {"bank": "customer", "shop": 0}}, "id"),
    "id: empty list": ({"id": []}, "id"),
    "id: frame": ({"id": TABLES["shop"]}, "id"),
    "id: set": ({"id": {"customer": None}}, "id"),
    "tables: None": ({"tables": None}, "tables"),
    "tables: frame": ({"tables": TABLES["bank"]}, "tables"),
    "tables: list of pairs": ({"tables": list(TABLES.items())}, "tables"),
    "tables: empty": ({"tables": {}}, "tables"),
    "tables: number as name": ({"tables": {0: TABLES["bank"]}}, "tables"),
    "tables: empty name": ({"tables": {"": TABLES["bank"]}}, "part"),
    "tables: None as table": ({"tables": {**TABLES, "shop": None}}, "shop"),
    "tables: number as table": ({"tables": {**TABLES, "shop": 3}}, "shop"),
    "tables: list as table": ({"tables": {**TABLES, "shop": [1, 2]}}, "shop"),
    "tables: dict as table": ({"tables": {**TABLES, "shop": {"customer": IDS}}}, "shop"),
    "tables: series": ({"tables": {**TABLES, "shop": TABLES["shop"]["visits"]}}, "shop"),
    "tables: plain array": ({"tables": {**TABLES, "shop": X}}, "shop"),
    "label: number": ({"label": 1}, "label"),
    "label: list": ({"label": ["default"]}, "label"),
    "active: number": ({"active": 0}, "active"),
    "active: list": ({"active": ["bank"]}, "active"),
    "task: None": ({"task": None}, "task"),
    "task: number": ({"task": 1}, "task"),
    "positive: list": ({"positive": ["1"]}, "positive"),
    "types: kind by party": ({"types": {"shop": "numeric"}}, "types"),
    "types: class": ({"types": {"shop": {"visits": float}}}, "types"),
    "types: list": ({"types": ["visits"]}, "types"),
    "types: None by party": ({"types": {"shop": None}}, "types"),
    "drop: None by party": ({"drop": {"shop": None}}, "drop"),
    "drop: list": ({"drop": ["visits"]}, "drop"),
    "drop: text by party": ({"drop": {"shop": "visits"}}, "drop"),
    "drop: number in list": ({"drop": {"shop": [0]}}, "drop"),
    "file: text": ({"file": {"shop": ";"}}, "file"),
    "file: number": ({"file": {"shop": {"separator": 1}}}, "separator"),
    "file: number as key": ({"file": {"shop": {1: ";"}}}, "file"),
    "missing: list": ({"missing": [-999]}, "missing"),
    "missing: list by party": ({"missing": {"shop": [-999]}}, "missing"),
    "missing: number by column": ({"missing": {"shop": {"visits": -999}}}, "missing"),
    "missing: column of a number": ({"missing": {"shop": {1: [-999]}}}, "missing"),
    "missing: a list in a list": ({"missing": {"shop": {"visits": [[-999]]}}}, "missing"),
    "limits: text by party": ({"limits": {"shop": "half"}}, "limits"),
    "limits: number by column": ({"limits": {"shop": {"visits": 0.5}}}, "limits"),
    "limits: number above 1": ({"limits": {"bank": {"income": 2}}}, "limits"),
    "classes: number": ({"classes": 2}, "classes"),
    "classes: text": ({"classes": "yes"}, "classes"),
    "classes: text by class": ({"classes": {"yes": "1", "no": "0"}}, "classes"),
    "classes: number as class": ({"classes": {1: [1], 0: [0]}}, "classes"),
    "split: list": ({"split": ["random"]}, "split"),
    "split: number": ({"split": 0.2}, "split"),
    "split: unknown key": ({"split": {"kind": "group", "column": "a"}}, "split"),
    "split: number as kind": ({"split": {"kind": 3}}, "split"),
    "split: number as key": ({"split": {1: "group"}}, "split"),
    "merge_spellings: text": ({"merge_spellings": "yes"}, "merge_spellings"),
    "duplicates: list": ({"duplicates": ["first"]}, "duplicates"),
    "duplicates: number": ({"duplicates": {"shop": 1}}, "duplicates"),
    "duplicates: None": ({"duplicates": None}, "duplicates"),
    "id_normalize: text": ({"id_normalize": "strip-zeros"}, "id_normalize"),
    "id_normalize: number": ({"id_normalize": [1]}, "id_normalize"),
    "max_cell_bytes: text": ({"max_cell_bytes": "1000"}, "max_cell_bytes"),
    "max_cell_bytes: float": ({"max_cell_bytes": 1e3}, "max_cell_bytes"),
    "max_cell_bytes: negative": ({"max_cell_bytes": -1}, "max_cell_bytes"),
    "unknown argument": ({"ids": "customer"}, "ids"),
}

TRAINING: dict[str, tuple[dict[str, Any], str]] = {
    "method: number": ({"method": 3}, "method"),
    "method: list": ({"method": ["laser"]}, "method"),
    "parameters: list": ({"method": "laser", "parameters": [1]}, "parameters"),
    "parameters: number as key": ({"method": "laser", "parameters": {1: 2}}, "parameters"),
    "parameters: text": ({"method": "laser", "parameters": {"embedding": "wide"}}, "embedding"),
    "encoder: number": ({"encoder": 3}, "encoder"),
    "encoder: number as party": ({"encoder": {0: MLP()}}, "encoder"),
    "optimizer: number": ({"optimizer": 3}, "optimizer"),
    "optimizer: number as party": ({"optimizer": {0: "adam"}}, "optimizer"),
    "scheduler: number": ({"scheduler": 3}, "scheduler"),
    "loss: text": ({"loss": "mse"}, "loss"),
    "schedule: number": ({"schedule": 3}, "schedule"),
    "schedule: number as key": ({"schedule": {1: "flex"}}, "schedule"),
    "clock: number": ({"clock": 3}, "clock"),
    "clock: number as key": ({"schedule": "flex", "clock": {1: 2.0}}, "clock"),
    "split: number": ({"split": 3}, "split"),
    "split: list": ({"split": [0.8, 0.2]}, "split"),
    "split: number as ids": ({"split": {"train": 3}}, "split"),
    "split: lists of ids": ({"split": {"train": [["c1"]]}}, "split"),
    "split: None as ids": ({"split": {"train": None}}, "split"),
    "split: number as part": ({"split": {"train": IDS[:40], 2: IDS[40:]}}, "split"),
    "split: number as kind": ({"split": {"kind": 2}}, "split"),
    "folder: number": ({"folder": 3}, "folder"),
    "folder: list": ({"folder": ["run"]}, "folder"),
    "resume: text": ({"resume": "yes"}, "resume"),
    "watch: text": ({"watch": "loss"}, "watch"),
    "progress: text": ({"progress": "no"}, "progress"),
    "epochs: text": ({"epochs": "ten"}, "epochs"),
    "epochs: fraction": ({"epochs": 0.5}, "epochs"),
    "epochs: list": ({"epochs": [10]}, "epochs"),
    "epochs: array": ({"epochs": np.array([1, 2])}, "epochs"),
    "epochs: frame": ({"epochs": TABLES["bank"]}, "epochs"),
    "seed: None": ({"seed": None}, "seed"),
    "seed: text": ({"seed": "x"}, "seed"),
    "metric: list": ({"metric": ["auroc"]}, "metric"),
    "metric: number": ({"metric": 1}, "metric"),
    "patience: text": ({"patience": "long"}, "patience"),
    "validation: text": ({"validation": "some"}, "validation"),
    "test: list": ({"test": [0.1]}, "test"),
    "device: number": ({"device": 0}, "device"),
    "device: None": ({"device": None}, "device"),
    "balance: text": ({"balance": "balanced"}, "balance"),
    "require: dict": ({"require": {"bank": 1}}, "require"),
    "unknown setting": ({"n_epochs": 3}, "n_epochs"),
}

CALLS: dict[str, tuple[Callable[[Model], Any], str]] = {
    "predict: number": (lambda model: model.predict(3), "tables"),
    "predict: frame": (lambda model: model.predict(TABLES["bank"]), "tables"),
    "predict: number as party": (lambda model: model.predict({0: TABLES["shop"]}), "tables"),
    "predict: None as table": (lambda model: model.predict({"shop": None}), "shop"),
    "predict: number as table": (lambda model: model.predict({"shop": 4}), "shop"),
    "predict: empty": (lambda model: model.predict({}), "tables"),
    "predict: parties of numbers": (lambda model: model.predict(TABLES, parties=[0]), "parties"),
    "predict: parties text": (lambda model: model.predict(TABLES, parties="bank"), "parties"),
    "predict: parties number": (lambda model: model.predict(TABLES, parties=1), "parties"),
    "predict: no parties": (lambda model: model.predict(TABLES, parties=[]), "part"),
    "predict: ledger": (lambda model: model.predict(TABLES, ledger={}), "ledger"),
    "predict: unknown argument": (lambda model: model.predict(TABLES, party="bank"), "party"),
    "evaluate: number as party": (lambda model: model.evaluate({0: TABLES["shop"]}), "tables"),
    "evaluate: unseen": (lambda model: model.evaluate(unseen="ignore"), "unseen"),
    "evaluate: unseen list": (lambda model: model.evaluate(unseen=["wrong"]), "unseen"),
    "embed: parties of numbers": (lambda model: model.embed(parties=[1]), "parties"),
    "aligned: None": (lambda model: model.aligned(None), "tables"),
    "save: None": (lambda model: model.save(None), "folder"),
    "save: replace": (lambda model: model.save("unused", replace="yes"), "replace"),
    "load: None": (lambda _: Model.load(None), "folder"),
    "load: list": (lambda _: Model.load(["run"]), "folder"),
    "load: device": (lambda _: Model.load("nowhere", device=0), "device"),
    "load: encoders": (lambda model: model.save("saved") or Model.load("saved", encoders=[MLP()]), "encoders"),
    "write: number": (lambda model: model.predict().write(3), "path"),
    "write: None": (lambda model: model.predict().write(None), "path"),
    "plot: metric": (lambda model: model.evaluate().plot(metric=3), "metric"),
    "from_config: None": (lambda _: Federation.from_config(None), "config"),
    "from_config: dict": (lambda _: Federation.from_config({}), "config"),
    "impute: no model": (lambda _: impute(3, TABLES, "shop"), "model"),
    "impute: party": (lambda model: impute(model, TABLES, 0), "party"),
    "impute: samples": (lambda model: impute(model, TABLES, "shop", samples="x"), "samples"),
    "log_likelihood: no model": (lambda _: log_likelihood(None, TABLES), "model"),
    "method: number": (lambda _: method(3), "name"),
    "method: None": (lambda _: method(None), "name"),
    "MLP: text": (lambda _: MLP(hidden="wide"), "hidden"),
    "Optimizer: text": (lambda _: Optimizer(lr="fast"), "lr"),
    "Optimizer: name": (lambda _: Optimizer(name=3), "name"),
    "frame: None": (lambda _: runs.frame(None), "paths"),
    "frame: number": (lambda _: runs.frame(3), "paths"),
    "frame: list of numbers": (lambda _: runs.frame([3]), "paths"),
    "frame: settings": (lambda _: runs.frame("x", settings="some"), "settings"),
    "evaluate_run: None": (lambda _: runs.evaluate_run(None), "folder"),
    "predict_run: number": (lambda _: runs.predict_run(3), "folder"),
    "model_for_run: allow_code": (lambda _: runs.model_for_run("x", allow_code=3), "allow_code"),
    "model_for_run: device": (lambda _: runs.model_for_run("x", device=3), "device"),
    "settings_of: None": (lambda _: runs.settings_of(None), "folder"),
    "federation_of_run: None": (lambda _: runs.federation_of_run(None), "folder"),
    "default_folder: None": (lambda _: runs.default_folder(None, None), "path"),
    "tables_from: numbers": (lambda _: runs.tables_from([3]), "pairs"),
    "compare: None": (lambda _: compare(None, ["laser"]), "config"),
    "compare: methods None": (lambda _: compare(made(), None), "methods"),
    "compare: methods number": (lambda _: compare(made(), 3), "methods"),
    "compare: methods of numbers": (lambda _: compare(made(), [3]), "method"),
    "compare: number as label": (lambda _: compare(made(), {1: "laser"}), "methods"),
    "compare: seeds text": (lambda _: compare(made(), ["laser"], seeds="two"), "seeds"),
    "compare: seeds None": (lambda _: compare(made(), ["laser"], seeds=None), "seeds"),
    "compare: missing text": (lambda _: compare(made(), ["laser"], missing="half"), "missing"),
    "compare: missing None": (lambda _: compare(made(), ["laser"], missing=None), "missing"),
    "compare: metric": (lambda _: compare(made(), ["laser"], metric=3), "metric"),
    "compare: tune": (lambda _: compare(made(), ["laser"], tune="x"), "tune"),
    "compare: space": (lambda _: compare(made(), ["laser"], tune=2, space=[1]), "space"),
    "compare: jobs": (lambda _: compare(made(), ["laser"], jobs="all"), "jobs"),
    "compare: backend": (lambda _: compare(made(), ["laser"], backend=3), "backend"),
    "compare: folder": (lambda _: compare(made(), ["laser"], folder=3), "folder"),
    "compare: epochs": (lambda _: compare(made(), ["laser"], epochs="x", seeds=1, missing=0), "epochs"),
    "compare: parameters": (lambda _: compare(made(), ["laser"], parameters=[1]), "parameters"),
    "sklearn: method": (lambda _: VerticalClassifier(method=3).fit(X, LABELS), "method"),
    "sklearn: epochs": (lambda _: VerticalClassifier(epochs="x").fit(X, LABELS), "epochs"),
    "sklearn: hidden": (lambda _: VerticalClassifier(hidden=64).fit(X, LABELS), "hidden"),
    "sklearn: hidden text": (lambda _: VerticalClassifier(hidden="64").fit(X, LABELS), "hidden"),
    "sklearn: lr": (lambda _: VerticalClassifier(lr="x").fit(X, LABELS), "lr"),
    "sklearn: blocks": (lambda _: VerticalClassifier(blocks="a").fit(X, LABELS), "blocks"),
    "sklearn: blocks number": (lambda _: VerticalClassifier(blocks={"a": 0}).fit(X, LABELS), "blocks"),
    "sklearn: blocks of None": (lambda _: VerticalClassifier(blocks={"a": [None]}).fit(X, LABELS), "blocks"),
    "sklearn: blocks by number": (lambda _: VerticalClassifier(blocks={0: [0], 1: [1]}).fit(X, LABELS), "blocks"),
    "sklearn: no_answer": (lambda _: VerticalClassifier(no_answer=None).fit(X, LABELS), "no_answer"),
    "sklearn: parameters": (lambda _: VerticalClassifier(parameters=[1]).fit(X, LABELS), "parameters"),
    "sklearn: validation": (lambda _: VerticalRegressor(validation="x").fit(X, LABELS), "validation"),
    "sklearn: patience": (lambda _: VerticalRegressor(patience="x").fit(X, LABELS), "patience"),
    "sklearn: X by number": (lambda _: VerticalClassifier(epochs=1).fit({0: X}, LABELS), "X"),
    "sklearn: X of text": (lambda _: VerticalClassifier(epochs=1).fit({"a": "x"}, LABELS), "X"),
}  # fmt: skip


def subjects(cases: Iterable[str]) -> list[str]:
    """Return the arguments or functions that the cases are about, the words before their colons."""
    return list(dict.fromkeys(case.partition(":")[0] for case in cases))


def refused(call: Callable[[], Any], argument: str, case: str) -> None:
    with pytest.raises(AnypartyError) as caught:
        call()
    assert argument in str(caught.value), case
    assert len(str(caught.value)) < 1000, case


@pytest.mark.parametrize("subject", subjects(FEDERATIONS))
def test_from_tables_refuses_wrong_arguments(subject: str) -> None:
    for case, (changes, argument) in FEDERATIONS.items():
        if case.partition(":")[0] == subject:
            refused(lambda changes=changes: made(**changes), argument, case)


@pytest.mark.parametrize("subject", subjects(TRAINING))
def test_train_refuses_wrong_arguments(
    subject: str, federation: Federation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for case, (settings, argument) in TRAINING.items():
        if case.partition(":")[0] == subject:
            refused(lambda settings=settings: federation.train(**({"epochs": 1} | settings)), argument, case)


@pytest.mark.parametrize("subject", subjects(CALLS))
def test_other_calls_refuse_wrong_arguments(
    subject: str, model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for case, (call, argument) in CALLS.items():
        if case.partition(":")[0] == subject:
            refused(lambda call=call: call(model), argument, case)


def test_parties_may_be_a_generator(model: Model) -> None:
    asked = model.predict(TABLES, parties=(name for name in ["bank"])).asked
    assert asked.tolist() == [True, False]


@pytest.mark.parametrize("columns", [["visits"], ("visits",), np.array(["visits"]), pl.Series(["visits"]), {"visits"}])
def test_columns_may_be_any_list(columns: Any) -> None:
    assert made(drop={"shop": columns}).tables["shop"].columns.columns == []


def test_the_public_names_are_covered() -> None:
    """A new public name needs wrong calls here."""
    known = {
        "METHODS", "MLP", "Callback", "Comparison", "Federation", "Model", "Optimizer", "Predictions", "__version__",
        "compare", "datasets", "impute", "log_likelihood", "method", "runs",
    }  # fmt: skip
    assert set(anyparty.__all__) == known
