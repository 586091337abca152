"""Training steps against autograd: gradients of the compiled step, saved activations, the optimizer's update.

python -m benchmarks.training_step [NETWORK ...] [--batch 2] [--seed 0] prints a row of the table in
``docs/measured/training-steps.json`` for each. A step is compiled by TVM without tuning and run on this machine.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cdmpp.network.compiled.training_read import step_of
from cdmpp.network.source.torch_network import read_torch
from cdmpp.network.training_step import TrainingStep
from cdmpp.network.workload import Workload
from cdmpp.programs.training.joint import JointGraph, joint_graph, unwrapped
from cdmpp.programs.training.loss import Loss, with_loss
from cdmpp.programs.training.lowering import lowered_step, step_tensors
from cdmpp.programs.training.optimizers import Optimizer, optimizer_of

NETWORKS = {
    "resnet18": "torchvision:resnet18",
    "resnet50": "torchvision:resnet50",
    "vgg16": "torchvision:vgg16",
    "mobilenet_v2": "torchvision:mobilenet_v2",
    "bert_base": "bert_base",
    "gpt2": "gpt2",
    "llama_small": "llama_small",
    "vit_small": "vit_small",
}
"""Short name -> what ``cdmpp step`` takes. BERT, GPT-2, Llama and ViT have two layers."""
RATE = 1e-3
CLOSE = 1e-4
"""Relative error of a gradient."""


@dataclass(frozen=True)
class Check:
    """A compiled step beside autograd."""

    step: TrainingStep
    gradient_errors: Mapping[str, float]
    """Norm of the difference over the norm of autograd's gradient, by parameter; without those of ``zero``."""
    double_errors: Mapping[str, float]
    """The same of torch's own float32 gradients against those in double precision."""
    zero: tuple[str, ...]
    """Parameters whose gradient is zero in double precision, such as what softmax takes off again: all is rounding."""
    update_error: float
    """Worst difference of a new parameter from torch.optim's, over the learning rate."""
    autograd_bytes: int
    """What autograd saves for the backward pass, parameters and buffers not counted."""
    export_s: float
    """For the joint graph and its tensor programs."""
    run_s: float
    """For compiling and running it."""

    @property
    def wrong(self) -> dict[str, float]:
        """Errors beyond ``CLOSE`` that are also beyond four times torch's own in float32, by parameter."""
        return {
            key: error for key, error in self.gradient_errors.items() if error > max(CLOSE, 4 * self.double_errors[key])
        }

    @property
    def saved_ratio(self) -> float:
        return self.step.saved_activation_bytes / self.autograd_bytes


def check(
    model: Any, example: tuple[Any, ...], name: str, optimizer: str = "adamw", loss: Loss = "cross_entropy",
    fault: Any = None, optimised: int = 3,
) -> Check:  # fmt: skip
    """Compile the step of a module in training mode, run it once, and do the same by autograd.

    ``fault``: changes the joint graph before it is lowered. ``optimised``: LLVM's level, 0 compiles soonest.
    """
    begin, update = time.perf_counter(), optimizer_of(optimizer)
    module, arguments = with_loss(_without_dropout(model), example, loss)
    joint = joint_graph(module, arguments)
    if fault is not None:
        fault(joint)
    lowered = lowered_step(joint, update)
    step = step_of(joint, lowered, update, name, int(example[0].shape[0]))
    export_s, begin = time.perf_counter() - begin, time.perf_counter()
    found = run(joint, lowered, update, optimised)
    run_s = time.perf_counter() - begin
    trained, autograd_bytes, gradients = by_autograd(module, arguments)
    results = {value.name: found[i] for i, value in enumerate(joint.results) if value.role == "gradient"}
    in_double = by_autograd(module, arguments, torch.float64)[2]
    norms = {key: float(value.norm()) for key, value in in_double.items()}
    zero = tuple(key for key, norm in norms.items() if norm < 1e-10 * max(norms.values()))
    errors = {key: _relative(value, gradients[key]) for key, value in results.items() if key not in zero}
    own = {key: _relative(gradients[key].numpy(), value) for key, value in in_double.items() if key not in zero}
    new = found[len(joint.results) :: 1 + update.states]
    return Check(
        step, errors, own, zero, _update_error(trained, optimizer, dict(zip(results, new, strict=True)), results),
        autograd_bytes, export_s, run_s,
    )  # fmt: skip


