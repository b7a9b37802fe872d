"""Find which party holds which row: by a plain join, or privately with X25519.

Nothing here reads files or trains.
"""
