"""Stage: what a Python stack works on, by the same rules in both builds."""

from __future__ import annotations

import re
from collections.abc import Sequence

_GPU_TOOLS = "nvcc cicc ptxas cudafe++ fatbinary nvlink cuobjdump nvdisasm cc1plus cc1 gcc g++ cpp as".split()
TOOLS = dict.fromkeys(_GPU_TOOLS, "nvcc, ptxas, cuobjdump")
"""Commands that are no Python -> stage."""
_IMPORTED = re.compile(r"<module> \((?:.*/)?(?:site-packages/)?(\w+)/")
_PACKAGES = {
    "torch": "imports of torch", "torchvision": "imports of torch", "tvm": "imports of TVM", "tvm_ffi": "imports of TVM"
}  # fmt: skip
_STAGES = (
    (r"codegen_build \(tvm", "LLVM: passes"),
    (r"inspect_source \(|get_source \(", "LLVM: assembly"),
    (r"\(tvm/tirx/build|\(cdmpp/ast/lowering", "lowering by TVM"),
    (r"\(cdmpp/programs/script|\(cdmpp/programs/gate", "parsing programs"),
    (r"\(cdmpp/programs/sampling", "drawing schedules"),
    (r"\(cdmpp/programs/replay", "replaying schedules"),
    (r"\(cdmpp/(machine_code|data/derive_worker|data/(gpu_)?codes)|\(native\.py", "decoding and executing code"),
    (r"\(cdmpp/ast/|\(cdmpp/features", "features"),
    (r"\(cdmpp/data/batching", "batches"),
    (r"\(cdmpp/model/compiled", "model: compiled"),
    (r"\(cdmpp/model/(regressor|leaf_encoder|device_encoder|feature_scaler|bins|ranker|eager\.)", "model: layers"),
    (r"\(cdmpp/model/", "model: analytic part"),
    (r"\(cdmpp/training/", "training: steps"),
    (r"\(cdmpp/(predict|uncertainty)/", "predictor, intervals"),
    (r"\(cdmpp/tuning/", "cost model of the search"),
    (r"\(cdmpp/simulate/task|add \(cdmpp/simulate/|<(list|dict)comp> \(cdmpp/simulate", "event engine: reading tasks"),
    (r"begin \(cdmpp/simulate/", "event engine: reading tasks"),
    (r"\(cdmpp/simulate/", "event engine: events"),
    (r"\(cdmpp/(programs|network|operators)/", "reading the network"),
    (r"\(cdmpp/(platform/workers|execute)|\(multiprocessing/", "pipes of workers"),
    (r"\(cdmpp/(platform|data|devices|cli)", "files, settings, command line"),
)
_RULES = tuple((re.compile(pattern), stage) for pattern, stage in _STAGES)
REST, INTERPRETER = "the rest", "start and end of the interpreter"


def stage_of(frames: Sequence[str]) -> str | None:
    """Return the stage of a stack, whose frames go from outer to inner; None where it only waits.

    An import belongs to the outermost package that is not ours. Else the innermost frame that a rule knows decides.
    """
    if not frames:
        return INTERPRETER
    if frames[-1].startswith(("_end_with_parent (", "Condition.wait (")):
        return None
    first = next((place for place, frame in enumerate(frames) if "importlib._bootstrap" in frame), len(frames))
    if imported := [match[1] for match in map(_IMPORTED.match, frames[first:]) if match]:
        return _PACKAGES.get(next((name for name in imported if name != "cdmpp"), ""), "other imports")
    for frame in reversed(frames):
        for pattern, stage in _RULES:
            if pattern.search(frame):
                return stage
    return REST
