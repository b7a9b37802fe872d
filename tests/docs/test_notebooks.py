"""The notebooks of the tutorials run in a kernel, and progress bars work there."""

from __future__ import annotations

import os

import pytest

from tests.docs.pages import DOCS, ROOT

nbformat = pytest.importorskip("nbformat", reason="nbformat of the extra 'dev' is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient of the extra 'dev' is not installed")
pytest.importorskip("ipykernel", reason="ipykernel of the extra 'dev' is not installed")

BOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))


@pytest.fixture(autouse=True)
def _kernel(monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))


def executed(book, folder):
    """Execute all cells; an error in a cell is raised."""
    client = nbclient.NotebookClient(book, kernel_name="python3", timeout=120, resources={"metadata": {"path": folder}})
    return client.execute()


def test_notebooks_are_stored_without_outputs() -> None:
    assert len(BOOKS) == 3
    for path in BOOKS:
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        assert all(not cell.outputs and cell.execution_count is None for cell in cells), path.name


@pytest.mark.slow
@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_without_warnings(path, tmp_path) -> None:
    cells = [cell for cell in executed(nbformat.read(path, as_version=4), str(tmp_path)).cells if "outputs" in cell]
    outputs = [output for cell in cells for output in cell.outputs]
    assert "outputs" in cells[-1]
    assert cells[-1].outputs, "the last cell shows nothing"
    printed = "".join(output.get("text", "") for output in outputs)
    assert "Warning" not in printed
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "ipython"])


@pytest.mark.slow
def test_a_progress_bar_in_a_notebook(tmp_path) -> None:
    """Without ipywidgets, a stage ends with one line of text: no warning, no control characters."""
    source = (
        "import sys\n"
        "sys.modules['ipywidgets'] = None\n"  # also where it is installed
        "import polars as pl\n"
        "from anyparty import Federation\n"
        "a = pl.DataFrame({'id': range(40), 'x': range(40), 'y': [k % 2 for k in range(40)]})\n"
        "tables = {'a': a, 'b': a.select('id', z='x')}\n"
        "model = Federation.from_tables(tables, label='y').train('laser', epochs=2, progress=True)"
    )
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    (cell,) = executed(book, str(tmp_path)).cells
    assert {output.output_type for output in cell.outputs} == {"stream"}
    shown = "".join(output.text for output in cell.outputs)
    (line,) = filter(None, shown.splitlines())
    assert "2/2" in line
    assert line.isprintable()
