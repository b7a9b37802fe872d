"""What is asked of a rule, which may be a user's own: slips that would train nothing, or fail far from their place."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain
from operator import index
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from anyparty.errors import ConfigError, some
from anyparty.methods.fusion import Answer, Fusion, Given, Rule
from anyparty.methods.topology import Topology
from anyparty.terms import Capabilities, Roster

FUNCTIONS = ("copies", "owners", "reads", "head", "trains_on", "loss", "outputs", "answer")


def check_rule(rule: object) -> None:
    """Check that an object is a rule, whole, and holds no weights.

    Raises:
        ConfigError: it is a class or something else, something of it is missing or of another kind, or see
            ``check_weights``.
    """
    if isinstance(rule, type):
        raise ConfigError(f"Split: expected a rule, got its class {rule.__name__}: make one, {rule.__name__}()")
    name = type(rule).__name__
    missing = [each for each in ("can", *FUNCTIONS) if not hasattr(type(rule), each) and each not in _own(rule)]
    if len(missing) > len(FUNCTIONS):
        raise ConfigError(f"Split: expected a rule, an object with can, {', '.join(FUNCTIONS)}, got {rule!r}; methods "
                          f"that ship are made by name, as method('laser')")  # fmt: skip
    if missing:
        raise ConfigError(f"Split: the rule {name} lacks {some(missing, most=9)}: see docs/your-method.md")
    can: object = rule.can  # type: ignore[attr-defined]
    if inspect.isroutine(can):
        raise ConfigError(f"Split: can of the rule {name} is a function: write @property above it")
    if not isinstance(can, Capabilities):
        raise ConfigError(f"Split: can of the rule {name} should be Capabilities, from anyparty.terms, got {can!r}")
    for each in FUNCTIONS:
        if not callable(given := getattr(rule, each)):
            raise ConfigError(f"Split: {each} of the rule {name} should be a function, got {given!r}")
    check_weights(rule)


def check_weights(rule: object) -> None:
    """Check that a rule has no weights: what it holds is neither trained nor saved.

    Raises:
        ConfigError: it is, or holds, a network with parameters or buffers, or a tensor that asks for a gradient; in
            its attributes, or in lists, tuples, sets and tables that stand there.
    """
    names = [""] if _is_weights(rule) else sorted({name for name, value in _held(rule) if _is_weights(value)})
    if names:
        which = "is a network with weights of its own" if names == [""] else f"holds weights, {some(names)}"
        raise ConfigError(f"Split: the rule {type(rule).__name__} {which}, which nobody would train or save. Weights "
                          f"live in the head: give Split(make_head=...) a module that holds them, and let the rule's "
                          f"head say as wide an input as it needs (docs/your-method.md)")  # fmt: skip


def _held(rule: object) -> Iterator[tuple[str, object]]:
    """Yield what an object and its class hold, by the attribute's name, containers opened once."""
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
        begun = "_modules" in vars(value)  # a module whose class forgot to begin it holds nothing
        return begun and next(chain(value.parameters(), value.buffers()), None) is not None
    return isinstance(value, Tensor) and value.requires_grad


def resolve(rule: Rule, roster: Roster, embedding: int, hosting: Literal["active", "labelers"]) -> Topology:
    """Return the topology that a rule asks for among these parties, where embeddings are ``embedding`` wide.

    With ``hosting="labelers"`` each head stands at its owner if that party holds labels. All others stand at the active
    party. If each head has an owner, there are as many heads as owners, whatever ``head`` says.

    Raises:
        ConfigError: the rule answers in another form, the active party would host no head, nobody's embedding is read,
            or a rule that needs all parties leaves one out.
    """
    copies, head, owners = rule.copies(roster), rule.head(roster, embedding), owners_of(rule, roster)
    _check_counts(rule, copies, head, owners)
    hosts = _hosts(roster, owners, hosting)
    if owners is not None and not hosts[roster.active]:
        raise ConfigError(f"the active party {roster.active!r} would host no head: use hosting='active'")
    read = {host: reads_of(rule, roster, ks) for host, ks in hosts.items()}
    reads = {host: tuple(roster.blocks[k] for k in ks) for host, ks in read.items()}
    unread = tuple(name for k, name in enumerate(roster.blocks) if k not in chain.from_iterable(read.values()))
    _check_reads(rule, reads, unread)
    return Topology(
        blocks=roster.blocks,
        active=roster.active,
        copies=copies,
        width=(embedding,) if copies == 1 else (copies, embedding),
        head_inputs=head[1],
        owners=owners,
        hosts=hosts,
        heads={host: head[0] if owners is None else len(ks) for host, ks in hosts.items()},
        reads=reads,
        readers={name: tuple(host for host in hosts if name in reads[host]) for name in roster.names},
        unread=unread,
    )


