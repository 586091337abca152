"""The shipped networks are what this version reads, draws and compiles: else ``scripts/build_known_networks.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cdmpp import devices
from cdmpp.ast.table import read_asts
from cdmpp.data.codes import cached_codes
from cdmpp.errors import CdmppError
from cdmpp.network.compiled.candidates import candidates_of, candidates_path
from cdmpp.network.compiled.choice import codes_folder, program_key
from cdmpp.network.compiled.prepared import PreparedNetwork
from cdmpp.network.compiled.rule import DEFAULT, ScheduleRule
from cdmpp.network.compiled.runtime import CompiledRuntime
from cdmpp.network.compiled.stored_graph import graph_for, graph_path
from cdmpp.network.eager import kept_reads
from cdmpp.network.eager.kept_reads import KeptReads
from cdmpp.network.eager.plain_read import plain_read
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.eager.stored_read import read_path, stored_read
from cdmpp.network.network_key import name_key, toolchain, version_of
from cdmpp.network.workload import Workload
from cdmpp.platform.cache import bring
from cdmpp.platform.shipped import KNOWN, shipped_content, shipped_networks

pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm
AGAIN = "cdmpp/known is not of this version: run scripts/build_known_networks.py"
SMALL = "torchvision:squeezenet1_1"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(KNOWN, raising=False)
    for one in shipped_networks():
        here = {name: toolchain() if name == "toolchain" else version_of(name) for name in one["made_with"]}
        if here != one["made_with"]:
            pytest.skip(f"shipped networks are of other packages: {one['made_with']}")
    return tmp_path / "cache"


def known(runtime: str) -> list[dict]:
    return [one for one in shipped_networks() if one["runtime"] == runtime]


def test_well_known_networks_are_shipped(cache):
    for runtime in ("tvm", "torch"):
        assert {"torchvision:resnet50", "hf:gpt2", SMALL} <= {one["network"] for one in known(runtime)}
    size = sum(path.stat().st_size for path in (Path(devices.__file__).parents[1] / "known").iterdir())
    assert size < 3e6, f"{size:,} bytes"


def test_all_entries_have_the_names_that_this_version_looks_for(cache):
    for one in known("torch"):
        for batch in (None, *one["batches"], one["up_to"]):
            for place in one["on"]:
                path = read_path(Workload(one["network"], batch=batch), place)
                assert shipped_content(path) is not None, f"{one['network']}: {AGAIN}"
    for one in known("tvm"):
        for batch in (None, *one["batches"]):
            path = graph_path(Workload(one["network"], batch=batch), name_key(one["network"]))
            assert shipped_content(path) is not None, f"{one['network']}: {AGAIN}"
        graph = graph_for(Workload(one["network"])).graph
        for device in map(devices.get, one["on"]):
            target = json.dumps(device.target, sort_keys=True)
            bring(folder := codes_folder(device))
            codes = cached_codes(folder)
            for task in graph.tasks.values():
                bring(path := candidates_path(task, target, ScheduleRule.parse(DEFAULT).n))
                assert path.is_file(), f"{one['network']} on {device.name}: {AGAIN}"
                keys = {program_key(task.workload, schedule) for schedule in read_asts(path)[0]}
                assert device.kind == "gpu" or keys & codes.keys(), (
                    f"{one['network']} on {device.name}, {task.op_name}: {AGAIN}"
                )


@pytest.mark.parametrize(("network", "batch"), [(SMALL, None), (SMALL, 8), ("hf:gpt2", 1), ("hf:gpt2", 5)])
def test_operators_are_what_is_read_now(network, batch, cache, monkeypatch):
    workload, places = Workload(network, batch=batch), known("torch")[0]["on"]
    stored = {place: stored_read(workload, place) for place in places}
    monkeypatch.setenv(KNOWN, "")
    monkeypatch.setenv("CDMPP_CACHE", str(cache / "other"))
    kept = KeptReads()
    for place in places:
        now = kept.read(workload, place)
        assert stored[place] == now, f"{place}: {AGAIN}"
        assert plain_read(stored[place]) == plain_read(now)  # in this order


def test_a_shipped_network_is_read_without_an_export(cache, monkeypatch):
    monkeypatch.setattr(kept_reads, "_read", refused)
    for batch in (None, 1, 2, 3, 32, 1000, 1024):
        found = EagerRuntime().read(Workload("torchvision:resnet50", batch=batch), devices.get("h100"))
        assert found.batch == (batch or 1)
    others = {"batch": 1025}, {"batch": 3, "precision": "bf16-autocast"}, {"batch": 3, "mode": "forward_backward"}
    for other in others:
        with pytest.raises(CdmppError, match="it is read"):
            EagerRuntime().read(Workload("torchvision:resnet50", **other), devices.get("h100"))


def test_other_inputs_are_none_of_a_shipped_network(cache):
    assert stored_read(Workload("hf:gpt2", batch=3), "sm_90") is not None
    for other in ({"sequence": 16}, {"past": 16}, {"attention": "math"}, {"inputs": {"input_ids": (3, 16)}}):
        assert stored_read(Workload("hf:gpt2", batch=3, **other), "sm_90") is None


@pytest.mark.parametrize("damage", ["[]", '{"least": 2}', '{"least": 2, "most": 1024, "read": []}', "no JSON"])
def test_a_damaged_read_of_all_batches_is_none(damage, cache):
    path = read_path(Workload(SMALL, batch=3), "sm_90")
    path.parent.mkdir(parents=True)
    path.write_text(damage)
    assert stored_read(Workload(SMALL, batch=3), "sm_90") is None


def test_further_batches_import_no_reader(cache):
    """Neither the library of models nor what an export needs."""
    code = (
        "import sys, cdmpp\n"
        "for batch in (1, 2, 3):\n"
        "    workload = cdmpp.Workload('torchvision:resnet18', batch=batch)\n"
        "    cdmpp.predict_network(workload, device='a100', runtime='torch', progress=False)\n"
        "    print([name for name in ('torchvision', 'sympy', 'torch._dynamo', 'tvm') if name in sys.modules])\n"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert told.stdout == "[]\n" * 3


def test_what_readme_compares_draws_no_schedule_on_gpus(cache, monkeypatch):
    monkeypatch.setattr("cdmpp.network.compiled.candidates._sampled", lambda *_: pytest.fail(AGAIN))
    tasks = graph_for(Workload("torchvision:resnet50")).graph.tasks
    for device in map(devices.get, ("a100", "h200")):
        found = candidates_of(tasks, device, ScheduleRule.parse(DEFAULT).n)
        assert sum(len(one.schedules) for one in found.values()) > 300, device.name


def test_schedules_of_a_gpu_are_what_is_drawn_now(cache, monkeypatch):
    """One kernel: others take up to half a minute."""
    device, tasks = devices.get("h200"), graph_for(Workload("torchvision:resnet50")).graph.tasks
    own = {key: task for key, task in tasks.items() if task.op_name == "mean"}
    shipped = candidates_of(own, device, 16)
    monkeypatch.setenv(KNOWN, "")
    monkeypatch.setenv("CDMPP_CACHE", str(cache / "other"))
    assert [one.schedules for one in candidates_of(own, device, 16).values()] == [
        one.schedules for one in shipped.values()
    ], AGAIN


def refused(*_):
    raise CdmppError("it is read")


def test_graph_schedules_and_machine_code_are_what_is_made_now(cache, monkeypatch):
    """A few kernels: compiling all takes half a minute."""
    device, rule = devices.get("epyc-genoa"), ScheduleRule.parse(DEFAULT)
    runtime = CompiledRuntime()
    shipped = graph_for(Workload(SMALL), lambda: pytest.fail(AGAIN))
    tasks = {key: shipped.graph.tasks[key] for key in sorted(shipped.graph.tasks)[:3]}
    monkeypatch.setattr("cdmpp.network.compiled.candidates._sampled", lambda *_: pytest.fail(AGAIN))
    chooser = PreparedNetwork.of(shipped, device, runtime._model_name(device, False), rule, False).chooser
    own = codes_folder(chooser.device)
    codes = cached_codes(own)
    fast = chooser.choose(tasks, progress=False)
    monkeypatch.undo()
    monkeypatch.setenv(KNOWN, "")
    monkeypatch.setenv("CDMPP_CACHE", str(cache / "other"))
    assert graph_for(Workload(SMALL)).graph == shipped.graph, AGAIN
    slow = chooser.choose(tasks, progress=False)
    assert slow == fast, AGAIN  # to the last bit
    made = cached_codes(codes_folder(chooser.device))
    assert made and all(np.array_equal(made[key], codes[key]) for key in made), AGAIN
