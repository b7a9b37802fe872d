"""One party's table: read its file, detect column types, encode the target, fit the preprocessing.

Nothing here knows another party or imports a model.
"""
