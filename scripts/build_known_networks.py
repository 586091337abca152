"""Build ``cdmpp/known``: what the first question about a well-known network computes, up to what a model says of it.

python scripts/build_known_networks.py --work outputs/known   # a stopped run goes on; the same bytes from empty folders
python scripts/build_known_networks.py --reads                # operators as PyTorch runs them; the rest as it lies
python scripts/build_known_networks.py --check                # reads all networks again: nothing shipped is out of date

Graphs of networks as TVM compiles them, drawn schedules with their compact ASTs, code vectors of those that are worth
compiling, and operators as PyTorch runs them: files of the cache, named as there. Run it on a quiet machine, since a
program that compiles for too long has no code vector, and again when ``--check`` or tests/test_shipped.py say so.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import track

from cdmpp import Workload, devices
from cdmpp.ast.table import read_asts
from cdmpp.data.codes import cached_codes
from cdmpp.data.derived_table import write_codes
from cdmpp.errors import CdmppError
from cdmpp.network.compiled.candidates import candidates_of, candidates_path
from cdmpp.network.compiled.choice import codes_folder, program_key
from cdmpp.network.compiled.prepared import PreparedNetwork
from cdmpp.network.compiled.rule import DEFAULT, ScheduleRule
from cdmpp.network.compiled.runtime import CompiledRuntime
from cdmpp.network.compiled.stored_graph import graph_for, graph_path
from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.eager.open_read import plain_open_read, read_at
from cdmpp.network.eager.plain_read import plain_read, restored_read
from cdmpp.network.eager.read import export_run
from cdmpp.network.eager.stored_read import read_path
from cdmpp.network.eager.swept import SweptReader, difference
from cdmpp.network.network_key import name_key, toolchain, version_of
from cdmpp.platform.paths import cache_root
from cdmpp.platform.shipped import KNOWN, shipped_content, write_archives
from cdmpp.predict.catalogue import models
from cdmpp.predict.flags import NO_MACHINE_CODE

OUT = Path(__file__).resolve().parents[1] / "cdmpp" / "known"
NETWORKS = (
    "torchvision:resnet18", "torchvision:resnet50", "torchvision:mobilenet_v2", "torchvision:mobilenet_v3_large",
    "torchvision:vgg16", "torchvision:densenet121", "torchvision:efficientnet_b0", "torchvision:squeezenet1_1",
    "torchvision:shufflenet_v2_x1_0", "torchvision:vit_b_16", "hf:bert-base-uncased", "hf:gpt2",
)  # fmt: skip
DEVICES = ("epyc-genoa", "epyc-turin", "xeon-icelake", "xeon-emeraldrapids")
"""CPUs; others of the same target and core have the same programs."""
ON_GPUS = {"torchvision:resnet50": ("a100", "h200")}
"""What README compares. Their schedules take minutes to draw and little room: both GPUs have the same ones."""
BATCHES = (None, 1)
"""How people ask for one example."""
LEAST, *CHECKED, MOST = (2, 3, 5, 7, 16, 33, 64, 128, 256, 1000, 1024)
"""Batches at which PyTorch's operators are read and exported each by itself. From the first to the last one read serves
all: torch exports the network with an open batch and names no condition on it, and at each batch the operators of that
export are those of the read."""
Archives = dict[str, dict[str, bytes]]


def main() -> None:
    """Build, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("outputs/known"), help="cache of this run, which goes on")
    parser.add_argument("--out", type=Path, default=OUT, help="where the archives go, or lie")
    parser.add_argument("--reads", action="store_true", help="build what PyTorch runs alone; the rest stays")
    parser.add_argument("--check", action="store_true", help="read all networks again and compare")
    options = parser.parse_args()
    os.environ[KNOWN] = ""
    if options.check:
        check(options.out)
        return
    os.environ["CDMPP_CACHE"] = str(options.work.absolute())
    archives, known, kept = Archives(), list[dict[str, Any]](), dict[str, Any]()
    if options.reads:
        stored = json.loads(lzma.decompress((options.out / "index.xz").read_bytes()))
        known += [one for one in stored["networks"] if one["runtime"] == "tvm"]
        kept = {name: entry for name, entry in stored["entries"].items() if not entry[0].startswith("reads-")}
    else:
        add_programs(archives, known)
    add_reads(archives, known)
    write_archives(options.out, archives, known, kept)
    print(f"{sum(path.stat().st_size for path in options.out.iterdir()):,} bytes in {options.out}")


