"""Split learning: parties send embeddings, and whoever hosts a head sends gradients back.

A method here is a `Rule`; loops, messages and files are elsewhere.
"""
