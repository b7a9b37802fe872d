"""What a party draws for itself alone comes from its own streams, with every method: see decision 14."""

import pytest
import torch

from anyparty.methods.method import Batch
from anyparty.methods.table import METHODS, method
from anyparty.seeds import Seeds
from tests.worlds import train, world

SECRET, OTHER = bytes(32), bytes(range(32))
PLAIN = [(name, {}) for name in METHODS]
MORE = [("laser", {"pretrain": "simsiam"}), ("laser", {"unlabelled": "pseudo"}), ("false-vfl-2", {"hidden": (3,)})]


def weights(made, party, secret):
    state = made.begin(world().seat(party), Seeds(0, secret))
    return {
        f"{name}.{key}": value for name, module in state.modules.items() for key, value in module.named_parameters()
    }


@pytest.mark.parametrize(("name", "parameters"), [*PLAIN, *MORE])
@pytest.mark.parametrize("party", ["a", "b"])
def test_first_weights_are_of_the_secret(name, parameters, party):
    made = method(name, **parameters)
    first, again, other, seeded = (weights(made, party, each) for each in (SECRET, SECRET, OTHER, b""))
    assert all(torch.equal(first[key], again[key]) for key in first)
    drawn = [key for key, value in first.items() if len(value.unique()) > 1]  # ones and zeros are nobody's secret
    assert drawn or (party == "b" and name == "vfedtrans")
    assert not [key for key in drawn if torch.equal(first[key], other[key]) or torch.equal(first[key], seeded[key])]


def test_dropout_and_views_are_of_the_secret_and_common_lots_are_not():
    def draws(secret):
        batch = Batch(torch.arange(2), Seeds(0, secret), ("train", 0, 0))
        with batch.drawing("encoder draws", "a", device=torch.device("cpu")):
            inside = torch.rand(3).tolist()
        return (
            inside,
            torch.rand(3, generator=batch.own("views of a")).tolist(),
            torch.rand(3, generator=batch.generator("tasks")).tolist(),
        )

    first, again, other, seeded = map(draws, (SECRET, SECRET, OTHER, b""))
    assert first == again
    assert all(first[place] != each[place] for each in (other, seeded) for place in (0, 1))
    assert first[2] == other[2] == seeded[2]


@pytest.mark.parametrize(("name", "parameters"), [("laser", {"pretrain": "simsiam"}), ("fedhssl", {})])
def test_views_of_rows_are_no_common_lots(name, parameters, monkeypatch):
    asked, common = [], Batch.generator
    monkeypatch.setattr(Batch, "generator", lambda batch, stream: asked.append(stream) or common(batch, stream))
    train(method(name, embedding=4, **parameters), world(), epochs=1)
    assert not [stream for stream in asked if stream.startswith("views")]
