"""One network tuned for the same wall-clock time with each cost model, then run.

    python -m benchmarks.search_network device=xeon-emeraldrapids [network=torchvision:resnet18] [minutes=20] [turn=64]
        [models=two-stage,online,frozen,xgb,random] [seeds=0] [out=outputs/search]

Tasks take turns of so many measured programs as MetaSchedule's gradient scheduler says: first each once, and only then
is anything learned, so that time has to last for more than one round (ResNet-18: ten minutes on a fast core). Each run
is a file; finished ones are not run again. Leave the machine alone.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.search import model_and_builder, quick_runner
from cdmpp.network.workload import Workload
from cdmpp.platform.files import read_json, write_json

TURN = 64
"""MetaSchedule's default."""


def main() -> None:
    """Run the cells that are not there yet."""
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    if "cell" in given:
        _cell(Path(given["cell"]))
        return
    out, network = Path(given.get("out", "outputs/search")), given.get("network", "torchvision:resnet18")
    (out / "networks").mkdir(parents=True, exist_ok=True)
    for seed in map(int, given.get("seeds", "0").split(",")):
        for model in given.get("models", "two-stage,online,frozen,xgb,random").split(","):
            path = out / "networks" / f"{network.rpartition(':')[2]}-{model}-{seed}.json"
            if path.exists():
                continue
            with tempfile.TemporaryDirectory() as folder:
                cell = {"network": network, "model": model, "seed": seed, "device": given["device"]}
                cell |= {"minutes": float(given.get("minutes", 20)), "turn": int(given.get("turn", TURN))}
                cell |= {"out": str(path), "folder": folder}
                request = Path(folder) / "cell.json"
                write_json(request, cell)
                with (out / "log.txt").open("a") as log:
                    command = [sys.executable, "-m", "benchmarks.search_network", f"cell={request}"]
                    environment = {**os.environ, "TVM_NUM_THREADS": "1"}
                    subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
            print(path.stem, read_json(path) if path.exists() else "failed", flush=True)


class _OverError(Exception):
    """Time is up."""


def _cell(path: Path) -> None:
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.measure_callback import MeasureCallback, PyMeasureCallback

    import cdmpp
    from cdmpp import devices
    from cdmpp.network.compiled.stored_graph import graph_for
    from cdmpp.programs.intrinsics import intrinsics_for
    from cdmpp.programs.replay import parse_target, parse_workload

    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.ERROR)
    request = read_json(path)
    target = parse_target(devices.get(request["device"]).target)
    graph = graph_for(Workload(request["network"])).graph
    model, builder = model_and_builder(request["model"], request["device"], request["seed"])
    work, trials = Path(request["folder"]) / "db", [0]
    work.mkdir()
    start = time.perf_counter()

    @derived_object
    class Clock(PyMeasureCallback):
        def apply(self, _scheduler: Any, _task: int, candidates: Any, _built: Any, _results: Any) -> None:
            trials[0] += len(candidates)
            if time.perf_counter() - start > 60 * request["minutes"]:
                raise _OverError

    with intrinsics_for(target):
        contexts = [
            ms.TuneContext(
                mod=parse_workload(task.workload),
                target=target,
                space_generator="post-order-apply",
                search_strategy="evolutionary",
                task_name=task.op_name,
                num_threads=2,
                rand_state=request["seed"] + 1 + number,
            )
            for number, task in enumerate(graph.tasks.values())
        ]
        try:
            ms.tune.tune_tasks(
                tasks=contexts,
                task_weights=[float(graph.counts[key]) for key in graph.tasks],
                work_dir=str(work),
                max_trials_global=100_000,
                num_trials_per_iter=request["turn"],
                builder=builder,
                runner=quick_runner(),
                cost_model=model,
                measure_callbacks=[*MeasureCallback.create("default"), Clock()],
            )
        except Exception as error:  # noqa: BLE001 - by way of TVM the type may be lost
            if time.perf_counter() - start < 60 * request["minutes"]:
                raise error
    spent_s = time.perf_counter() - start
    answer = cdmpp.predict_network(
        request["network"], device=request["device"], schedule=f"database:{work}", measure=True, progress=False
    )
    kernels_s = sum(kernel.count * kernel.measured_s for kernel in answer.kernels if kernel.measured_s)
    row = {key: request[key] for key in ("network", "device", "model", "seed", "minutes", "turn")}
    row |= {"measured_s": answer.measured_s, "kernels_s": kernels_s, "trials": trials[0], "spent_s": spent_s}
    write_json(Path(request["out"]), row)


if __name__ == "__main__":
    main()
