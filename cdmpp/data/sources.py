"""Which labelled data is within reach: our data sets, raw tuning databases, a pinned public download."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cdmpp import devices
from cdmpp.ast.layout import FEATURES
from cdmpp.data.dataset import LatencyDataset, join_datasets
from cdmpp.data.download import COMMIT, REPOSITORY, download, pinned
from cdmpp.data.loading import load_programs
from cdmpp.data.records import count_records, read_info
from cdmpp.data.schema import SCHEMA_VERSION
from cdmpp.errors import CdmppError, DataError, NoRecordsError
from cdmpp.lock import writing
from cdmpp.paths import cache_root

log = logging.getLogger(__name__)

_DEPTH = 4
_SKIPPED = {"node_modules", "outputs", "__pycache__", "build", "dist"}
_DATABASE_FILES = ("database_tuning_record.json", "database_workload.json")


@dataclass(frozen=True)
class Found:
    """A folder with labelled data, as far as can be told without TVM."""

    path: Path
    raw: bool
    """True for a MetaSchedule database that must be imported first."""
    counts: dict[str, int]
    """Device -> records; 0 for a raw database, which nobody counted."""
    network: str = ""
    unclear: str = ""
    """Why a raw database cannot be imported without being told device or network."""
    features: str = "cdmpp"
    """Kind of leaf vectors, see ``layout.FEATURES``."""


def search_paths(paths: Sequence[Path | str] = ()) -> list[Path]:
    """``paths`` and the folders in ``$CDMPP_DATA`` (separated by ``os.pathsep``), each once."""
    extra = [entry for entry in os.environ.get("CDMPP_DATA", "").split(os.pathsep) if entry.strip()]
    return list(dict.fromkeys(Path(path).expanduser() for path in [*paths, *extra]))


def survey(paths: Sequence[Path | str] = ()) -> list[Found]:
    """Everything with labelled data below ``search_paths(paths)``, a few levels deep, in a fixed order."""
    found: dict[Path, Found] = {}
    for root in search_paths(paths):
        if root.is_dir():
            _visit(root, _DEPTH, found)
    return list(found.values())


def devices_with_data(paths: Sequence[Path | str] = (), features: str = "cdmpp") -> dict[str, list[Found]]:
    """Device -> folders that hold records of it with leaf vectors of the kind ``features``."""
    table: dict[str, list[Found]] = {}
    for item in survey(paths):
        for device in item.counts if item.features == features else ():
            table.setdefault(device, []).append(item)
    return dict(sorted(table.items()))


def find_data(device: str, paths: Sequence[Path | str] = ()) -> list[Path]:
    """Our data sets and raw MetaSchedule databases that hold records of ``device``; empty where there is none.

    The device of a raw database comes from its folder name ``<network>_<device>[_...]``, and the target of its
    records must agree.
    """
    devices.get(device)
    return [item.path for item in devices_with_data(paths).get(device, [])]


def load_device(
    device: str,
    paths: Sequence[Path | str] = ("datasets",),
    workers: int = 2,
    progress: bool = True,
    fetch: bool = True,
    features: str = "cdmpp",
) -> LatencyDataset:
    """All labelled programs of ``device`` within reach, as one data set of one kind of ``features``.

    Raw databases are imported into the cache first. Where nothing is found and a public source is pinned for the
    device, it is downloaded (``fetch``). Otherwise a ``NoRecordsError`` says what was looked for, how to import or
    measure, and which devices have data here.
    """
    folders = data_folders(device, paths, progress, fetch, features)
    return load_programs(folders, device, workers=workers, progress=progress)


def load_devices(
    names: Sequence[str],
    paths: Sequence[Path | str] = ("datasets",),
    workers: int = 2,
    progress: bool = True,
    fetch: bool = True,
    features: str = "cdmpp",
) -> LatencyDataset:
    """As ``load_device`` for several devices at once, the tasks that they share joined."""
    return join_datasets([load_device(name, paths, workers, progress, fetch, features) for name in names])


def source_devices(target: str, paths: Sequence[Path | str] = ("datasets",), features: str = "cdmpp") -> list[str]:
    """Devices with records within reach that can teach about ``target``: others of its kind, else all others."""
    kind = devices.get(target).kind
    others = [name for name in devices_with_data(paths, features) if name != target]
    alike = [name for name in others if name in devices.names() and devices.get(name).kind == kind]
    return alike or others


def data_folders(
    device: str,
    paths: Sequence[Path | str] = ("datasets",),
    progress: bool = True,
    fetch: bool = True,
    features: str = "cdmpp",
) -> list[Path]:
    """The data set folders that ``load_device`` reads, raw databases imported."""
    devices.get(device)
    if features not in FEATURES:
        raise CdmppError(f"features={features!r} is unknown; one of {', '.join(FEATURES)}")
    found = devices_with_data(paths, features).get(device, [])
    if not found and features != "cdmpp":
        raise DataError(
            f"no data set of {device} with {features} vectors in {', '.join(map(str, search_paths(paths)))}; "
            "scripts/import_data.py source=ansor_features makes one (scripts/exporters/README.md)"
        )
    if not found:
        found = _download(device, paths, progress, fetch)
    return [_import_into_cache(item, device, progress) if item.raw else item.path for item in found]


def _visit(folder: Path, depth: int, found: dict[Path, Found]) -> None:
    key = folder.resolve()
    if key in found:
        return
    try:
        names = {entry.name for entry in folder.iterdir()}
        if "dataset.json" in names:
            features = str(read_info(folder).get("features", "cdmpp"))
            found[key] = Found(folder, False, count_records(folder), features=features)
            return
        if all(name in names or f"{name}.gz" in names for name in _DATABASE_FILES):
            found[key] = _inspect_database(folder)
            return
        children = sorted(folder / name for name in names if not name.startswith(".") and name not in _SKIPPED)
    except (OSError, CdmppError) as error:
        log.warning("skipped %s: %s", folder, error)
        return
    if depth:
        for child in children:
            if child.is_dir():
                _visit(child, depth - 1, found)


def name_parts(folder_name: str) -> tuple[str, str]:
    """(network, device) that a database folder's name tells, each empty where it does not.

    ``<network>_<device>[_...]``; of public collections also ``meta_<backend>_<device>_<network>_<trials>``.
    """
    words = folder_name.lower().split("_")
    known = set(devices.names())
    places = [place for place, word in enumerate(words) if word in known]
    if len(places) != 1:
        return "", ""
    place = places[0]
    if words[0] == "meta":
        rest = [word for word in words[place + 1 :] if not re.fullmatch(r"\d+k", word)]
        return "_".join(rest), words[place]
    return "_".join(words[:place]), words[place]


def _inspect_database(folder: Path) -> Found:
    from cdmpp.data.targets import disagreement, first_target

    network, device = name_parts(folder.name)
    if not device or not network:
        return Found(folder, True, {}, unclear="the folder name is not <network>_<device>[_...]")
    try:
        reason = disagreement(device, first_target(folder), exact=True)
    except CdmppError as error:
        reason = str(error)
    if reason:
        return Found(folder, True, {}, network, reason)
    return Found(folder, True, {device: 0}, network)


def _import_into_cache(item: Found, device: str, progress: bool) -> Path:
    """Import a raw database once; later calls find it by content, and one that runs meanwhile waits for it."""
    digest = hashlib.sha256(f"{SCHEMA_VERSION} {device} {item.network}".encode())
    for path in sorted(item.path.iterdir()):
        if path.name.removesuffix(".gz") in _DATABASE_FILES:
            digest.update(path.read_bytes())
    out = cache_root() / "imported" / f"{item.path.name}-{digest.hexdigest()[:12]}"
    if _is_complete(out):
        return out
    if importlib.util.find_spec("tvm") is None:
        raise DataError(f"{item.path} must be imported, which needs TVM: pip install 'cdmpp[tvm]'")
    from cdmpp.data.importers import import_database

    with writing(out, f"import of {item.path}", wait=True):
        if not _is_complete(out):
            log.info("importing %s as %s on %s into %s", item.path, item.network, device, out)
            import_database(item.path, out, device, item.network, on_bad="skip", progress=progress)
    return out


def _is_complete(folder: Path) -> bool:
    return (folder / "dataset.json").is_file() and bool(read_info(folder).get("complete"))


def _download(device: str, paths: Sequence[Path | str], progress: bool, fetch: bool) -> list[Found]:
    public = pinned(device) if fetch else ()
    try:
        folders = [
            Found(download(database, progress=progress), True, {device: 0}, database.network) for database in public
        ]
    except DataError as error:
        raise NoRecordsError(no_data_message(device, paths, str(error))) from error
    if not folders:
        reason = "no public source is pinned for this device" if fetch else "downloading was not asked for"
        raise NoRecordsError(no_data_message(device, paths, reason))
    return folders


def no_data_message(device: str, paths: Sequence[Path | str], download_result: str) -> str:
    """What was looked for and where, what to do, and what there is instead."""
    where = [f"{p}{'' if p.is_dir() else ' (no such folder)'}" for p in search_paths(paths)]
    if not os.environ.get("CDMPP_DATA"):
        where.append("$CDMPP_DATA (not set)")
    lines = [
        f"no labelled programs of device {device}.",
        "Looked for: data sets (dataset.json) and MetaSchedule databases in folders named <network>_<device>",
        f"  in: {', '.join(where)}",
        f"  on the web: https://github.com/{REPOSITORY} at {COMMIT[:12]}: {download_result}",
        *(
            [
                "To use the public records without a network here: clone that repository elsewhere, copy it, and",
                f"  CDMPP_DATA=COPY python scripts/train.py device={device}",
            ]
            if pinned(device)
            else []
        ),
        "To import a MetaSchedule database (metaschedule_legacy for TVM 0.20 and older):",
        f"  python scripts/import_data.py source=metaschedule path=DIR device={device} network=NAME",
        "To measure on this machine, if it is that device:",
        f"  python scripts/measure.py device={device}",
    ]
    table = devices_with_data(paths)
    lines.append("Devices with data here now:" + ("" if table else " none"))
    for name, items in table.items():
        lines += [f"  {name}: {i.path} ({'database' if i.raw else f'{i.counts[name]} records'})" for i in items]
    unclear = [item for item in survey(paths) if item.unclear]
    if unclear:
        lines.append("Databases that must be imported by hand, because device or network is not clear:")
        lines += [f"  {item.path}: {item.unclear}" for item in unclear]
    return "\n".join(lines)
