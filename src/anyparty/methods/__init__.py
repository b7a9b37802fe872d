"""One file per method, over what they share."""
