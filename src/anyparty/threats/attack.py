"""The interface of an attack: what the attacker has, what it infers, and how an inference is written down.

An attack is one class.  It reads a party's view of a training (``ReceivedView``) and outside knowledge (``Aid``), such
as the labels of some rows, and returns guesses.  It never reads the truth: ``audit.run`` compares guesses with it. All
attackers are semi-honest: they run the unchanged code during the training and compute their guesses afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from anyparty.threats.view import GRADIENT, Floats, ReceivedView, RowValues

Target = Literal["labels", "columns", "attributes"]
Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Aid:
    """Knowledge of the attacker from outside the federation.

    Attributes:
        classes: C, the number of classes; 0 if the labels are numbers.
        seed: the seed of the attack's random choices.
        victim: the party whose columns are attacked; empty in attacks on labels.
        rows: [k] the indices of the rows that the attacker knows.
        values: what the attacker knows of these rows: the labels [k], or the victim's prepared columns [k, D].
    """

    classes: int
    seed: int = 0
    victim: str = ""
    rows: Indices
    values: Floats

    def of(self, rows: Indices) -> tuple[Indices, Floats]:
        """Return the indices in ``rows`` of the known rows, and what the attacker knows of these rows."""
        _, where, known = np.intersect1d(rows, self.rows, return_indices=True)
        return where, self.values[known]


@dataclass(frozen=True, kw_only=True)
class Guess:
    """An attack's inference about rows.

    Attributes:
        rows: [n] the indices of the rows.
        values: the guess.  Labels of two classes: a number [n] that is larger for the second class.  More classes: a
            class or cluster [n].  Numbers: a number [n].  Columns and attributes: [n, D].
        classes: [n] the guessed class of each row, if labels of two classes are attacked.
        named: True if the attacker knows which class or direction is which.  If False, the score is that of the best
            assignment of names; a single known label, or the class shares, give this assignment.
        source: the stage and the sender of the messages that were used.
        other: the sender of the messages, if they have a single sender.
    """

    rows: Indices
    values: Floats
    classes: Indices | None = None
    named: bool = True
    source: str = ""
    other: str = ""


class Attack(ABC):
    """An attack on a party's labels or columns.

    Attributes:
        name: its name in settings and tables.
        paper: its source.
        target: what it infers.
        informed: True if it needs known labels or rows from outside the federation.
        assumes: the attacker's knowledge beyond its own rows, its networks and its messages, in words.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    target: ClassVar[Target] = "labels"
    informed: ClassVar[bool] = False
    assumes: ClassVar[str] = "nothing else"

    @abstractmethod
    def infer(self, view: ReceivedView, aid: Aid) -> list[Guess]:
        """Return the guesses, one for each stage and sender; an empty list if the view has no input for the attack."""

    def alone(self, view: ReceivedView, aid: Aid, rows: Indices) -> Guess | None:  # noqa: ARG002
        """Return the guess for ``rows`` that needs no message, from the attacker's own columns; ``None`` without one.

        The difference to the guess of ``infer`` is the contribution of the messages.
        """
        return None

    def applies(self, classes: int) -> bool:  # noqa: ARG002
        """Return True if the attack can be used on labels of ``classes`` classes; 0 stands for numbers."""
        return True


def gradients(view: ReceivedView) -> list[RowValues]:
    """Return the gradients that the party received in the first epoch of each stage."""
    return [each for each in view.row_values("first") if each.tag == GRADIENT and each.values.any()]


def source_of(values: RowValues) -> str:
    """Return the stage and the other party of row values, in words."""
    return f"stage {values.stage}, {values.tag} of {values.other}"
