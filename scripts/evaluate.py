"""Models beside baselines: `python scripts/evaluate.py device=a100 split=[random,by_task]`. See conf/evaluate.yaml."""

from __future__ import annotations

import sys
from typing import Any

from cdmpp.entry import entry
from cdmpp.evaluation.session import EvaluationSettings, run_session


@entry("evaluate")
def main(values: dict[str, Any]) -> None:
    run_session(EvaluationSettings.from_dict(values))


if __name__ == "__main__":
    # `split` is a config group of training, where it names one; here it is a list.
    sys.argv = [f"splits={word.removeprefix('split=')}" if word.startswith("split=") else word for word in sys.argv]
    main()
