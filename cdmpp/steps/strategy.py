"""Strategy: how the ranks of a job share a training step. The protocol that every parallel strategy follows.

A strategy is one file of ``cdmpp/plans/strategies``. Replay, memory, search, files, settings for PyTorch and the
command line ask it, and know none by name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import CdmppError
from cdmpp.network.eager.divided import DividedExport
from cdmpp.network.training_step import StepMemory
from cdmpp.platform.limits import Limits, check_fields
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.launches import Launches
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.transforms.scale import shard_update

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Flag:
    """An option sets a field of a strategy: ``field(metadata=flag(...))`` declares it."""

    option: str
    """The option, such as ``--servers``."""
    type: Callable[[str], Any]
    """Reads the field's value; ``argparse.ArgumentTypeError`` for a text that it cannot be."""
    help: str
    """A line for ``--help``."""


def flag(option: str, type: Callable[[str], Any], help: str) -> dict[str, Flag]:
    """Return the metadata of a field that the command line can set."""
    return {"flag": Flag(option, type, help)}


@dataclass(frozen=True)
class RankBytes:
    """One rank holds so much under a strategy, next to the model's buffers, its inputs and activations; in bytes."""

    parameter_bytes: int
    """Its parameters; of sharded ones its own part."""
    state_bytes: int
    """What the optimizer keeps from step to step."""
    gradient_bytes: int
    """Its gradients once the backward pass is over."""
    update_bytes: int
    """Workspace of the update."""
    bucket_bytes: int = 0
    """Communication buffers that stay from step to step."""
    gathered_bytes: int = 0
    """Parameters and buffers of exchanges that are there only while the passes run."""
    passing_bytes: int = 0
    """Whole gradients and buffers from which they are sent, where the rank keeps a part of them."""
    holds_gradients: bool = False
    """True if gradients have a place of their own in all passes; otherwise they come with the backward pass."""


