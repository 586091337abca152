"""What the product says to a case: refused, answered, or answered since other values are the same work."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from benchmarks.importers.case import Case
from cdmpp.errors import CdmppError
from cdmpp.network.graph import graph_of
from cdmpp.network.source.read import read_network
from cdmpp.network.workload import Workload
from cdmpp.programs import known_faults, networks, torch_import
from cdmpp.programs.refusal import quiet


@dataclass(frozen=True)
class Verdict:
    """How the product judges one case."""

    refusal: str
    """Empty: it is answered."""
    same_work: str = ""
    """A fault of the table that is answered all the same: what TVM makes instead."""


def judge(case: Case) -> Verdict:
    """Read the case as the product reads a network of its kind, down to its kernels."""
    noted: list[str] = []

    def refused_fault(source: str, operator: str, facts: known_faults.Facts) -> str:
        for fault in known_faults.known_faults():
            if fault.same_work and (fault.source, fault.operator) == (source, operator) and fault.covers(facts):
                noted.append(fault.what)
        return known_faults.refused_fault(source, operator, facts)

    with (
        mock.patch("cdmpp.network.source.onnx_import.refused_fault", refused_fault),
        mock.patch.object(torch_import, "refused_fault", refused_fault),
        tempfile.TemporaryDirectory() as folder,
    ):
        try:
            if case.source == "onnx":
                path = Path(folder) / "case.onnx"
                path.write_bytes(case.model.SerializeToString())
                graph_of(read_network(Workload(path)).module, "case")
            else:
                with quiet():
                    from tvm import relax

                    module = relax.frontend.detach_params(torch_import.imported(case.model))[0]
                graph_of(networks.lower(module), "case")
        except CdmppError as error:
            return Verdict(str(error))
    return Verdict("", "; ".join(dict.fromkeys(noted)))
