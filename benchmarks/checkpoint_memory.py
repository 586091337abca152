"""Memory and calls of checkpointed training steps beside eager PyTorch's: ``python -m benchmarks.checkpoint_memory``.

Eight networks of the zoo with their blocks wrapped in ``torch.utils.checkpoint``, SGD, on this CPU: not at
all, non-reentrant, reentrant, and with a selective policy as torchtitan's "op" has it (attention and every second
product of matrices are kept). The peak is what PyTorch's allocator holds at most within a second step; calls are
products and attention of the backward pass, by a dispatch mode. Writes ``docs/results/checkpoints.md``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from benchmarks.library_step_memory import peak_bytes
from benchmarks.publish.markdown import table, write_page
from cdmpp.network.eager.step import read_step
from cdmpp.network.source.trained_model import trained_model
from cdmpp.network.workload import Workload
from cdmpp.programs.models import build_model
from cdmpp.programs.training.loss import with_loss
from cdmpp.programs.zoo import network_of, read_zoo
from tests.network.dispatched import Log

PAGE = Path(__file__).parents[1] / "docs" / "results" / "checkpoints.md"
HEAD = """# Checkpointed steps

The peak memory of a training step with SGD, of 8 examples (2 images), as `cdmpp step --runtime torch` answers it for a
CPU, over what PyTorch's allocator holds at most there, and the products of matrices and attentions of its backward
pass, those that run again among them, beside those that a dispatch mode saw. Blocks are wrapped in
`torch.utils.checkpoint`; the policy keeps attention and every second product, as torchtitan's `op` does. Written by
`python -m benchmarks.checkpoint_memory`."""
BLOCKS: dict[str, Callable[[Any], list[nn.ModuleList | nn.Sequential]]] = {
    "resnet18": lambda model: [model.layer1, model.layer2, model.layer3, model.layer4],
    "mobilenet_v2": lambda model: [model.features],
    "bert_base": lambda model: [model.inner.encoder.layer],
    "gpt2": lambda model: [model.inner.h],
    "llama_small": lambda model: [model.inner.layers],
    "vit_small": lambda model: [next(one for one in model.modules() if isinstance(one, nn.ModuleList))],
    "opt_small": lambda model: [model.inner.decoder.layers],
    "qwen2_small": lambda model: [model.inner.layers],
}
"""Network of the zoo -> lists of its blocks."""
ATEN = torch.ops.aten


def contexts() -> Any:
    """A policy of a region's own: it counts products."""
    seen = {"products": 0}

    def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        seen["products"] += (is_product := func in (ATEN.mm.default, ATEN.addmm.default, ATEN.convolution.default))
        keeps = func is ATEN._scaled_dot_product_flash_attention_for_cpu.default or (
            is_product and seen["products"] % 2
        )
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


BATCHES = {"resnet18": 2, "mobilenet_v2": 2}
"""Examples of networks that convolve; 8 of others."""
MODES: dict[str, dict[str, Any] | None] = {
    "none": None,
    "non-reentrant": {"use_reentrant": False},
    "reentrant": {"use_reentrant": True},
    "selective": {"use_reentrant": False, "context_fn": contexts},
}


class Again(nn.Module):
    """A block that runs again in the backward pass."""

    def __init__(self, inner: nn.Module, how: dict[str, Any]) -> None:
        super().__init__()
        self.inner, self.how = inner, how

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        inner = (lambda *given: self.inner(*given, **kwargs)) if self.how["use_reentrant"] else self.inner
        return checkpoint(inner, *args, **self.how, **({} if self.how["use_reentrant"] else kwargs))


def made(name: str, how: dict[str, Any] | None) -> tuple[nn.Module, Any]:
    """A network of the zoo with its blocks wrapped, and its inputs."""
    spec = network_of(read_zoo(), name)
    model, example = build_model({**spec, "input": {**spec["input"], "batch": BATCHES.get(name, 8)}})
    for blocks in BLOCKS[name](model) if how else []:
        for place in range(len(blocks)):
            blocks[place] = Again(blocks[place], how)
    return model.train(), example


def row(name: str, mode: str) -> tuple[str, ...]:
    """Cells of one network in one mode."""
    model, example = made(name, MODES[mode])
    workload = Workload(model, example, optimizer="sgd", mode="training_step")
    read = read_step(workload, "cpu")
    assert read.step is not None
    network, trained = trained_model(workload)
    module, arguments = with_loss(trained, network.example, "cross_entropy")
    module(*arguments)[0].backward()
    with Log():
        loss = module(*arguments)[0]
    with Log() as log:
        loss.backward()
    module.zero_grad()
    told = [read.operators[one.call.task_id].kind.family for one in read.step.calls if one.phase == "backward"]
    counts = [sum(family in ("linear", "bmm", "attention") for family in told)]
    counts.append(sum(n for key, n in log.seen.items() if key[0] in ("product", "attention", "attention_backward")))
    peak, held = (
        read.step.peak_bytes,
        peak_bytes(module, arguments, make=partial(torch.optim.SGD, lr=1e-3, momentum=0.9)),
    )
    print(name, mode, peak / held, *counts, flush=True)
    cells = f"{held / 1e6:.1f}", f"{peak / 1e6:.1f}", f"{peak / held:.3f}"
    return (name, mode, *cells, str(counts[1]), "same" if counts[0] == counts[1] else str(counts[0]))


def main() -> None:
    warnings.simplefilter("ignore")
    rows = [row(name, mode) for name in sys.argv[1:] or BLOCKS for mode in MODES]
    ratios = [float(one[4]) for one in rows]
    same = sum(one[-1] == "same" for one in rows)
    peaks = f"ratio of peaks from {min(ratios):.3f} to {max(ratios):.3f}"
    summary = f"{len(rows)} steps: {peaks}, calls the same in {same} (torch {torch.__version__})."
    heads = [
        "network",
        "checkpoint",
        "held, MB",
        "predicted, MB",
        "ratio",
        "products of the backward pass",
        "predicted",
    ]
    if not sys.argv[1:]:
        write_page(PAGE, [*HEAD.splitlines(), "", summary, "", *table(heads, rows)])
    print(summary)


if __name__ == "__main__":
    main()
