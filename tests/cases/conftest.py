"""Two small clean tables of a bank and a shop, which each test of a case changes, and the ways a user reads them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import tomli_w

from anyparty import config
from anyparty.api.federation import Federation

ROWS = 240
EVERY = 12  # one of so many cells is marked, 20 of 240


def clean() -> dict[str, pl.DataFrame]:
    """Return the clean tables as text; the label depends on the income."""
    random = np.random.default_rng(0)
    income = random.normal(40, 8, ROWS).round(1)
    label = (income + random.normal(0, 2, ROWS) > 40).astype(int)
    ids = range(1000, 1000 + ROWS)
    bank = pl.DataFrame({"customer": ids, "age": random.integers(18, 80, ROWS), "income": income, "default": label})
    shop = pl.DataFrame(
        {
            "customer": ids,
            "visits": random.integers(0, 30, ROWS),
            "town": random.choice(["east", "north", "south"], ROWS),
        }
    )
    return {"bank": bank.cast(pl.String), "shop": shop.cast(pl.String)}


@dataclass
class Trial:
    """The tables of one test, its settings, and the command line.

    Attributes:
        folder: where the files are.
        call: the command line.
        bank: the bank's table as text.
        shop: the shop's table as text.
        settings: the settings of case.toml.
    """

    folder: Path
    call: Callable[..., Any]
    bank: pl.DataFrame
    shop: pl.DataFrame
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        return {"bank": self.bank, "shop": self.shop}

    def replace(self, party: str, column: str, cells: Sequence[Any] | Callable[[str, int], Any]) -> None:
        """Replace a column, by new cells or by a function of each cell and its row's number."""
        frame = getattr(self, party)
        if callable(cells):
            cells = [cells(cell, row) for row, cell in enumerate(frame[column])]
        setattr(self, party, frame.with_columns(pl.Series(column, cells)))

    def mark(self, party: str, column: str, mark: str, every: int = EVERY) -> None:
        """Replace every so many cells by a mark, from the first row."""
        self.replace(party, column, lambda cell, row: cell if row % every else mark)

    def respell(self, party: str, column: str, spellings: Mapping[str, Sequence[str]]) -> None:
        """Write each cell in one of its spellings, in turn."""
        self.replace(party, column, lambda cell, row: spellings[cell][row // 2 % len(spellings[cell])])

    def write(self, **files: bytes | str) -> Path:
        """Write the settings and the tables; ``files`` are written as they are, by party."""
        for party, frame in self.tables.items():
            content = files.get(party, frame.write_csv())
            (self.folder / f"{party}.csv").write_bytes(content.encode() if isinstance(content, str) else content)
        values: dict[str, Any] = {
            "federation": {"id": "customer", "label": "default", "active": "bank"},
            "parties": {"bank": {"table": "bank.csv"}, "shop": {"table": "shop.csv"}},
            "method": {"name": "laser"},
            "encoder": {"hidden": [8]},
            "train": {"epochs": 2},
        }
        for group, items in self.settings.items():
            for name, value in items.items():
                known = values.setdefault(group, {}).get(name)
                values[group][name] = known | value if isinstance(known, dict) else value
        path = self.folder / "case.toml"
        path.write_text(tomli_w.dumps(values), encoding="utf-8")
        return path

    def align(self, *, fails: bool = False, **files: bytes | str) -> str:
        """Run ``anyparty align`` and return what it prints, in one line."""
        return self._run("align", fails, files)

    def train(self, *, fails: bool = False, **files: bytes | str) -> str:
        """Run ``anyparty train`` and return what it prints, in one line."""
        return self._run("train", fails, files)

    def _run(self, command: str, fails: bool, files: Mapping[str, bytes | str]) -> str:
        result = self.call(command, self.write(**files))
        words = " ".join(result.output.split())
        assert (result.exit_code != 0) == fails, words
        assert "Traceback" not in words
        return words

    def federation(self, **files: bytes | str) -> Federation:
        """Read the tables as the command line does."""
        return Federation.from_config(config.load(self.write(**files)))

    def in_python(self, **arguments: Any) -> Federation:
        """Give the tables to ``Federation.from_tables``."""
        return Federation.from_tables(self.tables, **{"id": "customer", "label": "default"} | arguments)

    def classes(self, **files: bytes | str) -> dict[str, int]:
        """Return the classes that a model learns, with the number of labels of each."""
        federation = self.federation(**files)
        label = federation.teaching("bank").label
        assert label is not None
        task = federation.task(federation.split(config.TrainSettings()))
        names = label.cast(pl.String).drop_nulls()
        return {name: int((names == name).sum()) for name in task.classes}


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]) -> Trial:
    """Return a trial with clean tables, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return Trial(tmp_path, call, **clean())
