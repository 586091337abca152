"""Alpa's networks with experts: intervals of what was fitted and of links that no run was fitted to."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchmarks.plans import alpa_experts
from benchmarks.plans.alpa_experts_runs import Row


def test_exchanges_between_nodes_have_the_interval_of_their_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows on one node say computing to 10 %; of two nodes, one second of computing and two on links of 25 Gbit/s."""
    few = [Row("auto", 8, seconds, 1.0) for seconds in (0.9, 1.0, 1.1)]

    def parts(row: Row) -> Mapping[str, float]:
        return {"compute": 1.0, "tokens": 0.0, "rest": 2.0 if row.gpus > 8 else 0.0}

    monkeypatch.setattr(alpa_experts, "parts", parts)
    ends = alpa_experts._of_links(16)
    assert 0.4 < ends.low < 0.7 and 1.5 < ends.high < 2.0

    def covered(seconds: float) -> float:
        row = Row("auto", 16, seconds, 1.0)
        return alpa_experts.Judged(few, [row], [*few, row]).covered([row])

    own = alpa_experts.Judged(few, [], few).interval
    assert 0.8 < own.low < 1 < own.high < 1.25
    assert covered(3.0) == covered(own.high + 2 * ends.high - 0.01) == covered(own.low + 2 * ends.low + 0.01) == 100
    assert covered(own.high + 2 * ends.high + 0.01) == covered(own.low + 2 * ends.low - 0.01) == 0
