"""Labelled data within reach: our data sets, raw tuning databases, a pinned public download."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from cdmpp import devices
from cdmpp.ast.layout import EAGER_FEATURES, FEATURES
from cdmpp.data.dataset import LatencyDataset, join_datasets
from cdmpp.data.derive import has_tvm
from cdmpp.data.download import COMMIT, REPOSITORY, download, pinned
from cdmpp.data.importers import neusight_source
from cdmpp.data.importers.neusight import import_neusight
from cdmpp.data.loading import load_programs
from cdmpp.data.records import read_info
from cdmpp.data.summary import DATABASE_FILES, DataSummary, Paths, search_paths, summarise
from cdmpp.errors import CdmppError, DataError, NoRecordsError
from cdmpp.platform.cache import note_use, note_write
from cdmpp.platform.files import SCHEMA_VERSION
from cdmpp.platform.lock import writing
from cdmpp.platform.paths import cache_root

log = logging.getLogger(__name__)


def devices_with_data(paths: Paths = (), features: str = "cdmpp") -> dict[str, list[DataSummary]]:
    """Map device to folders below ``search_paths(paths)`` that hold records of it with leaf vectors ``features``.

    The device of a raw MetaSchedule database comes from its folder name ``<network>_<device>[_...]``, and the target
    of its records must agree.
    """
    table: dict[str, list[DataSummary]] = {}
    for entry in summarise(search_paths(paths)):
        if entry.device != "?" and entry.features == features:
            table.setdefault(entry.device, []).append(entry)
    return dict(sorted(table.items()))


def load_device(
    device: str, paths: Paths = ("datasets",), workers: int = 2, progress: bool = True, features: str = "cdmpp"
) -> LatencyDataset:
    """Load all labelled programs of ``device`` within reach, as one data set of one kind of ``features``.

    Raw databases are imported into the cache first. Where nothing is here, a pinned public source is downloaded: tuning
    runs of the A100, or of features ``library`` NeuSight's measurements of nine GPUs.
    Without one a ``NoRecordsError`` says what was looked for, how to import or measure, and what is here.
    """
    return load_programs(data_folders(device, paths, progress, features), device, workers, progress)


def load_devices(
    names: Sequence[str], paths: Paths = ("datasets",), workers: int = 2, progress: bool = True, features: str = "cdmpp"
) -> LatencyDataset:
    """Load several devices at once as ``load_device`` does one, the tasks that they share joined."""
    return join_datasets([load_device(name, paths, workers, progress, features) for name in names])


def source_devices(target: str, paths: Paths = ("datasets",), features: str = "cdmpp") -> list[str]:
    """List devices with records within reach that can teach about ``target``: of its kind, else all others."""
    kind = devices.get(target).kind
    others = [name for name in devices_with_data(paths, features) if name != target]
    alike = [name for name in others if name in devices.names() and devices.get(name).kind == kind]
    return alike or others


def data_folders(
    device: str, paths: Paths = ("datasets",), progress: bool = True, features: str = "cdmpp"
) -> list[Path]:
    """List the data set folders that ``load_device`` reads, raw databases imported."""
    devices.get(device)
    if features not in FEATURES:
        raise CdmppError(f"features={features!r} is unknown; one of {', '.join(FEATURES)}")
    entries = devices_with_data(paths, features).get(device, [])
    if not entries and features == EAGER_FEATURES:
        return [_operators(device, paths, progress)]
    if not entries and features != "cdmpp":
        raise DataError(
            f"no data set of {device} with {features} vectors in {', '.join(map(str, search_paths(paths)))}; "
            "`cdmpp data import source=ansor_features` makes one (scripts/exporters/README.md)"
        )
    return [
        entry.folder if entry.form == "records" else _import_into_cache(entry, device, progress)
        for entry in entries or _download(device, paths, progress)
    ]


def _import_into_cache(item: DataSummary, device: str, progress: bool) -> Path:
    """Import a raw database once; later calls find it by content, and one that runs meanwhile waits for it."""
    digest = hashlib.sha256(f"{SCHEMA_VERSION} {device} {item.network}".encode())
    for path in sorted(item.folder.iterdir()):
        if path.name.removesuffix(".gz") in DATABASE_FILES:
            digest.update(path.read_bytes())
    out = cache_root() / "imported" / f"{item.folder.name}-{digest.hexdigest()[:12]}"
    if _is_complete(out):
        return out
    if not has_tvm():
        raise DataError(f"{item.folder} must be imported, which needs TVM: pip install 'cdmpp[tvm]'")
    from cdmpp.data.importers.databases import import_database

    with writing(out, f"import of {item.folder}", wait=True):
        if not _is_complete(out):
            log.info("importing %s as %s on %s into %s", item.folder, item.network, device, out)
            import_database(item.folder, out, device, item.network, on_bad="skip", progress=progress)
    note_write(out)
    return out


def _operators(device: str, paths: Paths, progress: bool) -> Path:
    """The public measurements of PyTorch's operators on ``device``, downloaded and imported into the cache once."""
    out = cache_root() / "imported" / f"neusight_{device}-{neusight_source.COMMIT[:12]}"
    if _is_complete(out):
        return out
    try:
        if not neusight_source.files_of(device):
            raise DataError("no public source is pinned for this device")
        with writing(out, f"import of operators on {device}", wait=True):
            if not _is_complete(out):
                source = neusight_source.download(device, progress=progress)
                import_neusight(source, out, progress=progress, device=device)
        note_write(out)
    except DataError as error:
        raise NoRecordsError(_no_operators_message(device, paths, str(error))) from error
    return out


