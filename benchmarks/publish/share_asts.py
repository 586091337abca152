"""ASTs that two shipped data sets have in common are kept in one: a compact AST does not depend on the device.

``python -m benchmarks.publish.share_asts folder=datasets/xeon-icelake-2c source=datasets/xeon-icelake``

Without ``source`` the ASTs of ``folder`` are only packed: in the order of its records, where neighbours are alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

import numpy as np

from benchmarks.publish.command_line import run
from cdmpp.ast.table import AstTable, read_asts, write_asts
from cdmpp.data.records import read_records
from cdmpp.data.shared_asts import write_shared
from cdmpp.errors import DataError


def share(folder: Path, source: Path) -> tuple[int, int]:
    """Leave in ``folder`` only ASTs that ``source`` lacks; returns how many are shared, and how many are left."""
    there = {digest: name for name, digest in _digests(source)}
    same_as = {name: there[digest] for name, digest in _digests(folder) if digest in there}
    write_shared(folder, source.name, same_as)
    return len(same_as), pack(folder, same_as)


def pack(folder: Path, without: Collection[str] = ()) -> int:
    """Write the ASTs of ``folder``, less those of ``without``, as one part in the order of its records.

    Returns how many there are.

    Raises:
        DataError: ``folder`` holds no ASTs.
    """
    parts = sorted((folder / "asts").glob("part-*.parquet"))
    if not parts:
        raise DataError(f"{folder / 'asts'} holds no part-*.parquet: derive its ASTs first")
    read = [read_asts(part) for part in parts]
    names, table = [name for some, _ in read for name in some], AstTable.concat([table for _, table in read])
    place = {name: row for row, name in enumerate(names) if name not in without}
    kept = [record.record_id for record in read_records(folder) if record.record_id in place]
    if kept:
        write_asts(parts[0], kept, table.take(np.array([place[name] for name in kept])), effort=19)
    for part in parts[bool(kept) :]:
        part.unlink()
    return len(kept)


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


def main(folder: str, source: str | None) -> None:
    """Share the ASTs of ``folder`` with ``source``; without one only pack them."""
    if source is None:
        print(f"{folder}: {pack(Path(folder))} ASTs")
        return
    shared, left = share(Path(folder), Path(source))
    print(f"{folder}: {shared} ASTs are those of {source}, {left} are its own")


if __name__ == "__main__":
    run(main, folder="???", source=None)
