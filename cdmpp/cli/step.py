"""``cdmpp step``: the time of a training step on one device or several."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from cdmpp.cli.chakra import add_chakra, check_chakra, save_chakra
from cdmpp.cli.network import BY_TORCH, add_graph_arguments, precision_option, runtime_options, workload_of
from cdmpp.cli.options import add_device, add_runtime
from cdmpp.cli.output import add_output_arguments, check_output, show
from cdmpp.cli.plan_options import add_plan_arguments, check_plan, write_plan, write_torch
from cdmpp.cli.ranks import (
    add_rank_arguments,
    check_ranks,
    divided_source,
    on_replica,
    planned_on,
    replayed_from,
    replayed_on,
)
from cdmpp.cli.sweep import add_sweep_arguments, check_sweep, run_sweep
from cdmpp.cli.table import batch_of, is_table, table_source
from cdmpp.cli.unlike import unlike_source
from cdmpp.errors import UsageError
from cdmpp.network.runtime import INDUCTOR, NETWORK_RUNTIMES
from cdmpp.network.training_step import ONE_DEVICE
from cdmpp.network.update import OPTIMIZERS, Update, update_of
from cdmpp.platform.limits import numbers, text

if TYPE_CHECKING:
    from cdmpp import Workload
    from cdmpp.network.training_prediction import StepPrediction
    from cdmpp.plans.plan import Plan
    from cdmpp.plans.sources.source import StepSource
    from cdmpp.steps.step_graph import RankGraph

RECOMPUTE = ("none", "full", "op", "attention")
LOSSES = ("cross_entropy", "mse", "model")
"""Names as in ``programs.training``, which would import torch for a help text."""
_OF_RANKS = ("ranks", "plan", "save-plan", "torch", "global-batch", "chakra")
"""Options of a step on several devices."""


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    add_step_arguments(verb, NETWORK_RUNTIMES)
    add_chakra(verb)


def add_step_arguments(verb: argparse.ArgumentParser, runtimes: Sequence[str], left_out: Collection[str] = ()) -> None:
    """Declare the options of a training step that one of ``runtimes`` runs.

    Without those ``left_out``, which another verb declares its own way; a ``--device`` that is left out may be missing.
    """
    add_device(verb, required="--device" not in left_out)
    replica = "examples of one replica (one device, or all that divide a model) in each gradient accumulation step"
    add_graph_arguments(verb, f"{replica}; of one device where `cdmpp plan` ranks all ways")
    verb.epilog = "NETWORK may also be a table of measured layers, layers.csv."
    add_runtime(verb, runtimes)
    add_update_arguments(verb)
    loss = (
        "of the first output, or model: what the model returns for labels among its inputs; hf: language models "
        "then have head and labels (default cross_entropy)"
    )
    recompute = (
        "with --runtime torch or torch-compile: full: each block runs again in the backward pass "
        "(torch.utils.checkpoint); op: but for attention and every second product; attention: each "
        "scaled_dot_product_attention by itself (default none: as the model says)"
    )
    verb.add_argument("--recompute", default="none", choices=RECOMPUTE, help=recompute)
    verb.add_argument("--loss", default="cross_entropy", choices=LOSSES, help=loss)
    no_fallback = (
        "refuse a network whose backward pass cannot be made a graph; else it counts as a ratio of the forward pass"
    )
    verb.add_argument("--no-fallback", action="store_true", help=no_fallback)
    if "--sweep" not in left_out:
        add_sweep_arguments(verb)
    add_rank_arguments(verb, left_out)
    add_plan_arguments(verb)
    verb.set_defaults(optimize=False, chakra=None)
    add_output_arguments(verb, "csv", "html", "timeline", rows=20)


def add_update_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare which optimizer updates the parameters, and how."""
    words = f"default adamw; one of {', '.join(OPTIMIZERS)} (sgd has momentum), or none for no update; with "
    words += "--runtime torch or torch-compile also -fused, -foreach or -for-loop behind it, such as adamw-fused"
    verb.add_argument("--optimizer", type=text, default="adamw", metavar="NAME", help=words)
    clipped = "gradients are clipped to this norm before the update, with --runtime torch or torch-compile"
    verb.add_argument("--clip-norm", type=numbers(0, 1e12, above=True), metavar="NORM", help=clipped)
    average = "keep a moving average of the weights, with --runtime torch or torch-compile"
    verb.add_argument("--ema", action="store_true", help=average)


def update_option(options: argparse.Namespace) -> Update:
    """Return the update that ``add_update_arguments`` read; ``UsageError`` where it is none, or TVM has none such."""
    named = update_of(options.optimizer)
    update = Update(named.optimizer, named.implementation, options.clip_norm, options.ema)
    if options.runtime not in BY_TORCH:
        _ = update.compiled_optimizer  # says what there is
    return update


