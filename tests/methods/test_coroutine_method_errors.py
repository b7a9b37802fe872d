"""Mistakes in a user's own method, written as coroutines, cause clear error messages."""

from dataclasses import dataclass, replace

import pytest
import torch

from anyparty.errors import ConfigError, MessageError
from anyparty.methods.split.laser import Laser
from anyparty.methods.split.split_method import Split
from tests.worlds import predict, states_of, train, world


@dataclass(frozen=True)
class Own(Split):
    """A split method with one faulty function."""

    wrong: str = ""

    def begin(self, seat, seeds):
        state = super().begin(seat, seeds)
        return None if self.wrong == "begin" else state

    def stages(self, seat):
        (only,) = super().stages(seat)
        return (replace(only, step=self._no_coroutine) if self.wrong == "step" else only,)

    def _no_coroutine(self, net, state, rows, batch):
        return 0.5

    async def step(self, net, state, rows, batch):
        if self.wrong == "list" and net.me != "a":
            await net.send("a", "embedding", [torch.ones(3)])
        if self.wrong == "nobody":
            await net.send("bb", "embedding", {"h": torch.ones(3)})
        return await super().step(net, state, rows, batch)

    async def predict(self, net, state, rows, batch, asked):
        answer = await super().predict(net, state, rows, batch, asked)
        if self.wrong == "gradient" and answer is not None:
            answer = replace(answer, scores=answer.scores * torch.ones(1, requires_grad=True))
        if self.wrong == "none" or (self.wrong == "tensor" and answer is not None):
            return None if self.wrong == "none" else answer.scores
        return answer


def own(wrong):
    return Own(rule=Laser(), embedding=5, wrong=wrong)


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ("begin", ConfigError, "LASER-VFL: expected a State from begin, got a NoneType"),
        ("step", ConfigError, r"the step of stage 'train' must be a coroutine, async def, .*; it gives a float"),
        ("none", ConfigError, "expected predict to give Predictions at the active party, got a NoneType"),
        ("tensor", ConfigError, "expected predict to give Predictions at the active party, got a Tensor"),
        ("list", MessageError, r"message 'embedding' .* should hold tensors by name, as {'h': h} does, got a list"),
        ("nobody", MessageError, "tried to send 'embedding' to 'bb', and there is no such party; did you mean 'b'"),
    ],
)
def test_slips(wrong, error, said):
    with pytest.raises(error, match=said):
        train(own(wrong), world(), epochs=1, validation=torch.arange(5))


def test_answers_have_no_gradient():
    made, of = own("gradient"), world()
    trained = train(made, of, epochs=1)
    answer, plain = (predict(each, of, states_of(trained)) for each in (made, own("")))
    assert not answer.scores.requires_grad
    assert torch.equal(answer.scores, plain.scores)
