"""Check each mechanism by hand, and its errors; ``test_missing_statistics`` checks rates and dependences."""

from functools import partial

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anyparty.core.seeds import Seeds
from anyparty.data.missingness import (
    MAR1,
    MAR2,
    MCAR,
    MECHANISMS,
    MNAR,
    BetaMCAR,
    DrawnMask,
    ScarceLabels,
    ScarceOverlap,
    described,
    missing,
    normalised,
)
from anyparty.errors import ConfigError

FRAME = pl.DataFrame({"id": ["a", "b"], "x": [1.0, 2.0]})
EXAMPLES = (
    MCAR(p=0.5),
    MCAR(p=0.999),
    BetaMCAR(a=0.3, b=0.1),
    MAR1(),
    MAR2(),
    MNAR(p=0.9),
    ScarceOverlap(ratio=0.3, active_only=0.5),
    ScarceLabels(n=5, aligned=2, rest=MNAR(p=0.9)),
)


def blocks_of(n, K, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, 5)) for _ in range(K)]


def draw(mechanism, n, K, name="train", seed=0, blocks=None):
    return mechanism.draw(Seeds(seed), name, n, K, blocks_of(n, K) if blocks is None else blocks)


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=str)
def test_every_mechanism(mechanism):
    """No row is empty, the rate is that of the mask, and the mask depends on name and seed."""
    drawn = draw(mechanism, 400, 2)
    assert drawn.observed.shape == (400, 2)
    assert drawn.observed.dtype == bool
    assert drawn.observed.any(axis=1).all()
    assert drawn.rate == pytest.approx(1 - drawn.observed.mean())
    assert np.mean(drawn.rates) == pytest.approx(drawn.rate)
    np.testing.assert_array_equal(draw(mechanism, 400, 2).observed, drawn.observed)
    if drawn.rate > 0.05:
        assert not np.array_equal(draw(mechanism, 400, 2, name="test").observed, drawn.observed)
        assert not np.array_equal(draw(mechanism, 400, 2, seed=1).observed, drawn.observed)


