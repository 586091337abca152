"""Partitions: ``cdmpp plan NET --strategies partition`` cuts a network over devices that may differ."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cdmpp.cli.output import check_output, say, show
from cdmpp.cli.step import checked_runtime
from cdmpp.cli.table import is_table
from cdmpp.errors import UsageError
from cdmpp.platform.limits import text
from cdmpp.units import percent, quantity

if TYPE_CHECKING:
    from cdmpp.collectives.interconnect import AlphaBeta
    from cdmpp.devices import Device
    from cdmpp.partition.layer_times import LayerTimes
    from cdmpp.partition.question import PartitionQuestion
    from cdmpp.plans.sources.source import RankWork, StepSource
    from cdmpp.steps.schedule import Schedule
    from cdmpp.synchrony.worker_file import WorkerSheet

Source = Callable[[argparse.Namespace, "Device"], "StepSource"]
NAME = "partition"
BATCH_PER_DEVICE = 32
"""Examples of a step for each device where nobody says how many."""
MICRO_BATCHES_PER_DEVICE = 4
"""Micro-batches of a step for each device, at most, where nobody says how many."""
_LINKS = {"gpu": "pcie4", "cpu": "ethernet-10g"}
"""Link where nobody names one."""
_CURVED = 0.1
"""Part by which a message of a table may be off the line through it before that is said."""
_ONLY = ("stage_replicas", "keep_tied")
_OTHERS = (
    "strategy", "plan", "price", "explain", "scaling", "calibrate", "accumulate_steps",
    "input_samples_per_s", "straggler", "ring_steps", "machines", "even_shares",
    "torch",
)  # fmt: skip
"""Options of other searches."""


def add_partition_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the devices of a partition, and what may be done with them."""
    group = verb.add_argument_group("devices that may differ")
    many = (
        "devices in place of --device and --gpus, with counts, such as t4:8,a10:8; for --strategies partition also "
        "files of workers as `cdmpp synchrony --workers` reads them"
    )
    group.add_argument("--devices", type=text, metavar="A:8,B:8", help=many)
    even = "replicas on unlike devices have equal shares of the batch, as Megatron and torchtitan give them"
    group.add_argument("--even-shares", action="store_true", help=even)
    group.add_argument("--stage-replicas", action="store_true", help="with partition: equal devices may share a stage")
    tied = "with partition: layers that share a parameter stay on one stage; else each stage that has some holds a copy"
    group.add_argument("--keep-tied", action="store_true", help=tied)


def is_partition(options: argparse.Namespace) -> bool:
    """Return True if a partition is asked for; ``UsageError`` for options of it without it, or with other ways."""
    names = [one.strip() for one in (options.strategies or "").split(",")]
    if NAME in names:
        if len(names) > 1:
            raise UsageError(
                f"--strategies {options.strategies}: partition is searched by itself, since its devices may differ; "
                "give partition alone, and the others in a second command"
            )
        return True
    if options.even_shares and options.devices is None:
        raise UsageError("--even-shares goes with --devices: replicas on equal devices have equal shares")
    if given := [name for name in _ONLY if getattr(options, name)]:
        raise UsageError(f"--{given[0].replace('_', '-')} goes with --strategies partition")
    return False


def partition(options: argparse.Namespace, source_of: Source) -> None:
    """Cut the network for the devices, and show what each schedule makes of it."""
    if given := [name for name in _OTHERS if getattr(options, name)]:
        raise UsageError(f"--{given[0].replace('_', '-')} does not go with --strategies partition: leave it out")
    if options.runtime != "torch":
        raise UsageError(f"--strategies partition is of --runtime torch, given {options.runtime}")
    checked_runtime(options)
    names = (one.strip().partition(":")[0] for one in (options.devices or "").split(","))
    reads = [path for name in names if (path := _file(name)) is not None]
    check_output(options, options.save_plan, reads=reads)
    question = _Asked(options, source_of).question()
    from cdmpp.partition.question import answer
    from cdmpp.report.partition import partition_report

    found = answer(question)
    show({"": partition_report(found)}, options)
    if options.save_plan is not None:
        from cdmpp.partition.plan_file import PartitionPlan, save_partition

        save_partition(PartitionPlan.of(found.best, question.micro_batch), options.save_plan)
        say(f"wrote {options.save_plan}")


