"""Types, seeds, file access and predictions that every other package uses.

No module of this package imports another package of anyparty; all of them may import ``anyparty.errors``.
"""
