import gzip
import hashlib
import io
import os
import tarfile
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from anyparty.core.seeds import Seeds
from anyparty.data import datasets
from anyparty.data.datasets.downloads import File
from anyparty.data.datasets.registry import CatalogueEntry, DatasetForm
from anyparty.errors import ConfigError, TableError

REAL = Path(os.environ.get("ANYPARTY_DATA", "."))
PUBLIC = ("credit", "hapt", "isolet", "fashion-mnist", "cifar10", "google-cluster")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """Isolate tests from the user's cache."""
    monkeypatch.setenv("ANYPARTY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ANYPARTY_DATA", raising=False)


def put(folder, path, content):
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def packed(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def tarred(members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def lines(rows, separator=" "):
    return "\n".join(separator.join(f"{cell:.4f}" for cell in row) for row in rows).encode()


def load(name, folder, **settings):
    return datasets.load(name, data_dir=folder, verify=False, **settings)


@pytest.mark.parametrize(("name", "nearest"), [("hatp", "hapt"), ("cifar-10", "cifar10"), ("mosei", "cmu-mosei")])
def test_an_unknown_name(name, nearest):
    with pytest.raises(ConfigError, match=f"no data set '{name}'; did you mean '{nearest}'"):
        datasets.load(name)


@pytest.mark.parametrize("name", [name for name in datasets.NAMES if name != "breast-cancer"])
def test_without_its_files(name, tmp_path):
    with pytest.raises(TableError) as caught:
        datasets.load(name, data_dir=tmp_path)
    entry, said = datasets.CATALOGUE[name], str(caught.value)
    assert f"data set {name!r} ({entry.title}) is not there: looked in {tmp_path}" in said
    assert entry.source in said
    assert f"licence: {entry.licence}" in said
    assert all(file.path in said for form in entry.forms for file in form.files)
    fetched = any(all(file.url for file in form.files) for form in entry.forms)
    assert ("or let it be fetched: on the command line leave out --data-dir, in Python data_dir" in said) == fetched


def test_every_form_is_described_and_official_files_are_pinned():
    for entry in datasets.CATALOGUE.values():
        for form in entry.forms:
            assert form.read.__doc__
            assert all(file.sha256 and file.url.startswith("https://") for file in form.files if file.url)


def test_where_files_are_looked_for(tmp_path, monkeypatch):
    """Files are searched only in data_dir; without it in ANYPARTY_DATA, then in the cache."""
    for place, rows in (("given", 1), ("named", 2), ("cache", 3)):
        content = "ID," + ",".join(f"X{i}" for i in range(1, 24)) + ",Y\n" + ("1," * 24 + "0\n") * rows
        put(tmp_path / place, "credit_default/data.csv", content.encode())

    def rows(**settings):
        return len(datasets.load("credit", verify=False, download=False, **settings).y_train)

    assert rows() == 3
    monkeypatch.setenv("ANYPARTY_DATA", str(tmp_path / "named"))
    assert rows() == 2
    assert rows(data_dir=tmp_path / "given") == 1
    monkeypatch.setenv("ANYPARTY_DATA", str(tmp_path / "nowhere"))
    assert rows() == 3


def test_a_wrong_checksum_is_refused(tmp_path):
    file = put(tmp_path, "credit_default/data.csv", b"ID,X1,Y\n1,2,0\n")
    with pytest.raises(TableError, match=rf"{file} is damaged or another version: its sha256 is .*verify=False"):
        datasets.load("credit", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "path", "content"),
    [
        ("credit", "credit_default/data.csv", b"ID,X1,Y\n1,2,0\n"),
        ("credit", "credit_default/data.csv", b""),
        ("hapt", "hapt/hapt.npz", npz(X_train=np.ones((3, 561), "f4"))[:-20]),
        ("hapt", "hapt/hapt.npz", npz(X_train=np.ones((3, 561), "f4"))),
        ("hapt", "hapt/hapt.zip", packed(readme="none")),
        ("isolet", "isolet/isolet.zip", b"PK no archive"),
        ("cifar10", "cifar10/cifar-10-binary.tar.gz", b"no archive"),
        ("cifar10", "cifar10/cifar-10-binary.tar.gz", tarred({"a": b"b"})),
        ("mimic3", "mimic3/mimic3.csv", b"age,los\n1,2\n"),
        ("mimic3", "mimic3/mimic3.csv", b"age,label\n,2\n"),
        ("mimic3", "mimic3/mimic3.csv", b"age,label\ninf,2\n"),
        ("mimic3", "mimic3/mimic3.csv", b"age,label,test\n1,2,True\n1,2,False\n"),
        ("mimic3", "mimic3/mimic3.csv", b"age,label,test\n1,2,1\n1,2,0\n1,2,\n"),
        ("mimic3", "mimic3/mimic3.csv", b"age,label,test\n1,2,1\n1,2,1\n"),
        ("mimic4", "mimic4/mimic4.npz", npz(chart=np.ones((2, 3, 4)))),
        ("cmu-mosei", "cmu-mosei/mosei.npz", npz(text_train=np.ones((2, 3, 4)))),
    ],
    ids=lambda value: len(value) if isinstance(value, bytes) else value,  # an archive's bytes contain the time of day
)
def test_a_damaged_or_malformed_file(tmp_path, name, path, content):
    file = put(tmp_path, path, content)
    with pytest.raises(TableError, match=rf"data set '{name}': {file} cannot be read: .+; expected\n"):
        load(name, tmp_path)


def test_pickles_are_refused(tmp_path):
    put(tmp_path, "mimic4/mimic4.npz", npz(chart=np.array([{"a": 1}], dtype=object)))
    with pytest.raises(TableError, match="allow_pickle"):
        load("mimic4", tmp_path)


def test_download_of_what_is_not_there(tmp_path, monkeypatch):
    """Download, check and cache from a local server, and report a file that the publisher has changed."""
    content = ("ID," + ",".join(f"X{i}" for i in range(1, 24)) + ",Y\n" + "1," * 24 + "0\n").encode()
    put(tmp_path, "served/data.csv", content)

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path / "served"))

        def log_message(self, *_):
            pass

    old = datasets.CATALOGUE["credit"]
    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/data.csv"

        def published(sha256):
            form = DatasetForm((File("credit_default/data.csv", sha256, url),), old.forms[0].read)
            changed = CatalogueEntry(title="t", source="s", licence="l", forms=(form,))
            monkeypatch.setitem(datasets.CATALOGUE, "credit", changed)

        published("00ff")
        with pytest.raises(TableError, match="is not the expected file"):
            datasets.load("credit", progress=False)
        published(hashlib.sha256(content).hexdigest())
        with pytest.raises(TableError, match="or let it be fetched: on the command line"):
            datasets.load("credit", download=False)
        assert len(datasets.load("credit", progress=False).y_train) == 1
        server.shutdown()
        thread.join()
    assert len(datasets.load("credit").y_train) == 1, "from the cache"


