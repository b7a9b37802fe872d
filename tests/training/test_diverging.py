"""A run that diverges is stopped and named, and its last good weights are kept."""

import pytest

from anyparty.errors import Diverged
from anyparty.methods.method_registry import method
from anyparty.training.callbacks import Callback
from anyparty.training.checkpoint import Checkpoints, RunPosition, read
from tests import worlds
from tests.worlds import world


class RemoveLabels(Callback):
    """Removes the labels after the first epoch."""

    def __init__(self, of):
        self.of = of

    def on_epoch_end(self, record):
        self.of.rows["a"].y.fill_(float("nan"))


def train(folder, **settings):
    of = world(K=2, N=32, kind="regression")
    worlds.train(method("laser", embedding=4), of, folder=folder, epochs=3, watch=RemoveLabels(of), **settings)


def test_divergence_keeps_the_last_good_weights_and_names_their_folder(tmp_path):
    with pytest.raises(Diverged, match=r"epoch 2, batch 1: .*; the weights after epoch 1 are saved in .*\bkept\b.*a"):
        train(tmp_path / "kept", checkpoint_every=1)
    for name in "ab":
        tensors, _ = read(tmp_path / "kept" / name / "00-000001.safetensors")
        assert all(tensor.isfinite().all() for tensor in tensors.values())


def test_divergence_before_the_first_checkpoint_is_reported(tmp_path):
    with pytest.raises(Diverged, match=r"no weights were saved yet in .*: lower train\.checkpoint_every"):
        train(tmp_path, checkpoint_every=2)


def test_infinite_weights_do_not_replace_a_checkpoint(tmp_path):
    of, made = world(), method("laser", embedding=4)
    state, kept = worlds.begin(made, of)["b"], Checkpoints(tmp_path)
    kept.save(state, RunPosition(epoch=1), {})
    state.modules["encoder"].get_parameter("0.weight").data[0, 0] = float("inf")
    with pytest.raises(Diverged, match="party 'b': its weights are no longer numbers after epoch 2: lower its"):
        kept.save(state, RunPosition(epoch=2), {})
    assert kept.stage_epochs() == [(0, 1)]
