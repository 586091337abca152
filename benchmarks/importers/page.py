"""The page of the importers: operator by operator what is right, refused, and wrong in TVM."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.importers.trial import CRASHED, HERE, REFUSED, RIGHT, SHAPE, STOPPED, TYPE, VALUES
from benchmarks.publish.markdown import table, write_page
from cdmpp.programs.known_faults import known_faults
from cdmpp.programs.torch_repairs import repairs

PAGE, RESULTS = Path("docs/results/importers.md"), Path(__file__).with_name("results.json")
_INTRO = """Written by `python -m benchmarks.importers`; do not edit by hand.

Each operator that TVM's importers convert, with several settings and small shapes: imported, lowered, compiled for a
CPU, run, and compared with the right results. For ONNX these are the standard's own test vectors, and what ONNX Runtime
computes from the same nodes under older operator sets and from further forms. For torch they are what eager PyTorch
computes from samples of its own operator tests, from layers and from further forms, exported and decomposed as `cdmpp`
does. Such a setting counts for the operators that torch exports and for those that it makes of them; a refusal counts
for the operator that it names.

- **right**: shape, type and values.
- **refused by TVM**: its importer or its passes raise an error; so does `cdmpp`, with the node.
- **refused here**: `torch.export` fails, or TVM imports another shape, type or meaning without a word. `cdmpp` refuses
  it: values are compared with what the network declares, and settings whose values are wrong are in
  `cdmpp/programs/wrong_in_tvm.json`.
- **same work**: other values, but the same loops over the same data: answered, since the time is the same.
- **not run**: imported, but TVM does not compile and run it within two minutes: not judged.
- **not judged**: not right, and what `cdmpp` says to it was not asked yet.
- **open**: wrong and answered. There must be none."""
_NOTES = {
    "onnx": " No version of ONNX has `AllClassNMS`: `cdmpp` refuses a file with it before TVM reads it.",
    "torch": " Torch has no such operators, or exports others in their place.",
}
_KINDS = (RIGHT, "refused by TVM", "refused here", "same work", "not run", "not judged", "open")


def write_importers(trials: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]]) -> None:
    """Replace the results that are kept and the page; ``SystemExit`` where something wrong is answered."""
    trials = [row for row in trials if row["operators"]]
    judged = {row["key"]: row for row in verdicts}
    kinds = {row["key"]: _kind(row, judged.get(row["key"])) for row in trials}
    results = {"versions": _versions(), "others": _by_comparison(trials), "sources": {}}
    for source in ("onnx", "torch"):
        rows = [row for row in trials if row["key"].startswith(f"{source}/")]
        operators: dict[str, Counter[str]] = {name: Counter() for name in _converted(source)}
        for row in rows:
            for operator in _concerned(row):
                if operator in operators:
                    operators[operator][kinds[row["key"]]] += 1
        counts = Counter(kinds[row["key"]] for row in rows)
        results["sources"][source] = {"settings": counts, "operators": operators}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    write_page(PAGE, page_of(results))
    wrong = [f"{key}: {judged.get(key)}" for key, kind in kinds.items() if kind == "open"]
    refused = [key for key, kind in kinds.items() if kind == RIGHT and (judged.get(key) or {}).get("refusal")]
    print(f"{len(trials)} cases, {len(wrong)} wrong and answered, {len(refused)} right and refused")
    if wrong or refused:
        told = [f"right, but refused: {key}: {judged[key]['refusal']}" for key in refused]
        raise SystemExit("\n".join([*(f"wrong, but answered: {one}" for one in wrong), *told]))


def page_of(results: Mapping[str, Any]) -> list[str]:
    """Lines of the page of ``results.json``."""
    lines = ["# Importers", "", _INTRO, "", f"With {results['versions']}.", "", "## In short", ""]
    heads = ("", "operators", "tried", "always right", "settings", *_KINDS)
    lines += table(heads, [_summary(*one) for one in results["sources"].items()])
    lines += ["", "## What TVM makes another operator of", ""]
    lines += table(("operator", "setting", "what it makes", "here"), _faults(), left=4)
    repaired = ", ".join(f"`{name}`" for name in sorted(repairs()))
    lines += ["", f"`cdmpp/programs/torch_repairs.py` converts some as torch defines them: {repaired}."]
    lines += ["", "## Other shapes and types", "", "Found by comparison alone; a setting each.", ""]
    lines += table(("operator", "setting", "TVM"), results["others"], left=3)
    for source, found in results["sources"].items():
        tried = {name: counts for name, counts in found["operators"].items() if counts}
        lines += ["", f"## {source}, operator by operator", ""]
        lines += table(("operator", "settings", *_KINDS), [_line(*one) for one in sorted(tried.items())])
        left = [f"`{name}`" for name in found["operators"] if name not in tried]
        lines += ["", f"Of {len(found['operators'])} that TVM has converters for, {len(left)} were not tried"]
        lines[-1] += f": {', '.join(left)}.{_NOTES.get(source, '')}" if left else "."
    return lines


def _concerned(row: Mapping[str, Any]) -> Sequence[str]:
    """All of the setting where it is right; else those that a refusal names, or that it is a form of."""
    if row["outcome"] == RIGHT:
        return row["operators"]
    named = re.findall(r"the torch operator (\S+) ", row["words"])
    known = {*row["operators"], ""} & {*_converted("torch")} if named else row["operators"]
    return [one for one in (*named, row["setting"]) if one in known][:1] or row["operators"]


def _converted(source: str) -> list[str]:
    """Names in the importer's table of converters."""
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    return sorted(_get_convert_map() if source == "onnx" else ExportedProgramImporter().convert_map)


def _kind(row: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> str:
    if row["outcome"] in (RIGHT, HERE):
        return str(row["outcome"])
    if row["outcome"] == REFUSED:
        return "refused by TVM"
    if verdict is None:
        return "not judged"
    if verdict["refusal"]:
        return "refused by TVM" if "TVM cannot" in verdict["refusal"] else "refused here"
    if row["outcome"] in (STOPPED, CRASHED):
        return "not run"
    return "same work" if row["outcome"] == VALUES and verdict["same_work"] else "open"


def _summary(source: str, found: Mapping[str, Any]) -> list[object]:
    tried = [counts for counts in found["operators"].values() if counts]
    right = [counts for counts in tried if set(counts) == {RIGHT}]
    _, *settings = _line(source, found["settings"])
    return [f"`{source}`", len(found["operators"]), len(tried), len(right), *settings]


def _line(name: str, counts: Mapping[str, int]) -> list[object]:
    return [f"`{name}`", sum(counts.values()), *(counts.get(kind) or "" for kind in _KINDS)]


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


def _by_comparison(trials: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    seen: dict[tuple[str, ...], list[str]] = {}
    for row in trials:
        another = re.search(r"declared as .*?, but TVM imports it as [^\]]*\]", row["words"])
        if row["outcome"] in (SHAPE, TYPE) or another:
            operator = _concerned(row)[0]
            words = another.group() if another else row["words"]
            seen.setdefault((operator, row["outcome"]), [f"`{operator}`", _cell(row["setting"]), _cell(words)])
    return [seen[place] for place in sorted(seen)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")[:160]


def _versions() -> str:
    names = ("apache-tvm", "onnx", "onnxruntime", "torch")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
