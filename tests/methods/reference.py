"""Slow versions of the split methods: one autograd graph, and loops over rows, heads and subsets, as in the paper.

All parties' networks are copied into one object in double precision, every row is computed alone, and the loss is
written like the equation.  The code shares only the draw of random choices with the methods.

Equations (1) to (8) are those of Valdeira, Wang, Chi, ICLR 2025.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from itertools import combinations
from math import comb

import torch
from torch import Tensor, nn

from anyparty.core.draws import bits
from anyparty.core.types import Task
from anyparty.methods.method import Batch, State
from anyparty.methods.split.combinatorial import Combinatorial
from anyparty.methods.split.laser import Laser
from anyparty.methods.split.local import Ensemble, Local
from anyparty.methods.split.plug import Plug
from anyparty.methods.split.split_method import Split
from anyparty.methods.split.standard import Standard
from anyparty.methods.split.sum import Sum
from anyparty.networks.encoders import Copies
from anyparty.networks.heads import ModuleHeads, StackedLinear, StackedMLP
from tests.worlds import World

Subset = tuple[int, ...]


def apply_copy(stack: nn.Module, m: int, u: Tensor) -> Tensor:
    """Apply network m of a stack to one vector: [I] -> [O]."""
    if isinstance(stack, ModuleHeads):
        return stack.each[m](u.unsqueeze(0))[0]
    if isinstance(stack, nn.ModuleList):
        return stack[m](u.unsqueeze(0))[0]
    assert isinstance(stack, StackedMLP)
    for layer in (stack.first, *stack.rest):
        u = layer.weight[m] @ u + layer.bias[m] if isinstance(layer, StackedLinear) else layer(u)
    return u


def loss_of(task: Task, out: Tensor, y: Tensor) -> Tensor:
    """Return one row's loss: [C], [] -> []."""
    if task.kind == "regression":
        return (out[0] - y) ** 2
    return torch.logsumexp(out, 0) - out[y]


def mean_of(vectors: list[Tensor]) -> Tensor:
    return sum(vectors) / len(vectors)


def subsets_with(m: int, O: Subset) -> Iterator[Subset]:  # noqa: E741 - the paper's letter
    """Yield P_m(O): the subsets of O that contain m."""
    others = [k for k in O if k != m]
    for size in range(len(others) + 1):
        for rest in combinations(others, size):
            yield tuple(sorted((m, *rest)))


