"""Messages between parties: encoding, declared contracts, bounds, the ledger, and the in-memory channel.

Nothing here knows a method or NVIDIA FLARE.
"""
