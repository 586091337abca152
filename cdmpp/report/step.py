"""The report on a training step of one rank: its phases, its memory, its kernels."""

from __future__ import annotations

from cdmpp import devices
from cdmpp.network.memory import warnings_of_shares
from cdmpp.network.training_prediction import StepPrediction
from cdmpp.report.charts import Bar, Bars
from cdmpp.report.network import by_class, kernel_table
from cdmpp.report.report import Report, Total
from cdmpp.report.timeline import spans_of


def step_report(found: StepPrediction, is_part: bool = False) -> Report:
    """Report kernels as rows, most total time first.

    Args:
        found: the step of one device.
        is_part: the step of several devices stands above it, so that its title says that it is of one, and no warning
            that this one cannot hold the whole model.
    """
    step, made, whole_s = found.step, found.prediction, found.latency_s or 1.0
    phases = found.phase_s
    classes = by_class(made).items()
    begin = "One device by itself: " if is_part else ""
    told = warnings_of_shares(made, devices.get(made.device), step.peak_bytes) if is_part else made.warnings
    return Report(
        title=f"{begin}{step.graph.name} on {made.device}, batch {step.batch}, {step.optimizer}, model {made.model}, "
        f"schedule {made.schedule}",
        answer=found.to_dict(),
        totals=_totals(found),
        tables=(kernel_table(made),),
        warnings=told,
        timeline=spans_of(made.timeline),
        charts=(
            Bars("Time by phase", tuple(Bar(name, seconds, seconds / whole_s) for name, seconds in phases.items())),
            Bars("Time by op class", tuple(Bar(name, seconds, seconds / whole_s, name) for name, seconds in classes)),
        ),
    )


def _totals(found: StepPrediction) -> tuple[Total, ...]:
    step, memory, whole_s = found.step, found.step.memory, found.latency_s or 1.0
    held = {"parameters": memory.parameter_bytes, "gradients": memory.gradient_bytes, "optimizer": memory.state_bytes,
            "results at a time": memory.live_bytes}  # fmt: skip
    again = f"of the backward pass: torch.utils.checkpoint runs {len(step.recomputed)} calls of the forward pass again"
    return (
        Total("step", found.latency_s, "s", 4),
        *(Total(name, seconds, "s", share=seconds / whole_s) for name, seconds in found.phase_s.items()),
        *((Total("recomputed", found.recomputed_s, "s", note=again),) if step.recomputed else ()),
        Total("calls", sum(step.counts.values()), parts=tuple(Total(name, n) for name, n in step.counts.items())),
        Total("tasks", len(step.graph.tasks), note="different programs"),
        Total("saved", step.saved_activation_bytes, "B", note="from the forward into the backward pass"),
        Total("memory", step.peak_bytes, "B", parts=tuple(Total(name, size, "B") for name, size in held.items()),
              note="at its peak, of one device that holds the whole model"),
    )  # fmt: skip
