"""Messages between parties: encoding, declared contracts, bounds, the ledger, and the in-memory channel.

No module of this package depends on a method or on NVIDIA FLARE.
"""
