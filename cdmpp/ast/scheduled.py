"""Scheduled program -> CompactAST without lowering it: a tenth of the time, nearly the same numbers.

For a search, which asks about thousands of programs. C++ reads the schedule's own blocks: block variables stand for
their values, buffers shrink to what the loops around their accesses need. What it does not know is lowered.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.extract import extract, is_gpu_target
from cdmpp.ast.lowering import MAX_DEPTH
from cdmpp.ast.native import read_scheduled
from cdmpp.errors import CdmppError


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
    """Extract the AST as ``extract`` does, but fast: integer operations of indices may be counted differently."""
    (found,) = extract_scheduled_many([module], target, 1)
    if isinstance(found, CdmppError):
        raise found
    return found


def extract_scheduled_many(modules: Sequence[Any], target: Any, threads: int) -> list[CompactAST | CdmppError]:
    """Return the AST of each module, or why it has none. Those that C++ does not read are lowered, one by one."""
    gpu = is_gpu_target(target)
    readable = [i for i, module in enumerate(modules) if isinstance(module, tvm.IRModule)]
    read = read_scheduled([modules[i] for i in readable], _passes(), gpu, MAX_DEPTH, threads)
    asts = dict(zip(readable, read, strict=True))

    def one(place: int) -> CompactAST | CdmppError:
        if (ast := asts.get(place)) is not None:
            return ast
        try:
            return extract(modules[place], target)
        except CdmppError as error:
            return error

    return [one(place) for place in range(len(modules))]
