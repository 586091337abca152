"""Seconds of a convolution's gradients over those of its forward pass, as NVIDIA measured them with cuDNN.

``python -m benchmarks.convolution_gradients FILE ...``: FILE is a table of DeepBench (``results/train/*.xlsx`` of
github.com/baidu-research/DeepBench), such as those of the V100 and the T4. Prints, as Markdown, the medians over all
files that ``cdmpp.operators.training_form.RATIOS`` has, and those of each file.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

from benchmarks.publish.markdown import table
from cdmpp.operators.training_form import NARROW

_SPACE = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_SHEETS = {"vector": "FP32", "matrix": "Mixed math"}
_COLUMNS = {
    **{"C": "C", "K": "K", "kernel": "S (Filter", "stride": "Horizontal stride"},
    **{"forward": "Forward (msec)", "image": "wrt Inputs (msec)", "filter": "wrt Parameters (msec)"},
}
"""What is read -> how its column's head begins."""
Key = tuple[str, int, bool]


def main(*files: str) -> None:
    """Print the table."""
    found: dict[tuple[str, Key, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for file in files:
        for unit, sheet in _SHEETS.items():
            for key, of, ratio in _ratios(Path(file), sheet):
                found[unit, key, of][Path(file).stem].append(ratio)
    lines = []
    for (unit, (taps, stride, narrow), of), by_file in sorted(found.items()):
        every = [one for own in by_file.values() for one in own]
        own = (f"{median(by_file[Path(file).stem]):.2f}" for file in files)
        lines.append([unit, taps, stride, "narrow" if narrow else "wide", of, len(every), f"{median(every):.2f}", *own])
    heads = [
        "unit",
        "filter",
        "stride",
        "channels",
        "gradient of",
        "calls",
        "over forward",
        *(Path(f).stem for f in files),
    ]
    print(*table(heads, lines), sep="\n")


def _ratios(path: Path, sheet: str) -> Iterator[tuple[Key, str, float]]:
    """(class, gradient, ratio) of each convolution in a sheet whose name ends so."""
    columns: dict[str, str] = {}
    for row in _rows(path, sheet):
        if any(value.startswith(_COLUMNS["forward"]) for value in row.values()):
            heads = {
                name: [at for at, value in row.items() if value.strip().startswith(head)]
                for name, head in _COLUMNS.items()
            }
            columns = {name: at[0] for name, at in heads.items() if at}
            continue
        if columns.keys() != _COLUMNS.keys():
            continue
        given = {name: _number(row.get(at, "")) for name, at in columns.items()}
        if any(given[name] is None for name in ("C", "K", "kernel", "stride", "forward")):
            columns = {} if "C" in given and given["C"] is None and given["forward"] is None else columns
            continue
        kernel, stride, forward = (given[name] or 0.0 for name in ("kernel", "stride", "forward"))
        key = ("1x1" if kernel == 1 else "kxk", int(stride), min(given["C"] or 0, given["K"] or 0) <= NARROW)
        for of in ("image", "filter"):
            if seconds := given[of]:
                yield key, of, seconds / forward


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _rows(path: Path, sheet: str) -> Iterator[dict[str, str]]:
    """Column -> text, of each row of the sheet whose name ends so."""
    with zipfile.ZipFile(path) as book:
        names = [
            one.get("name", "") for one in ElementTree.fromstring(book.read("xl/workbook.xml")).iter(f"{_SPACE}sheet")
        ]
        place = next(place for place, name in enumerate(names, 1) if name.strip().endswith(sheet))
        shared = ElementTree.fromstring(book.read("xl/sharedStrings.xml")).iter(f"{_SPACE}si")
        texts = ["".join(part.text or "" for part in one.iter(f"{_SPACE}t")) for one in shared]
        content = ElementTree.fromstring(book.read(f"xl/worksheets/sheet{place}.xml"))
    for row in content.iter(f"{_SPACE}row"):
        found = {}
        for cell in row.iter(f"{_SPACE}c"):
            value = cell.findtext(f"{_SPACE}v")
            if value is not None:
                column = re.sub(r"\d", "", cell.get("r", ""))
                found[column] = texts[int(value)] if cell.get("t") == "s" else value
        yield found


if __name__ == "__main__":
    main(*sys.argv[1:])
