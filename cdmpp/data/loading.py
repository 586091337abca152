"""Data set folders -> LatencyDataset: labels in memory, ASTs in mapped files; TVM derives those that are missing."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from cdmpp import devices
from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.layout import EAGER_FEATURES, EXTRACTOR_VERSION, FEATURES
from cdmpp.ast.mapped_table import MappedTableWriter, mapped
from cdmpp.ast.table import AstTable, read_asts
from cdmpp.data.codes import codes_of
from cdmpp.data.dataset import LatencyDataset, join_tasks, one_kind
from cdmpp.data.derive import data_set_folder, derive, read_chunks, sources_of
from cdmpp.data.labels import Labels, read_labels
from cdmpp.data.records import each_row, read_info, read_tasks
from cdmpp.data.schema import Record
from cdmpp.data.shared_asts import shared_asts
from cdmpp.errors import DataError
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.operator_vector import operator_program
from cdmpp.platform.cache import working_files
from cdmpp.platform.paths import cache_root
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)

MAX_FAILED = 0.05
"""A larger share of programs without an AST is a fault of the data or of this version, not of single programs."""
_PORTION = 8192  # programs that are held at a time


def load_dataset(folder: Path, device: str | None = None, workers: int = 2, progress: bool = True) -> LatencyDataset:
    """Load one data set folder as ``load_programs`` does."""
    return load_programs([folder], device, workers, progress)


def load_programs(
    folders: Sequence[Path], device: str | None = None, workers: int = 2, progress: bool = True
) -> LatencyDataset:
    """Load the labelled programs of folders, those of ``device`` where given, in the order they were written.

    A program that several folders hold becomes one, its samples united. ASTs come from ``asts/``, of this data set or
    of the one that is named there, or from the cache. TVM derives missing ones (about 30 a second and process) in
    chunks, so that a killed run continues. Memory holds some ten bytes a program; labels, ASTs and code vectors are in
    files below the cache, deleted with the data set.

    Raises:
        DataError: no record of the device, broken rows, or many programs without an AST.
    """
    sets = [_DataSet.open(Path(folder), device, workers, progress) for folder in folders]
    features = one_kind(one.features for one in sets)
    labels = read_labels([one.folder for one in sets], [one.tasks for one in sets], device)
    with working_files():
        asts, kept = _gather(sets, labels, features)
    used = set(np.unique(labels.task_ids).tolist())
    tasks = {key: task for key, task in join_tasks([one.tasks for one in sets]).items() if key in used}
    own = labels if len(kept) == len(labels) else labels.take(kept)
    del labels
    return LatencyDataset(
        **{name: mapped(getattr(own, name), cache_root() / "mapped") for name in Labels.__dataclass_fields__},
        asts=asts,
        tasks=tasks,
        source=", ".join(map(str, folders)),
        features=features,
    )


def ast_cache(folder: Path) -> Path:
    """Return the cache folder of a data set's ASTs."""
    return data_set_folder("asts", EXTRACTOR_VERSION, folder)


def stored_asts(cache: Path, wanted: set[str]) -> dict[str, CompactAST]:
    """Read the ``wanted`` ASTs that the chunk files of a cache folder hold, by key."""
    chunks = read_chunks(cache, read_asts)
    return {name: table[row] for names, table in chunks for row, name in enumerate(names) if name in wanted}


