"""Device: public datasheet numbers of one processor, with a unit and a source per field. No TVM and no Hydra here."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from cdmpp.errors import CdmppError, UnknownDeviceError
from cdmpp.paths import conf_folder

KINDS = ("cpu", "gpu", "accelerator")

# name -> (unit, value that maps to 1 in the feature vector). A core is an SM, a CU or a CPU core. The ceilings are
# fixed round numbers above every device known today, so that adding a device never moves another one's vector.
_FIELDS: dict[str, tuple[str, float]] = {
    "clock_mhz": ("MHz", 8_192),  # boost on GPUs, base on CPUs
    "core_count": ("1", 1_024),  # cores that the device's target uses
    "fp32_tflops": ("TFLOP/s", 256),
    "fp16_tflops": ("TFLOP/s", 512),
    "fp16_matrix_tflops": ("TFLOP/s", 4_096),  # dense
    "bandwidth_gbps": ("GB/s", 16_384),
    "memory_gb": ("GB", 1_024),
    "l1_kb_per_core": ("KiB", 1_024),
    "shared_kb_per_core": ("KiB", 1_024),
    "l2_kb": ("KiB", 262_144),  # the whole L2 on GPUs, what one core reaches on CPUs
    "l3_kb": ("KiB", 1_048_576),
    "registers_per_core": ("1", 262_144),  # 32-bit registers on GPUs, vector registers on CPUs
    "max_threads_per_core": ("1", 4_096),
    "warp_size": ("1", 64),
    "simd_bits": ("bit", 2_048),
    "fma_units_per_core": ("1", 256),  # FP32 lanes on GPUs, vector units on CPUs
    "issue_width": ("1", 64),  # instructions that a CPU core can start in a cycle
    "gather_cycles_per_lane": ("cycle", 16),  # of a vector gather from L1; microcode mitigations included
    "add_latency_cycles": ("cycle", 16),  # from one dependent float addition to the next on a CPU core
}
SPEC_FIELDS: tuple[str, ...] = tuple(_FIELDS)
VECTOR_FIELDS = tuple(name for name in SPEC_FIELDS if name != "add_latency_cycles")
"""What enters the device vector; an addition's latency is read by the code costs alone."""
VECTOR_WIDTH = 2 * len(VECTOR_FIELDS) + len(KINDS)

# Where a number may come from when no document states it.
_OTHER_SOURCES = ("derived", "not published", "not applicable")
_KEYS = {"name", "title", "kind", "target", "documents", "spec"}


@dataclass(frozen=True)
class Device:
    """One processor as its public documents describe it."""

    name: str
    title: str
    kind: str
    """``cpu``, ``gpu`` or ``accelerator``."""
    target: dict[str, Any]
    """Arguments of ``tvm.target.Target``."""
    spec: Mapping[str, float | None]
    """One value per name in ``SPEC_FIELDS``, in the unit that the name ends in; None where nothing is published."""
    sources: Mapping[str, str]
    """One text per name in ``SPEC_FIELDS``: the document that states the value, or why there is none."""

    def vector(self) -> np.ndarray:
        """What a model sees of the device: (VECTOR_WIDTH,) float32, all finite.

        First one log-scaled value between about 0 and 1 per name in ``VECTOR_FIELDS`` (0 where unknown), then one mask
        each (1 = known), then a one-hot of the kind.
        """
        published = [self.spec[name] is not None for name in VECTOR_FIELDS]
        scaled = [math.log2(1 + (self.spec[name] or 0)) / math.log2(1 + _FIELDS[name][1]) for name in VECTOR_FIELDS]
        return np.array([*scaled, *published, *(self.kind == kind for kind in KINDS)], np.float32)


def names() -> tuple[str, ...]:
    """The names of all described devices, sorted."""
    return tuple(sorted(_files()))


def get(name: str) -> Device:
    """The device of that name.

    ``UnknownDeviceError`` names the nearest ones where there is none, ``CdmppError`` a malformed file and its field.
    """
    if (path := _files().get(name)) is None:
        raise UnknownDeviceError(_unknown(name))
    return read_device(path)


