"""A party's part at its own site: the code and columns that it allows, training, prediction, the stored alignment.

No module of this package reads another party's files.
"""
