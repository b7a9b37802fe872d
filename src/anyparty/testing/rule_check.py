"""Check a split method for mistakes that training would not show: its rule, and heads made by a user's function.

The rule is tried on small random batches that contain every set of parties. Each check raises an error with one
sentence: the place, the mistake and the remedy. The engine relies on these properties:

- The losses and outputs of a row, and their gradients, depend on the row alone: on the embeddings of its parties, its
  label and its random numbers.
- An absent party has no influence, whatever its embedding is (decision 29), and every party that the rule reads gets a
  gradient.
- No number of parties, order of parties, type of numbers or device is assumed, and no shape depends on data, so that
  many trainings can be computed side by side, and a training step on a GPU replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from anyparty.core.draws import bits, normal, uniform
from anyparty.core.seeds import Seeds, usual_torch
from anyparty.core.types import Party, Roster, Task
from anyparty.errors import ConfigError, blamed
from anyparty.methods.method import Batch, Method, PartyContext
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
DTYPE = "make tensors with the dtype of h, as h.new_zeros does"
SELECT = "select embeddings by observed, as torch.where(observed.unsqueeze(2), h, 0.0) does"


def check_method(
    method: Rule | Method, *, parties: Sequence[int] = (3, 1, 2, 4), task: Task | None = None
) -> None:  # fmt: skip
    """Check a split method on small random batches: its rule, and heads of its own.

    Heads made by a user's function may let rows depend on each other in training, as batch normalisation does, and may
    have shapes that depend on data. They are checked as they predict.

    Args:
        method: a rule, or a method with a rule, such as ``Split(rule=..., make_head=...)`` or ``module_method(...)``.
        parties: the numbers of parties K with which the method is tried, each at most 10. Numbers that the method
            refuses with a ``ConfigError``, or with which it trains on no row, are left out.
        task: the task of the trial; by default, a classification with three classes, then a regression.

    Raises:
        ConfigError: the method fails a check, accepts none of the numbers of parties, or has no rule.

    """
    split = split_of(method)
    if not parties or not all(1 <= K <= MOST_PARTIES for K in parties):  # the trial has rows of every set of parties
        raise ConfigError(f"check_method: expected numbers of parties from 1 to {MOST_PARTIES}, such as (3, 1, 4), "
                          f"got {parties!r}")  # fmt: skip
    refused: list[ConfigError] = []
    cases = [(K, active, each) for K in parties for active in ("first", "last", "server")
             for each in (TASKS if task is None else (task,))]  # fmt: skip
    for K, active, each in cases:
        with usual_torch():
            trial = _trial(split, K, each, active)
            if isinstance(trial, ConfigError):
                refused.append(trial)
                continue
            for check in CHECKS_OF_MODULES if isinstance(trial.heads, ModuleHeads) else CHECKS:
                check(trial)
    if len(refused) == len(cases):
        raise refused[0]


def split_of(method: object) -> Split:
    """Return the split method that holds the rule of a method, or that is made of a rule.

    Raises:
        ConfigError: the method has no rule, or is a class.
    """
    if isinstance(method, Rule | type):
        return Split(rule=method, embedding=5)  # type: ignore[arg-type] # Split refuses a class with a sentence
    inner = getattr(method, "method", method)  # pretraining holds the method that it prepares
    split = getattr(inner, "split", inner)  # a schedule holds the split method that it runs
    if not isinstance(split, Split):
        raise ConfigError(f"check_method: expected a rule or a split method, such as Split(rule=...), got {method!r}; "
                          "a method of coroutines has no rule that could be tried alone")  # fmt: skip
    return split


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
    order: tuple[int, ...] | None = None  # the parties' places before they were exchanged

    def noise(self, rows: Tensor, step: int = 0) -> dict[str, Tensor]:
        """Draw the random numbers of rows [B] in a training step."""
        batch = Batch(rows, Seeds(0), ("train", 0, step))
        drawn = draw_noise(self.plan, self.host, [batch], rows.unsqueeze(0), self.observed.shape[1])[0]
        if self.order is None:
            return drawn
        return {name: each[..., list(self.order)] if "parties" in self.plan.noise[name] else each
                for name, each in drawn.items()}  # fmt: skip

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
            remedy = DTYPE if "dtype" in str(error) else "assume no number and no order of parties"
            raise self.error("", f"the rule fails: {blamed(error)}", remedy) from error
        if [each._version for each in (h, observed, y)] != before:  # noqa: SLF001
            raise self.error("", "the rule changes h, observed or y in place", "compute a new tensor, as torch.where "
                             "does")  # fmt: skip
        return Results(each, counts, outputs, valid, h)

    def error(self, place: str, mistake: str, remedy: str) -> ConfigError:
        """Return the error that names a mistake, its place and its remedy.

        ``place`` is "losses", "outputs" or "answer", the function with the mistake; "" if it may be any of them.
        """
        B, K = self.observed.shape
        server, many = " and a server" if self.host.k < 0 else "", "y" if K == 1 else "ies"
        where = self.rule.can.title + (place and f", {place}") + self._file(place)
        return ConfigError(f"{where}: {mistake} ({B} rows of {K} part{many}{server}): {remedy}")

    def _file(self, place: str) -> str:
        """Return the file and line of the user's function with the mistake; "" if it is built in."""
        holders: list[tuple[object, str]] = [(type(self.rule), place)]
        if isinstance(self.heads, ModuleHeads):
            modules = [getattr(each, "module", each) for each in self.heads.each]  # ``module_method`` wraps a module
            holders += [(type(module), "forward") for module in modules[:1]]
        for holder, name in holders:
            code = getattr(getattr(holder, name, None), "__code__", None)
            if code is not None and not str(getattr(holder, "__module__", "")).startswith(("anyparty.", "torch.")):
                return f" ({Path(code.co_filename).name}, line {code.co_firstlineno})"
        return ""


