"""Memory of training steps beside that of eager PyTorch: ``python -m benchmarks.library_step_memory``.

Networks of the zoo, or those that are named, batch 2, AdamW, on a CPU, in three precisions. Of saved activations each
storage that autograd keeps counts once, parameters, buffers and inputs not at all; casts of weights count. The peak is
what PyTorch's allocator holds at most within a second step, when the optimizer has its states.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from cdmpp.network.eager.step import read_step
from cdmpp.network.source.trained_model import trained_model
from cdmpp.network.workload import Workload
from cdmpp.programs.training.loss import with_loss

NETWORKS = ("resnet18", "vgg16", "mobilenet_v2", "bert_base", "gpt2", "llama_small", "vit_small")


PRECISIONS = ("fp32", "bf16", "bf16-autocast")


class Kept:
    """A tensor that autograd keeps."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


def kept_bytes(module: Any, arguments: tuple[Any, ...]) -> int:
    """What autograd keeps of one forward pass, for as long as its loss is there."""
    own = {value.untyped_storage().data_ptr() for value in (*module.parameters(), *module.buffers(), *arguments)}
    held: weakref.WeakSet[Kept] = weakref.WeakSet()

    def pack(value: torch.Tensor) -> Kept:
        held.add(one := Kept(value.detach()))  # a result with its graph would hold that and itself
        return one

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one.value):
        loss = module(*arguments)
    storages = {one.value.untyped_storage().data_ptr(): one.value.untyped_storage().nbytes() for one in held}
    del loss  # until here: what the loss does not depend on was let go before
    return sum(size for key, size in storages.items() if key not in own)


def peak_bytes(
    module: Any,
    arguments: tuple[Any, ...],
    precision: str = "fp32",
    make: Callable[[Any], Any] = torch.optim.AdamW,
) -> int:
    """What the allocator holds at most in a step on two threads: what was there before it, and its own."""
    optimizer, threads = make(module.parameters()), torch.get_num_threads()
    torch.set_num_threads(2)  # with a single one ATen leaves convolutions of 1x1 to other kernels than oneDNN's

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-autocast"):
            loss = module(*arguments)[0]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    held = [*module.parameters(), *module.buffers(), *states, *(one for one in arguments if torch.is_tensor(one))]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    torch.set_num_threads(threads)
    moves = [one for one in profile.profiler.kineto_results.events() if one.name() == "[memory]"]
    own = itertools.accumulate(one.nbytes() for one in sorted(moves, key=lambda one: one.start_ns()))
    return max(own) + sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in held}.values())


def main() -> None:
    for name in sys.argv[1:] or NETWORKS:
        for precision in PRECISIONS:
            workload = Workload(name, optimizer="adamw", batch=2, precision=precision, mode="training_step")
            step = read_step(workload, "cpu").step
            network, model = trained_model(workload)
            module, arguments = with_loss(model, network.example, "cross_entropy")
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-autocast"):
                kept = kept_bytes(module, arguments)
            pairs = {
                "saved": (step.saved_activation_bytes, kept),
                "peak": (step.peak_bytes, peak_bytes(module, arguments, precision)),
            }
            told = (f"{kind} {told / 1e6:7.1f} MB, PyTorch {held / 1e6:7.1f}, ratio {told / held:.3f}"
                    for kind, (told, held) in pairs.items())  # fmt: skip
            print(f"{name:14} {precision:14}", *told, sep="  ", flush=True)


if __name__ == "__main__":
    main()
