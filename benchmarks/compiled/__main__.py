"""Compiled training steps next to what Inductor generates: ``python -m benchmarks.compiled [NETWORK ...]``.

Prints for each network, forward and backward pass apart, its launches, the bytes that fused kernels move, saved
activations and the most bytes alive: as predicted, by Inductor's own count, and as its generated text says. No GPU is
needed, and none was there: no kernel was timed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks.compiled.generated import launches_in, peak_in, results_in, saved_in, traffic_in
from benchmarks.publish.markdown import table
from cdmpp import Workload, devices
from cdmpp.network.inductor import step as compiled
from cdmpp.programs.patch import patched

NETWORKS = ("resnet18", "resnet50", "mobilenet_v2", "bert_base", "gpt2", "llama_small", "vit_small")
PRECISIONS = ("fp32", "bf16-autocast")
DEVICE = "h100"


class Phase(NamedTuple):
    """Forward or backward pass: what is predicted, and what was generated."""

    launches: int
    generated_launches: int
    fused_bytes: int
    """Bytes that fused kernels move, as predicted."""
    text_bytes: int
    """The same, from the indices of their loads and stores."""
    all_bytes: int
    """Bytes of all kernels, whole buffers, as read; products of libraries included."""
    inductor_bytes: int
    """The same, by Inductor's ``count_bytes``."""


class Saved(NamedTuple):
    """Bytes that the forward pass saves."""

    predicted: int
    tensors: int
    """Those of the tensors that the partitioner saves, inputs left out."""
    copies: int
    """Inputs that it saves and Inductor copied: weights of convolutions in another layout."""
    text: int
    """Those of the buffers in the text."""


class Compared(NamedTuple):
    """A training step."""

    forward: Phase
    backward: Phase
    saved: Saved
    live: tuple[int, int]
    """Most bytes of results alive as predicted, and by what the text allocates, frees and writes over."""


def compared(workload: Workload) -> Compared:
    """Read a training step, let Inductor generate its code, and compare."""
    texts, counts, saved = list[str](), list[int](), list[int]()
    lower = compiled.lower

    def watched(name: str, module: Any, example: Any, trains: bool, device: Any, seen: Any) -> Any:
        def also(graph: Any, is_backward: bool, nodes: Any) -> None:
            seen(graph, is_backward, nodes)
            counts.append(graph.count_bytes()[0])
            graph.scheduler.codegen()
            texts.append(graph.wrapper_code.generate(graph.is_inference)[0].value)

        return lower(name, module, example, trains, device, also)

    with patched(compiled, "lower", watched), _partitioned(saved):
        read = compiled.read_inductor_step(workload, devices.get(DEVICE))
    assert read.step is not None
    at, phases, launched = 0, list[Phase](), iter(read.kernels)
    for place, phase in enumerate(("forward", "backward")):
        heads = sum(call.phase == phase and not call.call.is_joined for call in read.step.calls)
        own, text, at = [next(launched) for _ in range(heads)], texts[place], at + heads
        names, traffic = launches_in(text), traffic_in(text)
        phases.append(
            Phase(
                heads,
                sum(map(len, names.values())),
                sum(one.moved_bytes for one in own if one.is_fused),
                sum(sum(traffic[name]) for name in names["fused"]),
                sum(one.read_bytes + one.written_bytes for one in own),
                counts[place],
            )
        )
    kept = saved_in(*texts)
    live = max(peak_in(texts[0], {}), peak_in(texts[1], kept))
    memory = read.step.memory
    copied = sum(size for one, size in zip(results_in(texts[0])[-len(saved) :], saved, strict=True)
                 if size < 0 and not one.startswith("primals_"))  # fmt: skip
    tensors = sum(size for size in saved if size > 0)
    return Compared(
        *phases, Saved(memory.saved_activation_bytes, tensors, -copied, sum(kept.values())), (memory.live_bytes, live)
    )


@contextmanager
def _partitioned(saved: list[int]) -> Iterator[None]:
    """Append the bytes of each tensor that the partitioner saves; below zero: an input, which it saves as it is."""
    from torch._inductor import compile_fx

    partition = compile_fx.min_cut_rematerialization_partition

    def watched(joint: Any, inputs: Any, **options: Any) -> Any:
        forward, backward = partition(joint, inputs, **options)
        results = next(node for node in forward.graph.nodes if node.op == "output").args[0]
        for node in results[options["num_fwd_outputs"] :]:
            saved.append((-1 if node.op == "placeholder" else 1) * node.meta["val"].nbytes)
        return forward, backward

    with patched(compile_fx, "min_cut_rematerialization_partition", watched):
        yield


def main(names: list[str]) -> None:
    """Print the tables in Markdown."""
    rows, memory = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for name in names or NETWORKS:
        for precision in PRECISIONS:
            batch = 2
            found = compared(Workload(name, batch=batch, mode="training_step", precision=precision))
            for phase, one in zip(("forward", "backward"), found[:2], strict=True):
                assert isinstance(one, Phase)
                rows.append((
                    f"`{name}`", precision, phase, f"{one.launches}", f"{one.generated_launches}",
                    f"{one.fused_bytes / 1e6:.1f}", f"{one.text_bytes / 1e6:.1f}",
                    f"{one.all_bytes / 1e6:.1f}", f"{one.inductor_bytes / 1e6:.1f}",
                ))  # fmt: skip
            memory.append((f"`{name}`", precision, *(f"{one / 1e6:.1f}" for one in (*found.saved, *found.live))))
            print(rows[-2:], memory[-1], file=sys.stderr, flush=True)
    heads = ["launches", "generated", "fused, MB", "in the text, MB", "all kernels, MB", "Inductor's count, MB"]
    print("\n".join(table(["network", "precision", "pass", *heads], rows, left=3)))
    heads = [
        "saved, MB",
        "tensors of the partitioner, MB",
        "copied weights, MB",
        "in the text, MB",
        "alive, MB",
        "in the text, MB",
    ]
    print("\n" + "\n".join(table(["network", "precision", *heads], memory, left=2)))


if __name__ == "__main__":
    main(sys.argv[1:])
