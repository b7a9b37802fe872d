"""The files of a training run: its record, the saved model, the lock of its folder, and the output to trackers.

No module of this package trains a model.
"""
