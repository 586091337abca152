"""Code vectors of a data set: stored next to its ASTs, derived by compiling its programs where they are missing."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from cdmpp.data.derive import Source, code_kind, core_key_of, data_set_folder, derive, read_chunks, sources_of
from cdmpp.data.derived_table import read_codes, write_codes
from cdmpp.data.labels import Labels
from cdmpp.data.records import count_records, read_records, read_tasks
from cdmpp.data.schema import Record
from cdmpp.devices import get
from cdmpp.errors import CdmppError, DataError
from cdmpp.machine_code.cpu.code_features import CODE_READER, CODE_VERSION, CODE_WIDTH
from cdmpp.machine_code.cpu.compile import LIMIT_S
from cdmpp.machine_code.gpu.gpu_code_features import GPU_CODE_VERSION
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)

CODES_FOLDER = "codes"
VERSIONS = {"codes": f"{CODE_VERSION}.{CODE_READER}", "gpu_codes": GPU_CODE_VERSION}
"""Version of the vectors of each ``derive.code_kind``: those that are cached with another version are not seen."""
_PORTION = 65_536


def code_cache(folder: Path, kind: str = "codes") -> Path:
    """Return the cache folder of a data set's code vectors of a kind in ``VERSIONS``, by ``derive.record_key``.

    It is another one as soon as a core of its devices is described in another way.
    """
    on = set[str]()
    with suppress(DataError):  # a folder without records
        for name in count_records(folder):
            with suppress(CdmppError):  # a device that is described elsewhere
                on.add(core_key_of(get(name)))
    return data_set_folder(kind, VERSIONS[kind], folder, *sorted(on))


def cached_codes(cache: Path) -> dict[str, np.ndarray]:
    """Read all chunk files of a cache folder: key -> code vector."""
    return {key: code for codes in read_chunks(cache, read_codes) for key, code in codes.items()}


def codes_of(
    folders: Sequence[tuple[Path, Mapping[str, Task]]], labels: Labels, scratch: Path | None = None
) -> np.ndarray | None:
    """Return (n, CODE_WIDTH) for the programs of ``labels``, NaN rows where one is missing; None where all are.

    ``folders`` are data sets with their tasks; files that came with one count before the cache. A file that cannot be
    used is logged. With ``scratch`` the array is in a mapped file there instead of memory.
    """
    codes: np.ndarray | None = None
    for folder, tasks in folders:
        shipped = sorted((folder / CODES_FOLDER).glob("part-*.parquet"))
        cached = [path for kind in VERSIONS for path in sorted(code_cache(folder, kind).glob("chunk-*.parquet"))]
        for path in [*cached, *shipped]:
            try:
                vectors = read_codes(path)
            except DataError as error:
                consequence = "Its programs count as not compiled, which makes models far worse"
                log.warning("%s. %s; `cdmpp data codes --path %s` compiles them again", error, consequence, folder)
                continue
            names = list(vectors)
            places = labels.places(names) if path in shipped else labels.places_of_keys(names, tasks)
            present = np.flatnonzero(places >= 0)
            if len(present):
                codes = _empty(len(labels), scratch) if codes is None else codes
                codes[places[present]] = np.stack([vectors[names[row]] for row in present])
    return codes


def _empty(n: int, scratch: Path | None) -> np.ndarray:
    if scratch is None:
        return np.full((n, CODE_WIDTH), np.nan, np.float32)
    path = scratch / "codes-by-program"
    with path.open("wb") as file:  # written, not mapped, so that a full disk is an error and no crash
        for start in range(0, n, _PORTION):
            np.full((min(_PORTION, n - start), CODE_WIDTH), np.nan, np.float32).tofile(file)
    return np.memmap(path, np.float32, "r+", shape=(n, CODE_WIDTH))


def derive_codes(folder: Path, workers: int = 2, progress: bool = True, ship: bool = False) -> int:
    """Compile every CPU or CUDA program of ``folder`` that has no code vector here; returns how many have one then.

    With ``ship`` they are written into the data set's ``codes/``, else they stay in the cache. A killed run continues.
    """
    records = [record for record in read_records(folder) if compilable(record)]
    codes, _ = complete_codes(folder, records, read_tasks(folder), workers, progress)
    rows = [] if codes is None else np.flatnonzero(~np.isnan(codes[:, 0])).tolist()
    if ship and codes is not None:
        write_codes(folder / CODES_FOLDER / "part-00000.parquet", {records[i].record_id: codes[i] for i in rows})
    return len(rows)


def complete_codes(
    folder: Path,
    records: Sequence[Record],
    tasks: Mapping[str, Task],
    workers: int = 2,
    progress: bool = True,
    limit_s: float = LIMIT_S,
) -> tuple[np.ndarray | None, dict[str, str]]:
    """Return ``codes_of`` the different ``records`` of ``folder``, after compiling what can be into the cache.

    Also record id -> why one has none. A killed call continues.
    """
    labels = Labels.of_records(records)
    codes = codes_of([(folder, tasks)], labels)
    missing = [r for i, r in enumerate(records) if compilable(r) and (codes is None or np.isnan(codes[i, 0]))]
    if not missing:
        return codes, {}
    sources = sources_of(missing, tasks)
    wanted: dict[str, tuple[Path, list[Source]]] = {}
    for source in sources:
        kind = str(code_kind(source.target))
        wanted.setdefault(kind, (code_cache(folder, kind), []))[1].append(source)
    faults = derive(wanted, workers, progress, f"code vectors of {folder.name}", limit_s)
    reasons = {key: reason for of_kind in faults.values() for key, reason in of_kind.items()}
    pairs = zip(missing, sources, strict=True)
    named = {record.record_id: reasons[source.key] for record, source in pairs if source.key in reasons}
    return codes_of([(folder, tasks)], labels), named


def compilable(record: Record) -> bool:
    """Return True for programs that LLVM compiles for a CPU, or NVIDIA's compiler for a GPU."""
    return code_kind(record.target) is not None
