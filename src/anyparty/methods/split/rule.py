"""The rule of a split method (its heads, loss and answer), the rule's inputs and outputs, and checks of a user's rule.

Notation  B rows of the batch, B_k those that party k holds, K parties with columns, H width of an embedding,
          M heads at a host, C outputs.
Symbols   h[n, k] = f_k(x_k^n)   embeddings at a host, zero where not observed   [B, K, H]
                                 ([B, K, copies, H] for a rule with several encoders per party)
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from anyparty.core.types import SEVERAL_HOSTS, Capabilities, MessageSpec, Roster, Task
from anyparty.errors import ConfigError, some
from anyparty.methods.method import Batch
from anyparty.networks.heads import Heads, Sets, TrainedParties
from anyparty.networks.objective import answers, losses

SOME = 1e-6  # minimum divisor of a mean over rows, so that a mean over no rows is 0


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


@dataclass(frozen=True, kw_only=True)
class Fusion:
    """The heads of a host, and the data that a rule needs to compute a loss or answers with them.

    Attributes:
        heads: M networks.
        owners: [M] int64, the party k that each head belongs to; empty if heads belong to no party.
        everyone: the owners of the heads at all hosts together, in ascending order.
        task: the prediction task.
        k: the host's index among the K parties; -1 if the host holds no columns.
        trained: a record of the parties on whose rows the heads have been trained; ``None`` for a copy of another
            host's heads.
        chosen_from: [B*, K] bool, in the stage of pseudo-labels, the parties that have each of B* rows; ``None`` in all
            other stages. In this stage, the loss is a mean over B* rows, and rows without a pseudo-label count as 0.

    """

    heads: Heads
    owners: Tensor
    everyone: Tensor
    task: Task
    k: int
    trained: TrainedParties | None = None
    chosen_from: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class HeadOutputs:
    """The outputs of all hosts' heads, which a rule combines at the active party.

    Attributes:
        task: the prediction task.
        answers: [B, M, C], probabilities or numbers.
        valid: [B, M] bool, whether the head answers the row.
        owners: [M] int64, as in ``Fusion``.
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
        reason: why a row has no answer, if at least one party has the row.

    """

    scores: Tensor
    answered: Tensor
    took_part: Tensor
    by_party: Tensor | None = None
    reason: str = ""


class Rule(ABC):
    """The definition of a split method's heads, loss and answers.

    A rule is a set of fixed parameters. It computes with tensors and does not know which party computed an embedding. A
    subclass must define ``loss`` and ``outputs``. The defaults of all other functions describe one head that reads the
    embeddings of all present parties, and that needs no particular party.

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

    # Functions that define the heads and the parties that they read

    def copies(self, roster: Roster) -> int:  # noqa: ARG002
        """Return the number of encoders of each party."""
        return 1

    def owners(self, roster: Roster) -> tuple[int, ...] | None:  # noqa: ARG002
        """Return the parties k that have a head of their own, or ``None`` if heads belong to no party."""
        return None

    def reads(self, roster: Roster, owners: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002
        """Return the parties k whose embeddings a host reads; ``owners`` are the owners of the host's heads."""
        return all_blocks(roster)

    def head(self, roster: Roster, width: int) -> tuple[int, int]:  # noqa: ARG002
        """Return the number of heads, and the width of a head's input.

        The number of heads is ignored if each head belongs to a party. ``width`` is H, the width of an embedding.
        """
        return 1, width

    def hidden(self, task: Task) -> tuple[int, ...]:  # noqa: ARG002
        """Return the default widths of a head's hidden layers, which are used if the settings do not give any."""
        return ()

    # Functions for training

    def trains_on(self, roster: Roster, observed: Tensor) -> Tensor:  # noqa: ARG002
        """Return a mask of the rows to train on, from a mask of the parties that have each row: [N, K] -> [N] bool."""
        return observed.any(dim=1)

    def sets(self, roster: Roster) -> tuple[int, Sets] | None:  # noqa: ARG002
        """Return the number of sets of parties with a predictor, and a function that marks the trained sets.

        A set's predictor gives no answer before a row has trained it. The function maps observed [B, K] to a mask of
        the sets that these rows train. ``None`` means that the rule has no predictors for sets of parties.
        """
        return None

    @abstractmethod
    def loss(self, fusion: Fusion, h: Tensor, observed: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """Return the loss of a batch, a scalar, from B rows with labels y [B].

        The B rows are those rows of the batch that have a label and for which ``trains_on`` is true. B is smaller than
        ``len(batch.rows)`` if a party is late or lost, or if this host does not know all labels. A rule that draws
        random numbers must therefore take their shape from ``observed``.
        """

    # Functions for prediction

    @abstractmethod
    def outputs(self, fusion: Fusion, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the heads' outputs [B, M, C], and a mask [B, M] of the valid outputs."""

    def answer(self, given: HeadOutputs) -> RuleAnswer:
        """Combine the answers of all hosts' heads into one answer per row."""
        return joint(given)

    def support(self, given: HeadOutputs) -> Tensor:
        """Return the scores [B, C] that decide whether an answer is confident enough for a pseudo-label.

        These scores use every party that has a row, even if the scores of ``answer`` do not.
        """
        return self.answer(given).scores


REQUIRED = ("copies", "owners", "reads", "head", "trains_on", "loss", "outputs", "answer")
OPTIONAL = ("hidden", "sets", "support")


def adapted(rule: Any) -> Rule:
    """Return ``rule`` as an object that has every method of ``Rule``.

    A user's class may have the required methods without inheriting from ``Rule``. It then gets all missing methods from
    ``Rule``.
    """
    if isinstance(rule, Rule):
        return rule
    methods = {name: staticmethod(getattr(rule, name)) for name in (*REQUIRED, *OPTIONAL) if hasattr(rule, name)}
    can = property(lambda _: rule.can)
    made: Rule = type(type(rule).__name__, (Rule,), {**methods, "can": can})()
    return made


def all_blocks(roster: Roster) -> tuple[int, ...]:
    """Return the indices of all K parties."""
    return tuple(range(roster.K))


def mean_over(h: Tensor, observed: Tensor) -> Tensor:
    """Return the mean embedding over the parties that have a row: [B, K, H], [B, K] -> [B, H]; 0 without parties."""
    return h.sum(dim=1) / observed.sum(dim=1, keepdim=True).clamp(min=1)


def own_rows(fusion: Fusion, outputs: Tensor, observed: Tensor, y: Tensor) -> Tensor:
    """Return the sum of the heads' losses, a scalar; a head's loss is the mean over the rows of its own party.

    Shapes: outputs [B, M, C], observed [B, K], y [B].
    """
    each = losses(fusion.task, outputs, y.unsqueeze(1).expand(outputs.shape[:2]))  # [B, M]
    return means(fusion, each, observed, lambda observed: observed[:, fusion.owners])


def means(fusion: Fusion, each: Tensor, observed: Tensor, has: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the sum of the predictors' losses, a scalar; a predictor's loss is the mean over its own rows.

    ``each`` [B, M] has the loss of each row and predictor. ``has`` maps observed [B, K] to a mask [B, M] of the rows of
    each predictor.
    """
    mine = has(observed)
    count = mine.sum(dim=0)
    # ``pseudo_labels`` multiplies this loss by the share of rows with a pseudo-label; this divisor cancels the factor.
    if fusion.chosen_from is not None:
        count = has(fusion.chosen_from).sum(dim=0) * (len(observed) / len(fusion.chosen_from))
    return (torch.where(mine, each, 0.0).sum(dim=0) / count.clamp(min=SOME)).sum()


def joint(given: HeadOutputs, reason: str = "") -> RuleAnswer:
    """Return the answer of a rule with one predictor for all present parties."""
    return RuleAnswer(scores=given.answers[:, 0], answered=given.valid[:, 0], took_part=given.observed, reason=reason)


# Computations of a rule, with checks of the results, because a user may have written the rule


def trained_rows(rule: Rule, roster: Roster, observed: Tensor) -> Tensor:
    """Return a mask [N] of the rows to train on; ``observed`` [N, K] marks the parties that have each row.

    Raises:
        ConfigError: the rule returns a value of a wrong type or shape.
    """
    use: object = rule.trains_on(roster, observed)
    if not isinstance(use, Tensor):
        raise ConfigError(f"{rule.can.title}: expected a tensor from trains_on, got a {type(use).__name__}")
    if use.shape != observed.shape[:1] or use.dtype != torch.bool:
        raise ConfigError(f"{rule.can.title}: expected trains_on to return true or false for each row, bool "
                          f"[{len(observed)}], got {list(use.shape)} of {use.dtype}")  # fmt: skip
    return use


def loss_of(rule: Rule, fusion: Fusion, h: Tensor, observed: Tensor, y: Tensor, batch: Batch) -> Tensor:
    """Return the loss of a batch, a scalar with a gradient for embeddings and heads.

    Raises:
        ConfigError: the loss is not a scalar tensor; ``h`` requires a gradient but the loss has none; PyTorch's
            gradients are disabled, for example in ``torch.no_grad``; or the rule has created weights since
            ``check_rule``.
    """
    loss: object = rule.loss(fusion, h, observed, y, batch)
    if not isinstance(loss, Tensor):
        raise ConfigError(f"{rule.can.title}: expected a tensor as the loss of a batch, got a {type(loss).__name__}")
    if loss.ndim:
        raise ConfigError(f"{rule.can.title}: expected one number as the loss of a batch, got {list(loss.shape)}: take "
                          f"their mean")  # fmt: skip
    if not torch.is_grad_enabled():
        raise ConfigError(f"{rule.can.title}: PyTorch computes no gradients here: leave out a surrounding "
                          "torch.no_grad, torch.inference_mode or torch.set_grad_enabled(False)")  # fmt: skip
    if h.requires_grad and not loss.requires_grad:
        raise ConfigError(f"{rule.can.title}: the loss of a batch has no gradient, so that nothing would be trained: "
                          "compute it from h or heads without detach, item, numpy or no_grad, and let trains_on "
                          "leave out rows without a gradient")  # fmt: skip
    if not batch.number and not _is_built_in(rule):
        check_weights(rule)
    return loss


def outputs_of(rule: Rule, fusion: Fusion, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the heads' outputs [B, M, C] and a mask [B, M] of the valid outputs, from h [B, K, H].

    Raises:
        ConfigError: the rule returns values of a wrong type or shape.
    """
    returned: object = rule.outputs(fusion, h, observed)
    B, C = len(observed), fusion.task.outputs
    match returned:
        case (Tensor() as outputs, Tensor() as valid):
            pass
        case _:
            raise ConfigError(f"{rule.can.title}: expected two tensors from outputs, the heads' answers [B, M, C] and "
                              f"for which rows these are valid [B, M], got {_kinds(returned)}")  # fmt: skip
    if outputs.ndim != 3 or valid.shape != outputs.shape[:2] or (outputs.shape[0], outputs.shape[2]) != (B, C):
        raise ConfigError(f"{rule.can.title}: expected outputs [B, M, C] and their validity [B, M], got "
                          f"{list(outputs.shape)} and {list(valid.shape)} for B = {B} rows and C = {C}")  # fmt: skip
    if not outputs.is_floating_point() or valid.dtype != torch.bool:
        raise ConfigError(f"{rule.can.title}: expected outputs to be floating-point numbers and their validity to be "
                          f"boolean, got {outputs.dtype} and {valid.dtype}")  # fmt: skip
    return outputs, valid


def answer_of(
    rule: Rule,
    fusion: Fusion,
    outputs: Tensor,
    valid: Tensor,
    observed: Tensor,
    key: Tensor,
    owners: Tensor | None = None,
) -> tuple[HeadOutputs, RuleAnswer]:
    """Return the heads' answers, and the rule's combination of these answers.

    Args:
        rule: the rule.
        fusion: the heads of the active party.
        outputs: [B, M, C], outputs of the heads of all hosts.
        valid: [B, M], a mask of the valid outputs.
        observed: [B, K], the blocks that valid outputs use.
        key: [B], a number that identifies each row, for random choices that do not depend on a row's place.
        owners: [M], the owners of the heads of all hosts, if other parties host heads too.

    Raises:
        ConfigError: the rule returns a value of a wrong type or shape.
    """
    given = HeadOutputs(
        task=fusion.task,
        answers=answers(fusion.task, outputs),
        valid=valid,
        observed=observed,
        key=key,
        k=fusion.k,
        owners=fusion.owners if owners is None else owners,
    )
    answer: object = rule.answer(given)
    (B, K), C = observed.shape, fusion.task.outputs
    if not isinstance(answer, RuleAnswer):
        raise ConfigError(f"{rule.can.title}: expected a RuleAnswer from answer, with scores, answered and took_part, "
                          f"got {_kinds(answer)}")  # fmt: skip
    forms = {"scores": (B, C), "answered": (B,), "took_part": (B, K)}
    for name, shape in (forms if answer.by_party is None else forms | {"by_party": (B, K, C)}).items():
        each: object = getattr(answer, name)
        kind = "true or false" if name in {"answered", "took_part"} else "numbers"
        if not isinstance(each, Tensor) or each.shape != shape or (each.dtype == torch.bool) != (kind != "numbers"):
            got = f"{list(each.shape)} of {each.dtype}" if isinstance(each, Tensor) else _kinds(each)
            what = f"{name} of the RuleAnswer to be {kind}, {list(shape)}"
            raise ConfigError(f"{rule.can.title}: expected {what}, got {got}")
    return given, answer


def _kinds(returned: object) -> str:
    if isinstance(returned, tuple | list):
        return f"a {type(returned).__name__} of {', '.join(type(each).__name__ for each in returned) or 'nothing'}"
    return "None" if returned is None else f"a {type(returned).__name__}"


# Checks of a user's own rule


def check_rule(rule: object) -> None:
    """Check that an object is a complete rule without weights; a built-in rule needs no check.

    Raises:
        ConfigError: the object is a class or is not a rule; one of its attributes is missing or has a wrong type; or
            the rule has weights (see ``check_weights``).
    """
    if isinstance(rule, type):
        raise ConfigError(f"Split: expected a rule, got its class {rule.__name__}: make one, {rule.__name__}()")
    if _is_built_in(rule):
        return
    name = type(rule).__name__
    missing = [each for each in ("can", *REQUIRED) if not hasattr(type(rule), each) and each not in _own(rule)]
    if len(missing) > len(REQUIRED):
        raise ConfigError(f"Split: expected a rule, an object with can, {', '.join(REQUIRED)}, got {rule!r}; make "
                          "built-in methods by name, as method('laser')")  # fmt: skip
    if missing:
        raise ConfigError(f"Split: the rule {name} lacks {some(missing, most=9)}: see docs/how-to/your-method.md")
    check_names(rule)
    try:
        can: object = rule.can  # type: ignore[attr-defined]
    except TypeError as error:  # for example, a field of Capabilities is misspelt
        known = ", ".join(each.name for each in fields(Capabilities))
        raise ConfigError(f"Split: can of the rule {name} fails: {error}; Capabilities takes {known}") from error
    if inspect.isroutine(can):
        raise ConfigError(f"Split: can of the rule {name} is a function: write @property above it")
    if not isinstance(can, Capabilities):
        raise ConfigError(
            f"Split: can of the rule {name} should be Capabilities, from anyparty.core.types, got {can!r}"
        )
    for each in REQUIRED:
        if not callable(given := getattr(rule, each)):
            raise ConfigError(f"Split: {each} of the rule {name} should be a function, got {given!r}")
    check_weights(rule)


def _is_built_in(rule: object) -> bool:
    """Return True if a rule's class is defined in this package: it is not a user's own class or subclass."""
    return isinstance(rule, Rule) and type(rule).__module__.startswith("anyparty.")


def check_names(rule: object) -> None:
    """Check that a user's rule does not misspell the name of a function of ``Rule``.

    A misspelt function would never be called: the default of ``Rule`` would be called in its place.

    Raises:
        ConfigError: the user's class has a public function, property or ``Capabilities`` with a misspelt name. A name
            counts as misspelt if it is similar to a name in ``Rule`` that the user's class does not define.
    """
    own = [each for each in type(rule).__mro__ if not f"{each.__module__}.".startswith(("anyparty.", "builtins."))]
    given = {name: value for each in reversed(own) for name, value in vars(each).items() if not name.startswith("_")}
    known = ("can", *REQUIRED, *OPTIONAL)
    for name in given.keys() - set(dir(Rule)) - {each.name for each in _fields(rule)}:
        value, free = given[name], [each for each in known if each not in given]
        close = get_close_matches(name.lower(), free, n=1, cutoff=0.8)
        if isinstance(value, Capabilities) or _returns_capabilities(value):
            close = ["can"] if "can" in free else []
        elif not inspect.isroutine(value) and not isinstance(value, property | cached_property):
            close = []
        if close:
            raise ConfigError(f"Split: the rule {type(rule).__name__} defines {name!r}, which nothing reads; did you "
                              f"mean {close[0]!r}? A rule may define {', '.join(known)}; begin the name of a function "
                              f"of your own with _, as _{name}")  # fmt: skip


def _fields(rule: object) -> Sequence[Field[Any]]:
    return fields(rule) if is_dataclass(rule) else ()


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
                          "rule's head (docs/how-to/your-method.md)")  # fmt: skip


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
