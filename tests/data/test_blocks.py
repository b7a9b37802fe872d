import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anyparty.problem.rows import Block

NOBODY = -1


def block(position, width=2):
    """Create a block whose row p holds p in all cells."""
    position = torch.tensor(position)
    own = int(position.max()) + 1
    return Block(torch.arange(own, dtype=torch.float32).unsqueeze(1).repeat(1, width), position)


class TestTake:
    #                            aligned row 0  1  2  3  4
    HELD = block([2, NOBODY, 0, 1, NOBODY])

    def test_rows_in_the_order_asked(self):
        x, held = self.HELD.take(torch.tensor([3, 1, 0]))
        assert held.tolist() == [0, 2]  # of three requested rows
        assert x[:, 0].tolist() == [1, 2]

    def test_all_of_them(self):
        x, held = self.HELD.take(torch.tensor([0, 2, 3]))
        assert held.tolist() == [0, 1, 2]
        assert x[:, 0].tolist() == [2, 0, 1]

    def test_none_of_them(self):
        x, held = self.HELD.take(torch.tensor([4, 1]))
        assert x.shape == (0, 2)
        assert held.shape == (0,)

    def test_the_same_row_twice(self):
        x, held = self.HELD.take(torch.tensor([3, 3]))
        assert x[:, 0].tolist() == [1, 1]
        assert held.tolist() == [0, 1]

    def test_no_rows(self):
        x, held = self.HELD.take(torch.arange(0))
        assert x.shape == (0, 2)
        assert held.shape == (0,)

    def test_blocks_of_any_shape(self):
        images = Block(torch.zeros(3, 1, 4, 4), torch.tensor([0, 1, 2]))
        assert images.take(torch.tensor([2]))[0].shape == (1, 1, 4, 4)

    @given(st.data())
    def test_any_block(self, data):
        own = data.draw(st.integers(0, 6))
        slots = [*range(own), *[NOBODY] * data.draw(st.integers(1, 5))]
        position = data.draw(st.permutations(slots))
        made = Block(torch.arange(own, dtype=torch.float32).unsqueeze(1), torch.tensor(position))
        rows = data.draw(st.lists(st.integers(0, len(position) - 1), max_size=9))
        x, held = made.take(torch.tensor(rows, dtype=torch.int64))
        assert held.tolist() == [i for i, row in enumerate(rows) if position[row] != NOBODY]
        assert x[:, 0].tolist() == [position[row] for row in rows if position[row] != NOBODY]


@pytest.mark.parametrize("position", [torch.zeros(3), torch.zeros(3, 1, dtype=torch.int64)])
def test_positions_are_whole_numbers_in_a_row(position):
    with pytest.raises(AssertionError):
        Block(torch.zeros(3, 2), position)
