"""Published experiments: the paper's settings and numbers as data, one command that runs them and compares the results.

This package holds the suites, their runs and their pages; it contains no method and no training loop.

    from anyparty.experiments import run
    report = run("laser-table1", datasets=["hapt"], seeds=5, jobs=2)
"""

from anyparty.experiments.experiment import Report, run

__all__ = ["Report", "run"]
