"""Exchanges between ranks among the events of a Kineto trace: their kinds and bytes."""

from __future__ import annotations

import math
import re
from typing import Any

Event = dict[str, Any]

_ITEM_BYTES = {
    "double": 8, "long int": 8, "long": 8, "int64": 8, "float64": 8,
    "float": 4, "int": 4, "float32": 4, "int32": 4, "c10::half": 2, "half": 2, "c10::bfloat16": 2, "bfloat16": 2,
    "float16": 2, "short": 2, "signed char": 1, "unsigned char": 1, "char": 1, "byte": 1, "bool": 1, "int8": 1,
    "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
_DTYPES = {"float": "float32", "double": "float64", "half": "float16"}
_KINDS = (
    ("all_reduce", ("allreduce", "all_reduce")),
    ("reduce_scatter", ("reducescatter", "reduce_scatter")),
    ("all_gather", ("allgather", "all_gather")),
    ("all_to_all", ("alltoall", "all_to_all")),
    ("broadcast", ("broadcast",)),
    ("send_recv", ("sendrecv", "send", "recv")),
    ("barrier", ("barrier",)),
    ("reduce", ("reduce",)),
    ("gather", ("gather",)),
    ("scatter", ("scatter",)),
)


def kind_of(name: str) -> str:
    """``ncclDevKernel_AllReduce_Sum_f32_RING_LL`` -> ``all_reduce``; a name without a known kind as it is."""
    lower = name.lower()
    return next((kind for kind, words in _KINDS if any(word in lower for word in words)), name)


def is_gloo(event: Event) -> bool:
    """A span of gloo's worker thread, from the arrival of this rank to the end."""
    return str(event["name"]).startswith("gloo:")


def is_nccl(event: Event) -> bool:
    """A kernel of NCCL or RCCL."""
    return event.get("cat") == "kernel" and re.match(r"ncclDev|ncclKernel|nccl:|rccl", str(event["name"])) is not None


def is_launch(event: Event) -> bool:
    """The call that hands an exchange over."""
    return event.get("cat") == "cpu_op" and str(event["name"]).startswith(("c10d::", "_c10d_functional::"))


def input_bytes(event: Event) -> int:
    """Bytes of the tensors that a recorded op was given; 0 without ``record_shapes``."""
    args = event.get("args", {})
    return sum(map(_tensor_bytes, args.get("Input Dims", ()), args.get("Input type", ())))


def input_dtype(event: Event) -> str:
    """Data type of the first tensor that a recorded op was given; ``float32`` without ``record_shapes``."""
    kinds = event.get("args", {}).get("Input type") or ["float"]
    name = str(kinds[0]).lower().removeprefix("c10::")
    return _DTYPES.get(name, name) if name in _ITEM_BYTES else "float32"


def _tensor_bytes(shape: Any, kind: Any) -> int:
    if isinstance(shape, list) and shape and isinstance(shape[0], list):  # a list of tensors
        kinds = kind if isinstance(kind, list) else [kind] * len(shape)
        return sum(map(_tensor_bytes, shape, kinds))
    if not isinstance(shape, list) or str(kind).lower() not in _ITEM_BYTES or any(isinstance(n, list) for n in shape):
        return 0
    return _ITEM_BYTES[str(kind).lower()] * math.prod(int(n) for n in shape)


def gloo_bytes(event: Event, kind: str, world: int) -> int:
    """Bytes as ``collectives.collective.KINDS`` counts them: a gather is given one rank's share."""
    return input_bytes(event) * (world if kind == "all_gather" else 1)


def nccl_exchange(event: Event) -> tuple[str, int, str]:
    """Kind, bytes and group of a kernel, from what PyTorch writes into it."""
    args = event.get("args", {})
    kind = kind_of(str(args.get("Collective name") or event["name"]))
    item = _ITEM_BYTES.get(str(args.get("dtype", "")).lower(), 0)
    count = max(int(args.get("In msg nelems", 0)), int(args.get("Out msg nelems", 0)))
    ranks = str(args.get("Process Group Ranks", ""))
    return kind, count * item, f"{args.get('Process Group Name', '')}{ranks}"


def peers_of(launch: Event | None, rank: int) -> str:
    """``0->1`` of a send or a receive, by the numbers that it was called with; empty otherwise."""
    if launch is None:
        return ""
    name, given = str(launch["name"]), launch.get("args", {}).get("Concrete Inputs", ())
    numbers = [int(text) for text in given if re.fullmatch(r"-?[0-9]+", str(text))]
    if not numbers:
        return ""
    if name.startswith("c10d::send"):
        return f"{rank}->{numbers[0]}"
    return f"{numbers[0]}->{rank}" if name.startswith("c10d::recv") else ""
