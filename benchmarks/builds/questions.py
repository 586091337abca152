"""Questions that are timed inside the process of a build: ``python questions.py NAME DATASETS`` prints the result.

They use only names that every build has since the baseline, and import nothing of this package: another build runs it.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

NETWORK, DEVICE, OTHER_DEVICE = "torchvision:resnet50", "epyc-genoa", "a100"
PROGRAMS, CANDIDATES, TASKS, QUEUES = 36, 256, 1_000_000, 8
TRAINED_ON = 128
"""Candidates that the online learner of a search knows."""
MODEL = "xeon-icelake"


class Clock:
    """Seconds since it was made: of processors, with those of processes that have ended, and of the wall."""

    def __init__(self) -> None:
        self.begin = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in used), time.perf_counter()

    def took(self, times: int = 1) -> dict[str, float]:
        """Seconds for each of so many times."""
        cpu_s, wall_s = (end - begin for end, begin in zip(self._now(), self.begin, strict=True))
        return {"cpu_s": cpu_s / times, "wall_s": wall_s / times}


def _network(batch: int, device: str) -> Any:
    import cdmpp

    workload = cdmpp.Workload(NETWORK, batch=batch)
    return cdmpp.predict_network(workload, device=device, runtime="torch", progress=False)


def further_device(_: Path) -> dict[str, Any]:
    """A network that was asked for, on another device of the same kind."""
    _network(1, OTHER_DEVICE)
    clock = Clock()
    answer = _network(1, "h100").latency_s
    return {**clock.took(), "answer": [answer]}


def further_batch(_: Path) -> dict[str, Any]:
    """A network that was asked for, at another batch."""
    _network(1, OTHER_DEVICE)
    clock = Clock()
    answer = _network(2, OTHER_DEVICE).latency_s
    return {**clock.took(), "answer": [answer]}


def third_batch(_: Path) -> dict[str, Any]:
    """A network that was asked for at two batches, at a third one."""
    _network(1, OTHER_DEVICE), _network(2, OTHER_DEVICE)
    clock = Clock()
    answer = _network(3, OTHER_DEVICE).latency_s
    return {**clock.took(), "answer": [answer]}


def _stored(datasets: Path) -> Any:
    from cdmpp.ast.table import read_asts

    _, table = read_asts(sorted((datasets / MODEL / "asts").glob("part-*.parquet"))[0])
    return table


def _predictions(datasets: Path, count: int, rounds: int) -> dict[str, Any]:
    import numpy as np

    import cdmpp

    predictor, table = cdmpp.load_model(MODEL), _stored(datasets)
    asts = table.take(np.arange(count) * 7 % len(table))
    answer = predictor.predict(asts, MODEL).latency_s
    for _ in range(rounds // 10):
        predictor.predict(asts, MODEL)
    clock = Clock()
    for _ in range(rounds):
        predictor.predict(asts, MODEL)
    return {**clock.took(rounds), "answer": np.asarray(answer).tolist()}


def predict_one(datasets: Path) -> dict[str, Any]:
    """One stored program, model loaded."""
    return _predictions(datasets, 1, 200)


def predict_many(datasets: Path) -> dict[str, Any]:
    """A batch of 512 stored programs, model loaded."""
    return _predictions(datasets, 512, 20)


def _sources(folder: Path, device: str, count: int) -> list[dict[str, Any]]:
    """Recorded programs, drawn with seed 0, as the workers of a build are given them."""
    from cdmpp import devices
    from cdmpp.data.derive import core_of, sources_of
    from cdmpp.data.records import read_records, read_tasks

    drawn = random.Random(0).sample(list(read_records(folder)), count)
    sheet = devices.get(device)
    found = [asdict(source) for source in sources_of(drawn, read_tasks(folder))]
    if sheet.name == drawn[0].device:
        return found
    return [{**one, "target": json.dumps(dict(sheet.target)), "core": core_of(sheet)} for one in found]


def _arrays(replies: list[dict[str, Any]]) -> list[float]:
    """The sum of each array of each reply; a refusal counts as -1."""
    import numpy as np

    from cdmpp.data.derive_worker import unpacked

    found: list[float] = []
    for reply in replies:
        arrays = unpacked(reply["arrays"]) if "arrays" in reply else {"refused": np.array([-1.0])}
        found += [float(np.nansum(arrays[name].astype(np.float64))) for name in sorted(arrays)]
    return found


def _derived(kind: str, sources: list[dict[str, Any]], together: int = 1) -> dict[str, Any]:
    """A worker takes this for each program, once it has answered for some."""
    from cdmpp.data.derive_worker import OPERATIONS

    OPERATIONS["ready"]({"codes": True})

    def asked(ones: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if together > 1:
            return list(OPERATIONS[kind]({"op": kind, "programs": ones})["programs"])
        return [dict(OPERATIONS[kind]({"op": kind, **one})) for one in ones]

    asked(sources[:together])
    clock, replies = Clock(), []
    for start in range(together, len(sources), together):
        replies += asked(sources[start : start + together])
    return {**clock.took(len(replies)), "answer": _arrays(replies)}


def features(datasets: Path) -> dict[str, Any]:
    """Scheduled CPU programs to compact ASTs, lowered where they have to be; the peer is TVM's extractor."""
    import numpy as np
    import tvm_ffi
    from tvm.s_tir import meta_schedule as ms

    from cdmpp.ast.extract import extract
    from cdmpp.programs.replay import parse_target, parse_workload, replay_on

    sources = _sources(datasets / "xeon-icelake", "xeon-icelake", 2 * PROGRAMS)
    schedules = [replay_on(parse_workload(one["workload"]), one["schedule"]) for one in sources]
    target = parse_target(sources[0]["target"])
    # The Python constructor imports every tensor intrinsic, which takes 10 s and is not needed here.
    make_context = tvm_ffi.get_global_func("s_tir.meta_schedule.TuneContext")
    context = make_context(None, target, None, None, "features", 1, -1, None)
    peer = ms.feature_extractor.PerStoreFeature()
    candidates = [[ms.MeasureCandidate(schedule, [])] for schedule in schedules]
    extract(schedules[0].mod, target), peer.extract_from(context, candidates[0])
    clock = Clock()
    asts = [extract(schedule.mod, target) for schedule in schedules]
    took, clock = clock.took(len(schedules)), Clock()
    for one in candidates:
        [rows.numpy() for rows in peer.extract_from(context, one)]
    answer = [float(one.leaf_features.astype(np.float64).sum() + one.kernel_features.sum()) for one in asts]
    return {**took, "peer_s": clock.took(len(schedules))["cpu_s"], "answer": answer}


