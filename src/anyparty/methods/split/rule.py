"""The rule of a split method (its heads, losses and answer), the rule's inputs and outputs, and the engine's part.

A rule computes with tensors of static shape. It never sees who computed an embedding, which labels a host knows, or
which rows are late: the engine weighs the rule's losses (``weighted_loss``). The loss of a row therefore does not
depend on the other rows of the batch.

Notation  B rows of the batch, B_k those that party k holds, K parties with columns, H width of an embedding,
          M heads at a host, P predictors of a loss, C outputs.
Symbols   h[n, k] = f_k(x_k^n)   embeddings at a host, zero where not observed   [B, K, H]
                                 ([B, K, encoders, H] for a rule with several encoders per party)
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from itertools import chain
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from anyparty.core.draws import uniform
from anyparty.core.types import SEVERAL_HOSTS, Capabilities, MessageSpec, Roster, Task
from anyparty.errors import ConfigError, some
from anyparty.methods.method import Batch
from anyparty.networks.heads import Heads, PartySets, TrainedParties
from anyparty.networks.objective import Loss, answers, losses

SOME = 1e-6  # minimum divisor of a mean over rows, so that a mean over no rows is 0
AXES = ("rows", "heads", "parties")
Noise = Mapping[str, Tensor]


def embedding(to: Literal["host", "active"], holds: str) -> MessageSpec:
    """Return the specification of the message with a party's embeddings, for split methods and FALSE-VFL."""
    who = "the host" if to == "host" else "the active party"
    learns = (f"{who} sees an embedding of every row it trains or predicts on: no raw feature, but everything that "
              "the embedding retains of it")  # fmt: skip
    return MessageSpec(tag="embedding", frm="block", to=to, holds=holds, learns=learns)


EMBEDDING = embedding("host", "h_k = f_k(x_k) for those rows of the batch that party k has, [B_k, H]")
GRADIENT = MessageSpec(
    tag="gradient",
    frm="host",
    to="block",
    holds="the derivative of the loss by h_k, [B_k, H]",
    learns="with two classes, the labels of party k's training rows: in our measurements, one direction of the "
    "gradients separated the two classes in the first epoch, and the party needed no known label",
)
OUTPUTS = MessageSpec(
    tag="outputs",
    frm="host",
    to="active",
    holds="the predictions of the sender's heads for the requested rows, [B, M, C], and the parties whose embeddings "
    "these heads used, [K]; no parties if training never reached the heads",
    learns="the sender's predictions, and which parties answered the sender in time",
    when=SEVERAL_HOSTS,
)
MESSAGES = (EMBEDDING, GRADIENT, OUTPUTS)


def any_party(observed: Tensor) -> Tensor:
    """Return a mask [N] of the rows that at least one party has: [N, K] -> [N]."""
    return observed.any(dim=1)


def all_parties(observed: Tensor) -> Tensor:
    """Return a mask [N] of the rows that all parties have: [N, K] -> [N]."""
    return observed.all(dim=1)


