"""FALSE-VFL I and II: a deep generative model of all parties' blocks.

Nothing here is used by other methods.
"""
