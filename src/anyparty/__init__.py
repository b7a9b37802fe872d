"""Vertical federated learning that works when data is missing."""