def run(options: argparse.Namespace) -> None:
    """Predict, replay and search as asked, and show the reports."""
    _check_one_device(options)
    check_plan(options)
    check_ranks(options)
    check_sweep(options, *_OF_RANKS)
    if options.chakra is not None and options.plan is None:
        raise UsageError("--chakra goes with --ranks: else there is one device, and nothing is exchanged")
    check_chakra(options)
    runtime = checked_runtime(options)
    if is_table(options):
        if options.sweep:
            raise UsageError(f"--sweep is of networks: {options.network} has layers at the sizes that were measured")
        _run_table(options)
        return
    if options.runtime == INDUCTOR and options.plan is not None:
        _run_compiled(options)
        return
    if options.sweep:
        swept = workload_of(options, mode="training_step", optimizer=update_option(options), loss=options.loss)
        run_sweep(options, swept, sys.stderr.isatty(), **runtime)
        return
    if options.plan is None and not options.optimize and options.torch is None and options.runtime in BY_TORCH:
        _run_one_device(options, runtime)
        return
    import cdmpp
    from cdmpp.plans.placement import global_batch_of
    from cdmpp.report.plan import plan_report
    from cdmpp.report.replay import replay_report
    from cdmpp.report.step import step_report

    workload = step_workload(options)
    workload = on_replica(workload, options)
    source = divided_source(workload, options)
    found = cdmpp.predict_step(workload, device=options.device, progress=sys.stderr.isatty(), **runtime)
    has_ranks = options.ranks is not None
    reports = {"": step_report(found, is_part=has_ranks)}
    if has_ranks:
        reports["replay"] = replay_report(replayed := replayed_on(found, source, options))
        save_chakra(replayed.graph, options)
    searched = planned_on(found, options) if options.optimize else None
    if searched is not None:
        reports["optimized"] = plan_report(searched)
    show(reports, options, others_lead=has_ranks)
    if searched is not None:
        write_plan(searched.plan, options, global_batch_of(searched.plan, found.step.batch))
    elif options.plan is not None:
        write_plan(options.plan, options)
    plan = options.plan if searched is None else searched.plan
    if plan is not None and options.torch is not None:
        global_batch = options.global_batch or global_batch_of(plan, found.step.batch)
        write_torch(workload, plan, global_batch, _rank(found, source, plan, global_batch), options)


def _run_one_device(options: argparse.Namespace, runtime: dict[str, Any]) -> None:
    """Predict a step of PyTorch's kernels on one device, unless it was asked for before."""
    from cdmpp.cli.kept_answer import KeptAnswer

    workload, kept = step_workload(options), KeptAnswer.of(options)
    report = None if kept is None else kept.read()
    if report is None:
        import cdmpp
        from cdmpp.report.step import step_report

        found = cdmpp.predict_step(workload, device=options.device, progress=sys.stderr.isatty(), **runtime)
        report = step_report(found, is_part=False)
        if kept is not None:
            kept.write(report)
    show({"": report}, options)


def _rank(found: StepPrediction, source: StepSource | None, plan: Plan, global_batch: int) -> RankGraph:
    """One rank's work under a plan."""
    from cdmpp.plans.placement import micro_batch_of
    from cdmpp.steps.from_prediction import graph_of

    if source is None:
        return graph_of(found).ranks[0]
    return source.work(micro_batch_of(plan, global_batch), plan.degrees, plan.model_parallel).rank


def _check_one_device(options: argparse.Namespace) -> None:
    """Raise ``UsageError`` for several devices with ``torch.compile``, but for a plan of compiled blocks."""
    given = [one for one in _OF_RANKS if getattr(options, one.replace("-", "_"))]
    if options.runtime == INDUCTOR and options.plan is not None:
        given = [one for one in given if one not in ("plan", "global-batch")]
    if options.runtime == INDUCTOR and given:
        raise UsageError(f"--{given[0]} is of --runtime torch: {ONE_DEVICE}")


def step_workload(options: argparse.Namespace) -> Workload:
    """Return the training step that ``add_arguments`` read."""
    others = {"optimizer": update_option(options), "loss": options.loss, "recompute": options.recompute}
    return workload_of(options, mode="training_step", **others)


def checked_runtime(options: argparse.Namespace) -> dict[str, Any]:
    """Return the runtime's options of a training step; ``CdmppError`` for what cannot be, before anything is read."""
    runtime = runtime_options(options)
    if (precision := precision_option(options)).name != "fp32" and options.runtime not in BY_TORCH:
        raise UsageError(f"--precision {precision}: steps of TVM's programs are made in float32: add --runtime torch")
    recompute = getattr(options, "recompute", "none")  # which not all verbs have
    if recompute != "none" and options.runtime not in BY_TORCH:
        raise UsageError(f"--recompute {recompute}: TVM's programs run no block again: add --runtime torch")
    update_option(options)
    check_output(options, options.save_plan, options.torch, getattr(options, "plot", None))
    if options.runtime not in BY_TORCH:
        runtime["fallback"] = not options.no_fallback
    elif options.no_fallback:
        raise UsageError("--no-fallback is of --runtime tvm: PyTorch's own kernels have no such ratio")
    return runtime


def _run_compiled(options: argparse.Namespace) -> None:
    """Replay a plan whose blocks ``torch.compile`` makes one graph each; nothing is said of one device."""
    from cdmpp.devices import get
    from cdmpp.plans.placement import replica_batch_of
    from cdmpp.plans.sources.network import network_source
    from cdmpp.report.replay import replay_report

    if options.plan.devices:
        raise UsageError("--runtime torch-compile and a plan that names devices: take one without, or --runtime torch")
    batch = options.batch
    if options.global_batch is not None:
        batch = replica_batch_of(options.plan, options.global_batch)
    if batch is None:
        raise UsageError("--batch is missing: say how many examples each replica has, or all by --global-batch")
    source = network_source(step_workload(options), get(options.device), options.model, compiles=True)
    replayed = replayed_from(source, batch, options)
    save_chakra(replayed.graph, options)
    show({"": replay_report(replayed)}, options)


def _run_table(options: argparse.Namespace) -> None:
    if options.plan is None:
        raise UsageError(f"--ranks is missing: {options.network} says what one device takes")
    if options.optimize:
        raise UsageError(f"settings are not searched for {options.network}: leave out --strategy, or take cdmpp step")
    from cdmpp.report.replay import replay_report

    first = table_source(options)
    source: StepSource = first
    if names := dict.fromkeys(options.plan.devices, 1):
        source = unlike_source(options, names)
    replayed = replayed_from(source, batch_of(first, options), options)
    save_chakra(replayed.graph, options)
    show({"": replay_report(replayed)}, options)
    write_plan(options.plan, options)