@dataclass(frozen=True, kw_only=True)
class HeadPlan:
    """The needs of a rule: its heads, the parties that they read, the training rows, and the random numbers.

    Attributes:
        inputs: the width of a head's input.
        heads: the number of heads, if heads belong to no party. Otherwise each owner has one head.
        owners: the parties k that have a head of their own; ``None`` if heads belong to no party.
        reads: the parties k whose embeddings the heads read; ``None`` for all parties, "owner" if each head reads only
            the embedding of its owner.
        encoders: the number of encoders of each party.
        hidden: the widths of a head's hidden layers, if the settings do not give any.
        trains_on: a function from a mask of the parties that have each row to a mask of the rows to train on:
            [N, K] -> [N] bool.
        sets: the sets of parties with a predictor of their own; ``None`` without such sets. A set's predictor gives no
            answer before a row has trained it.
        divisor: the number by which a predictor's summed loss is divided. "rows": the rows that the rule trains on and
            whose label the host knows. "predictor": those of them that count for the predictor. "batch": all rows of
            the batch, so that the losses of several hosts add up to the loss that a single host would have.
        noise: the random numbers that the loss needs, uniform in [0, 1): a name, and the names of the axes, out of
            "rows" (which comes first), "heads" and "parties". {"order": ("rows", "heads", "parties")} is a tensor
            [B, M, K]. A row has equal numbers in any batch and at every host.

    """

    inputs: int
    heads: int = 1
    owners: tuple[int, ...] | None = None
    reads: tuple[int, ...] | Literal["owner"] | None = None
    encoders: int = 1
    hidden: tuple[int, ...] = ()
    trains_on: Callable[[Tensor], Tensor] = any_party
    sets: PartySets | None = None
    divisor: Literal["rows", "predictor", "batch"] = "rows"
    noise: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, axes in self.noise.items():
            if not set(axes) <= set(AXES) or "rows" in axes[1:]:
                raise ConfigError(f"noise {name!r}: expected a tuple of axes out of {', '.join(AXES)}, with 'rows' as "
                                  f"the first if it is one of them, got {axes!r}")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Host:
    """The host of the heads that a rule uses, without its networks.

    Attributes:
        owners: [M] int64, the party k that each head belongs to; empty if heads belong to no party.
        everyone: the owners of the heads at all hosts together, in ascending order.
        task: the prediction task.
        k: the host's index among the K parties; -1 if the host holds no columns.
        loss_function: a user's loss; ``None`` for the cross-entropy or the squared error.

    """

    owners: Tensor
    everyone: Tensor
    task: Task
    k: int
    loss_function: Loss | None = None

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each output: outputs [..., C], labels y [...] -> [...] (see ``objective.losses``)."""
        return losses(self.task, outputs, y, self.loss_function)


@dataclass(frozen=True, kw_only=True)
class RowWeights:
    """The part of each row in a batch's loss, at one host.

    Attributes:
        weight: [B] floating-point, the factor of the row's losses; 0 for rows that teach nothing, such as rows whose
            label the host does not know.
        counted: [B] bool, whether the row counts in the divisors "rows" and "predictor".
        total: the divisor "batch".

    """

    weight: Tensor
    counted: Tensor
    total: int

    @classmethod
    def of_mask(cls, use: Tensor, total: int, dtype: torch.dtype = torch.float32) -> RowWeights:
        """Return weights 1 for the rows of a mask [B], and 0 for all other rows."""
        return cls(weight=use.to(dtype), counted=use, total=total)


@dataclass(frozen=True, kw_only=True)
class HeadOutputs:
    """The outputs of all hosts' heads, which a rule combines at the active party.

    Attributes:
        task: the prediction task.
        answers: [B, M, C], probabilities or numbers.
        valid: [B, M] bool, whether the head answers the row.
        owners: [M] int64, as in ``Host``.
        observed: [B, K] bool, the blocks that the valid answers use.
        key: [B] int64, a number that identifies each row, for random choices that do not depend on the row's place in a
            batch.
        k: the active party's index among the K parties; -1 if it holds no columns.

    """

    task: Task
    answers: Tensor
    valid: Tensor
    owners: Tensor
    observed: Tensor
    key: Tensor
    k: int

    def by_party(self) -> Tensor:
        """Return each party's own answer [B, K, C], with NaN for rows without an answer of the party."""
        B, _, C = self.answers.shape
        whole = self.answers.new_full((B, self.observed.shape[1], C), torch.nan)
        whole[:, self.owners] = torch.where(self.valid.unsqueeze(2), self.answers, torch.nan)
        return whole


@dataclass(frozen=True, kw_only=True)
class RuleAnswer:
    """One answer per row.

    Attributes:
        scores: [B, C], the answers.
        answered: [B] bool, whether the row has an answer.
        took_part: [B, K] bool, the parties whose blocks the answer uses.
        by_party: [B, K, C], each party's own answer, NaN for rows without one; ``None`` if parties have no own answers.
        confidence: [B, C], the scores that decide whether the answer may become a pseudo-label, from every party that
            has the row; ``None`` if these are ``scores``.
        reason: why a row has no answer, if at least one party has the row.

    """

    scores: Tensor
    answered: Tensor
    took_part: Tensor
    by_party: Tensor | None = None
    confidence: Tensor | None = None
    reason: str = ""


