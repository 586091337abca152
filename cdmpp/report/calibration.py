"""The report on a model that was scaled to this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdmpp import devices
from cdmpp.measure.disturbance import Disturbance
from cdmpp.report.metric_table import metric_table
from cdmpp.report.report import Report, Total


def calibration_report(found: Mapping[str, Any], model: str) -> Report:
    """Report the errors before and after, a row each.

    Args:
        found: what ``recipes.calibrate`` returned.
        model: where the scaled model is, and what uses it.
    """
    after = "after, each kernel by what the others tell"
    errors = {"before": found["before"], after: found["left_out_tasks"]}
    timed = tuple(Total(name, value, digits=4) for name, value in found["measured"].items())
    title = devices.get(found["device"]).title
    return Report(
        title=f"{title}: {found['programs']} programs of {found['tasks']} kernels measured",
        answer=found,
        totals=(
            Total("machine", Disturbance(**found["machine"]).describe()),
            *((Total("timed", parts=timed),) if timed else ()),
            Total("factors", parts=tuple(Total(name, value) for name, value in found["factors"].items())),
            Total("model", model),
        ),
        tables=(metric_table("Error on these kernels", errors, after),),
        warnings=tuple(
            f"this machine is busy: {reason}. The factors are worse for it; calibrate again when it is quiet"
            for reason in found["busy"]
        ),
    )
