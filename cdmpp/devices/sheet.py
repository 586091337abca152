"""Quantity: one number of a description in ``conf/``, with its unit and source. It is known, within a range, or not."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.platform.content import read_yaml
from cdmpp.platform.paths import conf_folder

MEASURED = "measured"
_OTHER_SOURCES = (MEASURED, "derived", "fitted", "not published", "not applicable")
"""Sources that a number may have instead of a document."""
FIELDS: dict[str, dict[str, dict[str, Any]]] = json.loads(Path(__file__).with_name("fields.json").read_text())
"""Kind of description -> number -> its unit and what it means, the range that all known ones have and to
spare, whether a count may be broken; of a device also what maps to 1 in its vector."""


@dataclass(frozen=True)
class Quantity:
    """A model reads this number of a device or of a core."""

    low: float | None
    high: float | None
    """The same as ``low`` where the number is known; both None where nothing is."""
    source: str
    """The document that states it, how it was measured or derived, or why there is none."""
    origin: str
    """``measured``, ``described`` or ``unknown``."""

    @property
    def value(self) -> float | None:
        """The value is the number, or the geometric middle of a range."""
        return None if self.low is None or self.high is None else math.sqrt(self.low * self.high)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The bounds are (low, high) where only these are known."""
        return None if self.low is None or self.high is None or self.low == self.high else (self.low, self.high)


def read_sheet(path: Path, keys: set[str]) -> dict[str, Any]:
    """Read a YAML mapping that holds ``keys`` (those that end in ``?`` may lack); ``CdmppError`` names it."""
    content = read_yaml(path)
    needed, allowed = {key for key in keys if key[-1] != "?"}, {key.removesuffix("?") for key in keys}
    if not isinstance(content, dict) or not needed <= set(content) <= allowed:
        given = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        optional = f" (and may hold {', '.join(sorted(allowed - needed))})" if allowed > needed else ""
        raise CdmppError(f"{path}: must hold exactly the keys {sorted(needed)}{optional}, found {given}")
    if content["name"] != path.stem:
        raise CdmppError(f"{path}: field name is {content['name']!r}, expected the file's name {path.stem!r}")
    if not isinstance(content["documents"], dict):
        raise CdmppError(f"{path}: documents must be a mapping of short keys to titles and addresses")
    return content


def read_quantity(
    path: Path, field: str, entry: Any, unit: str, documents: Mapping[str, str], may_be_zero: bool = False
) -> Quantity:
    """Read one entry ``{value, unit, source}``; ``CdmppError`` names ``path``, ``field`` and what was expected."""
    where = f"{path}: field {field}"
    if not isinstance(entry, dict) or set(entry) != {"value", "unit", "source"}:
        raise CdmppError(f"{where} must be a mapping of value, unit and source")
    if str(entry["unit"]) != unit:
        raise CdmppError(f"{where}.unit is {entry['unit']!r}, expected {unit!r}")
    key, _, detail = str(entry["source"]).partition(":")
    if key not in documents and key not in _OTHER_SOURCES:
        allowed = ", ".join([*documents, *_OTHER_SOURCES])
        raise CdmppError(f"{where}.source names {key!r}, expected one of: {allowed} (then a colon and detail)")
    value = entry["value"]
    if value is None:
        if key in documents or key == MEASURED:
            raise CdmppError(f"{where} is null: its source must say 'not published' or 'not applicable', not {key!r}")
        return Quantity(None, None, str(entry["source"]), "unknown")
    bounds = value if isinstance(value, list) else [value, value]
    zero = may_be_zero and value == 0 and not isinstance(value, bool)
    if not zero and (len(bounds) != 2 or not all(map(_is_positive, bounds)) or bounds[0] > bounds[1]):
        expected = "a positive finite number, a range [low, high] of two, or null"
        text = any(isinstance(one, str) for one in bounds)
        hint = ". YAML takes it for a text: write numbers as 1.0e-6, with a dot and a sign" if text else ""
        raise CdmppError(f"{where}.value is {value!r}, expected {expected}{hint}")
    if key.startswith("not "):
        raise CdmppError(f"{where} has a value but its source says {key!r}")
    cited = documents.get(key, key)
    source = f"{cited} ({detail.strip()})" if detail else str(cited)
    return Quantity(float(bounds[0]), float(bounds[1]), source, MEASURED if key == MEASURED else "described")


