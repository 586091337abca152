"""Models beside baselines: ``cdmpp model evaluate device=a100 split=[random,by_task]``. See conf/evaluate.yaml."""

from __future__ import annotations

from typing import Any

from cdmpp.cli.hydra_entry import entry
from cdmpp.evaluation.session import EvaluationSettings, run_session


@entry("evaluate")
def main(values: dict[str, Any]) -> None:
    """Run all cells and print their tables."""
    run_session(EvaluationSettings.from_dict(values))
