"""Stored read: the operators of a network of a name, as the package ships them: a question needs no export.

One file is of several examples, however many: for one PyTorch may run others.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from cdmpp.errors import CdmppError
from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.eager.open_read import is_open, read_at
from cdmpp.network.eager.plain_read import restored_read
from cdmpp.network.network_key import digest, name_key, surroundings
from cdmpp.network.precision import precision_of
from cdmpp.network.workload import Workload
from cdmpp.platform.cache import cached_json
from cdmpp.platform.paths import cache_root

_VERSION = "2"
"""Goes up when the same network gives other operators. What is read here is not kept: the shipped reads alone are, and
a test reads them again."""
_SHIPPED = ("torchvision:", "hf:")
"""Beginnings of the names of all networks that are shipped."""
_OF_RUN = ("batch", "sequence", "decoder_sequence", "past", "moe_imbalance", "attention", "boxes", "mode")
"""Fields of a workload that tell how a network of a name runs without a loss, but for shapes and the precision."""


def read_path(workload: Workload, place: str) -> Path | None:
    """Return the place in the cache of what ``read_run`` reads; None where a name does not say what that is."""
    content = name_key(workload.network)
    torch = sys.modules.get("torch")
    is_usual = torch is None or torch.get_default_dtype() == torch.float32
    if content is None or workload.example_inputs is not None or workload.mode == "training_step" or not is_usual:
        return None
    shapes = {name: list(shape) for name, shape in (workload.inputs or {}).items()}
    settings = [repr(getattr(workload, name)) for name in _OF_RUN]
    if workload.batch not in (None, 1):
        settings[_OF_RUN.index("batch")] = "several"
    versions = surroundings(workload.network, by_tvm=False)
    asked = [content, settings, shapes, repr(precision_of(workload.precision)), place, versions]
    return cache_root() / "reads" / f"v{_VERSION}" / f"{digest(asked)}.json"


def stored_read(workload: Workload, place: str) -> EagerNetwork | None:
    """Return what ``read_run`` would, where it is shipped; None: it is not, or its file is damaged."""
    name = workload.network
    if workload.mode != "inference" or not isinstance(name, str) or not name.startswith(_SHIPPED):
        return None  # a file may be large, and is not looked at
    path = read_path(workload, place)
    if path is not None:
        with suppress(CdmppError, LookupError, TypeError, ValueError):
            stored = cached_json(path)
            return read_at(stored, workload.batch or 1) if is_open(stored) else restored_read(stored)
    return None
