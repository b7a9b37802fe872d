"""Settings of encoders, and the factories that build encoder networks from these settings.

No other module of this package imports networks, which takes seconds.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from anyparty.config.settings_group import Settings
from anyparty.config.user_code import NOTHING, AllowedCode, load_encoder
from anyparty.errors import ConfigError, some
from anyparty.networks.encoders import LSTM, MLP, Factory, ResNet, Share, Width
from anyparty.networks.table_encoder import TableEncoder

KINDS = {
    "mlp": ("hidden", "activation", "dropout", "norm"),
    "resnet": ("shape", "widths", "depths"),
    "lstm": ("steps", "memory"),
    "table": ("units", "bins", "drop"),
}
"""Each kind of network, with the settings that only this kind has."""


class Encoder(Settings):
    """Settings of an encoder: ``kind`` with its settings, or ``factory = "module:name"`` for user-defined code.

    ``kind = "mlp"`` takes hidden, activation, dropout, norm; ``"resnet"`` takes shape, widths, depths; ``"lstm"``
    takes steps, memory; ``"table"`` takes units, bins, drop.
    """

    kind: Literal["mlp", "resnet", "lstm", "table"] = "mlp"
    hidden: tuple[Width, ...] = MLP.hidden
    activation: str = MLP.activation
    dropout: Share = MLP.dropout
    norm: bool = MLP.norm
    shape: tuple[Width, Width, Width] | None = None
    widths: tuple[Width, ...] = ResNet.widths
    depths: tuple[Width, ...] = ResNet.depths
    steps: Width | None = None
    memory: Width = LSTM.hidden
    units: Width = TableEncoder.units
    bins: Annotated[int, Field(ge=2)] = TableEncoder.bins
    drop: Share = TableEncoder.drop
    factory: str | None = None

    def make(self, setting: str = "encoder.factory", allowed: AllowedCode = NOTHING) -> Factory:
        """Return the factory that builds the encoder network.

        Args:
            setting: the name of the setting that holds ``factory``, for error messages.
            allowed: the user code that may be imported.

        Raises:
            ConfigError: a setting is missing or out of range, or the code in ``factory`` cannot be loaded.
        """
        if self.factory is not None:
            return load_encoder(self.factory, setting, allowed)
        if self.kind == "resnet":
            if self.shape is None:
                raise ConfigError("encoder: kind 'resnet' needs shape = [channels, height, width]")
            return ResNet(shape=self.shape, widths=self.widths, depths=self.depths)
        if self.kind == "lstm":
            if self.steps is None:
                raise ConfigError("encoder: kind 'lstm' needs steps, the length of the series")
            return LSTM(steps=self.steps, hidden=self.memory)
        if self.kind == "table":
            return TableEncoder(units=self.units, bins=self.bins, drop=self.drop)
        return MLP(hidden=self.hidden, activation=self.activation, dropout=self.dropout, norm=self.norm)

    @model_validator(mode="after")
    def _ranges(self) -> Encoder:
        """Reject settings that have no effect or are out of range.

        A setting without effect is accepted if it has its default value, because saved settings contain every default.
        """
        wanted = ("factory",) if self.factory is not None else ("kind", "factory", *KINDS[self.kind])
        fields = type(self).model_fields
        idle = [name for name in fields if name not in wanted and getattr(self, name) != fields[name].default]
        if idle and self.factory is not None:
            raise ValueError(f"{some(idle)} would do nothing with factory = {self.factory!r}, which makes the whole "
                             f"network; leave it out")  # fmt: skip
        if idle:
            owner = next(kind for kind, names in KINDS.items() if idle[0] in names)
            raise ValueError(f"{some(idle)} would do nothing with kind = {self.kind!r}; set kind = {owner!r}, or "
                             f"leave it out: {self.kind!r} takes {', '.join(KINDS[self.kind])}")  # fmt: skip
        if self.factory is None:
            self.make()
        return self


def superseded(key: str, value: object) -> tuple[str, ...]:
    """Return the names of the encoder settings that no longer apply after ``key`` is set to ``value``.

    Only the keys "kind" and "factory" make other settings inapplicable.

    >>> superseded("kind", "lstm")
    ('factory', 'hidden', 'activation', 'dropout', 'norm', 'shape', 'widths', 'depths', 'units', 'bins', 'drop')
    """
    if key == "factory":
        return ("kind", *(name for names in KINDS.values() for name in names))
    if key == "kind" and value in KINDS:
        return ("factory", *(name for kind, names in KINDS.items() if kind != value for name in names))
    return ()
