"""Programs in memory -> compact ASTs with code vectors: extracted here, compiled in child processes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tvm

from cdmpp.ast.extract import extract_many
from cdmpp.ast.table import AstTable
from cdmpp.data.derive import Source
from cdmpp.data.targets import disagreement
from cdmpp.errors import UnsupportedProgramError
from cdmpp.machine_code.compile import can_compile
from cdmpp.predict.derived import Derived
from cdmpp.predict.inputs import Inputs, Wishes
from cdmpp.programs.task import Program


def read_programs(programs: Sequence[Program], wishes: Wishes) -> Inputs:
    """Raises ``UnsupportedProgramError`` for the first program that has no AST or another device's target."""
    labels = tuple(getattr(program, "name", "") or f"#{i}" for i, program in enumerate(programs))
    targets = {str(program.target): program.target for program in programs}
    texts = {key: json.dumps(json.loads(str(target))) for key, target in targets.items()}
    reasons = {key: disagreement(wishes.device, text) for key, text in texts.items()}
    for label, program in zip(labels, programs, strict=True):
        if reason := reasons[str(program.target)]:
            raise UnsupportedProgramError(f"program {label}: {reason}; lower it for its target or name another device")
    inputs = Inputs(AstTable.from_asts(extract_many(programs)), labels)
    if not wishes.compiled:
        return inputs
    sources = [
        Source(str(i), tvm.ir.save_json(program.module), "", texts[str(program.target)], graph=True)
        for i, program in enumerate(programs)
        if can_compile(program.target)
    ]
    with tempfile.TemporaryDirectory(prefix="cdmpp-") as scratch:
        derived = Derived.of(sources, wishes, "compiling", None, Path(scratch))
    return inputs.with_codes(derived.codes, derived.code_faults, [str(i) for i in range(len(programs))])
