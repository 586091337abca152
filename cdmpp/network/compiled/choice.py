"""The program that runs each task of a network, and its seconds when it runs alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from cdmpp.ast.layout import EXTRACTOR_VERSION
from cdmpp.ast.quantities import unrolled_steps
from cdmpp.ast.table import AstTable
from cdmpp.data.codes import VERSIONS, cached_codes
from cdmpp.data.derive import Source, core_key_of, derive, derived_folder
from cdmpp.devices import Device
from cdmpp.errors import DataError
from cdmpp.machine_code.cpu.compile import LIMIT_S
from cdmpp.network.compiled.candidates import Candidates, candidates_of
from cdmpp.network.compiled.rule import ScheduleRule
from cdmpp.network.network_key import toolchain
from cdmpp.network.prediction import Bounds
from cdmpp.platform.cache import bring, cached_json, keep_json
from cdmpp.platform.cores import cores
from cdmpp.predict.flags import NO_MACHINE_CODE
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.stored_config import CONFIG, WEIGHTS
from cdmpp.programs.task import Task

MOST_STEPS = 1000
"""Statements after unrolling: longer programs, one in a hundred, take seconds to compile, a few minutes. Without them
the best measured program of a task takes 0.1 to 0.5 % longer on average. They come last."""
_PATIENCE_S = 10.0
"""Longest seconds for compiling one candidate of a task. The median takes 0.2 s, one in a hundred more than 4."""
_SURE = 0.7
"""Compiling more finds little: the rest of the chance is spread over many programs, most of them nearly as good."""


@dataclass(frozen=True)
class Chosen:
    """This program of a task was chosen, and the model says this of it."""

    schedule: str
    """Trace as JSON, or TVMScript of the scheduled program."""
    latency_s: float
    """Alone, its data in cache."""
    intervals: Bounds
    flags: tuple[str, ...]
    candidates: int
    """Among how many it was chosen."""


class Chooser:
    """A chooser asks one model for one device, and remembers: a task that it answered before comes from the cache."""

    def __init__(self, predictor: Predictor, folder: Path, device: Device, rule: ScheduleRule, seed: int = 0) -> None:
        """``folder``: of the predictor, whose files name its answers in the cache; intervals follow from both."""
        self.predictor, self.device, self.rule, self.seed = predictor, device, rule, seed
        sheet = json.dumps([device.name, device.target, core_key_of(device), dict(device.spec)], sort_keys=True)
        files = b"".join((folder / name).read_bytes() for name in (CONFIG, WEIGHTS))
        self.key = (sheet, hashlib.sha256(files).hexdigest(), str(rule), str(seed))
        self.warnings: tuple[str, ...] = ()

    def choose(self, tasks: Mapping[str, Task], progress: bool = True) -> dict[str, Chosen]:
        """Choose the program of each task, by id.

        Raises:
            CdmppError: a task of which no program can be made, or a database that cannot be read.
        """
        if self.rule.kind == "database":
            return self._of_database(tasks, progress)
        chosen = {task_id: found for task_id, task in tasks.items() if (found := self._remembered(task)) is not None}
        # Sorted: the last digits of an answer depend on its neighbours, and a stored graph has another order of tasks.
        if missing := {task_id: tasks[task_id] for task_id in sorted(tasks) if task_id not in chosen}:
            sampled = candidates_of(missing, self.device, self.rule.n, self.seed, progress)
            new = self._best(missing, sampled, progress)
            for task_id, one in new.items():
                if NO_MACHINE_CODE in one.flags and self.predictor.reads_code:
                    continue  # on a quieter machine the compiler may end in time
                keep_json(self._path(missing[task_id]), {**asdict(one), "intervals": _texts(one.intervals)})
            chosen |= new
        return {task_id: chosen[task_id] for task_id in tasks}

    def value(
        self, tasks: Mapping[str, Task], schedules: Mapping[str, str], progress: bool = True
    ) -> dict[str, Chosen]:
        """Return answers of the model for given schedules, one a task. ``DataError`` names what cannot be read."""
        return self._best(tasks, self._lowered(tasks, schedules, progress), progress)

    def _of_database(self, tasks: Mapping[str, Task], progress: bool) -> dict[str, Chosen]:
        from cdmpp.network.compiled.tuned import best_schedules

        assert self.rule.folder is not None
        recorded = best_schedules(self.rule.folder, set(tasks), self.device)
        untuned = {task_id: task for task_id, task in tasks.items() if task_id not in recorded}
        default = candidates_of(untuned, self.device, 0, self.seed, progress)
        schedules = {task_id: recorded.get(task_id) or default[task_id].schedules[0] for task_id in tasks}
        if untuned:
            names = ", ".join(sorted({task.op_name for task in untuned.values()})[:5])
            self.warnings = (
                f"{len(untuned)} of {len(tasks)} kernels are not in {self.rule.folder} and run as TVM would run them "
                f"untuned, among them {names}",
            )
        return self.value(tasks, schedules, progress)

    def _lowered(
        self, tasks: Mapping[str, Task], schedules: Mapping[str, str], progress: bool
    ) -> dict[str, Candidates]:
        from cdmpp.data.loading import stored_asts

        sources = {task_id: self._source(tasks[task_id], schedules[task_id]) for task_id in tasks}
        folder = derived_folder(
            "candidates", f"{EXTRACTOR_VERSION}-{toolchain()}", "database", json.dumps(self.device.target)
        )
        keys = {source.key for source in sources.values()}
        done = stored_asts(folder, keys)
        wanted = [source for source in sources.values() if source.key not in done]
        faults = derive({"asts": (folder, wanted)}, cores(), progress, "reading kernels")["asts"]
        stored = stored_asts(folder, keys)
        if lacking := [task_id for task_id, source in sources.items() if source.key not in stored]:
            reason = faults.get(sources[lacking[0]].key, "no reason is known")
            raise DataError(f"{len(lacking)} kernels cannot be read, {tasks[lacking[0]].op_name}: {reason}")
        tables = {task_id: AstTable.from_asts([stored[source.key]]) for task_id, source in sources.items()}
        return {task_id: Candidates((schedules[task_id],), table) for task_id, table in tables.items()}

    def shortlist(
        self, tasks: Mapping[str, Task], each: Mapping[str, int], progress: bool = True
    ) -> dict[str, list[Chosen]]:
        """Return the most promising sampled programs of each task, best first, at most ``each`` by task id.

        Twice as many are compiled to be read. ``CdmppError``: a task of which no program can be made.
        """
        sampled = candidates_of(tasks, self.device, self.rule.n, self.seed, progress)
        precise = {key: max(self.rule.precise, 2 * each[key]) for key in tasks}
        found = self._in_order(tasks, sampled, precise, progress, surely=True)
        return {key: found[key][: each[key]] for key in tasks}

    def _best(self, tasks: Mapping[str, Task], sampled: Mapping[str, Candidates], progress: bool) -> dict[str, Chosen]:
        precise = dict.fromkeys(tasks, self.rule.precise)
        return {key: found[0] for key, found in self._in_order(tasks, sampled, precise, progress).items()}

    def _in_order(
        self,
        tasks: Mapping[str, Task],
        sampled: Mapping[str, Candidates],
        precise: Mapping[str, int],
        progress: bool,
        surely: bool = False,
    ) -> dict[str, list[Chosen]]:
        """Programs by predicted latency: of the likeliest by their ASTs by machine code, where the model reads that.

        ``precise``: how many of a task are compiled at most, or, ``surely``, as many as there are.
        """
        names = list(tasks)
        places = [np.arange(len(sampled[name].schedules)) for name in names]
        if not (self.predictor.reads_code and self.device.kind == "cpu"):
            return self._sorted(tasks, sampled, places, AstTable.concat([sampled[name].asts for name in names]))
        if several := [name for name in names if len(sampled[name].schedules) > 1]:
            together = AstTable.concat([sampled[name].asts for name in several])
            owners = [name for name in several for _ in sampled[name].schedules]
            chances = self.predictor.chances(together, self.device, owners)
            chances = np.where(unrolled_steps(together) > MOST_STEPS, 0.0, chances)
            ends = np.cumsum([len(sampled[name].schedules) for name in several])
            for name, own in zip(several, np.split(chances, ends[:-1]), strict=True):
                places[names.index(name)] = worth_compiling(own, precise[name], surely)
        tables = [sampled[name].asts.take(kept) for name, kept in zip(names, places, strict=True)]
        sources = [
            self._source(tasks[name], sampled[name].schedules[i])
            for name, kept in zip(names, places, strict=True)
            for i in kept
        ]
        # A single program has no rival: it is worth all the time that a record may take.
        limit_s = _PATIENCE_S if any(len(kept) > 1 for kept in places) else LIMIT_S
        table = self._with_codes(AstTable.concat(tables), sources, progress, limit_s)
        return self._sorted(tasks, sampled, places, table)

    def _sorted(
        self,
        tasks: Mapping[str, Task],
        sampled: Mapping[str, Candidates],
        places: Sequence[np.ndarray],
        table: AstTable,
    ) -> dict[str, list[Chosen]]:
        answer = self.predictor.predict(table, self.device)
        late, found, start = np.isnan(table.codes_or_nan()[:, 0]), {}, 0
        for name, kept in zip(tasks, places, strict=True):
            own = np.arange(start, start + len(kept))
            start += len(kept)
            schedules = sampled[name].schedules
            found[name] = [
                Chosen(
                    schedules[kept[i - own[0]]],
                    float(answer.latency_s[i]),
                    answer.interval(i),
                    answer.flags[i],
                    len(schedules),
                )
                # What took too long to compile comes last.
                for i in own[np.lexsort((answer.latency_s[own], late[own]))]
            ]
        return found

    def _with_codes(self, table: AstTable, sources: Sequence[Source], progress: bool, limit_s: float) -> AstTable:
        from cdmpp.predict.program_batch import ProgramBatch

        bring(folder := codes_folder(self.device))
        present = cached_codes(folder)
        missing = {source.key: source for source in sources if source.key not in present}
        derive({"codes": (folder, list(missing.values()))}, cores(), progress, "compiling", limit_s)
        keys = [source.key for source in sources]
        batch = ProgramBatch(table, tuple(keys)).with_codes(cached_codes(folder), {}, keys)
        return batch.asts

    def _source(self, task: Task, schedule: str) -> Source:
        target = json.dumps(self.device.target)
        key = program_key(task.workload, schedule)
        return Source(key, task.workload, schedule, target, core=self.device.core or "")

    def _path(self, task: Task) -> Path:
        versions = f"{EXTRACTOR_VERSION}-{VERSIONS['codes']}-{toolchain()}"
        return derived_folder("chosen", versions, task.workload, *self.key) / "chosen.json"

    def _remembered(self, task: Task) -> Chosen | None:
        try:
            stored = cached_json(self._path(task))
            intervals = {float(level): (low, high) for level, (low, high) in stored.pop("intervals").items()}
            return Chosen(**{**stored, "intervals": intervals, "flags": tuple(stored["flags"])})
        except (DataError, TypeError, ValueError, KeyError, AttributeError):
            return None


def codes_folder(device: Device) -> Path:
    """Return the folder of the cache with code vectors of candidates for a device, by ``program_key``."""
    version = f"{VERSIONS['codes']}-{toolchain()}"
    return derived_folder("codes", version, "candidates", json.dumps(device.target), core_key_of(device))


def program_key(workload: str, schedule: str) -> str:
    """Name a scheduled program by its texts."""
    return hashlib.sha256("\0".join([workload, schedule]).encode()).hexdigest()[:24]


def worth_compiling(chances: np.ndarray, most: int, surely: bool = False) -> np.ndarray:
    """Return the places of the likeliest programs of a task, until the best is among them with chance ``_SURE``.

    ``surely``: ``most`` of them whatever their chance.
    """
    order = np.argsort(-chances, kind="stable")
    enough = most if surely else 1 + int(np.searchsorted(np.cumsum(chances[order]), _SURE))
    return np.sort(order[: min(enough, most)])


def _texts(intervals: Bounds) -> dict[str, list[float]]:
    return {str(level): list(bounds) for level, bounds in intervals.items()}
