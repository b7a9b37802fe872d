"""Test the summary of how columns were read."""

import io

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from anyparty.tables.summary import columns, remarked, render
from anyparty.tables.table import read_table


def table(party="clinic", **cells_of):
    rows = len(next(iter(cells_of.values())))
    return read_table(pl.DataFrame({"id": range(rows), **cells_of}), party=party, id="id")


def shown(*tables):
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render(tables))
    return console.export_text()


def test_every_kind_and_remark():
    read = columns(
        table(
            age=[31, 52, None, 40],
            town=["Ulm", "Bonn", "Ulm", None],
            same=[1.5, 1.5, None, 1.5],
            truth=[True, True, True, True],
            nothing=[None, None, None, None],
            rare=["a", None, None, None],
            mostly=[1, 2, 3, 4],
        )
    )
    assert [(c.name, c.kind, c.levels, c.missing, c.remark) for c in read] == [
        ("age", "numeric", None, 0.25, ""),
        ("town", "categorical", 2, 0.25, ""),
        ("same", "numeric", None, 0.25, "constant"),
        ("truth", "numeric", None, 0, "constant"),
        ("nothing", "numeric", None, 1, "empty: left out"),
        ("rare", "categorical", 1, 0.75, "constant"),
        ("mostly", "numeric", None, 0, ""),
    ]


def test_many_levels_and_mostly_missing():
    (levels, gaps) = columns(table(town=[f"t{i % 60}" for i in range(200)], gaps=[1.0, 2.0] + [None] * 198))
    assert (levels.levels, levels.remark) == (60, "many levels: a column of zeros and ones for each")
    assert (gaps.missing, gaps.remark) == (0.99, "mostly missing")


def test_large_whole_numbers_of_which_every_row_has_another():
    made = {
        "account": [10**17 + 997 * i for i in range(40)], "seconds": [1_600_000_000 + i for i in range(40)],
        "income": [20_000 + 137 * i for i in range(40)], "turnover": [10**9 + i // 2 for i in range(40)],
        "float": [1e9 + i for i in range(40)],
    }  # fmt: skip
    remarks = {column.name: column.remark for column in columns(table(**made))}
    assert "identifier" in remarks.pop("account")
    assert "point in time" in remarks.pop("seconds")
    assert set(remarks.values()) == {""}


def test_a_narrow_table_is_shown_in_full():
    text = shown(table(age=[31, None], town=["Ulm", "Ulm"]), table("[red]", sum=[1, 2]))
    lines = [" ".join(line.replace("│", " ").split()) for line in text.splitlines()]
    assert "clinic age number 50.0% constant" in lines
    assert "town category, 1 level constant" in lines
    assert "[red] sum number" in lines


def test_a_wide_table_is_counted_but_for_remarks():
    wide = {f"x{i}": [0.5, 1.5, None, 3.0] for i in range(300)} | {"same": [7] * 4, "town": ["a", "b", "b", "b"]}
    text = shown(table(**wide), table("labels", y=[1, 2]))
    lines = [" ".join(line.replace("│", " ").split()) for line in text.splitlines()]
    assert "clinic same number constant" in lines
    assert "301 others 300 numbers, 1 category 24.9%" in lines
    assert "x7" not in text
    assert "labels y number" in lines
    assert len(lines) < 12


def test_many_remarks_and_many_parties_stay_short():
    constant = {f"x{i}": [1, 1] for i in range(100)}
    lines = shown(*(table(f"p{k}", **constant) for k in range(64))).splitlines()
    assert any("88 others" in line and "88 more with a remark" in line for line in lines)
    assert any("48 more parties" in line for line in lines)
    assert len(lines) < 16 * (12 + 2 + 1)  # for each party twelve columns, the rest and a rule


def test_many_narrow_tables_are_counted():
    text = shown(*(table(f"p{k}", a=[1, 2], b=[1, 2], c=["x", "y"], d=[1, 2], e=[1, 2]) for k in range(10)))
    assert text.count("5 columns") == 10
    assert text.count("4 numbers, 1 category") == 10


def test_a_party_of_labels_only():
    labels = read_table(pl.DataFrame({"id": [1, 2], "y": [0, 1]}), party="boss", id="id", label="y")
    assert "0 columns" in shown(labels)


def test_numbers_far_from_all_others_are_remarked():
    """9999 for missing cells inflates the deviation until the column carries no information."""
    ages = [20 + n % 50 for n in range(97)]
    read = columns(table(age=[*ages, 9999, 9999, 9999], tail=[n**3 for n in range(100)], few=[1.0] * 50 + [2.0] * 50))
    far = (
        "3 cells far from all others (9999): if they stand for missing values, leave them empty, or list them in "
        "parties.clinic.missing"
    )
    assert [c.remark for c in read] == [far, "", ""]
    shown = Console(width=120, record=True, file=io.StringIO())
    shown.print(remarked([table(age=[*ages, 9999])]))
    assert "1 cell far from all others (9999)" in " ".join(shown.export_text().split())
    assert remarked([table(age=ages)]) is None


NORMAL = np.random.default_rng(0).normal(size=2000)
PLACES = np.arange(2000)


def share(percent):
    """Return a mask of 2000 cells with a given percentage of True."""
    return PLACES % 100 < percent


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        *(
            (np.where(share(k), -999, 50 + 10 * NORMAL), f"{20 * k:,} cells far from all others (-999)")
            for k in (1, 4, 6, 10, 30, 90)
        ),
        (np.where(share(10), -999, np.where(share(11), 9999, NORMAL)), "220 cells far from all others (-999, 9999)"),
        (np.where(share(20), -999, np.where(share(30), -9999, NORMAL)), "600 cells far from all others (-9999, -999)"),
        (np.where(share(96), 999, PLACES % 27), "1,920 cells far from all others (999)"),
        (np.where(share(10), 999, 1 + PLACES % 5), "200 cells far from all others (999)"),
        (np.where(share(10), 0, 1990 + PLACES % 30), "200 cells far from all others (0)"),
    ],
)
def test_marks_in_many_cells_are_remarked(cells, said):
    """They stretch the interquartile range of the whole column."""
    (read,) = columns(table(x=cells))
    assert (
        read.remark
        == f"{said}: if they stand for missing values, leave them empty, or list them in parties.clinic.missing"
    )


