"""Child process of ``evaluate``: computes one cell a request, from data that its parent wrote."""

from __future__ import annotations

import os
from pathlib import Path

from cdmpp.errors import CdmppError
from cdmpp.evaluation.cell import Cell, CellOptions
from cdmpp.evaluation.run import try_cell
from cdmpp.evaluation.stored_data import read_data
from cdmpp.platform.workers import Reply, Request, serve


def compute_cell(request: Request) -> Reply:
    """Compute a cell into the folder of results; the reply has the reason where it ``failed``."""
    folder, told = Path(request["data"]), request["options"]
    if not folder.is_dir():
        raise CdmppError(
            f"{os.uname().nodename} does not see {folder}: cells of several machines need an out= folder that all share"
        )
    os.chdir(request["directory"])  # settings and models may be named from there
    options = CellOptions(**{**told, "out": Path(told["out"]), "overrides": tuple(told["overrides"])})
    return {"failed": try_cell(read_data(folder), request["name"], Cell.parse(request["cell"]), options)}


if __name__ == "__main__":
    serve({"ready": lambda _: {}, "cell": compute_cell})
