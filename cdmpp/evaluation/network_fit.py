"""Costs of launches, a run and far data on a device, fitted on networks that were measured there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import least_squares

from cdmpp.devices import Device
from cdmpp.devices.launch_overheads import LaunchOverheads
from cdmpp.errors import CdmppError
from cdmpp.evaluation.networks import NetworkCell
from cdmpp.network.compiled.cold import far_of, levels_of
from cdmpp.network.compiled.measured import SHORT_S

_LOOKING_S = 1e-5
"""Times of single calls are known to about this."""
_USUAL = 0.05
"""Relative difference between two times of one call on a shared host."""
_START = (1.0, 2.0)
"""Share of far data, microseconds a call."""
_CACHE_SHARES = tuple(sixteenth / 16 for sixteenth in range(1, 17))
"""Shares of the last cache that a network may have to itself."""


def fit_launch_overheads(cells: Sequence[NetworkCell], device: Device) -> LaunchOverheads:
    """Fit the costs of launches, a run and far data on measured kernels: errors of the predictions do not enter.

    Each call's time within its network, less its time alone, is a share of what its far data takes, and a constant
    (relative differences, beyond the usual ones by their absolute values: what other guests do to single calls has no
    bounds), for the size of the last cache with which that comes out best. The least that a short network takes beyond
    its calls is the cost of a run.
    Of cells of one run, predicted by several models, one counts. ``CdmppError`` with fewer than four.
    """
    cells = list({(cell.device, cell.schedule, cell.network, cell.batch): cell for cell in cells}.values())
    if len(cells) < 4:
        raise CdmppError(f"{len(cells)} measured networks do not tell what a device takes beside its kernels: 4 do")
    calls = [call for cell in cells for call in cell.calls]
    weight = np.array([1.0 / (call.alone_s + _LOOKING_S) for call in calls])
    longer = np.array([call.inside_s - call.alone_s for call in calls])
    found = []
    for share in _CACHE_SHARES if device.spec["l3_kb"] else (None,):
        own = None if share is None else 1024 * share * (device.spec["l3_kb"] or 0.0)
        levels = levels_of(replace(device, launch_overheads=replace(device.launch_overheads, resident_bytes=own)))
        causes = np.array([[far_of(call.touches, levels), 1e-6] for call in calls]) * weight[:, None]
        asked = {"args": (causes, longer * weight), "bounds": (0.0, np.inf)}
        fit = least_squares(_left, _START, loss="soft_l1", f_scale=_USUAL, **asked)
        found.append((fit.cost, own, *fit.x))
    _, own, exposed, call_us = min(found, key=lambda one: one[0])
    short = [min(cell.samples_s) - cell.inside_s for cell in cells if min(cell.samples_s) < SHORT_S]
    return replace(
        device.launch_overheads,
        call_s=1e-6 * float(call_us),
        run_s=max(0.0, min(short, default=0.0)),
        exposed_share=float(exposed),
        resident_bytes=own,
    )


def _left(unknown: np.ndarray, causes: np.ndarray, longer: np.ndarray) -> np.ndarray:
    left: np.ndarray = causes @ unknown - longer
    return left
