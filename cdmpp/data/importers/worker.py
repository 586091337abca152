"""Child process of importers: restores programs, and describes operators, a part of an import a request."""

from __future__ import annotations

from collections.abc import Callable

from cdmpp.ast.table import AstTable
from cdmpp.data.derive_worker import packed
from cdmpp.platform.workers import Reply, Request, serve


def operator_asts(request: Request) -> Reply:
    """Make the compact ASTs of ``operators``, as JSON each, in one table."""
    from cdmpp.data.importers.neusight import asts_of

    table = AstTable.from_asts(asts_of(request["operators"]))
    return {"arrays": packed({name: array for name, array in vars(table).items() if array is not None})}


def program(request: Request) -> Reply:
    """Restore the program of a line, see ``programs.read_program``."""
    from cdmpp.data.importers.programs import read_program

    return read_program(request)


OPERATIONS: dict[str, Callable[[Request], Reply]] = {
    "ready": lambda _: {},
    "operators": operator_asts,
    "program": program,
}

if __name__ == "__main__":
    serve(OPERATIONS)
