"""Panels share one legend, and the same numbers give the same bytes."""

import re
from pathlib import Path

import pytest
from matplotlib.image import imread

from anyparty.experiments.output import panels


def drawn(path: Path, names: list[list[str]], **how) -> str:
    with panels(len(names), path, **how) as axes:
        for axis, here in zip(axes, names, strict=True):
            for place, name in enumerate(here):
                axis.plot([0, 1], [place, 1], color=f"C{place}", label=name)
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
    with panels(number, tmp_path / "figure", across=across, size=(2.0, 1.0)) as axes:
        assert len(axes) == number
        assert {axis.get_subplotspec().get_gridspec().get_geometry() for axis in axes} == {(shape[1], shape[0])}
        assert axes[0].figure.get_size_inches().tolist() == [2.0 * shape[0], 1.0 * shape[1]]
    assert imread(tmp_path / "figure.png")[0, 0].min() > 0.99  # on white, on a dark page too
