"""ASTs that two shipped data sets have in common are kept in one: a compact AST does not depend on the device.

``python -m benchmarks.publish.share_asts folder=datasets/xeon-icelake-2c source=datasets/xeon-icelake``
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from benchmarks.publish.command_line import run
from cdmpp.ast.table import AstTable, read_asts, write_asts
from cdmpp.data.shared_asts import write_shared


def share(folder: Path, source: Path) -> tuple[int, int]:
    """Leave in ``folder`` only ASTs that ``source`` lacks; returns how many are shared, and how many are left."""
    there = {digest: name for name, digest in _digests(source)}
    parts = sorted((folder / "asts").glob("part-*.parquet"))
    read = [read_asts(part) for part in parts]
    same_as = {name: there[digest] for name, digest in _digests(folder) if digest in there}
    own = [(name, table[row]) for names, table in read for row, name in enumerate(names) if name not in same_as]
    write_shared(folder, source.name, same_as)
    for part in parts:
        part.unlink()
    if own:
        write_asts(parts[0], [name for name, _ in own], AstTable.from_asts([ast for _, ast in own]))
    return len(same_as), len(own)


def _digests(folder: Path) -> list[tuple[str, bytes]]:
    """Record id and digest of each AST in the parts of ``folder``."""
    found = []
    for part in sorted((folder / "asts").glob("part-*.parquet")):
        names, table = read_asts(part)
        for row, name in enumerate(names):
            one = table.take(np.array([row]))
            arrays = [array for array in vars(one).values() if isinstance(array, np.ndarray)]
            found.append((name, hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).digest()))
    return found


def main(folder: str, source: str) -> None:
    """Share the ASTs of ``folder`` with ``source``."""
    shared, left = share(Path(folder), Path(source))
    print(f"{folder}: {shared} ASTs are those of {source}, {left} are its own")


if __name__ == "__main__":
    run(main, folder="???", source="???")
