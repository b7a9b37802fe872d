"""Where a suite's runs are executed: processes of this machine, or a cluster that joblib knows by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import joblib

from anyparty.errors import ConfigError, nearest

BACKENDS = ("dask", "ray")


@contextmanager
def cluster(name: str | None, jobs: int) -> Iterator[None]:
    """Let joblib run there.

    ``dask`` uses the scheduler that ``DASK_SCHEDULER_ADDRESS`` names, ``ray`` the cluster that ``RAY_ADDRESS`` names;
    without, each starts ``jobs`` processes here.

    Raises:
        ConfigError: no such back end, or it is not installed.
    """
    if name is None:
        with joblib.parallel_config(backend="loky"):
            yield
    elif name == "dask":
        with _dask(jobs):
            yield
    elif name == "ray":
        with _ray(jobs):
            yield
    else:
        raise ConfigError(f"no back end {name!r}{nearest(name, BACKENDS)}")


@contextmanager
def _dask(jobs: int) -> Iterator[None]:
    try:
        import dask  # noqa: PLC0415 - an extra
        from distributed import Client, LocalCluster  # noqa: PLC0415
    except ImportError:
        raise ConfigError("back end 'dask' is not installed: pip install 'anyparty[dask]'") from None
    if dask.config.get("scheduler-address", None):
        with Client(), joblib.parallel_config(backend="dask"):
            yield
        return
    with (
        LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as here,
        Client(here),
        joblib.parallel_config(backend="dask"),
    ):
        yield


@contextmanager
def _ray(jobs: int) -> Iterator[None]:
    try:
        import ray  # noqa: PLC0415 - not an extra of ours: half a gigabyte
        from ray.util.joblib import register_ray  # noqa: PLC0415
    except ImportError:
        raise ConfigError("back end 'ray' is not installed: pip install ray") from None
    if not ray.is_initialized():
        ray.init(**({} if "RAY_ADDRESS" in os.environ else {"num_cpus": jobs, "include_dashboard": False}))
    register_ray()
    with joblib.parallel_config(backend="ray"):
        yield
