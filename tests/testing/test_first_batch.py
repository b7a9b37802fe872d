"""The first batch of a training with a user's rule or heads shows a warning for each mistake that it can see."""

import warnings

import numpy as np
import pytest
from torch import nn

from anyparty import Federation
from anyparty.errors import AnypartyWarning
from anyparty.methods.method_registry import method
from anyparty.methods.split.module_method import module_method
from anyparty.methods.split.split_method import Split
from tests.testing.test_mistakes import (
    AnswersNobody,
    BatchCentred,
    BatchMean,
    Detached,
    EmbeddingDetached,
    MaskIgnored,
    ModuleMean,
)
from tests.testing.test_rule_check import Mean, zero_head


@pytest.fixture(scope="module")
def federation():
    rng = np.random.default_rng(0)
    x, observed = rng.normal(size=(60, 3)), rng.random((60, 2)) > 0.3
    observed[~observed.any(axis=1), 0] = True
    return Federation.from_arrays({"a": x[:, :2], "b": x[:, 2:]}, (x.sum(axis=1) > 0).astype(int), observed=observed)


def warned(federation, own, **settings):
    """Train for two epochs, and return the warnings that name ``check_method``."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AnypartyWarning)
        federation.train(own, epochs=2, batch_size=16, **settings)
    return [str(each.message) for each in caught if "check_method" in str(each.message)]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (module_method(MaskIgnored, embedding=4), "the embedding of an absent party changes the losses: select embed"),
        (
            module_method(EmbeddingDetached, embedding=4),
            "the loss has no gradient for the embeddings, so that no encode",
        ),
        (module_method(BatchCentred, embedding=4), "the losses of a row change if other rows are left out: compute"),
        (Split(rule=Detached(), embedding=4), "the loss has no gradient for the embeddings"),
        (Split(rule=BatchMean(), embedding=4), "the losses of a row change if other rows are left out"),
        (Split(rule=AnswersNobody(), embedding=4), "a row that no party has gets an answer: mark it in valid"),
    ],
)
def test_a_mistake_is_shown_once(federation, own, said):
    (sentence,) = warned(federation, own)
    assert sentence.startswith(f"{own.can.title}: {said}")


@pytest.mark.parametrize("execution", ["protocol", "joint"])
@pytest.mark.parametrize(
    "own",
    [
        Split(rule=Mean(), embedding=4),
        module_method(ModuleMean, embedding=4, drop=0.3),
        method("laser", embedding=4, make_head=zero_head),
        method("laser", embedding=4, make_head=lambda i, o: nn.Sequential(nn.BatchNorm1d(i), nn.Linear(i, o))),
    ],
    ids=["rule", "module", "head of zeros", "batch normalisation"],
)
def test_a_method_without_a_fault_trains_without_a_warning(federation, own, execution):
    assert warned(federation, own, execution=execution) == []
