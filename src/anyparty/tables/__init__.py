"""One party's rows: reading, checking, preparing."""
