"""Parties on their own machines: the coordinator submits jobs over NVIDIA FLARE and follows their progress.

No module of this package defines how a method trains or what a message contains.
"""
