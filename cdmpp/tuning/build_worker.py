"""Child process that compiles scheduled programs for a search: one library each, and its code vector next to it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from cdmpp.data.derive_worker import packed
from cdmpp.platform.workers import Reply, Request, serve

COMMAND = ("-m", "cdmpp.tuning.build_worker")


def ready(_: Request) -> Reply:
    """Import TVM now rather than within the time limit of the first request."""
    import tvm
    from tvm.s_tir import transform  # noqa: F401

    return {"tvm": tvm.__version__}


def build(request: Request) -> Reply:
    """Build ``module`` (JSON graph) for ``target`` at ``path``; with ``core`` also give the packed ``code`` vector.

    A program whose code cannot be read is built all the same: ``unread`` says why.
    """
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    module = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(tvm.ir.load_json(request["module"]))
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        library = tvm.compile(module, target=_target(request["target"]))
    Path(request["path"]).parent.mkdir(parents=True, exist_ok=True)
    library.export_library(request["path"])
    return _code(library.mod, request["core"]) if request["core"] else {}


def _code(library: Any, core: str) -> Reply:
    from cdmpp.devices.cores import get_core
    from cdmpp.machine_code.cpu.code_vector import code_vector

    try:
        texts = str(library.inspect_source("ll")), str(library.inspect_source("asm"))
        return {"code": packed({"code": code_vector(*texts, get_core(core))})}
    except Exception as error:  # noqa: BLE001 - whatever the text of a compiler makes a parser meet
        return {"unread": f"{type(error).__name__}: {str(error)[:200]}"}


@lru_cache(maxsize=8)
def _target(text: str) -> Any:
    from cdmpp.programs.replay import parse_target

    return parse_target(text)


if __name__ == "__main__":
    serve({"ready": ready, "build": build})
