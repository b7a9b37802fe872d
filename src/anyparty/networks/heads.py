"""Many small networks of one shape, computed together.

LASER-VFL has a head for every party, and Combinatorial an encoder for every subset of parties. A loop over these
networks would be slow. Here the weights of all networks are one tensor, and one batched product computes a layer of all
networks.

A network that was never trained on a labelled row still returns numbers, which depend only on its initial weights. A
host therefore saves which of its heads it has trained (``TrainedParties``), so that an answer never depends on an
untrained head.

Notation  B rows, K parties with columns, M heads, T sets of parties or means over sets of parties.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from anyparty.errors import ConfigError
from anyparty.networks.modules import bear_single_rows

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "elu": nn.ELU, "selu": nn.SELU, "sigmoid": nn.Sigmoid,
}  # fmt: skip


class StackedLinear(nn.Module):
    """M linear layers: [B, M, inputs] -> [B, M, outputs], each copy initialized like ``torch.nn.Linear``."""

    def __init__(self, copies: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)  # the initial values of nn.Linear are uniform between -bound and bound
        self.weight = nn.Parameter(torch.empty(copies, outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(copies, outputs).uniform_(-bound, bound))

    def forward(self, u: Tensor) -> Tensor:
        """Apply copy m to u[:, m]: [B, M, inputs] -> [B, M, outputs]."""
        if u.shape[1] == 1:
            return nn.functional.linear(u, self.weight[0], self.bias[0])
        return torch.baddbmm(self.bias.unsqueeze(1), u.transpose(0, 1), self.weight.mT).transpose(0, 1)


def _check_inputs(given: Tensor, copies: int, inputs: int, form: str) -> None:
    """Raise an error if the shape of ``given`` does not fit ``copies`` heads with inputs of width ``inputs``.

    ``form`` is "M" if each of the M heads reads an input of its own, and "F" if all heads read the same F inputs.
    """
    if given.ndim != 3 or given.shape[2] != inputs or (form == "M" and given.shape[1] != copies):
        wanted = f"[B, {copies if form == 'M' else form}, {inputs}]"
        raise ConfigError(f"heads: expected inputs {wanted}, because the rule's head declares {copies} "
                          f"head{'s' if copies > 1 else ''} with inputs of width {inputs}; its loss or outputs pass "
                          f"{list(given.shape)}: make the two agree")  # fmt: skip


class StackedMLP(nn.Module):
    """M multilayer perceptrons of one shape: [B, M, widths[0]] -> [B, M, widths[-1]].

    No activation follows the last layer. The first layer is linear, so it commutes with means over parties:
    ``finish(mean_f products(h_f)) == forward(mean_f h_f)``.
    """

    def __init__(self, copies: int, widths: Sequence[int], activation: str = "relu") -> None:
        super().__init__()
        self.copies, self.inputs = copies, widths[0]
        self.first = StackedLinear(copies, widths[0], widths[1])
        rest: list[nn.Module] = []
        for inputs, outputs in pairwise(widths[1:]):
            rest += [ACTIVATIONS[activation](), StackedLinear(copies, inputs, outputs)]
        self.rest = nn.Sequential(*rest)

    def forward(self, u: Tensor, valid: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Apply copy m to u[:, m], also to rows that are not ``valid``, because no row depends on another row.

        Raises:
            ConfigError: u does not fit the number of copies or their input width.
        """
        _check_inputs(u, self.copies, self.inputs, "M")
        return self.rest(self.first(u))  # type: ignore[no-any-return]

    def products(self, h: Tensor) -> Tensor:
        """Apply the first layer of every copy, without its bias, to each of F inputs: [B, F, I] -> [B, F, M, D].

        Raises:
            ConfigError: h has a wrong width.
        """
        _check_inputs(h, self.copies, self.inputs, "F")
        weight = self.first.weight
        return nn.functional.linear(h, weight.flatten(0, 1)).view(*h.shape[:2], *weight.shape[:2])

    def finish(self, u: Tensor, valid: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Return the outputs of each copy for T means of its ``products``: [B, M, T, D] -> [B, M, T, C]."""
        u = u + self.first.bias.unsqueeze(1)
        if not len(self.rest):
            return u
        B, _, T, _ = u.shape
        out: Tensor = self.rest(u.transpose(1, 2).flatten(0, 1))  # [B T, M, C]
        return out.view(B, T, *out.shape[1:]).transpose(1, 2)


class ModuleHeads(nn.Module):
    """M heads made by a user's function, with the same interface as ``StackedMLP``; each maps [B, I] to [B, C].

    A user's module may let rows depend on each other, as batch normalisation does. The modules therefore get only valid
    rows.
    """

    def __init__(self, modules: Sequence[nn.Module], inputs: int, outputs: int) -> None:
        super().__init__()
        self.each = nn.ModuleList(bear_single_rows(module) for module in modules)
        self.inputs, self.outputs = inputs, outputs
        self._rows: Tensor | None = None

    @contextmanager
    def only(self, rows: Tensor) -> Iterator[None]:
        """Apply the modules only to the rows that a mask [B] marks, in a ``with`` block.

        The outputs of all other rows are zero.
        """
        self._rows = rows
        try:
            yield
        finally:
            self._rows = None

    @classmethod
    def of(cls, make: Callable[[int, int], nn.Module], count: int, inputs: int, outputs: int) -> ModuleHeads:
        """Make ``count`` heads with the user's function ``make``, and return them.

        Raises:
            ConfigError: ``make`` is itself a module, does not accept two widths, or does not return modules.
        """
        if isinstance(make, nn.Module):
            raise ConfigError("make_head should be a function of (inputs, outputs) that makes a head, not the module "
                              "itself")  # fmt: skip
        try:
            made = [make(inputs, outputs) for _ in range(count)]
        except TypeError as error:
            raise ConfigError(f"make_head: no head can be made of (inputs, outputs) = {(inputs, outputs)}: "
                              f"{error}") from error  # fmt: skip
        for module in made:
            if not isinstance(module, nn.Module):
                raise ConfigError(f"make_head must make a torch.nn.Module, got {type(module).__name__}")
        return cls(made, inputs, outputs)

    def forward(self, u: Tensor, valid: Tensor | None = None) -> Tensor:
        """Apply module m to u[:, m] of the ``valid`` rows [B, M]. The outputs of rows that are not valid are zero.

        Raises:
            ConfigError: u does not fit the number of modules or their input width, or a module's output does not have
                the shape [B, C].
        """
        _check_inputs(u, len(self.each), self.inputs, "M")
        present = u.new_ones(u.shape[:2], dtype=torch.bool) if valid is None else valid
        if self._rows is not None:  # ``finish`` passes T inputs for each row
            present = present & self._rows.repeat_interleave(len(u) // len(self._rows)).unsqueeze(1)
        return torch.stack([self._outputs_of(m, u[:, m], present[:, m]) for m in range(len(self.each))], dim=1)

    def products(self, h: Tensor) -> Tensor:
        """Return F inputs for each row, unchanged and once for every module: [B, F, I] -> [B, F, M, I].

        The caller computes means over the F inputs, and passes the means to ``finish``, which applies the modules. The
        same method of ``StackedMLP`` applies the first layer.

        Raises:
            ConfigError: h has a wrong width.
        """
        _check_inputs(h, len(self.each), self.inputs, "F")
        return h.unsqueeze(2).expand(-1, -1, len(self.each), -1)

    def finish(self, u: Tensor, valid: Tensor | None = None) -> Tensor:
        """Apply module m to each of its T mean inputs u[:, m, t]: [B, M, T, I] -> [B, M, T, C].

        The outputs of rows that are not ``valid`` [B, M, T] are zero.
        """
        flat = u.transpose(1, 2).flatten(0, 1)  # [B T, M, D]
        out = self.forward(flat, None if valid is None else valid.transpose(1, 2).flatten(0, 1))
        return out.view(u.shape[0], u.shape[2], *out.shape[1:]).transpose(1, 2)

    def _outputs_of(self, m: int, u: Tensor, present: Tensor) -> Tensor:
        """Return the outputs [B, C] of module m for rows u [B, I]; zero for rows that ``present`` [B] does not mark."""
        rows = present.nonzero().squeeze(1)
        if not len(rows):
            return u.new_zeros(len(u), self.outputs)
        own = u.clone() if len(rows) == len(u) else u[rows]  # a copy, because a user's module may change its input
        out: Any = self.each[m](own)
        if not isinstance(out, Tensor):
            raise ConfigError(f"make_head: a head of yours should give a tensor, it gives a {type(out).__name__}")
        if out.shape != (len(rows), self.outputs):
            raise ConfigError(f"make_head: for {len(rows)} rows a head of yours answered {list(out.shape)}, expected "
                              f"{[len(rows), self.outputs]}")  # fmt: skip
        return out if len(rows) == len(u) else out.new_zeros(len(u), self.outputs).index_put((rows,), out)


Heads = StackedMLP | ModuleHeads


# Records of the parties, and of the sets of parties, whose rows were used in training


@dataclass(frozen=True, kw_only=True)
class PartySets:
    """Sets of parties that have a predictor of their own.

    Attributes:
        count: T, the number of sets.
        trained_by: a function that marks the sets whose predictors a batch trains: observed [B, K] bool -> [T] bool.
        of_row: a function that returns the index of the set whose predictor answers a row: [B, K] -> int64 [B].

    """

    count: int
    trained_by: Callable[[Tensor], Tensor]
    of_row: Callable[[Tensor], Tensor]


class TrainedParties(nn.Module):
    """A record of which parties have training rows, and which sets of parties have a trained predictor.

    Only some rules have predictors for sets of parties.

    Args:
        parties: K, the number of parties with columns.
        sets: the sets of parties that have a predictor; ``None`` if the rule has no predictors for sets.

    """

    parties: Tensor
    sets: Tensor

    def __init__(self, parties: int, sets: PartySets | None = None) -> None:
        super().__init__()
        self._sets = sets
        self.register_buffer("parties", torch.zeros(parties, dtype=torch.bool))
        self.register_buffer("sets", torch.zeros(0 if sets is None else sets.count, dtype=torch.bool))

    @property
    def missed(self) -> list[int]:
        """Indices k of the parties without a training row; empty if no row has been trained on yet."""
        return (~self.parties).nonzero().squeeze(1).tolist() if self.parties.any() else []

    def note(self, observed: Tensor) -> None:
        """Add trained rows to the record; ``observed`` [B, K] bool marks the parties that have each row."""
        self.parties |= observed.any(dim=0)
        if self._sets is not None and not bool(self.sets.all()):
            self.sets |= self._sets.trained_by(observed)


class Connectivity(nn.Module):
    """A record of which pairs of parties have common training rows, and which parties have labelled training rows.

    Methods that also train on unlabelled rows use this record.

    Args:
        parties: K, the number of parties with columns.

    """

    together: Tensor
    labelled: Tensor

    def __init__(self, parties: int) -> None:
        super().__init__()
        self.register_buffer("together", torch.zeros(parties, parties, dtype=torch.bool))
        self.register_buffer("labelled", torch.zeros(parties, dtype=torch.bool))

    @property
    def missed(self) -> list[int]:
        """Indices k of the parties that no chain of common rows connects to a party with labelled rows."""
        return untied(self.together, self.labelled)

    def note(self, observed: Tensor, known: Tensor | None = None) -> None:
        """Add trained rows to the record: ``observed`` [B, K] marks their parties, ``known`` [B] the labelled rows."""
        if not bool(self.together.all()):
            self.together |= shared(observed)
        if known is not None:
            self.labelled |= observed[known].any(dim=0)


def shared(observed: Tensor) -> Tensor:
    """Return a mask of the pairs of parties that have a row in common: observed [N, K] bool -> [K, K] bool."""
    present = observed.float()
    return present.T @ present > 0


def untied(together: Tensor, labelled: Tensor) -> list[int]:
    """Return the indices k of parties without a connection to a party with labels; empty if no row has a label.

    Two parties are connected if they have common rows, or if a chain of parties connects them in which neighbours have
    common rows. ``together`` [K, K] marks the pairs with common rows, and ``labelled`` [K] the parties with labels.

    >>> untied(torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.bool), torch.tensor([True, False, False]))
    [2]
    """
    reached = labelled
    for _ in range(len(together)):
        reached = reached | together[reached].any(dim=0)
    return (~reached).nonzero().squeeze(1).tolist() if bool(labelled.any()) else []
