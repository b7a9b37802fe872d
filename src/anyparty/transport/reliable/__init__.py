"""Delivery of every message once and in order over a carrier that may lose, repeat or reorder packets.

Nothing here knows NVIDIA FLARE.
"""