def _trial(split: Split, K: int, task: Task, active: str) -> Trial | ConfigError:
    """Make heads and a batch for K parties, of which the first, the last, or a server without columns is active.

    The result is an error if the method refuses these parties, or trains on no row of them.
    """
    names = [chr(ord("a") + k) for k in range(K)]
    lead = {"first": names[0], "last": names[-1], "server": "server"}[active]
    parties = [Party(name=name, labels=name == lead) for name in names]
    if active == "server":
        parties.append(Party(name=lead, columns=False, labels=True))
    roster = Roster(tuple(parties), lead)
    seat = PartyContext(me=lead, roster=roster, task=task)
    sets = torch.arange(1, 2**K).repeat(max(2, ROWS // 2**K))
    observed = (sets.unsqueeze(1) >> torch.arange(K)) & 1 == 1
    many = f"{K} part{'y' if K == 1 else 'ies'}"
    try:
        topology, plan = split.topology(roster), split.plan(roster, task)
    except ConfigError as error:
        return error
    except Exception as error:
        raise ConfigError(f"{split.can.title}, plan: fails with {many}: {blamed(error)}: take the number of parties "
                          "from roster.K") from error  # fmt: skip
    observed = observed[trained_rows(split.rule, plan, topology.without_unread(observed))]
    if not len(observed):
        return ConfigError(f"{split.can.title}: trains_on of the plan selects no row of any set of {many}: return a "
                           "mask of the rows to train on")  # fmt: skip
    seeds, width = Seeds(0), topology.width
    rows = torch.arange(len(observed))
    numbers = normal(seeds.number("h"), rows, torch.arange(K), torch.arange(math.prod(width)))
    h = numbers.double().view(len(rows), K, *width)
    y = normal(seeds.number("y"), rows).double()
    if task.kind == "classification":
        y = bits(seeds.number("y"), rows) % task.outputs
    with seeds.drawing("heads"), torch.no_grad():
        heads = split.heads(seat, lead).double().eval()
        for weights in heads.parameters():  # a layer may begin with weights of zero, which pass on no gradient
            weights.add_(0.1 * torch.randn_like(weights))
    return Trial(
        rule=split.rule, plan=plan, host=split.host(seat), heads=heads, rows=rows, observed=observed, y=y,
        h=_masked(h, observed), reads=tuple(names.index(name) for name in topology.reads[lead]),
    )  # fmt: skip


def _place(result: str) -> str:
    return "losses" if result in {"losses", "counts"} else "outputs"


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
                _place(name),
                f"two calls with equal arguments give different {name}",
                "take random numbers from noise, as the plan asks, and store nothing between calls",
            )


def check_labels(trial: Trial) -> None:
    """A row's losses do not depend on the labels of other rows: the label of a row without a label is 0."""
    odd, whole = trial.rows % 2 == 1, trial.compute(trial.rows)
    moved = replace(trial, h=torch.where(odd.view(-1, *[1] * (trial.h.ndim - 1)), 2 * trial.h, trial.h))
    if not _alike(whole.losses[~odd], moved.compute(trial.rows).losses[~odd]):
        return  # rows depend on each other in another way, too, which ``check_independent_rows`` names
    other = (trial.y + 1) % trial.host.task.outputs if trial.host.task.kind == "classification" else trial.y + 1
    changed = replace(trial, y=torch.where(odd, other, trial.y)).compute(trial.rows)
    for name in ("losses", "counts"):
        if not _alike(getattr(whole, name)[~odd], getattr(changed, name)[~odd]):
            raise trial.error("losses", f"the {name} of a row change with the labels of other rows, also of rows "
                              "without a label, whose y is 0", "compute a row's loss from its own label; train(balance"
                              "=True) weighs classes by their frequency")  # fmt: skip


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
                raise trial.error(_place(name), f"the {name} of a row change if {change}",
                                  f"{ALONE}, and take no mean over rows")  # fmt: skip


def _select(results: Results, mask: Tensor) -> Results:
    return Results(**{name: tensor[mask] for name, tensor in vars(results).items()})


def check_absent_parties(trial: Trial) -> None:
    """Embeddings of absent parties do not matter, whatever they are.

    Heads of a user's function get zeros from some rules, and may multiply them; NaN is not tried with such heads.
    """
    whole = trial.compute(trial.rows)
    cells = trial.observed.view(*trial.observed.shape, *[1] * (trial.h.ndim - 2))
    for value, mistake, remedy in (
        (100.0, "the embedding of an absent party changes the {}", SELECT),
        (torch.nan, "NaN in the embedding of an absent party reaches the {}",
         f"{SELECT}; a product with the mask keeps NaN"),
    )[: 1 if isinstance(trial.heads, ModuleHeads) else 2]:  # fmt: skip
        other = replace(trial, h=torch.where(cells, trial.h, value)).compute(trial.rows)
        if not _alike(torch.where(whole.counts, whole.losses, 0.0), torch.where(whole.counts, other.losses, 0.0)):
            raise trial.error("losses", mistake.format("losses"), remedy)
        valid = whole.valid.unsqueeze(2)
        if not _alike(torch.where(valid, whole.outputs, 0.0), torch.where(valid, other.outputs, 0.0)):
            raise trial.error("outputs", mistake.format("outputs"), remedy)


def check_party_order(trial: Trial) -> None:
    """If parties change places, the results of a head that reads a single embedding's width stay the same.

    Other heads may read the parties' embeddings side by side, or belong to parties; they are left out.
    """
    plan, K = trial.plan, trial.observed.shape[1]
    if plan.inputs != trial.h.shape[-1] or plan.owners is not None or plan.reads is not None or plan.sets is not None:
        return
    order = (*range(1, K), 0)
    places, k = list(order), trial.host.k
    moved = replace(
        trial, order=order, h=trial.h[:, places], observed=trial.observed[:, places],
        host=replace(trial.host, k=order.index(k) if k >= 0 else k),
    )  # fmt: skip
    one, other = trial.compute(trial.rows), moved.compute(trial.rows)
    for name in ("losses", "outputs"):
        if not _alike(getattr(one, name), getattr(other, name)):
            raise trial.error(_place(name), f"the {name} change if the parties change places",
                              "find the active party by host.k, not as the first one")  # fmt: skip


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
            "losses",
            f"no loss has a gradient for the embeddings of {', '.join(missed)}, whose encoder would not be trained",
            "use h without detach, or leave the party out of the plan's reads",
        )


