"""What the benchmark scripts share."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def best_seconds(actions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Shortest wall time of each action. Taking turns, so that a slow moment of the machine meets all of them."""
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(rounds):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def peak_memory_mb() -> float:
    """Largest resident size of this process so far."""
    value = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return value / (1e6 if sys.platform == "darwin" else 1e3)


def finish(result: Any) -> None:
    """Write ``result`` as JSON to the file named on the command line, else to the terminal."""
    text = json.dumps(result, indent=1)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text + "\n")
    else:
        print(text)