def run(joint: JointGraph, lowered: Any, optimizer: Optimizer, optimised: int = 3) -> list[np.ndarray]:
    """All results of one compiled step on this CPU."""
    import tvm
    from tvm import relax

    built = tvm.compile(lowered, tvm.target.Target({"kind": "llvm", "opt-level": optimised}))
    given = [tvm.runtime.tensor(tensor.numpy()) for tensor in step_tensors(joint, optimizer, RATE)]
    return [value.numpy() for value in relax.VirtualMachine(built, tvm.cpu())["main"](*given)]


def by_autograd(module: Any, arguments: tuple[Any, ...], dtype: Any = torch.float32) -> tuple[Any, int, dict[str, Any]]:
    """The module with gradients, bytes that autograd saves beside parameters, buffers and inputs, and the gradients."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    module = copy.deepcopy(module).to(dtype)
    given = tuple(one.to(dtype) if one.is_floating_point() else one for one in arguments)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers(), *given)}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        if (storage := tensor.untyped_storage()).data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with sdpa_kernel(SDPBackend.MATH), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = module(*given)[0]
    size = sum(storage.nbytes() for storage in kept.values())
    with sdpa_kernel(SDPBackend.MATH):
        loss.backward()
    name = unwrapped(module)
    return module, size, {name(key): one.grad for key, one in module.named_parameters() if one.grad is not None}


def _relative(found: np.ndarray, true: Any) -> float:
    true = true.numpy()
    return float(np.linalg.norm(found.astype(np.float64) - true) / max(float(np.linalg.norm(true)), 1e-30))


def _update_error(
    module: Any, optimizer: str, new: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray]
) -> float:
    """Given the same gradients, torch's optimizer makes the same parameters."""
    name = unwrapped(module)
    named = {name(key): one for key, one in module.named_parameters() if one.grad is not None}
    for key, one in named.items():
        one.grad = torch.from_numpy(gradients[key].copy())
    made = {
        "sgd": lambda values: torch.optim.SGD(values, lr=RATE, momentum=0.9),
        "adam": lambda values: torch.optim.Adam(values, lr=RATE),
        "adamw": lambda values: torch.optim.AdamW(values, lr=RATE),
    }[optimizer](list(named.values()))
    made.step()
    return max(float(np.abs(new[key] - one.detach().numpy()).max()) for key, one in named.items()) / RATE


def _without_dropout(model: Any) -> Any:
    """Autograd's side draws no random numbers either."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "dropout_prob", "attn_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument(
        "--smooth",
        action="store_true",
        help="SiLU for ReLU, average for max pools: no choice turns on a rounding error",
    )
    options = parser.parse_args()
    for name in options.networks:
        torch.manual_seed(options.seed)
        network = read_torch(Workload(NETWORKS.get(name, name), batch=options.batch))
        model = smooth(network.model) if options.smooth else network.model
        print(row(name, check(model.train(), network.example, name, options.optimizer)), flush=True)


def smooth(model: Any) -> Any:
    """With SiLU for each ReLU and ReLU6, and an average for each maximum of a pooling window.

    At a value next to zero, or at a near tie in a pooling window, a rounding error decides which way a gradient goes.
    Two correct float32 runs then differ by a whole element.
    """
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, torch.nn.ReLU | torch.nn.ReLU6):
                setattr(module, name, torch.nn.SiLU())
            elif isinstance(child, torch.nn.MaxPool2d):
                setattr(module, name, torch.nn.AvgPool2d(child.kernel_size, child.stride, child.padding))
    return model


def row(name: str, found: Check) -> str:
    errors, step = np.array(list(found.gradient_errors.values())), found.step
    own = list(found.double_errors.values())
    worst = max(found.gradient_errors, key=lambda key: found.gradient_errors[key])
    cells = [
        f"`{name}`", f"{step.batch}", f"{len(step.calls)}", f"{len(step.graph.tasks)}", f"{errors.max():.1e} ({worst})",
        f"{np.median(errors):.1e}", f"{len(found.wrong)} of {len(errors)}", f"{max(own):.1e} / {np.median(own):.1e}",
        f"{found.update_error:.1e}", f"{found.saved_ratio:.3f}", f"{step.peak_bytes / 1e6:.0f}",
        f"{found.export_s:.0f}", f"{found.run_s:.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
