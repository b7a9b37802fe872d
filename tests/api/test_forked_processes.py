"""A process that was forked after tables had been read gets a sentence; it would otherwise wait for ever."""

import os
import subprocess
import sys

import pytest

from tests.conftest import write_tables

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

SCRIPT = """
import multiprocessing, sys, warnings
from concurrent.futures import ProcessPoolExecutor
warnings.simplefilter("ignore")
import polars as pl
from anyparty import Federation
from anyparty.errors import AnypartyError

def made(_=0):
    return Federation.from_config("credit.toml")

def answer(work):
    try:
        return str(work())
    except AnypartyError as error:
        return f"{type(error).__name__}: {error}"

def new_federation(_): return answer(lambda: len(made().tables))
def same_federation(_): return answer(lambda: parent.train("laser", epochs=1))
def new_prediction(_): return answer(lambda: len(model.predict({"bank": "bank.csv"})))
def test_rows(_): return answer(lambda: len(model.predict()) > 0)

case, fork = sys.argv[1], multiprocessing.get_context("fork")
if case == "before any table":
    work = new_federation
elif case == "after the user's own polars":
    pl.read_csv("bank.csv")
    work = new_federation
else:
    parent = made()
    model = parent.train("laser", epochs=1)
    work = globals()[case]
if case == "same_federation":
    with ProcessPoolExecutor(1, mp_context=fork) as pool:
        print(list(pool.map(work, [0]))[0])
else:
    with fork.Pool(1) as pool:
        print(pool.map(work, [0])[0])
"""


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("new_federation", "spawn"),
        ("same_federation", "spawn"),
        ("new_prediction", "spawn"),
        ("after the user's own polars", "spawn"),
        ("test_rows", "True"),
        ("before any table", "2"),
    ],
)
@pytest.mark.slow
def test_a_forked_process_gets_an_error_that_suggests_spawn(tmp_path, case, said):
    write_tables(tmp_path)
    made = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, "-c", SCRIPT, case], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert said in made.stdout, made.stdout + made.stderr[-2000:]