def _check_row_gradient(trial: Trial, results: Results, n: int) -> None:
    loss = torch.where(results.counts[n], results.losses[n], 0.0).sum()
    (gradient,) = torch.autograd.grad(loss, results.h, retain_graph=True, materialize_grads=True)
    if gradient[trial.rows != n].abs().sum() > TOLERANCE:
        raise trial.error("losses", "the loss of a row has a gradient for another row's embeddings", ALONE)
    if not torch.isfinite(gradient).all():
        there = [chr(ord("a") + k) for k in trial.observed[n].nonzero().flatten().tolist()]
        raise trial.error(
            "losses",
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
            "outputs",
            "a row that no party has gets an answer",
            "mark it in valid, as observed.any(dim=1, keepdim=True) does",
        )
    if bool((answer.took_part & ~observed).any()):
        raise trial.error("answer", "took_part of an answer names an absent party", "take it from given.observed")


def check_sets(trial: Trial) -> None:
    """The predictor that answers a set of parties is one that rows of this set train."""
    sets = trial.plan.sets
    for n in range(len(trial.rows)) if sets is not None else ():
        assert sets is not None
        place = int(sets.of_row(trial.observed[[n]]))
        if not 0 <= place < sets.count or not bool(sets.trained_by(trial.observed[[n]])[place]):
            raise trial.error(
                "plan",
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
                    _place(name), f"the {name} of embeddings of type {dtype} have the type "
                    f"{getattr(results, name).dtype}", DTYPE,
                )  # fmt: skip
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
            "",
            f"the rule cannot compute on another device ({blamed(error)})",
            "make tensors on h.device, and read no value of a tensor, as item() and bool() do",
        ) from error
    if any(tensor.device.type != "meta" for pair in made for tensor in pair):
        raise trial.error("", "losses or outputs are not on the device of h", "make tensors on h.device")


