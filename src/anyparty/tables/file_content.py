"""Recognise the format of a table file by its content, decompress it, and reject files that are not tables.

The user's settings (``FileSettings``) take precedence.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import re
import sys
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import zstandard

from anyparty.errors import TableError, some

Format = Literal["CSV", "Parquet", "Feather", "Excel"]

EXPORT = "export the table as CSV or Parquet"
HEAD = 65_536  # the number of bytes at the start of a file that are examined
STANDARD_INPUT = Path("-")
UTF_16 = 0.6  # a file is UTF-16 if more than this share of its even or of its odd bytes is zero

PACKED = ((b"\x1f\x8b", "gzip"), (b"BZh", "bz2"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"PK\x03\x04", "zip"))
FORMATS: tuple[tuple[bytes, Format], ...] = ((b"PAR1", "Parquet"), (b"ARROW1", "Feather"))
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # the first bytes of .xls files, and of workbooks with a password
NOT_TABLES = (
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the file: git lfs pull"),
    (b"/annex/objects/", "a git-annex pointer", "fetch the file: git annex get"),
    (b"\x80\x04\x95", "a Python pickle", ""),
    (b"\x80\x05\x95", "a Python pickle", ""),
    (b"%PDF", "a PDF", ""),
    (b"\x93NUMPY", "a NumPy array", ""),
    (b"SQLite format 3\0", "an SQLite database", ""),
    (b"\x89PNG", "a PNG image", ""),
    (b"\xff\xd8\xff", "a JPEG image", ""),
    (b"\x89HDF", "an HDF5 file", ""),
    (b"FEA1", "a Feather file of version 1", "write it again as version 2"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", ""),
    (b"Rar!", "a RAR archive", ""),
    (b"\xfd7zXZ", "an xz archive", "unpack it"),
    (b"\x04\x22\x4d\x18", "an lz4 archive", "unpack it"),
    (b"PK\x05\x06", "an empty zip archive", ""),
    (b"ORC", "an ORC file", ""),
    (b"Obj\x01", "an Avro file", ""),
    (b"{\\rtf", "an RTF document", ""),
    (b"<stata_dta>", "a Stata file", ""),
    (b"$FL2", "an SPSS file", ""),
    (b"SAS FILE", "a SAS file", ""),
)
_HIDDEN = re.compile(r"(^|/)(\.|__MACOSX/)[^/]*")  # files that systems add to an archive, such as .DS_Store
_HTML = re.compile(rb"\s*(<!--.*?-->\s*)*(<\?xml[^>]*>\s*)?<(!doctype html|html|head|body|table)\b", re.I | re.S)
_JSON = re.compile(rb'\s*(\{\s*["}]|\[\s*["\[\]{\d-])')


@dataclass(frozen=True)
class FileContent:
    """One table file.

    Attributes:
        path: the file's path, for reading and for messages.
        format: the format of the table.
        data: the decompressed bytes; ``None`` if the file is not compressed and can be read from ``path``.
        head: the first decompressed bytes, at most ``HEAD``.
        packing: the compression: "gzip", "bz2", "zstd", "zip" or "".
    """

    path: Path
    format: Format
    data: bytes | None
    head: bytes
    packing: str

    @property
    def source(self) -> Path | bytes:
        """The path, or the decompressed bytes if they are in memory. Readers accept either."""
        return self.path if self.data is None else self.data

    def whole(self) -> bytes:
        """Return all decompressed bytes of the file."""
        return self.path.read_bytes() if self.data is None else self.data


def content_of(path: Path, party: str) -> FileContent:
    """Recognise a file's format by its first bytes, not by its name; return the format and decompressed content.

    Raises:
        TableError: the file is empty or is not a table.
        OSError, EOFError, ValueError and others: the file cannot be read or decompressed.
    """
    data: bytes | None = _standard_input() if path == STANDARD_INPUT else None
    head = _head(path) if data is None else data[:HEAD]
    where, packing = f"party {party!r}: {named(path)}", ""
    if not head:
        raise TableError(f"{where} is empty; a table with a line of column names was expected")
    for magic, name in PACKED:
        if head.startswith(magic):
            packed = path.read_bytes() if data is None else data
            if name == "zip" and _is_workbook(packed, where):
                return FileContent(path, "Excel", data, head, "")
            data, packing = _unpacked(packed, name, where), name
            head = data[:HEAD]
    found = _format(head, path, data)
    if found is None:
        what, remedy = _not_a_table(head) or ("", "")
        if head.startswith(_OLE):
            what, remedy = "a password-protected workbook", "save it without a password"
        if what:
            raise TableError(f"{where} is {what}, not a table; {remedy or EXPORT}")
    return FileContent(path, found or "CSV", data, head, packing)


def named(path: Path) -> str:
    """Return a file's path for messages, or "standard input"."""
    return "standard input" if path == STANDARD_INPUT else str(path)


