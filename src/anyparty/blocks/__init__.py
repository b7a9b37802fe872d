"""Aligned rows as tensors and masks, and their batches."""
