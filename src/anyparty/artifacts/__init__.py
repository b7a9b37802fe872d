"""The files of a run: its record, the model's files and their manifest, trackers, the run lock.

No module of this package trains a model.
"""
