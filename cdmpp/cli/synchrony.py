"""``cdmpp synchrony``: when uneven workers should exchange what they learned, and what each way costs."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cdmpp.cli.collective import read_bytes
from cdmpp.cli.network import add_graph_arguments, workload_of
from cdmpp.cli.options import add_runtime
from cdmpp.cli.output import add_output_arguments, check_output, show, warn
from cdmpp.cli.step import LOSSES, add_update_arguments, checked_runtime, update_option
from cdmpp.errors import UsageError
from cdmpp.platform.limits import SEED, Limits, numbers, text
from cdmpp.synchrony.progress import STALENESS_PENALTY

if TYPE_CHECKING:
    from cdmpp.collectives.interconnect import AlphaBeta
    from cdmpp.network.training_prediction import StepPrediction
    from cdmpp.network.workload import Workload
    from cdmpp.steps.synchrony import Synchrony
    from cdmpp.synchrony.loss.curve import LossCurve
    from cdmpp.synchrony.worker_file import WorkerSheet

_POLICIES = "bsp,ssp:4,async"
_TRAIN_S = 30.0
_TRAIN_POINTS = 60
"""Points of the loss of a training."""
_OF_PREDICTION = ("model", "schedule", "runtime", "no_fallback")
"""Options that only a prediction reads."""


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    add_graph_arguments(verb, None)
    job = verb.add_argument_group("the job")
    files = "a YAML file for each worker, with device or batch_s, batch, speed, spread and link; one may be named twice"
    job.add_argument("--workers", type=text, required=True, metavar="A.yaml,B.yaml", help=files)
    link = "of workers and servers: such as ethernet-1g, or a CSV file bytes,seconds of messages (default: no limit)"
    job.add_argument("--link", type=text, help=link)
    job.add_argument("--servers", type=Limits(1, 1024, "servers"), default=1, help="default 1")
    on = "servers run on the machines of the first workers; else each has a machine of its own"
    job.add_argument("--servers-on-workers", action="store_true", help=on)
    job.add_argument("--server-link", type=text, help="of machines of servers (default: --link)")
    rate = "bytes of updates that a server adds in a second (default: adding takes no time)"
    job.add_argument("--add-bytes-per-s", type=numbers(0, 1e15, "bytes a second", above=True), metavar="N", help=rate)
    size = "bytes of all parameters, such as 44MB (default: those of NETWORK)"
    job.add_argument("--bytes", type=text, metavar="SIZE", help=size)
    job.add_argument("--overlap", action="store_true", help="workers train on while they push and pull")
    ways = verb.add_argument_group("synchronies")
    ways.add_argument("--policies", type=text, default=_POLICIES, metavar="A,B:N", help=_policies_help())
    ways.add_argument("--seconds", type=numbers(0, 1e9, "seconds", above=True), default=600.0, help="default 600")
    ways.add_argument("--seed", type=SEED, default=0, help="of the spread of batches (default 0)")
    ways.add_argument("--explain", type=text, metavar="POLICY", help="whose workers and servers are listed")
    loss = verb.add_argument_group("loss against time")
    curve = (
        "loss of one worker by samples: a CSV file samples,loss of four points or more, or the record (.json) of a run "
        "of one worker by cdmpp.synchrony.run"
    )
    loss.add_argument("--loss-curve", type=text, metavar="FILE", help=curve)
    trained = (
        "in place of --loss-curve: train here with one worker, by a function train(seed, worker, workers) as "
        "cdmpp.synchrony.run takes it; the file is run"
    )
    loss.add_argument("--train", type=text, metavar="FILE.py:FUNCTION", help=trained)
    lasts = f"of that training (default {_TRAIN_S:g})"
    loss.add_argument("--train-seconds", type=numbers(0, 1e6, "seconds", above=True), metavar="S", help=lasts)
    target = numbers(-math.inf, math.inf)
    loss.add_argument("--target-loss", type=target, help="say when each synchrony reaches it")
    stale = "an update counts 1 / (1 + P x weight x staleness) of its samples (default 0: as the limit of small steps)"
    loss.add_argument("--staleness-penalty", type=STALENESS_PENALTY, default=0.0, metavar="P", help=stale)
    add_runtime(verb)
    add_update_arguments(verb)
    verb.add_argument("--loss", default="cross_entropy", choices=LOSSES, help="as of cdmpp step")
    verb.add_argument("--no-fallback", action="store_true", help="as of cdmpp step")
    verb.set_defaults(save_plan=None, torch=None)
    add_output_arguments(verb, "csv", "html")


def _policies_help() -> str:
    from cdmpp.synchrony.policies import SYNCHRONIES

    known = ", ".join(f"{kind.name} ({kind.title})" for kind in SYNCHRONIES)
    words = "a number is the first setting, others follow as adsp:4,least_s=1"
    return f"which are compared; {words} (default {_POLICIES}): {known}"


def run(options: argparse.Namespace) -> None:
    """Predict the batches of all workers, replay the job under each synchrony, and show the report."""
    _check_training(options)
    from cdmpp.report.synchrony import synchrony_report
    from cdmpp.synchrony.comparison import compare
    from cdmpp.synchrony.job import Job
    from cdmpp.synchrony.worker import Server
    from cdmpp.synchrony.worker_file import read_worker

    files = _listed(options.workers, "--workers")
    asked = _asked(options, len(files))
    sheets = {file: read_worker(file) for file in dict.fromkeys(files)}
    curve = _curve(options)
    if curve is not None and options.target_loss is not None:
        curve.samples_to(options.target_loss)
    link, server_link, medium = _links(options, len(files))
    check_output(options)
    predicted = _predicted(list(sheets.values()), options)
    size = _bytes(options, list(sheets.values()), predicted)
    workers = []
    for sheet in (sheets[file] for file in files):
        if sheet.batch_s is not None:
            workers.append(sheet.worker(sheet.batch_s, link))
        else:
            step = predicted[sheet.device, sheet.batch]
            workers.append(sheet.worker(step.latency_s, link, _interval_of(step)))
    server = Server(server_link, options.add_bytes_per_s or math.inf)
    servers = (server,) * (1 if options.servers_on_workers else options.servers)
    job = Job(tuple(workers), size, servers, options.overlap, medium)
    if options.servers_on_workers:
        job = job.on_workers(options.servers)
    found = compare(
        job, asked, options.seconds, options.seed, curve, options.target_loss, options.staleness_penalty,
        sys.stderr.isatty(),
    )  # fmt: skip
    if medium is not None:
        warn(
            f"{options.link}: the whole rate of its sheet is taken and no latency. Frames and contention leave 50 to "
            "70 % of it to payload: time messages, and give each worker's link"
        )
    for warning in dict.fromkeys(line for one in predicted.values() for line in one.prediction.warnings):
        warn(warning)
    show({"": synchrony_report(found, options.explain)}, options)


def _asked(options: argparse.Namespace, workers: int) -> list[tuple[str, Synchrony]]:
    """The synchronies by their texts, with the loss that they search for."""
    from cdmpp.synchrony.policies import synchrony_of
    from cdmpp.synchrony.registry import listed

    names = _without_gaps(listed(options.policies), options.policies, "--policies")
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"--policies names {sorted(twice)[0]} twice: once for each")
    if options.explain is not None and options.explain not in names:
        raise UsageError(f"--explain {options.explain} is not among --policies {options.policies}: give one of them")
    asked = [(name, synchrony_of(name)) for name in names]
    has_curve = options.loss_curve is not None or options.train is not None
    if same := [name for place, (name, one) in enumerate(asked) if one in [other for _, other in asked[:place]]]:
        raise UsageError(f"--policies names {same[0]}, which is there in other words: once for each")
    if options.target_loss is not None:
        if not has_curve:
            raise UsageError(
                f"--target-loss {options.target_loss:g} goes with --loss-curve FILE.csv, or with --train: none is given"
            )
        asked = [(name, synchrony.for_target(options.target_loss)) for name, synchrony in asked]
    for name, synchrony in asked:
        if synchrony.decisions(workers).check_s is not None and not has_curve:
            raise UsageError(f"--policies {name} decides by the loss: give --loss-curve FILE.csv, or --train")
    return asked


def _check_training(options: argparse.Namespace) -> None:
    """Raise ``UsageError`` where options about the loss do not go together."""
    if options.train is not None and options.loss_curve is not None:
        raise UsageError("--train and --loss-curve both say how the loss falls: leave out one of them")
    if options.train is None and options.train_seconds is not None:
        raise UsageError(f"--train-seconds {options.train_seconds:g} is of --train, which is missing")
    if options.train is not None:
        from cdmpp.synchrony.processes.training_file import training_place

        training_place(options.train)
    if options.staleness_penalty and options.train is None and options.loss_curve is None:
        raise UsageError("--staleness-penalty is of a loss curve: give --loss-curve FILE.csv, or --train")


def _curve(options: argparse.Namespace) -> LossCurve | None:
    """The loss of one worker, from a file or from a training here."""
    from cdmpp.synchrony.loss.curve import curve_of, read_curve

    if options.loss_curve is not None:
        return read_curve(options.loss_curve)
    if options.train is None:
        return None
    import cdmpp.synchrony
    from cdmpp.synchrony.policies import synchrony_of
    from cdmpp.synchrony.processes.place import WorkerPlace
    from cdmpp.synchrony.processes.training_file import training_file

    seconds = options.train_seconds or _TRAIN_S
    record = cdmpp.synchrony.run(
        training_file(options.train), synchrony_of("bsp"), [WorkerPlace()], seconds=seconds, seed=options.seed,
        point_s=seconds / _TRAIN_POINTS,
    )  # fmt: skip
    for warning in record.warnings:
        warn(warning)
    return curve_of(record, f"the training of {seconds:g} s by {options.train}")


def _links(options: argparse.Namespace, workers: int) -> tuple[AlphaBeta, AlphaBeta, AlphaBeta | None]:
    """The link of a worker, that of a server's machine, and the medium that all share."""
    from cdmpp.collectives import interconnect
    from cdmpp.collectives.machine_link import machine_link
    from cdmpp.synchrony.worker import NO_LIMIT

    if options.servers_on_workers and options.server_link is not None:
        raise UsageError("--server-link is of machines of servers, and --servers-on-workers has none: leave out one")
    if options.servers_on_workers and options.servers > workers:
        raise UsageError(f"--servers {options.servers} on {workers} workers: expected one on each at most")
    medium = None if options.link is None else interconnect.medium(options.link)
    if options.server_link is not None and interconnect.medium(options.server_link) is not None:
        raise UsageError(f"--server-link {options.server_link} is shared by all: give it as --link")
    link = NO_LIMIT if options.link is None or medium is not None else machine_link(options.link).end
    server_link = link if options.server_link is None else machine_link(options.server_link).end
    return link, server_link, None if medium is None else medium.alpha_beta()


