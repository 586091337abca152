"""Programs a second that become features: our compact AST against TVM's own PerStoreFeature, one thread each.

Ours twice: lowered by TVM and read, and read as it is scheduled, with the share of vectors that are then the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from timing import best_seconds, finish
from workloads import sampled

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.extract import is_gpu_target
from cdmpp.ast.lowering import lower
from cdmpp.ast.native import summarize
from cdmpp.ast.scheduled import extract_scheduled

_COMPARED = ("leaf_features", "leaf_positions", "leaf_serial_positions", "leaf_kernels", "kernel_features")
EACH, ROUNDS = 16, 5


def main() -> None:
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms

    per_store, rows = ms.feature_extractor.PerStoreFeature(), []
    for (operator, kind), programs in sampled(EACH).items():
        target = programs[0].target
        context = ms.TuneContext(target=target, num_threads=1)
        candidates = [[ms.MeasureCandidate(Schedule(program.module), [])] for program in programs]
        _lowered(programs[0].module, target)  # the first call loads the extractor
        extract_scheduled(programs[0].module, target)
        total, equal = {"ours": 0.0, "scheduled": 0.0, "per_store": 0.0}, 0
        for program, candidate in zip(programs, candidates, strict=True):
            actions = {
                "ours": lambda program=program, target=target: _lowered(program.module, target),
                "scheduled": lambda program=program, target=target: extract_scheduled(program.module, target),
                "per_store": lambda c=candidate, context=context: [
                    r.numpy() for r in per_store.extract_from(context, c)
                ],
            }
            for name, seconds in best_seconds(actions, ROUNDS).items():
                total[name] += seconds
            equal += _equal(_lowered(program.module, target), extract_scheduled(program.module, target))
        rows.append({"operator": operator, "target": kind, "programs": len(programs), "equal": equal, **total})
    finish(rows)


def _lowered(module: Any, target: Any) -> CompactAST:
    return summarize(lower(module, target), is_gpu_target(target))


def _equal(one: CompactAST, other: CompactAST) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in _COMPARED)


if __name__ == "__main__":
    main()