def check_modules_on_devices(trial: Trial) -> None:
    """A user's heads make tensors on the device of their input; PyTorch's device "meta" stands for a GPU."""
    assert isinstance(trial.heads, ModuleHeads)
    for module in trial.heads.each:
        weights = {name: tensor.detach().to("meta") for name, tensor in chain(
            module.named_parameters(), module.named_buffers())}  # fmt: skip
        try:
            made = torch.func.functional_call(module, weights, trial.h.new_zeros(2, trial.heads.inputs, device="meta"))
        except Exception as error:
            if "device" in str(error) and "meta" not in str(error).partition("device")[0]:
                raise trial.error("make_head", f"a head cannot compute on another device ({blamed(error)})",
                                  "make tensors on the device of the input") from error  # fmt: skip
            continue  # heads of a user may read values, which the device "meta" does not have
        if made.device.type != "meta":
            raise trial.error("make_head", "the output of a head is not on the device of its input",
                              "make tensors on the device of the input")  # fmt: skip


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
                "",
                f"the rule needs the values of tensors, or draws random numbers of its own ({blamed(error)})",
                "use torch.where instead of if, of boolean indexing and of nonzero, leave .item() out, and take random "
                "numbers from noise",
            ) from error


Check = Callable[[Trial], None]
CHECKS_OF_MODULES: tuple[Check, ...] = (
    check_random_numbers, check_number_types, check_labels, check_independent_rows, check_gradients,
    check_modules_on_devices, check_absent_parties, check_party_order, check_rows_of_nobody, check_sets,
)  # fmt: skip
CHECKS: tuple[Check, ...] = (
    check_random_numbers, check_number_types, check_labels, check_independent_rows, check_gradients,
    check_static_shapes, check_devices, check_absent_parties, check_party_order, check_rows_of_nobody, check_sets,
)  # fmt: skip
