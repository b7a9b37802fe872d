"""A party's process is killed during a private alignment, and all parties start again."""

import pytest
from benchmarks import million_ids


@pytest.mark.net
@pytest.mark.slow
def test_an_alignment_continues_after_a_party_is_killed(tmp_path):
    n, batch = 2400, 100
    cut = million_ids.align(tmp_path, n, 0, batch, kill_at=0.5)
    assert cut.rows == 0
    assert 0.4 < cut.share < 1
    again = million_ids.align(tmp_path, n, 0, batch)
    assert again.rows == n + (million_ids.PARTIES - 1) * n // 2
    assert again.first > 0.3  # the tokens of the interrupted run are used
    added = million_ids.align(tmp_path, n, 60, batch)
    assert added.rows == again.rows + million_ids.PARTIES * 60
    assert added.first > 0.9
