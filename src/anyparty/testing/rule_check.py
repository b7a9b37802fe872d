"""Check that a rule is a pure function of tensors of static shape, row by row.

The rule is tried on small random batches that contain every set of parties, in double precision. The engine relies on
three properties:

- The losses and outputs of a row, and their gradients, do not depend on other rows of the batch, or on their order.
- Random numbers come from ``noise`` alone.
- No shape depends on data, so that many trainings can be computed side by side, and a training step on a GPU replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from anyparty.core.draws import bits, normal, uniform
from anyparty.core.seeds import Seeds, usual_torch
from anyparty.core.types import Party, Roster, Task
from anyparty.errors import ConfigError, blamed
from anyparty.methods.method import Batch, PartyContext
from anyparty.methods.split.rule import HeadPlan, Host, Rule, draw_noise, losses_of, outputs_of, trained_rows
from anyparty.methods.split.split_method import Split
from anyparty.networks.heads import Heads, ModuleHeads

TOLERANCE = 1e-12  # relative to the largest number
SAMPLED = 8  # rows whose gradient is computed
TASKS = (Task(kind="classification", classes=("a", "b", "c")), Task(kind="regression"))


def check_rule(rule: Rule | Split, *, parties: int = 3, task: Task | None = None) -> None:
    """Check a rule, or the rule and heads of a split method, on small random batches.

    Heads made by a user's function may let rows depend on each other, as batch normalisation does. They are therefore
    checked only for random numbers, and for the shapes of losses and outputs.

    Args:
        rule: the rule, or ``Split(rule=..., make_head=...)``.
        parties: K, the number of parties in the trial.
        task: the task of the trial; by default, a classification with three classes, then a regression.

    Raises:
        ConfigError: the rule has one of the faults that the module describes; the message names the fault and its
            remedy.
    """
    split = rule if isinstance(rule, Split) else Split(rule=rule, embedding=5)
    for each in TASKS if task is None else (task,):
        for lead in ("a", "server"):
            with usual_torch():
                _check(_Trial.of(split, parties, each, lead))


@dataclass
class _Trial:
    """A rule with heads and a batch of random embeddings, in double precision."""

    rule: Rule
    plan: HeadPlan
    host: Host
    heads: Heads
    rows: Tensor
    h: Tensor
    observed: Tensor
    y: Tensor

    @classmethod
    def of(cls, split: Split, K: int, task: Task, lead: str) -> _Trial:
        blocks = tuple(Party(name=chr(ord("a") + k), labels=lead == "a" and k == 0) for k in range(K))
        server = () if lead == "a" else (Party(name=lead, columns=False, labels=True),)
        roster = Roster((*blocks, *server), lead)
        seat = PartyContext(me=lead, roster=roster, task=task)
        sets = torch.arange(1, 2**K).repeat(2)
        observed = (sets.unsqueeze(1) >> torch.arange(K)) & 1 == 1
        plan, seeds = split.plan(roster, task), Seeds(0)
        observed = observed[trained_rows(split.rule, plan, observed)]
        if len(observed) < 2:
            raise ConfigError(f"{split.can.title}: trains_on of the plan selects no row of any set of {K} parties")
        rows = torch.arange(len(observed))
        shape = split.topology(roster).width
        numbers = normal(seeds.number("h"), rows, torch.arange(K), torch.arange(math.prod(shape)))
        h = numbers.double().view(len(rows), K, *shape)
        y = normal(seeds.number("y"), rows).double()
        if task.kind == "classification":
            y = bits(seeds.number("y"), rows) % task.outputs
        with seeds.drawing("heads"):
            heads = split.heads(seat, lead).double()
        return cls(
            rule=split.rule, plan=plan, host=split.host(seat), heads=heads, rows=rows, observed=observed, y=y,
            h=torch.where(observed.view(*observed.shape, *[1] * len(shape)), h, 0.0),
        )  # fmt: skip

    @property
    def title(self) -> str:
        return self.rule.can.title

    def noise(self, rows: Tensor) -> dict[str, Tensor]:
        batch = Batch(rows, Seeds(0), ("train", 0, 0))
        return draw_noise(self.plan, self.host, [batch], rows.unsqueeze(0), self.observed.shape[1])[0]

    def losses(self, at: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return losses, counts, outputs, valid and h of the rows with the places ``at``."""
        h = self.h[at].requires_grad_()
        given = (self.host, self.heads, h, self.observed[at])
        each, counts = losses_of(self.rule, *given, self.y[at], self.noise(self.rows[at]))
        outputs, valid = outputs_of(self.rule, self.plan, *given)
        return each, counts, outputs, valid, h


