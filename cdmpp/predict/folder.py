"""Programs on disk: a TVMScript file, stored ASTs, one of our data sets, or a MetaSchedule tuning database."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from cdmpp.ast.layout import EXTRACTOR_VERSION
from cdmpp.ast.table import AstTable, read_asts
from cdmpp.data.derive import (
    LIMIT_S,
    Source,
    Wanted,
    chunk_paths,
    cores,
    derive,
    derived_folder,
    failures,
    has_tvm,
)
from cdmpp.data.derive_process import give_back, take_worker
from cdmpp.errors import CdmppError, DataError, UnsupportedProgramError
from cdmpp.machine_code.code_vector import CODE_VERSION, CODE_WIDTH
from cdmpp.predict.inputs import Inputs, Wishes


def read_path(path: Path, wishes: Wishes) -> Inputs:
    """Compact ASTs and a label for each.

    A data set gives its programs of the device by record id (of all devices where it has none of this one), a
    database its lines in file order, whether or not they were measured, a TVMScript file its functions, a Parquet
    file its stored ASTs. CPU programs without a code vector are compiled where that is wished and TVM is here.

    Raises:
        CdmppError: nothing of these is there, vectors of another kind than wished, or no program that can be read.
    """
    if path.suffix == ".parquet":
        return _parquet(path, wishes)
    if (path / "dataset.json").is_file():
        return _data_set(path, wishes)
    if wishes.features != "cdmpp":
        raise DataError(
            f"{path} is no data set; this model reads {wishes.features} vectors, which come from files only"
        )
    if not has_tvm():
        what = "TVMScript" if path.suffix == ".py" else "a tuning database"
        raise CdmppError(f"reading {what} needs TVM: pip install 'cdmpp[tvm]'")
    return _script(path, wishes) if path.suffix == ".py" else _database(path, wishes)


def _parquet(path: Path, wishes: Wishes) -> Inputs:
    ids, table = read_asts(path, wishes.features)
    inputs, folder = Inputs(table, tuple(ids)), path.resolve().parent.parent
    if path.resolve().parent.name == "asts" and (folder / "dataset.json").is_file():
        return _with_codes_of(folder, inputs, wishes)
    return inputs


def _data_set(folder: Path, wishes: Wishes) -> Inputs:
    from cdmpp.data.loading import load_dataset
    from cdmpp.data.records import count_records

    device = wishes.device.name
    dataset = load_dataset(folder, device if device in count_records(folder) else None, workers=cores())
    if dataset.features != wishes.features:
        raise DataError(f"{folder} holds {dataset.features} vectors, this model reads {wishes.features}")
    inputs = Inputs(dataset.asts, tuple(str(identity) for identity in dataset.record_ids))
    return _with_codes_of(folder, inputs, wishes)


def _with_codes_of(folder: Path, inputs: Inputs, wishes: Wishes) -> Inputs:
    """``inputs``, named by records of data set ``folder``, with their code vectors: stored ones, else compiled."""
    from cdmpp.data.codes import codes_for, complete_codes
    from cdmpp.data.records import read_records, read_tasks

    lacking = set(np.asarray(inputs.labels, object)[np.isnan(inputs.asts.codes_or_nan()[:, 0])].tolist())
    if not wishes.compiled or not lacking:
        return inputs
    tasks = read_tasks(folder)
    records = [r for r in read_records(folder, None, "skip") if r.record_id in lacking and r.task_id in tasks]
    if has_tvm():
        codes, why = complete_codes(folder, records, tasks, cores(), True, wishes.limit_s)
    else:
        codes, why = codes_for(folder, records, tasks), {}
    found = {} if codes is None else dict(zip([r.record_id for r in records], codes, strict=True))
    missing = np.full(CODE_WIDTH, np.nan, np.float32)
    rows = np.stack([found.get(label, missing) for label in inputs.labels])
    reasons = {i: why[label] for i, label in enumerate(inputs.labels) if label in why}
    return inputs.with_codes(rows if found else None, reasons)


def _script(path: Path, wishes: Wishes) -> Inputs:
    """Parsed, lowered and compiled in child processes: this one never imports TVM."""
    request = {"kind": "script", "path": str(path.resolve()), "target": dict(wishes.device.target)}
    worker, stop = take_worker(), threading.Event()
    limit_s = max(wishes.limit_s, LIMIT_S)  # for all programs of the file
    answer = next(worker.answers(request, stop, limit_s), None)
    if answer is None:
        reason, _ = worker.fault("reading", limit_s)
        worker.close()
        raise UnsupportedProgramError(f"{path} cannot be read: {reason}")
    give_back(worker)
    if "refused" in answer:
        raise UnsupportedProgramError(answer["refused"].replace(request["path"], str(path)))
    names, target = tuple(name for name, _ in answer["programs"]), answer["target"]
    sources = [Source(str(i), graph, "", target, graph=True) for i, (_, graph) in enumerate(answer["programs"])]
    with tempfile.TemporaryDirectory(prefix="cdmpp-") as scratch:
        read = _Derived.of(sources, wishes, path.name, (Path(scratch) / "asts", Path(scratch) / "codes"))
    for source, name in zip(sources, names, strict=True):
        if source.key not in read.stored:
            raise UnsupportedProgramError(f"{path}: {name}: {read.faults.get(source.key, 'no AST was derived')}")
    return read.inputs(sources, names)


def _database(folder: Path, wishes: Wishes) -> Inputs:
    import tvm

    from cdmpp.data.targets import disagreement
    from cdmpp.programs.database import BadLine, is_database, read_lines, read_workloads

    if not is_database(folder):
        raise DataError(f"{folder} is neither a data set (dataset.json) nor a MetaSchedule database (two JSON files)")
    if sum(path.stat().st_size for path in folder.glob("database_*")) > _LARGE:
        print(f"reading {folder}", file=sys.stderr, flush=True)
    workloads = read_workloads(folder)
    graphs = ["" if isinstance(module, BadLine) else tvm.ir.save_json(module) for module in workloads]
    sources: list[Source] = []
    labels: list[str] = []
    refused: list[str] = []
    wrong: dict[str, str] = {}
    for line in read_lines(folder):
        if isinstance(line, BadLine):
            refused.append(f"line {line}")
            continue
        if line.target not in wrong:
            wrong[line.target] = disagreement(wishes.device, line.target)
        reason = wrong[line.target]
        if not 0 <= line.workload < len(workloads):
            reason = f"workload {line.workload} does not exist, the database has {len(workloads)}"
        elif isinstance(bad := workloads[line.workload], BadLine):
            reason = f"its workload, line {bad}"
        if reason:
            refused.append(f"line {line.number}: {reason}")
            continue
        graph = graphs[line.workload]
        key = hashlib.sha256("\0".join((graph, line.schedule, line.target)).encode()).hexdigest()[:32]
        sources.append(Source(key, graph, line.schedule, line.target, graph=True))
        labels.append(f"line {line.number}")
    places = [derived_folder(kind, version, *graphs) for kind, version in _VERSIONS.items()]
    read = _Derived.of(sources, wishes, f"programs of {folder.name}", (places[0], places[1]))
    for source, label in zip(sources, labels, strict=True):
        if source.key not in read.stored:
            refused.append(f"{label}: {read.faults.get(source.key, 'no AST was derived')}")
    kept = [(s, label) for s, label in zip(sources, labels, strict=True) if s.key in read.stored]
    if not kept:
        raise DataError(f"{folder} has no line that can be predicted: {'; '.join(refused[:3]) or 'it is empty'}")
    inputs = read.inputs([source for source, _ in kept], tuple(label for _, label in kept))
    return Inputs(inputs.asts, inputs.labels, tuple(refused), inputs.reasons)


_LARGE = 4_000_000
"""Bytes of a database that takes some seconds to read."""
_VERSIONS = {"asts": EXTRACTOR_VERSION, "codes": CODE_VERSION}


class _Derived:
    """ASTs and code vectors of sources by key, and why some have none."""

    def __init__(
        self,
        stored: Mapping[str, tuple[AstTable, int]],
        codes: Mapping[str, np.ndarray],
        faults: Mapping[str, str],
        code_faults: Mapping[str, str],
    ) -> None:
        self.stored, self.codes, self.faults, self.code_faults = stored, codes, faults, code_faults

    @staticmethod
    def of(sources: Sequence[Source], wishes: Wishes, title: str, folders: tuple[Path, Path]) -> _Derived:
        """Read from chunk files in ``folders`` (of ASTs, of codes) after deriving what they lack."""
        from cdmpp.data.codes import cached_codes
        from cdmpp.data.loading import stored_asts

        unique = list({source.key: source for source in sources}.values())
        keys = {source.key for source in unique}
        compiled = [s for s in unique if '"llvm"' in s.target] if wishes.compiled else []
        have = {*stored_asts(chunk_paths(folders[0]), keys, cached=True), *failures(folders[0])}
        coded = {*cached_codes(folders[1]), *failures(folders[1])} if compiled else set()
        wanted = [
            Wanted("asts", folders[0], [s for s in unique if s.key not in have]),
            Wanted("codes", folders[1], [s for s in compiled if s.key not in coded]),
        ]
        for_now = derive(wanted, cores(), True, title, wishes.limit_s)
        return _Derived(
            stored_asts(chunk_paths(folders[0]), keys, cached=True),
            cached_codes(folders[1]) if compiled else {},
            {**failures(folders[0]), **for_now["asts"]},
            {**failures(folders[1]), **for_now["codes"]},
        )

    def inputs(self, sources: Sequence[Source], labels: tuple[str, ...]) -> Inputs:
        from cdmpp.data.loading import gathered

        keys = [source.key for source in sources]
        missing = np.full(CODE_WIDTH, np.nan, np.float32)
        codes = np.stack([self.codes.get(key, missing) for key in keys]) if self.codes else None
        reasons = {i: self.code_faults[key] for i, key in enumerate(keys) if key in self.code_faults}
        return Inputs(gathered(self.stored, keys), labels).with_codes(codes, reasons)
