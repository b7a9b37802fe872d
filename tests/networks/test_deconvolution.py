import pytest
import torch

from anyparty.errors import ConfigError
from anyparty.methods.false_vfl.distributions import mirrored
from anyparty.methods.method_registry import method
from anyparty.networks.encoders import MLP, Deconvolution, ResNet
from anyparty.networks.optimizer import Optimizer
from tests import worlds


@pytest.mark.parametrize("shape", [(1, 14, 7), (3, 32, 32), (1, 1, 1), (2, 5, 9)])
def test_mean_and_deviation_of_every_pixel(shape):
    pixels = shape[0] * shape[1] * shape[2]
    decoder = Deconvolution(shape=shape, widths=(6, 4))(5, 2 * pixels)
    out = decoder(torch.randn(3, 5))
    assert out.shape == (3, 2 * pixels)
    image = decoder.layers(torch.zeros(1, 5))[:, :, : shape[1], : shape[2]]
    assert torch.allclose(decoder(torch.zeros(1, 5))[0, :pixels], image[0, : shape[0]].flatten())  # as blocks are flat


def test_each_vector_by_itself():
    decoder, z = Deconvolution(shape=(1, 6, 6), widths=(6, 4))(5, 72), torch.randn(4, 5)
    assert torch.allclose(decoder(z)[1:2], decoder(z[1:2]), atol=1e-6)


def test_images_of_another_size_are_refused():
    with pytest.raises(ConfigError, match=r"images of shape \(1, 6, 6\) have 36 numbers, the block 35"):
        Deconvolution(shape=(1, 6, 6))(5, 70)


def test_false_vfl_decodes_images_with_it():
    encoder = ResNet(shape=(1, 4, 4), widths=(4, 8), depths=(1, 1))
    assert mirrored(encoder, None, (8,)) == Deconvolution(shape=(1, 4, 4))
    assert mirrored(MLP(hidden=(9, 5)), None, (8,)) == MLP(hidden=(5, 9))
    assert mirrored(encoder, (7,), (8,)) == MLP(hidden=(7,))
    of = worlds.world(N=40, d=16, echo=True)
    made = method("false-vfl-1", embedding=4, top=2, hidden=(8,), samples=3, predict_samples=5)
    trained = worlds.train(made, of, encoder=encoder, optimizer=Optimizer(lr=5e-3), epochs=4)
    assert bool(worlds.predict(made, of, worlds.states_of(trained)).answered.all())
    losses = [record["loss"] for record in trained["a"].history]
    assert losses[3] < losses[0]