def _hosts(
    roster: Roster, owners: tuple[int, ...] | None, hosting: Literal["active", "labelers"]
) -> dict[str, tuple[int, ...]]:
    """Return the owners k of the heads at each host, the active party first."""
    if owners is None or hosting == "active":
        return {roster.active: owners or ()}
    at: dict[str, list[int]] = {roster.active: []}
    for k in owners:
        name = roster.blocks[k]
        at.setdefault(name if name in roster.labelers else roster.active, []).append(k)
    return {name: tuple(ks) for name, ks in at.items()}


def _check_counts(rule: Rule, copies: object, head: object, owners: tuple[int, ...] | None) -> None:
    """Check that there is an owner, if heads have owners, and that numbers of encoders and heads are whole numbers."""
    owned = owners is not None
    if owners == ():
        raise ConfigError(f"{rule.can.title}: expected owners to be at least one party, or None, where heads belong to "
                          f"nobody, got none")  # fmt: skip
    if not _counts(copies):
        raise ConfigError(f"{rule.can.title}: expected copies, how many encoders a party has, to be a whole number of "
                          f"at least 1, got {copies!r}")  # fmt: skip
    if not isinstance(head, tuple | list) or len(head) != 2 or not _counts(*head[owned:]):
        raise ConfigError(f"{rule.can.title}: expected head to be how many heads there are and how wide a head's input "
                          f"is, two whole numbers of at least 1, got {head!r}")  # fmt: skip


def _check_reads(rule: Rule, reads: Mapping[str, tuple[str, ...]], unread: tuple[str, ...]) -> None:
    """Check that at least one party's embeddings are read, and all of them if the rule needs all parties."""
    if not any(reads.values()):
        raise ConfigError(f"{rule.can.title}: reads names nobody, so that there is nothing to learn from")
    if unread and (rule.can.needs == "all" or rule.can.trains_with_all):
        raise ConfigError(f"{rule.can.title} needs all parties, and its reads leaves out {some(unread)}: name them "
                          f"there, or let can say needs='any'")  # fmt: skip


def owners_of(rule: Rule, roster: Roster) -> tuple[int, ...] | None:
    """Return the parties k that have a head of their own, or ``None`` if heads belong to nobody.

    Raises:
        ConfigError: the rule says that in another form.
    """
    given: object = rule.owners(roster)
    owners = None if given is None else _parties(given, roster)
    if owners is None and given is not None:
        raise ConfigError(f"{rule.can.title}: expected owners to be None, where heads belong to nobody, or the parties "
                          f"that have a head, {_places(roster)}, got {given!r}")  # fmt: skip
    return owners


def reads_of(rule: Rule, roster: Roster, owners: tuple[int, ...]) -> tuple[int, ...]:
    """Return the parties k whose embeddings a host with the heads of ``owners`` reads.

    Raises:
        ConfigError: the rule says that in another form.
    """
    given: object = rule.reads(roster, owners)
    read = _parties(given, roster)
    if read is None:
        raise ConfigError(f"{rule.can.title}: expected reads to be the parties whose embeddings a host reads, "
                          f"{_places(roster)}, got {given!r}")  # fmt: skip
    return read


def _places(roster: Roster) -> str:
    return f"as a tuple of their places, whole numbers from 0 to {roster.K - 1}"


def _parties(given: object, roster: Roster) -> tuple[int, ...] | None:
    """Return parties k, given as any whole numbers; ``None`` where they are something else."""
    try:
        return _among(tuple(given), roster.K)  # type: ignore[arg-type]
    except TypeError:
        return None


@lru_cache
def _among(given: tuple[object, ...], K: int) -> tuple[int, ...] | None:
    places = tuple(index(k) for k in given)  # type: ignore[arg-type]
    return places if all(0 <= k < K for k in places) else None


def _counts(*values: object) -> bool:
    return all(isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 1 for value in values)


