"""Scheduled program -> CompactAST without lowering it, in a tenth of the time: C++ reads the schedule's own blocks.

Block variables stand for their values, buffers shrink to what the loops around their accesses need, and indices are
summed up as TVM's canonical simplifier writes them. Where ``exact`` is set and TVM may write a store otherwise, such as
quotients of quotients, TVM's simplifier runs over that store alone. ``exact`` refuses what is then still in doubt:
parts of buffers that are only reached behind a condition, and so on (``doubt`` in ``native/``, ``doubts`` here; how
often: docs/results/lowered-programs.md).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.lowering import MAX_DEPTH
from cdmpp.ast.native import doubts as native_doubts
from cdmpp.ast.native import read_scheduled


@functools.cache
def passes() -> tuple[Any, Any]:
    """Return passes of TVM: for what schedules of CPUs seldom hold, and those that simplify a store in doubt."""
    s = s_tir.transform
    cheap = [
        s.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True),
        s.LowerCrossThreadReduction(),
        s.LowerInitBlock(),
        s.UnifyThreadBinding(),
    ]
    simplify = [s.ConvertBlocksToOpaque(), tirx.transform.StmtSimplify()]
    return tvm.transform.Sequential(cheap), tvm.transform.Sequential(simplify)


def read_unlowered(modules: Sequence[Any], gpu: bool, exact: bool, threads: int = 1) -> list[CompactAST | None]:
    """Read each scheduled ``tvm.IRModule``; None: it has to be lowered, or is to be refused.

    Args:
        modules: what is no IRModule of one PrimFunc is None.
        gpu: True for programs of a GPU.
        exact: None, too, where a number may differ in any bit from what is read of the lowered program.
        threads: so many programs are read at once.
    """
    readable = [i for i, module in enumerate(modules) if isinstance(module, tvm.IRModule)]
    read = read_scheduled([modules[i] for i in readable], passes(), gpu, MAX_DEPTH, threads, exact)
    found = dict(zip(readable, read, strict=True))
    return [found.get(i) for i in range(len(modules))]


def doubts(module: tvm.IRModule, gpu: bool) -> list[str]:
    """Return why a scheduled module has to be lowered; no reasons where ``read_unlowered`` reads it exactly."""
    return native_doubts(module, passes(), gpu, MAX_DEPTH)
