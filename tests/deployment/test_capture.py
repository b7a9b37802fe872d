"""No message between sites holds a feature value, a label or an id: all messages are captured and searched.

The search looks at every message as it is sent, for
    cells     raw, as float64, float32, integers, text
    prepared  the standardised cells that enter the networks, as float32; down a column also as float16, float64, ...
    ids       as text, as numbers, hashed without a key and with the federation's public salt, as unblinded points
    labels    the classes' names at parties without labels; runs of labels as codes; any column with two values

Four bytes may occur by chance, so such short patterns count only if three cells of a column are found.  Further tests
check the search itself: each pattern is planted in a message once.
"""

import base64
import hashlib
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

import numpy as np
import polars as pl
import pytest
import torch

from anyparty.alignment import x25519
from anyparty.config import Config
from anyparty.config.method_factory import SCHEDULES
from anyparty.core.storage import read_json
from anyparty.deployment.site.site_training import roster_of
from anyparty.methods.method_registry import METHODS
from anyparty.methods.method_registry import method as method_by_name
from anyparty.tables.preprocessing import Prepare
from anyparty.tables.table import read_table
from anyparty.training import checkpoint, control_messages
from anyparty.transport import codec
from tests.report import site_runs
from tests.slow_parameters import slow_but
from tests.worlds import Wiretap

Note = tuple[str, str, str, dict[str, torch.Tensor]]
RUN = 4  # prepared cells in a row
WIDTHS = (torch.float16, torch.bfloat16, torch.float64)
LABELS = 40  # in a row
ENOUGH = 3
SALT = Config().federation.salt

NUMBERS: dict[str, Callable[[float], bytes]] = {
    "float64": lambda x: np.float64(x).tobytes(),
    "float64, big-endian": lambda x: struct.pack(">d", x),
    "float32": lambda x: np.float32(x).tobytes(),
    "float32, big-endian": lambda x: struct.pack(">f", x),
    "int64": lambda x: np.int64(x).tobytes(),
    "int32": lambda x: np.int32(x).tobytes(),
    "text": lambda x: repr(x)[:9].encode(),
}
HASHES = ("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_256", "blake2b", "blake2s")


def encodings_of_id(text: str) -> Iterator[tuple[str, bytes]]:
    """Yield an id in every encoding; only the first bytes of hashes, so that shortened ones are found too."""
    raw, digits = text.encode(), int(text.split()[1])
    yield from {"text": raw, "UTF-16": text.encode("utf-16-le"), "base64": base64.b64encode(raw)[:12]}.items()
    yield from {"number as text": str(digits).encode(), "int64": digits.to_bytes(8, "little")}.items()
    yield from {"int32": digits.to_bytes(4, "little"), "crc32": zlib.crc32(raw).to_bytes(4, "little")}.items()
    yield "polars' hash", pl.Series([text]).hash(seed=0).to_numpy().tobytes()
    for name in HASHES:
        for how, salted in {"": raw, ", salt first": SALT.encode() + raw, ", salt last": raw + SALT.encode()}.items():
            digest = hashlib.new(name, salted).digest()
            yield f"{name}{how}", digest[:8]
            yield f"{name}{how}, in hex", digest.hex()[:16].encode()
    key = hashlib.sha256(SALT.encode()).digest()
    yield "the digest", hashlib.blake2b(raw, digest_size=32, key=key, person=b"anyparty.align.1").digest()[:8]
    yield "the point", x25519.hashed([text], SALT)[:8]


def encodings_of_column(cells: pl.Series) -> Iterator[tuple[str, bytes]]:
    """Yield a column's cells in every encoding."""
    for name, encode in NUMBERS.items():
        yield from ((name, encode(float(cell))) for cell in cells)


def encodings_of_run(cells: np.ndarray) -> Iterator[tuple[str, bytes]]:
    """Yield runs of prepared cells in every type except float32."""
    for dtype in WIDTHS:
        raw = torch.from_numpy(cells).to(dtype).contiguous().view(torch.uint8).numpy()
        wide = RUN * dtype.itemsize
        yield from ((f"prepared, {dtype}", raw[at : at + wide].tobytes()) for at in range(0, len(raw) - wide, wide))


