import io
import json
from collections import Counter

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from anyparty.alignment.alignment import Alignment, NearMatch, align
from anyparty.alignment.overlap import SHOWN, Overlap, Pattern
from anyparty.tables.table import read_table

OBSERVED = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 0], [1, 1, 0], [0, 0, 0]], dtype=bool)
LABELED = np.array([True, False, True, False, True])


def shown(overlap):
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(overlap.render())
    return console.export_text()


def test_counts_equal_those_computed_by_hand():
    overlap = Overlap.count(OBSERVED, ["a", "b", "c"], LABELED)
    assert overlap.patterns == (
        Pattern(parties=("a", "b"), rows=2, labelled=1),
        Pattern(parties=("a", "b", "c"), rows=1, labelled=0),
        Pattern(parties=("b",), rows=1, labelled=1),
        Pattern(parties=(), rows=1, labelled=1),
    )
    assert (overlap.rows, overlap.labelled, overlap.by_all) == (5, 3, 1)
    assert overlap.held == {"a": 3, "b": 4, "c": 1}
    assert overlap.alone == {"a": 0, "b": 1, "c": 0}
    assert (overlap.more_patterns, overlap.more_rows, overlap.notes) == (0, 0, ())


def test_an_overlap_is_computed_from_an_alignment():
    at = {"a": np.array([0, -1]), "b": np.array([0, 1])}
    overlap = Overlap.of(Alignment(("a", "b"), 2, at), ["a", "b"])
    assert overlap.patterns == (
        Pattern(parties=("a", "b"), rows=1, labelled=None),
        Pattern(parties=("b",), rows=1, labelled=None),
    )
    assert overlap.labelled is None


@pytest.mark.parametrize("parties", [1, 8, 9, 64, 65, 130])
def test_counts_equal_those_by_a_dictionary(parties):
    rng = np.random.default_rng(parties)
    observed = rng.random((300, parties)) < 0.5
    observed[:200] = observed[rng.integers(0, 20, 200)]
    observed[200:] &= rng.random((100, parties)) < 0.5
    labeled = rng.random(300) < 0.5
    names = [f"p{k}" for k in range(parties)]
    who = [tuple(name for name, has in zip(names, row, strict=True) if has) for row in observed]
    rows, labelled = Counter(who), Counter(w for w, known in zip(who, labeled, strict=True) if known)
    overlap = Overlap.count(observed, names, labeled)
    assert len(overlap.patterns) == min(SHOWN, len(rows))
    assert all((p.rows, p.labelled) == (rows[p.parties], labelled[p.parties]) for p in overlap.patterns)
    assert [p.rows for p in overlap.patterns] == sorted(rows.values(), reverse=True)[:SHOWN]
    assert overlap.more_patterns == len(rows) - len(overlap.patterns)
    assert overlap.more_rows == 300 - sum(p.rows for p in overlap.patterns)


def test_a_party_that_shares_no_row_is_noted():
    observed = np.array([[1, 1, 0], [0, 0, 1], [1, 0, 0]], dtype=bool)
    assert Overlap.count(observed, ["a", "b", "c"]).notes == (
        "c shares no row with any other party: check how its ids are written",
    )
    assert Overlap.count(observed[:, :1], ["a"]).notes == ()


@pytest.mark.parametrize(
    ("third", "guess"),
    [
        (
            ["001", "004"],
            f": 1 would be equal but for leading zeros; {NearMatch(1, ('strip-zeros',)).remedy}",
        ),
        (
            ["c-1", "c-4"],
            ": 1 would be equal but for letters or signs around the numbers, which must be removed in the table",
        ),
        (["8", "9"], ""),
    ],
)
def test_a_note_on_a_party_without_shared_rows_suggests_a_cause(third, guess):
    ids_of = {"a": ["1", "2"], "b": ["2", "1"], "c": third}
    tables = [read_table(pl.DataFrame({"id": ids}), party=party, id="id") for party, ids in ids_of.items()]
    (note,) = Overlap.of(align(tables), ["a", "b", "c"]).notes
    assert note == f"c shares no row with any other party: check how its ids are written{guess}"


@pytest.mark.parametrize(
    ("written", "note"),
    [
        (lambda n: f"{n:05}", "but for leading zeros"),
        (lambda n: f"{n}\u200b" if n % 2 else f"{n}", "but for Unicode normalization"),
    ],
)
def test_partly_matching_ids_are_noted(written, note):
    ids_of = {"a": [str(n) for n in range(1, 101)], "b": [written(n) for n in range(1, 101)], "c": ["7", "8", "x"]}
    ids_of["b"][:2] = ["1", "2"]
    tables = [read_table(pl.DataFrame({"id": ids}), party=party, id="id") for party, ids in ids_of.items()]
    notes = [each for each in Overlap.of(align(tables), ["a", "b", "c"]).notes if not each.startswith("c ")]
    assert len(notes) == 2
    assert all(note in each and "check how its ids are written" in each for each in notes)


@pytest.mark.parametrize(("alike", "noted"), [(5, 0), (30, 2)])
def test_a_few_nearly_matching_ids_are_not_noted(alike, noted):
    """Two parties have 105 or 130 own ids each, of which 5 or 30 differ by a leading zero."""
    both, near = [f"{n}" for n in range(1, 50)], [f"{n}" for n in range(100, 100 + alike)]
    ids_of = {"a": [*both, *near, *(f"a{n}" for n in range(100))],
              "b": [*both, *(f"0{each}" for each in near), *(f"b{n}" for n in range(100))]}  # fmt: skip
    tables = [read_table(pl.DataFrame({"id": ids}), party=party, id="id") for party, ids in ids_of.items()]
    assert len(Overlap.of(align(tables), ["a", "b"]).notes) == noted


def test_an_overlap_is_written_to_json():
    overlap = Overlap.count(OBSERVED, ["a", "b", "c"], LABELED)
    saved = json.loads(json.dumps(overlap.to_json()))
    assert saved["patterns"][0] == {"parties": ["a", "b"], "rows": 2, "labelled": 1}
    assert saved["alone"] == {"a": 0, "b": 1, "c": 0}
    assert saved["rows"] == 5


def test_the_rendered_overlap_shows_each_pattern():
    observed = np.concatenate([OBSERVED, [[0, 0, 1]] * 2000])
    text = shown(Overlap.count(observed, ["[red]", "b", "c"], np.ones(2005, dtype=bool)))
    for line in (
        "2,005 rows of all tables together",
        "[red], b",
        "all 3",
        "nobody with columns",
        "2,000",
        "99.8%",
        "rows that all 3 have",
    ):
        assert line in text


def test_the_rendered_overlap_of_many_parties_stays_narrow():
    observed = np.ones((200, 64), dtype=bool)
    observed[np.arange(100), np.arange(100) % 64] = False
    observed[150:] = np.random.default_rng(0).random((50, 64)) < 0.5
    text = shown(Overlap.count(observed, [f"p{k}" for k in range(64)]))
    for line in ("all 64", "all but p7", "more patterns", "... 48 more parties"):
        assert line in text
    assert max(map(len, text.splitlines())) < 120
