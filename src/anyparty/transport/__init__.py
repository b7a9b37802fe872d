"""Messages between parties: encoding, checks of received messages, counts of sent messages, and in-memory channels.

No module of this package depends on a method or on NVIDIA FLARE.
"""