def add_programs(archives: Archives, known: list[dict[str, Any]]) -> None:
    """Add what TVM makes of the networks on each device."""
    codes: dict[Path, dict[str, Any]] = {}
    for network, device in bar([(n, d) for n in NETWORKS for d in DEVICES], "compiling"):
        prepared = chosen(network, device)
        if any(NO_MACHINE_CODE in one.flags for one in prepared.chosen.values()):
            sys.exit(f"{network} on {device}: a program was not compiled in time: run this on a quieter machine")
        own = prepared.chooser.device
        folder, target = codes_folder(own), json.dumps(own.target, sort_keys=True)
        present, wanted = cached_codes(folder), codes.setdefault(folder, {})
        for task in prepared.read.graph.tasks.values():
            path = add_candidates(archives, network, candidates_path(task, target, prepared.rule.n))
            keys = [program_key(task.workload, schedule) for schedule in read_asts(path)[0]]
            wanted |= {key: present[key] for key in keys if key in present}
    for folder, vectors in codes.items():
        name = f"chunk-{hashlib.sha256(''.join(sorted(vectors)).encode()).hexdigest()[:16]}.parquet"
        with tempfile.TemporaryDirectory() as scratch:
            write_codes(Path(scratch) / name, dict(sorted(vectors.items())))
            content = unpacked(Path(scratch) / name)
        archives[f"codes-{folder.name[:8]}"] = {inside(folder / name): content}
    for network, batch in [(n, b) for n in NETWORKS for b in BATCHES]:
        workload = Workload(network, batch=batch)
        graph_for(workload)
        path = graph_path(workload, name_key(network))
        archives.setdefault("graphs", {})[inside(path)] = path.read_bytes()
    for network, device in bar([(n, d) for n in ON_GPUS for d in ON_GPUS[n]], "sampling"):
        tasks, own, n = graph_for(Workload(network)).graph.tasks, devices.get(device), ScheduleRule.parse(DEFAULT).n
        candidates_of(tasks, own, n, progress=False)
        for task in tasks.values():
            add_candidates(archives, network, candidates_path(task, json.dumps(own.target, sort_keys=True), n))
    known += [
        {
            "network": n,
            "runtime": "tvm",
            "on": list(on),
            "batches": BATCHES[1:],
            "made_with": {**made_with(n), "toolchain": toolchain()},
        }
        for n, on in [*((n, DEVICES) for n in NETWORKS), *ON_GPUS.items()]
    ]


def add_candidates(archives: Archives, network: str, path: Path) -> Path:
    """Add the schedules of a task, which lie at a path of the cache; return the path."""
    archives.setdefault(f"programs-{short(network)}", {})[inside(path)] = unpacked(path)
    return path


def add_reads(archives: Archives, known: list[dict[str, Any]]) -> None:
    """Add the operators of the networks on each architecture that a shipped model of PyTorch's kernels knows."""
    for network, path, content in reads("reading"):
        archives.setdefault(f"reads-{short(network)}", {})[inside(path)] = content
    known += [
        {
            "network": n,
            "runtime": "torch",
            "on": architectures(),
            "batches": [1],
            "up_to": MOST,
            "made_with": made_with(n),
        }
        for n in NETWORKS
    ]


