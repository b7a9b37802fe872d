"""Data for experiments: missingness mechanisms and public data sets.

No module of this package depends on a method, a message or a settings file.
"""
