"""Reports on runs: scores, messages, training curves and the contribution of each party.

A report is made from the records of runs.  It imports methods and neural networks only if it is asked to score the
models again.
"""
