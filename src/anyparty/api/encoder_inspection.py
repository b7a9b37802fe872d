"""Check locally, before a federated run, whether a party's encoder learns useful embeddings.

    for epoch in inspect_encoder(config.load("credit.toml"), epochs=50, every=10):
        print(epoch.epoch, epoch.loss, epoch.scores.lost)

Source: Irureta et al. (APC-VFL), appendix F; ``methods.encoder_check`` implements the algorithm.  The check excludes
the test rows that the run's seed draws, because choosing an architecture on test rows would bias the test score.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from anyparty.api.federation import Federation
from anyparty.config import Config, PartySettings
from anyparty.config.method_factory import chosen
from anyparty.errors import ConfigError, nearest
from anyparty.methods.encoder_check import EncoderEpoch, inspect
from anyparty.problem.splits import TEST, UNUSED
from anyparty.tables.preprocessing import Prepare
from anyparty.tables.target import encode


def inspect_encoder(
    config: Config, party: str | None = None, *, tables: dict[str, Any] | None = None, **how: Any
) -> Iterator[EncoderEpoch]:
    """Train a party's encoder as an autoencoder; compare how well embeddings and raw columns predict the labels.

    Args:
        config: the federation's settings: the party's table, encoder and optimizer, and the method's embedding size.
        party: the party whose encoder is checked; by default the active party.
        tables: for each party, a data frame that replaces the file in the settings.
        how: arguments of ``methods.encoder_check.inspect``: embedding, epochs, every, batch_size, classifier, settings,
            metric, folds.  These arguments replace the values that ``config`` gives.

    Returns:
        One entry for each scored epoch: the epoch's number from 1, its loss, and the classifier's scores [folds] on the
        raw columns and on the embeddings.  Every ``every``-th epoch and the last one are scored.

    Raises:
        ConfigError: the party does not exist, it has no columns or no labels, its labels are numbers, or a value is out
            of range.
        AlignmentError: the tables share no ids, there are fewer labelled rows than folds of the cross-validation,
            or a fold would lack a class.
        TableError: a table cannot be read, or its ids, columns or labels cannot be used.
    """
    federation = Federation.from_config(config, tables)
    name = party or federation.roster.active
    x, y, classes = _rows(federation, name)
    made = chosen(config)
    width = getattr(made, "active_embedding" if name == federation.roster.active else "passive_embedding", None)
    values = {
        "encoder": config.encoder_of(name), "optimizer": config.optimizer_of(name), "seed": config.train.seed,
        "embedding": width or getattr(made, "embedding", 64), "batch_size": config.train.batch_size,
        "activation": getattr(made, "activation", "") if width else "", "classes": classes,
    }  # fmt: skip
    return inspect(x, y, **{**values, **how})


def _rows(federation: Federation, name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], tuple[str, ...]]:
    """Return a party's labelled rows [n, d] after preprocessing, their classes [n], and the names of the classes.

    Test rows and unused rows are left out.
    """
    roster, settings = federation.roster, federation.config.train
    if name not in roster.names:
        raise ConfigError(f"there is no party {name!r}{nearest(name, roster.names)}")
    table, position = federation.teaching(name), federation.alignment.position[name]
    if table.label is None or name not in roster.blocks:
        have = [each for each in roster.labelers if each in roster.blocks]
        lacks = "labels" if table.label is None else "columns"
        raise ConfigError(f"party {name!r} has no {lacks}, and the encoder check measures how well embeddings of the "
                          f"columns predict the labels; choose {', '.join(have)}")  # fmt: skip
    use = federation.split(settings)
    task = replace(federation.problem(), table=federation.tables[name], position=position).task_for(use)
    if task.kind != "classification":
        raise ConfigError(f"party {name!r}: the label {table.label.name!r} is a number, and the encoder check scores "
                          f"classes")  # fmt: skip
    y, labelled = encode(table.label, task, name)
    own = table.blocks_at(position)
    own = own[(own >= 0) & (use != TEST) & (use != UNUSED)]
    own = own[labelled.numpy()[own]]
    party = federation.config.parties.get(name, PartySettings())
    prepare = Prepare.fit(table, own, scale=party.scale, max_levels=party.max_levels)
    return prepare.apply(table)[own], y.numpy()[own], task.classes
