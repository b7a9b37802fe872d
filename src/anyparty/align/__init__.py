"""Who has which row."""