def read_numbers(path: Path, content: Mapping[str, Any], kind: str, zero: str = "") -> dict[str, Quantity]:
    """Read the ``numbers`` in a core's sheet, one a name in ``FIELDS[kind]``; only that named ``zero`` may be 0.

    ``CdmppError`` names ``path`` and the number that is missing, unknown, not known or cannot be.
    """
    given, wanted = content["numbers"], FIELDS[kind]
    if not isinstance(given, dict) or set(given) != set(wanted):
        wrong = sorted(set(wanted) ^ set(given)) if isinstance(given, dict) else list(wanted)
        raise CdmppError(f"{path}: numbers missing or unknown: {', '.join(wrong)}")
    numbers = {
        name: read_quantity(path, f"numbers.{name}", given[name], told["unit"], content["documents"], name == zero)
        for name, told in wanted.items()
    }
    if lacking := [name for name, quantity in numbers.items() if quantity.value is None]:
        raise CdmppError(f"{path}: field numbers.{lacking[0]} is null: give a number, or a range [low, high]")
    for fault in out_of_range(kind, kind.replace("_", " "), numbers):
        raise CdmppError(f"{path}: field numbers.{fault}. Check the units")
    return numbers


def out_of_range(group: str, kind: str, numbers: Mapping[str, Quantity]) -> Iterator[str]:
    """Numbers that no ``kind`` of ``group``, a key of ``FIELDS``, has, and counts in fractions, a phrase each."""
    for name, number in numbers.items():
        unit, range_ = FIELDS[group][name]["unit"], FIELDS[group][name]["range"]
        least, most = range_ if isinstance(range_, list) else range_["cpu" if kind == "cpu" else "gpu"]
        for value in () if number.low is None or number.high is None else (number.low, number.high):
            if not least <= value <= most:
                yield f"{name} is {value:g} {unit}: expected what a {kind} has, {least:g} to {most:g}"
            if unit == "1" and value % 1 and not FIELDS[group][name].get("may_be_broken"):
                yield f"{name} is {value:g}: expected a whole number"


def sheet_files(group: str) -> dict[str, Path]:
    """Return name -> description in ``conf/GROUP``, the working folder's included; ``CdmppError``: there is none."""
    folder = conf_folder() / group
    if not folder.is_dir():
        raise CdmppError(f"no {group} descriptions found in {folder}: the installation is incomplete")
    places = (Path("conf") / group, folder)
    return {path.stem: path for place in places for path in place.resolve().glob("*.yaml")}


def sheet_file(group: str, what: str, name: str) -> Path:
    """Return the description of ``name``; ``CdmppError`` names the nearest ones where ``conf/GROUP`` has none."""
    files = sheet_files(group)
    if name not in files:
        readme = conf_folder() / group / "README.md"
        raise CdmppError(f"unknown {what} {name!r}; {nearest(name, sorted(files))} ({readme} tells how to add one)")
    return files[name]


def nearest(name: str, known: Collection[str]) -> str:
    """Say for a name that is not ``known`` which are the nearest, or all where none is near."""
    plain = {other.replace("-", ""): other for other in known}
    wanted = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    near = [plain[match] for match in difflib.get_close_matches(wanted, plain, n=3, cutoff=0.5)]
    near += [other for other in known if wanted and wanted in other.replace("-", "") and other not in near][:3]
    return f"nearest: {', '.join(near)}" if near else f"known: {', '.join(known)}"


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