class _Asked:
    def __init__(self, options: argparse.Namespace, source_of: Source) -> None:
        from cdmpp import devices

        self.options, self.source_of = options, source_of
        self.sheets = self._sheets()
        names = dict.fromkeys([options.device, *(sheet.device for sheet in self.sheets.values())])
        self.known = {name: devices.get(name) for name in names if name is not None}
        self.warnings = list[str]()

    def _sheets(self) -> dict[int, WorkerSheet]:
        """Number of a device -> what is known of it."""
        from cdmpp.synchrony.worker_file import WorkerSheet, read_worker

        options = self.options
        if options.devices is None:
            if options.device is None or options.ranks is None:
                raise UsageError(
                    "--strategies partition needs devices: give --device and --gpus, or --devices, such as "
                    "--devices t4,worker.yaml"
                )
            return {number: WorkerSheet(1, options.device) for number in range(options.ranks)}
        if options.ranks is not None:
            raise UsageError("--devices and --gpus: give each device by name, or one --device and how many")
        names = self._given
        files = {name: path for name in names if (path := _file(name)) is not None}
        read = {name: read_worker(path) for name, path in files.items()}
        return {number: read.get(name) or WorkerSheet(1, name) for number, name in enumerate(names)}

    @property
    def _given(self) -> list[str]:
        """Each device of ``--devices``, as often as its count says; ``UsageError`` where it is no such list."""
        from cdmpp.plans.plan import from_runs

        given = (self.options.devices or "").split(",")
        if not all(one.strip() for one in given) and self.options.devices is not None:
            raise UsageError(f"--devices {self.options.devices!r}: expected names with a comma between two")
        return [] if self.options.devices is None else list(from_runs("--devices", given))

    def question(self) -> PartitionQuestion:
        from cdmpp.partition.graph import PartitionGraph
        from cdmpp.partition.layer_times import LayerTimes
        from cdmpp.partition.question import PartitionQuestion

        schedules, link = self._schedules(), self._link()
        micro_batch, many = self._batches()
        works = self._works(micro_batch)
        base, first = next(iter(works)), next(iter(works.values()))
        size = 0 if first.memory is None else first.memory.input_bytes
        graph = PartitionGraph.of(first.rank, size)
        times = {name: LayerTimes.of(work.rank) for name, work in works.items()}
        made = tuple(
            self._times(sheet, times, base).device(
                self._names[number], sheet.link or link, self._memory_bytes(sheet, number), self._copies(sheet)
            )
            for number, sheet in self.sheets.items()
        )
        self._check_same(works, graph, base)
        states = 2.0 if first.memory is None else first.memory.state_bytes / (first.memory.gradient_bytes or 1)
        warnings = (*self.warnings, *(line for work in works.values() for line in work.warnings))
        return PartitionQuestion(
            graph, made, micro_batch, many, schedules, not self.options.no_overlap, self.options.stage_replicas,
            self.options.keep_tied, states, warnings=tuple(dict.fromkeys(warnings)),
        )  # fmt: skip

    @property
    def _names(self) -> list[str]:
        """Name of each device, numbered where several have one."""
        names = [Path(name).stem if _file(name) else name for name in self._given]
        names = names or [self.options.device] * len(self.sheets)
        return [
            f"{name} #{names[: place + 1].count(name) - 1}" if names.count(name) > 1 else name
            for place, name in enumerate(names)
        ]

    def _schedules(self) -> tuple[Schedule, ...]:
        from cdmpp.plans.schedules import SCHEDULES

        asked = self.options.pipeline_schedule
        return tuple(kind() for kind in SCHEDULES) if asked is None else (SCHEDULES[asked](),)

    def _batches(self) -> tuple[int, int]:
        """Examples of a micro-batch, and micro-batches of a step."""
        options, devices = self.options, len(self.sheets)
        if options.global_batch is not None and options.batch is not None:
            raise UsageError("--batch and --global-batch: give the examples of one device, or those of all")
        if options.global_batch is None and options.batch is None:
            told = f"{BATCH_PER_DEVICE} examples a device, {BATCH_PER_DEVICE * devices:,} in all"
            self.warnings.append(f"no batch is given: {told}")
        batch = int(options.global_batch or (options.batch or BATCH_PER_DEVICE) * devices)
        if options.micro_batches is None:
            most = min(batch, MICRO_BATCHES_PER_DEVICE * devices, 1024)
            many = next(count for count in range(most, 0, -1) if batch % count == 0)
        else:
            many = int(options.micro_batches)
        if batch % many:
            raise UsageError(f"a batch of {batch} examples does not divide into {many} equal micro-batches")
        return batch // many, many

    def _link(self) -> AlphaBeta:
        from cdmpp.collectives.interconnect import AlphaBeta
        from cdmpp.collectives.machine_link import machine_link
        from cdmpp.collectives.topology import topology_of

        options, count = self.options, len(self.sheets)
        if options.cluster is not None:
            if options.devices is not None:
                raise UsageError("--devices and --cluster: a cluster has devices of its own; give --link")
            topology = topology_of(count, options.device, options.cluster, None, options.backend, can_grow=True)
            self.warnings += topology.warnings
            if topology.nodes > 1:
                self.warnings.append(
                    f"{count} devices of {options.cluster} are on {topology.nodes} nodes: all messages are taken to go "
                    "between nodes"
                )
            return topology.wire(0, count // topology.nodes if topology.nodes > 1 else count - 1).end
        if options.link is not None:
            if options.link.endswith(".csv"):
                self._say_curve(options.link)
            return machine_link(options.link, options.backend).end
        if count == 1 or all(sheet.link is not None for sheet in self.sheets.values()):
            return AlphaBeta(0.0, 0.0)
        kinds = {device.kind for device in self.known.values()}
        name = _LINKS["gpu" if kinds == {"gpu"} else "cpu"]
        self.warnings.append(f"nothing says what joins the devices: {name} is taken; give --link or --cluster")
        return machine_link(name).end

    def _say_curve(self, table: str) -> None:
        """Say how far a table of messages is from the one start and the one rate that a partition takes of it."""
        from cdmpp.collectives.machine_link import machine_link
        from cdmpp.collectives.messages import read_messages

        timed = read_messages(table, self.options.backend or "gloo")
        line = machine_link(table, self.options.backend)
        off = [line.seconds(size) / seconds - 1 for size, seconds in zip(timed.bytes, timed.latency_s, strict=True)]
        worst = max(range(len(off)), key=lambda place: abs(off[place]))
        if abs(off[worst]) > _CURVED:
            self.warnings.append(
                f"messages are taken to have one start and one rate, and those of {table} do not: with "
                f"{quantity(float(timed.bytes[worst]), 'B')} they are off by {percent(abs(off[worst]))}"
            )

    def _works(self, micro_batch: int) -> dict[str, RankWork]:
        """The step of a micro-batch on each named device; of a table of layers on the one that was measured."""
        from cdmpp.plans.degrees import ParallelDegrees

        if is_table(self.options):
            name = self._measured_on()
            devices = [self.known[name]] if name in self.known else list(self.known.values())[:1]
            source = self.source_of(self.options, devices[0] if devices else None)  # type: ignore[arg-type]
            self._sources = {name: source}
        elif not self.known:
            raise UsageError(
                "all devices have batch_s, and nothing says how the time divides among layers: name one device that "
                "the network is predicted on, by --device or in a worker's file"
            )
        else:
            self._sources = {name: self.source_of(self.options, device) for name, device in self.known.items()}
        return {name: source.work(micro_batch, ParallelDegrees()) for name, source in self._sources.items()}

    def _measured_on(self) -> str:
        """Name of the one device of which a table of layers has the times; empty where no device is named."""
        named = dict.fromkeys(sheet.device for sheet in self.sheets.values() if sheet.device is not None)
        if self.options.device is not None:
            named = {self.options.device: None, **named}
        if len(named) > 1:
            raise UsageError(
                f"{self.options.network} was measured on one device, and {' and '.join(map(str, named))} are named: "
                "give a worker's file with batch_s for each other one"
            )
        return str(next(iter(named), ""))

    def _times(self, sheet: WorkerSheet, times: dict[str, LayerTimes], base: str) -> LayerTimes:
        from cdmpp.partition.layer_times import LayerTimes
        from cdmpp.plans.degrees import ParallelDegrees

        own = times.get(sheet.device or base, times[base])
        if sheet.batch_s is None:
            return own.scaled(1 / sheet.speed)
        whole = LayerTimes.of(self._sources[base].work(sheet.batch, ParallelDegrees()).rank)
        if not whole.step_s:
            raise UsageError(f"the layers of {self.options.network} take no time: batch_s cannot be divided among them")
        return own.scaled(sheet.batch_s / sheet.speed / whole.step_s)

    def _memory_bytes(self, sheet: WorkerSheet, number: int) -> float:
        named = self.known.get(sheet.device or "")
        sheet_gb = sheet.memory_gb or (None if named is None else named.spec["memory_gb"])
        if self.options.memory_gb is not None:
            return 1e9 * min(self.options.memory_gb, sheet.memory_gb or math.inf)
        if sheet_gb is None:
            self.warnings.append(f"nothing says how much memory {self._names[number]} has: it is no limit")
            return math.inf
        return 1e9 * sheet_gb

    def _copies(self, sheet: WorkerSheet) -> float:
        """Bytes a second that a device copies, each read and written once, by its sheet."""
        named = self.known.get(sheet.device or "")
        rate = None if named is None else named.spec["bandwidth_gbps"]
        return math.inf if rate is None else 0.5e9 * rate * sheet.speed

    def _check_same(self, works: dict[str, RankWork], graph: object, base: str) -> None:
        from cdmpp.partition.graph import PartitionGraph
        from cdmpp.partition.layer_times import check_same

        assert isinstance(graph, PartitionGraph)
        for name, work in works.items():
            check_same(graph, work.rank, name, base)


def _file(name: str) -> Path | None:
    """The worker's file of a name, with or without its ending; None: it is a device."""
    for path in (Path(name), Path(f"{name}.yaml")):
        if path.is_file() or (path.suffix in (".yaml", ".yml") and name == str(path)):
            return path
    return None
