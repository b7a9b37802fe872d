import gzip
import sys
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pandas as pd
import polars as pl
import pytest

from anyparty.errors import TableError
from anyparty.tables import readers
from anyparty.tables.readers import names
from anyparty.tables.table import read_table

ROWS = pl.DataFrame({"id": ["a", "b", "c"], "age": [31, None, 52], "town": ["Ulm", "Bonn", None]})


def read(source, **settings):
    return read_table(source, party="clinic", **{"id": "id"} | settings)


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.fixture
def sources(tmp_path):
    """Return the same table in every supported form."""
    ROWS.write_csv(tmp_path / "t.csv")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
    ROWS.write_parquet(tmp_path / "t.parquet")
    frame = pd.DataFrame({"age": [31, None, 52], "town": ["Ulm", "Bonn", None]}, index=pd.Index(list("abc"), name="id"))
    files = [tmp_path / name for name in ("t.csv", "t.csv.gz", "t.parquet")]
    return [*files, str(files[0]), ROWS, ROWS.lazy(), frame, frame.reset_index()]


def test_every_source_gives_the_same_table(sources):
    tables = [read(source) for source in sources]
    assert {table.fingerprint for table in tables} == {tables[0].fingerprint}
    for table in tables:
        assert table.ids.to_list() == ["a", "b", "c"]
        assert table.columns.rows() == [(31, "Ulm"), (None, "Bonn"), (52, None)]
    assert [table.source for table in tables[:5]] == ["t.csv", "t.csv.gz", "t.parquet", "t.csv", "data frame"]


def test_byte_order_mark_windows_lines_blank_lines_and_blanks_around_names(tmp_path):
    content = b'\xef\xbb\xbfid, age\r\n1,2\r\n\r\n"3",4\r\n\r\n'
    for path in (write(tmp_path / "t.csv", content), write(tmp_path / "t.csv.gz", gzip.compress(content, mtime=0))):
        table = read(path)
        assert table.ids.to_list() == ["1", "3"]
        assert table.columns.to_dict(as_series=False) == {"age": [2.0, 4.0]}


@pytest.mark.parametrize(
    ("name", "end"), [("t[1].{}", "csv"), ("[t]1/t.{}", "csv.gz"), ("t?.{}", "parquet"), ("t*.{}", "csv")]
)
def test_a_file_name_like_a_pattern_is_literal(tmp_path, name, end):
    """The folder also holds a file that the pattern would match."""
    for path, id_ in ((tmp_path / name.format(end), "mine"), (tmp_path / "t1" / f"t.{end}", "other")):
        path.parent.mkdir(exist_ok=True)
        rows = pl.DataFrame({"id": [id_], id_: [1]})
        rows.write_parquet(path) if end == "parquet" else path.write_bytes(
            (gzip.compress if end == "csv.gz" else bytes)(rows.write_csv().encode())
        )
        (tmp_path / f"t1.{end}").write_bytes(path.read_bytes())
    path = tmp_path / name.format(end)
    assert read(path).ids.to_list() == ["mine"]
    assert names(path, "clinic") == ["id", "mine"]


def test_missing_file(tmp_path):
    with pytest.raises(TableError, match=r"party 'clinic': there is no file .*nowhere\.csv; check the path"):
        read(tmp_path / "nowhere.csv")


def test_unreadable_file(tmp_path, monkeypatch):
    def refuse(*_args, **_settings):
        raise PermissionError("permission denied")

    monkeypatch.setattr(pl, "scan_parquet", refuse)
    with pytest.raises(TableError, match=r"cannot be read as Parquet: permission denied"):
        read(write(tmp_path / "t.parquet", b"PAR1"))


@pytest.mark.parametrize("text", ["", "\n", "\n\n"])
def test_empty_file(tmp_path, text):
    with pytest.raises(TableError, match=r"t\.csv is empty"):
        read(write(tmp_path / "t.csv", text))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv.gz", gzip.compress(b"id,age\n1,2\n", mtime=0)[:20]),
        ("t.parquet", b"PAR1 is not enough"),
    ],
)
def test_malformed_file(tmp_path, name, content):
    with pytest.raises(TableError, match=rf"{name} cannot be read.*; export it again"):
        read(write(tmp_path / name, content))


