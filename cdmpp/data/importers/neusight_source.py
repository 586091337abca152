"""Files that NeuSight's authors wrote (a CSV an operator and device), of a copy of their repository or fetched.

They are fetched from one commit, one device's at a time. ``neusight_files.json`` names each file with its devices and a
SHA-256 of its rows (``rows_sum``), computed from ``ops.parquet``, which was made of the same files. Sums of the bytes
are not known.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cdmpp.data.download import fetch
from cdmpp.errors import DataError
from cdmpp.platform.cache import note_use, note_write
from cdmpp.platform.content import content_of
from cdmpp.platform.files import read_json, write_atomic
from cdmpp.platform.limits import shown
from cdmpp.platform.paths import cache_root

REPOSITORY = "sitar-lab/NeuSight"
COMMIT = "6945927d9afcca2b9daf021f8395e53edc5b4eef"
PLACE = "scripts/asplos/data"
"""Folder of the repository below which the files lie."""
BASE_URL = f"https://raw.githubusercontent.com/{REPOSITORY}/{COMMIT}/{PLACE}"
DEVICES = {
    "Tesla P4": "p4",
    "Tesla P100-PCIE-16GB": "p100-pcie",
    "Tesla V100-PCIE-32GB": "v100-pcie",
    "Tesla T4": "t4",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA L4": "l4",
    "AMD Instinct MI100": "mi100",
    "AMD Instinct MI210": "mi210",
}
"""PyTorch's name of a card -> its description here. Rows of others are left out."""
_PRODUCT = {"B": "batch", "M": "rows", "N": "inner", "K": "cols"}
_MATRIX = {"B": "rows", "H": "cols"}
_CONV = {
    "B": "batch",
    "Input_Channel": "in_channels",
    "Output_Channel": "out_channels",
    "Kernel_Szie": "kernel_size",
    "Input_Size": "in_size",
    "Stride": "stride",
    "Padding": "padding",
}
_COLUMNS = {"linear": _PRODUCT, "bmm": _PRODUCT, "conv": _CONV}
"""Operator -> column of its sizes -> what it is called in ``ops.parquet``; others have ``_MATRIX``."""
_SIZES = tuple(dict.fromkeys((*_PRODUCT.values(), *_CONV.values())))


@cache
def pinned_files() -> Mapping[str, Mapping[str, Any]]:
    """Map each path below ``PLACE`` to ``devices``, ``rows`` and ``sha256`` (see ``rows_sum``) of the file."""
    files: dict[str, dict[str, Any]] = read_json(Path(__file__).with_name("neusight_files.json"))
    return files


def files_of(device: str) -> list[str]:
    """List files below ``PLACE`` that hold rows of ``device``; empty where nobody measured it."""
    return [name for name, file in pinned_files().items() if device in file["devices"]]


def data_folder(source: Path) -> Path | None:
    """Return the folder of the files in ``source``, a copy of the repository or that folder; None: neither."""
    places = (source, source / PLACE)
    return next((place for place in places if (place / "dataset").is_dir()), None)


def download(device: str, base_url: str = BASE_URL, progress: bool = True) -> Path:
    """Fetch the files of ``device`` into the cache, some 20 MB, and return the folder; those that are there stay.

    ``DataError``: a file cannot be fetched, or its rows are not the pinned ones. Nothing half-written stays behind.
    """
    folder = cache_root() / "downloads" / f"{REPOSITORY.replace('/', '-')}-{COMMIT[:12]}"
    for name in files_of(device):
        path, expected = folder / name, pinned_files()[name]["sha256"]
        content_sum = partial(_file_sum, name=name)
        if not path.is_file() or content_sum(path) != expected:
            url = f"{base_url}/{quote(name)}"
            write_atomic(path, partial(fetch, url, expected=expected, content_sum=content_sum, progress=progress))
            note_write(path)
    note_use(folder)
    return folder


def read_files(folder: Path, device: str | None = None) -> Iterator[dict[str, Any]]:
    """Read the rows of the pinned files in ``folder`` (see ``data_folder``), as those of ``ops.parquet``.

    Args:
        device: only its rows.

    Raises:
        DataError: no such file is there, or one is not the pinned one.
    """
    names = [name for name in (pinned_files() if device is None else files_of(device)) if (folder / name).is_file()]
    if not names:
        raise DataError(
            f"{folder} holds none of NeuSight's {len(pinned_files())} files, such as {next(iter(pinned_files()))}"
        )
    for name in names:
        rows = list(read_file(folder / name, name))
        if (found := rows_sum(rows)) != pinned_files()[name]["sha256"]:
            raise DataError(f"{folder / name} has rows of the SHA-256 {found}: not the file of {COMMIT[:12]}")
        yield from (row for row in rows if device in (None, row["device"]))


def read_file(path: Path, name: str) -> Iterator[dict[str, Any]]:
    """Read the rows of one file, columns named as in ``ops.parquet``; ``name`` is its path below ``PLACE``.

    Rows of cards that are not among ``DEVICES`` are left out. ``DataError``: a broken row, by its line.
    """
    split = "test" if name.split("/")[1] == "test" else "train"
    version = next((part[1:] for part in name.split("/") if part.startswith("p2.")), "")
    vendor = f"{version}+rocm" if name.startswith("dataset_amd/") else version
    line = 1
    try:
        table = csv.DictReader(io.StringIO(content_of(path).decode(), newline=""))
        if missing := {"OPName", "Latency", "Device", "Kernel Name"} - set(table.fieldnames or ()):
            raise DataError(f"{path} is no file of NeuSight's measurements: it lacks {', '.join(sorted(missing))}")
        for line, row in enumerate(table, start=2):
            if row["Device"] is None:
                raise ValueError("the row is cut short")
            if row["Device"] in DEVICES:
                told = {"split": split, "source_line": line, "torch": vendor}
                yield {**dict.fromkeys(_SIZES), **told, **_row(row)}
        if line == 1:
            raise DataError(f"{path} is no file of NeuSight's measurements: it holds no row")
    except DataError:
        raise
    except (UnicodeDecodeError, csv.Error, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is no file of NeuSight's measurements: {shown(error)} near line {line}") from error


def rows_sum(rows: Iterable[Mapping[str, Any]]) -> str:
    """Compute the SHA-256 over device, operator, sizes and latency (7 digits) of rows as ``ops.parquet`` has them."""
    digest = hashlib.sha256()
    for row in rows:
        numbers = [str(row[size] or "") for size in _SIZES]
        digest.update(f"{' '.join([row['device'], row['op'], *numbers])} {row['latency_s']:.6e}\n".encode())
    return digest.hexdigest()


def _row(row: Mapping[str, str]) -> dict[str, Any]:
    op = row["OPName"]
    sizes = {name: int(row[column]) for column, name in _COLUMNS.get(op, _MATRIX).items()}
    software: dict[str, Any] = {"cudnn": int(row["CUDNN Version"]) if row.get("CUDNN Version") else None}
    if row.get("Torch Version"):
        software["torch"] = "+".join(filter(None, (row["Torch Version"].removeprefix("p"), row.get("CUDA Version"))))
    return {
        "device": DEVICES[row["Device"]],
        "op": op,
        "dtype": "float32",
        "latency_s": float(row["Latency"]) / 1000,
        "kernel": row["Kernel Name"],
        **sizes,
        **software,
    }


def _file_sum(path: Path, name: str) -> str:
    """Empty where the file cannot be read."""
    try:
        return rows_sum(read_file(path, name))
    except DataError:
        return ""
