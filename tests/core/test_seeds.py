import numpy as np
import pytest
import torch

from anyparty.core.seeds import Seeds

SECRET = bytes(range(32))


def words(generator):
    return np.frombuffer(generator.get_state().numpy()[24 : 24 + 8 * 624].tobytes(), dtype="<u8")


def test_a_stream_is_a_function_of_root_and_name():
    assert Seeds(3).number("a", 1) == Seeds(3).number("a", 1)
    assert len({Seeds(3).number("a", 1), Seeds(3).number("a", 2), Seeds(4).number("a", 1)}) == 3
    assert torch.equal(torch.rand(9, generator=Seeds(3).torch("a")), torch.rand(9, generator=Seeds(3).torch("a")))


def test_without_a_secret_a_partys_own_streams_are_those_of_the_root():
    assert Seeds(3).own == Seeds(3)
    assert Seeds(3).own.number("a") == Seeds(3).number("a")


def test_a_secret_moves_ones_own_streams_and_no_other():
    kept = Seeds(3, SECRET)
    assert kept.number("split") == Seeds(3).number("split")
    drawn = [
        torch.rand(4, generator=each.own.torch("a")).tolist()
        for each in (kept, Seeds(3, SECRET), Seeds(4, SECRET), Seeds(3, bytes(32)), Seeds(3))
    ]
    assert drawn[0] == drawn[1]
    assert len({tuple(each) for each in drawn}) == 4
    assert kept.own.numpy("a").integers(2**60) != Seeds(3).numpy("a").integers(2**60)


def test_torchs_generator_is_kept_in_the_form_that_is_written_to():
    """Compare with numpy's generator: after a 32-bit seed both hold the same 624 words."""
    assert (words(torch.Generator().manual_seed(5)) == np.random.RandomState(5).get_state()[1]).all()
    own, theirs = Seeds(3, SECRET).own, np.random.MT19937()
    theirs.state = {"bit_generator": "MT19937", "state": {"key": words(own.torch("a")).astype(np.uint32), "pos": 624}}
    assert torch.rand(700, generator=own.torch("a")).tolist() == (theirs.random_raw(700) % 2**24 / 2**24).tolist()


def test_a_secret_stream_has_more_than_the_32_bits_of_torchs_seed():
    own = Seeds(3, SECRET).own
    seeded = torch.Generator().manual_seed(own.number("a"))
    assert (words(own.torch("a")) != words(seeded)).all()


def test_drawing_leaves_torchs_own_stream_as_it_was():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with Seeds(3, SECRET).own.drawing("a", "b"):
        inside = torch.rand(3)
        with Seeds(3).drawing("c"):
            torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(inside, torch.rand(3, generator=Seeds(3, SECRET).own.torch("a", "b")))


def test_a_secret_is_not_shown():
    assert "secret" not in repr(Seeds(3, SECRET))
    assert "secret" not in repr(Seeds(3, SECRET).own)


def test_another_form_of_generator_is_refused(monkeypatch):
    monkeypatch.setattr("anyparty.core.seeds._BYTES", 16)
    with pytest.raises(RuntimeError, match="keeps its generator in 5056 bytes"):
        Seeds(3, SECRET).own.torch("a")
