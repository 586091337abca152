"""Updates beside torch's own optimizers, run here: the same operators on as many elements, and as many bytes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from cdmpp.errors import UsageError
from cdmpp.network.eager import optimizer_calls
from cdmpp.network.eager.optimizer_calls import update_calls
from cdmpp.network.eager.step import read_step
from cdmpp.network.update import OPTIMIZERS, Update, update_of
from cdmpp.network.workload import Workload
from tests.network.dispatch_log import DispatchLog

SHAPES = ((64, 32), (64,), (128, 64))
REAL = {
    "sgd": lambda given, **more: torch.optim.SGD(given, lr=0.1, momentum=0.9, **more),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adafactor": torch.optim.Adafactor,
    "muon": torch.optim.Muon,
}
FLAGS = {"foreach": {"foreach": True}, "fused": {"fused": True}, "for-loop": {"foreach": False}}


def written(func, args, out):
    """Elements that an operator writes, of lists all of them; views, counts of steps and values read are left out."""
    first = args[0] if args and isinstance(args[0], list) else [args[0]] if args else []
    is_kernel = func.namespace == "aten" and not func.is_view and "local_scalar" not in str(func)
    if not is_kernel or not first or not isinstance(first[0], torch.Tensor) or max(one.numel() for one in first) <= 1:
        return []
    return [(func._schema.name, sum(one.numel() for one in first), str(first[0].dtype)[6:])]


def real(update: Update, dtype=torch.float32, shapes=SHAPES) -> tuple[list[tuple[str, int, str]], int]:
    """Operators of the second update, and the bytes of its states."""
    given = [nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    more = {} if update.optimizer == "muon" else FLAGS[update.implementation or "foreach"]
    optimizer, averages = REAL[update.optimizer](given, **more), [one.detach().clone() for one in given]
    for _ in range(2):
        for one in given:
            one.grad = torch.randn_like(one)
        with DispatchLog(written) as log:
            if update.clip_norm is not None:
                nn.utils.clip_grad_norm_(given, update.clip_norm, foreach=None)
            optimizer.step()
            if update.ema:
                get_ema_multi_avg_fn()(averages, [one.detach() for one in given], 1)
    states = [one for state in optimizer.state.values() for one in state.values() if torch.is_tensor(one)]
    return log.order, sum(one.nbytes for one in states if one.numel() > 1)


def count(operator) -> float:
    """Elements that an operator writes; of a norm those that it reads."""
    return operator.elements or (operator["rows"] * operator["cols"] if "inner" not in operator.sizes else
                                 operator.written_elements)  # fmt: skip


CASES = [
    *("sgd-foreach", "sgd-for-loop", "sgd-fused", "adam-foreach", "adam-for-loop", "adam-fused", "adamw-foreach"),
    *("adamw-for-loop", "adamw-fused", "adafactor-foreach", "adafactor-for-loop", "muon"),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("word", CASES)
def test_an_update_runs_what_torchs_own_optimizer_runs(word, dtype):
    shapes = SHAPES[::2] if word == "muon" else SHAPES
    seen, state_bytes = real(update_of(word), getattr(torch, dtype), shapes)
    found = update_calls(update_of(word), tuple((shape, dtype) for shape in shapes), "gpu")
    own = [one for one in found.operators if count(one) > len(shapes)]  # others are counts of steps, or norms
    seen = [one for one in seen if one[1] > len(shapes)]
    assert len(own) == len(seen)
    for operator, (name, elements, kind) in zip(own, seen, strict=True):
        if "fused" not in name and operator.name not in ("linear", "mean", "copy"):
            assert count(operator) == elements, name
            assert operator.dtype == kind, name
    assert found.state_bytes == pytest.approx(state_bytes, abs=16)


def test_a_fused_update_moves_each_tensor_once():
    """Parameter, gradient and both states are read; all but the gradient are written."""
    elements = sum(torch.Size(shape).numel() for shape in SHAPES)
    (*_, fused) = update_calls(update_of("adamw-fused"), tuple((one, "float32") for one in SHAPES), "gpu").operators
    assert fused.io_bytes == pytest.approx(7 * 4 * elements, rel=0.01)
    (*_, sgd) = update_calls(update_of("sgd-fused"), tuple((one, "bfloat16") for one in SHAPES), "gpu").operators
    assert sgd.io_bytes == pytest.approx(5 * 2 * elements, rel=0.01)


def test_an_update_of_400_billion_parameters_is_one_call():
    """Llama 3.1 405B has so many; each moves four tensors in float32 and writes three."""
    sizes = (((400_000, 1_000_000), "float32"),)
    (*_, found) = update_calls(update_of("adamw-fused"), sizes, "gpu").operators
    assert found.io_bytes == pytest.approx(7 * 4 * 400e9, rel=1e-3)


def test_clipping_reads_gradients_twice_and_an_average_is_one_more_copy_of_the_weights():
    sizes, elements = tuple((one, "float32") for one in SHAPES), sum(torch.Size(shape).numel() for shape in SHAPES)
    plain = update_calls(Update("adamw"), sizes, "gpu")
    more = update_calls(Update("adamw", clip_norm=1.0, ema=True), sizes, "gpu")
    whole = [str(one).split()[0] for one in more.operators if one.elements == elements]
    assert whole == ["mean", "mul_scalar", *(str(one).split()[0] for one in plain.operators), "add"]
    assert more.state_bytes == plain.state_bytes + 4 * elements
    seen, _ = real(Update("adamw", "for-loop", 1.0, ema=True))
    apart = update_calls(Update("adamw", "for-loop", 1.0, ema=True), sizes, "cpu")
    own = [one for one in apart.operators if count(one) > len(SHAPES)]
    assert len(own) == len([one for one in seen if one[1] > len(SHAPES)])


def test_scaled_losses_check_and_scale_back_all_gradients_first():
    sizes = tuple((one, "float32") for one in SHAPES)
    plain, scaled = (update_calls(Update(), sizes, "gpu", scales_loss=one) for one in (False, True))
    assert scaled.operators[1:] == plain.operators and scaled.operators[0].name == "mul_scalar"


def test_states_of_8_bits_and_their_scales():
    sizes = (((1024, 1024), "float32"), ((1024,), "float32"))
    found = update_calls(Update("adamw-8bit"), sizes, "gpu")
    assert found.state_bytes == 2 * (2**20 + 4 * 2**12) + 2 * 4 * 1024  # a scale for each 256; small ones as they are
    assert [one.io_bytes for one in found.operators] == pytest.approx(
        [(12 + 4) * 2**20 + 16 * 2**12, 28 * 1024], rel=0.02
    )


def test_default_of_gpus_is_all_parameters_at_a_time_and_of_cpus_one_after_the_other():
    sizes = (((10,), "float32"), ((20,), "float32"))
    together, apart = (update_calls(Update("sgd"), sizes, kind).operators for kind in ("gpu", "cpu"))
    assert [str(one) for one in together] == ["mul_scalar 1x30", "add 1x30", "add 1x30"]
    assert len(apart) == 6 and str(apart[3]) == "mul_scalar 1x20"
    assert update_calls(Update("none"), sizes, "gpu") == ((), 0, 0)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"optimizer": "lion"}, "optimizer 'lion' is unknown: use sgd, adam, adamw"),
        ({"optimizer": "adamw", "implementation": "triton"}, "'triton': one of foreach, fused, for-loop"),
        ({"optimizer": "muon", "implementation": "fused"}, "torch has fused kernels of sgd, adam, adamw"),
        ({"optimizer": "adamw-8bit", "implementation": "foreach"}, "has one implementation"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0"),
        ({"optimizer": "none", "clip_norm": 1.0}, "optimizer none has no update"),
        ({"optimizer": "none", "ema": True}, "leave clip_norm and ema out"),
    ],
)
def test_updates_that_torch_does_not_have_are_refused(settings, told):
    with pytest.raises(UsageError, match=told):
        Update(**settings)


def test_words_are_read_and_written():
    for name in (*OPTIMIZERS, "adamw-fused", "sgd-for-loop", "none"):
        assert update_of(name).word == name
    assert update_of(None) == Update("none")
    with pytest.raises(UsageError, match="is of --runtime torch"):
        _ = update_of("adamw-fused").compiled_optimizer


def test_memory_of_a_step_has_its_states():
    model, x = nn.Linear(64, 64), torch.randn(8, 64)
    for word, states in (("sgd", 1), ("adamw", 2), ("none", 0), (Update("adamw", ema=True), 3)):
        step = read_step(Workload(model, x, loss="mse", optimizer=word, precision="bf16", mode="training_step")).step
        assert step.memory.state_bytes == states * 2 * (64 * 64 + 64)
    assert optimizer_calls.update_calls.cache_info().maxsize
