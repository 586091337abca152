"""CUDA sources -> cubin -> SASS, by NVIDIA's compiler and disassembler. No GPU and no TVM is needed.

Compiled by ``nvcc`` where it is on the path, else by NVRTC of the wheel ``nvidia-cuda-nvrtc``, which unrolls a little
differently. ``cuobjdump`` and ``nvdisasm`` are on the path, or of their wheels: ``pip install 'cdmpp[cuda]'``. Both
take long to start, half a second together, so that several sources go through them at once.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import io
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cdmpp.errors import DataError, MissingToolError
from cdmpp.machine_code.gpu.sass import SassKernel, parse_sass

_HINT = "pip install 'cdmpp[cuda]'"
_BEGIN = "#define ushort unsigned short\n#endif\n"
"""Ends what TVM puts before every source."""
_SPECIAL = re.compile(r"#include <cuda\.h>\n#endif\n(.*?)#if \(\(\(__CUDACC_VER_MAJOR__", re.DOTALL)
"""Types of halves and their functions, which stand behind the headers of C++ that kernels do not need."""
_CONSTANTS = "#include <math_constants.h>"
_OLD = re.compile(r"#if defined\(__CUDA_ARCH__\) && \(__CUDA_ARCH__ < 700\)\n.*?#endif\n", re.DOTALL)
"""Macros of architectures that are not read."""
_KERNEL = re.compile(r"\b(?=\w+_kernel(_\d+)?\()")
_PRELUDE = """\
#ifdef __CUDACC_RTC__
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#else
#include <cstdint>
#endif
#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short
#define TVM_ENABLE_L2_PREFETCH 1
#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#define CUDART_INF __longlong_as_double(0x7ff0000000000000ULL)
#define CUDART_NAN __longlong_as_double(0xfff8000000000000ULL)
"""


class Assembled(NamedTuple):
    """This is the machine code of one source."""

    kernels: dict[str, SassKernel]
    """Kernels by the name that the source gives them."""
    literals: dict[str, bytes]
    """Constant bank 2 of those that have one."""


def can_compile_cuda() -> bool:
    """Return True if a compiler, a disassembler and a reader of cubins are at hand."""
    try:
        _tool("cuobjdump")
        has_reader = importlib.util.find_spec("elftools") is not None
        return has_reader and (shutil.which("nvcc") is not None or _nvrtc() is not None)
    except MissingToolError:
        return False


def assembled(sources: Mapping[str, str], arch: int, limit_s: float = 60.0) -> dict[str, Assembled | DataError]:
    """Compile CUDA ``sources`` of TVM for ``sm_arch`` with ``-O3``, and take them apart; or why one does not compile.

    ``limit_s`` is for each of them. A batch that does not compile is split. ``MissingToolError``: no compiler or no
    disassembler.
    """
    by_head: dict[str, dict[str, str]] = {}
    for key, source in sources.items():
        head, functions = _parts(source)
        by_head.setdefault(head, {})[key] = functions
    found: dict[str, Assembled | DataError] = {}
    for head, texts in by_head.items():
        found |= _together(head, texts, arch, limit_s)
    return {key: found[key] for key in sources}


def _parts(source: str) -> tuple[str, str]:
    """Part a source into what has to stand before all sources of a batch, and its functions.

    Headers of C++, which none needs, are left out. Functions that kernels call stand among the functions, unless they
    come with lines for the preprocessor.
    """
    head, begun, rest = source.partition(_BEGIN)
    special = _SPECIAL.search(head) if begun else None
    types = special[1].replace(_CONSTANTS, "").strip() if special else ""
    text = _OLD.sub("", rest if begun else source)
    helpers = text[: max(text.find('extern "C"'), 0)]
    if "#" not in helpers:
        return types, text
    return f"{types}\n{helpers.strip()}".strip(), text.removeprefix(helpers)


def _together(head: str, texts: Mapping[str, str], arch: int, limit_s: float) -> dict[str, Assembled | DataError]:
    """Give each of the ``texts`` a namespace: sources of TVM have functions of the same name."""
    numbered = {f"p{number}_": text for number, text in enumerate(texts.values())}
    apart = (f"namespace {prefix} {{\n{_KERNEL.sub(prefix, text)}\n}}" for prefix, text in numbered.items())
    try:
        listing, literals = _disassembled("\n".join([_PRELUDE, head, *apart]), arch, limit_s * len(texts))
    except DataError as error:
        if len(texts) == 1:
            return dict.fromkeys(texts, error)
        keys = list(texts)
        halves = keys[: len(keys) // 2], keys[len(keys) // 2 :]
        return {k: v for half in halves for k, v in _together(head, {k: texts[k] for k in half}, arch, limit_s).items()}
    kernels = parse_sass(listing)

    def own(prefix: str) -> Assembled:
        mine = {name.removeprefix(prefix): one for name, one in kernels.items() if name.startswith(prefix)}
        return Assembled(
            {name: replace(one, name=name) for name, one in mine.items()},
            {name.removeprefix(prefix): one for name, one in literals.items() if name.startswith(prefix)},
        )

    return {key: own(prefix) for key, prefix in zip(texts, numbered, strict=True)}


def _disassembled(text: str, arch: int, limit_s: float) -> tuple[str, dict[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernels.cubin"
        cubin.write_bytes(_nvcc(text, arch, Path(folder), limit_s) if shutil.which("nvcc") else _by_nvrtc(text, arch))
        tool = _tool("cuobjdump")
        path = os.pathsep.join([str(Path(tool).parent), os.environ.get("PATH", "")])
        return _run([tool, "-sass", "-res-usage", str(cubin)], limit_s, path), literals_of(cubin.read_bytes())


def literals_of(cubin: bytes) -> dict[str, bytes]:
    """Read constant bank 2 of each kernel in a cubin: numbers that its instructions do not hold themselves."""
    try:
        from elftools.elf.elffile import ELFFile
    except ImportError as error:
        raise MissingToolError(f"reading a cubin needs pyelftools: {_HINT}") from error
    prefix = ".nv.constant2."
    sections = ELFFile(io.BytesIO(cubin)).iter_sections()
    return {one.name.removeprefix(prefix): one.data() for one in sections if one.name.startswith(prefix)}


def _nvcc(text: str, arch: int, folder: Path, limit_s: float) -> bytes:
    source, out = folder / "kernels.cu", folder / "nvcc.cubin"
    source.write_text(text)
    _run(["nvcc", "-cubin", "-O3", f"-arch=sm_{arch}", "-w", "-o", str(out), str(source)], limit_s)
    return out.read_bytes()


def _run(command: Sequence[str], limit_s: float, path: str | None = None) -> str:
    environment = {**os.environ, **({"PATH": path} if path else {})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=environment)
    except subprocess.TimeoutExpired as error:
        raise DataError(f"{command[0]} took longer than {limit_s:.0f} s") from error
    if done.returncode:
        raise DataError(f"{Path(command[0]).name} failed: {(done.stderr or done.stdout).strip()[:400]}")
    return done.stdout


def _by_nvrtc(text: str, arch: int) -> bytes:
    library = _nvrtc()
    if library is None:
        raise MissingToolError(f"no CUDA compiler: neither nvcc on the path nor NVRTC; {_HINT}")
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    headers = [f"--include-path={folder}" for folder in _wheel_folders("include")]
    options = [option.encode() for option in (f"--gpu-architecture=sm_{arch}", "-w", "--std=c++17", *headers)]
    if library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None):
        raise DataError("NVRTC takes no program")
    try:
        if library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)):
            library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            told = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(program, told)
            raise DataError(f"NVRTC failed: {told.value.decode(errors='replace').strip()[:400]}")
        library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        library.nvrtcGetCUBIN(program, cubin)
        return cubin.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


@functools.cache
def _nvrtc() -> ctypes.CDLL | None:
    """NVRTC of the newest installed wheel, with its library of built-in functions, which it looks for by name."""
    for folder in _wheel_folders("lib"):
        own = sorted(path for path in folder.glob("libnvrtc.so*") if "alt" not in path.name)
        builtins = sorted(folder.glob("libnvrtc-builtins.so*"))
        if own and builtins:
            ctypes.CDLL(str(builtins[-1]), ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(own[-1]))
    return None


@functools.cache
def _tool(name: str) -> str:
    if found := shutil.which(name):
        return found
    for folder in _wheel_folders("bin"):
        if (folder / name).is_file():
            return str(folder / name)
    raise MissingToolError(f"{name} is not on the path: {_HINT}")


def _wheel_folders(kind: str) -> list[Path]:
    """``nvidia/*/bin`` or ``lib`` of installed wheels, the latest first."""
    found = importlib.util.find_spec("nvidia")
    places = [] if found is None else list(found.submodule_search_locations or ())
    return sorted((path for place in places for path in Path(place).glob(f"*/{kind}")), reverse=True)
