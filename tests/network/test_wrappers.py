"""What is wrapped around a model or called by it: answered as it runs, or refused by its name with a remedy."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import cdmpp
from cdmpp.errors import CdmppError
from cdmpp.network.eager.read import read_run
from cdmpp.network.eager.step import read_step
from cdmpp.network.workload import Workload
from tests.network.dispatched import predicted_step, real_step
from tests.network.region_networks import Run, mlp


class Doubled(torch.autograd.Function):
    """Its backward pass is not the derivative of its forward pass."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return torch.relu(gradient)


def changed(change):
    """A perceptron after a change."""

    def make():
        model = mlp()
        return change(model) or model

    return make


def hooked(change):
    def apply(model):
        change(model)

    return changed(apply)


def hook_of_activation(parts, x):
    x = parts[0](x)
    if x.requires_grad:
        x.register_hook(lambda gradient: 2 * gradient)
    return parts[1](x)


def saved_on_cpu(parts, x):
    with torch.autograd.graph.save_on_cpu():
        return parts[0](x)


def while_loop(parts, x):
    from torch._higher_order_ops.while_loop import while_loop as run

    return run(lambda i, y: i < 3, lambda i, y: (i + 1, y.sin()), (torch.tensor(0), parts[0](x)))[1]


def scan(parts, x):
    from torch._higher_order_ops.scan import scan as run

    return run(lambda carry, y: (carry + y, (carry + y).clone()), torch.zeros(8), parts[0](x), dim=0)[1]


def flex(parts, x):
    from torch.nn.attention.flex_attention import flex_attention

    q = parts[0](x)[None, None].repeat(1, 1, 32, 2)
    return flex_attention(q, q, q)


def offloaded():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import offload_wrapper

    return nn.Sequential(offload_wrapper(mlp()))


def quantised():
    return torch.ao.quantization.quantize_dynamic(mlp().eval(), {nn.Linear}, torch.qint8)


def sparse():
    model = Run(lambda parts, x: torch.sparse.mm(parts[0].weight, x.t()), nn.Linear(8, 8))
    model.parts[0].weight = nn.Parameter(torch.eye(8).to_sparse())
    return model


class HookedEverywhere(nn.Module):
    """A module that hooks all others while it runs."""

    def __init__(self):
        super().__init__()
        self.part = mlp()

    def forward(self, x):
        handle = nn.modules.module.register_module_full_backward_hook(lambda *_: None)
        try:
            return self.part(x)
        finally:
            handle.remove()


