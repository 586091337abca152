"""A client may ask this, as JSON: the fields of a ``Workload`` and the arguments of the package's functions.

Unknown fields, other types, numbers that are none and names of files are refused here or by ``names``.
"""

from __future__ import annotations

import base64
import binascii
import re
import typing
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, create_model

from cdmpp.network.precision import Precision
from cdmpp.network.runtime import NETWORK_RUNTIMES
from cdmpp.network.update import Update
from cdmpp.network.workload import Workload
from cdmpp.platform.limits import hints_of
from cdmpp.programs.training.loss import LOSSES

NOT_TAKEN = ("example_inputs", "target", "mode")
"""Fields of a ``Workload`` that are no JSON, and the mode, which the address says."""
_FILE = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,79}\.onnx$"
_TEXT = 200
"""Most letters of a name."""


class Strict(BaseModel):
    """Every field is known, of its type, and a number where it is one."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _check_base64(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"expected Base64: {error}") from None
    return text


def _by_key(*keys: str) -> Discriminator:
    """Tell forms of a value by the key that only one of them has; a text is a name."""

    def form(value: Any) -> str | None:
        if isinstance(value, str):
            return "name"
        has = value.__contains__ if isinstance(value, dict) else lambda key: hasattr(value, key)
        return next((key for key in keys if has(key)), None)

    wanted = f"expected an object with {' or '.join(keys)}" + ("" if "script" in keys else ", or a name")
    return Discriminator(form, custom_error_type="form", custom_error_message=wanted)


Name = Annotated[str, Field(min_length=1, max_length=_TEXT)]


class OnnxNetwork(Strict):
    """A network as the bytes of an ONNX file, which holds its weights itself."""

    onnx: Annotated[str, AfterValidator(_check_base64)] = Field(description="The file in Base64.")
    name: str = Field("model.onnx", pattern=_FILE, description="What it is called.")


class StoredNetwork(Strict):
    """A graph of a network that was read before, as the cache of `cdmpp network` has it."""

    graph: dict[str, Any] = Field(description="Calls and tasks; each task is TVMScript, which is read, never executed.")
    batch: int = Field(ge=1, le=2**31, description="Examples in one run.")


class ScriptPrograms(Strict):
    """Tensor programs as TVMScript, which is read, never executed."""

    script: str = Field(min_length=1, max_length=2**24, description="TVMScript of one or more PrimFuncs.")


class GraphPrograms(Strict):
    """Tensor programs as TVM's own JSON."""

    tvm_json: list[str] = Field(min_length=1, max_length=1000, description="Each as `tvm.ir.save_json` writes it.")
    names: list[Name] | None = Field(None, description="What each is called.")


class Operator(Strict):
    """One call of an operator of PyTorch."""

    name: Name = Field(description="linear, conv2d, softmax ...")
    sizes: dict[str, int] | Name = Field(description="By name, or in order, such as 512x1024x4096.")
    dtype: Name = "float32"
    reads: list[Name] = Field(default=[], max_length=16, description="Types of its tensors where they are others.")
    elements: float = Field(0, ge=0, description="Elements of a call that is no matrix; 0: what its sizes say.")


class OperatorPrograms(Strict):
    """Calls of operators as PyTorch runs them."""

    operators: list[Operator] = Field(min_length=1, max_length=10_000)


class PredictRequest(Strict):
    """Latencies of tensor programs or of operators, as `cdmpp predict`."""

    programs: Annotated[
        Annotated[ScriptPrograms, Tag("script")]
        | Annotated[GraphPrograms, Tag("tvm_json")]
        | Annotated[OperatorPrograms, Tag("operators")],
        _by_key("script", "tvm_json", "operators"),
    ]
    device: Name
    model: Name | None = None
    compiled: bool | None = Field(None, description="false: no machine code is looked at.")
    retarget: bool = Field(False, description="Make schedules of another architecture for the device's own.")
    clock_mhz: float | None = Field(None, description="What a busy core runs at, where the device is known as a range.")


def _of(kind: type, name: str, told: str) -> Any:
    """Return a request with the fields of a plain dataclass."""
    hints = hints_of(kind)
    given: dict[str, Any] = {one.name: (hints[one.name], one.default) for one in fields(kind)}
    return create_model(name, __base__=Strict, __doc__=told, **given)


