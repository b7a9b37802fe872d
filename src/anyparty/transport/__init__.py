"""Messages between parties: encoding, checks and counts, in-memory channels, and reliable delivery.

No module of this package depends on a method or on NVIDIA FLARE.
"""