class Secrets:
    """The values of all sites that must not be sent."""

    def __init__(self, sites: Mapping[str, site_runs.Site], config: Config, tables: Mapping[str, pl.DataFrame]) -> None:
        self.roster = roster_of(sites["bank"], config)
        self.patterns: dict[bytes, str] = {}
        self.prepared: dict[str, np.ndarray] = {}
        for name, frame in tables.items():
            for text in frame["id"]:
                self.patterns |= {code: f"id: {how}" for how, code in encodings_of_id(text)}
            for column in frame.drop("id", "y", strict=False).iter_columns():
                self.patterns |= {code: f"{name}'s {column.name}: {how}" for how, code in encodings_of_column(column)}
            self._prepare(name, sites[name])
        self._labels(sites, tables["bank"]["y"])

    def _prepare(self, name: str, site: site_runs.Site) -> None:
        prepare = Prepare.from_json(read_json(site.folder / "parties" / name / "party.json")["prepare"])
        drop = ("y",) if name == "clinic" else ()
        table = read_table(site.table, party=name, id="id", label="y" if name == "bank" else None, drop=drop)
        features = prepare.apply(table)
        for c, column in enumerate(prepare.names):
            cells = self.prepared[f"{name}'s {column}"] = features[:, c].copy()
            self.patterns |= {code: f"{name}'s {column}: {how}" for how, code in encodings_of_run(cells)}

    def _labels(self, sites: Mapping[str, site_runs.Site], y: pl.Series) -> None:
        """Add runs of labels in the order of the table, and of the aligned rows."""
        position = checkpoint.read(sites["bank"].folder / "alignment.safetensors")[0]["position"].numpy()
        table = (y == "repaid").to_numpy()
        for order in (table, table[position[position >= 0]]):
            for code in (order, ~order):
                for kind in ("i1", "i2", "i4", "i8", "f4", "f8"):
                    for start in range(0, len(code) - LABELS, LABELS):
                        run = code[start : start + LABELS].astype(kind).tobytes()
                        self.patterns[run] = f"labels as {kind}"

    def leaks(self, notes: list[Note]) -> set[str]:
        """Return the names of the secrets that occur in the messages."""
        found: dict[str, set[bytes]] = defaultdict(set)
        seen: dict[str, set[float]] = defaultdict(set)
        other = set()
        for number, (frm, to, tag, tensors) in enumerate(notes):
            raw = codec.encode(codec.Header(run="run", frm=frm, to=to, tag=tag, number=number), tensors)
            self._search(raw, found)
            if to not in self.roster.labelers and (b"defaulted" in raw or b"repaid" in raw):
                other.add("labels: a class's name")
            for tensor in tensors.values():
                self._cells(tensor, seen)
                other |= self._two_values(tensor)
        enough = {what for what, codes in found.items() if len(codes) >= (ENOUGH if min(map(len, codes)) < 8 else 1)}
        whole = {f"{name}: prepared" for name, own in seen.items() if len(own) > 0.1 * len(set(self.prepared[name]))}
        return enough | whole | other

    def _search(self, raw: bytes, found: dict[str, set[bytes]]) -> None:
        """Look for all patterns at once: first by their first four bytes, then in full."""
        starts = np.lib.stride_tricks.sliding_window_view(np.frombuffer(raw, dtype=np.uint8), 4)
        words = starts.astype(np.uint32) @ np.array([1, 1 << 8, 1 << 16, 1 << 24], dtype=np.uint32)
        for at in np.flatnonzero(np.isin(words, self._heads)):
            for length in self._lengths:
                code = raw[at : at + length]
                if code in self.patterns:
                    found[self.patterns[code]].add(code)

    @cached_property
    def _lengths(self) -> set[int]:
        return {len(code) for code in self.patterns}

    @cached_property
    def _heads(self) -> np.ndarray:
        return np.unique([int.from_bytes(code[:4], "little") for code in self.patterns]).astype(np.uint32)

    def _cells(self, tensor: torch.Tensor, seen: dict[str, set[float]]) -> None:
        if tensor.dtype == torch.float32:
            numbers = tensor.flatten().numpy()
            for name, own in self.prepared.items():
                seen[name] |= set(own[np.isin(own, numbers)].tolist())

    def _two_values(self, tensor: torch.Tensor) -> set[str]:
        if not tensor.is_floating_point() or tensor.ndim < 2 or len(tensor) < 16:
            return set()
        columns = tensor.flatten(1).unbind(dim=1)
        return {"labels: a column of two values" for column in columns if len(column.unique()) == 2}