def trained(rule: Rule, roster: Roster, observed: Tensor) -> Tensor:
    """Return which rows serve in training, [N] bool, by who has them, observed [N, K].

    Raises:
        ConfigError: the rule says that in another form.
    """
    use: object = rule.trains_on(roster, observed)
    if not isinstance(use, Tensor):
        raise ConfigError(f"{rule.can.title}: expected a tensor from trains_on, got a {type(use).__name__}")
    if use.shape != observed.shape[:1] or use.dtype != torch.bool:
        raise ConfigError(f"{rule.can.title}: expected trains_on to say true or false of each row, [{len(observed)}], "
                          f"got {list(use.shape)} of {use.dtype}")  # fmt: skip
    return use


def check_loss(rule: Rule, loss: object, h: Tensor) -> None:
    """Check that a batch's loss is one number from which embeddings and heads can learn.

    Raises:
        ConfigError: it is no tensor or has a shape; or embeddings ``h`` ask for a gradient, and it gives none.
    """
    if not isinstance(loss, Tensor):
        raise ConfigError(f"{rule.can.title}: expected a tensor as the loss of a batch, got a {type(loss).__name__}")
    if loss.ndim:
        raise ConfigError(f"{rule.can.title}: expected one number as the loss of a batch, got {list(loss.shape)}: take "
                          f"their mean")  # fmt: skip
    if h.requires_grad and not loss.requires_grad:
        raise ConfigError(f"{rule.can.title}: the loss of a batch has no gradient, so that nothing would be trained: "
                          f"compute it from h or heads without detach, item, numpy or no_grad, and let trains_on leave "
                          f"out rows that nothing is learnt from")  # fmt: skip


def outputs(rule: Rule, fusion: Fusion, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a rule's heads answer [B, M, C], and for which rows [B, M], from h [B, K, H] and observed [B, K].

    Raises:
        ConfigError: it says that in another form.
    """
    said: object = rule.outputs(fusion, h, observed)
    B, C = len(observed), fusion.task.outputs
    if not isinstance(said, tuple | list) or len(said) != 2 or not all(isinstance(each, Tensor) for each in said):
        raise ConfigError(f"{rule.can.title}: expected two tensors from outputs, what heads answer [B, M, C] and "
                          f"for which rows they do [B, M], got {_kinds(said)}")  # fmt: skip
    made, valid = said
    if made.ndim != 3 or valid.shape != made.shape[:2] or (made.shape[0], made.shape[2]) != (B, C):
        raise ConfigError(f"{rule.can.title}: expected outputs [B, M, C] and, for which rows they are, [B, M], "
                          f"got {list(made.shape)} and {list(valid.shape)} for B = {B} rows and C = {C}")  # fmt: skip
    if not made.is_floating_point() or valid.dtype != torch.bool:
        raise ConfigError(f"{rule.can.title}: expected outputs to be floating-point numbers and, for which rows they "
                          f"are, true or false, got {made.dtype} and {valid.dtype}")  # fmt: skip
    return made, valid


def answer(rule: Rule, given: Given) -> Answer:
    """Return what a rule makes of its heads' answers.

    Raises:
        ConfigError: it says that in another form.
    """
    said: object = rule.answer(given)
    (B, K), C = given.observed.shape, given.task.outputs
    if not isinstance(said, Answer):
        raise ConfigError(f"{rule.can.title}: expected an Answer from answer, with scores, answered and took_part, got "
                          f"{_kinds(said)}")  # fmt: skip
    forms = {"scores": (B, C), "answered": (B,), "took_part": (B, K)}
    for name, shape in (forms if said.by_party is None else forms | {"by_party": (B, K, C)}).items():
        each: object = getattr(said, name)
        kind = "true or false" if name in {"answered", "took_part"} else "numbers"
        if not isinstance(each, Tensor) or each.shape != shape or (each.dtype == torch.bool) != (kind != "numbers"):
            got = f"{list(each.shape)} of {each.dtype}" if isinstance(each, Tensor) else _kinds(each)
            raise ConfigError(f"{rule.can.title}: expected {name} of the Answer to be {kind}, {list(shape)}, got {got}")
    return said


def _kinds(said: object) -> str:
    if isinstance(said, tuple | list):
        return f"a {type(said).__name__} of {', '.join(type(each).__name__ for each in said) or 'nothing'}"
    return "None" if said is None else f"a {type(said).__name__}"
