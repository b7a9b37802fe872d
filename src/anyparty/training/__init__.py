"""Train and predict as one party: the loop over stages and epochs, checkpoints, callbacks, membership.

Nothing here saves a model or knows a user's tables.
"""
