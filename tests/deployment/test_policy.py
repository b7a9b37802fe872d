"""Initial weights depend on a party's secret: with them, a reader could compute its rows from its first embeddings."""

import stat
from functools import partial

import pytest
import torch

from anyparty.config import Config
from anyparty.core.seeds import Seeds
from anyparty.deployment.site import site_training
from anyparty.deployment.site.policy import SIZE, secret_in
from anyparty.errors import ConfigError
from anyparty.networks.encoders import MLP
from tests.deployment.test_site_training import run, settings, weights, world
from tests.worlds import Wiretap


def linear(method="laser"):
    values = settings(epochs=2).model_dump(mode="json")
    values["encoder"]["hidden"] = []  # rows can be computed from embeddings by least squares
    values["method"] = {"name": method, "embedding": 8}
    return Config.of(values)


def residual(sites, method):
    """Return the relative residual of the shop's first embeddings for any rows, given the weights of the seed alone."""
    notes = []
    run(sites, linear(method), partial(Wiretap, notes=notes))
    h = next(next(iter(tensors.values())) for frm, _, tag, tensors in notes if (frm, tag) == ("shop", "embedding"))
    with Seeds(0).drawing("encoder", "shop"):
        (layer,) = MLP(hidden=())(2, 8)
    weight, left = layer.weight.detach(), (h - layer.bias).detach().T
    found = torch.linalg.lstsq(weight, left).solution
    return float((left - weight @ found).square().sum() / left.square().sum())


@pytest.mark.parametrize("method", ["laser", "plug"])
def test_rows_cannot_be_computed_from_the_seed_and_first_embeddings(tmp_path, method, monkeypatch):
    assert residual(world(tmp_path / "secret"), method) > 0.05
    monkeypatch.setattr(site_training, "secret_in", lambda _: b"")
    assert residual(world(tmp_path / "seeded"), method) < 1e-6, "it can where weights follow from the seed alone"


def test_the_same_sites_train_the_same_weights_again(tmp_path):
    sites = world(tmp_path)
    run(sites, settings())
    first = weights(sites)
    run(sites, settings())
    assert weights(sites) == first
    (sites["shop"].folder / "secret").unlink()
    run(sites, settings())
    assert weights(sites) != first


def test_a_resumed_run_ends_with_the_same_weights(tmp_path):
    sites = world(tmp_path)
    run(sites, settings())
    whole = weights(sites)
    for site in sites.values():
        (site.folder / "checkpoints" / "00-000006.safetensors").unlink()
        (site.folder / "parties" / site.party / "model.safetensors").unlink()
    run(sites, settings(), resume=True)
    assert weights(sites) == whole


def test_each_site_has_a_private_secret_that_is_never_sent(tmp_path):
    sites, notes = world(tmp_path), []
    run(sites, settings(), partial(Wiretap, notes=notes))
    secrets = {name: (site.folder / "secret").read_bytes() for name, site in sites.items()}
    assert {len(each) for each in secrets.values()} == {SIZE}
    assert len(set(secrets.values())) == len(sites)
    assert {stat.S_IMODE((site.folder / "secret").stat().st_mode) for site in sites.values()} == {0o600}
    crossed = b"".join(t.contiguous().numpy().tobytes() for *_, tensors in notes for t in tensors.values())
    assert not any(secret in crossed for secret in secrets.values())


def test_an_invalid_secret_file_is_refused(tmp_path):
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(ConfigError, match=r"secret: expected the 32 bytes .* got 5"):
        secret_in(tmp_path)
