"""Read one party's table, infer its column types, encode its target, and fit its preprocessing.

No module of this package uses another party's table or imports a model.
"""
