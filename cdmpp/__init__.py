"""cdmpp: predict how long a tensor program runs on a device before anyone runs it there.

Types are imported when they are first used, so that ``import cdmpp`` takes neither torch nor TVM.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from cdmpp.old_keywords import takes_workload_keywords
from cdmpp.version import __version__ as __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cdmpp.devices import Device as Device
    from cdmpp.expression.fitted_expression import FittedExpression as FittedExpression
    from cdmpp.expression.run_table import RunTable as RunTable
    from cdmpp.network.comparison import Comparison as Comparison
    from cdmpp.network.prediction import NetworkPrediction as NetworkPrediction
    from cdmpp.network.sweep import Sweep as Sweep
    from cdmpp.network.training_prediction import StepPrediction as StepPrediction
    from cdmpp.network.training_step import TrainingStep as TrainingStep
    from cdmpp.network.workload import Workload as Workload
    from cdmpp.plans.oracle import OracleResult
    from cdmpp.plans.plan import Plan as Plan
    from cdmpp.plans.search_result import SearchResult
    from cdmpp.predict.prediction import Prediction as Prediction
    from cdmpp.predict.predictor import Predictor as Predictor
    from cdmpp.serve.client import RemoteServer
    from cdmpp.steps.step_graph import StepGraph as StepGraph
    from cdmpp.steps.step_replay import StepReplay
    from cdmpp.steps.strategy import Strategy
    from cdmpp.tuning.offline import TunedNetwork
    from cdmpp.tuning.rank import Ranking

_TYPES = {
    "Comparison": "cdmpp.network.comparison",
    "Device": "cdmpp.devices",
    "FittedExpression": "cdmpp.expression.fitted_expression",
    "NetworkPrediction": "cdmpp.network.prediction",
    "Plan": "cdmpp.plans.plan",
    "Prediction": "cdmpp.predict.prediction",
    "Predictor": "cdmpp.predict.predictor",
    "RunTable": "cdmpp.expression.run_table",
    "StepGraph": "cdmpp.steps.step_graph",
    "StepPrediction": "cdmpp.network.training_prediction",
    "Sweep": "cdmpp.network.sweep",
    "TrainingStep": "cdmpp.network.training_step",
    "Workload": "cdmpp.network.workload",
}
"""Name of a type -> the module that has it."""
_OLD_NAMES = {
    "compare": "compare_devices",
    "cost_model": "make_cost_model",
    "load": "load_model",
    "optimise_step": "optimize_step",
    "rank": "rank_schedules",
    "training_step": "read_step",
    "tune": "tune_network",
}
"""Name of a function in version 0.1 -> its name now; the old ones go with the next version."""

__all__ = [
    *_TYPES,
    "__version__",
    "compare_devices",
    "fit_runs",
    "load_model",
    "make_cost_model",
    "optimize_step",
    "predict_network",
    "predict_step",
    "rank_schedules",
    "read_step",
    "remote",
    "replay_step",
    "search_plans",
    "sweep_network",
    "tune_network",
]


def load_model(path_or_name: str | Path) -> Predictor:
    """Load a trained model. Needs no TVM.

    Args:
        path_or_name: a folder made by training, or the name of a shipped model.

    Raises:
        ModelFormatError: there is no such model, or it is damaged or of another version.

    Examples:
        >>> import cdmpp
        >>> sorted(cdmpp.load_model("a100").trained_on)
        ['a100', 'h100']
    """
    from cdmpp.predict.model_folder import load

    return load(path_or_name)


@takes_workload_keywords
def predict_network(
    network: Workload | Any,
    example_inputs: Any = None,
    *,
    device: str | Device,
    runtime: str = "tvm",
    model: str | Path | None = None,
    schedule: str | None = None,
    measure: bool = False,
    cuda_graphs: bool = False,
    progress: bool = True,
) -> NetworkPrediction:
    """Predict the time of one run of a whole network on a device.

    Args:
        network: a ``Workload``; or a network whose workload has no other settings than ``example_inputs``.
        example_inputs: those of a torch module; left out where a ``Workload`` is given.
        device: the name of a device, or one described in Python.
        runtime: ``tvm``: compiled programs, which needs TVM; ``torch``: PyTorch's own kernels, run eagerly;
            ``torch-compile``: kernels that Inductor fuses, and those of the libraries.
        model: the folder of a model or the name of a shipped one; None: the first that knows the device.
        schedule: of runtime ``tvm``, which program of each kernel runs: ``best_of:K`` (None: ``best_of:16``),
            ``untuned`` or ``database:DIR``.
        measure: of runtime ``tvm``, whether the network also runs on this machine, which must be the device.
        cuda_graphs: of runtime ``torch-compile``, whether the kernels are replayed as a CUDA graph.
        progress: whether bars are shown on stderr while schedules are sampled and compiled.

    Raises:
        UsageError: arguments that cannot be; the message says which and what is allowed.
        CdmppError: the network cannot be read or holds what the runtime does not have, or there is no model.

    Examples:
        >>> import cdmpp, torch
        >>> layer = cdmpp.Workload(torch.nn.Linear(1024, 1024), torch.zeros(64, 1024), precision="fp16")
        >>> found = cdmpp.predict_network(layer, device="a100", runtime="torch")
        >>> 1e-6 < found.latency_s < 1e-4, found.kernels[0].name
        (True, 'linear 64x1024x1024 float16')
    """
    from cdmpp.network.predict import predict_network as predict
    from cdmpp.network.predict import runtime_of

    workload = _workload(network, example_inputs)
    made = runtime_of(runtime, model, schedule, cuda_graphs=cuda_graphs)
    return predict(workload, device, made, measure, progress)


@takes_workload_keywords
def compare_devices(
    network: Workload | Any,
    example_inputs: Any = None,
    *,
    devices: Sequence[str | Device],
    runtime: str = "tvm",
    model: str | Path | None = None,
    schedule: str | None = None,
    cuda_graphs: bool = False,
    progress: bool = True,
) -> Comparison:
    """Predict one network on several devices; one without an answer keeps its place, with the reason.

    Args:
        network: as of ``predict_network``, and so all arguments but ``devices``.
        example_inputs: as there.
        devices: names of devices, or devices described in Python.
        runtime: as there.
        model: as there.
        schedule: as there.
        cuda_graphs: as there.
        progress: as there.

    Raises:
        CdmppError: none of the devices has an answer.

    Examples:
        >>> import cdmpp, torch
        >>> layer = cdmpp.Workload(torch.nn.Linear(4096, 4096), torch.zeros(512, 4096))
        >>> found = cdmpp.compare_devices(layer, devices=["t4", "h100"], runtime="torch")
        >>> [row["device"] for row in found.table()]
        ['h100', 't4']
    """
    from cdmpp.network.comparison import compare_devices as compare
    from cdmpp.network.predict import runtime_of

    names = [devices] if isinstance(devices, str) else devices
    made = runtime_of(runtime, model, schedule, cuda_graphs=cuda_graphs)
    return compare(_workload(network, example_inputs), names, made, progress)


def sweep_network(
    network: Workload | Any,
    *,
    axes: Mapping[str, Sequence[int]],
    device: str | Device,
    runtime: str = "tvm",
    model: str | Path | None = None,
    schedule: str | None = None,
    fallback: bool | None = None,
    cuda_graphs: bool = False,
    progress: bool = True,
) -> Sweep:
    """Predict one network at all combinations of sizes: batches, tokens, tokens in a cache, pixels.

    With runtime ``torch`` it is read once for all sizes at which it runs the same operators; programs of TVM, and
    kernels that Inductor fuses, are made for each point. Sizes that the network cannot have keep their row, with the
    reason.

    Args:
        network: a ``Workload``, whose mode decides whether points are runs or training steps; or a network of a name,
            an ONNX file, or ``file.py:FUNCTION``. A module needs a ``Workload`` with example inputs.
        axes: ``batch``, ``seq``, ``decoder-seq``, ``past``, ``image`` (its side, of ``torchvision:`` names) or the name
            of an open dimension of an ONNX file -> its sizes, each once; up to 10,000 combinations. A module has
            ``batch``, and ``seq`` where its first input is tokens.
        device: as of ``predict_network``, and so the arguments that are not explained here.
        runtime: as there.
        model: as there.
        schedule: as there.
        fallback: as of ``predict_step``.
        cuda_graphs: as of ``predict_network``.
        progress: whether a bar of the points is shown on stderr with runtime ``tvm``.

    Raises:
        UsageError: arguments that cannot be.
        CdmppError: the network cannot be read at any of the points, or there is no model.

    Examples:
        >>> import cdmpp
        >>> found = cdmpp.sweep_network("bert_tiny", axes={"batch": [2, 8]}, device="a100", runtime="torch")
        >>> [row["batch"] for row in found.table()]
        [2, 8]
    """
    from cdmpp.network.predict import runtime_of
    from cdmpp.network.sweep import sweep_network as sweep

    made = runtime_of(runtime, model, schedule, fallback, cuda_graphs)
    return sweep(_workload(network, None), axes, device, made, progress)


@takes_workload_keywords
def read_step(network: Workload | Any, example_inputs: Any = None, *, fallback: bool = True) -> TrainingStep:
    """Read the training step of a network as tensor programs, on no device yet. Needs TVM.

    Args:
        network: as of ``predict_step``, and so ``example_inputs``.
        example_inputs: as there.
        fallback: whether a backward pass of which no graph can be made counts as a measured ratio of the forward pass.

    Raises:
        CdmppError: the network cannot be read, exported or lowered; operator and place are named.

    Examples:
        >>> import cdmpp, torch
        >>> layer = cdmpp.Workload(torch.nn.Linear(8, 8), torch.zeros(4, 8), loss="mse", optimizer="sgd")
        >>> cdmpp.read_step(layer).counts["update"] > 0
        True
    """
    from cdmpp.network.compiled.training_read import read_step as read

    return read(_workload(network, example_inputs, mode="training_step"), fallback)


@takes_workload_keywords
def predict_step(
    network: Workload | TrainingStep | Any,
    example_inputs: Any = None,
    *,
    device: str | Device,
    runtime: str = "tvm",
    model: str | Path | None = None,
    schedule: str | None = None,
    fallback: bool | None = None,
    cuda_graphs: bool = False,
    progress: bool = True,
) -> StepPrediction:
    """Predict the time of a training step on one device: forward pass, backward pass and update.

    Args:
        network: a ``Workload``, whose mode is taken as ``training_step``; a network with the default loss and
            optimizer; or what ``read_step`` returned.
        example_inputs: as of ``predict_network``, and so the arguments that are not explained here.
        device: as there.
        runtime: as there.
        model: as there.
        schedule: as there.
        fallback: of runtime ``tvm``: as of ``read_step``; None: True.
        cuda_graphs: as there; the update is not part of one.
        progress: as there.

    Raises:
        UsageError: arguments that cannot be.
        CdmppError: the network cannot be read or trained, or there is no model.

    Examples:
        >>> import cdmpp, torch
        >>> layer = cdmpp.Workload(torch.nn.Linear(1024, 1024), torch.zeros(64, 1024), loss="mse")
        >>> found = cdmpp.predict_step(layer, device="a100", runtime="torch")
        >>> list(found.phase_s)
        ['forward', 'backward', 'update']
    """
    from cdmpp.network.predict import predict_step as predict
    from cdmpp.network.predict import runtime_of
    from cdmpp.network.training_step import TrainingStep

    is_made = isinstance(network, TrainingStep)
    workload = network if is_made else _workload(network, example_inputs, mode="training_step")
    return predict(workload, device, runtime_of(runtime, model, schedule, fallback, cuda_graphs), progress)


def replay_step(
    step: StepPrediction,
    *,
    ranks: int | None = None,
    cluster: str | None = None,
    link: str | None = None,
    strategy: str | Strategy | None = None,
    plan: Plan | None = None,
    backend: str | None = None,
    granularity: str = "collective",
    slow: Mapping[int, float] | None = None,
    global_batch: int | None = None,
) -> StepReplay:
    """Replay a training step on several devices, each with the batch of one. Needs no TVM.

    Args:
        step: what ``predict_step`` returned.
        ranks: number of devices, from 1 up; may be left out where a plan says it.
        cluster: a name of ``conf/cluster``.
        link: a name of ``conf/interconnect``, in place of a cluster: all ranks have it.
        strategy: a name of ``STRATEGIES``, such as ``fsdp``, or a strategy with settings; None: ddp.
        plan: all settings, in place of ``strategy``.
        backend: what carries collectives; None: gloo on CPUs, rccl on AMD's GPUs, else nccl.
        granularity: ``collective`` for one task an exchange, or ``ring step`` for one a step of its ring.
        slow: rank -> how many times as long its device takes, for those that are unlike the others.
        global_batch: examples of all devices in one step, which must be what the step and the plan give; None: those.

    Raises:
        CdmppError: an unknown cluster, link or strategy; ranks that do not fit; another global batch.

    Examples:
        >>> import cdmpp, torch
        >>> layer = cdmpp.Workload(torch.nn.Linear(1024, 1024), torch.zeros(64, 1024), loss="mse")
        >>> found = cdmpp.predict_step(layer, device="a100", runtime="torch")
        >>> cdmpp.replay_step(found, ranks=4, link="nvlink3").iteration_s >= found.latency_s
        True
    """
    from cdmpp.plans.distributed_step import replay_step as replay

    _check_step(step)
    return replay(
        step, ranks=ranks, cluster=cluster, link=link, strategy=strategy, plan=plan, backend=backend,
        granularity=granularity, slow=slow, global_batch=global_batch,
    )  # fmt: skip


def optimize_step(
    step: StepPrediction,
    *,
    ranks: int | None = None,
    cluster: str | None = None,
    link: str | None = None,
    strategy: str | Strategy | None = None,
    plan: Plan | None = None,
    backend: str | None = None,
    memory_limit_bytes: int | None = None,
    most_accumulation_steps: int = 1,
    method: str = "replay",
) -> SearchResult:
    """Search settings under which a training step on equal devices is shorter, or fits into memory. Needs no TVM.

    Args:
        step: as ``replay_step`` takes it, and so are ``ranks``, ``cluster``, ``link`` and ``backend``.
        ranks: as there.
        cluster: as there.
        link: as there.
        strategy: a name of ``STRATEGIES``, or a strategy; its kind is kept, its settings are searched; None: ddp.
        plan: where the search begins, in place of the defaults of ``strategy``.
        backend: as there.
        memory_limit_bytes: most bytes of each device; None: no limit.
        most_accumulation_steps: batches whose gradients may be added up; more than 1 multiplies the global batch.
        method: ``replay`` or ``closed_form``.

    Raises:
        InfeasiblePlanError: nothing fits into ``memory_limit_bytes``.
        CdmppError: as ``replay_step``.

    Examples:
        >>> import cdmpp, torch
        >>> layer = cdmpp.Workload(torch.nn.Linear(1024, 1024), torch.zeros(64, 1024), loss="mse")
        >>> found = cdmpp.predict_step(layer, device="a100", runtime="torch")
        >>> cdmpp.optimize_step(found, ranks=4, link="nvlink3").plan.strategy.name
        'ddp'
    """
    from cdmpp.plans.distributed_step import optimize_step as optimize

    _check_step(step)
    return optimize(
        step, ranks=ranks, cluster=cluster, link=link, strategy=strategy, plan=plan, backend=backend,
        memory_limit_bytes=memory_limit_bytes, most_accumulation_steps=most_accumulation_steps, method=method,
    )  # fmt: skip


def search_plans(
    network: Workload | Any,
    example_inputs: Any = None,
    *,
    device: str | Device | Mapping[str, int],
    global_batch: int,
    ranks: int | None = None,
    cluster: str | None = None,
    link: str | None = None,
    backend: str | None = None,
    strategies: Sequence[str] = (),
    memory_gb: float | None = None,
    model: str | Path | None = None,
    top: int = 10,
    replays: int = 20,
    progress: bool = True,
) -> OracleResult:
    """Rank every way to train a network on several devices, under PyTorch's own kernels. Needs no TVM.

    Args:
        network: as of ``predict_step``, and so ``example_inputs`` and ``model``.
        example_inputs: as there.
        device: the device of all ranks; or name -> ranks on it, for devices that differ.
        global_batch: examples of all devices in one step.
        ranks: number of devices; left out where ``device`` says it.
        cluster: as of ``replay_step``, and so ``link`` and ``backend``; it grows where ranks do not fit.
        link: as there.
        backend: as there.
        strategies: combinations such as ``fsdp+pipeline``, or ``fsdp*tp*pp``; empty: all that suit the network.
        memory_gb: most memory of a device, in 1e9 bytes; None: that of its datasheet.
        model: as there.
        top: plans that are returned at least.
        replays: best plans by closed form that are replayed.
        progress: whether bars are shown on stderr.

    Raises:
        InfeasiblePlanError: no plan fits into memory; it says what is missing and what would help.
        CdmppError: as ``predict_step`` and ``replay_step``; an unknown strategy.

    Examples:
        >>> import cdmpp, torch
        >>> layer = cdmpp.Workload(torch.nn.Linear(1024, 1024), torch.zeros(64, 1024), loss="mse")
        >>> found = cdmpp.search_plans(layer, device="a100", ranks=4, link="nvlink3", global_batch=256, progress=False)
        >>> found.best.plan.ranks, found.best.low_s < found.best.step_s < found.best.high_s
        (4, True)
    """
    from cdmpp.plans.search_plans import search_plans as search

    return search(
        _workload(network, example_inputs, mode="training_step"), device, global_batch=global_batch, ranks=ranks,
        cluster=cluster, link=link, backend=backend, strategies=strategies, memory_gb=memory_gb, model=model, top=top,
        replays=replays, progress=progress,
    )  # fmt: skip


def fit_runs(table: RunTable, *, seed: int = 0, budget_s: float = 20.0) -> FittedExpression:
    """Fit a readable expression of run time to a table of runs. Needs neither torch nor TVM.

    Args:
        table: the runs, as ``RunTable.read_csv`` or ``RunTable.of`` makes it.
        seed: of the search and of resampling; the same seed gives the same answer.
        budget_s: about how many seconds it may take, counted in steps.

    Raises:
        UsageError: fewer runs than constants, or a number that cannot be.

    Examples:
        >>> import cdmpp
        >>> runs = {"gpus": [1, 1, 2, 2, 4, 4], "batch": [8, 16, 8, 16, 8, 16], "step_s": [8, 16, 4, 8, 2, 4]}
        >>> fitted = cdmpp.fit_runs(cdmpp.RunTable.of(runs, "step_s"), budget_s=1)
        >>> bool(1.6 < fitted.predict([{"gpus": 8, "batch": 16}]).times_s[0] < 2.4)
        True
    """
    from cdmpp.errors import UsageError
    from cdmpp.expression import FitSettings, RunTable
    from cdmpp.expression import fit_runs as fit

    if not isinstance(table, RunTable):
        raise UsageError(f"a {type(table).__name__} is no table of runs: give what cdmpp.RunTable.of returned")
    return fit(table, FitSettings(seed=seed, budget_s=budget_s))


@takes_workload_keywords
def tune_network(
    network: Workload | Any,
    example_inputs: Any = None,
    *,
    device: str | Device,
    folder: str | Path,
    model: str | Path | None = None,
    trials: int = 0,
    candidates: int = 256,
    progress: bool = True,
) -> TunedNetwork:
    """Choose a program for each kernel of a network and write them as a MetaSchedule database. Needs TVM.

    Args:
        network: as of ``predict_network``, and so ``example_inputs``, ``device``, ``model`` and ``progress``.
        example_inputs: as there.
        device: as there.
        folder: of the database. One that was begun goes on: what is measured in it is not measured again.
        model: as there.
        trials: programs that are built and timed on this machine, which must be the device; 0: prediction decides.
        candidates: schedules that are sampled of each kernel.
        progress: as there.

    Raises:
        CdmppError: as of ``predict_network``; ``folder`` holds another database; the device is not here.

    Examples:
        >>> import cdmpp, tempfile, torch
        >>> folder = tempfile.mkdtemp()
        >>> layer = cdmpp.Workload(torch.nn.Linear(8, 8), torch.zeros(4, 8))
        >>> tuned = cdmpp.tune_network(layer, device="epyc-genoa", folder=folder, candidates=2, progress=False)
        >>> tuned.kernels[0].calls
        1
    """
    from cdmpp.tuning.offline import tune_network as tune

    return tune(_workload(network, example_inputs), device, folder, model, trials, candidates, progress)


def rank_schedules(
    task: Any,
    candidates: Sequence[Any],
    device: str | Device,
    model: str | Path | None = None,
    look: int = 16,
) -> Ranking:
    """Rank schedules of one workload by predicted latency, without running any. Needs TVM.

    Args:
        task: the workload: a ``Task``, an ``IRModule`` or a ``PrimFunc``.
        candidates: schedules of it: ``Schedule`` objects, scheduled ``IRModule``s, or traces as JSON.
        device: as of ``predict_network``, and so ``model``.
        model: as there.
        look: how many of the most promising are compiled, where the model reads machine code; 0: none.

    Raises:
        CdmppError: no such device or model, no candidate, or one of another kind.

    Examples:
        >>> import cdmpp
        >>> from tvm import te
        >>> a = te.placeholder((64, 64), name="a")
        >>> doubled = te.compute((64, 64), lambda i, j: a[i, j] * 2.0, name="doubled")
        >>> task = te.create_prim_func([a, doubled])
        >>> cdmpp.rank_schedules(task, ["[[],[]]"], "epyc-genoa", look=0).order
        (0,)
    """
    from cdmpp.tuning.rank import rank_schedules as rank

    return rank(task, candidates, device, model, look)


def make_cost_model(
    device: str | Device,
    model: str | Path | None = None,
    *,
    frozen: bool = False,
    two_stage: bool = True,
    seed: int = 0,
    cascade: bool | None = None,
) -> Any:
    """Make a cost model for TVM's MetaSchedule; its ``builder`` goes with it. Needs TVM.

    Args:
        device: the device that is tuned for, by name or described in Python. It need not have records.
        model: the folder of a model or the name of a shipped one; None: the first for the device.
        frozen: whether it goes by the trained model only and learns nothing from what is measured.
        two_stage: whether, on x86-64 CPUs, the most promising candidates of each batch are compiled and read.
        seed: of the scores of candidates that cannot be read.
        cascade: the name of ``two_stage`` in version 0.1, which goes with the next one.

    Raises:
        CdmppError: no such device, or no model for it.

    Examples:
        >>> import cdmpp
        >>> model = cdmpp.make_cost_model("epyc-genoa")
        >>> sorted(name for name in ("load", "predict", "save", "update") if hasattr(model, name))
        ['load', 'predict', 'save', 'update']
    """
    from cdmpp.tuning.plug import make_cost_model as make

    if cascade is not None:
        warnings.warn("make_cost_model(cascade=...) is now two_stage=...", DeprecationWarning, stacklevel=2)
        two_stage = cascade

    return make(device, model, frozen=frozen, two_stage=two_stage, seed=seed)


def remote(
    url: str, *, timeout_s: float = 600.0, token: str | None = None, ca_file: str | Path | None = None
) -> RemoteServer:
    """Ask a server of ``cdmpp serve`` in place of this process, which then needs neither torch nor TVM.

    Its methods have the arguments and results of this package.

    Args:
        url: of the server, such as ``http://127.0.0.1:8321``.
        timeout_s: longest seconds for an answer.
        token: what the server asks for; None: the variable ``CDMPP_TOKEN`` of the environment, where it is set.
        ca_file: PEM file of the certificates that are trusted; None: those that httpx trusts.

    Raises:
        UsageError: ``url`` is no address, ``token`` none, or ``ca_file`` cannot be read.
        RemoteError: nothing answers there, or what is no server of this version, or it asks for another token.

    Examples:
        >>> cdmpp.remote("http://127.0.0.1:8321").predict_network("hf:gpt2", device="h100")  # doctest: +SKIP
    """
    from cdmpp.serve.client import RemoteServer

    return RemoteServer(url, timeout_s, token, ca_file)


def _workload(network: Any, example_inputs: Any, mode: Any = None) -> Workload:
    from dataclasses import replace

    from cdmpp.errors import UsageError
    from cdmpp.network.workload import Workload

    if not isinstance(network, Workload):
        workload = Workload(network, example_inputs)
    elif example_inputs is None:
        workload = network
    else:
        raise UsageError("a Workload holds its example inputs: leave example_inputs out")
    return workload if mode is None else replace(workload, mode=mode)


def _check_step(step: Any) -> None:
    from cdmpp.errors import UsageError
    from cdmpp.network.training_prediction import StepPrediction

    if not isinstance(step, StepPrediction):
        raise UsageError(f"a {type(step).__name__} is no predicted step: give what cdmpp.predict_step returned")


def __getattr__(name: str) -> Any:
    """Types, which are imported when first used, and functions by the names that they had before."""
    if name in _TYPES:
        return getattr(importlib.import_module(_TYPES[name]), name)
    if name in _OLD_NAMES:
        warnings.warn(f"cdmpp.{name} is now cdmpp.{_OLD_NAMES[name]}", DeprecationWarning, stacklevel=2)
        return globals()[_OLD_NAMES[name]]
    raise AttributeError(f"module 'cdmpp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
