"""Programs a second that become features: our compact AST against TVM's own PerStoreFeature, one thread each."""

from __future__ import annotations

from timing import best_seconds, finish
from workloads import sampled

from cdmpp.ast.extract import extract

EACH, ROUNDS = 16, 5


def main() -> None:
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms

    per_store, rows = ms.feature_extractor.PerStoreFeature(), []
    for (operator, kind), programs in sampled(EACH).items():
        target = programs[0].target
        context = ms.TuneContext(target=target, num_threads=1)
        candidates = [[ms.MeasureCandidate(Schedule(program.module), [])] for program in programs]
        extract(programs[0].module, target)  # the first call loads the extractor
        total = {"ours": 0.0, "per_store": 0.0}
        for program, candidate in zip(programs, candidates, strict=True):
            actions = {
                "ours": lambda program=program, target=target: extract(program.module, target),
                "per_store": lambda c=candidate, context=context: [
                    r.numpy() for r in per_store.extract_from(context, c)
                ],
            }
            for name, seconds in best_seconds(actions, ROUNDS).items():
                total[name] += seconds
        rows.append({"operator": operator, "target": kind, "programs": len(programs), **total})
    finish(rows)


if __name__ == "__main__":
    main()
