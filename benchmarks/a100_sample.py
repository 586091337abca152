"""A sample of A100 records: ``python -m benchmarks.a100_sample OUT [most=256] FOLDER ...``.

All programs but convolutions, and of convolutions ``BIG`` of each folder, evenly over tasks, 24 of a task at least; an
hour derives its machine code. With ``most`` so many of each task at most, whatever it is, for ``benchmarks.replay``.
``cdmpp data codes --path OUT/NAME`` derives their code vectors.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from pathlib import Path

from cdmpp.data.records import Record, append_records, read_records, read_tasks, write_info, write_tasks

BIG, LEAST = 1800, 24


def main(out: Path, folders: list[Path], most: int | None = None) -> None:
    """A data set in ``out`` for each of ``folders``, with seed 0; ``most``: programs of each task."""
    for folder in folders:
        tasks, by_task = read_tasks(folder), defaultdict[str, list[Record]](list)
        for record in read_records(folder):
            by_task[record.task_id].append(record)
        big = {key for key in by_task if tasks[key].op_class in ("conv2d", "winograd")}
        whole, chosen, kept = sum(len(by_task[key]) for key in big), random.Random(0), list[Record]()
        for key in sorted(by_task):
            records = sorted(by_task[key], key=lambda record: record.record_id)
            chosen.shuffle(records)
            share = max(LEAST, round(BIG * len(records) / whole)) if key in big else len(records)
            kept += records[: share if most is None else most]
        made = out / folder.name
        made.mkdir(parents=True)
        write_tasks(made, [tasks[key] for key in sorted({record.task_id for record in kept})])
        append_records(made, kept)
        write_info(made, name=folder.name, devices=sorted({record.device for record in kept}), programs=len(kept))
        print(f"{made}: {len(kept)} of {sum(map(len, by_task.values()))} programs, {len(by_task)} tasks")


if __name__ == "__main__":
    told = [word.removeprefix("most=") for word in sys.argv[2:] if word.startswith("most=")]
    given = [Path(word) for word in sys.argv[2:] if not word.startswith("most=")]
    main(Path(sys.argv[1]), given, int(told[0]) if told else None)
