"""ASTs and code vectors of programs given as text: read from chunk files after workers have derived what these lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.table import AstTable
from cdmpp.data.derive import Source, code_kind, core_of, derive
from cdmpp.platform.cores import cores
from cdmpp.predict.program_batch import ProgramBatch, ReadOptions


@dataclass(frozen=True)
class Derived:
    """ASTs and code vectors, or the reasons why there are none, are kept by the key of their source."""

    stored: Mapping[str, CompactAST]
    codes: Mapping[str, np.ndarray]
    """(CODE_WIDTH,) float32."""
    faults: Mapping[str, str]
    """Reasons why there is no AST."""
    code_faults: Mapping[str, str]

    @staticmethod
    def of(sources: Sequence[Source], options: ReadOptions, title: str, asts: Path | None, codes: Path) -> Derived:
        """Derive, and read from chunk files in the folders ``asts`` (None: no ASTs are wanted) and ``codes``."""
        from cdmpp.data.codes import cached_codes
        from cdmpp.data.loading import stored_asts

        unique = {source.key: source for source in sources}
        compiled = {key: s for key, s in unique.items() if code_kind(s.target) and options.compiled}
        wanted: dict[str, tuple[Path, list[Source]]] = {}
        if asts is not None:
            done = stored_asts(asts, set(unique))
            wanted["asts"] = asts, [s for key, s in unique.items() if key not in done]
        if compiled:
            present = cached_codes(codes)
            core = core_of(options.device)
            for key, source in compiled.items():
                if key not in present:
                    kind = str(code_kind(source.target))
                    wanted.setdefault(kind, (codes, []))[1].append(replace(source, core=core))
        faults = derive(wanted, cores(), True, title, options.limit_s)
        stored = {} if asts is None else stored_asts(asts, set(unique))
        of_codes = faults.get("codes", {}) | faults.get("gpu_codes", {})
        return Derived(stored, cached_codes(codes) if compiled else {}, faults.get("asts", {}), of_codes)

    def inputs(self, sources: Sequence[Source], labels: Sequence[str]) -> ProgramBatch:
        """Return the programs of sources that all have ASTs."""
        keys = [source.key for source in sources]
        inputs = ProgramBatch(AstTable.from_asts(self.stored[key] for key in keys), tuple(labels))
        return inputs.with_codes(self.codes, self.code_faults, keys)
