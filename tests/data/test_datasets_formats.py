import gzip
import shutil
import subprocess
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unlzw3 import unlzw

from anyparty.data import datasets
from anyparty.data.datasets import downloads


class Groups:
    """Groups of eight codes of one width, low bits first."""

    def __init__(self, most):
        self.out, self.codes, self.width = bytearray(b"\x1f\x9d" + bytes((0x80 | most,))), [], 9

    def send(self, code):
        self.codes.append(code)
        if len(self.codes) == 8:
            self.change(self.width)

    def change(self, width):
        """Pad the current group and continue with another width."""
        if self.codes:
            self.out.extend(self.packed().ljust(self.width, b"\0"))
        self.codes, self.width = [], width

    def packed(self):
        bits = sum(code << (place * self.width) for place, code in enumerate(self.codes))
        return bits.to_bytes((len(self.codes) * self.width + 7) // 8, "little")


def compress(data, most=16, clear_at=0):
    """Compress as Unix compress does, slowly and simply.

    Unless ``clear_at`` is 0, the dictionary is cleared once, after ``clear_at`` words.
    """
    letters = {bytes((letter,)): letter for letter in range(256)}
    groups, table, free, word, sent = Groups(most), dict(letters), 257, b"", 0
    for letter in data:
        longer = word + bytes((letter,))
        if longer in table:
            word = longer
            continue
        groups.send(table[word])
        sent += 1
        if free < 1 << most:
            table[longer] = free
            free += 1
        if sent == clear_at:
            groups.send(256)
            groups.change(9)
            table, free = dict(letters), 257
        elif free > 1 << groups.width and groups.width < most:  # the reader, one word behind, has filled this width
            groups.change(groups.width + 1)
        word = longer[-1:]
    if word:
        groups.send(table[word])
    return bytes(groups.out + groups.packed())


@given(st.binary(max_size=300), st.sampled_from([9, 12, 16]), st.integers(0, 40))
def test_unlzw_undoes_compress(data, most, clear_at):
    assert unlzw(compress(data, most, clear_at)) == data


@pytest.mark.parametrize("most", [10, 13, 16])
@pytest.mark.parametrize("clear_at", [0, 3000, 3001])
def test_codes_that_grow(most, clear_at):
    rng = np.random.default_rng(0)
    data = "".join(f"{number:.4f}, " for number in rng.normal(size=8000)).encode()
    packed = compress(data, most, clear_at)
    assert unlzw(packed) == data
    if shutil.which("gzip"):
        ours = subprocess.run(["gzip", "-dc"], input=packed, capture_output=True, check=True)  # noqa: S607
        assert ours.stdout == data, "the test's own compress is not the real one"


@pytest.mark.parametrize("data", [b"", b"\x1f\x8b\x08", b"\x1f\x9d\x91", b"\x1f\x9d\x90\xff\xff\xff\xff"])
def test_unlzw_rejects_other_data(data):
    with pytest.raises(ValueError, match="Invalid"):
        unlzw(data)


def test_idx(tmp_path):
    file = tmp_path / "x.gz"
    file.write_bytes(gzip.compress(bytes((0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3)) + bytes(range(6))))
    assert downloads.idx(file).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("raw", [b"", b"\0\0\x0d\x01\0\0\0\x01\0", b"\0\0\x08\x01\0\0\0\x09\0"])
def test_idx_refuses_other_files(tmp_path, raw):
    file = tmp_path / "x.gz"
    file.write_bytes(gzip.compress(raw))
    with pytest.raises(ValueError, match=r"not an idx file|reshape"):
        downloads.idx(file)


def test_cifar_records():
    records = np.arange(2 * 3074).astype(np.uint8)
    images, classes = downloads.cifar(records.tobytes(), 2)
    assert images.shape == (2, 3, 32, 32)
    assert classes.tolist() == [1, 3075 % 256]
    assert images[0, 0, 0, :3].tolist() == [2, 3, 4]
    assert images[0, 1, 0, 0] == (2 + 1024) % 256
    with pytest.raises(ValueError, match="reshape"):
        downloads.cifar(records.tobytes()[:-1], 2)


@pytest.mark.parametrize(("text", "separator"), [(b"1 2.5\n -3e-1  4\n", " "), (b"1, 2.5\n-3e-1, 4.\n", ",")])
def test_numbers(text, separator):
    assert downloads.numbers(text, 2, separator).tolist() == [[1, 2.5], [pytest.approx(-0.3), 4]]


@pytest.mark.parametrize("text", [b"1 2\n3\n", b"1 two"])
def test_numbers_refuses(text):
    with pytest.raises(ValueError, match=r"reshape|not a number|could not be read"):
        downloads.numbers(text, 2)


def test_isolet_official(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYPARTY_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (9, 617)).round(4).astype("f4"), rng.integers(1, 27, 9)
    text = ["".join(f"{cell:.4f}, " for cell in row) + f"{c}.\n" for row, c in zip(X, y, strict=True)]
    (tmp_path / "isolet").mkdir()
    with zipfile.ZipFile(tmp_path / "isolet" / "isolet.zip", "w") as archive:
        archive.writestr("isolet1+2+3+4.data.Z", compress("".join(text[:6]).encode()))
        archive.writestr("isolet5.data.Z", compress("".join(text[6:]).encode()))
    for _ in range(2):  # the second time from the cache
        data = datasets.load("isolet", data_dir=tmp_path, verify=False)
        np.testing.assert_array_equal(data.X_train, X[:6])
        np.testing.assert_array_equal(data.X_test, X[6:])
        np.testing.assert_array_equal(data.y_test, y[6:] - 1)
        assert data.classes[0] == "A"
