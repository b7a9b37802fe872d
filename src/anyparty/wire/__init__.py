"""Transport: messages, checks, the ledger, and carriers in memory and over NVIDIA FLARE."""
