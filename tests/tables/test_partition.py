import numpy as np
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


@given(d=st.integers(1, 60), shares=st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_proportional_blocks_are_as_wide_as_asked(d, shares):
    if len(shares) > d:
        with pytest.raises(ConfigError, match=f"{d} columns cannot be cut into {len(shares)} blocks"):
            partition.proportional(d, shares)
        return
    cuts = partition.proportional(d, shares)
    assert [j for cut in cuts for j in range(d)[cut]] == list(range(d)), "all columns, each once, in order"
    widths = np.array([cut.stop - cut.start for cut in cuts])
    assert widths.min() >= 1
    wanted = d * np.array(shares) / sum(shares)
    if wanted.min() >= 1:
        assert np.abs(widths - wanted).max() < 1
    assert (widths <= np.maximum(wanted, 1) + 1).all()


def test_proportional_by_hand():
    assert [cut.stop - cut.start for cut in partition.proportional(23, [1, 1, 2])] == [6, 6, 11]
    assert [cut.stop - cut.start for cut in partition.proportional(3, [98, 1, 1])] == [1, 1, 1]


@pytest.mark.parametrize("shares", [[], [1, 0], [1, -1], [1, float("nan")], [float("inf")]])
def test_shares_that_are_none(shares):
    with pytest.raises(ConfigError, match="must be positive numbers"):
        partition.proportional(5, shares)


def test_across_gives_every_party_a_share_of_every_group():
    """Four parties share 2 steps of 8 charts, 5 conditions (one is dropped) and 4 demographics, as in LASER-VFL."""
    charts, steps = 8, 2
    chart = np.arange(charts * steps).reshape(steps, charts).T  # a chart's columns, step by step
    blocks = partition.across([chart, np.arange(16, 21), np.arange(21, 25)], 4)
    assert blocks[0].tolist() == [0, 8, 1, 9, 16, 21]
    assert blocks[3].tolist() == [6, 14, 7, 15, 19, 24]
    with pytest.raises(ConfigError, match="4 columns cannot be cut into 5 blocks"):
        partition.across([chart, np.arange(4)], 5)


def image(height, width):
    """Create an image whose pixels encode their place."""
    return (100 * np.arange(height)[:, None] + np.arange(width))[None, None]


def test_quadrants():
    cut = [cell.tolist() for cell in partition.quadrants(image(4, 4)[:, 0])]
    assert cut[0] == [[[0, 1], [100, 101]]]
    assert cut[1] == [[[2, 3], [102, 103]]]
    assert cut[2] == [[[200, 201], [300, 301]]]


@pytest.mark.parametrize(
    ("parties", "shape"), [(1, (28, 28)), (2, (28, 14)), (4, (14, 14)), (6, (14, 9)), (7, (28, 4)), (8, (14, 7))]
)
def test_cells_for_any_number_of_parties(parties, shape):
    blocks = partition.cells(np.zeros((3, 1, 28, 28)), parties)
    assert [block.shape for block in blocks] == [(3, 1, *shape)] * parties


@given(height=st.integers(1, 12), width=st.integers(1, 12), rows=st.integers(1, 12), cols=st.integers(1, 12))
def test_cells_tile_the_image(height, width, rows, cols):
    x = image(height, width)
    if rows > height or cols > width:
        with pytest.raises(ConfigError, match=f"{height} x {width} pixels cannot be cut into a grid of {rows} x "):
            partition.grid(x, rows, cols)
        return
    blocks = partition.grid(x, rows, cols)
    assert all(np.shares_memory(block, x) for block in blocks)
    h, w = height // rows, width // cols
    whole = np.block([[blocks[i * cols + j][0, 0] for j in range(cols)] for i in range(rows)])
    np.testing.assert_array_equal(whole, x[0, 0, : h * rows, : w * cols])


def test_strips():
    assert [strip[0, 0, 0, 0] for strip in partition.strips(image(6, 6), 3)] == [0, 200, 400]
    assert [strip[0, 0, 0, 0] for strip in partition.strips(image(6, 6), 3, "vertical")] == [0, 2, 4]
    with pytest.raises(ConfigError, match="no strips 'vertica'; did you mean 'vertical'"):
        partition.strips(image(6, 6), 3, "vertica")


class TestViews:
    x = np.arange(5 * 12 * 2 * 2).reshape(5, 12, 2, 2)

    def test_one_each(self):
        blocks = partition.views(self.x, 12)
        assert len(blocks) == 12
        np.testing.assert_array_equal(blocks[7], self.x[:, 7])

    def test_neighbours(self):
        blocks = partition.views(self.x, 5)
        assert [block.shape for block in blocks] == [(5, 2, 2, 2)] * 5
        np.testing.assert_array_equal(blocks[1], self.x[:, 2:4])

    def test_another_axis(self):
        series = np.arange(4 * 9 * 2).reshape(4, 9, 2)
        np.testing.assert_array_equal(partition.views(series, 2, axis=2)[1], series[:, :, 1])

    def test_one_of_each_pair_at_random(self):
        x = np.broadcast_to(np.arange(12)[None, :, None], (4000, 12, 3))
        blocks = partition.views(x, 6, pick=np.random.default_rng(0))
        for k, block in enumerate(blocks):
            assert block.shape == (4000, 3)
            assert set(block[:, 0]) == {2 * k, 2 * k + 1}
            assert abs((block[:, 0] == 2 * k).mean() - 0.5) < 0.04
        assert abs(np.corrcoef(blocks[0][:, 0] % 2, blocks[1][:, 0] % 2)[0, 1]) < 0.06, "parties pick on their own"

    def test_what_does_not_fit(self):
        with pytest.raises(ConfigError, match="12 views cannot be dealt to 13 parties: expected 1 to 12"):
            partition.views(self.x, 13)
        with pytest.raises(ConfigError, match="no views along axis 4"):
            partition.views(self.x, 2, axis=4)


@pytest.mark.parametrize(
    ("how", "shape", "parties", "first"),
    [
        ("columns", (6, 23), 4, (6, 5)),
        ("quadrants", (6, 3, 32, 32), 4, (6, 3, 16, 16)),
        ("cells", (6, 3, 32, 32), 8, (6, 3, 16, 8)),
        ("rows", (6, 28, 28), 7, (6, 4, 28)),
        ("strips", (6, 28, 28), 7, (6, 28, 4)),
        ("views", (6, 12, 1, 8, 8), 12, (6, 1, 8, 8)),
    ],
)
def test_cut_by_name(how, shape, parties, first):
    blocks = partition.cut(np.zeros(shape), how, parties)
    assert [block.shape for block in blocks] == [first] * parties


@pytest.mark.parametrize(
    ("how", "shape", "parties", "sentence"),
    [
        ("colums", (6, 23), 4, "no partition 'colums'; did you mean 'columns'"),
        ("columns", (6, 3), 4, "3 columns cannot be cut into 4 blocks"),
        ("quadrants", (6, 8, 8), 8, "quadrants are for 4 parties, not 8; 'cells' cuts"),
        ("cells", (6, 23), 4, r"shape \(6, 23\) holds no images"),
        ("cells", (6, 2, 2), 16, "2 x 2 pixels cannot be cut into a grid of 4 x 4"),
        ("cells", (6, 2, 2), 0, "for 0 parties"),
    ],
)
def test_cuts_that_do_not_fit(how, shape, parties, sentence):
    with pytest.raises(ConfigError, match=sentence):
        partition.cut(np.zeros(shape), how, parties)
