"""A network of a name is exported once; what follows from that is what a fresh reading gives."""

from __future__ import annotations

from textwrap import dedent

import pytest

from cdmpp.errors import UsageError
from cdmpp.network.eager import kept_reads, swept
from cdmpp.network.eager.kept_reads import KeptReads
from cdmpp.network.eager.read import export_run, read_run
from cdmpp.network.eager.step import read_step
from cdmpp.network.eager.swept import difference
from cdmpp.network.workload import Workload
from cdmpp.predict.model_folder import find_model, load, shared


@pytest.fixture
def exports(monkeypatch):
    """List the sizes at which networks are exported."""
    found = []

    def counted(workload, *args, **options):
        if "exporter" not in options:  # else only shapes are asked for
            found.append((workload.batch, workload.sequence))
        return export_run(workload, *args, **options)

    monkeypatch.setattr(kept_reads, "export_run", counted)
    monkeypatch.setattr(swept, "export_run", counted)
    return found


def bert(batch, sequence=16, **options):
    return Workload("bert_tiny", batch=batch, sequence=sequence, **options)


def test_a_further_device_needs_no_export(exports):
    kept = KeptReads()
    for place in ("sm_80", "sm_90", "sm_70", "sm_80"):
        assert difference(kept.read(bert(2), place), read_run(bert(2), place)) == ""
    assert exports == [(2, 16)]
    kept.read(bert(2), "cpu")
    assert exports == [(2, 16)] * 2


def test_further_sizes_follow_from_one_export(exports):
    kept = KeptReads()
    sizes = (2, 16, "sm_80"), (3, 24, "sm_80"), (5, 32, "sm_80"), (7, 100, "sm_90"), (1, 16, "sm_70"), (2, 16, "sm_90")
    for batch, sequence, place in sizes:
        found = kept.read(bert(batch, sequence), place)
        assert difference(found, read_run(bert(batch, sequence), place)) == ""
    assert exports == [(2, 16)]


def test_one_example_may_run_other_operators_than_several(exports):
    """Of GPT-2 masks are expanded where there are several: batch 1 says nothing of 2, and 2 says the rest."""
    kept = KeptReads()
    for batch in (1, 2, 3, 1, 8):
        read = Workload("hf:gpt2", batch=batch, sequence=16)
        assert difference(kept.read(read, "sm_80"), read_run(read, "sm_80")) == ""
    assert [batch for batch, _ in exports] == [1, 2]


def test_sizes_that_a_network_cannot_have_are_refused_and_forgotten(exports):
    kept = KeptReads()
    kept.read(bert(2), "sm_80")
    for _ in range(2):
        with pytest.raises(UsageError, match="512 positions"):
            kept.read(bert(2, 1024), "sm_80")
    kept.read(bert(3, 24), "sm_80")
    known = list(exports)
    assert difference(kept.read(bert(4, 32), "sm_80"), read_run(bert(4, 32), "sm_80")) == ""
    with pytest.raises(UsageError, match="512 positions"):
        kept.read(bert(2, 1024), "sm_80")
    assert exports == known


def test_other_settings_are_other_networks(exports):
    kept = KeptReads()
    for one in (bert(2), bert(2, precision="bf16"), bert(2, attention="math"), bert(2, mode="forward_backward")):
        assert difference(kept.read(one, "sm_80"), read_run(one, "sm_80")) == ""
    assert len(exports) == 4
    step = bert(2, mode="training_step")
    assert difference(kept.read(step, "sm_80"), read_step(step, "sm_80")) == ""


def test_what_may_change_is_read_anew(tmp_path):
    kept, path = KeptReads(), tmp_path / "nets.py"
    text = """
        import torch
        def one(batch=2):
            return torch.nn.Linear(8, {cols}), (torch.zeros(batch, 8),)
    """
    for cols in (4, 8):
        path.write_text(dedent(text.format(cols=cols)))
        read = kept.read(Workload(f"{path}:one"), "sm_80")
        assert [operator["cols"] for operator in read.operators.values()] == [cols]


def test_a_model_is_loaded_once_while_its_files_stay(tmp_path):
    folder = tmp_path / "model"
    load("torch-gpus").save(folder)
    first = shared(folder)
    assert shared(folder) is first and shared("torch-gpus") is shared(find_model("torch-gpus"))
    load("torch-gpus").save(folder, half=True)
    assert shared(folder) is not first
