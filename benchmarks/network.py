"""A network from its module to the answer: where the time goes, cold, warm, and in a new process with a full cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from timing import finish

NETWORK, DEVICE = "resnet50", "epyc-genoa"
_AGAIN = f"import cdmpp; cdmpp.predict_network('torchvision:{NETWORK}', device='{DEVICE}', progress=False)"


@contextmanager
def clocked(spent: dict[str, float], places: dict[str, tuple[Any, str]]) -> Iterator[None]:
    """Seconds in each function while the block runs, by name."""
    real = {name: getattr(owner, function) for name, (owner, function) in places.items()}

    def timed(name: str, action: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return action(*given, **options)
            finally:
                spent[name] = spent.get(name, 0.0) + time.perf_counter() - start

        return run

    for name, (owner, function) in places.items():
        setattr(owner, function, timed(name, real[name]))
    try:
        yield
    finally:
        for name, (owner, function) in places.items():
            setattr(owner, function, real[name])


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        os.environ["CDMPP_CACHE"] = cache
        import torch

        import cdmpp
        from cdmpp.network.compiled import choice, stored_graph
        from cdmpp.network.source import read
        from cdmpp.predict.predictor import Predictor
        from cdmpp.programs import networks
        from cdmpp.programs.models import build_model
        from cdmpp.programs.zoo import network_of, read_zoo

        model, inputs = build_model(network_of(read_zoo(), NETWORK))
        places = {
            "export": (networks, "export"),
            "import": (networks, "relax_of_exported"),
            "legalise and fuse": (networks, "lower"),
            "graph": (stored_graph, "graph_of"),
            "sample schedules, extract ASTs": (choice, "candidates_of"),
            "machine code": (choice.Chooser, "_with_codes"),
            "inference": (Predictor, "predict"),
        }
        assert read is not None and torch is not None

        def ask() -> float:
            start = time.perf_counter()
            cdmpp.predict_network(model, inputs, device=DEVICE, progress=False)
            return time.perf_counter() - start

        spent: dict[str, float] = {}
        with clocked(spent, places):
            cold_s = ask()
        spent["the rest"] = cold_s - sum(spent.values())
        warm_s = min(ask() for _ in range(3))
        cdmpp.predict_network(f"torchvision:{NETWORK}", device=DEVICE, progress=False)
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", _AGAIN], check=True)
        process_s = time.perf_counter() - start
        os.environ["CDMPP_CACHE"] = str(Path(cache) / "empty")
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", _AGAIN], check=True)
        first_s = time.perf_counter() - start
    rows = [{"step": name, "seconds": seconds} for name, seconds in spent.items()]
    rows += [
        {"step": "all, cold", "seconds": cold_s},
        {"step": "all, warm", "seconds": warm_s},
        {"step": "a new process, cache full", "seconds": process_s},
        {"step": "a new process, the first on a machine", "seconds": first_s},
    ]
    finish(rows)


if __name__ == "__main__":
    main()
