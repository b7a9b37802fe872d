"""Find which party holds which row: by a plain join, or privately with X25519.

No module of this package reads tables from files or trains models.
"""
