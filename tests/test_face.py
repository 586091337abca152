"""``import cdmpp``: what it names, how fast it is, the examples of its docstrings, and the names that it had before."""

import doctest
import inspect
import subprocess
import sys

import pytest

import cdmpp
from cdmpp.errors import CdmppError, UsageError

NEED_TVM = {"make_cost_model", "rank_schedules", "read_step", "tune_network"}
FUNCTIONS = [name for name in cdmpp.__all__ if inspect.isfunction(getattr(cdmpp, name))]


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.tvm if one in NEED_TVM else ()) for one in [*FUNCTIONS, "Workload"]]
)
def test_the_example_of_a_docstring_is_true(name):
    if name in NEED_TVM:
        pytest.importorskip("tvm")
    found = doctest.DocTestFinder(recurse=False).find(getattr(cdmpp, name), name, globs={})
    examples = [test for test in found if test.examples]
    assert examples, "there is no example"
    for test in examples:
        assert doctest.DocTestRunner(verbose=False).run(test).failed == 0


def test_arguments_are_written_out_and_typed():
    for name in FUNCTIONS:
        parameters = inspect.signature(getattr(cdmpp, name)).parameters.values()
        assert all(one.kind is not one.VAR_KEYWORD and one.annotation is not one.empty for one in parameters), name


def test_every_name_is_there():
    assert {"Device", "Plan", "Prediction", "StepGraph", "Workload"} <= {*cdmpp.__all__} and dir(cdmpp) == sorted(
        cdmpp.__all__
    )
    assert all(getattr(cdmpp, name) is not None for name in cdmpp.__all__)
    with pytest.raises(AttributeError, match="'cdmpp' has no attribute 'predict_netwrk'"):
        cdmpp.predict_netwrk  # noqa: B018


def test_the_import_alone_takes_neither_torch_nor_tvm():
    code = "import sys, cdmpp; print(sorted({'torch', 'tvm', 'numpy', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("old", "new"), [("load", "load_model"), ("compare", "compare_devices"), ("rank", "rank_schedules")]
)
def test_old_names_warn_and_work(old, new):
    with pytest.warns(DeprecationWarning, match=rf"cdmpp\.{old} is now cdmpp\.{new}"):
        assert getattr(cdmpp, old) is getattr(cdmpp, new)


def test_settings_of_a_workload_as_keywords_warn_and_work(monkeypatch):
    monkeypatch.setattr("cdmpp.network.predict.predict_network", lambda workload, *_: workload)
    with pytest.warns(DeprecationWarning, match=r"give cdmpp.Workload\(network, batch=..., train=...\)"):
        found = cdmpp.predict_network("gpt2", batch=2, train=True, device="h100", runtime="torch")
    assert (found.network, found.batch, found.mode) == ("gpt2", 2, "forward_backward")
    with pytest.warns(DeprecationWarning):
        found = cdmpp.predict_network(network="gpt2", dtype="float16", device="h100", runtime="torch")
    assert (found.network, found.precision.name, found.mode) == ("gpt2", "fp16", "inference")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: cdmpp.predict_network(cdmpp.Workload("gpt2"), 1, device="h100"), "leave example_inputs out"),
        (lambda: cdmpp.predict_network("gpt2", device="h100", runtime="onnx"), "runtime 'onnx': one of tvm, torch"),
        (lambda: cdmpp.predict_network("gpt2", device="h10", runtime="torch"), "unknown device 'h10'"),
        (
            lambda: cdmpp.predict_network("gpt2", device="h100", runtime="torch", schedule="untuned"),
            "is of runtime tvm",
        ),
        (
            lambda: cdmpp.predict_network("gpt2", device="h100", runtime="torch", measure=True),
            "measure is of runtime tvm",
        ),
        (
            lambda: cdmpp.predict_step("gpt2", device="h100", runtime="torch", fallback=False),
            "fallback is of runtime tvm",
        ),
        (lambda: cdmpp.predict_network("gpt2", device="h100", schedule="best"), "best_of:K"),
        (
            lambda: cdmpp.predict_network(cdmpp.Workload("gpt2", mode="training_step"), device="h100", runtime="torch"),
            "predict_step answers for it",
        ),
        (lambda: cdmpp.replay_step("gpt2", ranks=2), "give what cdmpp.predict_step returned"),
        (lambda: cdmpp.optimize_step("gpt2", ranks=2), "give what cdmpp.predict_step returned"),
        (lambda: cdmpp.compare_devices("gpt2", devices=[]), "no device to compare on"),
    ],
)
def test_wrong_arguments_are_usage_errors(call, told):
    with pytest.raises(UsageError, match=told):
        call()
    assert issubclass(UsageError, CdmppError)


@pytest.mark.tvm
def test_the_old_keyword_of_two_stage_scoring_warns_and_works(monkeypatch):
    pytest.importorskip("tvm")
    monkeypatch.setattr("cdmpp.tuning.plug.make_cost_model", lambda *_, **given: given["two_stage"])
    with pytest.warns(DeprecationWarning, match="is now two_stage"):
        assert cdmpp.make_cost_model("t4", cascade=False) is False
    assert cdmpp.make_cost_model("t4") is True