REFUSED = {  # name: (model, what a forward pass tells, what a step tells); None: answered
    "backward hook": (hooked(lambda m: m[0].register_full_backward_hook(lambda *_: None)), None, "a backward hook"),
    "pre-backward hook": (
        hooked(lambda m: m[0].register_full_backward_pre_hook(lambda *_: None)), None, "a backward hook",
    ),
    "hook of a parameter": (hooked(lambda m: m[0].weight.register_hook(lambda g: g)), None, "hook on the gradient"),
    "hook behind a gradient": (
        hooked(lambda m: m[0].weight.register_post_accumulate_grad_hook(lambda p: None)), None, "hook on the gradient",
    ),
    "hook of an activation": (lambda: Run(hook_of_activation, mlp(), mlp()), None, "Tensor.register_hook"),
    "custom function": (
        lambda: Run(lambda parts, x: parts[1](Doubled.apply(parts[0](x))), mlp(), mlp()), None,
        "Doubled is a torch.autograd.Function",
    ),
    "hook of all modules": (HookedEverywhere, None, "register_module_full_backward_hook"),
    "gradient of an activation": (
        lambda: Run(lambda parts, x: parts[1](parts[0](x).detach().requires_grad_()), mlp(), mlp()), None,
        "Tensor.requires_grad_ inside forward",
    ),
    "saved on the CPU": (lambda: Run(saved_on_cpu, mlp()), None, "save_on_cpu"),
    "offloaded": (offloaded, None, "save_on_cpu"),
    "spectral norm": (changed(lambda m: parametrizations.spectral_norm(m[0]) and None), "aten.mv", "aten.mv"),
    "vmap": (
        lambda: Run(lambda parts, x: torch.func.vmap(parts[0])(x), mlp()), "torch.func.vmap", "torch.func.vmap",
    ),
    "functional gradient": (
        lambda: Run(lambda parts, x: torch.func.grad(lambda y: parts[0](y).sum())(x), mlp()), "cannot be exported",
        "cannot be exported",
    ),
    "branches": (
        lambda: Run(lambda parts, x: torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (parts[0](x),)),
                    mlp()), "cond at.*keep one branch", "cond at.*keep one branch",
    ),
    "while": (lambda: Run(while_loop, mlp()), "while_loop at", "while_loop at"),
    "scan": (lambda: Run(scan, mlp()), "scan at", "scan at"),
    "flex attention": (
        lambda: Run(flex, mlp()), "flex_attention at.*scaled_dot_product_attention", "FlexAttention",
    ),
    "script": (changed(torch.jit.script), "ScriptModule.*Python module", "ScriptModule.*Python module"),
    "script inside": (
        lambda: nn.Sequential(mlp(), torch.jit.script(mlp())), r"1 \(.*ScriptModule", r"1 \(.*ScriptModule",
    ),
    "data parallel": (changed(nn.DataParallel), "DataParallel.*give its .module", "DataParallel.*give its .module"),
    "quantised": (quantised, "quantised.*before it was quantised", "quantised.*before it was quantised"),
    "sparse weight": (sparse, "sparse_coo.*to_dense", "sparse_coo.*to_dense"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_graph_cannot_tell_is_refused_by_name(name):
    make, of_network, of_step = REFUSED[name]
    x = torch.randn(4, 8)
    if of_network is None:
        assert read_run(Workload(make(), x)).graph.calls
    else:
        with pytest.raises(CdmppError, match=of_network):
            read_run(Workload(make(), x))
    with pytest.raises(CdmppError, match=of_step):
        read_step(Workload(make(), x, loss="mse", mode="training_step"))


@pytest.mark.tvm
@pytest.mark.parametrize("name", [*REFUSED, "checkpoint"])
def test_a_step_of_tvms_programs_refuses_it_too(name):
    pytest.importorskip("tvm")
    from torch.utils.checkpoint import checkpoint

    make, told = (
        (lambda: Run(lambda parts, x: checkpoint(parts[0], x, use_reentrant=False), mlp()), "--runtime torch")
        if name == "checkpoint" else (REFUSED[name][0], REFUSED[name][2])
    )  # fmt: skip
    if name in ("spectral norm", "functional gradient"):  # these are operators that TVM may have
        return
    told += "|cannot be trained by its loss" if name == "branches" else ""  # eager cond may fail before its export
    with pytest.raises(CdmppError, match=told):
        cdmpp.read_step(cdmpp.Workload(make(), torch.randn(4, 8), loss="mse"), fallback=True)


def forward_hooks():
    model = mlp()
    model[0].register_forward_hook(lambda _module, _inputs, output: torch.tanh(output))
    model[2].register_forward_pre_hook(lambda _module, inputs: (torch.relu(inputs[0]),))
    return model


def other_weights():
    return Run(lambda parts, x: torch.func.functional_call(parts[0], dict(parts[1].named_parameters()), (x,)),
               mlp(), mlp())  # fmt: skip


class Squashed(nn.Module):
    def forward(self, weight):
        return torch.tanh(weight)


def parametrised():
    model = nn.Sequential(mlp(), mlp())
    for part in model:
        parametrize.register_parametrization(part[0], "weight", Squashed())
    return model


def scores():
    return Run(lambda parts, x: parts[0](x) @ x.transpose(-1, -2), nn.Linear(8, 8))


def scores_of_queries():
    return Run(lambda parts, x: x @ parts[0](x).transpose(-1, -2), nn.Linear(8, 8))


@pytest.mark.parametrize("make", [forward_hooks, other_weights, parametrised, scores, scores_of_queries])
def test_what_a_graph_tells_is_answered(make):
    model, x = make(), torch.randn(*((2, 5, 8) if "scores" in make.__name__ else (4, 8)))
    model.train()
    real, predicted = real_step(copy.deepcopy(model), (x,)), predicted_step(model, (x,))
    assert (predicted.forward, predicted.backward) == (real.forward, real.backward)
    assert predicted.saved_bytes == real.saved_bytes


@pytest.fixture
def process_group():
    import torch.distributed as group

    group.init_process_group("gloo", store=group.HashStore(), rank=0, world_size=1)
    yield
    group.destroy_process_group()


def sharded(model):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model)


def distributed(model):
    from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh

    weight = distribute_tensor(model[0].weight.detach(), init_device_mesh("cpu", (1,)), [Replicate()])
    model[0].weight = nn.Parameter(weight)
    return model


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(
    ("wrap", "told"),
    [
        (nn.parallel.DistributedDataParallel, "DistributedDataParallel.*give its .module.*--ranks"),
        (sharded, "FSDPModule.*leave fully_shard out.*--ranks"),
        (distributed, "0.weight is a torch.distributed.tensor.DTensor.*plain tensors"),
    ],
    ids=["ddp", "fsdp", "dtensor"],
)
def test_modules_of_several_ranks_are_refused(wrap, told):
    for run in (read_run, read_step):
        with pytest.raises(CdmppError, match=told):
            run(Workload(wrap(mlp()), torch.randn(4, 8)))


def test_nothing_of_torch_stays_changed():
    from torch.utils import checkpoint

    before = (
        checkpoint._checkpoint_hook, torch.autograd.Function.apply, torch.Tensor.register_hook,
        torch.autocast.__init__, torch.autocast.__enter__, torch.inference_mode.__enter__,
    )  # fmt: skip
    with pytest.raises(CdmppError):
        read_step(Workload(REFUSED["custom function"][0](), torch.randn(4, 8), loss="mse", mode="training_step"))
    assert before == (
        checkpoint._checkpoint_hook, torch.autograd.Function.apply, torch.Tensor.register_hook,
        torch.autocast.__init__, torch.autocast.__enter__, torch.inference_mode.__enter__,
    )  # fmt: skip
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
