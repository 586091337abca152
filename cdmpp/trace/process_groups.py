"""Process groups of a job that are smaller than its world, such as those of hybrid sharding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cdmpp.steps.exchange import peers_of
from cdmpp.trace.exchange_events import group_name, group_size
from cdmpp.trace.rank_trace import Exchange, RankTrace
from cdmpp.trace.scanned import Scanned


def subgroups(scanned: Scanned, world: int | None) -> dict[str, int]:
    """Return name and number of ranks of each group smaller than the world that a trace names, none of one rank."""
    if world is None:
        return {}
    return {name: size for name, size in _groups(scanned) if 1 < size < world}


def _groups(scanned: Scanned) -> Iterator[tuple[str, int]]:
    info = scanned.keys.get("distributedInfo")
    configs = info.get("pg_config") if isinstance(info, dict) else None
    for one in configs if isinstance(configs, list) else ():
        if isinstance(one, dict) and type(size := one.get("pg_size", one.get("group_size"))) is int:
            yield str(one.get("pg_name", "")), size
    for events in (scanned.host, scanned.device):
        for event in events:
            if event.args and (size := group_size(event.args)):
                yield group_name(event.args), size


def why_untold(traces: Sequence[RankTrace]) -> str:
    """Say why ranks cannot be brought together: subgroups, and exchanges that do not say theirs; empty: they can."""
    found = next((trace for trace in traces if trace.subgroups), None)
    hidden = [one for trace in traces for step in trace.steps for one in step.exchanges if _is_hidden(one)]
    if found is None or not hidden or len(traces) == 1:
        return ""
    name, size = next(iter(found.subgroups.items()))
    kinds = ", ".join(sorted({one.kind for one in hidden}))
    return (
        f"the job has a subgroup: process group {name!r} is of {size:,} of its {found.world_size:,} ranks, and "
        f"{len(hidden):,} exchanges ({kinds}) do not say which group they are of, so nobody can tell which ranks meet. "
        "Trace it with a back end that writes groups into its traces (NCCL, PyTorch 2.3 or newer), or keep only the "
        "trace of one rank in the folder"
    )


def _is_hidden(one: Exchange) -> bool:
    return not one.group and peers_of(one.kind, one.group) is None