UpdateRequest = _of(Update, "UpdateRequest", "An optimizer, its implementation, and what is done before and after.")


def _workload_fields() -> dict[str, Any]:
    """The fields of a ``Workload`` with their types, defaults and meanings."""
    kinds: dict[str, Any] = {
        "network": Annotated[
            Annotated[Name, Tag("name")] | Annotated[OnnxNetwork, Tag("onnx")] | Annotated[StoredNetwork, Tag("graph")],
            _by_key("onnx", "graph"),
        ], "precision": Name, "loss": Literal[LOSSES],  # type: ignore[valid-type]
        "optimizer": Name | UpdateRequest | None, "inputs": dict[Name, list[int]] | None,
    }  # fmt: skip
    hints, told = hints_of(Workload), meanings(Workload)
    told["network"] = "A name of `GET /v1/networks`, the bytes of an ONNX file, or a stored graph."
    found: dict[str, Any] = {}
    for one in fields(Workload):
        if one.name in NOT_TAKEN:
            continue
        default: Any = one.default.name if isinstance(one.default, Precision) else one.default
        default = ... if one.name == "network" else default
        found[one.name] = (kinds.get(one.name, hints[one.name]), Field(default, description=told.get(one.name)))
    return found


def meanings(kind: type) -> dict[str, str]:
    """Return what the docstring of a class says of each attribute."""
    section = re.search(r"Attributes:\n(.*?)(?:\n\n|\Z)", kind.__doc__ or "", re.DOTALL)
    found = re.findall(r"^ {4,8}(\w+): (.*(?:\n {9,}.*)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


_Workload: Any = create_model("WorkloadRequest", __base__=Strict, **_workload_fields())


class _OnRuntime(_Workload):
    device: Name
    runtime: Literal[NETWORK_RUNTIMES] = "tvm"  # type: ignore[valid-type]
    model: Name | None = None
    schedule: Name | None = Field(None, description="Of runtime tvm: best_of:K or untuned.")
    cuda_graphs: bool = False


class NetworkRequest(_OnRuntime):
    """Time of one run of a network, as `cdmpp network`."""

    mode: Literal["inference", "forward_backward"] = "inference"


class StepRequest(_OnRuntime):
    """Time of a training step on one device, or with `ranks` on several, as `cdmpp step`."""

    fallback: bool | None = Field(None, description="Of runtime tvm: a backward pass without a graph is a ratio.")
    ranks: int | None = Field(None, description="Devices that train; the answer then has a replay of all.")
    cluster: Name | None = None
    link: Name | None = Field(None, description="In place of a cluster.")
    backend: Name | None = None
    strategy: Name | None = Field(None, description="As `cdmpp step --strategy`, such as fsdp; else ddp.")
    settings: dict[Name, bool | int | float | Name] = Field(
        default={}, max_length=20, description="Fields of the strategy, such as overlap: false."
    )
    offload: list[Name] = Field(default=[], max_length=4, description="What lies on the host: parameters, activations.")
    granularity: Literal["collective", "ring step"] = "collective"
    slow: dict[Name, float] = Field(default={}, max_length=1000, description="Rank -> how many times as long it takes.")
    global_batch: int | None = Field(None, description="Examples of all devices in one step, in place of batch.")


class PlanRequest(_Workload):
    """Every way to train a network on several devices, ranked, as `cdmpp plan`."""

    device: Name | dict[Name, int] = Field(description="Of all ranks; or name -> ranks on it, for devices that differ.")
    global_batch: int = Field(description="Examples of all devices in one step.")
    ranks: int | None = None
    cluster: Name | None = None
    link: Name | None = None
    backend: Name | None = None
    strategies: list[Name] = Field(default=[], max_length=100)
    memory_gb: float | None = None
    model: Name | None = None
    top: int = 10
    replays: int = 20


REQUESTS: typing.Mapping[str, type[Strict]] = {
    "predict": PredictRequest, "network": NetworkRequest, "step": StepRequest, "plan": PlanRequest,
}  # fmt: skip
"""Verb -> what it is asked."""
