"""The examples run as they stand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("your_csvs.py", ["all 4", "auroc", "bottom_left"]),
        ("your_own_method.py", ["Maximum", "LASER-VFL", "top_left top_right bottom_left"]),
        ("compare_methods.py", ["laser", "plug", "ensemble", "standard", "missing", "Test accuracy"]),
        ("attention.py", ["attention", "minus attention"]),
        ("compare_mnar.py", ["CC BY 4.0", "(30000, 23)", "Outliers(p=0.8)", "mathbf", "toprule"]),
        ("focal_loss.py", ["train/validation/accuracy", "'epoch': 8", "clinic + laboratory"]),
        ("latex_table.py", ["30\\%", "laser &", "mathbf", "bottomrule"]),
        ("your_own_network.py", ["Overall", "accuracy", "top + bottom"]),
    ],
)
@pytest.mark.slow
def test_an_example_runs(tmp_path: Path, name: str, shows: list[str]) -> None:
    words = [sys.executable, str(EXAMPLES / name), str(tmp_path / "files")]
    quick = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    shown = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=quick)  # noqa: S603
    assert shown.returncode == 0, shown.stderr
    assert [what for what in shows if what not in shown.stdout] == []


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "attention.py", "compare_methods.py", "compare_mnar.py", "focal_loss.py", "latex_table.py", "your_csvs.py",
        "your_own_method.py", "your_own_network.py",
    }  # fmt: skip