def test_credit(tmp_path):
    rows = "".join(f"{n},{n}e+05," + "1," * 22 + f"{n % 2}\n" for n in range(1, 5))
    content = "ID," + ",".join(f"X{i}" for i in range(1, 24)) + ",Y\n" + rows
    put(tmp_path, "credit_default/UCI_Credit_Card.csv.gz", gzip.compress(content.encode()))
    data = load("credit", tmp_path)
    assert data.X_train[:, 0].tolist() == [1e5, 2e5, 3e5, 4e5]
    assert data.y_train.tolist() == [1, 0, 1, 0]
    assert data.features[:6] == ("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", "PAY_0")
    assert data.features[data.blocks["bills"]][0] == "BILL_AMT1"
    assert data.X_test is None


def hapt_arrays():
    arrays = {}
    for part, n in (("train", 5), ("test", 3)):
        arrays[f"X_{part}"] = RNG.uniform(-1, 1, (n, 561)).round(4).astype("f4")
        arrays[f"y_{part}"] = RNG.integers(1, 13, n).astype("u1")
        arrays[f"subject_{part}"] = RNG.integers(1, 31, n).astype("u1")
    return arrays


def test_hapt_prepared_and_official(tmp_path):
    arrays, names = hapt_arrays(), "\n".join(f"name {j // 2} " for j in range(561)).encode()
    put(tmp_path / "a", "hapt/hapt.npz", npz(**arrays))
    put(tmp_path / "a", "hapt/features.txt", names)
    members = {"HAPT Data Set/features.txt": names}
    for part, folder in (("train", "Train"), ("test", "Test")):
        members[f"HAPT Data Set/{folder}/X_{part}.txt"] = lines(arrays[f"X_{part}"])
        members[f"HAPT Data Set/{folder}/y_{part}.txt"] = lines(arrays[f"y_{part}"][:, None])
        members[f"HAPT Data Set/{folder}/subject_id_{part}.txt"] = lines(arrays[f"subject_{part}"][:, None])
    put(tmp_path / "b", "hapt/hapt.zip", packed(**members))
    prepared, official = load("hapt", tmp_path / "a"), load("hapt", tmp_path / "b")
    for data in (prepared, official, load("hapt", tmp_path / "b")):  # the last one from the cache
        np.testing.assert_array_equal(data.X_train, arrays["X_train"])
        np.testing.assert_array_equal(data.y_test, arrays["y_test"].astype(int) - 1)
        np.testing.assert_array_equal(data.groups_train["subject"], arrays["subject_train"])
        assert data.features[:3] == ("name 0", "name 0~2", "name 1")
        assert list(data.blocks)[-1] == "angles"
        assert data.blocks["fBodyAcc"] == slice(265, 344)


