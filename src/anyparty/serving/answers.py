"""What the service answers, as values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from anyparty.predictions import Predictions


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one id, with its provenance.

    Attributes:
        id: as it was asked.
        prediction: the most probable class, or the number; ``None`` without an answer.
        probabilities: by class; ``None`` for numbers, and without an answer.
        took_part: the parties whose blocks the answer used.
        asked: the parties that may take part and have the row.
        silent: those of them that did not answer in time, and why.
        aligned: whether the row is in the alignment; one that is not (a new customer) is known to the active party
            alone.
        predictor: what made the answer.
        reason: why there is no number.

    """

    id: str
    prediction: str | float | None = None
    probabilities: dict[str, float] | None = None
    took_part: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    silent: dict[str, str] = field(default_factory=dict)
    aligned: bool = False
    predictor: str = ""
    reason: str | None = None


def answers(
    ids: Sequence[str], aligned: Tensor, asked: Tensor, made: Predictions, silent: Mapping[str, str]
) -> list[Answer]:
    """Put answers for B rows into words.

    Args:
        ids: [B].
        aligned: [B] bool.
        asked: [B, K] bool, who may take part and has the row.
        made: what the method answered.
        silent: by party, why it did not answer.

    """
    labels, scores = made.labels(), made.scores.tolist()
    took, may, known = made.took_part.tolist(), asked.tolist(), aligned.tolist()

    def names(marks: Sequence[bool]) -> tuple[str, ...]:
        return tuple(name for name, marked in zip(made.blocks, marks, strict=True) if marked)

    found = []
    for n, name in enumerate(ids):
        number, whom = not any(math.isnan(score) for score in scores[n]), names(may[n])
        classes = made.task.classes if number else ()
        found.append(
            Answer(
                id=name, prediction=labels[n], took_part=names(took[n]), asked=whom, aligned=known[n],
                probabilities=dict(zip(classes, scores[n], strict=True)) if classes else None,
                silent={party: silent[party] for party in whom if party in silent},
                predictor=made.predictor, reason=None if number else made.reasons.get(n, "there is no answer"),
            )
        )  # fmt: skip
    return found
