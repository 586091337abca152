"""What Megatron's Python takes around PyTorch: a layer of Megatron-core on a CPU beside the same ops in plain modules.

pip download megatron-core==0.9.0 --no-deps, unpack the wheel, and on a quiet machine:

    python -m benchmarks.plans.megatron_host FOLDER

Tensors are so small that hosts decide. Fusions are by ``torch.jit.script``, as in the releases of 2021 to 2023, and the
masked softmax is one call, as its fused kernel is. No GPU and no step of a job is measured.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from cdmpp.plans.frameworks import MEGATRON
from cdmpp.plans.sources.framework_network import FrameworkDecoder, decoder_loss
from cdmpp.plans.transformer_shape import TransformerShape

_HIDDEN, _HEADS, _TOKENS, _WORDS, _FEW, _MANY = 64, 4, 16, 128, 4, 12
_WARM, _REPEATS = 15, 150
Step = Callable[[], Any]


def megatron(folder: str) -> Callable[[int], Step]:
    """Return layers -> both passes of a GPT of Megatron-core, of one rank without a GPU."""
    sys.path.insert(0, folder)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29777")
    dist.init_process_group("gloo", rank=0, world_size=1)
    cuda: Any = torch.cuda  # random numbers of a GPU are those of the CPU here
    cuda.current_device = lambda: torch.device("cpu")
    cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    cuda.manual_seed = lambda _: None
    core: Any = __import__("megatron.core.jit", fromlist=["jit"])
    core.jit_fuser = torch.jit.script
    softmax: Any = __import__("megatron.core.fusions.fused_softmax", fromlist=["fusions"])
    softmax.FusedScaleMaskSoftmax.forward = lambda _, scores, *__, **___: torch.softmax(scores, -1)
    parallel: Any = __import__("megatron.core", fromlist=["parallel_state", "tensor_parallel"])
    parallel.parallel_state.initialize_model_parallel(1, 1)
    parallel.tensor_parallel.random._set_cuda_rng_state = lambda state, device=-1: torch.set_rng_state(state)
    parallel.tensor_parallel.model_parallel_cuda_manual_seed(1)
    settings: Any = __import__("megatron.core.transformer.transformer_config", fromlist=["x"])
    specs: Any = __import__("megatron.core.models.gpt.gpt_layer_specs", fromlist=["x"])
    model: Any = __import__("megatron.core.models.gpt.gpt_model", fromlist=["x"])
    words, places = torch.zeros(1, _TOKENS, dtype=torch.long), torch.arange(_TOKENS)[None]
    mask = torch.triu(torch.ones(1, 1, _TOKENS, _TOKENS), 1) > 0

    def step(layers: int) -> Step:
        config = settings.TransformerConfig(
            num_layers=layers, hidden_size=_HIDDEN, num_attention_heads=_HEADS, use_cpu_initialization=True,
            params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, bf16=True, bias_dropout_fusion=True,
            bias_activation_fusion=True, masked_softmax_fusion=False, gradient_accumulation_fusion=False,
        )  # fmt: skip
        net = model.GPTModel(config, specs.get_gpt_layer_local_spec(), _WORDS, _TOKENS).bfloat16()
        return lambda: net(words, places, mask, labels=words).mean().backward()

    return step


def plain(layers: int) -> Step:
    """Return both passes of the product's modules of the same sizes."""
    shape = TransformerShape(layers, _HIDDEN, _HEADS, 4 * _HIDDEN, _WORDS, _TOKENS, positions=_TOKENS)
    net = FrameworkDecoder(shape, replace(MEGATRON, attention="unfused")).bfloat16().train()
    words = torch.zeros(1, _TOKENS, dtype=torch.long)
    return lambda: decoder_loss(net(words), words).backward()


def layers_s(steps: Sequence[Callable[[int], Step]]) -> list[float]:
    """Return the least seconds that a layer adds to both passes, of each; all take turns, so that noise is alike."""
    runs = [step(layers) for step in steps for layers in (_FEW, _MANY)]
    took = [list[float]() for _ in runs]
    for number in range(_WARM + _REPEATS):
        for run, own in zip(runs, took, strict=True):
            begin = time.perf_counter()
            run()
            own += [time.perf_counter() - begin] * (number >= _WARM)
    least = [min(own) for own in took]
    return [(many - few) / (_MANY - _FEW) for few, many in zip(least[::2], least[1::2], strict=True)]


def main() -> None:
    """Print both and their ratio."""
    torch.set_num_threads(1)
    both = layers_s((megatron(sys.argv[1]), plain))
    print(f"a layer, both passes: Megatron-core {1e6 * both[0]:.0f} us, plain {1e6 * both[1]:.0f} us")
    print(f"{both[0] / both[1]:.2f} times as long")


if __name__ == "__main__":
    main()
