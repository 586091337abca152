"""Work of a measuring child process: everything that may crash or hang (import, sample, compile, run a kernel).

An operation's module is imported with its first request, so that a kit's process loads only what the device has.
"""

from __future__ import annotations

import importlib
from functools import partial

from cdmpp.platform.workers import Reply, Request, serve

COMMAND = ("-m", "cdmpp.measure.worker")
OPERATIONS = {
    "ready": "build:load_compiler",
    "ready_kit": "timing:load_runtime",
    "import": "build:import_tasks",
    "sample": "build:sample",
    "build": "build:build",
    "expect": "build:write_expected",
    "time": "timing:time_library",
    "check": "timing:check_library",
    "time_rpc": "remote:time_remote",
    "open_session": "fleet.session:open_session",
    "close_session": "fleet.session:close_session",
    "time_held": "fleet.session:time_held",
    "ready_torch": "torch_timing:load_torch",
    "time_torch": "torch_timing:time_operator",
    "import_operators": "torch_networks:import_operators",
}
"""Name of a request -> module of this room and the function that answers it."""


def answer(operation: str, request: Request) -> Reply:
    """Run one operation; an error on a GPU asks for a new process, because the context may be lost."""
    module, _, function = operation.partition(":")
    try:
        return getattr(importlib.import_module(f"cdmpp.measure.{module}"), function)(request)
    except Exception as error:
        if request.get("device", "cpu") == "cpu":
            raise
        message = f"{type(error).__name__}: {str(error)[-500:]}"
        return {"cause": f"{request['op']} error", "message": message, "restart": True}


if __name__ == "__main__":
    serve({name: partial(answer, operation) for name, operation in OPERATIONS.items()})
