"""Read, check and preprocess one party's table. Nothing here knows of other parties, methods or messages."""
