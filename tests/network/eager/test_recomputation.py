"""Checkpointed and detached parts of a training step, against the operators that eager PyTorch dispatches."""

from __future__ import annotations

import gc
import json
import weakref
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import cdmpp
from cdmpp import cli
from cdmpp.errors import CdmppError
from cdmpp.network.eager.step import read_step
from cdmpp.network.workload import Workload
from cdmpp.steps.from_prediction import graph_of
from cdmpp.steps.transforms.recompute import again_places, can_recompute
from tests.network.dispatched import predicted_step, real_step
from tests.network.eager.most_held import most_held
from tests.network.region_networks import CHECKPOINTED, WITHOUT_GRADIENTS, Run, each, mlp

NETS = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.checkpoint import checkpoint


class Checkpointed(nn.Module):
    def __init__(self, recomputes):
        super().__init__()
        self.recomputes = recomputes
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(4)
        )

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputes else block(x)
        return x


def checkpointed():
    return Checkpointed(True), (torch.randn(4096, 256),)


def plain():
    return Checkpointed(False), (torch.randn(4096, 256),)
"""


@pytest.mark.parametrize("name", [*CHECKPOINTED, *WITHOUT_GRADIENTS])
def test_a_step_runs_and_keeps_what_eager_pytorch_does(name):
    torch.manual_seed(0)
    model, inputs = {**CHECKPOINTED, **WITHOUT_GRADIENTS}[name]()
    real, predicted = real_step(model.train(), inputs), predicted_step(model, inputs)
    assert predicted.forward == real.forward
    assert predicted.backward == real.backward
    assert predicted.saved_bytes == real.saved_bytes


@pytest.mark.parametrize("kind", ["bert", "llama"])
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_gradient_checkpointing_of_transformers(kind, reentrant):
    library = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    if kind == "bert":
        drops = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        config = library.BertConfig(**sizes, **drops, vocab_size=50, attn_implementation="eager")
        model = library.BertModel(config)
    else:
        config = library.LlamaConfig(**sizes, vocab_size=50, attn_implementation="eager", use_cache=False)
        model = library.LlamaModel(config)
    if reentrant is not None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    model = Run(lambda parts, x: parts[0](x).last_hidden_state, model).train()
    inputs = (torch.randint(0, 50, (2, 16)),)
    real, predicted = real_step(model, inputs), predicted_step(model, inputs)
    assert predicted.backward == real.backward
    products = [{key: n for key, n in one.forward.items() if key[0] == "product"} for one in (real, predicted)]
    assert products[0] == products[1]


def test_the_command_says_what_is_recomputed(tmp_path, capsys):
    file = tmp_path / "nets.py"
    file.write_text(NETS)
    words = ["--device", "h100", "--runtime", "torch", "--loss", "mse"]
    trace = tmp_path / "trace.json"
    assert cli.main(["step", f"{file}:checkpointed", *words, "--trace", str(trace)]) == 0
    told = capsys.readouterr().out
    assert "torch.utils.checkpoint runs 8 calls of the forward pass again" in told and "16.8 MB" in told
    found = {}
    for name in ("checkpointed", "plain"):
        assert cli.main(["step", f"{file}:{name}", *words, "--json"]) == 0
        found[name] = json.loads(capsys.readouterr().out)
    again, plain = found["checkpointed"], found["plain"]
    assert (again["recomputed_calls"], plain["recomputed_calls"], plain["recomputed_s"]) == (8, 0, 0.0)
    assert again["saved_activation_bytes"] == 4 * 4096 * 256 * 4  # of the first block it is the input
    assert plain["saved_activation_bytes"] == 4 * (4096 * 256 + 2 * 4096 * 1024) * 4
    assert again["forward_s"] == pytest.approx(plain["forward_s"])
    assert again["backward_s"] - plain["backward_s"] == pytest.approx(again["recomputed_s"], rel=0.02)
    assert 0.4 * plain["forward_s"] < again["recomputed_s"] < 0.7 * plain["forward_s"]  # all but the last products
    block = 4096 * 1024 * 4
    assert plain["peak_bytes"] - again["peak_bytes"] >= 3 * 2 * block  # results of one block at a time
    assert (
        sum("recomputed" in event["name"] for event in json.loads(trace.read_text())["traceEvents"]) == 2 * 8
    )  # host and device


def test_a_plan_recomputes_no_unit_twice():
    blocks = [mlp() for _ in range(3)]
    some = Run(lambda parts, x: each(parts[:2], x) if x is None else parts[2](each(parts[:2], x)), *blocks)
    found = cdmpp.predict_step(cdmpp.Workload(some, torch.randn(64, 8), loss="mse"), device="h100", runtime="torch")
    (rank,) = graph_of(found).ranks
    assert sum(one.is_recomputed for one in rank.ops) == 4
    assert {unit.name for unit in rank.modules} == {"parts.0", "parts.1", "parts.2"}
    assert [unit.name for unit in can_recompute(rank)] == ["parts.2"]
    gathered = {unit.name: unit.backward[0] for unit in rank.modules}  # sharded weights are there for the second run
    assert all(rank.ops[gathered[name]].is_recomputed for name in ("parts.0", "parts.1"))


def test_a_forward_pass_alone_recomputes_nothing():
    model = Run(each, mlp(), mlp()).eval()
    found = cdmpp.predict_network(model, torch.randn(4, 8), device="h100", runtime="torch")
    assert sum(kernel.count for kernel in found.kernels) == 6
    both = cdmpp.predict_network(
        cdmpp.Workload(model, torch.randn(4, 8), mode="forward_backward"), device="h100", runtime="torch"
    )
    without = Run(lambda parts, x: parts[1](parts[0](x)), mlp(), mlp())
    workload = cdmpp.Workload(without, torch.randn(4, 8), mode="forward_backward")
    plain = cdmpp.predict_network(workload, device="h100", runtime="torch")
    assert sum(one.count for one in both.kernels) == sum(one.count for one in plain.kernels) + 4


def test_a_reentrant_region_of_inputs_without_gradients_trains_nothing():
    model = Run(lambda parts, x: each(parts, x, use_reentrant=True), mlp(), mlp())
    with pytest.raises(CdmppError, match="depends on no parameter that is trained.*use_reentrant=True"):
        read_step(Workload(model, torch.randn(4, 8), loss="mse", mode="training_step"))
    model = Run(lambda parts, x: parts[1](each(parts[:1], x, use_reentrant=True)), mlp(), mlp())
    made = read_step(Workload(model, torch.randn(4, 8), loss="mse", mode="training_step")).step
    assert {name.split(".")[1] for name in made.ready_order} == {"1"}


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_the_peak_of_checkpointed_blocks_is_that_of_torchs_allocator(reentrant):
    blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)]

    def run(parts, x):
        x = parts[0](x)
        for part in parts[1:]:
            x = part(x) if reentrant is None else checkpoint(part, x, use_reentrant=reentrant)
        return x

    model, x = Run(run, nn.Linear(64, 64), *blocks), torch.randn(2048, 64)
    made = read_step(
        Workload(model, x, loss=lambda output: output.sum(), optimizer=None, mode="training_step"), "cpu"
    ).step

    def one() -> None:
        model(x).sum().backward()
        model.zero_grad(set_to_none=True)

    own = most_held(one)
    held = made.memory.parameter_bytes + made.memory.input_bytes
    assert made.peak_bytes - held == pytest.approx(own, rel=0.15)


def _every_second():
    """Torchtitan's policy of operators: attention and every second product are kept."""
    seen = {"products": 0}
    aten = torch.ops.aten
    attention = aten._scaled_dot_product_flash_attention_for_cpu.default

    def policy(context, func, *args, **kwargs):
        seen["products"] += (is_product := func in (aten.mm.default, aten.addmm.default))
        keeps = func is attention or (is_product and seen["products"] % 2)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _products():
    return create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])


