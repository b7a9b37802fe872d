"""Train and predict as one party: the loop over stages and epochs, checkpoints, callbacks, membership.

No module of this package saves a model or reads a user's tables.
"""