def test_isolet(tmp_path):
    """Read the prepared file; ``test_datasets_formats.test_isolet_official`` reads the archive."""
    X, y = RNG.uniform(-1, 1, (9, 617)).astype("f4"), RNG.integers(1, 27, 9).astype("u1")
    arrays = {"X": X, "y": y, "part": np.repeat([1, 5, 2], 3), "speaker": np.arange(9)}
    put(tmp_path, "isolet/isolet.npz", npz(**arrays))
    data = load("isolet", tmp_path)
    np.testing.assert_array_equal(data.X_train, X[[0, 1, 2, 6, 7, 8]])
    np.testing.assert_array_equal(data.X_test, X[3:6])
    assert data.groups_test["speaker"].tolist() == [3, 4, 5]
    assert [data.classes[c].lower() for c in data.y_test] == [chr(96 + c) for c in y[3:6]]


def test_fashion_mnist_prepared_and_official(tmp_path):
    arrays = {"X_train": RNG.integers(0, 256, (4, 28, 28), "u1"), "y_train": np.arange(4, dtype="u1"),
              "X_test": RNG.integers(0, 256, (2, 28, 28), "u1"), "y_test": np.arange(2, dtype="u1")}  # fmt: skip
    put(tmp_path / "a", "fashion_mnist/fashion_mnist.npz", npz(**arrays))
    for name, array in arrays.items():
        kind, part = name.split("_")
        file = f"{'train' if part == 'train' else 't10k'}-{'images-idx3' if kind == 'X' else 'labels-idx1'}-ubyte.gz"
        header = bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape)
        put(tmp_path / "b", f"fashion_mnist/{file}", gzip.compress(header + array.tobytes()))
    for place in "ab":
        data = load("fashion-mnist", tmp_path / place)
        np.testing.assert_array_equal(data.X_train[:, 0], arrays["X_train"])
        np.testing.assert_array_equal(data.y_test, arrays["y_test"])


def test_cifar10_whole_or_subset(tmp_path):
    images, y = RNG.integers(0, 256, (12, 3, 32, 32), "u1"), np.arange(12, dtype="u1") % 10
    records = [bytes((label,)) + image.tobytes() for label, image in zip(y, images, strict=True)]
    members = {f"cifar-10-batches-bin/data_batch_{i + 1}.bin": b"".join(records[2 * i : 2 * i + 2]) for i in range(5)}
    put(tmp_path / "b", "cifar10/cifar-10-binary.tar.gz",
        tarred(members | {"cifar-10-batches-bin/test_batch.bin": b"".join(records[10:])}))  # fmt: skip
    put(tmp_path / "a", "cifar10_subset/cifar10_subset.npz",
        npz(X_train=images[:10], y_train=y[:10], X_test=images[10:], y_test=y[10:]))  # fmt: skip
    subset, whole = load("cifar10", tmp_path / "a"), load("cifar10", tmp_path / "b")
    np.testing.assert_array_equal(whole.X_train, subset.X_train)
    np.testing.assert_array_equal(whole.y_test, subset.y_test)
    assert "whole" in whole.note
    assert "SUBSET" in subset.note
    assert "10 of 50000" in subset.note


