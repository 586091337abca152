#!/usr/bin/env bash
# cuobjdump -res-usage: from sm_90 on, SHARED of a kernel is 1,024 bytes more than its source declares.
#
# The system reserves 1 KB of shared memory in each block from compute capability 8.0 on. For sm_80 to sm_89 SHARED is
# what the source declares, so whoever counts blocks per multiprocessor adds the kilobyte (as cuda_occupancy.h does with
# reservedSharedMemPerBlock). For sm_90, sm_100 and sm_120 the compiler puts the kilobyte into the kernel's own section
# .nv.shared.NAME, so SHARED has it already, and adding it again loses blocks: 45,952 listed bytes fit five times into
# the 228 KB of an H100, not four times. A kernel that uses no shared memory is listed with 0 on every architecture.
# Expected: one meaning of SHARED for all architectures. Same with NVRTC 11.8, 12.1, 12.4, 12.9 and nvcc 13.0.
#
# Seen with NVRTC and cuobjdump 13.5.37. Needs Linux on x86-64 or AArch64, Python 3, no GPU.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet nvidia-cuda-nvrtc==13.5.37 nvidia-cuda-cuobjdump==13.5.37 pyelftools==0.33
"$work/venv/bin/python" - "$work" <<'EOF'
import ctypes
import glob
import io
import re
import subprocess
import sys
from pathlib import Path

from elftools.elf.elffile import ELFFile

DECLARED = 2000
SOURCE = b"""
extern "C" __global__ void keeps(float* a) {
  __shared__ float kept[500];
  for (int i = threadIdx.x; i < 500; i += blockDim.x) kept[i] = a[i];
  __syncthreads();
  a[threadIdx.x] = kept[499 - threadIdx.x];
}
extern "C" __global__ void keeps_none(float* a) { a[threadIdx.x] *= 2.0f; }
"""
work = Path(sys.argv[1])
(root,) = work.glob("venv/lib/python3*/site-packages/nvidia/cu13")
ctypes.CDLL(glob.glob(f"{root}/lib/libnvrtc-builtins.so*")[0], ctypes.RTLD_GLOBAL)
nvrtc = ctypes.CDLL(next(p for p in sorted(glob.glob(f"{root}/lib/libnvrtc.so*")) if "alt" not in p))
major, minor = ctypes.c_int(), ctypes.c_int()
nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
print(f"NVRTC {major.value}.{minor.value}, {DECLARED} bytes of shared memory declared by `keeps`, none by `keeps_none`")
surprise = True
for arch in (75, 80, 86, 89, 90, 100, 120):
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE, b"kernels.cu", 0, None, None)
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture=sm_{arch}".encode())
    if nvrtc.nvrtcCompileProgram(program, 1, options):
        sys.exit(f"sm_{arch} does not compile")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    path = work / f"sm_{arch}.cubin"
    path.write_bytes(cubin.raw)
    command = [f"{root}/bin/cuobjdump", "-res-usage", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout.replace("\n", " ")
    shared = {name: int(n) for name, n in re.findall(r"Function (\S+):\s+REG:\d+ STACK:\d+ SHARED:(\d+)", text)}
    sections = {s.name: s["sh_size"] for s in ELFFile(io.BytesIO(cubin.raw)).iter_sections() if s.name == ".nv.shared.keeps"}
    print(f"sm_{arch}: SHARED {shared}, {sections}")
    expected = {"keeps": DECLARED + (1024 if arch >= 90 else 0), "keeps_none": 0}
    surprise &= shared == expected and sections == {".nv.shared.keeps": expected["keeps"]}
sys.exit(0 if surprise else "the behaviour has changed")
EOF
echo "as described: from sm_90 on SHARED holds the kilobyte that the system reserves"
