"""Measure what a cost model itself takes for a trial of a search: predicting and learning, while nothing is measured.

Called as ``python benchmarks/search_own_time.py RESULT.json`` by ``run.py``. Programs are neither built nor run: their
seconds are made up, the same for all models.
"""

from __future__ import annotations

import logging
import tempfile
import time
from typing import Any

from timing import finish

from benchmarks.search_tasks import named_tasks

DEVICE, TASKS, TRIALS, BATCH = "epyc-genoa", "matmul,softmax", 32, 16
MODELS = ("online", "xgb")


def main() -> None:
    """Search each task with each model."""
    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.ERROR)
    finish(
        [
            {"task": name, "trials": TRIALS, **{model: own_time(task, model) for model in MODELS}}
            for name, task in named_tasks(DEVICE, TASKS).items()
        ]
    )


def own_time(task: Any, name: str) -> dict[str, float]:
    """Processor seconds of predicting and of learning, of all threads; how many candidates were scored."""
    import tvm_ffi
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder
    from tvm.s_tir.meta_schedule.cost_model import PyCostModel, XGBModel
    from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerResult

    import cdmpp
    from cdmpp import devices
    from cdmpp.programs.intrinsics import intrinsics_for
    from cdmpp.programs.replay import parse_target, parse_workload

    sheet = devices.get(DEVICE)
    target = parse_target(sheet.target)
    judged = XGBModel(num_tuning_cores=2) if name == "xgb" else cdmpp.make_cost_model(sheet, two_stage=False)
    model = getattr(judged, "_inst", judged)
    spent = {"predict_s": 0.0, "learn_s": 0.0, "scored": 0.0}

    @derived_object
    class Timed(PyCostModel):
        def load(self, path: str) -> None: ...
        def save(self, path: str) -> None: ...

        def predict(self, context: Any, candidates: Any) -> Any:
            start = time.process_time()
            scores = model.predict(context, candidates)
            spent["predict_s"] += time.process_time() - start
            spent["scored"] += len(candidates)
            return scores

        def update(self, context: Any, candidates: Any, results: Any) -> None:
            start = time.process_time()
            model.update(context, candidates, results)
            spent["learn_s"] += time.process_time() - start

    @derived_object
    class Unbuilt(PyBuilder):
        def build(self, build_inputs: Any) -> Any:
            return [
                BuilderResult(f"{tempfile.mkdtemp()}/{tvm_ffi.structural_hash(one.mod)}", None) for one in build_inputs
            ]

    @derived_object
    class Known(PyRunnerFuture):
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        def done(self) -> bool:
            return True

        def result(self) -> Any:
            return RunnerResult([self.seconds], None)

    @derived_object
    class Unrun(PyRunner):
        def run(self, runner_inputs: Any) -> Any:
            return [Known(1e-3 * (1 + int(one.artifact_path.rpartition("/")[2]) % 97)) for one in runner_inputs]

    with tempfile.TemporaryDirectory() as folder, intrinsics_for(target):
        ms.tune_tir(
            parse_workload(task.workload), target, folder, TRIALS, num_trials_per_iter=BATCH, builder=Unbuilt(),
            runner=Unrun(), cost_model=Timed(), num_tuning_cores=2, seed=1,
        )  # fmt: skip
    return spent


if __name__ == "__main__":
    main()
