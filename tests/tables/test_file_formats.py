"""Tables in other formats and dialects give the same table as a plain CSV file, or an error that names the format."""

import bz2
import gzip
import io
import json
import zipfile

import numpy as np
import openpyxl
import polars as pl
import pytest

from anyparty.errors import TableError
from anyparty.tables import readers
from anyparty.tables.file_content import FileSettings
from anyparty.tables.table import read_table

ROWS = pl.DataFrame(
    {
        "id": [f"{1000 + i}" for i in range(40)],
        "visits": [i % 7 for i in range(40)],
        "spend": [f"{i}.{i % 10}5" for i in range(40)],
        "town": [("Málaga", "København", "Zürich", "Orléans")[i % 4] for i in range(40)],
    }
)
PLAIN = ROWS.write_csv()


def read(source, **settings):
    return read_table(source, party="clinic", **{"id": "id"} | settings)


def compressed(how, content):
    if how == "zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("table.csv", content)
        return buffer.getvalue()
    if how == "zstd":
        buffer = io.BytesIO()
        pl.read_csv(content, infer_schema=False).write_csv(buffer, compression="zstd")
        return buffer.getvalue()
    return {"gzip": gzip.compress, "bz2": bz2.compress}[how](content)


def workbook(rows, title="Sheet", others=()):
    book = openpyxl.Workbook()
    book.active.title = title
    for row in rows:
        book.active.append(row)
    for name, more in others:
        sheet = book.create_sheet(name)
        for row in more:
            sheet.append(row)
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def feather(frame, **how):
    buffer = io.BytesIO()
    frame.write_ipc(buffer, **how)
    return buffer.getvalue()


