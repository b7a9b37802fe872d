"""What is asked of a rule, which may be a user's own: slips that would train nothing, or fail far from their place."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from anyparty.errors import ConfigError
from anyparty.methods.fusion import Rule
from anyparty.terms import Roster


def check_counts(rule: Rule, roster: Roster, width: int) -> None:
    """Check how many encoders a party has, and what heads there are, where embeddings are ``width`` wide.

    Of heads that are parties' own there are as many as owners, whatever ``head`` says.

    Raises:
        ConfigError: they are no whole numbers of at least 1.
    """
    copies, head, owned = rule.copies(roster), rule.head(roster, width), rule.owners(roster) is not None
    if not _counts(copies):
        raise ConfigError(f"{rule.can.title}: expected copies, how many encoders a party has, to be a whole number of "
                          f"at least 1, got {copies!r}")  # fmt: skip
    if not isinstance(head, tuple | list) or len(head) != 2 or not _counts(*head[owned:]):
        raise ConfigError(f"{rule.can.title}: expected head to be how many heads there are and how wide a head's input "
                          f"is, two whole numbers of at least 1, got {head!r}")  # fmt: skip


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
