"""Programs in memory -> compact ASTs with code vectors: extracted here, compiled in child processes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tvm

from cdmpp.ast.extract import extract_many
from cdmpp.ast.table import AstTable
from cdmpp.data.derive import Source
from cdmpp.errors import UnsupportedProgramError
from cdmpp.machine_code.cpu.compile import can_compile
from cdmpp.predict.derived import Derived
from cdmpp.predict.program_batch import ProgramBatch, ReadOptions
from cdmpp.programs.replay import parse_target
from cdmpp.programs.task import Program


def read_programs(programs: Sequence[Program], options: ReadOptions) -> ProgramBatch:
    """Read programs; ``UnsupportedProgramError`` for the first without an AST, or with another device's target."""
    labels = tuple(getattr(program, "name", "") or f"#{i}" for i, program in enumerate(programs))
    given = {str(program.target) for program in programs}
    texts, reasons = {}, {}
    for key in given:
        try:
            texts[key] = options.target_of(json.dumps(json.loads(key)))
        except UnsupportedProgramError as error:
            reasons[key] = error
    for label, program in zip(labels, programs, strict=True):
        if reason := reasons.get(str(program.target)):
            raise UnsupportedProgramError(f"program {label}: {reason}; or name another device")
    if options.retarget:
        targets = {key: parse_target(text) for key, text in texts.items()}
        programs = [replace(program, target=targets[str(program.target)]) for program in programs]
        texts = {str(targets[key]): text for key, text in texts.items()}
    inputs = ProgramBatch(AstTable.from_asts(extract_many(programs)), labels)
    if not options.compiled:
        return inputs
    sources = [
        Source(str(i), tvm.ir.save_json(program.module), "", texts[str(program.target)], graph=True)
        for i, program in enumerate(programs)
        if can_compile(program.target)
    ]
    with tempfile.TemporaryDirectory(prefix="cdmpp-") as scratch:
        derived = Derived.of(sources, options, "compiling", None, Path(scratch))
    return inputs.with_codes(derived.codes, derived.code_faults, [str(i) for i in range(len(programs))])
