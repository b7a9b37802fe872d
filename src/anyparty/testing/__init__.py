"""Checks of a user's own methods, encoders and missingness mechanisms. The project's own pass the same checks."""

from anyparty.testing.rule_check import check_method

__all__ = ["check_method"]
