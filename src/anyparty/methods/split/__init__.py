"""Split learning: parties send embeddings to the hosts of heads, and the hosts send gradients back.

A method's ``Rule`` only computes with tensors. It has no training loop, sends no message and reads no file.
"""