def test_cifar100(tmp_path):
    images, y = RNG.integers(0, 256, (3, 3, 32, 32), "u1"), (5, 99, 0)
    records = [bytes((1, label)) + image.tobytes() for label, image in zip(y, images, strict=True)]
    names = "".join(f"name{c}\n" for c in range(100)).encode()
    put(tmp_path, "cifar100/cifar-100-binary.tar.gz",
        tarred({"c/train.bin": b"".join(records[:2]), "c/test.bin": records[2], "c/fine_label_names.txt": names,
                "c/coarse_label_names.txt": b"x"}))  # fmt: skip
    data = load("cifar100", tmp_path)
    assert data.y_train.tolist() == [5, 99]
    assert data.classes[99] == "name99"
    np.testing.assert_array_equal(data.X_test, images[2:])


def test_google_cluster(tmp_path):
    usage = RNG.uniform(5, 90, (4, 288, 2)).astype("f4")
    put(tmp_path, "google_cluster_vms/gcd_vms.npz", npz(usage=usage, vm=np.array([b"a", b"b", b"c", b"d"])))
    data = load("google-cluster", tmp_path)
    assert data.task == "regression"
    assert data.X_train.shape == (4, 276, 2)
    np.testing.assert_allclose(data.y_train, usage[:, 276:, 0].mean(axis=1), rtol=1e-6)


def test_mimic3(tmp_path):
    rows = "7,61,2,long,0\n8,44,1,short,1\n9,30,0,short,0\n"
    put(tmp_path, "mimic3/mimic3.csv", b"id,Age,NumProcs,label,test\n" + rows.encode())
    data = load("mimic3", tmp_path)
    assert data.features == ("Age", "NumProcs")
    assert data.X_train.tolist() == [[61, 2], [30, 0]]
    assert [data.classes[c] for c in data.y_train] == ["long", "short"]
    assert data.X_test.tolist() == [[44, 1]]


def test_mimic4(tmp_path):
    chart, condition = RNG.normal(size=(5, 3, 4)).astype("f4"), RNG.integers(0, 2, (5, 6), "u1")
    arrays = {"chart": chart, "condition": condition, "demographic": RNG.normal(size=(5, 2)).astype("f4"),
              "y": np.array([0, 1, 0, 0, 1]), "subject": np.arange(5)}  # fmt: skip
    put(tmp_path, "mimic4/mimic4.npz", npz(**arrays))
    data = load("mimic4", tmp_path)
    assert data.steps == 3
    np.testing.assert_array_equal(data.X_train[:, data.blocks["chart"]].reshape(5, 3, 4), chart)
    np.testing.assert_array_equal(data.X_train[:, data.blocks["condition"]], condition)
    assert data.X_test is None
    put(tmp_path / "split", "mimic4/mimic4.npz", npz(**arrays, test=np.array([0, 0, 1, 0, 1], dtype=bool)))
    assert load("mimic4", tmp_path / "split").groups_test["subject"].tolist() == [2, 4]


@pytest.mark.parametrize("name", ["modelnet10", "modelnet40", "imagenet100"])
def test_large_images(tmp_path, name):
    shape = (3, 8, 8) if name == "imagenet100" else (12, 1, 8, 8)
    folder = tmp_path / name
    folder.mkdir()
    for part, n in (("train", 4), ("test", 2)):
        np.save(folder / f"X_{part}.npy", RNG.integers(0, 256, (n, *shape), "u1"))
        np.save(folder / f"y_{part}.npy", np.arange(n) % 3)
    (folder / "classes.txt").write_text("bathtub\nbed\nnight stand\n")
    data = load(name, tmp_path)
    assert data.X_train.shape == (4, *shape)
    assert isinstance(data.X_train, np.memmap)
    assert data.classes == ("bathtub", "bed", "night stand")
    np.save(folder / "y_test.npy", np.array([0, 3]))
    with pytest.raises(TableError, match="labels are not one for each image, from 0 to 2"):
        load(name, tmp_path)
    np.save(folder / "X_train.npy", RNG.normal(size=(4, *shape)))
    with pytest.raises(TableError, match=r"X_train\.npy is float64"):
        load(name, tmp_path)


