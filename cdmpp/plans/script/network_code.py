"""Network code: lines of Python that make the model of a workload, its inputs and its loss, without this package."""

from __future__ import annotations

import pprint
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.source.torch_network import entry_of, read_torch
from cdmpp.network.workload import Workload
from cdmpp.programs.training.loss import with_loss

_REFUSED = "--torch: no script can be written"
_LOSSES = {
    "cross_entropy": """\
    classes = 1 if output.dim() == 4 else output.dim() - 1
    rows = output.movedim(classes, -1).flatten(0, -2) if output.dim() != 2 else output
    return torch.nn.functional.cross_entropy(rows, target.flatten())""",
    "mse": "    return torch.nn.functional.mse_loss(output, target)",
    "ForCausalLM": "    return ForCausalLMLoss(output, target, vocab_size=output.shape[-1])",
    "ForMaskedLM": "    return ForMaskedLMLoss(output, target, vocab_size=output.shape[-1])",
}
_FIRST_OUTPUT = """\
class FirstOutput(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.inner(tokens, return_dict=False)[0]
"""


@dataclass(frozen=True)
class NetworkCode:
    """Definitions of ``make_model()``, ``make_batch(examples)`` and ``loss_of(output, target)``.

    ``make_batch`` returns the arguments of the model and the target, all of them random.
    """

    imports: tuple[str, ...]
    model: str
    batch: str
    loss: str

    @property
    def text(self) -> str:
        """All definitions."""
        return "\n\n".join((self.model, self.batch, self.loss))


def network_code(workload: Workload) -> NetworkCode:
    """Write the network of a training step.

    Raises:
        CdmppError: a network that a script cannot name, such as a module in memory, or a loss that is a function.
    """
    if workload.path is None or workload.path.suffix == ".onnx":
        raise CdmppError(f"{_REFUSED}: it has to name the network; give hf:, torchvision:, or file.py:FUNCTION")
    if not isinstance(workload.loss, str):
        raise CdmppError(f"{_REFUSED} of a loss that is a function: give cross_entropy, mse or model")
    file, _, function = str(workload.network).rpartition(":")
    if file.endswith(".py"):
        if workload.loss == "model":
            raise CdmppError(f"{_REFUSED} of a file with loss model: give cross_entropy or mse")
        imports, model = _of_file(Path(file).expanduser().resolve(), function)
        return NetworkCode(imports, model, _batch(workload), _loss(str(workload.loss)))
    name, entry, _ = entry_of(workload)
    if entry["source"] == "torchvision" and not entry.get("detects"):
        imports, model = _of_torchvision(entry)
    elif entry["source"] == "transformers" and not {"part", "first_position", "decoder_tokens"} & entry.keys():
        imports, model = _of_transformers(entry)
    else:
        raise CdmppError(f"{_REFUSED} of {name}, which is no plain model of a library: write it as file.py:FUNCTION")
    loss = str(workload.loss)
    if loss == "model":
        loss = "ForMaskedLM" if entry["build"].endswith("MaskedLM") else "ForCausalLM"
        imports = (*imports, f"from transformers.loss.loss_utils import {loss}Loss")
    return NetworkCode(imports, model, _batch(workload), _loss(loss))


def _of_file(path: Path, function: str) -> tuple[tuple[str, ...], str]:
    return (
        ("import importlib.util",),
        f"""\
def make_model() -> torch.nn.Module:
    spec = importlib.util.spec_from_file_location({path.stem!r}, {str(path)!r})
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    made = source.{function}()
    return made[0] if isinstance(made, tuple) else made
""",
    )


def _of_torchvision(entry: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    given = "".join(f", {name}={value!r}" for name, value in entry.get("arguments", {}).items())
    return (
        ("import torchvision",),
        f"""\
def make_model() -> torch.nn.Module:
    return torchvision.models.get_model({entry["build"]!r}, weights=None{given})
""",
    )


def _of_transformers(entry: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    build, config = entry["build"], entry["config"]
    settings = pprint.pformat({**entry.get("arguments", {}), "use_cache": False}, width=110, compact=True)
    text = settings.replace("\n", "\n    ")
    imports = (f"from {entry.get('module', 'transformers')} import {build}", f"from transformers import {config}")
    return (
        imports,
        f"""\
{_FIRST_OUTPUT}

def make_model() -> torch.nn.Module:
    settings = {text}
    return FirstOutput({build}({config}(**settings)))
""",
    )


def _batch(workload: Workload) -> str:
    """Write random inputs and a random target of so many examples."""
    network = read_torch(workload, needs_values=False)
    values = network.example
    if workload.loss == "model":
        target = "inputs[0]"
    else:
        _, (*_, found) = with_loss(network.model, values, workload.loss)
        target = _random(found, network.name)
    inputs = ", ".join(_random(one, network.name) for one in values)
    return f"""\
def make_batch(examples: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    inputs = ({inputs},)
    return inputs, {target}
"""


def _random(value: Any, name: str) -> str:
    import torch

    if not isinstance(value, torch.Tensor) or not value.dim():
        raise CdmppError(f"{_REFUSED} of {name}: one of its inputs is no tensor with examples along its first axis")
    sizes = "".join(f", {size}" for size in value.shape[1:])
    if value.is_floating_point():
        return f"torch.randn(examples{sizes})"
    return f"torch.randint(0, 2, (examples{sizes or ','}))"


def _loss(name: str) -> str:
    return f"def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:\n{_LOSSES[name]}\n"
