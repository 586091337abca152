"""Writes the compact ASTs of the sampled programs, so that model benchmarks run without TVM in their memory."""

from __future__ import annotations

import sys
from pathlib import Path

from workloads import sampled

from cdmpp.ast.extract import extract_many
from cdmpp.ast.table import AstTable, write_asts


def main() -> None:
    programs = [p for (_, kind), group in sampled(32).items() if kind == "cpu" for p in group]
    table = AstTable.from_asts(extract_many(programs))
    write_asts(Path(sys.argv[1]), [f"{p.task_id}-{i}" for i, p in enumerate(programs)], table)


if __name__ == "__main__":
    main()
