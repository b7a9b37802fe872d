"""Check a rule of a split method for mistakes that training would not show.

The rule is tried on small random batches that contain every set of parties. Each check raises an error with one
sentence: the mistake, its place, and its remedy. The engine relies on these properties:

- The losses and outputs of a row, and their gradients, depend on the row alone: on the embeddings of its parties, its
  label and its random numbers.
- An absent party has no influence, and every party that the rule reads gets a gradient.
- No number of parties, order of parties, type of numbers or device is assumed, and no shape depends on data, so that
  many trainings can be computed side by side, and a training step on a GPU replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from anyparty.methods.split.rule import (
    HeadPlan,
    Host,
    Rule,
    answer_of,
    draw_noise,
    losses_of,
    outputs_of,
    trained_rows,
)
from anyparty.methods.split.split_method import Split
from anyparty.networks.heads import Heads, ModuleHeads

TOLERANCE = 1e-12  # relative to the largest number
ROWS = 16  # at least; a hidden layer of a head is unlikely to be 0 for all of them
MOST_PARTIES = 10
SAMPLED = 8  # rows whose gradient is computed
STEPS = 6  # training steps in which each party must get a gradient; a rule may leave out parties at random
TASKS = (Task(kind="classification", classes=("a", "b", "c")), Task(kind="regression"))
ALONE = "compute each row from its own embeddings, label and noise"


def check_rule(rule: Rule | Split, *, parties: Sequence[int] = (3, 1, 4), task: Task | None = None) -> None:
    """Check a rule, or the rule and heads of a split method, on small random batches.

    Heads made by a user's function may let rows depend on each other, as batch normalisation does. They are therefore
    not checked for independent rows and for static shapes.

    Args:
        rule: the rule, or ``Split(rule=..., make_head=...)``.
        parties: the numbers of parties K with which the rule is tried, each at most 10.
        task: the task of the trial; by default, a classification with three classes, then a regression.

    Raises:
        ConfigError: the rule fails a check; the message names the mistake and its remedy.

    """
    split = rule if isinstance(rule, Split) else Split(rule=rule, embedding=5)
    if not parties or not all(1 <= K <= MOST_PARTIES for K in parties):  # the trial has rows of every set of parties
        raise ConfigError(f"check_rule: expected numbers of parties from 1 to {MOST_PARTIES}, such as (3, 1, 4), "
                          f"got {parties!r}")  # fmt: skip
    for K in parties:
        for active in ("first", "last", "server"):
            for each in TASKS if task is None else (task,):
                with usual_torch():
                    trial = _trial(split, K, each, active, first=parties[0])
                    for check in CHECKS if not isinstance(trial.heads, ModuleHeads) else CHECKS_OF_MODULES:
                        check(trial)


@dataclass(frozen=True)
class Results:
    """The results of a rule for B rows: losses and counts [B, P], outputs [B, M, C], valid [B, M], and h [B, K, H]."""

    losses: Tensor
    counts: Tensor
    outputs: Tensor
    valid: Tensor
    h: Tensor


@dataclass(frozen=True)
class Trial:
    """A rule with heads and a batch of random embeddings, in double precision; h is zero where not observed."""

    rule: Rule
    plan: HeadPlan
    host: Host
    heads: Heads
    rows: Tensor
    h: Tensor
    observed: Tensor
    y: Tensor
    reads: tuple[int, ...]

    def noise(self, rows: Tensor, step: int = 0) -> dict[str, Tensor]:
        """Draw the random numbers of rows [B] in a training step."""
        batch = Batch(rows, Seeds(0), ("train", 0, step))
        return draw_noise(self.plan, self.host, [batch], rows.unsqueeze(0), self.observed.shape[1])[0]

    def compute(self, at: Tensor, step: int = 0) -> Results:
        """Compute the rule for the rows with the places ``at``, with the random numbers of a training step.

        Raises:
            ConfigError: the rule fails, or returns values of a wrong type or shape.
        """
        h, observed, y = self.h[at].requires_grad_(), self.observed[at], self.y[at]
        given, before = (self.host, self.heads, h, observed), [each._version for each in (h, observed, y)]  # noqa: SLF001
        try:
            each, counts = losses_of(self.rule, *given, y, self.noise(self.rows[at], step))
            outputs, valid = outputs_of(self.rule, self.plan, *given)
        except ConfigError:
            raise
        except Exception as error:
            raise self.error(f"the rule fails: {blamed(error)}", "assume no number and no order of parties") from error
        if [each._version for each in (h, observed, y)] != before:  # noqa: SLF001
            raise self.error("the rule changes h, observed or y in place", "compute a new tensor, as torch.where does")
        return Results(each, counts, outputs, valid, h)

    def error(self, mistake: str, remedy: str) -> ConfigError:
        """Return the error that names a mistake and its remedy."""
        B, K = self.observed.shape
        server = " and a server" if self.host.k < 0 else ""
        return ConfigError(f"{self.rule.can.title}: {mistake} ({B} rows of {K} parties{server}): {remedy}")


def _trial(split: Split, K: int, task: Task, active: str, first: int) -> Trial:
    """Make heads and a batch for K parties, of which the first, the last, or a server without columns is active."""
    names = [chr(ord("a") + k) for k in range(K)]
    lead = {"first": names[0], "last": names[-1], "server": "server"}[active]
    parties = [Party(name=name, labels=name == lead) for name in names]
    if active == "server":
        parties.append(Party(name=lead, columns=False, labels=True))
    roster = Roster(tuple(parties), lead)
    seat = PartyContext(me=lead, roster=roster, task=task)
    sets = torch.arange(1, 2**K).repeat(max(2, ROWS // 2**K))
    observed = (sets.unsqueeze(1) >> torch.arange(K)) & 1 == 1
    topology, plan, seeds = split.topology(roster), split.plan(roster, task), Seeds(0)
    observed = observed[trained_rows(split.rule, plan, topology.without_unread(observed))]
    if not len(observed):
        raise ConfigError(f"{split.can.title}: trains_on of the plan selects no row of any set of {K} parties, of "
                          f"{first} parties or more: return a mask of the rows to train on")  # fmt: skip
    rows, width = torch.arange(len(observed)), topology.width
    numbers = normal(seeds.number("h"), rows, torch.arange(K), torch.arange(math.prod(width)))
    h = numbers.double().view(len(rows), K, *width)
    y = normal(seeds.number("y"), rows).double()
    if task.kind == "classification":
        y = bits(seeds.number("y"), rows) % task.outputs
    with seeds.drawing("heads"):
        heads = split.heads(seat, lead).double()
    return Trial(
        rule=split.rule, plan=plan, host=split.host(seat), heads=heads, rows=rows, observed=observed, y=y,
        h=_masked(h, observed), reads=tuple(names.index(name) for name in topology.reads[lead]),
    )  # fmt: skip


def _masked(h: Tensor, observed: Tensor) -> Tensor:
    return torch.where(observed.view(*observed.shape, *[1] * (h.ndim - 2)), h, 0.0)


def _alike(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors have the same shape, and the same numbers up to rounding."""
    scale = float(one.detach().double().abs().nan_to_num().max().clamp(min=1.0)) if one.numel() else 1.0
    return one.shape == other.shape and torch.allclose(
        one.double(), other.double(), rtol=0, atol=TOLERANCE * scale, equal_nan=True
    )