@dataclass
class _DataSet:
    """One folder while it is loaded."""

    folder: Path
    tasks: dict[str, Task]
    features: str
    device: str | None
    workers: int
    progress: bool
    reasons: dict[str, str] = field(default_factory=dict)  # record id -> why it has none

    @staticmethod
    def open(folder: Path, device: str | None, workers: int, progress: bool) -> _DataSet:
        info = read_info(folder)
        if info.get("complete") is False:
            log.warning("%s is the beginning of an import that did not end: run the import again", folder)
        features = str(info.get("features", "cdmpp"))
        if features not in FEATURES:
            raise DataError(f"a data set with features {features!r}: this cdmpp knows {', '.join(FEATURES)}")
        return _DataSet(folder, read_tasks(folder), features, device, workers, progress)

    def stored(self, labels: Labels, taken: np.ndarray) -> Iterator[tuple[AstTable, np.ndarray]]:
        """Yield (ASTs, their places in ``labels``) of each file, and set ``taken``. What is missing is derived."""
        for path in sorted((self.folder / "asts").glob("part-*.parquet")):
            try:
                names, table = read_asts(path, self.features)
            except DataError as error:  # of another extractor, or damaged
                log.warning("%s", error)
                continue
            yield from _fresh(table, labels.places(names), taken)
        if self.features == EAGER_FEATURES:
            yield from self._operators(labels, taken)
        if self.features == "cdmpp" and not taken.all():
            try:
                for names, table in shared_asts(self.folder):
                    yield from _fresh(table, labels.places(names), taken)
            except DataError as error:
                log.warning("%s", error)
        if self.features != "cdmpp" or taken.all():
            return
        for attempt in range(2):
            for names, table in read_chunks(ast_cache(self.folder), read_asts):
                yield from _fresh(table, labels.places_of_keys(names, self.tasks), taken)
            if attempt == 0 and not taken.all():
                self._derive_missing(labels, taken)

    def _operators(self, labels: Labels, taken: np.ndarray) -> Iterator[tuple[AstTable, np.ndarray]]:
        """Operators say all that their ASTs hold: they are made as they are read."""
        missing = [i for i in np.flatnonzero(~taken).tolist() if labels.task_ids[i] in self.tasks]
        kinds = {name: devices.get(str(name)).kind for name in np.unique(labels.devices[missing])} if missing else {}
        missing.sort(key=lambda place: str(labels.task_ids[place]))  # of devices that ran the same, side by side
        for start in range(0, len(missing), _PORTION):
            places = np.array(missing[start : start + _PORTION])
            wanted = [(key, kinds[n]) for key, n in zip(labels.task_ids[places], labels.devices[places], strict=True)]
            made = {
                (key, kind): operator_program(EagerOperator.from_json(self.tasks[key].op_name), kind)
                for key, kind in dict.fromkeys(wanted)
            }
            yield from _fresh(AstTable.from_asts([made[one] for one in wanted]), places, taken)

    def _derive_missing(self, labels: Labels, taken: np.ndarray) -> None:
        missing = self._missing(labels, taken)
        folder, title = ast_cache(self.folder), f"compact ASTs of {self.folder.name}"
        while records := list(islice(missing, _PORTION)):
            sources = sources_of(records, self.tasks)
            failed = derive({"asts": (folder, sources)}, self.workers, self.progress, title)["asts"]
            for record, source in zip(records, sources, strict=True):
                line = f"line {record.extra['line']} of its database: " if "line" in record.extra else ""
                if source.key in failed:
                    self.reasons[record.record_id] = line + failed[source.key]

    def _missing(self, labels: Labels, taken: np.ndarray) -> Iterator[Record]:
        """Each record without an AST once."""
        asked = taken.copy()
        for record in each_row(self.folder, self.device, "skip"):
            (place,) = labels.places([record.record_id])
            if place >= 0 and not asked[place]:
                asked[place] = True
                yield record


def _gather(sets: Sequence[_DataSet], labels: Labels, features: str) -> tuple[AstTable, np.ndarray]:
    """The ASTs that can be had, and their places in ``labels``, which rise."""
    writer, order = MappedTableWriter(cache_root() / "mapped"), [np.zeros(0, np.int64)]
    codes = None
    if features == "cdmpp":
        codes = codes_of([(one.folder, one.tasks) for one in sets], labels, Path(writer.folder.name))
    taken = np.zeros(len(labels), bool)
    for one in sets:
        for table, places in one.stored(labels, taken):
            if features == "cdmpp":
                table = table.with_codes(None if codes is None else codes[places])
            writer.append(table)
            order.append(places)
    _check_complete(sets, labels, taken)
    rows = np.concatenate(order)
    return _in_order(writer.finish(), np.argsort(rows)), np.sort(rows)


def _fresh(table: AstTable, places: np.ndarray, taken: np.ndarray) -> Iterator[tuple[AstTable, np.ndarray]]:
    """The programs of ``table`` whose ``places`` are not ``taken`` yet, each once."""
    rows = np.flatnonzero((places >= 0) & ~taken[places])
    rows = rows[np.sort(np.unique(places[rows], return_index=True)[1])]
    if len(rows):
        taken[places[rows]] = True
        yield table.take(rows), places[rows]


def _in_order(table: AstTable, rows: np.ndarray) -> AstTable:
    """``table`` by ``rows``, again in mapped files."""
    if np.array_equal(rows, np.arange(len(table))):
        return table
    writer = MappedTableWriter(cache_root() / "mapped")
    for start in range(0, len(rows), _PORTION):
        writer.append(table.take(rows[start : start + _PORTION]))
    return writer.finish()


def _check_complete(sets: Sequence[_DataSet], labels: Labels, taken: np.ndarray) -> None:
    """Log the programs without an AST; ``DataError`` where they are many, or came with the data and are gone."""
    if taken.all():
        return
    first = str(labels.record_ids[~taken][0])
    where = ", ".join(str(one.folder) for one in sets)
    if sets[0].features != "cdmpp":  # imported as they are: nothing here could derive them
        raise DataError(f"{where} lacks the {sets[0].features} vectors of {np.sum(~taken)} programs: import it again")
    reasons = {i: reason for one in sets for i, reason in one.reasons.items()}
    text = (
        f"{where}: no compact AST for {np.sum(~taken)} of {len(taken)} records, first record {first}: "
        f"{reasons.get(first, 'no AST was derived')}"
    )
    if np.mean(~taken) > MAX_FAILED:
        raise DataError(text)
    log.warning("%s; they are left out", text)