@given(
    mechanism=st.sampled_from([m for m in EXAMPLES if not isinstance(m, ScarceOverlap | ScarceLabels)]),
    n=st.integers(0, 12),
    K=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_never_an_empty_row(mechanism, n, K, seed):
    drawn = draw(mechanism, n, K, seed=seed)
    assert drawn.observed.any(axis=1).all()
    assert 0 <= drawn.redrawn <= n
    if K == 1:
        assert drawn.observed.all()


def test_nothing_missing():
    drawn = draw(MCAR(), 10, 3)
    assert drawn.observed.all()
    assert (drawn.rate, drawn.redrawn) == (0, 0)


def test_what_a_mask_says_of_itself():
    observed = np.array([[True, False], [True, True]])
    assert str(DrawnMask(observed, 1)) == "25.0 % of 2 x 2 blocks missing, 1 empty rows redrawn"
    assert str(DrawnMask(observed, 0, np.array([True, False]))).endswith("redrawn, 1 labelled")
    assert DrawnMask(observed, 0).rates == (0.0, 0.5)


@pytest.mark.parametrize("p", [-0.1, 1, 1.5, float("nan")])
def test_probabilities_out_of_range(p):
    with pytest.raises(ConfigError, match=r"mcar: p: expected (at least 0|less than 1), got"):
        MCAR(p=p)
    with pytest.raises(ConfigError, match=r"mnar: p: expected (more than 0|less than 1), got"):
        MNAR(p=p)


WRONG = {
    "mnar: p": lambda: MNAR(p=0),
    "mcar: keep_empty": lambda: MCAR(keep_empty="yes"),
    "beta: a": lambda: BetaMCAR(a=0),
    "mar1: step": lambda: MAR1(step=-1),
    "mar2: budget": lambda: MAR2(budget=-1),
    "mar1: threshold": lambda: MAR1(threshold=float("nan")),
    "overlap: ratio": lambda: ScarceOverlap(ratio=1.1),
    "overlap: active": lambda: ScarceOverlap(active=2),
    "labels: fraction of a row": lambda: ScarceLabels(n=2.5, aligned=1),
    "labels: rest": lambda: ScarceLabels(rest="mcar"),
    "labels: aligned": lambda: ScarceLabels(n=5, aligned=6),
    "overlap: three parties": lambda: draw(ScarceOverlap(), 10, 3),
    "labels: too many": lambda: draw(ScarceLabels(n=11, aligned=0), 10, 3),
    "mcar: no party": lambda: MCAR().draw(Seeds(0), "train", 10, 0),
    "mnar: no blocks": lambda: MNAR().draw(Seeds(0), "train", 10, 2),
    "mar1: more rows": lambda: MAR1().draw(Seeds(0), "train", 9, 2, blocks_of(10, 2)),
    "mar2: more parties": lambda: MAR2().draw(Seeds(0), "train", 10, 3, blocks_of(10, 2)),
    "mar1: NaN": lambda: MAR1().draw(Seeds(0), "train", 2, 1, [np.array([[1.0], [np.nan]])]),
    "mar1: no feature": lambda: MAR1().draw(Seeds(0), "train", 2, 1, [np.ones((2, 0))]),
    "mnar: text": lambda: MNAR().draw(Seeds(0), "train", 2, 1, [FRAME]),
    "mcar: no seeds": lambda: MCAR().draw(0, "train", 2, 1),
    "mar1: rate": lambda: MAR1().calibrated(Seeds(0), blocks_of(10, 2), rate=0.5),
}  # fmt: skip


def test_what_is_refused(sentences):
    sentences.check("missingness", WRONG)


def test_blocks_may_be_frames_and_tensors():
    (block,) = blocks_of(10, 1)
    observed = MNAR().draw(Seeds(0), "train", 10, 1, [block]).observed
    for made in (pl.DataFrame(block), pl.DataFrame(block).to_pandas(), torch.from_numpy(block)):
        assert (MNAR().draw(Seeds(0), "train", 10, 1, [made]).observed == observed).all()


def test_mar1_by_hand():
    """Variances 4, 1, 0 at parties 0, 1, 2; threshold 3, then 2, then 1."""
    blocks = [np.array([[0.0, 2 * scale]] * 600) for scale in (2, 1, 0)]
    observed = draw(MAR1(threshold=3, step=1), 600, 3, blocks=blocks).observed
    seen = {tuple(row) for row in observed.tolist()}
    assert seen == {(True, False, False), (True, True, False), (True, False, True), (True, True, True)}
    first = (observed.sum(axis=1) == 1).mean()
    assert abs(first - 1 / 3) < 0.07, "party 0 is looked at first, and is enough, in a third of the rows"
    nothing = draw(MAR1(threshold=9, step=0), 600, 3, blocks=blocks)
    assert nothing.observed.all(), "nobody is informative: all are looked at"
    assert draw(MAR1(threshold=-1), 600, 3, blocks=blocks).rate == pytest.approx(2 / 3), "everybody is"


def test_mar2_by_hand():
    """All variances are 1 and the threshold is .5: each block costs .5, so a budget of .9 is used up after two."""
    blocks = [np.array([[-1.0, 1.0]] * 10)] * 4
    assert (draw(MAR2(threshold=0.5, budget=0.9, step=0), 10, 4, blocks=blocks).observed.sum(axis=1) == 2).all()
    assert (draw(MAR2(threshold=0.5, budget=1.0, step=0), 10, 4, blocks=blocks).observed.sum(axis=1) == 3).all()
    falling = MAR2(threshold=0.5, budget=1.0, step=0.25)  # .5, then .75: 1.25 is below zero after the second
    assert (draw(falling, 10, 4, blocks=blocks).observed.sum(axis=1) == 2).all()


def test_alignment_counts():
    drawn = draw(ScarceOverlap(ratio=0.3), 1000, 2)
    assert drawn.observed.sum(axis=0).tolist() == [1000, 300]
    drawn = draw(ScarceOverlap(ratio=0.3, active_only=0.25, active=1), 1000, 2)
    assert drawn.observed.all(axis=1).sum() == 300
    assert (drawn.observed[:, 1] & ~drawn.observed[:, 0]).sum() == 175
    assert (drawn.observed[:, 0] & ~drawn.observed[:, 1]).sum() == 525


def test_labels():
    drawn = draw(ScarceLabels(n=50, aligned=20, rest=MCAR(p=0.8)), 500, 4)
    assert drawn.labeled.sum() == 50
    aligned = drawn.observed.all(axis=1)
    assert (aligned & drawn.labeled).sum() >= 20
    assert (aligned & drawn.labeled).sum() < 30, "the other labelled rows follow the mechanism"
    rest = draw(MCAR(p=0.8), 500, 4).observed
    changed = (drawn.observed != rest).any(axis=1)
    assert (changed <= (aligned & drawn.labeled)).all(), "all other rows are as the mechanism drew them"


def test_which_rows_are_labelled_has_nothing_to_do_with_who_has_them():
    drawn = draw(ScarceLabels(n=400, aligned=0, rest=ScarceOverlap(ratio=0.5)), 1000, 2)
    assert 0.4 < drawn.observed.all(axis=1)[drawn.labeled].mean() < 0.6


def test_normalised():
    rng = np.random.default_rng(0)
    train, test = [rng.normal(5, 3, (100, 4)), np.ones((100, 2))], [rng.normal(5, 3, (10, 4)), np.full((10, 2), 3.0)]
    done = normalised(train)
    np.testing.assert_allclose(done[0].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(done[0].std(axis=0), 1, atol=1e-6)
    assert (done[1] == 0).all()
    by = normalised(test, by=train)
    np.testing.assert_allclose(by[0], (test[0] - train[0].mean(axis=0)) / train[0].std(axis=0), atol=1e-5)
    assert (by[1] == 2).all()


class TestByName:
    @pytest.mark.parametrize("mechanism", EXAMPLES, ids=str)
    def test_there_and_back(self, mechanism):
        assert missing(described(mechanism)) == mechanism

    def test_every_name_is_its_own(self):
        assert all(make.name == name for name, make in MECHANISMS.items())

    WRONG = (
        ("mcra", {}), ("mcar", {"q": 1}), ("mar2", {"budgt": 1}), ("mar1", {"keep_empty": True}),
        ("labels", {"keep_empty": True}), ("mcar", {"p": "half"}), ("mcar", {"p": 1.0}), ({"p": 0.5}, {}),
        ("mcar", {"keep_empty": "yes"}), ("labels", {"n": True}),
        ("labels", {"rest": {"name": "mnra"}}),
    )  # fmt: skip

    def test_what_is_refused(self, sentences):
        calls = {f"{what}, {more}": partial(missing, what, **more) for what, more in self.WRONG}
        sentences.check("missingness-by-name", calls)

    def test_rest_by_name(self):
        assert missing("labels", n=5, aligned=1, rest="mar1") == ScarceLabels(n=5, aligned=1, rest=MAR1())


@pytest.mark.parametrize("of", [MCAR(p=0.5), BetaMCAR(), MNAR(p=0.7)], ids=lambda of: of.name)
def test_kept_empty_rows_are_those_that_are_redrawn_otherwise(of):
    kept, redrawn = draw(missing(described(of), keep_empty=True), 4000, 2), draw(of, 4000, 2)
    assert kept.empty == redrawn.redrawn > 0
    there = kept.observed.any(axis=1)
    np.testing.assert_array_equal(kept.observed[there], redrawn.observed[there])


def test_kept_empty_rows_leave_the_rate_at_p():
    kept, redrawn = (draw(MCAR(p=0.5, keep_empty=keep), 4000, 2) for keep in (True, False))
    assert kept.rate == pytest.approx(0.5, abs=0.02)
    assert redrawn.rate == pytest.approx(MCAR(p=0.5).expected_rate(2), abs=0.02)
    assert MCAR(p=0.5, keep_empty=True).expected_rate(2) == 0.5
    assert redrawn.empty == 0
    assert repr(kept) == f"{100 * kept.rate:.1f} % of 4000 x 2 blocks missing, {kept.empty} rows without any block"
