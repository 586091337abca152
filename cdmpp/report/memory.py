"""The report on the memory of a plan."""

from __future__ import annotations

from dataclasses import fields

from cdmpp.plans.combinations import combination_of
from cdmpp.plans.memory_answer import BASIS, MemoryAnswer
from cdmpp.plans.plan_words import words
from cdmpp.report.report import Column, Report, Row, Table, Total
from cdmpp.units import SHARE

_RESERVED = "Bytes of PyTorch's allocator with gaps between tensors, as torch.cuda.max_memory_reserved has them."


def memory_report(found: MemoryAnswer) -> Report:
    """Report each place of the pipeline as a row, and the parts of the heaviest one."""
    most = found.heaviest
    allowed = () if found.limit_bytes is None else (Total("allowed", found.limit_bytes, "B"),)
    fits = {True: "it fits", False: "it does not fit", None: ""}[found.fits]
    where = f"; of rank {most.place} of the pipeline" if len(found.ranks) > 1 else ""
    totals = (
        Total("memory", most.peak_bytes, "B", parts=allowed, note=f"{fits}{where}".lstrip("; ")),
        Total("micro-batch", found.micro_batch, note=f"examples; {found.global_batch:,} of all devices in one step"),
    )
    return Report(
        title=f"Memory of {found.network}: {words(found.plan, combination_of(found.plan), found.micro_batch)}",
        answer=found.to_dict(),
        totals=totals,
        tables=(_ranks(found), _parts(found), _activations(found)),
        warnings=found.warnings,
    )


def _ranks(found: MemoryAnswer) -> Table:
    columns = (
        Column("place", "rank", meaning="Place in the pipeline; all ranks of one place hold alike."),
        Column("first", "begins with", kind="name", meaning="First module of each of its stages.", rank=1),
        Column("in_flight", "in flight", meaning="Micro-batches whose activations it holds at most.", is_optional=True),
        Column("parameters_bytes", "weights", "B"),
        Column("gradients_bytes", "gradients", "B"),
        Column("optimizer_bytes", "optimizer", "B"),
        Column("activations_bytes", "activations", "B", meaning="Without logits and loss; inputs and buffers with it."),
        Column("logits_bytes", "logits", "B", meaning="The model's output, what the loss makes of it, its gradient."),
        Column("communication_bytes", "communication", "B", meaning="Buckets, gathered weights, gradients under way."),
        Column("outside_bytes", "outside", "B", meaning="No tensors: context, NCCL, what the allocator rounds up."),
        Column("peak_bytes", "total", "B"),
        Column("reserved_bytes", "reserved", "B", meaning=_RESERVED, is_optional=True),
        *(
            (Column("host_bytes", "on the host", "B", meaning="In the memory of the node."),)
            if found.plan.offload
            else ()
        ),
        Column("fits", "fits", kind="text", is_optional=True),
    )
    rows: list[Row] = []
    for one in found.ranks:
        parts = {f"{part.name}_bytes": int(getattr(one.parts, part.name)) for part in fields(one.parts)}
        held = parts["activations_bytes"] - one.logits_bytes + parts["inputs_bytes"] + parts["buffers_bytes"]
        passes = {"activations_bytes": held + parts["workspace_bytes"], "logits_bytes": one.logits_bytes}
        rows.append(
            {
                "place": one.place, "first": ", ".join(one.first), "in_flight": one.in_flight or "", **parts, **passes,
                "outside_bytes": one.outside_bytes, "peak_bytes": one.peak_bytes,
                "reserved_bytes": one.reserved_bytes,
                "host_bytes": one.host_bytes,
                "fits": "" if found.limit_bytes is None else "yes" if found.rank_fits(one) else "no",
            }
        )  # fmt: skip
    heaviest = found.ranks.index(found.heaviest) if len(found.ranks) > 1 else None
    return Table("What each rank holds at its peak", columns, rows, strong=heaviest)


def _parts(found: MemoryAnswer) -> Table:
    columns = (
        Column("part", "part", kind="text"),
        Column("bytes", "memory", "B", is_sum=True),
        Column("share", "share", SHARE, is_sum=True),
        Column("basis", "known", kind="name", meaning="How the part is known."),
    )
    most = found.heaviest
    rows = [
        {"part": name, "bytes": size, "share": size / most.peak_bytes, "basis": BASIS[name]}
        for name, size in most.parts.by_size.items()
    ]
    return Table("Parts of the rank that holds most", columns, rows)


def _activations(found: MemoryAnswer) -> Table:
    columns = (
        Column("kind", "written by", kind="text"),
        Column("bytes", "memory", "B", is_sum=True),
        Column("share", "share", SHARE, is_sum=True),
    )
    whole = sum(found.heaviest.activations.values()) or 1
    rows = [{"kind": kind, "bytes": size, "share": size / whole} for kind, size in found.heaviest.activations.items()]
    return Table("Activations of that rank, by the operator that wrote them", columns, rows)
