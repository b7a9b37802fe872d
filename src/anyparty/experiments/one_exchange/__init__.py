"""Suites of one-exchange methods: the active party has few columns, and scores come from cross-validation."""