LONG = "id,age\n" + "".join(f"{i},{i * 0.37:.3f}\n" for i in range(5000))  # more than polars' first block


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv.gz", gzip.compress(b"id,age\n1,2\n", mtime=0)[:14]),
        ("t.csv.gz", gzip.compress(LONG.encode(), mtime=0)[:30] + b"\xff" * 40),  # an error of zlib
        ("t.parquet", b"PAR1 is not enough"),
    ],
)
def test_names_of_a_malformed_file(tmp_path, name, content):
    with pytest.raises(TableError, match=rf"party 'clinic': .*{name} cannot be read.*; export it again"):
        names(write(tmp_path / name, content), "clinic")


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le"])
def test_another_encoding_far_below_the_header(tmp_path, name, encoding):
    content = LONG.replace("age", "town").replace("\n1,0.370", "\n1,x") + "x,Málaga\n"
    path = write(
        tmp_path / name, gzip.compress(content.encode(encoding)) if name.endswith("gz") else content.encode(encoding)
    )
    assert names(path, "clinic") == ["id", "town"]
    with pytest.raises(
        TableError, match="column 'town' has cells that are not numbers: 'x' in row 2, 'Málaga' in row 5001"
    ):
        read(path)


def test_a_reader_that_panics(tmp_path, monkeypatch):
    def panic(*_args, **_settings):
        raise pl.exceptions.PanicException("assertion failed: offset + length <= self.length")

    monkeypatch.setattr(pl, "scan_parquet", panic)
    with pytest.raises(TableError, match=r"cannot be read as Parquet: assertion failed.*; export it again"):
        read(write(tmp_path / "t.parquet", b"PAR1"))


