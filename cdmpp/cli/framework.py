"""Plans of a decoder as a training framework runs it: ``cdmpp plan NET --framework NAME``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from cdmpp.cli.memory import decoder
from cdmpp.errors import UsageError

if TYPE_CHECKING:
    from cdmpp.plans.question import Question

_OTHERS = ("calibrate", "torch", "devices")


def framework_question(
    options: argparse.Namespace, names: tuple[str, ...], global_batch: int, told: tuple[str, ...]
) -> Question:
    """Return the question of all plans that a framework has; nothing is read yet.

    ``UsageError`` for options that go with PyTorch's own steps only, or on a device without a host of its own.
    """
    from cdmpp import devices
    from cdmpp.collectives.topology import topology_of
    from cdmpp.network.eager.runtime import EagerRuntime
    from cdmpp.plans.framework_memory import framework_bytes
    from cdmpp.plans.framework_rules import by_rules, names_of, schedules_of
    from cdmpp.plans.question import Question
    from cdmpp.plans.sources.framework_source import framework_source

    if given := [name for name in _OTHERS if getattr(options, name, None)]:
        raise UsageError(f"--{given[0]} does not go with --framework, which has kernels and a host of its own")
    device = devices.get(options.device)
    if device.kind == "cpu":
        raise UsageError(f"--framework is of GPUs, and {device.name} is a CPU")
    shape, framework = decoder(options)
    by_rules(names, framework)
    place = {"cluster": options.cluster, "link": options.link, "backend": options.backend, "can_grow": True}
    topology_of(options.ranks, device, **place)
    limit = device.spec["memory_gb"] if options.memory_gb is None else options.memory_gb
    source = framework_source(
        shape, framework, device, lambda ranks: topology_of(max(ranks, options.ranks), device, **place),
        EagerRuntime(options.model),
    )  # fmt: skip
    return Question(
        source,
        lambda ranks: framework.host.topology(topology_of(ranks, device, **place)),
        options.ranks,
        global_batch,
        names or names_of(framework),
        None if limit is None else 1e9 * limit,
        is_gpu=True,
        warnings=(*told, f"host of {framework.name}: {framework.host.origin}"),
        schedules=schedules_of(),
        rules=lambda asked: by_rules(asked, framework),
        recomputes=framework.recompute == "full",
        memory_bytes=lambda degrees, size, many, strategy: framework_bytes(
            shape, replace(framework, shards_state=strategy == "zero"), degrees, size, many
        ),
        input_samples_per_s=options.input_samples_per_s,
        is_torch=False,
        progress=sys.stderr.isatty(),
    )
