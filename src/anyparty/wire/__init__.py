"""Carriers of messages between parties, and the ledger around them."""
