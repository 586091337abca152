"""Runs inside an OLD TVM environment (Python 3.6-3.9): Ansor records -> one portable feature file, no pickle in it.

    python export_ansor.py tenset    --measurements DIR --tasks all_tasks.pkl --device t4 --out t4.parquet
    python export_ansor.py reference --profiles DIR --network resnet18 --device t4 --out t4-resnet18.parquet

`tenset` needs TVM with auto_scheduler (0.8 to 0.15, or TenSet's fork) and reads its measurement logs. `reference` needs
numpy only and reads the profiled object arrays of CDMPP's public code: rows of [latency, std, flops, leaf vectors, node
ids, serialised tree]. Both read pickles, so point them at files you trust. Besides that: `pip install pyarrow numpy`.

The columns are described in cdmpp/data/importers/ansor_features.py. This file imports nothing of cdmpp on purpose.
"""

# ruff: noqa: UP006, UP035  (Python 3.6 has no list[str])
import argparse
import os
import sys
from typing import Any, Dict, Iterable, Iterator, List

VERSION = "ansor164-1"
WIDTH = 164
FEATURES_PER_CALL = 512


def tenset_rows(arguments: argparse.Namespace) -> Iterator[Dict[str, Any]]:
    """Yield one row for each successful measurement of TenSet's logs (one .json file a task)."""
    import pickle

    import numpy as np
    from tvm import auto_scheduler
    from tvm.auto_scheduler.feature import get_per_store_features_from_measure_pairs

    described = {}
    if arguments.tasks:
        with open(arguments.tasks, "rb") as file:
            described = {task.workload_key: task for task in pickle.load(file)}
    for path in files(arguments.measurements, ".json"):
        pairs = list(auto_scheduler.RecordReader(path))
        good = [(i, r) for i, r in pairs if r.error_no == 0]
        for start in range(0, len(good), FEATURES_PER_CALL):
            part = good[start : start + FEATURES_PER_CALL]
            inputs = [auto_scheduler.measure.recover_measure_input(i, rebuild_state=True) for i, _ in part]
            features, _, _ = get_per_store_features_from_measure_pairs(inputs, [r for _, r in part])
            for (measured, result), leaves in zip(part, features):  # noqa: B905  (strict= came with Python 3.10)
                costs = [float(c.value if hasattr(c, "value") else c) for c in result.costs]
                key = measured.task.workload_key
                task = described.get(key, measured.task)
                leaves = np.asarray(leaves, "float32").reshape(-1, WIDTH)
                yield {
                    "latency_s": float(np.mean(costs)),
                    "std_s": float(np.std(costs)),
                    "device": arguments.device,
                    "network": arguments.network or "tenset",
                    "task": key,
                    "op_name": getattr(task, "desc", "") or "",
                    "flops": float(task.compute_dag.flop_ct),
                    "leaf_features": leaves.ravel().tolist(),
                    "node_ids": list(range(len(leaves))),
                    "serialized_tree": [],
                }


def reference_rows(arguments: argparse.Namespace) -> Iterator[Dict[str, Any]]:
    """Yield one row for each profiled program of CDMPP's public code (one .npy object array a task)."""
    import numpy as np

    for path in files(arguments.profiles, ".npy"):
        task = os.path.splitext(os.path.relpath(path, arguments.profiles))[0]
        for latency, std, flops, leaves, nodes, tree in np.load(path, allow_pickle=True):
            leaves = np.asarray(leaves, "float32").reshape(-1, WIDTH)
            yield {
                "latency_s": float(latency),
                "std_s": float(std),
                "device": arguments.device,
                "network": arguments.network,
                "task": task,
                "op_name": "",
                "flops": float(flops),
                "leaf_features": leaves.ravel().tolist(),
                "node_ids": [int(node) for node in nodes],
                "serialized_tree": [int(node) for node in tree],
            }


def files(folder: str, suffix: str) -> List[str]:
    """All files below folder with that suffix, sorted."""
    paths = [os.path.join(root, name) for root, _, names in os.walk(folder) for name in names if name.endswith(suffix)]
    if not paths:
        sys.exit(f"error: no *{suffix} below {folder}")
    return sorted(paths)


def write(rows: Iterable[Dict[str, Any]], out: str, part: int = 5000) -> None:
    """Write rows in parts, so that memory stays flat; the file appears whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("latency_s", pa.float64()),
            ("std_s", pa.float64()),
            ("device", pa.string()),
            ("network", pa.string()),
            ("task", pa.string()),
            ("op_name", pa.string()),
            ("flops", pa.float64()),
            ("leaf_features", pa.list_(pa.float32())),
            ("node_ids", pa.list_(pa.int32())),
            ("serialized_tree", pa.list_(pa.int32())),
        ],
        metadata={"cdmpp_feature_file": VERSION},
    )
    count = 0
    waiting: List[Dict[str, Any]] = []
    temporary = out + ".tmp"
    with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:

        def flush() -> None:
            columns = {name: [row[name] for row in waiting] for name in schema.names}
            writer.write_table(pa.Table.from_pydict(columns, schema=schema))
            del waiting[:]

        for row in rows:
            waiting.append(row)
            count += 1
            if len(waiting) == part:
                flush()
                print(f"{count} programs", file=sys.stderr)
        if waiting:
            flush()
    os.replace(temporary, out)
    print(f"{out}: {count} programs")


def main() -> None:
    """Read what the command line names and write one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    commands.required = True
    tenset = commands.add_parser("tenset", help="measurement logs of TenSet")
    tenset.add_argument("--measurements", required=True, help="folder of the logs of one device")
    tenset.add_argument("--tasks", help="all_tasks.pkl of TenSet, for the names of operators")
    tenset.add_argument("--network", help="network name for all of them; default: tenset")
    reference = commands.add_parser("reference", help="profiled arrays of CDMPP's public code")
    reference.add_argument("--profiles", required=True, help="folder of .npy files of one network on one device")
    reference.add_argument("--network", required=True)
    for command in (tenset, reference):
        command.add_argument("--device", required=True, help="name as in conf/device, such as t4 or epyc-7452")
        command.add_argument("--out", required=True, help="Parquet file to write")
    arguments = parser.parse_args()
    write((tenset_rows if arguments.command == "tenset" else reference_rows)(arguments), arguments.out)


if __name__ == "__main__":
    main()
