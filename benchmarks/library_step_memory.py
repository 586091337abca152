"""Memory of training steps beside that of eager PyTorch: ``python -m benchmarks.library_step_memory``.

Networks of the zoo, or those that are named, batch 2, AdamW, on a CPU, in three precisions. Of saved activations each
storage that autograd keeps counts once, parameters, buffers and inputs not at all; casts of weights count. The peak is
what PyTorch's allocator holds at most within a second step, when the optimizer has its states.
"""

from __future__ import annotations

import argparse
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from benchmarks.publish.measured import publish
from cdmpp.network.eager.step import read_step
from cdmpp.network.source.trained_model import trained_model
from cdmpp.network.workload import Workload
from cdmpp.programs.training.loss import with_loss

NETWORKS = {
    "resnet18": "ResNet-18", "vgg16": "VGG-16", "mobilenet_v2": "MobileNetV2", "bert_base": "BERT", "gpt2": "GPT-2",
    "llama_small": "Llama", "vit_small": "ViT",
}  # fmt: skip
"""Network of the zoo -> its name on the page."""
PAGE, TITLE = "training-steps", "By PyTorch's own kernels"
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


class Memory(NamedTuple):
    """Saved activations and the peak of a step, predicted and held, in bytes."""

    saved: int
    kept: int
    peak: int
    held: int


def memory_of(name: str, precision: str) -> Memory:
    """Predict a step, and run it."""
    workload = Workload(name, optimizer="adamw", batch=2, precision=precision, mode="training_step")
    step = read_step(workload, "cpu").step
    assert step is not None
    network, model = trained_model(workload)
    module, arguments = with_loss(model, network.example, "cross_entropy")
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-autocast"):
        kept = kept_bytes(module, arguments)
    return Memory(step.saved_activation_bytes, kept, step.peak_bytes, peak_bytes(module, arguments, precision))


def published(found: dict[tuple[str, str], Memory]) -> None:
    """Write the two tables of the page."""

    def rows(precision: str, names: Sequence[str]) -> list[list[str]]:
        own = [found[name, precision] for name in names]
        places = 2 if precision == "fp32" else 3
        return [
            [f"{one.saved / one.kept:.{places}f}" for one in own],
            [f"{one.peak / 1e6:.0f}" for one in own],
            [f"{one.peak / one.held:.{places}f}" for one in own],
        ]

    heads = ("saved activations", "peak, MB", "peak, predicted over held")
    wide = [[head, *row] for head, row in zip(heads, rows("fp32", tuple(NETWORKS)), strict=True)]
    publish(PAGE, TITLE, ["", *NETWORKS.values()], wide)
    heads = ("saved activations, predicted over kept", *heads[1:])
    names = [name for name in NETWORKS if name != "vgg16"]  # whose products in bfloat16 take long here
    narrow = [
        [f"`{precision}`", head, *row]
        for precision in PRECISIONS[1:]
        for head, row in zip(heads, rows(precision, names), strict=True)
    ]
    publish(PAGE, TITLE, ["precision", "", *(NETWORKS[name] for name in names)], narrow)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("networks", nargs="*", help="of the zoo; those of the page where none is named")
    words.add_argument("--publish", action="store_true", help=f"write docs/measured/{PAGE}.json and its page")
    given, found = words.parse_args(), dict[tuple[str, str], Memory]()
    if given.publish and given.networks:
        words.error("--publish writes all networks of the page: name none")
    for name in given.networks or NETWORKS:
        for precision in PRECISIONS:
            if name != "vgg16" or precision == "fp32" or given.networks:
                found[name, precision] = one = memory_of(name, precision)
                pairs = {"saved": one[:2], "peak": one[2:]}
                told = (f"{kind} {told / 1e6:7.1f} MB, PyTorch {held / 1e6:7.1f}, ratio {told / held:.3f}"
                        for kind, (told, held) in pairs.items())  # fmt: skip
                print(f"{name:14} {precision:14}", *told, sep="  ", flush=True)
    if given.publish:
        published(found)


if __name__ == "__main__":
    main()