def _all():
    return create_selective_checkpoint_contexts(lambda *_, **__: CheckpointPolicy.PREFER_SAVE)


def _nothing():
    return create_selective_checkpoint_contexts(lambda *_, **__: False)


SELECTIVE = {"every second": _every_second, "products": _products, "all": _all, "nothing": _nothing}


@pytest.mark.parametrize("policy", SELECTIVE)
@pytest.mark.parametrize("kind", ["mlp", "transformer", "without bias"])
def test_a_selective_policy_keeps_what_it_says(policy, kind):
    torch.manual_seed(0)

    def run(parts, x):
        for part in parts:
            x = checkpoint(part, x, use_reentrant=False, context_fn=SELECTIVE[policy])
        return x

    blocks = [mlp() if kind == "mlp" else _Block() for _ in range(2)]
    for one in nn.ModuleList(blocks).modules() if kind == "without bias" else ():
        if isinstance(one, nn.Linear):
            one.bias = None
    x = torch.randn(4, 8) if kind == "mlp" else torch.randn(2, 8, 32)
    model = Run(run, *blocks).train()
    for _ in range(2):  # a policy that counts begins anew in each region, whenever it is read
        real, predicted = real_step(model, (x,)), predicted_step(model, (x,))
        assert predicted.forward == real.forward
        assert predicted.backward == real.backward
        assert predicted.saved_bytes == kept_bytes(model, x)