# The checks


def check_random_numbers(trial: Trial) -> None:
    """Random numbers come from ``noise`` alone."""
    one, again = trial.compute(trial.rows), trial.compute(trial.rows)
    for name in ("losses", "counts", "outputs", "valid"):
        if not torch.equal(getattr(one, name).nan_to_num(), getattr(again, name).nan_to_num()):
            raise trial.error(
                f"two calls with equal arguments give different {name}",
                "take random numbers from noise, as the plan asks, and store nothing between calls",
            )


def check_independent_rows(trial: Trial) -> None:
    """A row's results do not depend on the other rows, on their order, or on their embeddings and labels."""
    whole, order = trial.compute(trial.rows), uniform(1, trial.rows).argsort()
    odd = trial.rows % 2 == 1
    changed = replace(
        trial,
        h=torch.where(odd.view(-1, *[1] * (trial.h.ndim - 1)), 3 * trial.h + 1, trial.h),
        y=torch.where(odd, trial.y.flip(0), trial.y),
    )
    changed = replace(changed, h=_masked(changed.h, trial.observed))
    for change, at, part in (
        ("other rows are left out", trial.rows[::2], trial.compute(trial.rows[::2])),
        ("the rows are in another order", order, trial.compute(order)),
        ("other rows change", trial.rows[~odd], _select(changed.compute(trial.rows), ~odd)),
    ):
        for name in ("losses", "counts", "outputs", "valid"):
            if not _alike(getattr(whole, name)[at], getattr(part, name)):
                raise trial.error(f"the {name} of a row change if {change}", f"{ALONE}, and take no mean over rows")


