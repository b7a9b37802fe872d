"""What a run leaves on disk: its record, the model's files and their manifest, trackers, the run lock.

Nothing here trains.
"""