def _no_operators_message(device: str, paths: Paths, download_result: str) -> str:
    looked = ", ".join(map(str, search_paths(paths))) or "no folder"
    repository, commit = neusight_source.REPOSITORY, neusight_source.COMMIT
    return "\n".join([
        f"no measured framework operators of device {device}.",
        f"Looked for: data sets with library vectors, in: {looked}",
        f"  on the web: https://github.com/{repository} at {commit[:12]}: {download_result}",
        "To use the public measurements without a network here: clone that repository elsewhere, copy it, and",
        "  cdmpp data import source=neusight path=COPY out=outputs/operators, then data.path=[outputs/operators]",
        "To measure on this machine, if it is that device:",
        f"  cdmpp data measure device={device} runtime=torch",
        f"Measured and public: {', '.join(sorted(set(neusight_source.DEVICES.values())))}",
    ])  # fmt: skip


def _is_complete(folder: Path) -> bool:
    if not (folder / "dataset.json").is_file() or not read_info(folder).get("complete"):
        return False
    note_use(folder)
    return True


def _download(device: str, paths: Paths, progress: bool) -> list[DataSummary]:
    try:
        entries = [
            DataSummary(download(database, progress=progress), device, "metaschedule", network=database.network)
            for database in pinned(device)
        ]
    except DataError as error:
        raise NoRecordsError(no_data_message(device, paths, str(error))) from error
    if not entries:
        raise NoRecordsError(no_data_message(device, paths, "no public source is pinned for this device"))
    return entries


def no_data_message(device: str, paths: Paths, download_result: str) -> str:
    """Say what was looked for and where, what to do, and what there is instead."""
    where = [f"{p}{'' if p.is_dir() else ' (no such folder)'}" for p in search_paths(paths)]
    if not os.environ.get("CDMPP_DATA"):
        where.append("$CDMPP_DATA (not set)")
    lines = [
        f"no labelled programs of device {device}.",
        "Looked for: data sets (dataset.json) and MetaSchedule databases in folders named <network>_<device>",
        f"  in: {', '.join(where)}",
        f"  on the web: https://github.com/{REPOSITORY} at {COMMIT[:12]}: {download_result}",
    ]
    if pinned(device):
        lines += [
            "To use the public records without a network here: clone that repository elsewhere, copy it, and",
            f"  CDMPP_DATA=COPY cdmpp model train device={device}",
        ]
    lines += [
        "To import a MetaSchedule database:",
        f"  cdmpp data import source=metaschedule path=DIR device={device} network=NAME",
        "To measure on this machine, if it is that device:",
        f"  cdmpp data measure device={device}",
        "Data here now:",
    ]
    for entry in summarise(search_paths(paths)):
        size = "database" if entry.programs is None else f"{entry.programs} records"
        unclear = f"; to be imported by hand: {entry.note}" if entry.note else ""
        lines.append(f"  {entry.device}: {entry.folder} ({size}{unclear})")
    return "\n".join(lines)
