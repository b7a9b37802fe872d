"""FALSE-VFL-I and II: a deep generative model of all parties' blocks.

Other methods do not use this package.
"""
