"""Align the rows of all parties: by a plain join of ids, or privately without showing ids."""