def _select(results: Results, mask: Tensor) -> Results:
    return Results(**{name: tensor[mask] for name, tensor in vars(results).items()})


def check_absent_parties(trial: Trial) -> None:
    """Embeddings of absent parties do not matter, whatever they are."""
    whole = trial.compute(trial.rows)
    cells = trial.observed.view(*trial.observed.shape, *[1] * (trial.h.ndim - 2))
    for value, mistake, remedy in (
        (100.0, "the embedding of an absent party changes the {}", "select embeddings by observed, with torch.where"),
        (torch.nan, "NaN in the embedding of an absent party reaches the {}",
         "select by observed with torch.where; a product with the mask keeps NaN"),
    ):  # fmt: skip
        other = replace(trial, h=torch.where(cells, trial.h, value)).compute(trial.rows)
        if not _alike(torch.where(whole.counts, whole.losses, 0.0), torch.where(whole.counts, other.losses, 0.0)):
            raise trial.error(mistake.format("losses"), remedy)
        valid = whole.valid.unsqueeze(2)
        if not _alike(torch.where(valid, whole.outputs, 0.0), torch.where(valid, other.outputs, 0.0)):
            raise trial.error(mistake.format("outputs"), remedy)


def check_gradients(trial: Trial) -> None:
    """A row's loss has finite gradients for its own embeddings alone, and every party that is read gets some."""
    reached = torch.zeros(trial.observed.shape[1], dtype=torch.bool)
    for step in range(STEPS):
        results = trial.compute(trial.rows, step)
        total = torch.where(results.counts, results.losses, 0.0).sum()
        (gradient,) = torch.autograd.grad(total, results.h, retain_graph=True, materialize_grads=True)
        reached |= gradient.flatten(2).ne(0).any(dim=2).any(dim=0)
        for n in range(0, len(trial.rows) if step == 0 else 0, max(1, len(trial.rows) // SAMPLED)):
            _check_row_gradient(trial, results, n)
    missed = [chr(ord("a") + k) for k in trial.reads if not reached[k]]
    if missed:
        raise trial.error(
            f"no loss has a gradient for the embeddings of {', '.join(missed)}, whose encoder would not be trained",
            "use h without detach, or leave the party out of the plan's reads",
        )


def _check_row_gradient(trial: Trial, results: Results, n: int) -> None:
    loss = torch.where(results.counts[n], results.losses[n], 0.0).sum()
    (gradient,) = torch.autograd.grad(loss, results.h, retain_graph=True, materialize_grads=True)
    if gradient[trial.rows != n].abs().sum() > TOLERANCE:
        raise trial.error("the loss of a row has a gradient for another row's embeddings", ALONE)
    if not torch.isfinite(gradient).all():
        there = [chr(ord("a") + k) for k in trial.observed[n].nonzero().flatten().tolist()]
        raise trial.error(
            f"the gradient of the loss of a row of {', '.join(there)} is not a number",
            "replace values by torch.where before a division or a logarithm, not after it",
        )


def check_rows_of_nobody(trial: Trial) -> None:
    """A row that no party has gets no answer, and answers use present parties alone."""
    observed = torch.cat([trial.observed, torch.zeros_like(trial.observed[:1])])
    h = torch.cat([trial.h, torch.zeros_like(trial.h[:1])])
    outputs, valid = outputs_of(trial.rule, trial.plan, trial.host, trial.heads, h, observed)
    key = torch.arange(len(observed))
    _, answer = answer_of(trial.rule, trial.host, outputs, valid, observed, key)
    if bool(answer.answered[-1]):
        raise trial.error(
            "a row that no party has gets an answer", "mark it in valid, as observed.any(dim=1, keepdim=True) does"
        )
    if bool((answer.took_part & ~observed).any()):
        raise trial.error("took_part of an answer names an absent party", "take it from given.observed")


def check_sets(trial: Trial) -> None:
    """The predictor that answers a set of parties is one that rows of this set train."""
    sets = trial.plan.sets
    for n in range(len(trial.rows)) if sets is not None else ():
        assert sets is not None
        place = int(sets.of_row(trial.observed[[n]]))
        if not 0 <= place < sets.count or not bool(sets.trained_by(trial.observed[[n]])[place]):
            raise trial.error(
                f"of_row gives a row predictor {place}, which trained_by does not mark for this row",
                "give both functions the same order of sets",
            )


def check_number_types(trial: Trial) -> None:
    """Losses and outputs have the type of the embeddings."""
    for dtype in (torch.float64, torch.float32):
        heads = trial.heads.to(dtype)
        each = trial.y.to(dtype) if trial.y.is_floating_point() else trial.y
        results = replace(trial, heads=heads, h=trial.h.to(dtype), y=each).compute(trial.rows)
        for name in ("losses", "outputs"):
            if getattr(results, name).dtype != dtype:
                raise trial.error(
                    f"the {name} of embeddings of type {dtype} have the type {getattr(results, name).dtype}",
                    "make tensors with the dtype of h, as h.new_zeros does",
                )
    trial.heads.to(torch.float64)


def check_devices(trial: Trial) -> None:
    """All tensors are on the device of the embeddings; PyTorch's device "meta" stands for a GPU."""

    def there(tensor: Tensor) -> Tensor:
        return tensor.to("meta")

    called, noise = _Called(trial), trial.noise(trial.rows)
    weights = {name: there(tensor.detach()) for name, tensor in called.named_parameters()}
    host = replace(trial.host, owners=there(trial.host.owners), everyone=there(trial.host.everyone))
    called.host = host
    try:
        made = torch.func.functional_call(
            called, weights, tree_map(there, (trial.h, trial.observed, trial.y, dict(noise)))
        )
    except Exception as error:
        raise trial.error(
            f"the rule cannot compute on another device ({blamed(error)})",
            "make tensors on h.device, and read no value of a tensor, as item() and bool() do",
        ) from error
    if any(tensor.device.type != "meta" for pair in made for tensor in pair):
        raise trial.error("losses or outputs are not on the device of h", "make tensors on h.device")


class _Called(nn.Module):
    """The losses and outputs of a rule as a function of its heads' parameters."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self.heads, self.rule, self.host = trial.heads, trial.rule, trial.host

    def forward(self, h: Tensor, observed: Tensor, y: Tensor, noise: Mapping[str, Tensor]) -> tuple[Any, Any]:
        losses = self.rule.losses(self.host, self.heads, h, observed, y, noise)
        return losses, self.rule.outputs(self.host, self.heads, h, observed)


def check_static_shapes(trial: Trial) -> None:
    """The rule can be mapped over a further axis of all tensors, and computes without their values."""
    called, noise = _Called(trial), trial.noise(trial.rows)
    weights = {name: tensor.detach() for name, tensor in called.named_parameters()}
    given = (trial.h, trial.observed, trial.y, noise)

    def compute(weights: Any, given: Any) -> Any:
        return torch.func.functional_call(called, weights, given)

    def fake() -> None:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            compute(*tree_map(mode.from_tensor, (weights, given)))

    stacked = tree_map(lambda tensor: torch.stack([tensor, tensor]), (weights, given))
    for call in (lambda: torch.func.vmap(compute, randomness="error")(*stacked), fake):
        try:
            call()
        except Exception as error:
            raise trial.error(
                f"the rule needs the values of tensors, or draws random numbers of its own ({blamed(error)})",
                "use torch.where instead of if, of boolean indexing and of nonzero, leave .item() out, and take random "
                "numbers from noise",
            ) from error


Check = Callable[[Trial], None]
CHECKS_OF_MODULES: tuple[Check, ...] = (check_random_numbers, check_absent_parties, check_rows_of_nobody, check_sets)
CHECKS: tuple[Check, ...] = (
    check_random_numbers, check_number_types, check_independent_rows, check_gradients, check_static_shapes,
    check_devices, check_absent_parties, check_rows_of_nobody, check_sets,
)  # fmt: skip
