"""Aligned rows as tensors and masks, their splits and batches, and mechanisms of missing blocks."""
