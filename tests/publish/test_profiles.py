"""Profiles of two builds: whose a stack is, what of a question counts, and what the page says."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict

import pytest

from benchmarks.builds import questions, samples
from benchmarks.builds.build import Build
from benchmarks.builds.profiles_page import page
from benchmarks.builds.row import ROWS
from benchmarks.builds.samples import PROFILED, Samples, stages_of
from benchmarks.builds.seeds import TRAININGS, key, seed_table
from benchmarks.builds.stage import INTERPRETER, REST, TOOLS, stage_of

START = ["<module> (cdmpp:8)", "main (cdmpp/cli/command.py:43)"]
IMPORT = "_find_and_load (<frozen importlib._bootstrap>:1176)"


@pytest.mark.parametrize(
    ("frames", "stage"),
    [
        ([IMPORT, "<module> (cdmpp/a.py:1)", IMPORT, "<module> (torch/x.py:1)", "<module> (tvm/x.py:1)"], "torch"),
        ([*START, IMPORT, "<module> (tvm_ffi/__init__.py:1)"], "TVM"),
        ([*START, IMPORT, "<module> (/e/lib/python3.11/site-packages/torch/_ops.py:1)"], "torch"),
        ([*START, IMPORT, "<module> (cdmpp/a.py:1)"], "other imports"),
        (["call (cdmpp/programs/sampling.py:9)", "f (cdmpp/programs/replay.py:1)", "g (tvm/x.py:2)"], "replaying"),
        ([*START, "_code (cdmpp/data/derive_worker.py:110)", "build (tvm/tirx/build.py:1)"], "lowering"),
        ([*START, "_code (cdmpp/data/derive_worker.py:110)", "codegen_build (tvm/tirx/build.py:132)"], "LLVM"),
        ([*START, "answers (cdmpp/model/compiled.py:105)"], "model"),
        (["run (elsewhere/x.py:2)"], REST),
        ([], INTERPRETER),
        ([*START, "_end_with_parent (cdmpp/platform/workers.py:270)"], None),
        (["_bootstrap (threading.py:1002)", "Condition.wait (threading.py:331)"], None),
    ],
)  # fmt: skip
def test_the_innermost_known_frame_decides_and_of_imports_the_outermost(frames, stage):
    found = stage_of(frames)
    assert found is None if stage is None else stage in str(found)


def test_of_each_profiled_question_some_lines_are_timed():
    timed = samples._timed_lines()
    for name in PROFILED:
        if question := ROWS[name].question:
            inner = {"cpu_code": "_derived", "gpu_code": "_derived", "predict_one": "_predictions",
                     "predict_many": "_predictions"}.get(question, question)  # fmt: skip
            begin, end = timed[inner]
            assert question in questions.QUESTIONS and begin < end


def test_seconds_are_those_of_perf_shared_by_stacks():
    begin, end = samples._timed_lines()["_derived"]
    inside, outside = (f"<module> (q.py:9);_derived (a/questions.py:{line})" for line in (end, begin))
    code = ";_code (cdmpp/data/derive_worker.py:1)"
    stacks = {
        f"process 1:python;{inside}{code}": 30, f"{inside};replay_on (cdmpp/programs/replay.py:1)": 10,
        f"{outside}{code}": 40, "_end_with_parent (cdmpp/platform/workers.py:270)": 900,
    }  # fmt: skip
    commands = {"python": 2 * samples._HZ, "thread": 2 * samples._HZ, "ptxas": 6 * samples._HZ, "py-spy": 500}
    found = stages_of("gpu-code", Samples(stacks, commands))
    assert found == pytest.approx({"decoding and executing code": 1.5, "replaying schedules": 0.5, TOOLS["ptxas"]: 3.0})
    whole = stages_of("network-cold", Samples(stacks, commands))
    assert sum(whole.values()) == pytest.approx(10.0) and whole["decoding and executing code"] == pytest.approx(3.5)


def test_the_page_has_the_largest_stages_and_sums_up_the_others():
    base = {f"stage {number}": float(number) for number in range(1, 11)}
    row = {"commit": "b" * 40, "baseline": base, "now": {"stage 1": 50.0}}
    stored = {"baseline": "a" * 40, "now": "b" * 40, "machine": "one", "rows": {"replay": row}, "seeds": {}}
    lines = page(stored)
    assert "| stage 1 | 1.00 | 2 | 50.00 | 100 |" in lines
    assert "| 3 others | 9.00 | 16 | 0.00 | 0 |" in lines and "| **all** | 55.00 | 100 | 50.00 | 100 |" in lines
    text = "\n".join(lines)
    assert ROWS["training"].title in text.partition("Not profiled: ")[2] and "same error" not in text


def test_a_seed_counts_once_both_builds_were_trained():
    device, seed = TRAININGS[0]
    one = {"mape": 10.0, "median_ape": 5.0}
    assert len(seed_table({key(*pair): {} for pair in TRAININGS} | {key(device, seed): {"now": one}})) == 2
    found = {key(device, s): {"baseline": one, "now": {"mape": 9.0 + s, "median_ape": 4.0}} for s in range(3)}
    rows = seed_table({key(*pair): {} for pair in TRAININGS} | found)
    assert rows[2].endswith("| 0 | 10.00 | 9.00 | 5.00 | 4.00 |") and "10.00 ± 1.00" in rows[-1]


def test_samples_of_all_runs_are_added_and_can_be_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "_run", lambda *_: Samples(Counter({"a;b": 2}), Counter({"python": 3})))
    found = samples.sampled("features", Build("now", "c" * 40, tmp_path), tmp_path / "work")
    assert json.loads(json.dumps(asdict(found))) == {"stacks": {"a;b": 2}, "commands": {"python": 3}}
    monkeypatch.setitem(samples.PROFILED, "features", 2)
    found = samples.sampled("features", Build("now", "c" * 40, tmp_path), tmp_path / "work")
    assert json.loads(json.dumps(asdict(found))) == {"stacks": {"a;b": 4}, "commands": {"python": 6}}
