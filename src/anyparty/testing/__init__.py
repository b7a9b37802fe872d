"""Checks of a user's own methods, encoders and missingness mechanisms. The project's own pass the same checks."""

from anyparty.testing.any_check import check
from anyparty.testing.encoder_contract import check_encoder
from anyparty.testing.mechanism_contract import check_mechanism
from anyparty.testing.rule_check import check_method

__all__ = ["check", "check_encoder", "check_mechanism", "check_method"]
