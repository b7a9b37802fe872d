"""The data that methods compute with: blocks, masks, batches, tasks, missingness mechanisms and public data sets.

No module of this package depends on a method, a message or a settings file.
"""
