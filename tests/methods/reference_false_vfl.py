"""A slow version of FALSE-VFL's objective: one graph, each row and each sample alone, with the paper's formulas.

It uses double precision and torch's own distributions, and shares only the networks and the draw of random numbers with
the method.  Equations and sections are those of Hong, Park, Hwang, arXiv 2505.11035.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Normal
from torch.nn.functional import softplus

from anyparty.core.draws import normal
from anyparty.methods.false_vfl.false_vfl import LEARNS, PRETRAIN, TRAIN, FalseVFL
from anyparty.methods.method import Batch, State
from tests.worlds import World


def normals(key: int, rows: Tensor, L: int, width: int) -> Tensor:
    """Return the noise of rows [n]: [L, n, width]."""
    return normal(key, rows, torch.arange(L), torch.arange(width)).transpose(0, 1)


class Joint:
    """The networks of all parties in one object, in double precision."""

    def __init__(self, method: FalseVFL, of: World, states: Mapping[str, State], batch: Batch) -> None:
        self.method, self.of, self.batch = method, of, batch
        self.modules = {
            f"{party}/{name}": deepcopy(module).double()
            for party, state in states.items()
            for name, module in state.modules.items()
        }
        L = method.samples
        self.eps_z = normals(batch.key("z"), batch.rows, L, method.embedding).double()
        self.eps_h = normals(batch.key("h"), batch.rows, L, method.top).double()

    def net(self, party: str, name: str, u: Tensor) -> Tensor:
        return self.modules[f"{party}/{name}"](u.unsqueeze(0))[0]

    def normal(self, party: str, name: str, u: Tensor) -> Normal:
        """Return the distribution whose mean and deviation a network outputs."""
        mean, raw = self.net(party, name, u).chunk(2)
        return Normal(mean, softplus(raw) + self.method.floor)

    def has(self, n: int) -> list[str]:
        """Return O_n, the parties that hold row n."""
        return [name for k, name in enumerate(self.of.roster.blocks) if self.of.observed[n, k]]

    def posterior(self, n: int) -> Normal:
        """Return q(z | x^O): the mean of the means, the inverse of the summed precisions   (1)."""
        views = [self.normal(k, "encoder", self.of.x[k][n].double()) for k in self.has(n)]
        precision = sum(1 / view.variance for view in views)
        return Normal(sum(view.mean for view in views) / len(views), precision**-0.5)

    def block_noise(self, party: str, b: int, sample: int) -> Tensor:
        """Return the noise with which party k draws x^k_l for row b of the batch, which it lacks."""
        key, width = self.batch.key(f"block of {party}"), self.of.x[party].shape[1]
        return normals(key, self.batch.rows[[b]], self.method.samples, width)[sample, 0]

    def log_block(self, party: str, n: int, b: int, sample: int, z: Tensor) -> Tensor:
        """Return log p(x^k | z) if the party has the row; under MNAR plus the log-probability of its mask   (A.2)."""
        decoded, total = self.normal(party, "decoder", z), torch.zeros((), dtype=torch.float64)
        x = self.of.x[party][n].double()
        if party in self.has(n):
            each = decoded.log_prob(x)
            total = each[~self.of.gaps[party][n]].sum() if party in self.of.gaps else each.sum()
        elif self.method.mnar:
            x = decoded.mean + decoded.stddev * self.block_noise(party, b, sample)
        if self.method.mnar:
            observed = Bernoulli(logits=self.net(party, "indicator", x)[0])
            total = total + observed.log_prob(torch.tensor(float(party in self.has(n)), dtype=torch.float64))
        return total

    def log_label(self, n: int, z: Tensor) -> Tensor:
        """Return log p_psi(y | z)."""
        active, y = self.of.roster.active, self.of.y[n]
        if self.of.task.kind == "regression":
            return self.normal(active, "discriminator", z).log_prob(y.double()).sum()
        return Categorical(logits=self.net(active, "discriminator", z)).log_prob(y)

    def log_weight(self, b: int, sample: int, *, labels: bool) -> Tensor:
        """Return log w_l, or with labels log w_l p(y | z_l)   (3.3.2, 3.3.3)."""
        n, active = int(self.batch.rows[b]), self.of.roster.active
        q = self.posterior(n)
        z = q.mean + q.stddev * self.eps_z[sample, b]
        above = self.normal(active, "global_encoder", z)
        h = above.mean + above.stddev * self.eps_h[sample, b]
        log_p = self.normal(active, "global_decoder", h).log_prob(z).sum()
        log_p = log_p + Normal(torch.zeros_like(h), 1.0).log_prob(h).sum()
        for party in self.of.roster.blocks:
            log_p = log_p + self.log_block(party, n, b, sample, z)
        if labels:
            log_p = log_p + self.log_label(n, z)
        return log_p - q.log_prob(z).sum() - above.log_prob(h).sum()

    def log_weights(self, stage: str) -> Tensor:
        """Return the log-weights [L, B] of a stage."""
        rows, samples = range(len(self.batch.rows)), range(self.method.samples)
        return torch.stack(
            [torch.stack([self.log_weight(b, sample, labels=stage == TRAIN) for b in rows]) for sample in samples]
        )

    def loss(self, log_w: Tensor) -> Tensor:
        """Return minus the mean of log (1/L) sum_l w_l."""
        return -(log_w.logsumexp(0) - math.log(len(log_w))).mean()

    def goal(self, log_w: Tensor, stage: str) -> Tensor:
        """Return the function to differentiate: the loss, without samples of negligible weight in stage 1."""
        weight, least = log_w.detach().softmax(0), self.method.negligible if stage == PRETRAIN else 0.0
        return -(torch.where(weight < least, 0.0, weight) * log_w).sum(0).mean()


def joint_gradients(
    method: FalseVFL, of: World, states: Mapping[str, State], batch: Batch
) -> tuple[float, dict[str, Tensor]]:
    """Return the loss of a batch and its derivatives with respect to the parameters that the batch's stage trains."""
    stage = str(batch.step_id[0])
    learns = LEARNS[stage] if stage == PRETRAIN or method.train_encoders else ("discriminator",)
    joint = Joint(method, of, states, batch)
    log_w = joint.log_weights(stage)
    parameters = {
        f"{where}/{name}": p
        for where, module in joint.modules.items()
        if where.split("/")[1] in learns
        for name, p in module.named_parameters()
        if p.requires_grad
    }
    found = torch.autograd.grad(joint.goal(log_w, stage), list(parameters.values()), allow_unused=True)
    return joint.loss(log_w).item(), {
        name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(parameters.items(), found, strict=True)
    }
