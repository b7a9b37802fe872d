"""Panels share one legend, are drawn as their data say, and the same numbers give the same bytes."""

import re
from pathlib import Path

import pytest
from matplotlib.image import imread

from anyparty.core.figure_panels import Curve, Panel, PanelFigure


def panel(names: list[str], **how) -> Panel:
    """Return a panel with a curve for each name."""
    curves = [Curve(label=name, x=[0, 1], y=[place, 1], color=f"C{place}") for place, name in enumerate(names)]
    return Panel(**{"title": "", "x_label": "", "y_label": "", "curves": curves} | how)


def drawn(path: Path, names: list[list[str]], **how) -> str:
    PanelFigure(panels=[panel(here) for here in names], **how).write(path)
    return path.with_suffix(".svg").read_text()


def test_the_common_legend_lists_each_name_once(tmp_path):
    svg = drawn(tmp_path / "figure", [["Local"], ["Local", "Ensemble"], [], ["Plug"]])
    assert [svg.count(f">{name}<") for name in ("Local", "Ensemble", "Plug")] == [1, 1, 1]


def test_the_legend_is_below_all_panels_so_that_it_covers_no_curve(tmp_path):
    svg = drawn(tmp_path / "figure", [["Local"], ["Ensemble"]])
    height = float(re.search(r'height="([\d.]+)pt"', svg).group(1))
    below = [float(y) for y in re.findall(r'y="([\d.]+)"[^>]*>(?:Local|Ensemble)<', svg)]
    bottom = max(float(y) for y in re.findall(r'y="([\d.]+)"[^>]*>0\.0<', svg))
    assert len(below) == 2
    assert all(bottom < y < height for y in below)


def test_the_same_numbers_give_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        drawn(tmp_path / name, [["Local"], ["Ensemble"]])
    for suffix in (".png", ".svg"):
        one, two = ((tmp_path / name).with_suffix(suffix).read_bytes() for name in ("one", "two"))
        assert one == two


@pytest.mark.parametrize(
    ("number", "across", "shape"), [(1, 3, (1, 1)), (3, 3, (3, 1)), (4, 3, (3, 2)), (6, 2, (2, 3))]
)
def test_panels_are_arranged_in_rows(tmp_path, number, across, shape):
    made = PanelFigure(panels=[panel(["Local"])] * number, across=across, size=(2.0, 1.0))
    figure = made.draw()
    assert len(figure.axes) == number
    assert {axis.get_subplotspec().get_gridspec().get_geometry() for axis in figure.axes} == {(shape[1], shape[0])}
    assert figure.get_size_inches().tolist() == [2.0 * shape[0], 1.0 * shape[1]]
    made.write(tmp_path / "figure")
    assert imread(tmp_path / "figure.png")[0, 0].min() > 0.99  # on white, on a dark page too


def test_a_figure_without_panels_writes_no_file(tmp_path):
    PanelFigure(panels=[]).write(tmp_path / "figure")
    assert not list(tmp_path.iterdir())


def test_a_panel_draws_its_data():
    curve = Curve(label="Local", x=[1, 2, 4], y=[1.0, 10.0, 100.0], spread=[0.5, 1.0, 2.0], color="C3",
                  band=[[0.5, 9.0, 90.0], [1.5, 11.0, 110.0]])  # fmt: skip
    one = panel([], curves=[curve], title="title", x_label="x", y_label="y", level=50.0, ticks={1: "one", 4: "four"},
                x_base=2, is_y_log=True, notes={"a note": "C3"})  # fmt: skip
    figure = PanelFigure(panels=[one, panel(["Plug"], y_label="y", x_end=7.0)], same_y="row").draw()
    first, second = figure.axes
    line, *_ = first.get_lines()
    assert (line.get_xdata().tolist(), line.get_ydata().tolist(), line.get_color()) == (curve.x, curve.y, "C3")
    assert first.get_lines()[-2].get_ydata() == [50.0, 50.0]
    bars, band = first.collections
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [[0.5, 1.5], [9.0, 11.0], [98.0, 102.0]]
    assert {y for _, y in band.get_paths()[0].vertices.tolist()} >= {0.5, 110.0}
    assert (first.get_xscale(), first.get_yscale(), first.get_title(loc="left")) == ("log", "log", "title")
    assert [text.get_text() for text in first.get_xticklabels()] == ["one", "four"]
    assert [text.get_text() for text in first.get_legend().get_texts()] == ["a note"]
    assert (first.get_ylabel(), second.get_ylabel()) == ("y", "")  # panels of a row share the y axis
    assert second.get_xlim() == (0.0, 7.0)
