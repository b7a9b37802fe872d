"""One party's training and prediction at its own site, the code and columns that it allows, its stored alignment.

No module of this package reads another party's files.
"""
