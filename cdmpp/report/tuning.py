"""The report on a network that was tuned."""

from __future__ import annotations

from cdmpp.report.report import Column, Report, Table, Total
from cdmpp.tuning.offline import TunedNetwork


def tuning_report(tuned: TunedNetwork) -> Report:
    """Report kernels as rows, by the time of all their calls."""
    answer = tuned.to_dict()
    columns = (
        Column("op_name", "kernel", kind="name"),
        Column("calls", "calls"),
        Column("predicted_s", "best predicted", "s"),
        Column("trials", "trials"),
        Column("measured_s", "best measured", "s"),
    )
    return Report(
        title=f"{tuned.network} on {tuned.device}, tuned in {tuned.folder}",
        answer=answer,
        totals=(Total("kernels", tuned.kernels_s, "s", note="all calls, one by one"),),
        tables=(Table("Kernels, most time first", columns, answer["kernels"]),),
    )
