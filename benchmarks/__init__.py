"""Measurements of speed and size. Each program prints a table and writes it to ``results/``; see README.md."""
