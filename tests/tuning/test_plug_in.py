"""The cost model in all places where MetaSchedule takes one: real searches, real builds, real runs, few of them."""

import logging

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.s_tir import meta_schedule as ms
from tvm.script import relax as R

import cdmpp
from cdmpp.programs.intrinsics import intrinsics_for
from cdmpp.tuning.plug import tuning_with

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
TRIALS = 4


def product():
    a, b = (te.placeholder((64, 64), name=name) for name in "ab")
    k = te.reduce_axis((0, 64), name="k")
    c = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return te.create_prim_func([a, b, c])


@tvm.script.ir_module
class Net:
    @R.function
    def main(x: R.Tensor((16, 32), "float32"), w: R.Tensor((32, 16), "float32")) -> R.Tensor((16, 16), "float32"):  # noqa: N805
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.nn.softmax(y)
            R.output(z)
        return z


@pytest.fixture(autouse=True)
def heard_logger():
    """A logger that does not propagate gets nameless handlers of pytest, which TVM's next search stumbles over."""
    logger = logging.getLogger("tvm.s_tir.meta_schedule")
    logger.propagate = True  # a test of another file may have searched before
    for handler in [one for one in logger.handlers if one.get_name() is None]:
        logger.removeHandler(handler)
    yield
    logger.propagate = True


@pytest.fixture
def model():
    made = cdmpp.make_cost_model("epyc-genoa", "epyc-genoa")
    made._inst.two_stage.look = TRIALS  # compiling most of what is scored takes longest by far
    return made


@pytest.fixture(scope="module")
def runner():
    """Its process, which imports TVM, stays."""
    return ms.runner.LocalRunner(evaluator_config=ms.runner.EvaluatorConfig(number=1, repeat=2, min_repeat_ms=1))


@pytest.fixture
def settings(model, runner):
    strategy = ms.search_strategy.EvolutionarySearch(population_size=32, init_min_unmeasured=8, genetic_num_iters=1)
    with intrinsics_for(TARGET):
        yield {"cost_model": model, "builder": model.builder, "runner": runner, "strategy": strategy}


def check(model, database, workloads):
    records = database.get_all_tuning_records()
    assert len(records) >= TRIALS
    assert len({str(record.workload.mod) for record in records}) == workloads
    assert all(0 < float(seconds) < 1 for record in records for seconds in record.run_secs)
    assert model.counts["learned"] >= TRIALS
    assert model.counts["failed"] == model.counts["unread"] == 0
    assert model.counts["compiled"] > 0


def test_tune_tir(model, settings, tmp_path):
    database = ms.tune_tir(
        product(), TARGET, str(tmp_path), TRIALS, num_trials_per_iter=2, num_tuning_cores=2, seed=1, **settings
    )
    check(model, database, 1)


def test_tune_tasks(model, settings, tmp_path):
    strategy = settings.pop("strategy")
    tasks, weights = ms.relax_integration.extracted_tasks_to_tune_contexts(
        ms.relax_integration.extract_tasks(relax.get_pipeline("zero")(Net), TARGET), str(tmp_path),
        strategy=strategy, num_threads=2, seed=1,
    )  # fmt: skip
    database = ms.tune_tasks(
        tasks=tasks, task_weights=weights, work_dir=str(tmp_path), max_trials_global=2 * TRIALS,
        num_trials_per_iter=TRIALS, **settings,
    )  # fmt: skip
    check(model, database, 2)


def test_tune_relax(model, settings, tmp_path):
    database = ms.relax_integration.tune_relax(
        relax.get_pipeline("zero")(Net), {}, TARGET, str(tmp_path), 2 * TRIALS, num_trials_per_iter=TRIALS, seed=1,
        **settings,
    )  # fmt: skip
    check(model, database, 2)


def test_the_pass_that_has_no_argument_for_a_cost_model(model, settings, tmp_path):
    module = relax.get_pipeline("zero")(Net)
    given = {key: settings[key] for key in ("runner", "strategy")}
    with TARGET, tvm.transform.PassContext(opt_level=3):
        tune = relax.transform.MetaScheduleTuneIRMod({}, str(tmp_path), 2 * TRIALS)
        with tuning_with(model, num_trials_per_iter=TRIALS, seed=1, **given):
            tune(module)
        scored = model.counts["scored"]
        database = ms.database.JSONDatabase(work_dir=str(tmp_path))
        check(model, database, 2)
        with database:
            tuned = relax.transform.MetaScheduleApplyDatabase()(module)
    assert all(tuned[v].attrs.get("tirx.is_scheduled", False) for v in tuned.get_global_vars() if v.name_hint != "main")
    # The hook is TVM's own again: whoever comes later must not be scored by this model.
    assert tvm.get_global_func("tvm.s_tir.meta_schedule.tune_relax") is not None
    assert model.counts["scored"] == scored
    built = tvm.compile(tuned, target=TARGET)
    machine = relax.VirtualMachine(built, tvm.cpu())
    x, w = np.ones((16, 32), np.float32), np.ones((32, 16), np.float32)
    answer = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w)).numpy()
    np.testing.assert_allclose(answer, np.full((16, 16), 1 / 16), rtol=1e-5)