COMMAS = ROWS.with_columns(pl.col("spend").str.replace(".", ",", literal=True))
SAME = {
    "semicolons": (PLAIN.replace(",", ";").encode(), "separator ';'"),
    "tabs": (PLAIN.replace(",", "\t").encode(), "separator tab"),
    "pipes": (PLAIN.replace(",", "|").encode(), "separator '|'"),
    "decimal commas": (COMMAS.write_csv(separator=";").encode(), "decimal ','"),
    "decimal commas and thousands": (
        COMMAS.write_csv(separator=";").replace(";1,15;", ";0.001,15;").encode(), "decimal ','",
    ),
    "decimal commas between tabs": (COMMAS.write_csv(separator="\t").encode(), "decimal ','"),
    "latin-1": (PLAIN.encode("latin-1"), "encoding"),
    "windows-1252": (PLAIN.replace("Málaga", "“Málaga”").encode("cp1252"), "encoding"),
    "utf-16": (PLAIN.encode("utf-16"), "utf-16"),
    "utf-16 without a mark": (PLAIN.encode("utf-16-le"), "utf-16"),
    "utf-32": (PLAIN.encode("utf-32"), "utf-32"),
    "byte order mark": (PLAIN.encode("utf-8-sig"), "separator ','"),
    "windows lines": (PLAIN.replace("\n", "\r\n").encode(), "separator ','"),
    "bare carriage returns": (PLAIN.replace("\n", "\r").encode(), "separator ','"),
    "a sep line": (b"sep=,\n" + PLAIN.encode(), "separator ','"),
    "a sep line of a semicolon": (b'"sep=;"\r\n' + PLAIN.replace(",", ";").replace("\n", "\r\n").encode(), "';'"),
    "single quotes": ("\n".join(
        ",".join(f"'{cell}'" for cell in line.split(",")) for line in PLAIN.splitlines()).encode(), "quote"),
    "empty columns": (("\n".join(f"{line},," for line in PLAIN.splitlines()) + "\n").encode(), "separator"),
    "row numbers of pandas": ("\n".join(
        f"{'' if n == 0 else n - 1},{line}" for n, line in enumerate(PLAIN.splitlines())).encode(), "separator"),
    "gzip": (compressed("gzip", PLAIN.encode()), "gzip"),
    "bz2": (compressed("bz2", PLAIN.encode()), "bz2"),
    "zip": (compressed("zip", PLAIN.encode()), "zip"),
    "zstd": (compressed("zstd", PLAIN.encode()), "zstd"),
    "gzip of semicolons in utf-16": (compressed("gzip", PLAIN.replace(",", ";").encode("utf-16")), "gzip"),
    "feather": (feather(ROWS), "Feather"),
    "compressed feather": (feather(ROWS, compression="lz4"), "Feather"),
    "excel": (workbook([ROWS.columns, *ROWS.rows()]), "Excel"),
    "excel with an empty sheet": (workbook([ROWS.columns, *ROWS.rows()], others=[("Notes", [])]), "Excel"),
    "excel with empty columns": (workbook([[*ROWS.columns, None], *([*r, None] for r in ROWS.rows())]), "Excel"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_every_format_gives_the_same_table(tmp_path, name):
    content, shown = SAME[name]
    (tmp_path / "plain.csv").write_text(PLAIN, encoding="utf-8")
    plain = read(tmp_path / "plain.csv")
    skip = 2 if "thousands" in name or "1252" in name else 0
    for path in (tmp_path / "t.csv", tmp_path / "t.data"):  # recognised by the content, not by the file's name
        path.write_bytes(content)
        table = read(path)
        assert table.ids.to_list() == plain.ids.to_list()
        assert set(table.columns.columns) == set(plain.columns.columns)
        assert table.kinds == plain.kinds
        for column in plain.columns.columns:
            got, expected = table.columns[column][skip:].to_list(), plain.columns[column][skip:].to_list()
            assert [str(cell).strip("“”") for cell in got] == [str(cell) for cell in expected] or got == pytest.approx(
                expected
            )
        assert shown in table.read_as
        assert set(readers.names(path, "clinic")) == set(ROWS.columns)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gzip", "gzip"), ("bare carriage returns", "bare carriage returns"), ("a sep line", "sep="),
        ("empty columns", "2 columns without a name and without a cell"), ("latin-1", "encoding"),
        ("decimal commas", "decimal"), ("row numbers of pandas", "row numbers"),
    ],
)  # fmt: skip
def test_a_remark_says_what_was_repaired_or_guessed(tmp_path, name, words):
    (tmp_path / "t.csv").write_bytes(SAME[name][0])
    assert any(words in note and "clinic" in note for note in read(tmp_path / "t.csv").notes)


def test_a_plain_file_has_no_remark(tmp_path):
    (tmp_path / "t.csv").write_text(PLAIN, encoding="utf-8")
    assert read(tmp_path / "t.csv").notes == ()


OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
WRONG = {
    "an HTML page": b"<!DOCTYPE html>\n<html><body>Please sign in</body></html>\n",
    "an HTML page ": b"\n\n  <html lang='en'><head></head></html>",
    "an HTML page  ": b"<!-- portal --><HTML><body></body></HTML>",
    "a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n",
    "a git-annex pointer": b"/annex/objects/SHA256E-s3223--00.csv\n",
    "JSON": json.dumps(ROWS.to_dicts()[:3]).encode(),
    "JSON ": b'{"columns": ["id"],\n "data": [[1]]}',
    "JSON  ": b'{"id": 1, "age": 3}\n{"id": 2, "age": 4}\n',
    "a PDF": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
    "a password-protected workbook": OLE + bytes(600) + "EncryptedPackage".encode("utf-16-le") + bytes(600),
    "a NumPy array": b"\x93NUMPY\x01\x00v\x00{'descr'",
    "an SQLite database": b"SQLite format 3\x00" + bytes(100),
    "a Python pickle": b"\x80\x04\x95" + bytes(100),
    "a PNG image": b"\x89PNG\r\n\x1a\n" + bytes(50),
    "XML": b"<?xml version='1.0'?>\n<rows><row id='1'/></rows>",
    "a Feather file of version 1": b"FEA1" + bytes(40),
    "binary data": bytes(range(256)) * 8,
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_not_a_table_is_named(tmp_path, what):
    for end in ("csv", "parquet", "xlsx", "csv.gz"):
        path = tmp_path / f"t.{end}"
        path.write_bytes(gzip.compress(WRONG[what]) if end == "csv.gz" else WRONG[what])
        for reading in (read, lambda file: readers.names(file, "clinic")):
            with pytest.raises(TableError, match=rf"party 'clinic': .*t\.{end} is {what.strip()}, not a table"):
                reading(path)


def test_a_zip_archive_of_two_members_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("a.csv", "id\n1\n")
        archive.writestr("b.csv", "id\n1\n")
    with pytest.raises(TableError, match=r"t\.zip has 2 members, 'a\.csv' and 'b\.csv'.*; expected one"):
        read(tmp_path / "t.zip")


def test_a_workbook_of_two_sheets_needs_the_setting(tmp_path):
    rows = [["id", "age"], [1, 2]]
    (tmp_path / "t.xlsx").write_bytes(workbook(rows, "Mine", [("Other", [["id", "size"], [1, 5]])]))
    with pytest.raises(TableError, match=r"t\.xlsx has 2 sheets with cells, 'Mine' and 'Other'; write sheet = 'Mine'"):
        read(tmp_path / "t.xlsx")
    assert read(tmp_path / "t.xlsx", file=FileSettings(sheet="Other")).columns.columns == ["size"]
    assert read(tmp_path / "t.xlsx", file=FileSettings(sheet=1)).columns.columns == ["age"]
    with pytest.raises(TableError, match=r"no sheet 'Othr'; it has 'Mine' and 'Other'"):
        read(tmp_path / "t.xlsx", file=FileSettings(sheet="Othr"))


def test_repeated_names_in_a_workbook_are_refused(tmp_path):
    (tmp_path / "t.xlsx").write_bytes(workbook([["id", "age", "age"], [1, 2, 3]]))
    with pytest.raises(TableError, match=r"column names must differ, but 'age' occurs more than once"):
        read(tmp_path / "t.xlsx")


def test_every_guess_has_a_setting(tmp_path):
    def table(content, **settings):
        (tmp_path / "t.csv").write_bytes(content)
        return read(tmp_path / "t.csv", file=FileSettings(**settings))

    assert table(b"id;a,b\n1;2\n", separator=";").columns.columns == ["a,b"]
    assert table("id,town\n1,Łódź\n2,x\n".encode("cp1250"), encoding="cp1250").columns["town"][0] == "Łódź"
    assert table(b"id;size\n1;1,250\n2;2,500\n", decimal=",").columns["size"].to_list() == [1.25, 2.5]
    assert table(b"id,size\n'1','2'\n", quote="'").ids.to_list() == ["1"]
    with pytest.raises(TableError, match=r"encoding = 'utf-8' does not fit"):
        table("id,town\n1,Łódź\n".encode("cp1250"), encoding="utf-8")
    with pytest.raises(TableError, match=r"separator = ';'.*does not occur in the first line"):
        table(b"id,size\n1,2\n", separator=";")


@pytest.mark.parametrize("settings", [{"separator": ";;"}, {"decimal": "x"}, {"encoding": "klingon"}, {"quote": "''"}])
def test_a_setting_that_cannot_be(settings):
    with pytest.raises(TableError, match=rf"{next(iter(settings))}"):
        FileSettings(**settings)


def test_points_beside_a_decimal_comma_in_another_column_get_a_remark(tmp_path):
    path = tmp_path / "bank.csv"
    rows = "".join(f"r{n};{n},5;{n % 90 + 10}.940;1.{n % 900 + 100},5\n" for n in range(40))
    path.write_text("id;income;debt;rent\n" + rows, encoding="utf-8")
    table = read_table(path, party="bank", id="id")
    (note,) = [note for note in table.notes if "thousands" in note]
    assert "column 'debt' has no decimal comma, and its points are read as marks between thousands" in note
    assert "such as '10.940' as 10940" in note
    declared = read_table(path, party="bank", id="id", file=FileSettings(decimal=","))
    assert not [note for note in declared.notes if "thousands" in note]


def test_ids_keep_their_commas_under_a_decimal_comma(tmp_path):
    (tmp_path / "t.csv").write_text("id;size\n1,5;2,25\n1,6;3,5\n", encoding="utf-8")
    table = read(tmp_path / "t.csv")
    assert table.ids.to_list() == ["1,5", "1,6"]
    assert table.columns["size"].to_list() == [2.25, 3.5]


def test_a_folder_or_a_pattern_of_parts_is_one_table(tmp_path):
    parts = tmp_path / "parts"
    parts.mkdir()
    for k in range(4):
        ROWS[10 * k : 10 * k + 10].write_csv(parts / f"part-{k}.csv")
    (parts / "_SUCCESS").touch()
    (parts / ".part-0.csv.crc").write_bytes(b"crc")
    for source in (parts, parts / "part-*.csv", str(parts / "part-?.csv")):
        table = read(source)
        assert table.ids.to_list() == ROWS["id"].to_list()
        assert "4 parts" in table.read_as
        assert set(readers.names(source, "clinic")) == set(ROWS.columns)
    (parts / "part-9.csv").write_text("id,visits,cost,town\n1,2,3,x\n", encoding="utf-8")
    with pytest.raises(TableError, match=r"part-9\.csv has other columns than .*part-0\.csv: 'cost'"):
        read(parts)
    with pytest.raises(TableError, match=r"no file matches .*nothing-\*"):
        read(parts / "nothing-*")
    (tmp_path / "hollow").mkdir()
    with pytest.raises(TableError, match=r"folder .*hollow has no files"):
        read(tmp_path / "hollow")


def test_parts_of_parquet_with_narrower_types(tmp_path):
    for k, frame in enumerate([pl.DataFrame({"id": [1], "x": [2]}), pl.DataFrame({"x": [2.5], "id": [2]})]):
        frame.write_parquet(tmp_path / f"p{k}.parquet")
    assert read(tmp_path).columns["x"].to_list() == [2.0, 2.5]


def test_standard_input(monkeypatch):
    class Input:
        buffer = io.BytesIO(PLAIN.encode())

    monkeypatch.setattr("sys.stdin", Input)
    assert set(readers.names("-", "clinic")) == set(ROWS.columns)
    table = read("-")
    assert (len(table), table.source) == (40, "standard input")


def test_a_column_without_a_name_but_with_cells(tmp_path):
    (tmp_path / "t.csv").write_text("id,,size\n1,x,2\n2,y,3\n", encoding="utf-8")
    with pytest.raises(TableError, match=r"column 2 has no name, but cells, such as 'x' in row 1"):
        read(tmp_path / "t.csv")


def test_numpy_structured_arrays():
    array = np.array([("a", 31, 1.5), ("b", 52, np.nan)], dtype=[("id", "U4"), ("age", "i4"), ("size", "f8")])
    table = read(array)
    assert table.ids.to_list() == ["a", "b"]
    assert table.columns.rows() == [(31, 1.5), (52, None)]
    assert readers.names(array, "clinic") == ["id", "age", "size"]
    with pytest.raises(TableError, match="structured"):
        read(np.zeros((2, 3)))


def test_pyarrow_tables():
    table = read(ROWS.to_arrow())
    assert table.ids.to_list() == ROWS["id"].to_list()
    assert readers.names(ROWS.to_arrow(), "clinic") == ROWS.columns


def test_a_double_quotation_mark_within_a_cell_in_single_ones(tmp_path):
    (tmp_path / "shop.csv").write_text("'id';'said'\n'1';'say \"a;b\"'\n'2';'b'\n", encoding="utf-8")
    table = read_table(tmp_path / "shop.csv", party="shop", id="id")
    assert table.columns["said"].to_list() == ['say "a;b"', "b"]