def kept_bytes(model, x):
    """Bytes of storages that were made in a forward pass and are alive at its end, the result left out."""
    alive = weakref.WeakSet()

    class Alive(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            for one in found if isinstance(found, tuple | list) else (found,):
                alive.add(one.untyped_storage())
            return found

    with Alive():
        y = model(x).sum()
    gc.collect()
    own = {one.untyped_storage().data_ptr() for one in (*model.parameters(), x, y)}
    return sum({one.data_ptr(): one.nbytes() for one in alive if one.data_ptr() not in own}.values())


def test_other_contexts_of_checkpoints_are_refused():
    def contexts():
        return torch.autocast("cpu"), torch.autocast("cpu")

    model = Run(lambda parts, x: checkpoint(parts[0], x, use_reentrant=False, context_fn=contexts), mlp())
    with pytest.raises(CdmppError, match="context_fn that is not of.*autocast.*test_recomputation.py"):
        read_step(Workload(model, torch.randn(4, 8), loss="mse", mode="training_step"))
    model = Run(lambda parts, x: selective(lambda y: selective(parts[0], y), x), mlp())
    with pytest.raises(CdmppError, match="inside a region with another one"):
        read_step(Workload(model, torch.randn(4, 8), loss="mse", mode="training_step"))
    assert cdmpp.predict_network(model, torch.randn(4, 8), device="h100", runtime="torch").latency_s > 0


def selective(part, x):
    return checkpoint(part, x, use_reentrant=False, context_fn=_products)


class _Block(nn.Module):
    """A transformer block whose norms come first."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


@pytest.mark.parametrize(
    ("block", "share"),
    [
        (lambda: nn.Sequential(nn.Linear(32, 32)), 0.0),
        (lambda: nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)), 1 / 2),
        (_Block, 8 / 12),
    ],
    ids=["linear", "linear-gelu-linear", "transformer"],
)
def test_a_plan_recomputes_what_checkpoint_does(block, share):
    """The same kernels as where the model asks for it; ``share``: of the FLOPs of its linears."""

    class Blocks(nn.Module):
        def __init__(self, checkpoints):
            super().__init__()
            self.checkpoints, self.blocks = checkpoints, nn.ModuleList(block() for _ in range(3))
            self.head = nn.Linear(32, 32)

        def forward(self, x):
            for one in self.blocks:
                x = checkpoint(one, x, use_reentrant=False) if self.checkpoints else one(x)
            return self.head(x)

    def step(checkpoints):
        return cdmpp.predict_step(Blocks(checkpoints), torch.randn(2, 8, 32), device="a100", runtime="torch")

    plain, checkpointed = step(False), step(True)
    rank = graph_of(plain).ranks[0]
    modules = can_recompute(rank)
    assert len(modules) == 3
    again = [rank.ops[place] for one in modules for place in again_places(rank, one)]
    wanted = [op for op in graph_of(checkpointed).ranks[0].ops if op.is_recomputed]
    assert sorted(op.kind for op in again) == sorted(op.kind for op in wanted)

    def flops(names):
        tasks = plain.step.graph.tasks
        called = {call.call.name: tasks[call.call.task_id] for call in plain.step.calls}
        return sum(called[name].flops for name in names if "linear" in called[name].op_name)

    whole = [op.name for one in modules for op in rank.ops[one.forward[0] : one.forward[1] + 1]]
    assert flops(op.name for op in again) / flops(whole) == pytest.approx(share)


@pytest.mark.parametrize("how", ["full", "op"])
def test_blocks_run_again_as_a_training_script_lets_them(how):
    """As where the model itself calls ``torch.utils.checkpoint``; parameters keep their names."""

    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.blocks = nn.Linear(32, 32), nn.ModuleList(_Block() for _ in range(2))

        def forward(self, x):
            x = self.first(x)
            for one in self.blocks:
                x = one(x)
            return x

    torch.manual_seed(0)
    model, x = Blocks(), torch.randn(2, 8, 32)
    asked = {"loss": lambda y: y.sum(), "optimizer": None, "mode": "training_step"}
    step = read_step(Workload(model, x, recompute=how, **asked), "cpu").step
    assert step.ready_order == read_step(Workload(model, x, **asked), "cpu").step.ready_order
    assert "forward" not in vars(model.blocks[0])
    contexts = {"context_fn": _every_second} if how == "op" else {}
    for one in model.blocks:
        one.forward = partial(checkpoint, one.forward, use_reentrant=False, **contexts)
    own = read_step(Workload(model, x, **asked), "cpu").step
    real = real_step(model, (x,))
    assert [one.call.task_id for one in step.calls] == [one.call.task_id for one in own.calls]
    assert step.memory == own.memory
    assert predicted_step(model, (x,)).backward == real.backward


class _Attention(nn.Module):
    """Two layers of attention, checkpointed by the model itself or not."""

    def __init__(self, recomputes=False, dropout=0.0):
        super().__init__()
        self.recomputes, self.dropout = recomputes, dropout
        self.inward, self.outward = (nn.ModuleList(nn.Linear(64, n) for _ in range(2)) for n in (192, 64))

    def forward(self, x):
        for inward, outward in zip(self.inward, self.outward, strict=True):
            q, k, v = (one.unflatten(-1, (4, 16)).transpose(1, 2) for one in inward(x).chunk(3, -1))
            run = nn.functional.scaled_dot_product_attention
            run = partial(checkpoint, run, use_reentrant=False) if self.recomputes else run
            x = x + outward(run(q, k, v, is_causal=True, dropout_p=self.dropout).transpose(1, 2).flatten(2))
        return x


@pytest.mark.parametrize("backend", ["math", "auto"])
def test_attention_runs_again_as_in_a_model_that_checkpoints_it(backend):
    """What is kept is what eager PyTorch keeps: no scores where they are written, and else next to the same."""
    x, inside = torch.randn(2, 64, 64), nullcontext()
    if backend == "math":
        inside = sdpa_kernel(SDPBackend.MATH)
    asked = {"loss": lambda y: y.sum(), "optimizer": None, "mode": "training_step", "attention": backend}
    plain = read_step(Workload(_Attention(), x, **asked), "cpu").step
    again = read_step(Workload(_Attention(), x, recompute="attention", **asked), "cpu").step
    own = read_step(Workload(_Attention(recomputes=True), x, **asked), "cpu").step
    with inside:
        real = {how: real_step(_Attention(how).train(), (x,)) for how in (False, True)}
    assert plain.saved_activation_bytes == real[False].saved_bytes
    assert again.saved_activation_bytes == own.saved_activation_bytes == real[True].saved_bytes
    assert [one.call.task_id for one in again.calls] == [one.call.task_id for one in own.calls]
    assert again.memory == own.memory and len(again.recomputed) > 0
    assert len(again.calls) - len(plain.calls) == len(again.recomputed)
    scores = 2 * 4 * 64 * 64 * 4
    assert plain.memory.live_bytes - again.memory.live_bytes >= (scores if backend == "math" else 0)


def test_attention_that_a_model_does_not_call_is_refused(capsys):
    words = ["step", "hf:gpt2", "--device", "h100", "--runtime", "torch", "--batch", "2", "--seq", "64"]
    assert cli.main([*words, "--attention", "eager", "--recompute", "attention"]) == 2
    assert "this one does not: take attention auto or math in place of eager" in capsys.readouterr().err


def test_blocks_are_asked_for_on_the_command_line(capsys):
    words = ["step", "hf:gpt2", "--device", "h100", "--runtime", "torch", "--batch", "2", "--seq", "64", "--json"]
    found = {}
    for how in ("none", "full", "op", "attention"):
        assert cli.main([*words, "--precision", "bf16", "--recompute", how]) == 0
        found[how] = json.loads(capsys.readouterr().out)
    calls, saved = ([found[how][key] for how in found] for key in ("recomputed_calls", "saved_activation_bytes"))
    assert calls[1] > calls[2] > calls[3] > calls[0] == 0
    assert saved[1] < saved[2] < saved[3] < saved[0]
    assert cli.main(["step", "hf:gpt2", "--device", "epyc-genoa", "--recompute", "full"]) == 2
    assert "TVM's programs run no block again: add --runtime torch" in capsys.readouterr().err
    assert cli.main(["step", "torchvision:vgg16", "--device", "h100", "--runtime", "torch", "--recompute", "full"]) == 2
    assert "recompute full is of models with blocks" in capsys.readouterr().err
    with pytest.raises(CdmppError, match="recompute is full: blocks run again in a training step"):
        Workload("gpt2", recompute="full")
