"""Stored works hold as much as those that they were made of, at every micro-batch, and need no second reading."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys

import pytest

from cdmpp import devices
from cdmpp.errors import CdmppError
from cdmpp.network.workload import Workload
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.op_bytes import OpBytes
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.sources.stored import _FIXED, _GROWING, StoredSource
from cdmpp.predict.catalogue import models
from cdmpp.steps.step_graph import Op
from tests.plans.toy_source import ToySource

NETWORK = "hf:prajjwal1/bert-tiny"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path))
    return tmp_path


def never():
    raise AssertionError("it was read again")


def stored(make, network=NETWORK, **settings):
    return StoredSource(Workload(network, mode="training_step", **settings), devices.get("a100"), None, make)


def sizes(work):
    found = OpBytes.of(work.rank.ops)
    return {one.name: getattr(found, one.name).tolist() for one in dataclasses.fields(found)}


def test_works_of_all_micro_batches_are_those_of_the_network():
    made = PredictedSource(Workload(NETWORK, mode="training_step"), devices.get("a100"))
    assert stored(lambda: made).work(4, ParallelDegrees()).memory is not None
    again = stored(never)
    for batch in (1, 2, 3, 8, 24):
        own, asked = made.work(batch, ParallelDegrees()), again.work(batch, ParallelDegrees(dp_shard=8, pp=2))
        assert sizes(asked) == sizes(own)
        assert (asked.rank.gradients, asked.rank.modules, asked.rank.buffers) == (
            own.rank.gradients, own.rank.modules, own.rank.buffers,
        )  # fmt: skip
        places = [(op.inputs, op.held, op.forward, op.phase, op.name) for op in own.rank.ops]
        assert [(op.inputs, op.held, op.forward, op.phase, op.name) for op in asked.rank.ops] == places
        assert asked.memory == dataclasses.replace(own.memory, saved_activation_bytes=0, live_bytes=0)


def test_all_fields_of_an_op_are_stored():
    """But for those of traces, whose steps are not stored."""
    known = {one.name for one in dataclasses.fields(Op)}
    assert {*_FIXED, *_GROWING} | {"stream", "waits", "delay_s", "spread_s"} == known


def test_another_question_is_read_anew():
    stored(ToySource).work(2, ParallelDegrees())
    stored(never).work(2, ParallelDegrees())
    for other in ({"precision": "bf16"}, {"optimizer": "sgd"}, {"sequence": 64}, {"recompute": "full"}):
        with pytest.raises(AssertionError, match="read again"):
            stored(never, **other).work(2, ParallelDegrees())
    with pytest.raises(AssertionError, match="read again"):
        stored(never).work(2, ParallelDegrees(filter=2))


def test_another_model_prices_anew(tmp_path, monkeypatch):
    """Stages are balanced by seconds, so the files of the model count, not its name."""
    folder = tmp_path / "work" / "models" / "mine"
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    shipped = next(one.folder for one in models() if one.name == "torch-gpus")
    shutil.copytree(shipped, folder)
    device, workload = devices.get("a100"), Workload(NETWORK, mode="training_step")
    StoredSource(workload, device, "models/mine", ToySource).work(2, ParallelDegrees())
    StoredSource(workload, device, "models/mine", never).work(2, ParallelDegrees())
    card = folder / "card.json"
    card.write_text(card.read_text() + " ")
    for model in ("models/mine", None):
        with pytest.raises(AssertionError, match="read again"):
            StoredSource(workload, device, model, never).work(2, ParallelDegrees())


def test_a_damaged_file_is_made_again(cache):
    stored(ToySource).work(2, ParallelDegrees())
    for path in cache.rglob("*.json"):
        path.write_text(path.read_text()[:100])
    work = stored(ToySource).work(2, ParallelDegrees())
    assert sizes(work) == sizes(ToySource().work(2, ParallelDegrees()))
    assert sizes(stored(never).work(2, ParallelDegrees())) == sizes(work)


class Odd(ToySource):
    """A network whose results grow with the square of the batch."""

    def work(self, batch, degrees, strategies=()):
        return super().work(batch * batch, degrees)


def test_sizes_that_two_readings_do_not_say_are_read_each():
    for batch in (3, 4, 3):
        found = stored(Odd).work(batch, ParallelDegrees())
        assert sizes(found) == sizes(Odd().work(batch, ParallelDegrees()))
    assert sizes(stored(never).work(3, ParallelDegrees())) == sizes(Odd().work(3, ParallelDegrees()))


class NoSingle(ToySource):
    """A network that takes no single example, as batch norms of vectors."""

    def work(self, batch, degrees, strategies=()):
        if batch == 1:
            raise CdmppError("one example has no variance")
        return super().work(batch, degrees)


def test_a_network_that_takes_no_single_example_says_so_when_asked():
    assert stored(NoSingle).work(4, ParallelDegrees()).rank.ops
    with pytest.raises(CdmppError, match="no variance"):
        stored(NoSingle).work(1, ParallelDegrees())


def test_a_file_of_python_is_read_each_time(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("")
    calls = []
    for _ in range(2):
        stored(lambda: calls.append(1) or ToySource(), f"{file}:make").work(2, ParallelDegrees())
    assert calls == [1, 1]


def test_a_stored_answer_needs_no_torch():
    stored(ToySource).work(2, ParallelDegrees())
    code = (
        "import sys\n"
        "from cdmpp import devices\n"
        "from cdmpp.network.workload import Workload\n"
        "from cdmpp.plans.plan import plan_on\n"
        "from cdmpp.plans.memory_answer import memory_answer\n"
        "from cdmpp.plans.plan_topology import plan_topology\n"
        "from cdmpp.plans.sources.stored import StoredSource\n"
        "from cdmpp.report.memory import memory_report\n"
        "device, plan = devices.get('a100'), plan_on(8)\n"
        f"source = StoredSource(Workload('{NETWORK}', mode='training_step'), device, None, lambda: 1 / 0)\n"
        "links = plan_topology(plan, device, 'dgx-a100')\n"
        "memory_report(memory_answer(source, plan, links, 16, True))\n"
        "assert not {'torch', 'tvm', 'transformers'} & {*sys.modules}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
