"""Inputs that announce more than any machine has, one process under a limit of memory, a line of JSON for each.

Run by ``test_huge_numbers``: ``python huge_numbers.py FOLDER``.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cdmpp import cli
from cdmpp.collectives.cluster import get as cluster_named
from cdmpp.collectives.topology import on_link
from cdmpp.devices.cores import read_core
from cdmpp.errors import CdmppError
from cdmpp.platform.paths import conf_folder
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import Op, RankGraph, StepGraph
from cdmpp.steps.transforms.scale import scale_ranks
from cdmpp.trace.kineto import read_kineto
from cdmpp.trace.median_step import median_step

FREE_BYTES, LIMIT_S = 2 * 10**9, 20.0
"""Beyond what importing takes; seconds of processor for a case."""
SHAPES = "config.json of a model that is described without weights"
ANSWERED = (SHAPES, "network: batch of 1e+09", "step: batch of 2e9", "torchvision: input")
"""Beginnings of cases that may be answered: only shapes are made, and a warning says that no device holds them."""
BILLION, ABSURD = 10**9, 10**30
TORCH = ("--device", "h100", "--runtime", "torch")
TVM = ("--device", "xeon-icelake", "--schedule", "untuned")
RANKS = ("step", "mlp", *TORCH, "--link", "nvlink4", "--ranks")
USER = """
import torch
def open_batch(batch=2):
    return torch.nn.Linear(8, 8), torch.randn(batch, 8)
def bare():
    return torch.nn.Linear(8, 8)
def large():
    return torch.nn.Linear(300_000, 300_000), torch.randn(1, 300_000)
