"""Attacks on a training: what each party can infer from the messages that it receives."""

from anyparty.threats.audit import ATTACKS, AttackResult, ThreatReport, run

__all__ = ["ATTACKS", "AttackResult", "ThreatReport", "run"]
