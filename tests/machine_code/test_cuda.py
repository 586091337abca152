"""CUDA sources become machine code with NVIDIA's tools, where these are at hand."""

import shutil

import pytest

from cdmpp.errors import DataError, MissingToolError
from cdmpp.machine_code.gpu import cuda
from cdmpp.machine_code.gpu.cuda import assembled, can_compile_cuda
from cdmpp.machine_code.gpu.sass_rows import rows_of

needs_tools = pytest.mark.skipif(
    not can_compile_cuda(), reason="needs nvcc or NVRTC, and cuobjdump: pip install 'cdmpp[cuda]'"
)

SUM = """
extern "C" __global__ void __launch_bounds__(64) main_kernel(float* a, float* b);
extern "C" __global__ void __launch_bounds__(64) main_kernel(float* a, float* b) {
  b[threadIdx.x] = a[threadIdx.x] + 1.0f;
}
"""
PRODUCT = SUM.replace("+ 1.0f", "* 3.0f")
HALVES = "#include <cuda_fp16.h>\n" + SUM.replace("float", "half").replace("1.0f", "__float2half(1.0f)")
TWO = SUM + PRODUCT.replace("main_kernel", "main_kernel_1")
WRONG = SUM.replace("a[threadIdx.x]", "nothing")


@needs_tools
def test_sources_that_share_names_are_compiled_together():
    found = assembled({"sum": SUM, "product": PRODUCT, "two": TWO}, 80)
    assert [sorted(one.kernels) for one in found.values()] == [
        ["main_kernel"],
        ["main_kernel"],
        ["main_kernel", "main_kernel_1"],
    ]
    names = {key: {line.opcode for line in one.kernels["main_kernel"].lines} for key, one in found.items()}
    assert "FADD" in names["sum"] and "FADD" in names["two"] and "FADD" not in names["product"]


@needs_tools
def test_functions_of_the_same_name_stay_apart(monkeypatch):
    helper = "__forceinline__ __device__ float own(float x) { return x %s; }"
    calling = SUM.replace("a[threadIdx.x] + 1.0f", "own(a[threadIdx.x])")
    compiled = []
    by_nvcc_or_not = cuda._disassembled
    monkeypatch.setattr(cuda, "_disassembled", lambda *asked: compiled.append(asked) or by_nvcc_or_not(*asked))
    found = assembled({"sum": helper % "+ 1.0f" + calling, "product": helper % "* 3.0f" + calling}, 80)
    names = {key: {line.opcode for line in one.kernels["main_kernel"].lines} for key, one in found.items()}
    assert "FADD" in names["sum"] and "FADD" not in names["product"]
    assert "FMUL" in names["product"] and "FMUL" not in names["sum"]
    assert len(compiled) == 1


@needs_tools
def test_one_that_does_not_compile_costs_no_other():
    found = assembled({"sum": SUM, "wrong": WRONG, "product": PRODUCT}, 80)
    assert isinstance(found["wrong"], DataError) and "nothing" in str(found["wrong"])
    assert found["sum"].kernels and found["product"].kernels


@needs_tools
@pytest.mark.parametrize("arch", [75, 86, 89, 90, 100, 120])
def test_architectures_that_are_known(arch):
    (found,) = assembled({"sum": SUM}, arch).values()
    kernel = found.kernels["main_kernel"]
    assert kernel.arch == arch
    assert len(rows_of(kernel)) == len(kernel.lines)


@needs_tools
def test_without_nvcc_the_wheel_compiles(monkeypatch):
    if cuda._nvrtc() is None:
        pytest.skip("needs NVRTC")
    which = shutil.which
    monkeypatch.setattr(cuda.shutil, "which", lambda name: None if name == "nvcc" else which(name))
    found = assembled({"sum": SUM, "wrong": WRONG, "halves": HALVES}, 80)
    assert "HADD2" in {line.opcode for line in found["halves"].kernels["main_kernel"].lines}
    assert "FADD" in {line.opcode for line in found["sum"].kernels["main_kernel"].lines}
    assert "NVRTC failed" in str(found["wrong"])


def test_without_any_tool_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(cuda.shutil, "which", lambda name: None)
    monkeypatch.setattr(cuda, "_nvrtc", lambda: None)
    with pytest.raises(MissingToolError, match=r"pip install 'cdmpp\[cuda\]'"):
        assembled({"sum": SUM}, 80)
