"""Training steps that TVM compiled, beside autograd: gradients, the optimizer's update, saved activations."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")
pytest.importorskip("transformers")

from benchmarks.training_step import CLOSE, NETWORKS, Check, check, smooth  # noqa: E402
from cdmpp.network.source.torch_network import read_torch  # noqa: E402
from cdmpp.network.workload import Workload  # noqa: E402
from tests.network.training_networks import NAMES, small  # noqa: E402

pytestmark = pytest.mark.tvm
_done: dict[str, Check] = {}


def checked(name: str) -> Check:
    if name not in _done:
        optimizer = {"perceptron": "adamw", "residual": "adam"}.get(name, "sgd")
        _done[name] = check(*small(name), name, optimizer, optimised=0)
    return _done[name]


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_autograd(name):
    found = checked(name)
    model, _ = small(name)
    assert set(found.gradient_errors) <= {key.removeprefix("inner.") for key, _ in model.named_parameters()}
    assert max(found.gradient_errors.values()) < CLOSE, found.gradient_errors


@pytest.mark.parametrize("name", NAMES)
def test_an_update_is_that_of_torch(name):
    assert checked(name).update_error < 1e-2  # in steps of the learning rate: float32 holds a weight to 1e-4 of these


@pytest.mark.parametrize("name", NAMES)
def test_saved_activations_are_those_of_autograd(name):
    found, pooled = checked(name), 4 * 4 * 8 * 8 if name == "residual" else 0
    indices = 8 * pooled  # int64, of autograd's pooling; TVM's looks for its maxima again
    assert found.step.saved_activation_bytes + indices == pytest.approx(found.autograd_bytes, rel=0.1)


def test_statistics_of_zero_are_noticed():
    """As TVM's importer gives them for a batch norm that is not taken apart."""

    def without_statistics(joint):
        graph = joint.module.graph
        node = next(one for one in graph.nodes if one.target is torch.ops.aten.rsqrt.default)
        readers = list(node.users)
        with graph.inserting_after(node):
            zero = graph.call_function(torch.ops.aten.mul.Tensor, (node, 0.0))
        late = readers[1:]  # the forward pass reads it first
        assert late
        for reader in late:
            reader.replace_input_with(node, zero)
        joint.module.recompile()

    found = check(*small("depthwise"), "depthwise", "sgd", fault=without_statistics, optimised=0)
    assert max(found.gradient_errors.values()) > 100 * CLOSE


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_full_networks(name):
    """With SiLU for ReLU: at a value next to zero a rounding error would decide which way a gradient goes."""
    torch.manual_seed(0)
    network = read_torch(Workload(NETWORKS[name], batch=1 if name in ("vgg16", "resnet50") else 2))
    found = check(smooth(network.model).train(), network.example, name)
    assert not found.wrong
    assert found.saved_ratio == pytest.approx(1.0, abs=0.1)
