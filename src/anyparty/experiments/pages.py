"""Rendering of a suite's results: the renderer follows from the suite's kind, so that suites import no renderer."""

from __future__ import annotations

from collections.abc import Mapping

from anyparty.experiments.missing_blocks import missing_blocks_page
from anyparty.experiments.missing_blocks.missing_blocks_suite import MissingBlocksSuite
from anyparty.experiments.one_exchange import one_exchange_page
from anyparty.experiments.one_exchange.one_exchange_suite import OneExchangeSuite
from anyparty.experiments.output import SuitePage
from anyparty.experiments.schedules import schedules_page
from anyparty.experiments.schedules.schedules_suite import SchedulesSuite
from anyparty.experiments.suite import Records, Suite


def render(suite: Suite, records: Records, about: Mapping[str, str]) -> SuitePage:
    """Return the page of a suite.

    Args:
        suite: the suite.
        records: records of its finished runs, by key.
        about: facts about how the page was made, for its last lines.

    """
    match suite:
        case MissingBlocksSuite():
            return missing_blocks_page.page(suite, records, about)
        case OneExchangeSuite():
            return one_exchange_page.page(suite, records, about)
        case SchedulesSuite():
            return schedules_page.page(suite, records, about)
    raise TypeError(f"no renderer for suites of kind {suite.kind!r}")
