"""The report of each kind of result."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.comparison import Comparison
from cdmpp.network.prediction import NetworkPrediction
from cdmpp.network.training_prediction import StepPrediction
from cdmpp.plans.search_result import SearchResult
from cdmpp.report.comparison import comparison_report
from cdmpp.report.network import network_report
from cdmpp.report.plan import plan_report
from cdmpp.report.replay import replay_report
from cdmpp.report.report import Report
from cdmpp.report.step import step_report
from cdmpp.steps.step_replay import StepReplay


@singledispatch
def report_of(result: Any) -> Report:
    """Make the report on a result; a report stays as it is. ``CdmppError`` for another type."""
    if isinstance(result, Report):
        return result
    known = ", ".join(kind.__name__ for kind in report_of.registry if kind is not object)
    raise CdmppError(f"there is no report on a {type(result).__name__}: give a {known}")


report_of.register(NetworkPrediction)(network_report)
report_of.register(StepPrediction)(step_report)
report_of.register(StepReplay)(replay_report)
report_of.register(SearchResult)(plan_report)
report_of.register(Comparison)(comparison_report)
