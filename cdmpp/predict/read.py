"""Whatever ``Predictor.predict`` is given -> compact ASTs with labels, and what was left out of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.layout import EAGER_FEATURES, EXTRACTOR_VERSION
from cdmpp.ast.table import AstTable
from cdmpp.errors import CdmppError
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.operator_vector import operator_table
from cdmpp.predict.program_batch import ProgramBatch, ReadOptions


def read_batch(programs: Any, options: ReadOptions) -> ProgramBatch:
    """Read programs; ``CdmppError`` where nothing can be read of what was given."""
    if isinstance(programs, AstTable):
        return ProgramBatch(programs, _numbers(len(programs)))
    if isinstance(programs, str | Path):
        from cdmpp.predict.folder import read_path  # it reads tables, which takes time to import

        return read_path(Path(programs), options)
    items: list[Any] = list(programs) if isinstance(programs, Sequence) else [programs]
    if items and all(isinstance(item, EagerOperator) for item in items):
        return _of_operators(items, options)
    if options.features != "cdmpp":
        raise CdmppError(f"this model reads {options.features} vectors: give it a data set or a Parquet file of them")
    if all(isinstance(item, CompactAST) for item in items):
        if other := sorted({item.extractor_version for item in items} - {EXTRACTOR_VERSION}):
            raise CdmppError(
                f"ASTs of extractor version {', '.join(other)} given, this model reads version {EXTRACTOR_VERSION}; "
                "extract them again"
            )
        return ProgramBatch(AstTable.from_asts(items), _numbers(len(items)))
    try:
        from cdmpp.predict.compiled import read_programs
    except ImportError as error:
        raise CdmppError(
            "predicting programs needs TVM to lower them: pip install 'cdmpp[tvm]'. Stored ASTs need none"
        ) from error
    return read_programs(items, options)


def _of_operators(operators: Sequence[EagerOperator], options: ReadOptions) -> ProgramBatch:
    if options.features != EAGER_FEATURES:
        raise CdmppError(
            "this model predicts scheduled programs, not framework operators: name a model of those "
            f"(trained with model=library features={EAGER_FEATURES})"
        )
    kind = "cpu" if options.device.kind == "cpu" else "gpu"
    return ProgramBatch(_asts(tuple(operators), kind), tuple(map(str, operators)))


@lru_cache(maxsize=1)  # one after the other asks for latencies and the device's share of the same calls
def _asts(operators: tuple[EagerOperator, ...], kind: str) -> AstTable:
    return operator_table(operators, kind)


def _numbers(n: int) -> tuple[str, ...]:
    return tuple(f"#{i}" for i in range(n))
