"""``cdmpp network``: the time of a whole network."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.cli.options import add_device, add_executor, add_model, add_runtime
from cdmpp.cli.output import add_output_arguments, check_output, say, show
from cdmpp.cli.sweep import add_sweep_arguments, check_sweep, run_sweep
from cdmpp.errors import UsageError
from cdmpp.network.precision import PRECISIONS, Precision, precision_of
from cdmpp.network.runtime import INDUCTOR, NETWORK_RUNTIMES
from cdmpp.platform.limits import SIZES, Limits, text

if TYPE_CHECKING:
    from cdmpp import Workload
    from cdmpp.network.prediction import NetworkPrediction

BY_TORCH = ("torch", INDUCTOR)
"""Runtimes whose kernels are not TVM's."""
ATTENTION = ("auto", "flash", "efficient", "cudnn", "math", "eager")
_NETWORK = """torchvision:resnet50, hf:bert-base-uncased (its architecture; weights are random), model.onnx, the name of
a network of the zoo (gpt2 and bert_base have two layers there, hf:gpt2 has all), or my_file.py:make_model.
The last RUNS that Python file and calls its function make_model: give
only files that you trust"""


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    add_device(verb)
    add_network_arguments(verb)
    verb.add_argument("--measure", action="store_true", help="also run kernels and network here, which is the device")
    add_sweep_arguments(verb)
    add_executor(verb)
    add_output_arguments(verb, "csv", "html", "timeline", rows=20)


