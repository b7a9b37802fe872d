"""Test batches: every row once per epoch, equal at every party, and with one pattern if requested."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from anyparty.core.seeds import Seeds
from anyparty.problem.rows import by_pattern, mixed, patterns
from tests.worlds import all_patterns

ROWS = st.sets(st.integers(0, 500), min_size=1, max_size=80).map(lambda rows: torch.tensor(sorted(rows)))
SIZES = st.integers(1, 40)


def stream(seed=0, epoch=0):
    return Seeds(seed).torch("batches", "train", epoch)


def sizes(batches):
    return [len(batch) for batch in batches]


def test_no_rows_make_no_batch():
    none = torch.empty(0, dtype=torch.int64)
    assert list(mixed(none, 4, stream())) == list(by_pattern(none, none, 4, stream())) == []


class TestMixed:
    @given(ROWS, SIZES, st.integers(0, 5))
    def test_every_row_once_and_only_the_last_smaller(self, rows, size, seed):
        batches = list(mixed(rows, size, stream(seed)))
        assert torch.equal(torch.cat(batches).sort().values, rows)
        assert all(n == size for n in sizes(batches[:-1]))
        assert 0 < len(batches[-1]) <= size

    def test_a_size_beyond_all_rows_is_one_batch(self):
        rows = torch.arange(5)
        assert sizes(mixed(rows, 2**63, stream())) == [5]
        assert sizes(by_pattern(rows, torch.zeros(5), 2**63, stream())) == [5]

    def test_the_same_at_all_parties_and_another_each_epoch(self):
        rows = torch.arange(50)
        one, other, later = (torch.cat(list(mixed(rows, 8, stream(0, e)))) for e in (0, 0, 1))
        assert torch.equal(one, other)
        assert not torch.equal(one, later)
        assert not torch.equal(one, rows)

    def test_any_two_rows_meet(self):
        """In 200 epochs of 5 batches of 2 of 10 rows, each of 45 pairs occurs about 200 x 5 / 45 = 22 times."""
        met = torch.zeros(10, 10)
        for epoch in range(200):
            for batch in mixed(torch.arange(10), 2, stream(1, epoch)):
                met[batch[0], batch[1]] += 1
        pairs = (met + met.T)[torch.triu_indices(10, 10, 1).unbind()]
        assert pairs.min() > 5
        assert pairs.max() < 45


class TestByPattern:
    @given(ROWS, SIZES, st.integers(1, 6), st.integers(0, 5))
    def test_every_row_once_in_batches_of_one_pattern(self, rows, size, kinds, seed):
        pattern = rows % kinds
        batches = list(by_pattern(rows, pattern, size, stream(seed)))
        assert torch.equal(torch.cat(batches).sort().values, rows)
        assert all(len((batch % kinds).unique()) == 1 for batch in batches)
        assert all(n <= size for n in sizes(batches))
        for kind in range(kinds):  # at most one smaller batch a pattern
            own = sizes(batch for batch in batches if int(batch[0] % kinds) == kind)
            assert sum(n < size for n in own) <= 1

    def test_patterns_come_in_turn_and_not_one_after_the_other(self):
        rows = torch.arange(400)
        batches = list(by_pattern(rows, rows % 4, 10, stream()))
        kinds = [int(batch[0] % 4) for batch in batches]
        changes = sum(one != other for one, other in itertools.pairwise(kinds))
        assert changes > 15  # of 39; one pattern after the other would be 3

    def test_a_size_beyond_all_rows_is_one_batch(self):
        rows = torch.arange(5)
        assert sizes(mixed(rows, 2**63, stream())) == [5]
        assert sizes(by_pattern(rows, torch.zeros(5), 2**63, stream())) == [5]

    def test_the_same_at_all_parties_and_another_each_epoch(self):
        rows = torch.arange(60)
        one, other, later = (torch.cat(list(by_pattern(rows, rows % 3, 7, stream(0, e)))) for e in (0, 0, 1))
        assert torch.equal(one, other)
        assert not torch.equal(one, later)

    def test_what_numbers_the_patterns_have_does_not_matter_to_rows(self):
        rows = torch.arange(30)
        assert sizes(by_pattern(rows, torch.full((30,), 7), 8, stream())) != []
        assert sorted(sizes(by_pattern(rows, (rows % 2) * 100 - 3, 8, stream()))) == [7, 7, 8, 8]


class TestPatterns:
    @given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 9))
    def test_equal_rows_have_equal_numbers_and_others_not(self, K, N, seed):
        observed = torch.rand(N, K, generator=torch.Generator().manual_seed(seed)) < 0.5
        numbers = patterns(observed)
        assert torch.equal(numbers[:, None] == numbers, (observed[:, None] == observed).all(2))

    def test_many_parties(self):
        """More parties than bits in a machine word."""
        observed = torch.eye(70, dtype=torch.bool)
        assert len(patterns(observed).unique()) == 70
        assert len(patterns(all_patterns(100, 5)).unique()) == 31
