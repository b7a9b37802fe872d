"""Published experiments: the settings and numbers of papers as data, and a command that repeats and compares them.

A suite is one published experiment.  This package has the suites, the code that executes their runs, and the pages with
the results.  It contains neither methods nor a training loop.

    from anyparty.experiments import run
    report = run("laser-table1", datasets=["hapt"], seeds=5, jobs=2)
"""

from anyparty.experiments.experiment import Report, run

__all__ = ["Report", "run"]
