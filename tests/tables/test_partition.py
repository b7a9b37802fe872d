import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyparty.errors import ConfigError
from anyparty.tables import partition


@pytest.mark.parametrize(("d", "width"), [(561, 140), (23, 5)])  # HAPT and Credit, cut in four
def test_as_the_program_of_the_paper_cuts(d, width):
    assert partition.columns(d, 4) == tuple(slice(width * k, width * (k + 1)) for k in range(4))


@given(d=st.integers(1, 60), parties=st.integers(1, 60), drop_rest=st.booleans())
def test_blocks_are_contiguous_and_nearly_equal(d, parties, drop_rest):
    names = [f"c{j}" for j in range(d)]
    if parties > d:
        with pytest.raises(ConfigError, match=f"{d} columns cannot be cut into {parties} blocks: expected 1 to {d}"):
            partition.columns(names, parties, drop_rest=drop_rest)
        return
    blocks = partition.columns(names, parties, drop_rest=drop_rest)
    kept = [name for block in blocks for name in block]
    assert kept == names[: d - d % parties if drop_rest else d]
    widths = {len(block) for block in blocks}
    assert max(widths) - min(widths) <= (0 if drop_rest else 1)
    assert [names[cut] for cut in partition.columns(d, parties, drop_rest=drop_rest)] == list(blocks)


def test_no_parties():
    with pytest.raises(ConfigError, match="cannot be cut into 0 blocks"):
        partition.columns(3, 0)


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        ({"bank": ["agee"]}, r"block 'bank': there is no column 'agee'; did you mean 'age'\?"),
        ({"bank": ["age"], "shop": ["age"]}, "column 'age' is in two blocks, 'bank', 'shop'; leave it in one"),
        ({"bank": ["age", "age"]}, "column 'age' is in two blocks"),
        ({"bank": []}, "block 'bank' must list at least one column"),
        ({"bank": "age"}, "block 'bank' must list at least one column, not 'age'"),
    ],
)
def test_named_blocks_that_do_not_fit(blocks, sentence):
    with pytest.raises(ConfigError, match=sentence):
        partition.named(["age", "sum"], blocks)