@dataclass(frozen=True)
class Strategy(ABC):
    """Each setting of a parallel strategy is a field; a value that cannot be is refused at once.

    A subclass is a frozen dataclass that states ``name``, ``title`` and ``LIMITS`` and writes ``exchanges``. The other
    methods have defaults that suit a strategy under which every rank holds the whole model. A plan has one strategy for
    its replicas, and any number of those that divide the model.
    """

    LIMITS: ClassVar[Mapping[str, Limits]] = {}
    """Name of a field that holds numbers -> what they may be."""
    name: ClassVar[str]
    """The name in files and on the command line."""
    title: ClassVar[str]
    """A few words for a reader."""
    degrees: ClassVar[tuple[str, ...]] = ("dp_replicate",)
    """Parallel degrees that may exceed 1; the first one takes all ranks where nothing else is said."""
    divides_model: ClassVar[bool] = False
    """True if ranks along its degrees divide the model, as a pipeline does; False if each has replicas or shards of the
    parameters, and a batch of its own."""
    replicates: ClassVar[bool] = True
    """True if ranks along its degrees must average the gradients of the parameters that they share."""
    casts_parameters: ClassVar[bool] = False
    """True if parameters may be kept in another type than that in which the passes read them."""
    copies_buffers: ClassVar[bool] = False
    """True if gathered parameters are copied out of a buffer, and gradients that are scattered into one."""
    can_offload: ClassVar[bool] = False
    """True if the framework can keep parameters, gradients and the optimizer's states in the memory of the host."""
    can_accumulate: ClassVar[bool] = True
    """True if gradients of several batches can be added up before they are exchanged."""
    averages_by_hooks: ClassVar[bool] = False
    """True if gradients are exchanged as autograd adds them to parameters, which divided backward passes never do."""
    sums_parts: ClassVar[bool] = False
    """True if gradients of which ranks along another degree have parts of a sum are summed up, whole and once, before
    those of their module are exchanged; False: where the optimizer reads them."""

    overlap: bool = field(default=True, kw_only=True)
    """True if ranks compute while they exchange."""

    def __post_init__(self) -> None:
        check_fields(self, f"{self.name}.")

    @abstractmethod
    def exchanges(self, graph: StepGraph, sizes: Mapping[str, int] | None = None) -> tuple[Exchange, ...]:
        """List exchanges of the ranks of ``graph`` in one step, in the order of the launches.

        Args:
            graph: ranks that share the work in this way, all of them or some that do what the others do. They are on
                one stage of a pipeline.
            sizes: degree -> its ranks, of this strategy and of others that replicate the model; None: those of the
                graph stand along the first degree. See ``ranks_of``.

        Returns:
            Exchanges of all ranks of the graph. Where ``Exchange.along`` names degrees, each group of ranks that
            differ only along these has one of its own.

        Raises:
            CdmppError: ranks whose gradients or modules differ, or a step that the strategy cannot share.
        """

    def launches(self, graph: StepGraph, many: Sequence[Mapping[str, int]]) -> Launches | None:
        """List the exchanges of rank 0 at ``many`` numbers of ranks, where these change only their bytes.

        Args:
            graph: as of ``exchanges``; it has rank 0 alone.
            many: the ``sizes`` of each.

        Returns:
            What ``exchanges`` lists, but for names. None where each number of ranks has a list of its own.
        """
        return Launches.of(self.exchanges(graph, many[0])) if len(many) == 1 else None

    @classmethod
    def ranks_of(cls, graph: StepGraph, sizes: Mapping[str, int] | None, *degrees: str) -> int:
        """Count the ranks along ``degrees``, or all where none is named; those of the graph where sizes are None."""
        if sizes is None:
            return len(graph.ranks) if not degrees or cls.degrees[0] in degrees else 1
        return math.prod(sizes.get(name, 1) for name in degrees or sizes)

    def apply(self, graph: StepGraph) -> StepGraph:
        """Change the step to what ranks run under the strategy, with its exchanges.

        Args:
            graph: what ranks compute. If it has exchanges, it was traced under the same kind of strategy.

        Raises:
            CdmppError: as ``exchanges``; a traced step, whose settings the strategy cannot change.
        """
        if graph.exchanges:
            raise CdmppError(f"the settings of a traced step of {self.name} cannot be changed")
        sharded = shard_update(graph, self.shards({self.degrees[0]: len(graph.ranks)}))
        return sharded.with_exchanges(self.exchanges(sharded) if len(graph.ranks) > 1 else ())

    @classmethod
    def from_trace(cls, graph: StepGraph) -> Self:
        """Return the strategy under which a step was traced; ``CdmppError`` where it was another one."""
        raise CdmppError(f"{cls.name}: its settings cannot be read from a trace")

    def gradient_parts(self, sizes: Mapping[str, int]) -> int:
        """Return the parts into which ranks divide each gradient as they sum it; ``sizes`` as of ``shards``."""
        return 1

    def norms_along(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """Return the degrees along which gradients are divided when they are clipped by a norm over all of them."""
        return ()

    def shards(self, sizes: Mapping[str, int]) -> int:
        """Return the number of ranks over which the update is divided.

        Args:
            sizes: degree -> its ranks, of all degrees along which ranks have the same parameters.
        """
        return 1

    @property
    def exchanges_each_batch(self) -> bool:
        """True if every one of several accumulated batches exchanges something; else only the last one does."""
        return False

    @property
    def ends_backward(self) -> bool:
        """True if a backward pass ends only once its gradients are exchanged.

        In a pipeline a stage then sends its last gradient to the stage before it after that, so that the exchanges of
        stages come one after the other.
        """
        return False

    def on_backend(self, backend: str) -> Self:
        """Return the strategy as it runs over this communication back end."""
        return self

    def in_pipeline(self) -> Self:
        """Return the strategy as it runs in a stage of a pipeline."""
        return self

    def pipeline_warnings(self, is_forward_first: bool) -> tuple[str, ...]:
        """Say what a framework refuses where replicas are stages of a pipeline, a sentence each.

        Args:
            is_forward_first: True if all forward passes of a step come before its first backward pass on some stage.
        """
        return ()

    def memory_warnings(self) -> tuple[str, ...]:
        """Say what each of several ranks holds whatever the model is, a sentence each."""
        return ()

    def check(self, ranks: int) -> None:
        """Raise ``CdmppError`` where the settings do not fit so many ranks."""
        return None

    def check_with(self, replicas: Strategy | None, recomputes: bool, others: Sequence[Strategy]) -> None:
        """Raise ``CdmppError`` where a strategy that divides the model does not go with the rest of a plan.

        Args:
            replicas: the strategy of the replicas; None where there is one replica.
            recomputes: whether modules run again in the backward pass.
            others: all strategies of the plan that divide the model.
        """
        return None

    def rank_bytes(
        self, held: StepMemory, modules: Sequence[ModuleSpan], sizes: Mapping[str, int], batches: int = 1
    ) -> RankBytes:
        """Return the part of a model that each rank holds.

        Args:
            held: bytes of the whole model on one rank.
            modules: the modules of the model, which are groups of parameters.
            sizes: degree -> its ranks, of all degrees along which ranks have the same parameters.
            batches: forward and backward passes of one step, of accumulated batches or of micro-batches.
        """
        return RankBytes(held.parameter_bytes, held.state_bytes, held.gradient_bytes, held.update_bytes)

    def proposals(self, graph: StepGraph) -> Iterator[tuple[str, str, Iterable[Self]]]:
        """Yield other settings that may make the step ``graph`` of two ranks or more shorter.

        Yields:
            The name of the change, the part of the critical path that it may shorten, and the strategies to try.
        """
        yield from ()

    def memory_savers(self, ranks: int) -> Iterator[tuple[str, Self]]:
        """Yield settings under which a rank may hold less: the name of the change, and the strategy."""
        yield from ()

    def changes(self, default: Strategy) -> tuple[str, ...]:
        """Name settings that differ from those of ``default``, a phrase each."""
        if type(default) is not type(self):
            default = type(self)()
            return (f"strategy {self.name}", *self.changes(default))
        return tuple(
            self.describe(one.name) for one in fields(self) if getattr(self, one.name) != getattr(default, one.name)
        )

    def describe(self, setting: str) -> str:
        """Describe one setting, by its field's name, for a reader."""
        value = getattr(self, setting)
        if setting == "overlap":
            return "exchanges overlap with computing" if value else "exchanges only when nothing computes"
        return f"{setting} {value}"

    def torch_sync(self) -> str:
        """Write the line of Python before the backward pass of an accumulated batch, which knows ``is_last``.

        It opens a block or stands for itself; empty: none is needed.
        """
        return "with contextlib.nullcontext() if is_last else model.no_sync():"

    @abstractmethod
    def torch_lines(self, axes: str = "", optimizer: str = "torch.optim.AdamW") -> tuple[str, ...]:
        """Write Python that sets the strategy for a ``model``, its ``blocks`` and an ``optimizer``.

        Args:
            axes: the ``DeviceMesh`` of its ranks, in Python; empty: all ranks of the job.
            optimizer: the class of the optimizer, in Python.
        """


@dataclass(frozen=True)
class OperatorStrategy(Strategy):
    """Ranks divide single operators, and exchange what these need for each micro-batch.

    These exchanges come with the work of one rank (``RankWork``), so that the strategy itself has none.
    """

    divides_model = True

    @abstractmethod
    def limit(self, exported: Any) -> tuple[int, str]:
        """Return the most ranks that can divide an exported step, and the layer that allows no more."""

    @abstractmethod
    def divide(self, exported: Any, ranks: int) -> DividedExport:
        """Write what one of several ranks runs of an exported step.

        Raises:
            CdmppError: more ranks than ``limit``, or an operator that cannot be divided, by name.
        """

    def check_limit(self, exported: Any, ranks: int, what: str) -> None:
        """Raise ``CdmppError`` where ``ranks`` are more than ``limit``, which counts ``what``."""
        most, layer = self.limit(exported)
        if not layer:
            raise CdmppError(f"{self.name}={ranks}: the network has no convolution that can be divided by {what}")
        if ranks > most:
            raise CdmppError(f"{self.name}={ranks}: {layer} has {most} {what}: expected at most {most} ranks")

    def exchanges(self, graph: StepGraph, sizes: Mapping[str, int] | None = None) -> tuple[Exchange, ...]:
        """List none: those of operators come with the work of a rank."""
        return ()

    def torch_lines(self, axes: str = "", optimizer: str = "torch.optim.AdamW") -> tuple[str, ...]:
        """Say that PyTorch has no module for it."""
        return (f"# {self.title}: PyTorch has no module for it",)