@pytest.fixture(scope="module")
def secrets() -> Callable[..., tuple[Secrets, list[Note]]]:
    """Return a function that trains and predicts, and returns the secrets and the messages sent."""

    def played(folder, method, **how):
        notes: list[Note] = []
        config = site_runs.settings(method, **how)
        tables = site_runs.frames()
        sites = site_runs.build(folder, tables)
        for work in (site_runs.play, site_runs.predict):
            work(sites, config, lambda channel: Wiretap(channel, notes))
        return Secrets(sites, config, tables), notes

    return played


@pytest.fixture(scope="module")
def honest(secrets, tmp_path_factory):
    return secrets(tmp_path_factory.mktemp("honest"), "laser")


@pytest.mark.filterwarnings("ignore:the labels of party 'clinic' are not used")  # for methods with a single host
@pytest.mark.parametrize(
    ("method", "two_label_holders"),
    slow_but(
        [
            *((name, False) for name in METHODS),
            *((name, True) for name in ("local", "laser", "fedhssl", "false-vfl-2")),
        ],
        {("laser", False), ("apc", False), ("false-vfl-2", False)},
    ),
)
def test_no_message_holds_raw_data(tmp_path, secrets, method, two_label_holders):
    hidden, notes = secrets(tmp_path, method, two_label_holders=two_label_holders)
    tags = [tag for _, _, tag, _ in notes]
    always = {said.tag for said in (*method_by_name(method).can.messages, *control_messages.MESSAGES) if not said.when}
    assert set(tags) >= {"align-ids", "align-tokens"} | always
    predicted = tags[tags.index("wanted") :]
    assert "embedding" in predicted or "embedding" not in tags  # for methods whose active party predicts alone
    # Residuals of the first round have one value for each class, as boosting declares.
    assert hidden.leaks(notes) == ({"labels: a column of two values"} if method == "boosting" else set())


@pytest.mark.parametrize("schedule", slow_but(SCHEDULES, {"flex", "vafl"}))
def test_no_message_holds_raw_data_under_a_schedule(tmp_path, secrets, schedule):
    hidden, notes = secrets(tmp_path, "laser", schedule=schedule)
    assert {"snapshot", "gradient"} & {tag for _, _, tag, _ in notes}
    assert hidden.leaks(notes) == set()


def planted() -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the expected finding and a message that contains it."""
    tables = site_runs.frames()
    ids, income, y = tables["shop"]["id"], tables["bank"]["income"], tables["bank"]["y"]
    for how, _ in encodings_of_id(ids[0]):
        yield f"id: {how}", bytes_of(b"x" + b"--".join(dict(encodings_of_id(text))[how] for text in ids.head(ENOUGH)))
    for how, encode in NUMBERS.items():
        yield f"bank's income: {how}", bytes_of(b"xyz" + b"".join(encode(cell) for cell in income.head(ENOUGH)))
    codes = torch.from_numpy((y == "repaid").to_numpy())
    for kind, dtype in {"i1": torch.int8, "i2": torch.int16, "i4": torch.int32, "i8": torch.int64}.items():
        yield f"labels as {kind}", codes.to(dtype)
    yield "labels as f4", (~codes).float()
    yield "labels as f8", codes.double()
    yield "labels: a class's name", bytes_of(b"they defaulted")
    yield "labels: a column of two values", torch.stack([torch.rand(30), torch.where(codes[:30], 0.3, -0.7)], dim=1)


def bytes_of(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def test_the_search_finds_every_planted_secret(honest):
    hidden, _ = honest
    for said, tensor in planted():
        assert hidden.leaks([("bank", "shop", "plan", {"train": tensor})]) >= {said}


@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
def test_the_search_finds_a_column_in_other_types(honest, dtype):
    hidden, notes = honest
    column = torch.from_numpy(hidden.prepared["clinic's cost"]).to(dtype)
    leaks = hidden.leaks([*notes, ("clinic", "bank", "embedding", {"h": column})])
    assert leaks == {f"clinic's cost: prepared, {dtype}"}


def test_the_search_finds_the_inputs_of_a_network(honest):
    hidden, notes = honest
    cells = torch.from_numpy(hidden.prepared["clinic's cost"][:40])
    shown = torch.randn(40, 8)
    shown[:, 3] = cells
    assert hidden.leaks([*notes, ("clinic", "bank", "embedding", {"h": shown})]) == {"clinic's cost: prepared"}