"""


def command(*arguments: Any) -> Callable[[], Any]:
    def run() -> Any:
        with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
            code = cli.main([str(one) for one in arguments])
        if code:
            raise CdmppError(said.getvalue())

    return run


def traced(folder: Path, name: str, rank: Any, world: Any) -> Callable[[], Any]:
    marks = [
        {"ph": "X", "cat": cat, "name": what, "pid": 1, "tid": 1, "ts": 0, "dur": 9, "args": {}}
        for cat, what in (("user_annotation", "ProfilerStep#1"), ("cpu_op", "aten::add"))
    ]
    told = {"distributedInfo": {"rank": rank, "world_size": world, "backend": "gloo"}, "traceEvents": marks}
    (folder / f"{name}.json").write_text(json.dumps(told))
    return lambda: median_step([read_kineto(folder / f"{name}.json")])


def checkpoint(folder: Path, name: str, **changes: Any) -> Callable[[], Any]:
    told = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    told |= {"num_attention_heads": 2, "vocab_size": 100, **changes}
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(told))
    return command("network", f"hf:{folder / name}", *TORCH)


def onnx_file(folder: Path, name: str, operator: str, constants: dict[str, Any]) -> Callable[[], Any]:
    """``x`` plus the sum of what one operator makes of constants alone."""
    from onnx import TensorProto, helper, save

    given = [
        helper.make_tensor(key, TensorProto.INT64, [] if operator == "Range" else [1], [value])
        for key, value in constants.items()
    ]
    kind = TensorProto.INT64 if operator == "Range" else TensorProto.FLOAT
    nodes = [
        helper.make_node(operator, list(constants), ["made"]),
        helper.make_node("ReduceSum", ["made"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(end, kind, [4]) for end in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], given)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), folder / f"{name}.onnx")
    return command("network", folder / f"{name}.onnx", *TVM)


def cluster(folder: Path, nodes: int) -> Callable[[], Any]:
    (folder / "conf" / "cluster").mkdir(parents=True, exist_ok=True)
    text = f"name: vast\ntitle: t\ndocuments: {{a: b}}\ndevice: h100\nnodes: {nodes}\ndevices_per_node: 8\n"
    text += "inside: nvlink4\nbetween: infiniband-ndr\nadapters_per_node: 8\n"
    (folder / "conf" / "cluster" / "vast.yaml").write_text(text)
    return lambda: cluster_named("vast")


def core(folder: Path, name: str, old: str, new: str) -> Callable[[], Any]:
    """A core as Zen 4, with one number otherwise."""
    text = (conf_folder() / "core" / "zen4.yaml").read_text()
    assert old in text
    (folder / f"{name}.yaml").write_text(text.replace("name: zen4", f"name: {name}").replace(old, new))
    return lambda: read_core(folder / f"{name}.yaml")


def traced_step() -> StepGraph:
    ranks = tuple(RankGraph(rank, (Op("f", "forward", 1e-3),) * 500) for rank in range(2))
    return StepGraph(ranks, (Exchange("all_reduce", 100, {0: 1, 1: 1}, wire_s=1e-4),))


def cases(folder: Path) -> dict[str, Callable[[], Any]]:
    """Name -> what must end in an error of the product's own."""
    user = folder / "user.py"
    user.write_text(USER)
    sizes = "x=1,3,1000000,1000000"
    found = {
        "trace: world of 2e9": traced(folder, "a", 0, 2 * BILLION),
        "trace: world of 1e400": traced(folder, "b", 0, 10**400),
        "trace: endless world": traced(folder, "c", 0, float("inf")),
        "trace: rank beyond the world": traced(folder, "d", BILLION, 2),
        "what-if: 1e9 ranks": lambda: scale_ranks(traced_step(), BILLION),
        "what-if: 65,536 ranks": lambda: scale_ranks(traced_step(), 2**16),
        "topology: 1e9 ranks": lambda: on_link("nvlink4", BILLION),
        "cluster file: 1e12 nodes": cluster(folder, 10**12),
        "core file: window": core(folder, "wide", "window: {value: 320", "window: {value: 1e12"),
        "core file: cycles": core(folder, "slow", "{latency: 0}", "{latency: 1000000000000}"),
        "step: 2e9 ranks": command(*RANKS, 2 * BILLION),
        "step: 2e9 ranks of fsdp": command(*RANKS, 2 * BILLION, "--strategy", "fsdp"),
        "step: 65,536 ranks": command(*RANKS, 2**16),
        "step: 50,000 ranks of ps": command(*RANKS, 50_000, "--strategy", "ps"),
        "step: 2e9 servers": command(*RANKS, 4, "--strategy", "ps", "--servers", 2 * BILLION),
        "step: 1e9 micro-steps": command("plan", *RANKS[1:], 4, "--accumulate-steps", BILLION),
        "step: 60,000 ranks in chunks": command(*RANKS, 60_000, "--ring-steps"),
        **{f"step: bucket of {size}": command(*RANKS, 4, "--bucket-mb", size) for size in ("nan", "inf", "1e-300", 0)},
        **{
            f"step: slow by {times}": command(*RANKS, 4, "--straggler", f"0={times}")
            for times in ("nan", "inf", "1e18", -1)
        },
        "step: slow twice": command(*RANKS, 4, "--straggler", "0=2", "--straggler", "0=3"),
        "step: batch of 2e9": command("step", "mlp", *TORCH, "--batch", 2 * BILLION),
        **{f"network: batch of {n:g}": command("network", "mlp", *TORCH, "--batch", n) for n in (BILLION, ABSURD)},
        "network: batch for TVM": command("network", "mlp", *TVM, "--batch", BILLION),
        "network: best of 1e9": command(
            "network", "mlp", "--device", "xeon-icelake", "--schedule", "best_of:1000000000"
        ),
        "network: elements that 64 bits do not count": command(
            "network", "torchvision:resnet18", *TORCH, "--input", f"x={2**31},3,{2**31},{2**31}"
        ),
        "torchvision: input": command("network", "torchvision:resnet18", *TORCH, "--input", sizes),
        "file.py: batch": command("network", f"{user}:open_batch", *TORCH, "--batch", BILLION),
        "file.py: input": command("network", f"{user}:bare", *TORCH, "--input", f"x={BILLION},8"),
        "file.py: absurd input": command("network", f"{user}:bare", *TORCH, "--input", f"x={ABSURD},8"),
        "file.py: weights": command("network", f"{user}:large", *TORCH),
        "config.json: layers": checkpoint(folder, "layers", num_hidden_layers=BILLION),
        "config.json: width": checkpoint(folder, "width", hidden_size=2 * BILLION),
        "config.json: absurd width": checkpoint(folder, "absurd", intermediate_size=ABSURD),
        f"{SHAPES}: words": checkpoint(folder, "words", vocab_size=2 * BILLION),
        "config.json: labels": checkpoint(folder, "labels", num_labels=BILLION),
        f"{SHAPES}: positions": checkpoint(folder, "places", model_type="bert", max_position_embeddings=BILLION),
        f"{SHAPES}: image": checkpoint(folder, "image", model_type="vit", image_size=10**6),
        "op: size of 1e300": command("predict", "op", "linear", f"{10**300}x8x8", "--device", "h100"),
        "onnx: ConstantOfShape": onnx_file(folder, "full", "ConstantOfShape", {"s": 2 * BILLION}),
        "onnx: Range": onnx_file(folder, "range", "Range", {"a": 0, "s": BILLION, "d": 1}),
    }
    return found


def main(folder: Path) -> None:
    """Run every case under the limits, and print how it ended."""
    import torch  # noqa: F401
    import transformers  # noqa: F401
    import tvm  # noqa: F401

    asked = cases(folder)
    with contextlib.suppress(CdmppError):
        command("network", "mlp", *TORCH)()  # what the first answer loads is not what is limited
    taken = 4096 * int(Path("/proc/self/statm").read_text().split()[0])

    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {LIMIT_S:g} s")

    signal.signal(signal.SIGVTALRM, late)
    for name, run in asked.items():
        resource.setrlimit(resource.RLIMIT_AS, (taken + FREE_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
        began, kind, said = time.process_time(), "answered", ""
        try:
            said = str(run())
        except CdmppError as error:
            kind, said = "refused", str(error)
        except BaseException as error:  # noqa: BLE001 - MemoryError, and whatever else a test must not see
            kind, said = type(error).__name__, str(error)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        print(json.dumps([name, kind, said[:2000], time.process_time() - began]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
