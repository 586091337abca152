"""What any learned model must beat, by name."""

from __future__ import annotations

from collections.abc import Callable

from cdmpp.errors import DataError
from cdmpp.evaluation.evaluation_data import Baseline
from cdmpp.evaluation.formulas import Analytic, CodeCosts, Constant, Roofline
from cdmpp.evaluation.trees import Trees, TreeSettings, ours_pooled, per_store_pooled, per_store_sum

BASELINES: dict[str, Callable[[TreeSettings], Baseline]] = {
    "constant": lambda settings: Constant(),
    "roofline": lambda settings: Roofline(),
    "analytic": lambda settings: Analytic(),
    "code_costs": lambda settings: CodeCosts(),
    "xgb_per_store_sum": lambda settings: Trees(per_store_sum, settings),
    "xgb_per_store": lambda settings: Trees(per_store_pooled, settings),
    "xgb_ours": lambda settings: Trees(ours_pooled, settings),
    "xgb_ours_residual": lambda settings: Trees(ours_pooled, settings, base=Analytic()),
    "xgb_code_residual": lambda settings: Trees(ours_pooled, settings, base=CodeCosts()),
}
NEED_PER_STORE = ("xgb_per_store_sum", "xgb_per_store")


def make_baseline(name: str, settings: TreeSettings) -> Baseline:
    """Baseline by name; ``DataError`` lists the names."""
    if name not in BASELINES:
        raise DataError(f"unknown baseline {name!r}; known: {', '.join(BASELINES)}")
    return BASELINES[name](settings)
