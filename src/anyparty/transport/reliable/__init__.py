"""Delivery of every message once and in order over a carrier that may lose, repeat or reorder packets.

No module of this package depends on NVIDIA FLARE.
"""
