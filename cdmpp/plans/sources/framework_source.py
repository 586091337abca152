"""The source of the steps of a decoder as a training framework runs it: its modules, its host, a few of its blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cdmpp.collectives.topology import Topology
from cdmpp.devices import Device
from cdmpp.errors import UsageError
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.workload import Workload
from cdmpp.plans.frameworks import Framework
from cdmpp.plans.sources.hosted import HostedSource
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.sources.source import StepSource
from cdmpp.plans.sources.sustained import SustainedSource
from cdmpp.plans.transformer_shape import TransformerShape


def framework_source(
    shape: TransformerShape,
    framework: Framework,
    device: Device,
    topology: Callable[[int], Topology],
    runtime: EagerRuntime | None = None,
) -> HostedSource:
    """Return the source.

    Args:
        shape: sizes of the decoder.
        framework: that runs it, with its host.
        device: of each rank.
        topology: number of ranks -> the links between them.
        runtime: with the model that prices kernels; None: the default one of the device.

    Raises:
        UsageError: settings of which only memory is known.
    """
    if framework.recompute == "attention" or framework.shards_all or framework.head_norms:
        raise UsageError(
            f"--framework {framework.name}: recompute=attention, shards_all and head_norms are known for --memory-only"
        )
    return hosted(kernels_of(shape, framework, device, runtime), framework, device, topology)


def kernels_of(
    shape: TransformerShape, framework: Framework, device: Device, runtime: EagerRuntime | None = None
) -> SustainedSource:
    """Return the source of the kernels of a decoder, without what the framework's host takes; as above."""
    import torch

    from cdmpp.plans.sources.framework_network import decoder_loss, decoder_of

    shape = replace(shape, vocabulary=framework.padded(shape.vocabulary, 1))
    words = torch.zeros(2, shape.sequence, dtype=torch.long)
    workload = Workload(
        decoder_of(shape, framework), (words,), loss=decoder_loss, target=words, optimizer="adamw-fused",
        mode="training_step",
    )  # fmt: skip
    return SustainedSource(PredictedSource(workload, device, runtime), device, "bf16")


def hosted(
    kernels: StepSource, framework: Framework, device: Device, topology: Callable[[int], Topology]
) -> HostedSource:
    """Return a source of kernels with what the framework's host takes, and its buffer of gradients."""
    bandwidth = 1e9 * (device.spec["bandwidth_gbps"] or 0.0)
    return HostedSource(kernels, framework.host, topology, framework.gradient, framework.weight, bandwidth)