def _listed(given: str, option: str) -> list[str]:
    return _without_gaps([name.strip() for name in given.split(",")], given, option)


def _without_gaps(names: list[str], given: str, option: str) -> list[str]:
    if not all(names):
        raise UsageError(f"{option} {given!r}: expected names with a comma between two")
    return names


def _bytes(
    options: argparse.Namespace, sheets: Sequence[WorkerSheet], predicted: dict[tuple[str | None, int], StepPrediction]
) -> float:
    """Bytes of the parameters: as given, or those of the network."""
    if options.bytes is not None:
        return read_bytes(options.bytes)
    if predicted:
        return next(iter(predicted.values())).step.memory.parameter_bytes
    from cdmpp.network.eager.step import read_blocks

    read = read_blocks(_workload(options, sheets[0].batch))[1].step
    assert read is not None
    return read.memory.parameter_bytes


def _workload(options: argparse.Namespace, batch: int) -> Workload:
    of_worker = argparse.Namespace(**vars(options), batch=batch)
    return workload_of(of_worker, mode="training_step", optimizer=update_option(options), loss=options.loss)


def _check_network(options: argparse.Namespace, is_predicted: bool) -> None:
    """Raise ``UsageError`` where the network, or an option of it, is missing or of no use."""
    if is_predicted:
        if options.network is None:
            raise UsageError("NETWORK is missing: a worker runs it on a device")
        return
    if given := [name for name in _OF_PREDICTION if getattr(options, name)]:
        raise UsageError(
            f"--{given[0].replace('_', '-')} is of workers with a device, and all have batch_s, which was measured: "
            "leave it out, or name a device in place of batch_s"
        )
    if options.network is None and options.bytes is None:
        raise UsageError("--bytes is missing, or NETWORK: nothing says how large the parameters are")
    if options.network is not None and options.bytes is not None:
        raise UsageError("NETWORK says how large the parameters are, and so does --bytes: leave out one of the two")
    if options.network is None and (options.seq or options.input):
        raise UsageError("--seq and --input are of NETWORK, which is missing: leave them out")


def _predicted(
    sheets: Sequence[WorkerSheet], options: argparse.Namespace
) -> dict[tuple[str | None, int], StepPrediction]:
    """The training step of each device and batch that a worker names."""
    asked = dict.fromkeys((sheet.device, sheet.batch) for sheet in sheets if sheet.device is not None)
    _check_network(options, bool(asked))
    if not asked:
        return {}
    import cdmpp
    from cdmpp import devices

    runtime = checked_runtime(options)
    for device, _ in asked:
        devices.get(device)
    found: dict[tuple[str | None, int], StepPrediction] = {}
    for device, batch in asked:
        workload = _workload(options, batch)
        found[device, batch] = cdmpp.predict_step(workload, device=device, progress=sys.stderr.isatty(), **runtime)
    return found


def _interval_of(found: StepPrediction) -> tuple[float, float] | None:
    prediction = found.prediction
    level = prediction.shown_level
    return None if level is None else prediction.intervals[level]
