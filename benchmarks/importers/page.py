"""The page of the importers: operator by operator what is right, refused, and wrong in TVM."""

from __future__ import annotations

import importlib.metadata
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.importers.trial import CRASHED, REFUSED, RIGHT, SHAPE, STOPPED, TYPE, VALUES
from benchmarks.publish.markdown import table, write_page
from cdmpp.programs.known_faults import known_faults
from cdmpp.programs.torch_repairs import repairs

PAGE = Path("docs/results/importers.md")
_INTRO = """Written by `python -m benchmarks.importers`; do not edit by hand.

Each operator that TVM's importers convert, with several settings and small shapes: imported, lowered, compiled for a
CPU, run, and compared with the right results. For ONNX these are the standard's own test vectors, and what ONNX Runtime
computes of the same nodes under older operator sets and of further forms; for torch, what eager PyTorch computes of
layers and of samples of its own operator tests, exported and decomposed as TVM takes them.

- **right**: shape, type and values.
- **refused by TVM**: its importer or its passes raise an error; so does `cdmpp`, with the node.
- **refused here**: TVM imports another shape, type or meaning without a word. `cdmpp` refuses it: values are compared
  with what the network declares, and settings whose values are wrong are in `cdmpp/programs/wrong_in_tvm.json`.
- **repaired here**: converted by `cdmpp` itself, as the source defines it (`cdmpp/programs/torch_repairs.py`).
- **same work**: other values, but the same loops over the same data: answered, since the time is the same.
- **not run**: imported, but TVM does not compile and run it within two minutes: not judged.
- **not judged**: not right, and what `cdmpp` says to it was not asked yet.
- **open**: wrong and answered. There must be none."""
_KINDS = (RIGHT, "refused by TVM", "refused here", "repaired here", "same work", "not run", "not judged", "open")


def write_importers(trials: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]]) -> None:
    """Replace the page; ``SystemExit`` where something wrong is answered."""
    judged = {row["key"]: row for row in verdicts}
    kinds = {row["key"]: _kind(row, judged.get(row["key"])) for row in trials}
    lines = ["# Importers", "", _INTRO, "", f"With {_versions()}.", "", "## In short", ""]
    of = {source: [row for row in trials if row["key"].startswith(f"{source}/")] for source in ("onnx", "torch")}
    lines += table(("", "settings", *_KINDS), [_line(source, rows, kinds) for source, rows in of.items()])
    lines += ["", "## What TVM makes another operator of", ""]
    lines += table(("operator", "setting", "what it makes", "here"), _faults(), left=4)
    lines += ["", "## Other shapes and types", "", "Found by comparison alone; a setting each.", ""]
    lines += table(("operator", "setting", "TVM"), _by_comparison(trials), left=3)
    for source, rows in of.items():
        lines += ["", f"## {source}, operator by operator", ""]
        by_operator: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for row in rows:
            for operator in row["operators"]:
                by_operator[operator].append(row)
        lines += table(
            ("operator", "settings", *_KINDS), [_line(name, by_operator[name], kinds) for name in sorted(by_operator)]
        )
        known = _converted(source)
        untried = [f"`{name}`" for name in known if name not in by_operator]
        lines += [
            "",
            f"Of {len(known)} that TVM has converters for, {len(untried)} were not tried: {', '.join(untried)}.",
        ]
    write_page(PAGE, lines)
    wrong = [f"{key}: {judged.get(key)}" for key, kind in kinds.items() if kind == "open"]
    refused = [key for key, kind in kinds.items() if kind == RIGHT and (judged.get(key) or {}).get("refusal")]
    print(f"{len(trials)} cases, {len(wrong)} wrong and answered, {len(refused)} right and refused")
    if wrong or refused:
        told = [f"right, but refused: {key}: {judged[key]['refusal']}" for key in refused]
        raise SystemExit("\n".join([*(f"wrong, but answered: {one}" for one in wrong), *told]))


def _converted(source: str) -> list[str]:
    """Names in the importer's table of converters."""
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    return sorted(_get_convert_map() if source == "onnx" else ExportedProgramImporter().convert_map)


def _kind(row: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> str:
    if row["outcome"] == RIGHT:
        return RIGHT
    if row["outcome"] == REFUSED:
        return "refused by TVM"
    if verdict is None:
        return "not judged"
    if verdict["refusal"]:
        return "refused by TVM" if "TVM cannot" in verdict["refusal"] else "refused here"
    if set(row["operators"]) & set(repairs()) and row["key"].startswith("torch/"):
        return "repaired here"
    if row["outcome"] in (STOPPED, CRASHED):
        return "not run"
    return "same work" if row["outcome"] == VALUES and verdict["same_work"] else "open"


def _line(name: str, rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, str]) -> list[object]:
    found = [kinds[row["key"]] for row in rows]
    return [f"`{name}`", len(rows), *(found.count(kind) or "" for kind in _KINDS)]


def _faults() -> list[list[object]]:
    return [
        [
            f"`{one.operator}` ({one.source})",
            _cell(one.setting) or "any",
            one.what,
            "answered, same work" if one.same_work else "refused",
        ]  # fmt: skip
        for one in sorted(known_faults(), key=lambda one: (one.source, one.operator))
    ]


def _by_comparison(trials: Sequence[Mapping[str, Any]]) -> list[list[object]]:
    seen: dict[tuple[str, ...], list[object]] = {}
    for row in trials:
        if row["outcome"] in (SHAPE, TYPE):
            place = (row["operators"][0], row["outcome"])
            seen.setdefault(place, [f"`{row['operators'][0]}`", _cell(row["setting"]), _cell(row["words"])])
    return [seen[place] for place in sorted(seen)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")[:160]


def _versions() -> str:
    names = ("apache-tvm", "onnx", "onnxruntime", "torch")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