def reads(title: str) -> Iterator[tuple[str, Path, bytes]]:
    """Yield name, path and content of each network's operators, read now."""
    for network in bar(NETWORKS, title):
        for batch in BATCHES:
            for place, read in read_at_places(network, batch).items():
                content = json.dumps(plain_read(read)).encode()
                if restored_read(json.loads(content)) != read:
                    sys.exit(f"{network} on {place} cannot be stored")
                yield network, path_of(network, batch, place), content
        own, proven = {batch: read_at_places(network, batch) for batch in (LEAST, *CHECKED, MOST)}, set[bytes]()
        for place in architectures():
            try:
                content = json.dumps(plain_open_read(own[LEAST][place], own[MOST][place])).encode()
                if content not in proven:
                    prove(network, place, json.loads(content))
            except CdmppError as error:
                sys.exit(f"{network} on {place} has no read of all batches: {error}")
            proven.add(content)
            for batch, at_places in own.items():
                found = read_at(json.loads(content), batch)
                if found != at_places[place] or plain_read(found) != plain_read(at_places[place]):
                    sys.exit(f"{network} on {place}: the read of all batches is not that of batch {batch}")
            yield network, path_of(network, LEAST, place), content


def read_at_places(network: str, batch: int | None) -> dict[str, EagerNetwork]:
    """Read a network on each architecture, by an export of its own."""
    run = export_run(Workload(network, batch=batch), architectures()[0])
    return {place: replace(run, place=place).read() for place in architectures()}


def prove(network: str, place: str, stored: Mapping[str, Any]) -> None:
    """``CdmppError``: an export with an open batch does not hold from ``LEAST`` to ``MOST``, or says something else."""
    reader = SweptReader(place, lambda point: Workload(network, batch=point["batch"]))
    list(reader.read([{"batch": LEAST}, {"batch": MOST}]))
    for batch in range(LEAST, MOST + 1):
        derived, found = reader.derived({"batch": batch}, place), read_at(stored, batch)
        if derived is None or found is None:
            raise CdmppError(f"torch exports batch {batch} by itself: {', '.join(reader.reasons)}")
        if told := difference(found, derived):
            raise CdmppError(f"at batch {batch} {told}")


def path_of(network: str, batch: int | None, place: str) -> Path:
    """Return the path of a read in the cache."""
    path = read_path(Workload(network, batch=batch), place)
    assert path is not None, "networks of such names have one"
    return path


def check(folder: Path) -> None:
    """End with an error that names the networks of which something shipped is not what is read now."""
    old = []
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["CDMPP_CACHE"] = scratch
        own = {path: content for _, path, content in reads("reading as PyTorch runs them")}
        for network, batch in bar([(n, b) for n in NETWORKS for b in BATCHES], "reading as TVM compiles them"):
            workload = Workload(network, batch=batch)
            graph_for(workload)
            path = graph_path(workload, name_key(network))
            own[path] = path.read_bytes()
        os.environ[KNOWN] = str(folder)
        old = [inside(path) for path, content in own.items() if shipped_content(path) != content]
    if old:
        sys.exit(f"{len(old)} of {len(own)} entries are out of date, {old[0]} among them: build them again")
    print(f"{len(own)} entries are what is read now")


def chosen(network: str, device: str) -> PreparedNetwork:
    """Choose the programs of a network, which puts all that is wanted into the cache."""
    runtime, described = CompiledRuntime(), devices.get(device)
    return runtime.choose(runtime.read(Workload(network), described), described, progress=False)


def made_with(network: str) -> dict[str, str]:
    """Return the versions without which a network's entries are not looked for."""
    library = "torchvision" if network.startswith("torchvision:") else "transformers"
    return {name: version_of(name) for name in ("torch", library)}


def architectures() -> list[str]:
    """Return those of the devices that shipped models of PyTorch's kernels learned from."""
    names = {name for one in models() if one.features == "library" for name in one.devices}
    return sorted({devices.get(name).architecture for name in names})


def inside(path: Path) -> str:
    """Return the name of a file below the cache."""
    return path.relative_to(cache_root()).as_posix()


def unpacked(path: Path) -> bytes:
    """Return a Parquet file without its compression: archives compress many of them at once."""
    stream = io.BytesIO()
    pq.write_table(pq.read_table(path), stream, compression="none", use_dictionary=False, write_statistics=False)
    return stream.getvalue()


def short(network: str) -> str:
    """Return a name without what reads it."""
    return network.rpartition(":")[2]


def bar(items: Any, title: str) -> Any:
    """Show a bar on stderr."""
    return track(items, title, console=Console(stderr=True))


if __name__ == "__main__":
    main()
