"""Predictions of what lies on disk: nothing is dropped in silence, one bad line costs itself, slow programs end."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from toy_data import write_toy_dataset

import cdmpp
from cdmpp import cli, devices
from cdmpp.ast.table import TARGET_KINDS, read_asts
from cdmpp.data.derive import has_tvm
from cdmpp.data.derived_table import write_codes
from cdmpp.errors import CdmppError, DataError
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.predict import folder as module
from cdmpp.predict.derived import Derived
from cdmpp.predict.flags import NO_MACHINE_CODE
from cdmpp.predict.folder import read_path
from cdmpp.predict.program_batch import ReadOptions

FIXTURE = Path(__file__).parents[1] / "fixtures" / "resnet34_a100"
XEON, A100 = devices.get("xeon-icelake"), devices.get("a100")
needs_tvm = pytest.mark.skipif(not has_tvm(), reason="needs TVM")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def data_set(tmp_path) -> tuple[Path, dict[str, np.ndarray]]:
    folder = tmp_path / "set"
    write_toy_dataset(folder, n=12)
    ids, _ = read_asts(folder / "asts" / "part-00000.parquet")
    codes = {identity: np.full(CODE_WIDTH, i + 1, np.float32) for i, identity in enumerate(ids)}
    write_codes(folder / "codes" / "part-00000.parquet", codes)
    return folder, codes


def test_a_parquet_file_of_a_data_set_brings_its_code_vectors(data_set):
    folder, codes = data_set
    inputs = read_path(folder / "asts" / "part-00000.parquet", ReadOptions(XEON, compiled=True))
    np.testing.assert_array_equal(inputs.asts.codes, [codes[label] for label in inputs.labels])
    declined = read_path(folder / "asts" / "part-00000.parquet", ReadOptions(XEON))
    assert declined.asts.codes is None


def test_damaged_codes_without_tvm_are_told_and_flagged(data_set, monkeypatch, caplog):
    folder, _ = data_set
    path = folder / "codes" / "part-00000.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    monkeypatch.setattr(module, "has_tvm", lambda: False)
    predictor = cdmpp.load_model("xeon-icelake")
    for given in (folder, folder / "asts" / "part-00000.parquet"):
        caplog.clear()
        flags = predictor.predict(given, device="xeon-icelake").flags
        assert all(NO_MACHINE_CODE in one for one in flags)
        assert any("corrupt or truncated" in r.message and r.levelname == "WARNING" for r in caplog.records)
        caplog.clear()
        declined = predictor.predict(given, device="xeon-icelake", compiled=False).flags
        assert all(NO_MACHINE_CODE in one for one in declined)


@needs_tvm
@pytest.mark.tvm
def test_damaged_codes_are_compiled_again(data_set, monkeypatch):
    folder, codes = data_set
    (folder / "codes" / "part-00000.parquet").write_bytes(b"PAR1")
    asked = []

    def derive(jobs, *_):
        ((cache, sources),) = jobs.values()
        asked.extend(source.key for source in sources)
        again = {source.key: codes[source.key.rpartition("-")[0]] for source in sources}
        write_codes(cache / "chunk-0.parquet", again)
        return {"codes": {}}

    monkeypatch.setattr("cdmpp.data.codes.derive", derive)
    inputs = read_path(folder, ReadOptions(XEON, compiled=True))
    np.testing.assert_array_equal(inputs.asts.codes, [codes[label] for label in inputs.labels])
    assert len(asked) == 12
    read_path(folder, ReadOptions(XEON, compiled=True))
    assert len(asked) == 12  # from the cache


def test_code_vectors_of_another_core_are_not_taken_for_those_of_the_device(data_set, monkeypatch):
    folder, codes = data_set
    monkeypatch.setattr(module, "has_tvm", lambda: False)
    alike, unlike = devices.get("xeon-icelake-avx2"), devices.get("epyc-genoa")
    for given in (folder, folder / "asts" / "part-00000.parquet"):
        for compiled in (True, False) if given == folder else (True,):
            read = read_path(given, ReadOptions(alike, compiled=compiled))
            np.testing.assert_array_equal(read.asts.codes, [codes[label] for label in read.labels])
            assert np.isnan(read_path(given, ReadOptions(unlike, compiled=compiled)).asts.codes_or_nan()).all()
    flags = cdmpp.load_model("epyc-genoa").predict(folder, device="epyc-genoa").flags
    assert all(NO_MACHINE_CODE in one for one in flags)


@needs_tvm
@pytest.mark.tvm
@pytest.mark.parametrize("retarget", [False, True])
def test_a_data_set_of_another_core_is_compiled_for_the_device(data_set, monkeypatch, retarget):
    folder, _ = data_set
    genoa, asked = devices.get("epyc-genoa"), []

    def derive(jobs, *_):
        for cache, sources in jobs.values():
            asked.extend(sources)
            write_codes(cache / "chunk-0.parquet", {s.key: np.full(CODE_WIDTH, 7, np.float32) for s in sources})
        return {}

    monkeypatch.setattr("cdmpp.predict.derived.derive", derive)
    options = ReadOptions(genoa, compiled=True, retarget=retarget)
    assert (read_path(folder, options).asts.codes == 7).all()
    (source,) = asked  # all have one text
    assert source.core == genoa.core and (json.loads(source.target) == genoa.target) == retarget
    read_path(folder, options)
    assert len(asked) == 1  # from the cache


@pytest.fixture
def database(tmp_path) -> Path:
    """Seven lines: three good ones (one not measured yet) among four that are not."""
    folder = tmp_path / "resnet34_a100"
    folder.mkdir()
    shutil.copy(FIXTURE / "database_workload.json.gz", folder)
    with gzip.open(FIXTURE / "database_tuning_record.json.gz", "rt") as stream:
        lines = [json.loads(line) for _, line in zip(range(6), stream, strict=False)]
    lines[1][1][1] = None  # not measured
    lines[3][0] = 999  # no such workload
    lines[4][1][0] = [[["GetSBlock", [], ["nowhere", "main"], ["b0"]]], []]  # does not replay
    lines[5][1][2] = {**lines[5][1][2], "arch": "sm_75"}  # of another device
    texts = [*map(json.dumps, lines), "not json"]
    (folder / "database_tuning_record.json").write_text("\n".join(texts) + "\n")
    return folder


@needs_tvm
@pytest.mark.tvm
def test_bad_lines_of_a_database_are_left_out_and_named(database, monkeypatch, capsys):
    # Patient: what a busy machine does not compile in time would be compiled again by the second call.
    words = ["predict", str(database), "--device", "a100", "--json", "--limit", "3600"]
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert [row["program"] for row in answer["programs"]] == ["line 1", "line 2", "line 3"]
    assert [text.partition(":")[0] for text in sorted(answer["refused"])] == ["line 4", "line 5", "line 6", "line 7"]
    reasons = "; ".join(sorted(answer["refused"]))
    for part in ("workload 999 does not exist", "does not replay", "arch sm_75, a100 has sm_80", "not JSON"):
        assert part in reasons
    assert "4 of 7 programs left out: line" in err and "and 1 more" in err

    monkeypatch.setattr("cdmpp.data.derive.take_worker", None)  # a second call needs no worker
    assert cli.main(words) == 0
    assert json.loads(capsys.readouterr().out) == answer


@needs_tvm
@pytest.mark.tvm
def test_a_database_without_a_good_line_is_refused(database):
    with pytest.raises(DataError, match="no line that can be predicted: line 1: the target has arch sm_80, h100 has"):
        read_path(database, ReadOptions(devices.get("h100")))
    with pytest.raises(DataError, match=r"h100 has sm_90; retarget=True \(--retarget\) makes programs for that"):
        read_path(database, ReadOptions(devices.get("h100")))
    with pytest.raises(DataError, match="line 1: the target has kind cuda, xeon-icelake has llvm; line 4"):
        read_path(database, ReadOptions(XEON, retarget=True))


@needs_tvm
@pytest.mark.tvm
def test_lines_of_another_architecture_are_made_for_the_device_where_that_is_asked_for(database, monkeypatch):
    made = []
    of = Derived.of
    monkeypatch.setattr(Derived, "of", lambda sources, *rest: made.extend(sources) or of(sources, *rest))
    inputs = read_path(database, ReadOptions(devices.get("h100"), retarget=True))
    assert inputs.labels == ("line 1", "line 2", "line 3", "line 6")
    assert {json.loads(source.target)["arch"] for source in made} == {"sm_90"}
    made.clear()
    read_path(database, ReadOptions(A100, retarget=True))
    archs = [json.loads(source.target)["arch"] for source in made]
    assert archs == ["sm_80"] * len(made) and len({source.key for source in made}) == len(made)


@needs_tvm
@pytest.mark.tvm
def test_programs_in_memory_of_another_architecture_are_refused(monkeypatch):
    import tvm

    from benchmarks.workloads import tasks
    from cdmpp.predict.compiled import read_programs
    from cdmpp.programs.database import read_workloads
    from cdmpp.programs.sampling import sample_programs
    from cdmpp.programs.task import Program

    module_ = read_workloads(FIXTURE)[0]
    program = Program(module_, tvm.target.Target({**A100.target, "arch": "sm_90"}), name="mine")
    with pytest.raises(CdmppError, match="program mine: the target has arch sm_90, a100 has sm_80"):
        read_programs([program], ReadOptions(A100))
    with pytest.raises(CdmppError, match="the target has kind cuda, xeon-icelake has llvm; or name another device"):
        read_programs([program], ReadOptions(XEON, retarget=True))
    scheduled = sample_programs(tasks()["matmul"], program.target, 1, 0, mutants=0.0)
    inputs = read_programs(scheduled, ReadOptions(A100, retarget=True))
    assert len(inputs.asts) == 1 and inputs.asts.target_kinds[0] == TARGET_KINDS.index("gpu")
    made = []
    monkeypatch.setattr(Derived, "of", lambda sources, *_: made.extend(sources) or Derived({}, {}, {}, {}))
    read_programs(scheduled, ReadOptions(A100, compiled=True, retarget=True))
    assert [json.loads(source.target)["arch"] for source in made] == ["sm_80"]


SCRIPT = """
from tvm.script import tirx as T

@T.prim_func
def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for i in range(64):
        B[i] = A[i]
"""


@needs_tvm
@pytest.mark.tvm
def test_a_program_that_compiles_too_long_is_predicted_from_its_ast(tmp_path, capsys):
    loops = "".join(f"    for j{i} in range(64):\n        B[j{i}] = A[j{i}] * T.float32({i}.5)\n" for i in range(1200))
    (tmp_path / "long.py").write_text(SCRIPT + loops)
    command = ["predict", str(tmp_path / "long.py"), "--device", "xeon-icelake", "--json", "--limit"]
    assert cli.main([*command, "120", "--no-compile"]) == 0  # so that on a slow machine only compiling runs out of time
    capsys.readouterr()
    assert cli.main([*command, "2"]) == 0
    out, err = capsys.readouterr()
    (row,) = json.loads(out)["programs"]
    assert NO_MACHINE_CODE in row["flags"] and row["why_no_machine_code"] == "compiling took more than 2 s"
    assert "1 of 1 programs: no machine code" in err and "compiling took more than 2 s" in err
    assert cli.main([*command, "-1"]) == 2
