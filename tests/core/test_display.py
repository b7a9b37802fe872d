"""Tables as text and as HTML, frames and figures for notebooks."""

import asyncio
import json
from pathlib import Path

import matplotlib as mpl
import pytest

from anyparty import Federation, Model
from anyparty.errors import ConfigError
from tests.conftest import Call, write_tables

mpl.use("Agg")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    folder = tmp_path_factory.mktemp("tables")
    write_tables(folder)
    files = {name: folder / f"{name}.csv" for name in ("bank", "shop")}
    return Federation.from_tables(files, id="customer", label="default")


@pytest.fixture(scope="module")
def model(federation: Federation) -> Model:
    """Train within a running event loop, as a notebook does."""

    async def cell() -> Model:
        return federation.train("laser", epochs=2, seed=1)

    return asyncio.run(cell())


def test_print_shows_how_columns_were_read(federation: Federation) -> None:
    text = str(federation.reading)
    assert "│ bank" in text
    assert "income" in text
    assert "\x1b" not in text


def test_notebooks_show_tables(federation: Federation, model: Model) -> None:
    shown = [each._repr_html_() for each in (federation, federation.overlap, federation.reading, model)]
    shown.append(model.evaluate()._repr_html_())
    assert all(html.startswith("<pre") and "bank" in html for html in shown)
    assert "&lt;Federation of" in shown[0]  # escaped
    assert "accuracy" in shown[3]


def test_frames_have_the_numbers_of_the_tables(federation: Federation, model: Model) -> None:
    overlap = federation.overlap
    assert overlap.frame()["rows"].sum() == overlap.rows
    scored = model.evaluate()
    frame = scored.frame()
    assert frame.filter(group="overall")["accuracy"].item() == scored.overall["accuracy"]
    assert frame.filter(group="count")["rows"].sum() == scored.overall["rows"]
    assert set(frame.filter(group="parties")["present"]) == set(scored.by_pattern)


def test_figures_have_a_bar_for_each_set_of_parties(federation: Federation, model: Model) -> None:
    overlap, scored = federation.overlap, model.evaluate()
    assert [bar.get_width() for bar in overlap.plot().patches] == [p.rows for p in overlap.patterns[::-1]]
    axes = scored.plot("log_loss")
    assert axes.get_xlabel() == "log_loss"
    assert len(axes.patches) == len(scored.by_pattern)
    assert scored.plot(axes=axes) is axes
    with pytest.raises(ConfigError, match="did you mean 'accuracy'"):
        scored.plot("acuracy")


def test_json_of_align_and_evaluate(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ("bank.csv", "shop.csv", "--label", "default")
    aligned = json.loads(call("align", *words, "--json").stdout)
    assert aligned["overlap"]["rows"] == 120
    assert {each["party"] for each in aligned["columns"]} == {"bank", "shop"}
    assert aligned["task"].startswith("task: classification")
    assert call("train", *words, "--set", "train.epochs=1", "-q").exit_code == 0
    scored = json.loads(call("evaluate", "runs/bank-shop-laser-seed0", "--json").stdout)
    assert scored["overall"]["coverage"] == 1.0