class Joint:
    """The networks of all parties in one object, in double precision."""

    def __init__(self, method: Split, of: World, states: Mapping[str, State]) -> None:
        self.method, self.of = method, of
        self.modules = {
            f"{party}/{name}": deepcopy(module).double()
            for party, state in states.items()
            for name, module in state.modules.items()
        }
        self.hosts = method.topology(of.roster).hosts

    def parameters(self) -> dict[str, nn.Parameter]:
        return {
            f"{where}/{name}": p
            for where, module in self.modules.items()
            for name, p in module.named_parameters()
            if p.requires_grad
        }

    def f(self, k: int, n: int, copy: int = 0) -> Tensor:
        """Return f_k(x_k^n), or that of the encoder's copy for one subset: [H]."""
        name = self.of.roster.blocks[k]
        encoder, x = self.modules[f"{name}/encoder"], self.of.x[name][n].double()
        if isinstance(encoder, Copies):
            return apply_copy(encoder.stack, copy, x)
        return encoder(x.unsqueeze(0))[0]

    def g(self, m: int, u: Tensor) -> Tensor:
        """Apply head m of the active party."""
        return apply_copy(self.modules[f"{self.of.roster.active}/heads"], m, u)

    def head_of(self, k: int, u: Tensor) -> Tensor:
        """Apply the head that belongs to party k, at whichever party it is hosted."""
        for host, owners in self.hosts.items():
            if k in owners:
                return apply_copy(self.modules[f"{host}/heads"], owners.index(k), u)
        raise AssertionError(f"party {k} has no head")

    def owners(self) -> list[int]:
        return sorted(k for owners in self.hosts.values() for k in owners)

    def O(self, n: int) -> Subset:  # noqa: E743, N802 - the paper's letter
        """Return O_n: the parties that hold row n."""
        return tuple(self.of.observed[n].nonzero().squeeze(1).tolist())

    def ell(self, out: Tensor, n: int) -> Tensor:
        y = self.of.y[n]
        return loss_of(self.of.task, out, y.double() if self.of.task.kind == "regression" else y)

    # One function per method

    def local(self, B: list[int]) -> Tensor:
        """Return the sum over parties of the mean over their own rows of loss(g_k(f_k(x_k^n)), y_n)   (2)."""
        total = torch.zeros((), dtype=torch.float64)
        for k in range(self.of.roster.K):
            own = [n for n in B if k in self.O(n)]
            for n in own:
                total = total + self.ell(self.head_of(k, self.f(k, n)), n) / len(own)
        return total

    def standard(self, B: list[int]) -> Tensor:
        """Return the mean over the rows that all parties hold of loss(g(mean_k f_k), y_n)   (1)."""
        whole = [n for n in B if len(self.O(n)) == self.of.roster.K]
        if self.method.rule.absent == "zeros":
            return self.plug(whole, [True] * self.of.roster.K)
        return mean_of([self.ell(self.g(0, mean_of([self.f(k, n) for k in self.O(n)])), n) for n in whole])

    def combinatorial(self, B: list[int]) -> Tensor:
        """Return the sum over S of the mean over rows that have S of loss(g_S(mean_{k in S} f_{k(S)}), y_n)   (3)."""
        K = self.of.roster.K
        every = sorted(
            (S for size in range(1, K + 1) for S in combinations(range(K), size)), key=lambda S: sum(2**k for k in S)
        )
        total = torch.zeros((), dtype=torch.float64)
        for place, S in enumerate(every):
            copies = {k: [T for T in every if k in T].index(S) for k in S}
            has = [n for n in B if set(S) <= set(self.O(n))]
            for n in has:
                u = mean_of([self.f(k, n, copies[k]) for k in S])
                total = total + self.ell(self.g(place, u), n) / len(has)
        return total

    def plug(self, B: list[int], keep: list[bool]) -> Tensor:
        """Return the mean over rows of loss(g(concat_k f_k), y_n), with zeros if k is absent or dropped."""
        losses = []
        for n in B:
            there = [k in self.O(n) and keep[k] for k in range(self.of.roster.K)]
            zeros = torch.zeros(self.method.embedding, dtype=torch.float64)
            u = torch.cat([self.f(k, n) if here else zeros for k, here in enumerate(there)])
            losses.append(self.ell(self.g(0, u), n))
        return mean_of(losses)

    def laser_task(self, n: int, m: int, S: Subset) -> Tensor:
        """Return L_{n m S}: the loss of head m for row n from the blocks S   (4)."""
        return self.ell(self.head_of(m, mean_of([self.f(k, n) for k in S])), n)

    def laser_exact(self, B: list[int], *, normalize: bool) -> Tensor:
        """Return the mean over rows of sum_{m in O_n} sum_{S in P_m(O_n)} 1/|S| L_{n m S}   (5).

        If ``normalize``, the weights of a row sum to 1.
        """
        total = torch.zeros((), dtype=torch.float64)
        for n in B:
            tasks = [(m, S) for m in self.owners() if m in self.O(n) for S in subsets_with(m, self.O(n))]
            weights = [1 / len(S) for _, S in tasks]
            share = sum(weights) if normalize else 1.0
            for (m, S), weight in zip(tasks, weights, strict=True):
                total = total + weight / share * self.laser_task(n, m, S)
        return total / len(B)

    def laser_sampled(self, B: list[int], tasks: Callable[[int, int], Subset], *, normalize: bool) -> Tensor:
        """Return the mean over rows of sum_{m in O_n} sum_i a_i L_{n m S_mi}, a_i = comb(|O_n|-1, i-1)/i   (7), (8).

        ``tasks(b, m)`` is the order of parties for row b of the batch; its first i parties are S_mi.
        """
        total = torch.zeros((), dtype=torch.float64)
        for b, n in enumerate(B):
            heads, size = [m for m in self.owners() if m in self.O(n)], len(self.O(n))
            a = [comb(size - 1, i - 1) / i for i in range(1, size + 1)]
            share = sum(a) * len(heads) if normalize else 1.0
            for m in heads:
                for i in range(1, size + 1):
                    total = total + a[i - 1] / share * self.laser_task(n, m, tasks(b, m)[:i])
        return total / len(B)

    def one_head(self, B: list[int], orders: list[Subset] | None, *, normalize: bool) -> Tensor:
        """Return the mean over rows of sum_{S in O_n} loss(g(mean_{k in S} f_k), y_n), with one head g for all parties.

        With ``orders``, one for each row, estimate it by one S per size i, the first i of the row's order, with
        comb(|O_n|, i).
        """
        total = torch.zeros((), dtype=torch.float64)
        for b, n in enumerate(B):
            O, o = self.O(n), len(self.O(n))  # noqa: E741
            if orders is None:
                tasks = [(1, S) for i in range(1, o + 1) for S in combinations(O, i)]
            else:
                tasks = [(comb(o, i), orders[b][:i]) for i in range(1, o + 1)]
            for weight, S in tasks:
                each = self.ell(self.g(0, mean_of([self.f(k, n) for k in S])), n)
                total = total + each * weight / (2**o - 1 if normalize else 1)
        return total / len(B)

    def sum(self, batch: Batch, keep: float) -> Tensor:
        """Return the mean over rows of half the losses of g([sum_k f_k, indicators]) for O_n and a random subset."""
        K, losses = self.of.roster.K, []
        for n in batch.rows.tolist():
            O = self.O(n)  # noqa: E741
            drawn = tuple(k for k in O if number(batch.key("subset"), n, k) < keep) or O
            each = []
            for S in (O, drawn):
                there = torch.tensor([float(k in S) for k in range(K)], dtype=torch.float64)
                each.append(self.ell(self.g(0, torch.cat([sum(self.f(k, n) for k in S), there])), n))
            losses.append(mean_of(each))
        return mean_of(losses)

    # The loss of any method

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of the method on a batch, with the random choices of the batch's moment."""
        rule, B = self.method.rule, batch.rows.tolist()
        if isinstance(rule, Local | Ensemble):
            return self.local(B)
        if isinstance(rule, Standard):
            return self.standard(B)
        if isinstance(rule, Combinatorial):
            return self.combinatorial(B)
        if isinstance(rule, Plug):
            lots = [number(batch.key("party dropout"), k) for k in range(self.of.roster.K)]
            active = self.of.roster.active
            keep = [
                name == active or not lot < rule.dropout for name, lot in zip(self.of.roster.blocks, lots, strict=True)
            ]
            return self.plug(B, keep)
        if isinstance(rule, Sum):
            return self.sum(batch, rule.keep)
        assert isinstance(rule, Laser)
        return self.laser(rule, batch)

    def laser(self, rule: Laser, batch: Batch) -> Tensor:
        """Return the loss of LASER-VFL, with any number of heads."""
        B = batch.rows.tolist()
        if rule.heads == "one":
            drawn = None if rule.tasks == "all" else [self.order(batch, n, 0) for n in B]
            return self.one_head(B, drawn, normalize=rule.normalize)
        if rule.tasks == "all":
            return self.laser_exact(B, normalize=rule.normalize)
        owners = self.owners()

        def tasks(b: int, m: int) -> Subset:
            order = self.order(batch, B[b], owners.index(m))
            return (m, *(k for k in order if k != m))

        return self.laser_sampled(B, tasks, normalize=rule.normalize)

    def order(self, batch: Batch, n: int, head: int) -> Subset:
        """Return the parties that hold row n, in the order of their random numbers for a head."""
        numbers = {k: number(batch.key("order"), n, head, k) for k in self.O(n)}
        return tuple(sorted(numbers, key=lambda k: (numbers[k], k)))


def number(key: int, *indices: int) -> float:
    """Return the random number with these indices: the first 24 of its 64 bits."""
    drawn = bits(key, *(torch.tensor([index]) for index in indices)).item()
    return (int(drawn) % 2**64 >> 40) / 2**24


def joint_gradients(
    method: Split, of: World, states: Mapping[str, State], batch: Batch
) -> tuple[float, dict[str, Tensor]]:
    """Return the loss of a batch and its derivatives with respect to all parties' parameters."""
    joint = Joint(method, of, states)
    loss, parameters = joint.loss(batch), joint.parameters()
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return loss.item(), {
        name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(parameters.items(), found, strict=True)
    }
