"""Programs -> compact ASTs with code vectors: what a prediction needs TVM for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cdmpp.ast.extract import extract_many
from cdmpp.ast.table import AstTable
from cdmpp.code.compile import code_vectors
from cdmpp.programs.task import Program

_SHOW_FROM = 20


def read_programs(programs: Sequence[Program], compiled: bool) -> AstTable:
    """Compact ASTs of ``programs``; ``compiled``: also compile those for CPUs, with a bar where it takes long."""
    table = AstTable.from_asts(extract_many(programs))
    if not compiled:
        return table
    codes = code_vectors(programs, progress=len(programs) >= _SHOW_FROM)
    return table if np.isnan(codes[:, 0]).all() else table.with_codes(codes)
