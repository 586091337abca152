"""What TVM makes of a torch operator is what torch makes of it, or refused with both; known faults by a table."""

from __future__ import annotations

import pytest

from cdmpp.errors import CdmppError
from cdmpp.programs.known_faults import KnownFault, known_faults, refused_fault

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from torch.nn import functional as F  # noqa: E402

from cdmpp.programs import torch_import  # noqa: E402
from cdmpp.programs.declared import Declared  # noqa: E402
from cdmpp.programs.exported import export  # noqa: E402
from cdmpp.programs.networks import lower, relax_of_exported  # noqa: E402


class Of(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def imported(function, *inputs):
    return relax_of_exported(export(Of(function), inputs))


def sampled(image, grid):
    return F.grid_sample(image, grid, align_corners=False)


def test_another_shape_is_refused_with_both_and_the_place(monkeypatch):
    """As TVM imports it by itself, with nothing known of its faults."""
    monkeypatch.setattr("cdmpp.programs.known_faults.known_faults", lambda: ())
    monkeypatch.setattr(torch_import, "repairs", dict)
    message = (
        r"grid_sampler_2d\.default \(node grid_sampler_2d, the model \(Of\), .*test_declared\.py:\d+\) makes is "
        r"declared as float32 \[1, 3, 5, 7\], but TVM imports it as float32 \[1, 3, 7, 2\]"
    )
    with pytest.raises(CdmppError, match=message):
        imported(sampled, torch.rand(1, 3, 8, 8), torch.rand(1, 5, 7, 2))


def test_another_type_is_refused_with_a_remedy():
    with pytest.raises(CdmppError, match=r"declared as float16 \[2, 4\], but .* float32 \[2, 4\]\. .*runtime torch"):
        imported(torch.matmul, torch.rand(2, 3).half(), torch.rand(3, 4).half())


def test_what_is_repaired_computes_what_torch_does():
    import tvm
    from tvm import relax

    settings = [("bilinear", "zeros", False), ("nearest", "border", True), ("bicubic", "reflection", False)]

    def function(image, grid):
        sums = torch.cumsum(image > 0, 1), torch.cumsum(image, -1), torch.cumsum(image[0, 0, 0, 0], 0)
        bits = (image > 0) == (image > 1)
        scaled = torch.add(image, image[0], alpha=3), torch.sub(image, (image > 0).long(), alpha=0.5)
        rows, columns = torch.tensor([1, 0]), torch.tensor([2, 0])
        pairs = image[:, rows, columns], image[rows, :, columns], image[:, rows[:, None], columns], F.unfold(image, 2)
        turned = image[:, rows[None], columns[:, None]], image[rows[:, None], :, columns]
        last = image[:, -1], image[..., -2], image[:, rows[:1, None], columns]
        return (*sums, bits, *last, *scaled, *pairs, *turned, *(F.grid_sample(image, grid, *one) for one in settings))

    inputs = torch.randn(2, 3, 8, 6), 2.6 * torch.rand(2, 5, 7, 2) - 1.3
    module = lower(imported(function, *inputs))
    machine = relax.VirtualMachine(tvm.compile(module, tvm.target.Target({"kind": "llvm"})), tvm.cpu())
    found = machine["main"](*(tvm.runtime.tensor(one.numpy()) for one in inputs))
    for one, right in zip(found, function(*inputs), strict=True):
        torch.testing.assert_close(torch.from_numpy(one.numpy()), right, atol=1e-5, rtol=1e-4)


def test_sums_of_bits_are_integers():
    kind = imported(lambda x: torch.cumsum(x > 0, 1), torch.rand(2, 3))["main"].ret_ty
    assert [str(one.dtype) for one in getattr(kind, "fields", [kind])] == ["int64"]


@pytest.mark.parametrize(
    ("declared", "shape", "dtype", "differs"),
    [
        (Declared([2, 3], "float32"), (2, 3), "float32", False),
        (Declared([2, None], "float32"), (2, 3), "float32", False),
        (Declared(None, "float32"), (2, 3), "float32", False),
        (Declared(None, ""), (2, 3), "int8", False),
        (Declared([3, 2], "float32"), (2, 3), "float32", True),
        (Declared([6], "float32"), (2, 3), "float32", True),
        (Declared([2, 3], "int64"), (2, 3), "int32", True),
        (Declared([2, 3], "bfloat16"), (2, 3), "float16", True),
        (Declared(None, ""), (2**31, 2**31), "int8", True),
    ],
)
def test_what_is_known_is_compared(declared, shape, dtype, differs):
    from tvm import relax

    assert bool(declared.fault(relax.Var("x", relax.TensorType(shape, dtype)))) is differs


def test_the_table_of_known_faults_is_of_this_version_and_well_formed():
    faults = known_faults()
    assert faults and all(
        isinstance(one, KnownFault) and one.what and one.source in ("onnx", "torch") for one in faults
    )
    for one in faults:
        assert isinstance(one.covers({}), bool) and isinstance(one.setting, str)


def test_a_known_fault_is_refused_by_operator_setting_and_node(monkeypatch):
    table = (KnownFault("torch", "relu.default", (("rank", "least", 3),), "it makes something else", False),)
    monkeypatch.setattr("cdmpp.programs.known_faults.known_faults", lambda: table)
    assert (
        refused_fault("onnx", "relu.default", {"rank": 3}) == refused_fault("torch", "relu.default", {"rank": 2}) == ""
    )
    imported(torch.relu, torch.rand(2, 3))
    with pytest.raises(CdmppError, match=r"relu\.default \(node relu.*rank >= 3: it makes something else\. Replace"):
        imported(torch.relu, torch.rand(2, 3, 4))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: F.dropout(x, 0.3, training=True), "native_dropout.default .* as if nothing were dropped"),
        (lambda x: x + torch.randn_like(x), "randn_like.default .* makes a constant"),
        (lambda x: x + torch.randn(x.shape), "randn.default .* makes a constant"),
        (lambda x: torch.bernoulli(x, 0.4), "bernoulli.p .* returns its first input"),
        (lambda x: x + torch.empty_like(x).exponential_(), "exponential.default .* makes zeros"),
        (
            lambda x: F.interpolate(x, size=(3, 2), mode="bilinear", antialias=True),
            "_upsample_bilinear2d_aa.default .* without the wider window",
        ),
    ],
)
def test_what_tvm_makes_less_work_of_is_refused(function, message):
    with pytest.raises(CdmppError, match=message):
        imported(function, torch.rand(1, 2, 8, 6))


def test_what_would_drop_nothing_is_answered():
    imported(lambda x: F.dropout(x, 0.3, training=False).relu(), torch.rand(2, 3))


def test_a_known_fault_of_the_same_work_is_answered(monkeypatch):
    table = (KnownFault("torch", "relu.default", (), "other values", True),)
    monkeypatch.setattr("cdmpp.programs.known_faults.known_faults", lambda: table)
    imported(torch.relu, torch.rand(2, 3))


def test_repairs_are_not_refused(monkeypatch):
    table = (KnownFault("torch", "cumsum.default", (), "bits stay bits", False),)
    monkeypatch.setattr("cdmpp.programs.known_faults.known_faults", lambda: table)
    assert "cumsum.default" in torch_import.repairs()
    imported(lambda x: torch.cumsum(x > 0, 1), torch.rand(2, 3))
