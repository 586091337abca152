"""The builder of a search: libraries that the cost model had compiled to read them are not compiled again."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder

from cdmpp.tuning.artifacts import Artifact, Artifacts


@derived_object
class Builder(PyBuilder):
    """A search takes this builder. Its processes stay; TVM's own start anew, for ten seconds, at every batch."""

    def __init__(self, artifacts: Artifacts) -> None:
        super().__init__()
        self.artifacts = artifacts

    def build(self, build_inputs: list[Any]) -> list[Any]:
        """Return one result an input; a program that does not compile has the reason in its ``error_msg``."""
        keys = [int(tvm_ffi.structural_hash(given.mod)) for given in build_inputs]
        for target in {str(given.target): given.target for given in build_inputs}.values():  # together, in parallel
            same = [i for i, given in enumerate(build_inputs) if str(given.target) == str(target)]
            self.artifacts.compiled({keys[i]: build_inputs[i].mod for i in same}, target)
        taken = [
            self.artifacts.taken(key, given.mod, given.target) for key, given in zip(keys, build_inputs, strict=True)
        ]
        return [_result(artifact) for artifact in taken]


def _result(artifact: Artifact) -> Any:
    if artifact.library is None:
        return BuilderResult(None, f"cdmpp builder: {artifact.fault}")
    return BuilderResult(str(artifact.library), None)