class Rule(ABC):
    """The definition of a split method's heads, losses and answers.

    A rule is a set of fixed parameters. A subclass must define ``losses`` and ``outputs``. The defaults of ``can``,
    ``plan`` and ``answer`` describe one head that reads the embeddings of all present parties, and that needs no
    particular party.

    ``losses`` and ``outputs`` compute with tensors alone: without ``item``, ``nonzero``, boolean indexing, ``bool()``
    of a tensor, random generators, or a shape that depends on data (see ``anyparty.testing.check_method``).

    If a rule limits the number of parties by ``can.most_parties``, ``without_limit`` is the name of a method without
    such a limit, for error messages.
    """

    without_limit: ClassVar[str] = "LASER-VFL"

    @property
    def can(self) -> Capabilities:
        """The capabilities of the method, and its messages: by default embeddings, gradients and hosts' outputs."""
        return Capabilities(
            title=type(self).__name__,
            paper="user-defined",
            trains_on="labelled rows that at least one party has",
            predicts_for="any row",
            needs="any",
            messages=MESSAGES,
        )

    def plan(self, roster: Roster, task: Task | None, width: int) -> HeadPlan:
        """Return the heads that the rule needs for these parties; ``width`` is H, the width of an embedding.

        ``task`` is ``None`` at a party without labels; only the hidden widths of heads may depend on it.
        """
        return HeadPlan(inputs=width)

    @abstractmethod
    def losses(
        self, host: Host, heads: Heads, h: Tensor, observed: Tensor, y: Tensor, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of each row and predictor [B, P], and a mask [B, P] of the rows that count for a predictor.

        The engine divides each predictor's summed loss by the plan's ``divisor``, and adds up the predictors. Rows that
        do not count for a predictor, and rows of weight 0, teach nothing. A row's losses must not depend on other rows.

        Args:
            host: the host's heads, task and loss: ``host.loss(outputs, y)``.
            heads: the networks: ``heads(u)`` maps inputs [B, M, inputs] to outputs [B, M, C].
            h: [B, K, H] embeddings. The engine puts zeros where not observed, but a rule selects embeddings by
                ``observed``, because no check could tell a rule that means these zeros from one without the mask.
            observed: [B, K] bool, the parties that have each row.
            y: [B] labels.
            noise: the random numbers that the plan asks for, by name.

        """

    @abstractmethod
    def outputs(self, host: Host, heads: Heads, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the heads' outputs [B, M, C], and a mask [B, M] of the valid outputs."""

    def answer(self, given: HeadOutputs) -> RuleAnswer:
        """Combine the answers of all hosts' heads into one answer per row."""
        return joint(given)


MEMBERS = ("can", "plan", "losses", "outputs", "answer")


def all_blocks(roster: Roster) -> tuple[int, ...]:
    """Return the indices of all K parties."""
    return tuple(range(roster.K))


def every_row(each: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses [B] of a rule's only predictor, for which every row counts, as [B, 1] with their mask."""
    each = each.unsqueeze(1)
    return each, torch.ones_like(each, dtype=torch.bool)


def mean_over(h: Tensor, observed: Tensor) -> Tensor:
    """Return the mean embedding over the parties that have a row: [B, K, H], [B, K] -> [B, H]; 0 without parties."""
    return torch.where(observed.unsqueeze(2), h, 0.0).sum(dim=1) / observed.sum(dim=1, keepdim=True).clamp(min=1)


def joint(given: HeadOutputs, reason: str = "") -> RuleAnswer:
    """Return the answer of a rule with one predictor for all present parties."""
    return RuleAnswer(scores=given.answers[:, 0], answered=given.valid[:, 0], took_part=given.observed, reason=reason)


# The engine's part: noise, weights and divisors


def draw_noise(
    plan: HeadPlan, host: Host, batches: Sequence[Batch], rows: Tensor, K: int
) -> list[dict[str, Tensor]]:  # fmt: skip
    """Draw the random numbers that a plan asks for, for each of S batches of equal size.

    The numbers are float32 tensors with the plan's axes, by name. A head has equal numbers at every host.

    Args:
        plan: the rule's plan.
        host: the host of the heads.
        batches: S batches.
        rows: [S, B] int64, the indices of their rows among the aligned rows.
        K: the number of parties with columns.

    """
    heads = torch.searchsorted(host.everyone, host.owners) if plan.owners is not None else torch.arange(plan.heads)
    axes = {"rows": rows, "heads": heads.to(rows.device), "parties": torch.arange(K, device=rows.device)}
    drawn = {}
    for name, wanted in plan.noise.items():
        keys = torch.tensor([batch.key(name) for batch in batches], device=rows.device)
        drawn[name] = uniform(keys, *(axes[axis] for axis in wanted)).unbind(0)
    return [{name: each[n] for name, each in drawn.items()} for n in range(len(batches))]


def harmless(
    groups: Sequence[RowWeights], h: Tensor, observed: Tensor, y: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return h, observed and y with y = 0 in rows of weight 0; rows that do not count get h = 0 and all parties.

    The label of a row without a label is -1 or NaN, and its loss could be NaN; so could be the gradient of a loss that
    is finite.
    """
    weighted = torch.stack([group.weight > 0 for group in groups]).any(dim=0)
    if bool(weighted.all()):
        return h, observed, y
    kept = weighted | torch.stack([group.counted for group in groups]).any(dim=0)
    h = torch.where(kept.view(-1, *[1] * (h.ndim - 1)), h, 0.0)
    return h, observed | ~kept.unsqueeze(1), torch.where(weighted, y, torch.zeros_like(y))


def weighted_loss(plan: HeadPlan, each: Tensor, counts: Tensor, rows: RowWeights) -> Tensor:
    """Return the loss of a batch, a scalar: each predictor's weighted sum over rows, divided by the plan's divisor.

    Shapes: each [B, P] and counts [B, P] are results of ``Rule.losses``.
    """
    used = counts & (rows.weight > 0).unsqueeze(1)
    total = (torch.where(used, each, 0.0) * rows.weight.unsqueeze(1)).sum(dim=0)  # [P]
    if plan.divisor == "batch":
        return total.sum() / rows.total
    if plan.divisor == "rows":
        return total.sum() / rows.counted.sum().clamp(min=SOME)
    return (total / (counts & rows.counted.unsqueeze(1)).sum(dim=0).clamp(min=SOME)).sum()


def batch_loss(
    rule: Rule, plan: HeadPlan, host: Host, heads: Heads, batch: Batch, h: Tensor, observed: Tensor, y: Tensor,
    groups: Sequence[tuple[float, RowWeights]],
) -> Tensor:  # fmt: skip
    """Return the loss of a batch at a host, a scalar: the sum over groups of rows of a factor times the group's loss.

    ``h`` [B, K, H], ``observed`` [B, K] and ``y`` [B] are those of all rows of the batch; y is arbitrary for rows
    without a weight.

    Raises:
        ConfigError: the rule returns values of a wrong type or shape, or losses without a gradient.
    """
    h, observed, y = harmless([weights for _, weights in groups], h, observed, y)
    noise = batch.noise
    if noise is None:
        noise = draw_noise(plan, host, [batch], batch.rows.to(h.device).unsqueeze(0), observed.shape[1])[0]
    each, counts = losses_of(rule, host, heads, h, observed, y, noise)
    if len(groups) == 1 and groups[0][0] == 1.0:
        return weighted_loss(plan, each, counts, groups[0][1])
    return torch.stack([factor * weighted_loss(plan, each, counts, weights) for factor, weights in groups]).sum()


# Computations of a rule, with checks of the results, because a user may have written the rule


def trained_rows(rule: Rule, plan: HeadPlan, observed: Tensor) -> Tensor:
    """Return a mask [N] of the rows to train on; ``observed`` [N, K] marks the parties that have each row.

    Raises:
        ConfigError: the rule's function ``trains_on`` returns a value of a wrong type or shape.
    """
    use: object = plan.trains_on(observed)
    if not _is_tensor(use, observed.shape[:1], torch.bool):
        raise ConfigError(f"{rule.can.title}: expected trains_on to return true or false for each row, bool "
                          f"[{len(observed)}], got {_described(use)}")  # fmt: skip
    assert isinstance(use, Tensor)
    return use


def losses_of(
    rule: Rule, host: Host, heads: Heads, h: Tensor, observed: Tensor, y: Tensor, noise: Noise
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the losses [B, P] of each row and predictor, and the mask [B, P] of the rows that count.

    Raises:
        ConfigError: the rule returns values of a wrong type or shape; or ``h`` requires a gradient and the losses have
            none, for example because PyTorch's gradients are disabled.
    """
    returned = rule.losses(host, heads, h, observed, y, noise)
    match returned:
        case (Tensor() as each, Tensor() as counts) if each.ndim == 2 and len(each) == len(h) == len(counts):
            pass
        case _:
            raise ConfigError(f"{rule.can.title}: expected two tensors from losses, the loss of each row and predictor "
                              f"[{len(h)}, P] and which rows count for it, bool [{len(h)}, P], got "
                              f"{_described(returned)}: take no mean over rows; every_row(each) makes both of the "
                              "losses [B] of a single predictor")  # fmt: skip
    if not each.is_floating_point() or not _is_tensor(counts, each.shape, torch.bool):
        raise ConfigError(f"{rule.can.title}: expected losses to be floating-point numbers and counts to be bool "
                          f"{list(each.shape)}, got {_described(each)} and {_described(counts)}")  # fmt: skip
    if not torch.is_grad_enabled():
        raise ConfigError(f"{rule.can.title}: PyTorch computes no gradients here: leave out a surrounding "
                          "torch.no_grad, torch.inference_mode or torch.set_grad_enabled(False)")  # fmt: skip
    if h.requires_grad and not each.requires_grad:
        raise ConfigError(f"{rule.can.title}: the loss of a batch has no gradient, so that nothing would be trained: "
                          "compute it from h or heads without detach, item, numpy or no_grad, and let the plan's "
                          "trains_on leave out rows without a gradient")  # fmt: skip
    return each, counts


def outputs_of(
    rule: Rule, plan: HeadPlan, host: Host, heads: Heads, h: Tensor, observed: Tensor,
    trained: TrainedParties | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the heads' outputs [B, M, C] and a mask [B, M] of the valid outputs, from h [B, K, H].

    If each set of parties has a predictor, the outputs for sets that no row has trained are not valid.

    Raises:
        ConfigError: the rule returns values of a wrong type or shape.
    """
    returned: object = rule.outputs(host, heads, h, observed)
    B, C = len(observed), host.task.outputs
    match returned:
        case (Tensor() as outputs, Tensor() as valid):
            pass
        case _:
            raise ConfigError(f"{rule.can.title}: expected two tensors from outputs, the heads' answers [B, M, C] and "
                              f"for which rows these are valid [B, M], got {_described(returned)}")  # fmt: skip
    if outputs.ndim != 3 or valid.shape != outputs.shape[:2] or (outputs.shape[0], outputs.shape[2]) != (B, C):
        raise ConfigError(f"{rule.can.title}: expected outputs [B, M, C] and their validity [B, M], got "
                          f"{list(outputs.shape)} and {list(valid.shape)} for B = {B} rows and C = {C}")  # fmt: skip
    if not outputs.is_floating_point() or valid.dtype != torch.bool:
        raise ConfigError(f"{rule.can.title}: expected outputs to be floating-point numbers and their validity to be "
                          f"boolean, got {outputs.dtype} and {valid.dtype}")  # fmt: skip
    if plan.sets is not None and trained is not None and trained.sets.any():
        valid = valid & trained.sets[plan.sets.of_row(observed)].unsqueeze(1)
    return outputs, valid


def answer_of(
    rule: Rule,
    host: Host,
    outputs: Tensor,
    valid: Tensor,
    observed: Tensor,
    key: Tensor,
    owners: Tensor | None = None,
) -> tuple[HeadOutputs, RuleAnswer]:
    """Return the heads' answers, and the rule's combination of these answers.

    Args:
        rule: the rule.
        host: the active party.
        outputs: [B, M, C], outputs of the heads of all hosts.
        valid: [B, M], a mask of the valid outputs.
        observed: [B, K], the blocks that valid outputs use.
        key: [B], a number that identifies each row, for random choices that do not depend on a row's place.
        owners: [M], the owners of the heads of all hosts, if other parties host heads too.

    Raises:
        ConfigError: the rule returns a value of a wrong type or shape.
    """
    given = HeadOutputs(
        task=host.task,
        answers=answers(host.task, outputs),
        valid=valid,
        observed=observed,
        key=key,
        k=host.k,
        owners=host.owners if owners is None else owners,
    )
    answer: object = rule.answer(given)
    (B, K), C = observed.shape, host.task.outputs
    if not isinstance(answer, RuleAnswer):
        raise ConfigError(f"{rule.can.title}: expected a RuleAnswer from answer, with scores, answered and took_part, "
                          f"got {_described(answer)}")  # fmt: skip
    forms = {"scores": (B, C), "answered": (B,), "took_part": (B, K), "by_party": (B, K, C), "confidence": (B, C)}
    for name, shape in forms.items():
        each: object = getattr(answer, name)
        kind = "true or false" if name in {"answered", "took_part"} else "numbers"
        if each is None and name in {"by_party", "confidence"}:
            continue
        if not isinstance(each, Tensor) or each.shape != shape or (each.dtype == torch.bool) != (kind != "numbers"):
            what = f"{name} of the RuleAnswer to be {kind}, {list(shape)}"
            raise ConfigError(f"{rule.can.title}: expected {what}, got {_described(each)}")
    return given, answer


def _is_tensor(value: object, shape: Sequence[int], dtype: torch.dtype) -> bool:
    return isinstance(value, Tensor) and value.shape == tuple(shape) and value.dtype == dtype


def _described(returned: object) -> str:
    """Return a description of a value that a rule returned, for an error message."""
    if isinstance(returned, Tensor):
        return f"{list(returned.shape)} of {returned.dtype}"
    if isinstance(returned, tuple | list):
        return f"a {type(returned).__name__} of {', '.join(_described(each) for each in returned) or 'nothing'}"
    return "None" if returned is None else f"a {type(returned).__name__}"


# Checks of a user's own rule

EARLIER = {"loss": "losses", "copies": "plan", "owners": "plan", "reads": "plan", "head": "plan", "hidden": "plan",
           "trains_on": "plan", "sets": "plan", "support": "answer"}  # fmt: skip


def check_members(rule: object) -> None:
    """Check that an object is a rule without misspelt members and without weights; a built-in rule needs no check.

    Raises:
        ConfigError: the object is a class or is not a rule; its class defines a member of the rules of version 0.1, or
            misspells a member of ``Rule``; or the rule has weights (see ``check_weights``).
    """
    if isinstance(rule, type):
        raise ConfigError(f"Split: expected a rule, got its class {rule.__name__}: make one, {rule.__name__}()")
    if not isinstance(rule, Rule):
        raise ConfigError(f"Split: expected a rule, an object of a class that inherits from Rule, got {rule!r}; make "
                          "built-in methods by name, as method('laser')")  # fmt: skip
    if is_built_in(rule):
        return
    check_names(rule)
    name = type(rule).__name__
    try:
        can: object = rule.can
    except TypeError as error:  # for example, a field of Capabilities is misspelt
        known = ", ".join(each.name for each in fields(Capabilities))
        raise ConfigError(f"Split: can of the rule {name} fails: {error}; Capabilities takes {known}") from error
    if inspect.isroutine(can):
        raise ConfigError(f"Split: can of the rule {name} is a function: write @property above it")
    if not isinstance(can, Capabilities):
        raise ConfigError(
            f"Split: can of the rule {name} should be Capabilities, from anyparty.core.types, got {can!r}"
        )
    check_weights(rule)


def is_built_in(rule: object) -> bool:
    """Return True if a rule's class is defined in this package: it is not a user's own class or subclass."""
    return isinstance(rule, Rule) and type(rule).__module__.startswith("anyparty.")


def check_names(rule: Rule) -> None:
    """Check that a user's rule defines no member of the contract of version 0.1, and misspells no member of ``Rule``.

    A misspelt member would never be used: the default of ``Rule`` would be used in its place.

    Raises:
        ConfigError: the class has such a member.
    """
    own = [each for each in type(rule).__mro__ if not f"{each.__module__}.".startswith(("anyparty.", "builtins."))]
    given = {name: value for each in own for name, value in vars(each).items() if not name.startswith("_")}
    parameters = {each.name for each in _fields(rule)}
    members = {name for name, value in given.items() if name not in parameters and _is_member(value)}
    title = f"Split: the rule {type(rule).__name__} defines"
    for name in sorted(members & EARLIER.keys()):
        raise ConfigError(
            f"{title} {name!r}, which rules had in version 0.1; {EARLIER[name]!r} has taken its place. A rule has "
            "plan(roster, task, width) -> HeadPlan, losses(host, heads, h, observed, y, noise) -> each [B, P], counts "
            "[B, P], and outputs(host, heads, h, observed): see docs/how-to/your-method.md"
        )
    for name in sorted(members - set(MEMBERS)):
        free = [each for each in MEMBERS if each not in given]
        close = get_close_matches(name.lower(), free, n=1, cutoff=0.8)
        if "can" in free and (isinstance(given[name], Capabilities) or _returns_capabilities(given[name])):
            close = ["can"]
        if close:
            raise ConfigError(
                f"{title} {name!r}, which nothing reads; did you mean {close[0]!r}? A rule may define "
                f"{', '.join(MEMBERS)}; begin the name of a function of your own with _, as _{name}"
            )


def _fields(rule: object) -> Sequence[Field[Any]]:
    return fields(rule) if is_dataclass(rule) else ()


def _is_member(value: object) -> bool:
    return inspect.isroutine(value) or isinstance(value, property | Capabilities) or hasattr(value, "func")


def _returns_capabilities(value: object) -> bool:
    function = value.fget if isinstance(value, property) else getattr(value, "func", value)
    return "Capabilities" in str(getattr(function, "__annotations__", {}).get("return", ""))


def check_weights(rule: object) -> None:
    """Check that a rule has no weights, because its weights would be neither trained nor saved.

    Raises:
        ConfigError: the rule is or holds a network with parameters or buffers, or a tensor that requires a gradient.
            The check covers the rule's attributes, and the items of attributes that are lists, tuples, sets or
            mappings.
    """
    names = [""] if _is_weights(rule) else sorted({name for name, value in _held(rule) if _is_weights(value)})
    if names:
        which = "is a network with its own weights" if names == [""] else f"holds weights, {some(names)}"
        raise ConfigError(f"Split: the rule {type(rule).__name__} {which}, which would be neither trained nor saved. "
                          "Weights belong to the head: give Split(make_head=...) a module that holds them, and "
                          "return the input width that it needs from the "
                          "rule's plan (docs/how-to/your-method.md)")  # fmt: skip


def _held(rule: object) -> Iterator[tuple[str, object]]:
    """Yield (name, value) for each attribute of an object and its classes, and for each item in these attributes."""
    slots = [name for kind in type(rule).__mro__ for name in getattr(kind, "__slots__", ()) if len(name) > 1]
    own = {name: getattr(rule, name, None) for name in slots} | _own(rule)
    for name, value in chain(own.items(), *(vars(kind).items() for kind in type(rule).__mro__[:-1])):
        yield name, value
        inner = value.values() if isinstance(value, Mapping) else value
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            yield from ((name, each) for each in inner)


def _own(rule: object) -> dict[str, object]:
    return getattr(rule, "__dict__", {})


def _is_weights(value: object) -> bool:
    if isinstance(value, nn.Module):
        begun = "_modules" in vars(value)  # a module whose nn.Module.__init__ has not run has no ``_modules``
        return begun and next(chain(value.parameters(), value.buffers()), None) is not None
    return isinstance(value, Tensor) and value.requires_grad