def all_devices() -> tuple[Device, ...]:
    """Every described device, sorted by name."""
    return tuple(get(name) for name in names())


def sheets_of(occurring: Iterable[str]) -> dict[str, Device]:
    """The devices that occur in a sequence of names, by name, sorted."""
    return {name: get(name) for name in sorted({str(name) for name in occurring})}


@cache
def read_device(path: Path) -> Device:
    """Read and check one device file; ``CdmppError`` names it and the field that cannot be."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CdmppError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or set(content) != _KEYS:
        given = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise CdmppError(f"{path}: must hold exactly the keys {sorted(_KEYS)}, found {given}")
    if content["name"] != path.stem:
        raise CdmppError(f"{path}: field name is {content['name']!r}, expected the file's name {path.stem!r}")
    if content["kind"] not in KINDS:
        raise CdmppError(f"{path}: field kind is {content['kind']!r}, expected one of {', '.join(KINDS)}")
    if not isinstance(content["target"], dict) or "kind" not in content["target"]:
        raise CdmppError(f"{path}: field target must be a mapping with a kind, as tvm.target.Target takes it")
    documents, spec = content["documents"], content["spec"]
    if not isinstance(documents, dict) or not isinstance(spec, dict) or set(spec) != set(SPEC_FIELDS):
        wrong = sorted(set(SPEC_FIELDS) ^ set(spec)) if isinstance(spec, dict) else list(SPEC_FIELDS)
        raise CdmppError(f"{path}: documents and spec must be mappings; spec fields missing or unknown: {wrong}")
    checked = {field: _check_field(path, field, spec[field], documents) for field in SPEC_FIELDS}
    values = {field: value for field, (value, _) in checked.items()}
    sources = {field: source for field, (_, source) in checked.items()}
    return Device(content["name"], str(content["title"]), content["kind"], content["target"], values, sources)


def _check_field(path: Path, field: str, entry: Any, documents: Mapping[str, str]) -> tuple[float | None, str]:
    """The value and the full source text of one spec entry ``{value, unit, source}``."""
    where = f"{path}: field spec.{field}"
    if not isinstance(entry, dict) or set(entry) != {"value", "unit", "source"}:
        raise CdmppError(f"{where} must be a mapping of value, unit and source")
    unit = _FIELDS[field][0]
    if str(entry["unit"]) != unit:
        raise CdmppError(f"{where}.unit is {entry['unit']!r}, expected {unit!r}")
    key, _, detail = str(entry["source"]).partition(":")
    if key not in documents and key not in _OTHER_SOURCES:
        allowed = ", ".join([*documents, *_OTHER_SOURCES])
        raise CdmppError(f"{where}.source names {key!r}, expected one of: {allowed} (then a colon and detail)")
    value = entry["value"]
    if value is None:
        if key in documents:
            raise CdmppError(f"{where} is null: its source must say 'not published' or 'not applicable', not {key!r}")
        return None, str(entry["source"])
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise CdmppError(f"{where}.value is {value!r}, expected a positive finite number or null")
    if key.startswith("not "):
        raise CdmppError(f"{where} has a value but its source says {key!r}")
    cited = documents.get(key, key)
    return float(value), f"{cited} ({detail.strip()})" if detail else str(cited)


def _files() -> dict[str, Path]:
    """Name -> description. Devices of one's own are described in ``conf/device`` of the working folder."""
    folder = conf_folder() / "device"
    if not folder.is_dir():
        raise CdmppError(f"no device descriptions found in {folder}: the installation is incomplete")
    return {path.stem: path.resolve() for place in (Path("conf/device"), folder) for path in place.glob("*.yaml")}


def _unknown(name: str) -> str:
    described = names()
    plain = {other.replace("-", ""): other for other in described}
    wanted = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    near = [plain[match] for match in difflib.get_close_matches(wanted, plain, n=3, cutoff=0.5)]
    near += [other for other in described if wanted and wanted in other.replace("-", "") and other not in near][:3]
    hint = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(described)}"
    readme = conf_folder() / "device" / "README.md"
    return f"unknown device {name!r}; {hint} (`cdmpp devices` lists all, {readme} tells how to add one)"
