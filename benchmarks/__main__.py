"""Run the main benchmarks in sequence: ``python -m benchmarks [--quick]``."""

from benchmarks import coroutines, many_parties, million_rows, step_time
from benchmarks.page import quick_asked

if __name__ == "__main__":
    quick = quick_asked(__doc__)
    for program in (step_time, coroutines, many_parties, million_rows):
        program.main(quick=quick)
