"""Reports on runs: scores, messages, training curves and the contribution of each party.

A report is made from the records of runs. Methods and neural networks are imported only if the user asks for new scores
of the models.
"""
