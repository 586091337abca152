"""Searches side by side: best measured latency against trials and wall time, by cost model.

    python -m benchmarks.search device=xeon-emeraldrapids [out=outputs/search] [tasks=compared] [models=xgb,random]
        [seeds=0,1,2] [trials=128]

Every (task, seed, model) is a cell with a file of its own; finished ones are not run again. Leave the machine alone.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.search_tasks import named_tasks
from cdmpp.platform.files import read_json, write_json
from cdmpp.programs.sampling import sample_programs
from cdmpp.programs.task import Task

MODELS = ("offline", "two-stage", "online", "frozen", "xgb", "random")
"""``offline`` measures one program: the best of 1,000 sampled ones by prediction, 64 of them compiled to be read."""
SAMPLED, LOOKED = 1000, 64
BATCH = 16


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    if "cell" in given:
        _cell(Path(given["cell"]))
        return
    out = Path(given.get("out", "outputs/search"))
    tasks = named_tasks(given["device"], given.get("tasks", "compared"))
    cells = [
        {
            "name": name,
            "task": asdict(task),
            "seed": seed,
            "model": model,
            "device": given["device"],
            "trials": int(given.get("trials", 128)),
        }
        for seed in map(int, given.get("seeds", "0,1,2").split(","))
        for name, task in tasks.items()
        for model in given.get("models", ",".join(MODELS)).split(",")
    ]
    (out / "cells").mkdir(parents=True, exist_ok=True)
    for number, cell in enumerate(cells):
        name = f"{cell['name']}-{cell['model']}-{cell['seed']}"
        path = out / "cells" / f"{name}.json"
        if path.exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            request = Path(folder) / "cell.json"
            write_json(request, {**cell, "out": str(path), "folder": folder})
            start = time.perf_counter()
            with (out / "log.txt").open("a") as log:
                done = subprocess.run(
                    [sys.executable, "-m", "benchmarks.search", f"cell={request}"],
                    stdout=log, stderr=log, env={**os.environ, "TVM_NUM_THREADS": "1"}, check=False,
                )  # fmt: skip
            best = read_json(path)["best_s"] if path.exists() else float("nan")
            print(
                f"{number + 1}/{len(cells)} {name}: exit {done.returncode}, {1e6 * best:.1f} us, "
                f"{time.perf_counter() - start:.0f} s",
                flush=True,
            )


def _cell(path: Path) -> None:
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.measure_callback import MeasureCallback, PyMeasureCallback

    from cdmpp import devices
    from cdmpp.programs.intrinsics import intrinsics_for
    from cdmpp.programs.replay import parse_target, parse_workload

    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.ERROR)
    request = read_json(path)
    task = Task(**request["task"])
    sheet = devices.get(request["device"])
    target = parse_target(sheet.target)
    trials: list[tuple[float | None, float]] = []
    start = time.perf_counter()

    @derived_object
    class Noted(PyMeasureCallback):
        def apply(self, _scheduler: Any, _task: int, _candidates: Any, _built: Any, results: Any) -> None:
            now = time.perf_counter() - start
            for result in results:
                seconds = None if result.run_secs is None else min(float(s) for s in result.run_secs)
                trials.append((seconds, now))

    model, builder = model_and_builder(request["model"], request["device"], request["seed"])
    runner = quick_runner()
    work = Path(request["folder"]) / "work"
    with intrinsics_for(target):
        if request["model"] == "offline":
            trials.append((_best_offline(task, target, model, runner, request["seed"]), time.perf_counter() - start))
        else:
            ms.tune_tir(
                parse_workload(task.workload), target, str(work), request["trials"], num_trials_per_iter=BATCH,
                builder=builder, runner=runner, cost_model=model, num_tuning_cores=2, seed=request["seed"] + 1,
                measure_callbacks=[Noted(), *MeasureCallback.create("default")],
            )  # fmt: skip
    measured = [seconds for seconds, _ in trials if seconds is not None]
    path = work / "database_tuning_record.json"
    records = path.read_text().splitlines() if path.is_file() else []
    # The schedules in their order of measurement, to learn from: traces without the target, which is the device's.
    write_json(
        Path(request["out"]),
        {
            "name": request["name"], "task": task.task_id, "model": request["model"], "seed": request["seed"],
            "device": request["device"], "best_s": min(measured), "trials": trials,
            "records": [[json.loads(line)[1][0], json.loads(line)[1][1]] for line in records],
            "counts": dict(getattr(model, "counts", {})),
        },
    )  # fmt: skip


def quick_runner() -> Any:
    """Five repeats of ten milliseconds."""
    from tvm.s_tir import meta_schedule as ms

    config = ms.runner.EvaluatorConfig(number=1, repeat=5, min_repeat_ms=10)
    return ms.runner.LocalRunner(timeout_sec=30, evaluator_config=config)


def model_and_builder(name: str, device: str, seed: int) -> tuple[Any, Any]:
    """The cost model and the builder; all searches build in the same way, what differs is who chooses."""
    from tvm.s_tir.meta_schedule.cost_model import RandomModel, XGBModel

    from cdmpp.tuning.artifacts import Artifacts
    from cdmpp.tuning.builder import Builder
    from cdmpp.tuning.plug import make_cost_model

    if name in ("xgb", "random"):
        model = XGBModel(num_tuning_cores=2) if name == "xgb" else RandomModel(seed=seed)
        return model, Builder(Artifacts(""))
    model = make_cost_model(device, frozen=name == "frozen", two_stage=name in ("two-stage", "offline"), seed=seed)
    return model, model.builder


def _best_offline(task: Task, target: Any, model: Any, runner: Any, seed: int) -> float | None:
    """Seconds of the program that is predicted best, built and run once it is chosen."""
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    two_stage = model._inst.two_stage
    two_stage.look = LOOKED
    modules = dict(enumerate(p.module for p in sample_programs(task, target, SAMPLED, seed, mutants=0.0)))
    judged = two_stage.judged(modules, target, "task")
    best = min(judged.compiled, key=lambda key: judged.log_latency[key])
    built = two_stage.artifacts.taken(best, modules[best], target)
    shapes = ArgInfo.from_prim_func(modules[best]["main"])
    (running,) = runner.run([ms.runner.RunnerInput(str(built.library), "cpu", shapes)])
    result = running.result()
    return None if result.run_secs is None else min(float(s) for s in result.run_secs)


if __name__ == "__main__":
    main()
