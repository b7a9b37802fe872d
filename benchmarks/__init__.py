"""Speed and size, measured: each program prints a table and leaves it in ``results/``; see README.md."""
