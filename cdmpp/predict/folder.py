"""Programs on disk: a TVMScript file, stored ASTs, one of our data sets, or a MetaSchedule tuning database."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from cdmpp import devices
from cdmpp.ast.layout import EXTRACTOR_VERSION
from cdmpp.ast.table import read_asts
from cdmpp.data.codes import VERSIONS
from cdmpp.data.derive import Source, core_key_of, core_of, derived_folder, has_tvm, script_programs
from cdmpp.data.schema import Record
from cdmpp.data.targets import disagreement, retargeted
from cdmpp.devices import Device
from cdmpp.errors import CdmppError, DataError, UnsupportedProgramError
from cdmpp.machine_code.cpu.compile import LIMIT_S
from cdmpp.platform.cores import cores
from cdmpp.predict.derived import Derived
from cdmpp.predict.program_batch import ProgramBatch, ReadOptions
from cdmpp.programs.task import Task

T = TypeVar("T")
_NO_AST = "no AST was derived"


def read_path(path: Path, options: ReadOptions) -> ProgramBatch:
    """Read compact ASTs and a label for each; ``CdmppError`` where no program can be read as is wished.

    A data set gives its programs of the device by record id (of all devices where it has none of this one), a
    database its lines in file order, whether or not they were measured, a TVMScript file its functions, a Parquet
    file its stored ASTs. CPU programs without a code vector are compiled where that is wished and TVM is here.
    """
    if path.suffix == ".parquet":
        return _parquet(path, options)
    if (path / "dataset.json").is_file():
        return _data_set(path, options)
    if options.features != "cdmpp":
        raise DataError(
            f"{path} is no data set; {options.features} vectors, which this model reads, come from files only"
        )
    if not has_tvm():
        what = "TVMScript" if path.suffix == ".py" else "a tuning database"
        raise CdmppError(f"reading {what} needs TVM: pip install 'cdmpp[tvm]'")
    return _script(path, options) if path.suffix == ".py" else _database(path, options)


def _parquet(path: Path, options: ReadOptions) -> ProgramBatch:
    ids, table = read_asts(path, options.features)
    inputs, parent = ProgramBatch(table, tuple(ids)), path.resolve().parent
    in_data_set = parent.name == "asts" and (parent.parent / "dataset.json").is_file()
    return _with_codes_of(parent.parent, inputs, options) if in_data_set else inputs


def _data_set(folder: Path, options: ReadOptions) -> ProgramBatch:
    from cdmpp.data.loading import load_dataset
    from cdmpp.data.records import count_records

    device = options.device.name
    dataset = load_dataset(folder, device if device in count_records(folder) else None, workers=cores())
    if dataset.features != options.features:
        raise DataError(f"{folder} holds {dataset.features} vectors, this model reads {options.features}")
    inputs = ProgramBatch(dataset.asts, tuple(str(identity) for identity in dataset.record_ids))
    return _with_codes_of(folder, inputs, options)


def _with_codes_of(folder: Path, inputs: ProgramBatch, options: ReadOptions) -> ProgramBatch:
    """``inputs``, named by records of data set ``folder``, with their code vectors: stored ones, else compiled.

    What is stored of a device with another core or architecture says nothing of this one: it is compiled for this one.
    """
    from cdmpp.data.codes import codes_of, complete_codes
    from cdmpp.data.labels import Labels
    from cdmpp.data.records import read_records, read_tasks

    names = np.asarray(inputs.labels, object)
    lacking = set(names[np.isnan(inputs.asts.codes_or_nan()[:, 0])].tolist())
    foreign = _foreign(folder, inputs, options)
    if foreign:
        elsewhere = np.isin(names, list(foreign))[:, None]
        own = np.where(elsewhere, np.float32(np.nan), inputs.asts.codes_or_nan())
        inputs = replace(inputs, asts=inputs.asts.with_codes(own))
    if not options.compiled or not (lacking or foreign):
        return inputs
    tasks = read_tasks(folder)
    made = _compiled_for(folder, foreign.values(), tasks, options)
    own_lacking = lacking - set(foreign)
    records = [r for r in read_records(folder, None, "skip") if r.record_id in own_lacking and r.task_id in tasks]
    if has_tvm() and records:
        codes, why = complete_codes(folder, records, tasks, cores(), True, options.limit_s)
    else:
        codes, why = codes_of([(folder, tasks)], Labels.of_records(records)) if records else None, {}
    by_record = {} if codes is None else dict(zip([r.record_id for r in records], codes, strict=True))
    return inputs.with_codes({**by_record, **made.codes}, {**why, **made.code_faults}, inputs.labels)


def _foreign(folder: Path, inputs: ProgramBatch, options: ReadOptions) -> dict[str, Record]:
    """The records among ``inputs`` whose stored code vectors are not those of the wished device, by their name."""
    from cdmpp.data.records import count_records, read_records

    if options.features != "cdmpp" or set(count_records(folder)) <= {options.device.name}:
        return {}
    named, alike = set(inputs.labels), cache(partial(_run_alike, options.device))
    return {
        r.record_id: r
        for r in read_records(folder, None, "skip")
        if r.record_id in named and not alike(r.device, r.target)
    }


def _run_alike(device: Device, name: str, target: str) -> bool:
    """True if code for ``target`` (JSON) takes as many cycles on ``device`` as on the one of that ``name``."""
    if name == device.name:
        return True
    try:
        other = core_of(devices.get(name))
    except CdmppError:  # described elsewhere
        return False
    return other == core_of(device) and not disagreement(device, target)


def _compiled_for(folder: Path, records: Iterable[Record], tasks: Mapping[str, Task], options: ReadOptions) -> Derived:
    """Code vectors on the wished device of ``records`` of others, by record; none of those for another kind of device.

    A GPU runs only code of its own architecture; what LLVM makes for another CPU is taken as it is.
    """
    sources: dict[str, Source] = {}
    for record in records if has_tvm() else ():
        own, task = retargeted(options.device, record.target), tasks.get(record.task_id)
        target = own if options.retarget or disagreement(options.device, record.target) else record.target
        if task is not None and not disagreement(options.device, target):
            key = _key(task.workload, record.schedule, target)
            sources[record.record_id] = Source(key, task.workload, record.schedule, target)
    kind, core = "codes" if options.device.kind == "cpu" else "gpu_codes", core_key_of(options.device)
    kept = derived_folder(kind, VERSIONS[kind], str(folder.resolve()), core)
    derived = Derived.of(list(sources.values()), options, f"programs of {folder.name}", None, kept)

    def by_record(of_key: Mapping[str, T]) -> dict[str, T]:
        return {name: of_key[source.key] for name, source in sources.items() if source.key in of_key}

    return replace(derived, codes=by_record(derived.codes), code_faults=by_record(derived.code_faults))


def _script(path: Path, options: ReadOptions) -> ProgramBatch:
    """Parsed, lowered and compiled in child processes: this one never imports TVM."""
    names, sources = script_programs(path, options.device.target, max(options.limit_s, LIMIT_S))
    with tempfile.TemporaryDirectory(prefix="cdmpp-") as scratch:
        derived = Derived.of(sources, options, path.name, Path(scratch) / "asts", Path(scratch) / "codes")
    for source, name in zip(sources, names, strict=True):
        if source.key not in derived.stored:
            raise UnsupportedProgramError(f"{path}: {name}: {derived.faults.get(source.key, _NO_AST)}")
    return derived.inputs(sources, names)


def _database(folder: Path, options: ReadOptions) -> ProgramBatch:
    graphs, sources, refused = _lines(folder, options)
    asts = derived_folder("asts", EXTRACTOR_VERSION, *graphs)
    kind = "codes" if options.device.kind == "cpu" else "gpu_codes"
    codes = derived_folder(kind, VERSIONS[kind], *graphs, core_key_of(options.device))
    derived = Derived.of(list(sources.values()), options, f"programs of {folder.name}", asts, codes)
    kept = {at: source for at, source in sources.items() if source.key in derived.stored}
    refused += [f"{at}: {derived.faults.get(s.key, _NO_AST)}" for at, s in sources.items() if at not in kept]
    if not kept:
        first: dict[str, str] = {}  # of each reason
        for text in refused:
            first.setdefault(text.partition(": ")[2], text)
        told = "; ".join(list(first.values())[:3]) or "it is empty"
        raise DataError(f"{folder} has no line that can be predicted: {told}")
    return replace(derived.inputs(list(kept.values()), list(kept)), refused=tuple(refused))


def _key(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:32]


def _target_of(options: ReadOptions, target: str) -> str | UnsupportedProgramError:
    try:
        return options.target_of(target)
    except UnsupportedProgramError as error:
        return error


def _lines(folder: Path, options: ReadOptions) -> tuple[list[str], dict[str, Source], list[str]]:
    """Workloads as JSON graphs, the program of each good line by its label, and why the other lines are left out."""
    import tvm

    from cdmpp.programs.database import BadLine, is_database, read_lines, read_workloads

    if not is_database(folder):
        raise DataError(f"{folder} is neither a data set (dataset.json) nor a MetaSchedule database (two JSON files)")
    workloads = read_workloads(folder)
    graphs = ["" if isinstance(module, BadLine) else tvm.ir.save_json(module) for module in workloads]
    sources: dict[str, Source] = {}
    refused: list[str] = []
    own_target = cache(partial(_target_of, options))
    for line in read_lines(folder):
        at = f"line {line if isinstance(line, BadLine) else line.number}"
        if isinstance(line, BadLine):
            refused.append(at)
        elif not 0 <= line.workload < len(workloads):
            refused.append(f"{at}: workload {line.workload} does not exist, the database has {len(workloads)}")
        elif isinstance(bad := workloads[line.workload], BadLine):
            refused.append(f"{at}: its workload, line {bad}")
        elif isinstance(target := own_target(line.target), UnsupportedProgramError):
            refused.append(f"{at}: {target}")
        else:
            graph = graphs[line.workload]
            sources[at] = Source(_key(graph, line.schedule, target), graph, line.schedule, target, graph=True)
    return graphs, sources, refused
