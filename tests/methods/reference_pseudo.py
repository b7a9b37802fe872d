"""A slow version of pseudo-labels: each row alone in double precision; it uses the split method's version twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from anyparty.methods.method import Batch, State
from anyparty.methods.split.laser import Laser
from anyparty.methods.split.pseudo_labels import PseudoLabelled
from tests.methods.reference import Joint, mean_of
from tests.methods.reference import joint_gradients as split_gradients
from tests.worlds import World


def joint_gradients(
    method: PseudoLabelled, of: World, states: Mapping[str, State], batch: Batch
) -> tuple[float, dict[str, Tensor]]:
    """Return the loss of a batch and its derivatives with respect to all parties' parameters."""
    if batch.step_id[0] != "pseudo":
        return split_gradients(method, of, states, batch)
    labelled = [n for n in batch.rows.tolist() if of.labeled[n]]
    others = [n for n in batch.rows.tolist() if not of.labeled[n]]
    joint = Joint(method, of, states)
    said = {n: answer(method, joint, n) for n in others}
    sure = [n for n in others if said[n].max() >= method.pseudo.sure]
    assert 0 < len(sure)
    loss, found = split_gradients(method, of, states, replace(batch, rows=torch.tensor(labelled)))
    guesses = of.y.clone()
    for n in sure:
        guesses[n] = said[n].argmax()
    known = torch.ones(of.n, dtype=torch.bool)
    rows = {name: replace(each, labeled=known, y=guesses) for name, each in of.rows.items()}
    guessed = replace(of, y=guesses, labeled=known, rows=rows)
    more, theirs = split_gradients(method, guessed, states, replace(batch, rows=torch.tensor(sure)))
    share = method.pseudo.unlabelled_weight * len(sure) / len(others)
    return loss + share * more, {name: gradient + share * theirs[name] for name, gradient in found.items()}


def answer(method: PseudoLabelled, joint: Joint, n: int) -> Tensor:
    """Return the method's probabilities for a row: [C]."""
    K, there = joint.of.roster.K, joint.O(n)
    f = {k: joint.f(k, n) for k in there}
    if isinstance(method.rule, Laser):
        heads = [0] if method.rule.heads == "one" else list(there)
        return mean_of([joint.g(m, mean_of(list(f.values()))).softmax(0) for m in heads]).detach()
    width = method.embedding
    zeros = torch.zeros(width, dtype=torch.float64)
    return joint.g(0, torch.cat([f.get(k, zeros) for k in range(K)])).softmax(0).detach()
