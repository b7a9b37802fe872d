"""Parties on their own machines: the coordinator submits jobs over NVIDIA FLARE and follows them.

Nothing here defines how a method trains or what a message holds.
"""
