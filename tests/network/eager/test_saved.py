"""Saved activations of a training step, byte for byte those that autograd keeps on this CPU."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import pytest
import torch

from cdmpp.errors import CdmppError
from cdmpp.network.eager import graph, saved
from cdmpp.network.eager.saved_form import Form
from cdmpp.network.eager.step import export_step
from cdmpp.network.eager.without_values import Known
from cdmpp.network.workload import Workload
from cdmpp.operators import aten
from cdmpp.operators.aten_convolution import CONVOLUTIONS
from cdmpp.operators.aten_indexing import LOOKUPS, STORES
from cdmpp.operators.aten_norm import BATCH_NORMS, ROW_NORMS
from cdmpp.operators.aten_pooling import POOLS, REDUCTIONS
from tests.network.dispatched import predicted_step, real_step
from tests.network.eager.saved_cases import CASES, Around, Case, pointwise

DTYPES = (torch.float32, torch.bfloat16)
X = (2, 4, 8, 8)
UNTRIED = {
    # of parts that torch.export keeps whole
    "_adaptive_avg_pool2d", "_fused_rms_norm", "_log_softmax", "_native_batch_norm_legit", "_softmax", "_to_copy",
    "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "_unsafe_index", "convolution",
    "_unsafe_index_put", "_unsafe_index_put_", "constant_pad_nd", "cudnn_batch_norm", "max_pool2d_with_indices",
    "max_pool3d_with_indices", "native_batch_norm", "native_group_norm", "native_layer_norm", "nll_loss",
    "nll_loss2d_forward", "nll_loss_forward", "norm",
    # without a gradient
    "all", "any", "argmin", "bernoulli", "bincount", "copy", "fill", "full_like", "histc", "new_full", "new_ones",
    "one_hot", "normal", "rand", "randn", "randn_like", "scalar_tensor", "tril_indices",
    "triu_indices", "uniform", "zero",
}  # fmt: skip
"""Names that are answered and that no network for training has, or that train nothing."""


def both(cases: Sequence[Case], dtype: torch.dtype) -> tuple[int, int]:
    """Bytes that are predicted, and those that autograd keeps."""
    model, x = Around(cases, dtype).train(), torch.randn(X)
    return predicted_step(model, (x,)).saved_bytes, real_step(model, (x,)).saved_bytes


def off(cases: dict[str, Case], dtype: torch.dtype, most: int = 24) -> list[str]:
    """Cases whose bytes are not those of autograd. Many are tried at a time, and parted where they are off."""
    names, found = list(cases), []
    for start in range(0, len(names), most):
        some = names[start : start + most]
        predicted, real = both([cases[name] for name in some], dtype)
        if predicted != real and len(some) == 1:
            found.append(f"{some[0]}: {predicted} instead of {real}")
        elif predicted != real:
            found += off({name: cases[name] for name in some}, dtype, -(-len(some) // 2))
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_operator_keeps_what_autograd_keeps(dtype, monkeypatch):
    seen = set()
    monkeypatch.setattr(graph, "calls_of", lambda node: seen.add(aten.name_of(node)) or aten.calls_of(node))
    mixed = {} if dtype == torch.float32 else {"batch_norm", "embedding_bag"}  # see below; of bags CPUs keep no offsets
    assert not off({name: case for name, case in CASES.items() if name not in mixed}, dtype)
    named = {*aten._UNARY, *aten._BINARY, *aten._RULES, *aten._COPIES, *CONVOLUTIONS, *LOOKUPS, *STORES, *ROW_NORMS}
    elementwise = {name.partition(".")[0] for name, _ in pointwise()}
    assert {*named, *BATCH_NORMS, *POOLS, *REDUCTIONS} - seen - elementwise == UNTRIED


def test_statistics_of_a_batch_norm_of_two_types_differ_by_their_type():
    """Without values torch makes them in the type of the input, on a CPU in that of the weights."""
    predicted, real = both([CASES["batch_norm"]], torch.bfloat16)
    assert real - predicted == 2 * 4 * (4 - 2)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_call_whose_like_ran_before_keeps_the_same(kind, monkeypatch):
    """Storages have other numbers, and nothing else differs: calls, their bytes, what is kept of which."""
    model = Around(list(CASES.values()), torch.float32).train()
    asked = Workload(model, (torch.randn(X),), loss=lambda output: output.sum(), optimizer=None, mode="training_step")
    step, known = export_step(asked), Known[Form]()
    monkeypatch.setattr(saved, "forms", lambda: known)
    runs, run = [], saved.Autograd._run
    monkeypatch.setattr(saved.Autograd, "_run", lambda *given: runs.append(given) or run(*given))
    first, ran = step.read(kind), len(runs)
    assert step.read(kind) == first
    assert len(runs) - ran < 0.7 * ran  # views and what writes into tensors run again


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_elementwise_operator_keeps_what_autograd_keeps(dtype):
    cases = {}
    for name, case in pointwise():
        model = Around([case], dtype)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model(torch.randn(X)).sum().backward()
        except (RuntimeError, NotImplementedError):  # of no gradient, or not for such numbers
            continue
        cases[name] = case
    assert len(cases) > 80
    assert not off(cases, dtype)


WHOLE, ROWS = 4 * 2 * 4 * 8 * 8, 4 * 2 * 4 * 8
"""Bytes of x, and of one number for each of its rows."""


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("dropout", WHOLE // 4),  # a mask of one byte an element
        ("dropout in place", WHOLE),  # is no kernel of its own: a mask of floats
        ("rms_norm without weights", WHOLE + ROWS),  # one kernel: its input, and a number a row
        ("attention, wider values", (2 + 2 + 2) * WHOLE + 4 * ROWS + 16),
        ("attention with dropout", 4 * WHOLE + 4 * ROWS + 16),  # no weights; sums of 32 rows, and where numbers began
        ("attention of three axes", 4 * WHOLE // 2),  # no kernel takes it: scaled queries and keys, weights, values
    ],
)
def test_gpus_keep_what_their_kernels_read(name, kept):
    model = Around([CASES[name]], torch.float32).train()
    assert predicted_step(model, (torch.randn(X),), "gpu").saved_bytes == kept


def test_a_shape_that_values_decide_is_refused():
    model = Around([lambda m, x: x[:, :, m.seen.any(1).nonzero().numel() - 1 :]], torch.float32)
    with pytest.raises(CdmppError, match="a shape depends on the values of inputs"):
        predicted_step(model.train(), (torch.randn(X),))