def test_cmu_mosei(tmp_path):
    arrays = {}
    for part, n in (("train", 4), ("test", 2)):
        for kind, width in (("text", 6), ("audio", 4), ("video", 3)):
            arrays[f"{kind}_{part}"] = RNG.normal(size=(n, 5, width)).astype("f4")
        arrays[f"y_{part}"] = RNG.uniform(-3, 3, n).astype("f4")
    put(tmp_path, "cmu-mosei/mosei.npz", npz(**arrays))
    data = load("cmu-mosei", tmp_path)
    assert data.X_train.shape == (4, 5, 13)
    np.testing.assert_array_equal(data.X_test[..., data.blocks["video"]], arrays["video_test"])
    assert data.classes == ()


class TestSplit:
    def test_by_class_and_reproducible(self):
        data = datasets.load("breast-cancer")
        split = data.split(Seeds(3), test=0.25)
        for c in range(2):
            assert (split.y_test == c).sum() == round(0.25 * (data.y_train == c).sum())
        again = data.split(Seeds(3), test=0.25)
        np.testing.assert_array_equal(split.X_test, again.X_test)
        assert not np.array_equal(split.X_test, data.split(Seeds(4), test=0.25).X_test)
        rows = {row.tobytes() for row in np.concatenate([split.X_train, split.X_test])}
        assert rows == {row.tobytes() for row in data.X_train}, "every row is on one side"
        assert "143 drawn by class, seed 3" in split.note or "142 drawn by class, seed 3" in split.note

    def test_an_official_split_is_kept(self, tmp_path):
        put(tmp_path, "hapt/hapt.npz", npz(**hapt_arrays()))
        data = load("hapt", tmp_path)
        assert data.split(Seeds(0)) is data

    @pytest.mark.parametrize("test", [0, 1, -0.1, 0.0001])
    def test_shares_out_of_range(self, test):
        with pytest.raises(ConfigError, match=r"between 0 and 1|leaves one side empty"):
            datasets.load("breast-cancer").split(Seeds(0), test=test)


@pytest.mark.skipif("ANYPARTY_DATA" not in os.environ, reason="set ANYPARTY_DATA to the folder with the data sets")
class TestReal:
    """Check the published numbers of rows and classes; the second load is fast."""

    @pytest.mark.parametrize(
        ("name", "train", "test", "counts"),
        [
            ("credit", (30000, 23), None, [23364, 6636]),
            ("hapt", (7767, 561), (3162, 561), [1226, 1073, 987, 1293, 1423, 1413, 47, 23, 75, 60, 90, 57]),
            ("isolet", (6238, 617), (1559, 617), [240] * 5 + [238] + [240] * 20),
            ("fashion-mnist", (60000, 1, 28, 28), (10000, 1, 28, 28), [6000] * 10),
            ("cifar10", None, None, None),
            ("google-cluster", (1600, 276, 2), None, None),
        ],
    )
    @pytest.mark.slow
    def test_rows_and_classes(self, name, train, test, counts):
        if not any(all((REAL / file.path).exists() for file in form.files) for form in datasets.CATALOGUE[name].forms):
            pytest.skip(f"no {name} in {REAL}")
        data = datasets.load(name, data_dir=REAL)
        if train is not None:
            assert data.X_train.shape == train
            assert (None if data.X_test is None else data.X_test.shape) == test
        if counts is not None:
            assert np.bincount(data.y_train).tolist() == counts
        again = datasets.load(name, data_dir=REAL)
        np.testing.assert_array_equal(again.X_train, data.X_train)
