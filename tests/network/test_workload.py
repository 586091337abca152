"""Workload: what it accepts, and what it refuses when it is made."""

from pathlib import Path

import pytest
import torch

from cdmpp.errors import UsageError
from cdmpp.network.predict import runtime_of
from cdmpp.network.workload import Workload


def test_a_workload_knows_what_its_network_is():
    module, name = Workload(torch.nn.Linear(4, 4), torch.zeros(1, 4)), Workload("~/model.onnx")
    assert module.is_torch and module.path is None and not name.is_torch
    assert name.path == Path.home() / "model.onnx" and not module.is_relax


def test_a_runtime_that_is_none_is_named_as_the_user_does():
    with pytest.raises(UsageError, match="^runtime is None: expected a text"):
        runtime_of(None)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"network": 3}, "a int is no network: give a zoo network"),
        ({"batch": 0}, "batch is 0: expected a whole number from 1 to 2147483648"),
        ({"batch": 2.5}, "batch is 2.5: expected a whole number"),
        ({"batch": 2**31 + 1}, "batch is 2147483649: expected a whole number"),
        ({"inputs": {"x": (1, 0)}}, r"inputs\['x'\]\[1\] is 0: expected a whole number from 1"),
        ({"precision": "int8"}, "precision is 'int8'.* Expected one of fp32, tf32, bf16"),
        ({"precision": "bf16-mxed"}, "did you mean bf16-mixed"),
        ({"precision": 8}, "precision is 8[.] Expected one of"),
        ({"precision": "64-true"}, "precision is '64-true'"),
        ({"mode": "train"}, "mode is 'train'; one of inference, forward_backward, training_step"),
        ({"loss": "own"}, "loss 'own' is unknown: use cross_entropy, mse, model, or a function"),
        ({"loss": 3}, "loss 3 is unknown"),
        ({"optimizer": "lion"}, "optimizer 'lion' is unknown: use sgd, adam, adamw, adafactor"),
    ],
)
def test_what_no_run_can_have_is_refused(settings, told):
    with pytest.raises(UsageError, match=told):
        Workload(**{"network": "gpt2", **settings})


def test_it_cannot_be_changed():
    with pytest.raises(AttributeError):
        Workload("gpt2").batch = 3