@cache
def _input_of(stream: object) -> bytes:
    content: bytes = stream.read()  # type: ignore[attr-defined]
    return content


def _standard_input() -> bytes:
    """Read standard input once, and return the same bytes in later calls."""
    return _input_of(sys.stdin.buffer)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD)


def _is_workbook(packed: bytes, where: str) -> bool:
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        names = archive.namelist()
    if any(name.startswith(("word/", "ppt/", "visio/")) for name in names):
        raise TableError(f"{where} is a document, not a table; {EXPORT}")
    return "[Content_Types].xml" in names or "mimetype" in names


def _unpacked(packed: bytes, packing: str, where: str) -> bytes:
    """Decompress a file's bytes; a zip archive must have exactly one member."""
    if packing == "gzip":
        return gzip.decompress(packed)
    if packing == "bz2":
        return bz2.decompress(packed)
    if packing == "zstd":
        with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as stream:
            return stream.read()
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        members = [each for each in archive.namelist() if not (each.endswith("/") or _HIDDEN.search(each))]
        if len(members) != 1:
            listed = " and ".join(map(repr, members)) if len(members) == 2 else some(members)
            raise TableError(f"{where} has {len(members)} members, {listed}; expected one table: unpack the archive")
        return archive.read(members[0])


def _format(head: bytes, path: Path, data: bytes | None) -> Format | None:
    """Return the format that the first bytes show; ``None`` for text and all other content."""
    for magic, name in FORMATS:
        if head.startswith(magic):
            return name
    if head.startswith(_OLE):
        whole = path.read_bytes() if data is None else data
        return None if "EncryptedPackage".encode("utf-16-le") in whole else "Excel"
    return None


def _not_a_table(head: bytes) -> tuple[str, str] | None:
    """Describe content that is not a table, and a remedy; return ``None`` for text that may be CSV."""
    for magic, what, remedy in NOT_TABLES:
        if head.startswith(magic):
            return what, remedy
    text = head.removeprefix(b"\xef\xbb\xbf")
    if _HTML.match(text):
        return "an HTML page", "the download may need a login; export the table as CSV or Parquet"
    if (xml := text.lstrip().startswith(b"<?xml")) or _JSON.match(text):
        return "XML" if xml else "JSON", ""
    if head[257:262] == b"ustar":
        return "a tar archive", "unpack it"
    return _with_nul(head) if b"\0" in head and utf_16(head) is None else None


def _with_nul(head: bytes) -> tuple[str, str]:
    """Return the name of content with NUL characters, and a remedy: text with such characters, or other data."""
    line = head[: head.index(b"\0")].count(b"\n") + 1
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head.replace(b"\0", b""))
    except UnicodeDecodeError:
        text = ""
    if "\n" in text and all(letter.isprintable() or letter.isspace() for letter in text):
        return f"text with NUL characters, the first in line {line}", "remove them, or export the table again"
    return "binary data", ""


def utf_16(head: bytes) -> str | None:
    """Return UTF-16 or UTF-32 if a byte order mark or many zero bytes show this encoding, else ``None``."""
    if head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "utf-32"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    for start, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        every = head[start::2]
        if every and every.count(0) > UTF_16 * len(every) and head[1 - start :: 2].count(0) < 0.1 * len(every):
            return name
    return None


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """Settings of a table; each replaces a guess.

    A setting that does not apply to the kind of table has no effect, and a remark in training says so.

    Attributes:
        separator: the character between two cells of a CSV file.
        decimal: the decimal mark of numbers in text, "." or ",".
        quote: the character around cells of a CSV file that contain the separator.
        encoding: the text encoding of a CSV file, by its name in Python, such as "cp1252" or "utf-16".
        sheet: the sheet of a workbook, by name or by number from 1.

    Raises:
        TableError: a value is not possible.
    """

    separator: str | None = None
    decimal: str | None = None
    quote: str | None = None
    encoding: str | None = None
    sheet: str | int | None = None

    def __post_init__(self) -> None:
        for name in ("separator", "quote"):
            mark = getattr(self, name)
            if mark is not None and (len(mark.encode()) != 1 or mark in "\r\n"):
                raise TableError(f"{name} = {mark!r}: expected one ASCII character, such as ';'")
        if self.decimal not in {None, ".", ","}:
            raise TableError(f"decimal = {self.decimal!r}: expected '.' or ','")
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise TableError(
                    f"encoding = {self.encoding!r}: Python does not know this encoding; known are 'utf-8', 'cp1252', "
                    "'utf-16' and others"
                ) from None
        if isinstance(self.sheet, int) and self.sheet < 1:
            raise TableError(f"sheet = {self.sheet}: expected a sheet's name, or its number from 1")


DETECT = FileSettings()
