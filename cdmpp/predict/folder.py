"""Programs of a folder on disk: one of our data sets, or a MetaSchedule tuning database."""

from __future__ import annotations

from pathlib import Path

from cdmpp.ast.table import AstTable, read_asts
from cdmpp.devices import Device
from cdmpp.errors import CdmppError, DataError


def read_path(
    path: Path, device: Device, features: str = "cdmpp", compiled: bool = False
) -> tuple[AstTable, tuple[str, ...]]:
    """Compact ASTs and a label for each.

    A data set gives its programs of ``device`` by record id (of all devices where it has none of this one), a
    database its lines in file order, whether or not they were measured successfully, a Parquet file its stored ASTs.
    ``compiled``: compile the CPU programs of a database for their code vectors, too.

    Raises:
        DataError: nothing of these is there, vectors of another kind than ``features``, or the database has a line
            that cannot be read or replayed.
    """
    if path.suffix == ".parquet":
        labels, table = read_asts(path, features)
        return table, tuple(labels)
    if (path / "dataset.json").is_file():
        return _data_set(path, device, features)
    if features != "cdmpp":
        raise DataError(f"{path} is no data set; this model reads {features} vectors, which come from files only")
    return _database(path, compiled)


def _data_set(folder: Path, device: Device, features: str) -> tuple[AstTable, tuple[str, ...]]:
    from cdmpp.data.dataset import load_dataset
    from cdmpp.data.records import count_records

    dataset = load_dataset(folder, device.name if device.name in count_records(folder) else None)
    if dataset.features != features:
        raise DataError(f"{folder} holds {dataset.features} vectors, this model reads {features}")
    return dataset.asts, tuple(str(identity) for identity in dataset.record_ids)


def _database(folder: Path, compiled: bool) -> tuple[AstTable, tuple[str, ...]]:
    try:
        from cdmpp.predict.compiled import read_programs
        from cdmpp.programs.database import BadLine, is_database, read_lines, read_workloads
        from cdmpp.programs.replay import parse_target, replay_on
        from cdmpp.programs.task import Program
    except ImportError as error:
        raise CdmppError("reading a tuning database needs TVM: pip install 'cdmpp[tvm]'") from error
    if not is_database(folder):
        raise DataError(f"{folder} is neither a data set (dataset.json) nor a MetaSchedule database (two JSON files)")
    workloads, programs, labels = read_workloads(folder), [], []
    for line in read_lines(folder):
        if isinstance(line, BadLine):
            raise DataError(f"{folder}, record line {line}")
        scheduled = replay_on(workloads[line.workload], line.schedule)
        programs.append(Program(scheduled.mod, parse_target(line.target), trace=line.schedule))
        labels.append(f"line {line.number}")
    return read_programs(programs, compiled), tuple(labels)
