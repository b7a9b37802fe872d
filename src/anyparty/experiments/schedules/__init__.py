"""Suites of schedules on a virtual clock: time until a target accuracy, by algorithm, party speeds and latency."""