def test_semicolons_below_a_name_with_a_comma(tmp_path):
    assert read(write(tmp_path / "t.csv", 'id;"age, years"\n1;2\n')).columns.columns == ["age, years"]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_a_blank_first_line(tmp_path, name):
    content = b"\nid,age\n1,2\n"
    with pytest.raises(TableError, match=rf"{name} begins with a blank line; a line of column names was expected"):
        read(write(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('"1,2,x\n4,5,y\n', 2),  # never closed
        ('1,2,x\n4,"5,y\n6,7,z\n', 3),
        ('1,"2\n3",x\n4,"5,y\n6,7,z\n', 4),  # the same, below a cell with a line break
        ('1,"two" and,x\n4,5,y\n', 2),
        ('1,2,x\n4,5 1/2",y\n', 3),  # an inch mark in an unquoted cell
        ('1,"5 1/2""",x\n4,"5,y\n6,7,z\n', 3),  # a correct inch mark, above a mark that is never closed
    ],
)
def test_a_lone_quotation_mark(tmp_path, text, line):
    content = b"id,age,town\n" + text.encode()
    for name in ("t.csv", "t.csv.gz"):
        path = write(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
        with pytest.raises(
            TableError, match=rf"party 'clinic': .*{name}, line {line}: a quotation mark is not closed, or"
        ):
            read(path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1,2,3\n4,5", 3),  # the file is cut
        ("1,2,3\n4,5,6\n7", 4),
        ("1,2,3\r\n4,5\r\n", 3),
        ("1,2,3\n\n4\n7,8,9\n", 4),  # a row in the middle, below a blank line
        ('1,2,"3,4"\n"5,6",7\n', 3),
        ('1,"two\nlines",\n4,5\n', 4),  # a cell with a line break
        ("1,2,3\n4,\n", 3),  # its last comma does not end the last cell
        ('1,2,3\n"4,5",\n', 3),
    ],
)
def test_a_row_that_is_cut_short(tmp_path, text, line):
    content = b"id,age,town\n" + text.encode()
    for name in ("t.csv", "t.csv.gz"):
        path = write(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
        said = rf"party 'clinic': .*{name}, line {line} has [12] of 3 cells, .*: it is cut short"
        with pytest.raises(TableError, match=said):
            read(path)


@pytest.mark.parametrize(
    ("text", "line"), [("1,2\n3,4,5\n", 3), ("1,2\r\n\r\n3,4,\r\n", 4), ('1,"two\nlines"\n"3,5",4\n5,6,7\n', 5)]
)
def test_a_row_with_too_many_cells(tmp_path, text, line):
    content = b"id,age\n" + text.encode()
    for name in ("t.csv", "t.csv.gz"):
        path = write(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
        with pytest.raises(
            TableError, match=rf"party 'clinic': .*{name}, line {line} has 3 cells, where 2 are expected"
        ):
            read(path)


def test_a_carriage_return_within_a_name_or_a_cell(tmp_path):
    table = read(write(tmp_path / "t.csv", 'id,"a\rge"\n1,2\n"x\ry",3\n'))
    assert table.kinds == {"a\rge": "numeric"}
    assert len(table) == 2


@pytest.mark.parametrize(
    "text",
    [
        "1,2,\n3,,\n\n4,5,6\n\n",
        "1,2,\r\n\r\n3,,\r\n",
        '1,2,""\n3,"a,b",\n',
        '1,"two\n\nlines",\n3,4,x\n',
        '1,"a\x1fb",\n3,4,x\n',
        "1,2,\n3,4,",
    ],
)
def test_empty_cells_at_the_end_of_a_row_are_missing(tmp_path, text):
    table = read(write(tmp_path / "t.csv", "id,age,town\n" + text))
    assert table.ids.to_list()[:2] == ["1", "3"]
    assert table.columns["town"][0] is None


def test_a_file_without_gaps_in_its_last_column_is_parsed_once(tmp_path, monkeypatch):
    parsed = []
    plainly = pl.read_csv
    monkeypatch.setattr(pl, "read_csv", lambda *args, **how: parsed.append(args) or plainly(*args, **how))
    read(write(tmp_path / "t.csv", "id,age,town\n1,,x\n2,,y\n"))
    assert len(parsed) == 1


def test_duplicate_column_names(tmp_path):
    with pytest.raises(TableError, match=r"t\.csv: column names must differ, but 'age' occurs more than once"):
        read(write(tmp_path / "t.csv", "id,age, age\n1,2,3\n"))
    with pytest.raises(TableError, match="data frame: column names must differ, but 'age'"):
        read(pd.DataFrame([[1, 2, 3]], columns=["id", "age", "age"]))


def test_lazy_frame_that_fails(tmp_path):
    with pytest.raises(TableError, match=r"party 'clinic': the lazy frame cannot be collected: .*; correct its query"):
        read(pl.scan_parquet(tmp_path / "nowhere.parquet"))
    with pytest.raises(TableError, match="the lazy frame cannot be collected"):
        read(ROWS.lazy().select("nothing"))


def test_the_names_of_a_lazy_frame_that_fails():
    with pytest.raises(TableError, match="the lazy frame cannot be collected"):
        names(ROWS.lazy().select("nothing"), "clinic")


def test_pandas_numbers_that_are_categories_stay_so():
    codes = pd.Categorical([10115 + i % 5 for i in range(40)])
    assert read(pd.DataFrame({"id": range(40), "code": codes})).kinds == {"code": "categorical"}


@pytest.mark.parametrize("column", ["code", "y"])
def test_pandas_categories_that_are_one_as_text(column):
    codes = pd.Categorical([1, 2, 3, None] * 10).rename_categories({1: 1, 2: "1", 3: 3})
    table = read(
        pd.DataFrame({"id": range(40), "size": range(40), column: codes}), label="y" if column == "y" else None
    )
    cells = table.label if column == "y" else table.columns["code"]
    assert cells.cast(pl.String).to_list() == ["1", "1", "3", None] * 10
    assert column == "y" or table.kinds["code"] == "categorical"


def test_a_pandas_series_is_no_table():
    with pytest.raises(TableError, match="a numpy structured array, not from Series"):
        read(pd.Series([1.0, 2.0], index=["a", "b"]))


def test_pandas_index_that_is_a_column_too():
    frame = pd.DataFrame({"id": ["7", "8"], "age": [1, 2]})
    assert read(frame.set_index("id", drop=False)).ids.to_list() == ["7", "8"]
    both = read(frame.assign(visit=[3, 4]).set_index(["id", "visit"], drop=False))
    assert both.ids.to_list() == ["7", "8"]
    one = frame.assign(visit=[3, 4]).set_index("id", drop=False).set_index("visit", append=True)
    assert read(one).kinds == {"age": "numeric", "visit": "numeric"}


def test_decimals_read_as_the_numbers_that_they_are():
    frame = pl.DataFrame({"id": ["7.00", "8.00"], "age": ["1.50", "2.00"]})
    frame = frame.with_columns(pl.col("id", "age").cast(pl.Decimal(10, 2)))
    table = read(frame)
    assert table.ids.to_list() == ["7", "8"]
    assert table.kinds == {"age": "numeric"}


def test_pandas_index_without_a_name_is_told_of():
    frame = pd.DataFrame({"age": [1.0, 2.0]}, index=["u1", "u2"])
    with pytest.raises(TableError, match=r"no column 'id', named as id.*rename_axis\(\.\.\.\) makes it a column"):
        read(frame)
    assert read(frame.rename_axis("id")).ids.to_list() == ["u1", "u2"]
    with pytest.raises(TableError) as refused:
        read(frame.reset_index(drop=True))
    assert "rename_axis" not in str(refused.value)


def test_pandas_numbers_that_nobody_computes_with():
    with pytest.raises(TableError, match=r"column 'z' has cells that are neither numbers nor text"):
        read(pd.DataFrame({"id": [1, 2], "z": [1j, 2j]}))


def test_not_a_table():
    with pytest.raises(TableError, match=r"party 'clinic': a table is read from .* not from list"):
        read([1, 2])


def test_pandas_ids_made_floats_by_gaps_match_whole_numbers():
    frame = pd.DataFrame({"id": [7, None, 8], "age": [1, 2, 3]}).dropna()
    assert read(frame).ids.to_list() == ["7", "8"]


def test_pandas_mixed_objects_are_read_as_text():
    frame = pd.DataFrame({"id": [7, "x7"], "town": pd.Categorical(["Ulm", "Bonn"]), 3: [True, None]})
    table = read(frame)
    assert table.ids.to_list() == ["7", "x7"]
    assert table.kinds == {"town": "categorical", "3": "numeric"}
    assert table.columns["3"].to_list() == [1, None]


def test_whole_numbers_beyond_64_bits():
    table = read(pd.DataFrame({"id": [2**70, 1], "size": [2**64, 2]}))
    assert table.ids.to_list() == [str(2**70), "1"]
    assert table.columns["size"].to_list() == [2.0**64, 2.0]


def test_a_number_that_no_column_holds():
    with pytest.raises(TableError, match=r"data frame: column 'z' has cells that are neither numbers nor text"):
        read(pd.DataFrame({"id": [1], "z": [Decimal(10) ** 60]}))


def test_ids_of_a_kind_that_is_no_text():
    with pytest.raises(TableError, match=r"column 'id' has cells that are neither numbers nor text, such as Period"):
        read(pd.DataFrame({"id": pd.period_range("2020-01", periods=2, freq="M"), "age": [1, 2]}))


def test_a_name_in_marks_beside_a_blank(tmp_path):
    with pytest.raises(TableError, match=r't\.csv: the column name "a" has its quotation marks next to a space'):
        read(write(tmp_path / "t.csv", 'id, "a" ,b\n1, "2" ,3\n'))
    assert read(write(tmp_path / "t.csv", 'id,"5"" screen"\n1,2\n')).columns.columns == ['5" screen']


def test_ids_in_exponent_notation_of_r(tmp_path):
    """R's write.csv writes 100000 as 1e+05, but not its neighbours; that row then matched no other party."""
    file = tmp_path / "bank.csv"
    file.write_text("id,age\n99999,31\n1e+05,52\n100001,48\n", encoding="utf-8")
    assert read(file).ids.to_list() == ["99999", "100000", "100001"]


def test_pandas_uuids_are_read_as_text():
    """Databases return ids in this type."""
    table = read(pd.DataFrame({"id": [UUID(int=1), UUID(int=2)], "device": [UUID(int=7), None]}))
    assert table.ids.to_list() == [str(UUID(int=1)), str(UUID(int=2))]
    assert table.columns["device"].to_list() == [str(UUID(int=7)), None]


def test_pandas_categories_of_moments_are_those_of_the_same_text():
    days = ["2020-01-31", "2020-02-29"]
    made = read(pd.DataFrame({"id": pd.Categorical(pd.to_datetime(days)), "day": pd.Categorical(pd.to_datetime(days))}))
    assert made.columns["day"].to_list() == made.ids.to_list() == days


def test_pandas_objects_that_are_no_scalars():
    with pytest.raises(TableError, match=r"data frame: column 'age' has cells that are neither numbers nor text"):
        read(pd.DataFrame({"id": [1, 2], "age": [[1], {}]}))


def test_pandas_without_pyarrow():
    """polars asks for pyarrow to convert text of pandas."""
    import subprocess  # noqa: PLC0415

    code = (
        "import sys; sys.modules['pyarrow'] = None; import pandas as pd; from anyparty.tables.table import read_table;"
        "f = pd.DataFrame({'town': pd.Categorical(['x', None]), 'n': pd.array([1, None], 'Int64'),"
        "'o': [True, None], "
        "'id': pd.to_datetime(['2020-01-01', '2020-01-02'], utc=True)});"
        "t = read_table(f, party='a', id='id'); assert t.ids[0] == '2020-01-01 00:00:00 UTC';"
        "assert t.columns.rows() == [('x', 1, 1),"
        " (None, None, None)], t.columns"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603


def test_pandas_is_not_imported_to_read_a_table():
    import subprocess  # noqa: PLC0415

    code = (
        "import sys, polars as pl; from anyparty.tables.table import read_table as r; "
        "r(pl.DataFrame({'id': [1]}), party='a', id='id'); sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603


def test_pandas_sparse_numbers_are_numbers():
    frame = pd.DataFrame({"id": ["a", "b", "c"], "x": pd.arrays.SparseArray([0.0, 0.0, 2.5])})
    assert read(frame).columns["x"].to_list() == [0.0, 0.0, 2.5]


WITH_DROPPED = {
    "plain": "id,a,b,c\n1,2,x,4\n2,3,y,5\n",
    "a row too long": "id,a,b,c\n1,2,3,4\n1,2,3,4,5\n",
    "a row cut short": "id,a,b,c\n1,2,3,4\n2,3\n",
    "an open quotation mark in a dropped column": 'id,a,b,c\n1,2,"x,4\n2,3,y,5\n',
    "a quotation mark within a dropped cell": 'id,a,b,c\n1,2,"x"y,4\n2,3,y,5\n',
    "a line break in a dropped cell": 'id,a,b,c\n1,2,"x\ny",4\n2,3,y,\n',
    "blank lines": "id,a,b,c\n1,2,x,4\n\n2,3,y,5\n\n",
    "a row with dropped cells alone": "id,a,b,c\n1,2,x,4\n,,y,\n",
    "the last column dropped, and short": "id,a,c,b\n1,2,3,4\n2,3,4\n",
    "row numbers, and an empty column": ",id,a,b,c,\n0,1,2,x,4,\n1,2,3,y,5,\n",
    "an unnamed column with cells": "id,,a,b,c\n1,q,2,x,4\n2,r,3,y,5\n",
    "a decimal comma in a dropped column": "id;a;b;c\n1;2;3,5;4\n2;3;4,5;5\n",
    "points in a dropped column": "id;a;b;c\n1;2,5;3.25;4\n2;3,5;4.25;5\n",
    "another encoding": "id,a,b,c\n1,2,caf\xe9,4\n2,3,y,5\n".encode("cp1252"),
    "another encoding below": b"id,a,b,c\n" + b"1,2,x,4\n" * 12_000 + "2,3,caf\xe9,5\n".encode("cp1252"),
    "a repeated name": "id,b,b,c\n1,2,x,4\n",
    "no rows": "id,a,b,c\n",
    "bare carriage returns": "id,a,b,c\r1,2,x,4\r2,3,y,5\r",
    "a long cell": f"id,a,b,c\n1,2,{'x' * 70_000},4\n2,3,y,5\n",
}


ASKED = (
    {"drop": ["b"]}, {"drop": ["b", "c"]}, {"drop": ["b", "missing"]}, {"drop": ["id"]},
    {"expect": {"a": "numeric"}}, {"expect": {"c": "categorical"}}, {"expect": {}}, {"expect": {"missing": "numeric"}},
)  # fmt: skip


@pytest.mark.parametrize("text", WITH_DROPPED.values(), ids=WITH_DROPPED)
def test_columns_that_are_not_read_are_checked_as_all_others(tmp_path, monkeypatch, text):
    path = write(tmp_path / "t.csv", text)

    def outcome(asked):
        try:
            table = read(path, duplicates="first", **asked)
        except TableError as error:
            return str(error)
        return table.fingerprint, table.notes, table.read_as

    found = [outcome(asked) for asked in ASKED]
    whole = readers.read
    monkeypatch.setattr(readers, "read", lambda source, party, file, *_: whole(source, party, file))
    assert found == [outcome(asked) for asked in ASKED]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_prediction_reads_only_the_columns_of_the_model(tmp_path, sources, monkeypatch, name):
    kept, whole = [], readers.read
    monkeypatch.setattr(readers, "read", lambda *asked: kept.append(whole(*asked)) or kept[-1])
    table = read(tmp_path / name, expect={"age": "numeric"})
    assert (table.columns.columns, kept[0].cells.columns) == (["age"], ["id", "age"])
    assert kept[0].columns == ("id", "age", "town")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_dropped_columns_are_not_in_memory(tmp_path, kind):
    for part in "12":
        getattr(ROWS, f"write_{kind}")(tmp_path / f"{part}.{kind}")
    for source in (tmp_path / f"1.{kind}", tmp_path):
        made = readers.read(source, "clinic", drop={"town"})
        assert made.cells.columns == ["id", "age"]
        assert made.columns == ("id", "age", "town")
    write_other = getattr(ROWS.rename({"town": "city"}), f"write_{kind}")
    write_other(tmp_path / f"2.{kind}")
    with pytest.raises(TableError, match=r"has other columns than .*: 'city', 'town'"):
        readers.read(tmp_path, "clinic", drop={"town", "city"})