def cpu_code(datasets: Path) -> dict[str, Any]:
    """Recorded CPU programs to code vectors: replayed, compiled by LLVM, read and executed."""
    return _derived("codes", _sources(datasets / "xeon-icelake", "xeon-icelake", PROGRAMS))


def gpu_code(datasets: Path) -> dict[str, Any]:
    """Recorded GPU programs to code vectors: replayed, printed, compiled for an A100, executed."""
    return _derived("gpu_codes", _sources(datasets / "h100", "a100", PROGRAMS), 12)


def replay(_: Path) -> dict[str, Any]:
    """A million tasks in layers on eight queues, each waits for two of the layer before."""
    from cdmpp.simulate.engine import simulate
    from cdmpp.simulate.task import Task

    tasks = []
    for i in range(TASKS):
        above = i // QUEUES * QUEUES - QUEUES
        after = (f"t{above + i % QUEUES}", f"t{above + (i + 3) % QUEUES}") if above >= 0 else ()
        tasks.append(Task(f"t{i}", 1e-6 * (1 + i % 7), (f"q{i % QUEUES}",), after))
    clock = Clock()
    answer = simulate(tasks).makespan_s
    return {**clock.took(), "answer": [answer]}


def scoring(datasets: Path) -> dict[str, Any]:
    """Candidates of a search for an operator of a CPU, nothing remembered; the learner knows a part of them."""
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms

    import cdmpp
    from cdmpp import devices
    from cdmpp.data.records import read_tasks
    from cdmpp.programs.replay import parse_target, parse_workload
    from cdmpp.programs.sampling import sample_programs

    tasks = sorted(read_tasks(datasets / "xeon-icelake").values(), key=lambda task: task.task_id)
    task = next(one for one in tasks if one.op_class == "conv2d")
    target = parse_target(devices.get("xeon-icelake").target)
    modules = [program.module for program in sample_programs(task, target, CANDIDATES, seed=0, mutants=0.0)]
    candidates = [ms.MeasureCandidate(Schedule(module), []) for module in modules]
    context = ms.TuneContext(mod=parse_workload(task.workload), target=target, num_threads=1)
    results = [ms.runner.RunnerResult([1e-3 * (1 + i % 17)], None) for i in range(TRAINED_ON)]
    model = cdmpp.make_cost_model("xeon-icelake", two_stage=False)._inst
    model.update(context, candidates[:TRAINED_ON], results)
    model.predict(context, candidates[:TRAINED_ON])
    trees = ms.cost_model.XGBModel(num_tuning_cores=1)._inst
    trees.update(context, candidates[:TRAINED_ON], results)
    model.two_stage.scorer.forget()
    clock = Clock()
    answer = model.predict(context, candidates)
    took, clock = clock.took(CANDIDATES), Clock()
    trees.predict(context, candidates)
    peer_s = clock.took(CANDIDATES)["cpu_s"]
    return {**took, "peer_s": peer_s, "answer": [float(score) for score in answer]}


def training_beside(datasets: Path) -> dict[str, Any]:
    """Four epochs of a training beside a process that keeps a core busy; the peer is the same training alone."""

    def trained() -> tuple[float, float]:
        with tempfile.TemporaryDirectory() as folder:
            words = [f"data.path=[{datasets}]", f"out={folder}", "trainer.epochs=4", "plots=false", "progress=false"]
            command = [str(Path(sys.executable).with_name("cdmpp")), "model", "train", *words, "baselines=[constant]"]
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, cwd=folder)
            took = time.perf_counter() - start
            return took, float(json.loads((Path(folder) / "model" / "card.json").read_text())["validation"]["mape"])

    alone_s, _ = trained()
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        beside_s, mape = trained()
    finally:
        neighbour.kill()
        neighbour.wait()
    return {"wall_s": beside_s, "peer_s": alone_s, "answer": [mape]}


QUESTIONS: dict[str, Callable[[Path], dict[str, Any]]] = {
    run.__name__: run
    for run in (
        further_device, further_batch, third_batch, predict_one, predict_many, features, cpu_code, gpu_code, replay,
        scoring, training_beside,
    )
}  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(QUESTIONS[sys.argv[1]](Path(sys.argv[2]))))
