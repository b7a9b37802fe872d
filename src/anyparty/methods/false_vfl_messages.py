"""What FALSE-VFL sends, and what can be learnt from it.  Letters as in ``false_vfl_nets``."""

from __future__ import annotations

from anyparty.methods.fusion import embedding
from anyparty.terms import Declared

EMBEDDING = embedding(
    "active", "mean and variance of z as party k's block has them, [B_k, 2 D], of those rows of the batch that it has"
)
LIKELIHOOD = Declared(
    tag="likelihood", frm="block", to="active",
    holds="log p(x_k | z_l), [L, B_k]; under MNAR with the log-probability that the party has the row or lacks it, "
          "[L, B]",
    learns="how well each sample of z explains a block that the active party does not see",
)  # fmt: skip
WEIGHT = Declared(
    tag="weight", frm="active", to="block",
    holds="in pretraining the derivative of the loss by the log-likelihoods, [L, B_k] ([L, B] under MNAR), zero for "
          "samples that weigh next to nothing; afterwards one and the same number for all samples",
    learns="in pretraining which samples explain a row best for all parties together; afterwards nothing",
)  # fmt: skip
SLOPE = Declared(
    tag="slope", frm="block", to="active",
    holds="the slope of the log-likelihoods by those N samples whose weight is not zero, times that weight, "
          "[N, D]",
    learns="where to move a sample so that it explains a block better that the active party does not see: a little "
           "more of the block than the embedding tells",
)  # fmt: skip
SAMPLES = Declared(
    tag="samples", frm="active", to="block",
    holds="z_l, [L, B_k, D], of the party's rows of the batch; under MNAR of all rows, [L, B, D]",
    learns="party k sees, row by row, what the parties that have the row make of it together; where one other party "
           "has it, that party's mean and variance, as closely as L samples tell (in training more closely with every "
           "epoch); under MNAR also of rows that it does not have",
)  # fmt: skip
GRADIENT = Declared(
    tag="gradient", frm="active", to="block",
    holds="the derivative of the loss by the embedding, [B_k, 2 D]",
    learns="in pretraining how its view of a row differs from that of all; afterwards something about labels: we "
           "measured one attack alone, the first singular direction, which did not separate two classes",
)  # fmt: skip
IMPUTATION = Declared(
    tag="imputation", frm="active", to="block",
    holds="z_l, [L, B, D], and how much each counts, [L, B], of the rows whose block, or empty cells, the party wants "
          "filled in: all that it lacks, or all that it has",
    learns="what the other parties' blocks say of the party's own columns, which is what it asks for",
    when="a party's missing blocks or empty cells are imputed (impute)",
)  # fmt: skip
MESSAGES = (EMBEDDING, SAMPLES, LIKELIHOOD, WEIGHT, SLOPE, GRADIENT, IMPUTATION)
