"""Random numbers by row depend on key and indices alone, and look random."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from anyparty.core.draws import bits, mix, normal, uniform
from anyparty.core.seeds import Seeds

KEY = Seeds(7).number("order", "train", 0, 0)


def splitmix64(state: int) -> int:
    """Return the output of SplitMix64 for a state, in Python's whole numbers."""
    z = state & (2**64 - 1)
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
    return z ^ (z >> 31)


def test_reference_values():
    """The published outputs of SplitMix64 for the seed 1234567."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431,
                 16408922859458223821]  # fmt: skip
    found = bits(1234567, torch.arange(5)).tolist()
    assert [value % 2**64 for value in found] == published


def test_axes_equal_whole_numbers():
    gamma = 0x9E3779B97F4A7C15
    drawn = bits(KEY, torch.tensor([3, 100_000]), torch.tensor([0, 5]))
    for i, row in enumerate((3, 100_000)):
        for j, number in enumerate((0, 5)):
            state = splitmix64(KEY + (row + 1) * gamma)
            assert drawn[i, j].item() % 2**64 == splitmix64(state + (number + 1) * gamma)


@pytest.mark.parametrize("draw", [uniform, normal])
def test_numbers_of_a_row_do_not_depend_on_other_rows(draw):
    numbers = torch.arange(6)
    whole = draw(KEY, torch.arange(50), numbers)
    rows = torch.tensor([31, 4, 4, 49])
    assert torch.equal(draw(KEY, rows, numbers), whole[rows])
    assert torch.equal(draw(torch.tensor(KEY), rows, numbers[[2]]), whole[rows][:, [2]])
    mapped = torch.func.vmap(lambda row: draw(KEY, row.unsqueeze(0), numbers))(rows)
    assert torch.equal(mapped[:, 0], whole[rows])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_same_bits_on_a_gpu():
    rows, numbers = torch.arange(1000), torch.arange(16)
    assert torch.equal(uniform(KEY, rows, numbers), uniform(KEY, rows.cuda(), numbers.cuda()).cpu())


def test_moments_and_distribution():
    rows, numbers = torch.arange(20_000), torch.arange(10)
    u, z = uniform(KEY, rows, numbers).double().numpy(), normal(KEY, rows, numbers).double().numpy()
    n = u.size
    assert 0 <= u.min()
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 4 / math.sqrt(12 * n)
    assert abs(u.var() - 1 / 12) < 4 * math.sqrt(1 / 180 / n)
    counts = np.histogram(u, bins=256, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > 1e-4
    assert stats.kstest(z[:, :2].ravel(), "norm").pvalue > 1e-4
    assert abs(z.mean()) < 4 / math.sqrt(n)
    assert abs((z**4).mean() - 3) < 4 * math.sqrt(96 / n)


@pytest.mark.parametrize("draw", [uniform, normal])
def test_neighbours_are_uncorrelated(draw):
    """Neighbouring rows, neighbouring numbers of a row, and neighbouring steps are independent."""
    rows, numbers = torch.arange(20_000), torch.arange(8)
    now = draw(KEY, rows, numbers).double()
    other = draw(Seeds(7).number("order", "train", 0, 1), rows, numbers).double()
    next_key = draw(KEY + 1, rows, numbers).double()
    pairs = {
        "rows": (now[:-1], now[1:]), "numbers": (now[:, :-1], now[:, 1:]), "steps": (now, other),
        "keys": (now, next_key), "diagonal": (now[:-1, 1:], now[1:, :-1]),
    }  # fmt: skip
    for name, (a, b) in pairs.items():
        r = np.corrcoef(a.flatten(), b.flatten())[0, 1]
        assert abs(r) < 4.5 / math.sqrt(a.numel()), name


def test_every_bit_is_fair_and_changes_with_the_key():
    drawn, flipped = bits(KEY, torch.arange(20_000)), bits(KEY ^ 1, torch.arange(20_000))
    shifts = torch.arange(64)
    for values in (drawn, drawn ^ flipped):
        share = ((values.unsqueeze(1) >> shifts) & 1).double().mean(dim=0)
        assert (share - 0.5).abs().max() < 4.5 * 0.5 / math.sqrt(20_000)
    assert len(torch.unique(mix(torch.arange(100_000)))) == 100_000
