"""Types, seeds, file access and predictions that every other package uses.

Nothing here imports another package of anyparty, apart from its errors.
"""
