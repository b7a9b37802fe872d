"""Suites of schedules on a virtual clock: time units until a target is reached, by algorithm, speeds and latency."""
