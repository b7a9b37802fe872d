"""Suites of blocks missing in training and at test: a method, a mechanism for each of the two, a metric."""
