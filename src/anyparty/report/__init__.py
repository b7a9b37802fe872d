"""Reports on runs: scores, messages, training curves and the contribution of each party.

A report reads records of runs.  It imports no method and no network unless it is asked to score the model again.
"""
