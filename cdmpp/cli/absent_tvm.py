"""A verb that meets that TVM is not installed says which extra brings it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cdmpp.errors import MissingToolError


@contextlib.contextmanager
def absent_tvm_named() -> Iterator[None]:
    """Turn a failed import of TVM within the block into ``MissingToolError``, which names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "tvm":
            raise
        raise MissingToolError("this needs TVM, which is not installed: pip install 'cdmpp[tvm]'") from error
