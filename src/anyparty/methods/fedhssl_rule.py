"""FedHSSL's fine-tuning as a rule of the split family, and what FedHSSL sends.  Letters as in ``fedhssl``."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from anyparty.methods.fusion import EMBEDDING, GRADIENT, Answer, Fusion, Given
from anyparty.methods.method import Batch
from anyparty.methods.standard import Standard
from anyparty.terms import Capabilities, Declared, Roster

LEARNS = "the other sees a projection of every row that it has too: no raw feature, but whatever of it that keeps"
REPRESENTATIONS = (
    Declared(tag="representation", frm="block", to="active", learns=LEARNS,
             holds="z^c_k, the projected cross-party representation of the party's rows of the batch, [B_k, H]"),
    Declared(tag="representation", frm="active", to="block", learns=LEARNS,
             holds="z^c_A of the same rows, [B_k, H], zeros where the active party lacks the row"),
)  # fmt: skip
TOP = Declared(tag="top", frm="block", to="active",
               holds="the weights of the local top encoder, its projector and predictor, once an epoch",
               learns="how the party's representations are spread: weights know its rows by their sums")  # fmt: skip
MEAN = Declared(tag="mean", frm="active", to="block", holds="the mean of all parties' such weights",
                learns="the same of all parties together")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """Fine-tuning: one head over concatenated embeddings, trained on the rows that all parties have."""

    whole: Standard = field(default_factory=lambda: Standard(absent="zeros"))

    @property
    def can(self) -> Capabilities:
        """What FedHSSL can do."""
        return Capabilities(
            title="FedHSSL",
            paper="He et al. 2024; Hong, Park, Hwang 2025, app. D.1",
            trains_on="all rows that anybody has, then labelled rows that all parties have",
            predicts_for="any row, with zeros in place of absent embeddings",
            needs="any",
            trains_with="all",
            messages=(*REPRESENTATIONS, TOP, MEAN, EMBEDDING, GRADIENT),
            unlabelled=True,
        )

    def copies(self, roster: Roster) -> int:
        """One encoder a party."""
        return self.whole.copies(roster)

    def owners(self, roster: Roster) -> None:  # noqa: ARG002
        """Return ``None``: the head is everybody's."""
        return

    def reads(self, roster: Roster, owners: tuple[int, ...]) -> tuple[int, ...]:
        """Return every party: a head fuses them all."""
        return self.whole.reads(roster, owners)

    def head(self, roster: Roster, width: int) -> tuple[int, int]:
        """One head on all embeddings side by side."""
        return self.whole.head(roster, width)

    def trains_on(self, roster: Roster, observed: Tensor) -> Tensor:
        """Return the rows that all have."""
        return self.whole.trains_on(roster, observed)

    def loss(self, fusion: Fusion, h: Tensor, observed: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss of the head."""
        return self.whole.loss(fusion, h, observed, y, batch)

    def outputs(self, fusion: Fusion, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the head's answer, for rows that anybody has."""
        return self.whole.outputs(fusion, h, observed)

    def answer(self, given: Given) -> Answer:
        """Return the joint answer."""
        return self.whole.answer(given)
