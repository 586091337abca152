"""Programs in memory -> compact ASTs with code vectors: extracted here, compiled in child processes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tvm

from cdmpp.ast.extract import extract_many
from cdmpp.ast.table import AstTable
from cdmpp.data.codes import read_codes
from cdmpp.data.derive import Source, Wanted, chunk_paths, cores, derive, failures
from cdmpp.data.targets import disagreement
from cdmpp.errors import UnsupportedProgramError
from cdmpp.machine_code.code_vector import CODE_WIDTH
from cdmpp.machine_code.compile import can_compile
from cdmpp.predict.inputs import Inputs, Wishes
from cdmpp.programs.task import Program


def read_programs(programs: Sequence[Program], wishes: Wishes) -> Inputs:
    """Raises ``UnsupportedProgramError`` for the first program that has no AST or another device's target."""
    labels = tuple(getattr(program, "name", "") or f"#{i}" for i, program in enumerate(programs))
    targets = {str(program.target): program.target for program in programs}
    texts = {key: json.dumps(json.loads(str(target))) for key, target in targets.items()}
    wrong = {key: reason for key, text in texts.items() if (reason := disagreement(wishes.device, text))}
    for label, program in zip(labels, programs, strict=True):
        if reason := wrong.get(str(program.target), ""):
            raise UnsupportedProgramError(f"program {label}: {reason}; lower it for its target or name another device")
    inputs = Inputs(AstTable.from_asts(extract_many(programs)), labels)
    if not wishes.compiled:
        return inputs
    sources = [
        Source(str(i), tvm.ir.save_json(program.module), "", texts[str(program.target)], graph=True)
        for i, program in enumerate(programs)
        if can_compile(program.target)
    ]
    return inputs.with_codes(*compile_sources(sources, len(programs), wishes.limit_s)) if sources else inputs


def compile_sources(sources: Sequence[Source], n: int, limit_s: float) -> tuple[np.ndarray | None, dict[int, str]]:
    """(n, CODE_WIDTH), NaN rows where there is none, and why; the keys of ``sources`` are row numbers."""
    with tempfile.TemporaryDirectory(prefix="cdmpp-") as name:
        folder = Path(name)
        for_now = derive([Wanted("codes", folder, sources)], cores(), True, "compiling", limit_s)["codes"]
        codes = np.full((n, CODE_WIDTH), np.nan, np.float32)
        for path in chunk_paths(folder):
            for key, row in read_codes(path).items():
                codes[int(key)] = row
        reasons = {int(key): reason for key, reason in {**failures(folder), **for_now}.items()}
    return codes, reasons