def _check(trial: _Trial) -> None:
    rows, title = trial.rows, trial.title
    try:
        whole = trial.losses(rows)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{title}: the rule fails on a batch of {len(rows)} rows: {blamed(error)}") from error
    _check_randomness(trial, whole)
    if isinstance(trial.heads, ModuleHeads):
        return
    order = uniform(1, rows).argsort()
    for name, at in {"other rows are left out": rows[::2], "rows are in another order": order}.items():
        _compare(trial, whole, trial.losses(at), at, name)
    _check_gradients(trial, whole)
    _check_static(trial)


def _check_randomness(trial: _Trial, whole: tuple[Tensor, ...]) -> None:
    again = trial.losses(trial.rows)
    if not all(torch.equal(one, other) for one, other in zip(whole[:4], again[:4], strict=True)):
        raise ConfigError(f"{trial.title}: two calls with equal arguments give different losses or outputs: take "
                          "random numbers from noise, as the plan asks, and store nothing between calls")  # fmt: skip


def _compare(trial: _Trial, whole: tuple[Tensor, ...], part: tuple[Tensor, ...], at: Tensor, change: str) -> None:
    names = ("losses", "counts", "outputs", "valid")
    for name, one, other in zip(names, whole, part, strict=False):
        expected = one[at].double()
        scale = expected.detach().abs().nan_to_num().max().clamp(min=1.0)
        if other.shape != expected.shape or not torch.allclose(
            other.double(), expected, rtol=0, atol=TOLERANCE * float(scale), equal_nan=True
        ):
            raise ConfigError(f"{trial.title}: the {name} of a row change if {change}: compute each row from its own "
                              "embeddings, label and noise, and take no mean over rows")  # fmt: skip


def _check_gradients(trial: _Trial, whole: tuple[Tensor, ...]) -> None:
    each, counts, _, _, h = whole
    for n in range(0, len(each), -(-len(each) // SAMPLED)):
        (gradient,) = torch.autograd.grad(torch.where(counts[n], each[n], 0.0).sum(), h, retain_graph=True)
        others = torch.arange(len(each)) != n
        if gradient[others].abs().max() > TOLERANCE:
            raise ConfigError(f"{trial.title}: the loss of a row has a gradient for another row's embeddings: compute "
                              "each row from its own embeddings, label and noise")  # fmt: skip
        if not torch.isfinite(gradient).all():
            raise ConfigError(f"{trial.title}: the gradient of a row's loss is not a number for the parties "
                              f"{trial.observed[n].nonzero().flatten().tolist()}: replace values by torch.where before "
                              "a division or a logarithm, not after it")  # fmt: skip


class _Called(nn.Module):
    """The losses and outputs of a rule as a function of its heads' parameters."""

    def __init__(self, trial: _Trial) -> None:
        super().__init__()
        self.heads, self._trial = trial.heads, trial

    def forward(self, h: Tensor, observed: Tensor, y: Tensor, noise: Mapping[str, Tensor]) -> tuple[Any, Any]:
        rule, host = self._trial.rule, self._trial.host
        return rule.losses(host, self.heads, h, observed, y, noise), rule.outputs(host, self.heads, h, observed)


def _check_static(trial: _Trial) -> None:
    """Check that the rule can be mapped over a further axis of all tensors, and computes without data."""
    called, noise = _Called(trial), trial.noise(trial.rows)
    weights = {name: tensor.detach() for name, tensor in called.named_parameters()}
    given = (trial.h, trial.observed, trial.y, noise)

    def compute(weights: Any, given: Any) -> Any:
        return torch.func.functional_call(called, weights, given)

    def twice(tensor: Tensor) -> Tensor:
        return torch.stack([tensor, tensor])

    stacked = tree_map(twice, (weights, given))
    _try(trial, lambda: torch.func.vmap(compute, randomness="error")(*stacked))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = tree_map(mode.from_tensor, (weights, given))
        _try(trial, lambda: compute(*fake))


def _try(trial: _Trial, call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:
        raise ConfigError(f"{trial.title}: the rule needs the values of tensors, or draws random numbers of its own "
                          f"({blamed(error)}): use torch.where instead of if, of boolean indexing and of nonzero, "
                          "leave .item() out, and take random numbers from noise") from error  # fmt: skip
