"""Checks of a user's own methods. The project's own methods pass the same checks."""

from anyparty.testing.rule_check import check_rule

__all__ = ["check_rule"]
