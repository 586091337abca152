"""Code vectors of GPU programs, derived in batches by worker processes."""

import gzip
import json
from dataclasses import asdict, replace

import numpy as np
import pytest

pytest.importorskip("tvm")

from benchmarks.workloads import TARGETS, tasks
from cdmpp import devices
from cdmpp.data.codes import cached_codes
from cdmpp.data.derive import Source, derive
from cdmpp.data.derive_worker import _program
from cdmpp.data.gpu_codes import gpu_codes_of
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.machine_code.gpu.cuda import can_compile_cuda
from cdmpp.machine_code.gpu.gpu_code_features import GPU_CODE_NAMES
from cdmpp.programs.replay import parse_target
from cdmpp.programs.sampling import sample_programs

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.skipif(not can_compile_cuda(), reason="needs nvcc or NVRTC, and cuobjdump: pip install 'cdmpp[cuda]'"),
]


@pytest.fixture(scope="module")
def sources():
    return sampled(0)


def sampled(seed: int) -> list[Source]:
    sheet = devices.get(TARGETS["cuda"])
    target, found = parse_target(sheet.target), []
    for name in ("matmul", "elementwise"):
        for program in sample_programs(tasks()[name], target, 2, seed, mutants=0.0):
            key = f"{name}-{len(found)}"
            found.append(Source(key, tasks()[name].workload, program.trace, json.dumps(sheet.target), core="108"))
    return found


def test_programs_are_compiled_in_batches_and_one_that_fails_costs_no_other(sources, tmp_path):
    wrong = replace(sources[0], key="unscheduled", schedule="")
    unknown = replace(sources[0], key="old", target=json.dumps({**json.loads(sources[0].target), "arch": "sm_61"}))
    reasons = derive({"gpu_codes": (tmp_path, [*sources, wrong, unknown])}, 1, progress=False)["gpu_codes"]
    codes = cached_codes(tmp_path)
    assert set(codes) == {source.key for source in sources}
    assert "TVM makes no CUDA" in reasons["unscheduled"]
    assert "no core of sm_61" in reasons["old"]
    for code in codes.values():
        assert code.shape == (CODE_WIDTH,) and np.isfinite(code).all()
        assert not code[len(GPU_CODE_NAMES) :].any()
        assert code[GPU_CODE_NAMES.index("cycles_simulated")] > 0


def test_what_was_compiled_is_not_compiled_again(sources, tmp_path, monkeypatch):
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path))
    texts, parsed = [asdict(source) for source in sources[:2]], []

    def program(one):
        parsed.append(one["key"])
        return _program(one)

    first = gpu_codes_of(texts, program)
    again = gpu_codes_of([{**texts[0], "core": "54"}, texts[1]], program)
    assert parsed == [text["key"] for text in texts]
    np.testing.assert_array_equal(again[1], first[1])
    assert not np.array_equal(again[0], first[0])  # on half the multiprocessors
    kept = sorted((tmp_path / "gpu_programs").rglob("*.gz"))
    packed = kept[0].read_bytes()
    kept[0].write_bytes(packed[:40] + bytes(20) + packed[60:])
    kept[1].write_bytes(gzip.compress(b"[1]"))
    np.testing.assert_array_equal(gpu_codes_of(texts, program)[0], first[0])
    assert len(parsed) == 4


def test_a_cache_that_cannot_be_written_costs_time_alone(sources, tmp_path, monkeypatch):
    (tmp_path / "gpu_programs").write_text("no folder")
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path))
    (found,) = gpu_codes_of([asdict(sources[0])], _program)
    assert isinstance(found, np.ndarray)


def test_a_batch_that_takes_too_long_is_tried_one_by_one(sources, tmp_path, monkeypatch):
    alone = derive({"gpu_codes": (tmp_path / "alone", sources[:2])}, 1, progress=False, together=1)
    assert alone == {"gpu_codes": {}}
    others = sampled(1)[:2]  # what was compiled before is kept
    late = derive({"gpu_codes": (tmp_path / "late", others)}, 1, progress=False, limit_s=0.01)
    assert all("took more than 0.01 s" in reason for reason in late["gpu_codes"].values())
    assert len(late["gpu_codes"]) == 2 and not cached_codes(tmp_path / "late")
    assert set(cached_codes(tmp_path / "alone")) == {source.key for source in sources[:2]}
