"""Scheduled program -> CompactAST without lowering it: a tenth of the time, nearly the same numbers.

For a search, which asks about thousands of programs. C++ reads the schedule's own blocks: block variables stand for
their values, buffers shrink to what the loops around their accesses need. What it does not know is lowered.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import Any

import tvm
from tvm import s_tir

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.extract import extract, is_gpu_target, may_bind_no_thread
from cdmpp.ast.lowering import TVM_ERRORS, main_function, refuse_deep
from cdmpp.ast.native import read_native


@functools.cache
def _passes() -> Any:
    """Cheap ones, for what schedules of CPUs seldom hold."""
    s = s_tir.transform
    passes = [
        s.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True),
        s.LowerCrossThreadReduction(),
        s.LowerInitBlock(),
        s.UnifyThreadBinding(),
    ]
    return tvm.transform.Sequential(passes)


def extract_scheduled(module: Any, target: Any) -> CompactAST:
    """As ``extract``, of which it is the fast likeness: integer operations of indices may be counted differently."""
    gpu, function = is_gpu_target(target), main_function(module)
    refuse_deep(function)
    ast = None if gpu else read_native("extract_scheduled", function, gpu)
    if ast is None:
        with suppress(*TVM_ERRORS):
            ast = read_native("extract_scheduled", _passes()(tvm.IRModule({"main": function}))["main"], gpu)
    return extract(module, target) if ast is None or may_bind_no_thread(ast) else ast