def add_network_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare which network, and how it runs."""
    add_graph_arguments(verb)
    add_runtime(verb, NETWORK_RUNTIMES)
    train = "with --runtime torch or torch-compile: forward and backward pass"
    verb.add_argument("--train", action="store_true", help=train)


def add_graph_arguments(verb: argparse.ArgumentParser, batch: str | None = "examples in one run") -> None:
    """Declare which network, and of which shapes.

    ``batch`` says whose examples ``--batch`` counts; None: files say it, and there may be no network.
    """
    is_needed = None if batch is not None else "?"
    verb.add_argument("network", type=text, nargs=is_needed, metavar="NETWORK", help=" ".join(_NETWORK.split()))
    if batch is not None:
        verb.add_argument("--batch", type=SIZES, help=f"{batch}, where the network leaves it open")
    tokens = "tokens of each example, of a network that reads tokens, such as hf:gpt2"
    verb.add_argument("--seq", type=SIZES, help=tokens)
    decoder = (
        "tokens of each example that the decoder reads, of an hf: name that has an encoder too, such as hf:t5-small"
    )
    verb.add_argument("--decoder-seq", type=SIZES, metavar="TOKENS", help=decoder)
    past = "tokens that each example of an hf: language model has in its cache: it decodes one more; 0: reads a prompt"
    verb.add_argument("--past", type=Limits(0, 2**31), metavar="TOKENS", help=past)
    boxes = "boxes, or other elements, that each selection by value keeps, of a detector with --runtime torch"
    verb.add_argument("--boxes", type=Limits(0, 2**24), help=boxes)
    busy = "tokens of the busiest expert over the mean, of a mixture of experts with --runtime torch (default 1)"
    verb.add_argument("--moe-imbalance", type=Limits(1, 2**20, whole=False), default=1.0, metavar="TIMES", help=busy)
    shape = "shape of an input, for example x=1,3,224,224; once for each input"
    verb.add_argument("--input", type=text, action="append", default=[], metavar="NAME=SHAPE", help=shape)
    precision = f"default fp32; {', '.join([*PRECISIONS][1:])}, or Lightning's words, such as bf16-mixed"
    verb.add_argument("--precision", type=text, metavar="NAME", help=precision)
    verb.add_argument("--dtype", type=text, help=argparse.SUPPRESS)
    attention = (
        "with --runtime torch: kernel of scaled_dot_product_attention (default auto: torch's choice for the device); "
        "eager: a named network is built without that call"
    )
    verb.add_argument("--attention", default="auto", choices=ATTENTION, help=attention)
    add_model(verb)


def run(options: argparse.Namespace) -> None:
    """Predict, and show the report."""
    runtime = runtime_options(options)
    check_output(options, options.plot)
    check_sweep(options, "measure")
    if options.measure and options.runtime in BY_TORCH:
        raise UsageError("--measure is of --runtime tvm: PyTorch's own kernels are not timed here yet")
    if options.sweep:
        run_sweep(options, workload_of(options), sys.stderr.isatty(), **runtime)
        return
    from cdmpp.cli.kept_answer import KeptAnswer

    workload, kept = workload_of(options), KeptAnswer.of(options)
    report = None if kept is None else kept.read()
    if report is None:
        import cdmpp
        from cdmpp.report.network import network_report

        prediction = cdmpp.predict_network(
            workload, device=options.device, measure=options.measure, progress=sys.stderr.isatty(), **runtime
        )
        report = network_report(prediction)
        if kept is not None and not _is_blind(prediction):
            kept.write(report)
    show({"": report}, options)


def _is_blind(prediction: NetworkPrediction) -> bool:
    """Return True if a compiler had too little time for a program of a CPU, which the next question compiles again."""
    from cdmpp.devices import get
    from cdmpp.predict.flags import NO_MACHINE_CODE

    is_flagged = any(NO_MACHINE_CODE in kernel.flags for kernel in prediction.kernels)
    return is_flagged and get(prediction.device).kind == "cpu"


def workload_of(options: argparse.Namespace, **others: Any) -> Workload:
    """Return the workload that ``add_graph_arguments`` read; ``others``: its fields besides."""
    from cdmpp import Workload

    file, _, function = (options.network or "").rpartition(":")
    if file.endswith(".py"):
        from cdmpp.network.source.user_code import MAKES_MODEL, check_written

        check_written(Path(file).expanduser(), function, *MAKES_MODEL)
    if getattr(options, "train", False):
        others["mode"] = "forward_backward"
    others["attention"] = options.attention
    sizes = {"batch": options.batch, "sequence": options.seq, "inputs": _shapes(options.input), "past": options.past}
    others = {"decoder_sequence": options.decoder_seq, **others}
    others = {"moe_imbalance": options.moe_imbalance, "boxes": options.boxes, **others}
    return Workload(options.network, precision=precision_option(options), **sizes, **others)


def precision_option(options: argparse.Namespace) -> Precision:
    """Return the precision that ``add_graph_arguments`` read; ``UsageError`` where it is none."""
    if options.dtype is not None:
        if options.precision is not None:
            raise UsageError("--dtype is the old name of --precision: give one of them")
        found = precision_of(options.dtype)
        say(f"--dtype {options.dtype}: give --precision {found}")
        return found
    return precision_of(options.precision or "fp32")


def runtime_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the runtime's options of ``add_network_arguments``; ``UsageError`` for what does not go together."""
    names = ("runtime", "model", "schedule", "cuda_graphs")
    given = {name: value for name in names if (value := getattr(options, name, None)) is not None}
    by_torch = options.runtime in BY_TORCH
    if "cuda_graphs" in given and options.runtime != INDUCTOR:
        raise UsageError(f"--cuda-graphs is of --runtime {INDUCTOR}: the others launch kernel by kernel")
    if not by_torch and getattr(options, "attention", "auto") not in ("auto", "eager"):
        raise UsageError(f"--attention {options.attention} is of --runtime torch: TVM's programs fuse no attention")
    if by_torch and "schedule" in given:
        raise UsageError(
            f"--schedule {options.schedule} is of --runtime tvm: libraries choose their kernels themselves"
        )
    if getattr(options, "train", False) and not by_torch:
        raise UsageError("--train is of --runtime torch; `cdmpp step` predicts training steps of TVM programs")
    return given


def _shapes(given: Sequence[str]) -> dict[str, tuple[int, ...]] | None:
    """``["x=1,3,224,224"]`` -> ``{"x": (1, 3, 224, 224)}``; None without."""
    shapes = {}
    for one in given:
        name, _, numbers = one.rpartition("=")
        try:
            shape = tuple(int(number) for number in numbers.split(","))
        except ValueError:
            shape = ()
        if not name or not shape or min(shape) < 1 or name in shapes:
            raise UsageError(f"--input {one}: give NAME=SHAPE once for each input, for example x=1,3,224,224")
        shapes[name] = shape
    return shapes or None
