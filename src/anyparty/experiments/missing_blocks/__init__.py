"""Suites with missing blocks: methods are compared under mechanisms of missingness in training and at test."""