@pytest.mark.parametrize(
    "cells",
    [
        np.where(share(60), 0, np.exp(5 + NORMAL)),  # amounts with many zeros
        np.where(share(30), 0, 1000 + 50 * NORMAL),
        np.where(share(92), 0, np.where(share(93), 99_999, np.exp(8 + NORMAL))),
        np.exp(9 + NORMAL),  # incomes
        np.round(np.exp(9 + NORMAL), -3),
        np.minimum(np.exp(9 + NORMAL), 15_000),  # the largest number means "or more"
        PLACES % 2,
        1000 * (PLACES % 2),
        share(3),
        1 * share(3),
        np.random.default_rng(0).poisson(1.2, 2000),
        np.random.default_rng(0).negative_binomial(0.2, 0.01, 2000),
        np.array([1, 2, 3, 1000])[PLACES % 4],  # levels
        np.array([1, 5, 10, 50, 1000, 5000])[PLACES % 6],
        np.where(share(30), 1e6 + NORMAL, NORMAL),  # two groups
        np.r_[1e6, 2e6, np.arange(24)],  # two extreme numbers in single cells
        np.where(PLACES % 4, PLACES, 10**9 + PLACES),
        np.exp(3 * NORMAL),  # heavy tails
        np.random.default_rng(1).pareto(1.5, 2000),
        np.random.default_rng(2).standard_t(1.5, 2000),
        np.where(share(95), np.exp(NORMAL), 100 * np.exp(NORMAL)),
    ],
)
def test_honest_numbers_are_not_remarked(cells):
    (read,) = columns(table(x=cells))
    assert read.remark == ""


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        ([1e9], "1 cell far from all others (1e+09)"),
        ([-99_999], "1 cell far from all others (-99999)"),
        ([-99_999, 1e9, 1.1e9], "3 cells far from all others (-99999, 1e+09)"),
        ([9999, 9999], "2 cells far from all others (9999)"),  # several nines need no gap
        ([20_000, 25_000], ""),  # beside 9,878, the largest number of the tail
    ],
)
def test_numbers_apart_from_a_heavy_tail_are_remarked(marks, said):
    tail = np.exp(3 * NORMAL)
    assert 9_000 < tail.max() < 9_999
    (read,) = columns(table(x=np.r_[tail, marks]))
    assert read.remark.partition(":")[0] == said


def test_levels_that_differ_in_case_are_reported_once():
    shop = table(town=["Ulm", "ulm ", "Bonn", "Bonn"])
    assert sum("differ only in their spelling: 'Ulm' (1), 'ulm ' (1)" in note for note in shop.notes) == 1
    assert columns(shop)[0].remark == ""


@pytest.mark.parametrize("mark", ["1900-01-01", "9999-12-31", "1970-01-01"])
@pytest.mark.parametrize("times", [1, 10])
def test_dates_that_stand_apart(mark, times):
    seen = [f"20{10 + row % 9}-{row % 12 + 1:02}-{row % 27 + 1:02}" for row in range(90)]
    shop = table(seen=seen + [mark] * times)
    assert f"cell{'s' * (times > 1)} far from all others ('{mark}')" in columns(shop)[0].remark
    assert columns(table(seen=seen))[0].remark == ""


def test_dates_near_a_known_mark_are_not_remarked():
    assert columns(table(born=[f"{1890 + row % 30}-01-01" for row in range(90)]))[0].remark == ""


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_a_timestamp_is_the_same_id_in_every_notation(unit, tmp_path):
    """A Parquet column with a time zone equals a CSV with T and offset or with Z; the same without a time zone."""
    plain = pl.Series("id", ["2024-03-31 01:30:00.250", "2024-07-01 00:00:00"]).str.to_datetime(time_unit=unit)
    zoned = plain.dt.replace_time_zone("UTC").dt.convert_time_zone("Europe/Berlin")
    pl.DataFrame({"id": zoned, "x": [1.0, 2.0]}).write_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("id,x\n2024-03-31T03:30:00.25+02:00,1\n2024-07-01T00:00:00Z,2\n")
    found = [read_table(tmp_path / name, party="a", id="id").ids.to_list() for name in ("a.parquet", "b.csv")]
    assert found[0] == found[1] == ["2024-03-31 01:30:00.25 UTC", "2024-07-01 00:00:00 UTC"]
    (tmp_path / "c.csv").write_text("id,x\n2024-03-31T01:30:00.250000,1\n2024-07-01T00:00:00,2\n")
    again = [read_table(each, party="a", id="id").ids.to_list()
             for each in (pl.DataFrame({"id": plain, "x": [1.0, 2.0]}), tmp_path / "c.csv")]  # fmt: skip
    assert again[0] == again[1] == ["2024-03-31 01:30:00.25", "2024-07-01"]
