"""The method that settings choose: one that ships, or the user's own."""

from __future__ import annotations

from anyparty.config import Config
from anyparty.config.user_code import load_code
from anyparty.methods.by_factory import METHOD, made_by
from anyparty.methods.method import Method
from anyparty.methods.table import method


def chosen(config: Config) -> Method:
    """Return the method of ``[method]``, with its parameters.

    Raises:
        ConfigError: there is none such, its parameters cannot be used, or it is the user's own and cannot be made.
        CodeNotAllowed: it is the user's own, and the settings may not load it.
    """
    asked = config.method
    if asked.factory is None:
        return method(asked.name, **asked.parameters)
    found = load_code(asked.factory, "method.factory", config.allowed_code, METHOD)
    return made_by(found, asked.name, asked.parameters)
