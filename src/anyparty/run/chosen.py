"""The method that settings choose: one that ships, or the user's own."""

from __future__ import annotations

from anyparty.config import Config
from anyparty.config.imported import imported
from anyparty.methods.by_factory import made_by
from anyparty.methods.method import Method
from anyparty.methods.table import method


def chosen(config: Config) -> Method:
    """Return the method of ``[method]``, with its parameters.

    Raises:
        ConfigError: there is none such, its parameters cannot be used, or it is the user's own and cannot be imported
            or made.
    """
    asked = config.method
    if asked.factory is None:
        return method(asked.name, **asked.parameters)
    return made_by(imported(asked.factory, "method.factory"), asked.name, asked.parameters)
