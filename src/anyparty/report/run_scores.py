"""The scores that a report shows: the scores in the run's record, or those of the loaded model, scored again."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyparty.core.types import Task
from anyparty.errors import AnypartyError, ConfigError, NotGiven
from anyparty.metrics import METRICS, headline
from anyparty.report.recorded_runs import RecordedRun

if TYPE_CHECKING:
    from anyparty.methods.method import Method
    from anyparty.networks.mlp import Factory
    from anyparty.report.party_set_scores import PartySetScores


@dataclass(frozen=True, kw_only=True)
class RunScores:
    """The scores of a run.

    Attributes:
        sets: scores of the model by set of parties; ``None`` if the model is not loaded.
        reason: the reason why the model is not loaded.
        metric: the metric that the user asked for.
    """

    sets: PartySetScores | None = None
    reason: str = ""
    metric: str | None = None

    @classmethod
    def of(
        cls, run: RecordedRun, metric: str | None = None, *, model: bool = False, method: Method | None = None,
        encoders: Mapping[str, Factory] | None = None, allow_code: Sequence[str] = (),
    ) -> RunScores:  # fmt: skip
        """Use the recorded scores, or load the model and score it again on its test rows.

        Args:
            run: the run.
            metric: the metric; by default accuracy, or RMSE for a regression.
            model: whether to load the model.  Methods are imported only if the model is loaded.
            method: the trained method, if it is user-defined.
            encoders: by party, the factory of its network, if it is user-defined.
            allow_code: modules that the run's settings may load: see ``model_for_run``.

        Raises:
            ConfigError: the metric is unknown, does not fit the task, or is not recorded and ``model`` is false.
        """
        _check_metric(run, metric, model=model)
        if not model:
            return cls(reason="the report reads only records unless it is asked to load the model (--model, or "
                              "model=True in Python)", metric=metric)  # fmt: skip
        if run.folder is None:
            return cls(reason="each party keeps its own part of the model, so that this report cannot score sets of "
                              "parties", metric=metric)  # fmt: skip
        # a report on records alone imports no method
        from anyparty.report.party_set_scores import PartySetScores, load_with_test_rows  # noqa: PLC0415

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # about the tables: training has shown these warnings
                tested = load_with_test_rows(run.folder, method=method, encoders=encoders, allow_code=allow_code)
        except NotGiven as error:
            name, _, value = error.argument.partition("=")
            own = f"methods={{{run.name!r}: METHOD}}" if name == "method" else f"encoders={{{run.name!r}: {value}}}"
            return cls(reason=f"{error.lacks}; give it in Python, page.write(..., {own})", metric=metric)
        except (AnypartyError, OSError) as error:
            return cls(reason=str(error), metric=metric)
        return cls(sets=PartySetScores.of(tested, metric), metric=metric)


def recorded_metric(run: RecordedRun, metric: str | None = None) -> str | None:
    """Return the recorded metric to show: ``metric`` if it is recorded, else accuracy or RMSE."""
    recorded = (run.evaluation or {}).get("overall", {})
    return next((name for name in (metric, "accuracy", "rmse") if name in recorded), None)


def _check_metric(run: RecordedRun, metric: str | None, *, model: bool) -> None:
    """Reject a metric that does not fit the recorded task or, if the model is not loaded, is not recorded."""
    if metric is None:
        return
    found = run.evaluation
    if found is not None:
        headline(Task(kind=found["task"], classes=tuple(found["classes"])), metric)
        if not model and metric not in found["overall"]:
            recorded = ", ".join(name for name in found["overall"] if name in METRICS)
            raise ConfigError(f"--metric {metric}: the record of {run.name} has only {recorded}; choose one of them, "
                              f"or score the model again with --model")  # fmt: skip
    elif metric not in METRICS:
        headline(Task(kind="regression"), metric)
