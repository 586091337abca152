"""Saved activations of training steps beside those of eager autograd: ``python -m benchmarks.library_step_memory``.

Networks of the zoo, or those that are named, batch 2, on a CPU. Storages that autograd keeps are counted once,
parameters not at all.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from cdmpp.network.library_step import library_step
from cdmpp.network.trained_model import trained_model
from cdmpp.programs.training.loss import with_loss

NETWORKS = ("resnet18", "vgg16", "mobilenet_v2", "bert_base", "gpt2", "llama_small", "vit_small")


def kept_bytes(module: Any, arguments: tuple[Any, ...]) -> int:
    """What autograd keeps of one forward pass."""
    own = {value.untyped_storage().data_ptr() for value in module.parameters()}
    seen: dict[int, torch.Tensor] = {}

    def pack(value: torch.Tensor) -> torch.Tensor:
        seen.setdefault(value.untyped_storage().data_ptr(), value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        module(*arguments)
    return sum(value.untyped_storage().nbytes() for key, value in seen.items() if key not in own)


def main() -> None:
    for name in sys.argv[1:] or NETWORKS:
        step, _ = library_step(name, optimizer="sgd", batch=2)
        network, model = trained_model(name, None, 2, None)
        kept = kept_bytes(*with_loss(model, network.example, "cross_entropy"))
        print(f"{name:14} {step.saved_activation_bytes / 1e6:8.1f} MB, autograd {kept / 1e6:8.1f} MB, ratio "
              f"{step.saved_activation_bytes / kept:.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
