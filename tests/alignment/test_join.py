import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyparty.alignment.alignment import align
from anyparty.errors import AlignmentError
from anyparty.tables.table import read_table


def table_of(party, ids):
    return read_table(pl.DataFrame({"id": ids}), party=party, id="id")


def join_with_dictionaries(ids_by_party):
    """Compute the sorted union and each party's positions with dictionaries."""
    union = sorted(set().union(*ids_by_party))
    places = [{each: at for at, each in enumerate(ids)} for ids in ids_by_party]
    return union, [[place.get(each, -1) for each in union] for place in places]


IDS = st.lists(st.integers(0, 12).map(str), min_size=1, unique=True)


@given(st.lists(IDS, min_size=1, max_size=4))
def test_positions_equal_those_by_dictionaries(ids_by_party):
    union, positions = join_with_dictionaries(ids_by_party)
    tables = [table_of(f"p{k}", ids) for k, ids in enumerate(ids_by_party)]
    if len(tables) > 1 and len(union) == sum(map(len, ids_by_party)):
        with pytest.raises(AlignmentError, match="no id is known to two parties"):
            align(tables)
        return
    alignment = align(tables)
    assert alignment.parties == tuple(f"p{k}" for k in range(len(tables)))
    assert alignment.n == len(union)
    assert alignment.ids.to_list() == union
    assert [alignment.position[party].tolist() for party in alignment.parties] == positions


@given(st.permutations(range(6)), st.permutations(range(5)))
def test_order_of_rows_in_a_file_does_not_matter(first, second):
    left, right = [str(i) for i in range(6)], [str(i) for i in range(3, 8)]
    plainly = align([table_of("a", left), table_of("b", right)])
    shuffled_ids = {"a": [left[i] for i in first], "b": [right[i] for i in second]}
    shuffled = align([table_of(party, ids) for party, ids in shuffled_ids.items()])
    assert shuffled.ids.to_list() == plainly.ids.to_list()
    assert (shuffled.observed(["a", "b"]) == plainly.observed(["a", "b"])).all()
    for party, ids in shuffled_ids.items():
        held = shuffled.position[party] >= 0
        assert [ids[at] for at in shuffled.position[party][held]] == shuffled.ids.filter(pl.Series(held)).to_list()


def test_equal_ids_of_different_types_match():
    alignment = align([table_of("a", [7, 8]), table_of("b", [8.0, 9.0]), table_of("c", [" 9", "7 "])])
    assert alignment.ids.to_list() == ["7", "8", "9"]
    assert alignment.observed("abc").sum(axis=1).tolist() == [2, 2, 2]


def test_a_single_party_is_aligned_in_order_of_its_ids():
    alignment = align([table_of("a", ["y", "x"])])
    assert alignment.position["a"].tolist() == [1, 0]
    assert alignment.position["a"].dtype == np.int64


def test_an_alignment_without_tables_is_refused():
    with pytest.raises(AlignmentError, match="no tables to align"):
        align([])


def test_two_parties_with_the_same_name_are_refused():
    with pytest.raises(
        AlignmentError, match="each party needs a name of its own, but 'a' names several: 'data frame', "
    ):
        align([table_of("a", [1]), table_of("b", [1]), table_of("a", [1])])


def test_the_error_about_no_overlap_shows_example_ids():
    with pytest.raises(AlignmentError, match=r"look like this: a \(data frame\): '1', '2'") as caught:
        align([table_of("a", [3, 1, 2]), table_of("b", ["7", "8"])])
    assert "b (data frame): '7', '8'. Check that the id columns" in str(caught.value)
    assert "equal but" not in str(caught.value)


@pytest.mark.parametrize(
    ("left", "right", "cause"),
    [
        ("ab1", "AB1", "upper and lower case"),
        ("0071", "71", "leading zeros"),
        ("12-3", "12 3", "spaces and hyphens"),
        ("P71", "71", "letters or signs around the numbers"),
    ],
)
def test_the_error_about_no_overlap_suggests_a_cause(left, right, cause):
    with pytest.raises(AlignmentError, match=f"would be equal but for {cause}"):
        align([table_of("a", [left, "x"]), table_of("b", [right, "y"])])
