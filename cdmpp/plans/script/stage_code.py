"""Stage code: the lines of PyTorch that cut a model into the stages of a pipeline, those of a rank in ``stages``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.source.torch_network import read_torch
from cdmpp.network.workload import Workload
from cdmpp.plans.cut_places import WRAPPED, CutPlaces
from cdmpp.plans.plan import Plan
from cdmpp.plans.script.carried import cut_model
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.programs.refusal import first_line
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.step_graph import RankGraph

_REFUSED = "--torch: no script can be written"


@dataclass(frozen=True)
class StageCode:
    """A model is cut by ``pipeline``, or by ``cut_model`` where its modules have to stay what they are.

    These are stages whose layers or sequences are divided, which share parameters, or two neighbours of which are on
    one rank.
    ``CdmppError``: a plan, or a model, that neither can cut; it says which.
    """

    workload: Workload
    plan: Plan
    pipeline: Pipeline
    rank: RankGraph
    """One rank's work, of which all stages are cut."""
    keeps_inner: bool
    """True if the script's model has the names of the whole network, as those of ``hf:`` have."""

    def __post_init__(self) -> None:
        strategy = self.plan.strategy
        if not isinstance(strategy, DDP | FSDP):
            raise CdmppError(f"{_REFUSED} of {strategy.title} in a pipeline: give ddp or fsdp")
        if self.workload.precision.name != "fp32":  # type: ignore[union-attr]
            raise CdmppError(f"{_REFUSED} of a pipeline in {self.workload.precision}: give fp32")
        if not self.shared or self.workload.update.clip_norm is None:
            return
        raise CdmppError(
            f"{_REFUSED} of gradients that are clipped where stages share {self.shared[0]}: the norm would count it "
            "twice; leave --clip-norm out"
        )

    @property
    def count(self) -> int:
        """Return the number of stages."""
        return self.plan.degrees.pp * self.pipeline.order.stages_per_rank

    @property
    def is_in_v(self) -> bool:
        """Return True if the first and the last stage are on one rank."""
        return isinstance(self.pipeline.order, LoopedSchedule) and self.pipeline.order.is_in_v

    @cached_property
    def shared(self) -> tuple[str, ...]:
        """Names of parameters that several stages hold."""
        stages = self.pipeline.stages(self.rank, self.count)
        return tuple(dict.fromkeys(name for one in stages for name in one.tied))

    @property
    def is_cut_by_modules(self) -> bool:
        """Return True if ``cut_model`` cuts."""
        return max(self.plan.degrees.tp, self.plan.degrees.cp) > 1 or self.is_in_v or bool(self.shared)

    def lines(self) -> list[str]:
        """Write the cut; ``CdmppError`` where a stage begins inside of all modules, or ``cut_model`` cannot read it."""
        cuts = self.cuts()
        place = 'rank, ranks, group = mesh.get_local_rank("pp"), mesh["pp"].size(), mesh.get_group("pp")'
        if not self.is_cut_by_modules:
            split = ", ".join(f"{name!r}: SplitPoint.BEGINNING" for name in cuts)
            return [
                "model = make_model().train()",
                "(example, _) = make_batch(BATCH // MICRO_BATCHES)",
                f"pipe = pipeline(model, mb_args=example, split_spec={{{split}}})",
                place,
                f"stages = [pipe.build_stage(stage, device, group) for stage in {self.pipeline.torch_stages}]",
            ]
        self._check(cuts)
        numbers = self.pipeline.torch_stages.replace("pipe.num_stages", "len(parts)")
        made = "PipelineStage(parts[stage].to(device), stage, len(parts), device, group=group)"
        return [
            f"parts = cut_model(make_model().train(), {cuts!r})",
            place,
            f"stages = [{made} for stage in {numbers}]",
            *self._held(),
        ]

    def _held(self) -> list[str]:
        """Lines that find the parameters that stages share, with the process group of the ranks that hold each."""
        if not self.shared:
            return []
        if self.is_in_v and isinstance(self.plan.strategy, FSDP):
            raise CdmppError(
                f"{_REFUSED} of fsdp with {self.pipeline.schedule} where stages share {self.shared[0]}: two modules of "
                "one rank cannot both shard it; give interleaved1f1b, or a network whose layers share nothing"
            )
        owner = "min(stage, len(parts) - 1 - stage)" if self.is_in_v else "stage % ranks"
        return [
            "held = {}  # parameters that several stages have: name -> stage, rank of the pipeline",
            "for stage, part in enumerate(parts):",
            "    for name, value in part.named_parameters():",
            f"        held.setdefault(value, []).append((name, stage, {owner}))",
            "sums = {}  # stage and name of each that several ranks have -> their process group",
            "for own in held.values():",
            "    owners = sorted({one for _, _, one in own})",
            "    for chain in mesh.mesh.flatten(1).T.tolist() if len(owners) > 1 else ():",
            "        among = dist.new_group([chain[one] for one in owners])",
            "        if dist.get_rank() in chain:",
            "            sums |= {(stage, name): among for name, stage, _ in own}",
        ]

    def sum_lines(self) -> list[str]:
        """Lines that sum up, behind all passes, the gradients of parameters that several ranks hold."""
        if not self.shared:
            return []
        return [
            "for one in stages:",
            "    for name, value in one.submod.named_parameters():",
            "        if among := sums.get((one.stage_index, name.removeprefix('module.'))):",
            "            if hasattr(value, 'placements'):  # the gradient of words is whole on each rank that has some",
            "                value.grad = value.grad.redistribute(placements=value.placements)",
            "            dist.all_reduce(getattr(value.grad, '_local_tensor', value.grad), group=among)",
        ]

    def cuts(self) -> list[str]:
        """Name modules with which stages begin; ``CdmppError`` where one begins inside of all of them."""
        on, named = CutPlaces(self.rank), dict[int, str]()
        places = self.pipeline.cut_places(on, self.count)
        for name, place in on.names.items():
            if name in on.begins and len(name) < len(named.get(place, name + " ")):
                named[place] = name
        if lost := [place for place in places if place not in named]:
            raise CdmppError(
                f"{_REFUSED}: a stage begins at {self.rank.ops[lost[0]].name}, with which no module begins; give cuts "
                "in a plan file, names of modules"
            )
        return [named[place] if self.keeps_inner else named[place].removeprefix(WRAPPED) for place in places]

    def _check(self, cuts: Sequence[str]) -> None:
        """``CdmppError`` where ``cut_model`` cannot cut the model, or its stages send more than values that learn."""
        import torch

        network = read_torch(self.workload, needs_values=False)
        hint = "give a plan without tp, cp and V schedules, or file.py:FUNCTION with a forward that torch.fx reads"
        mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
        try:
            stages, sent = cut_model(network.model, cuts), tuple(network.example)
            with mode, torch.no_grad():
                for one in stages[:-1]:
                    found = one(*sent)
                    sent = found if isinstance(found, tuple) else (found,)
                    if odd := [each for each in sent if not _learns(each)]:
                        what = getattr(odd[0], "dtype", odd[0])
                        raise CdmppError(
                            f"{_REFUSED}: a stage would send {what} to the next one, and PipelineStage sends values "
                            f"that learn: {hint}"
                        )
        except CdmppError:
            raise
        except Exception as error:
            raise CdmppError(
                f"{_REFUSED}: torch.fx cannot cut the forward pass of {network.name} at {', '.join(cuts)}: "
                f"{first_line(error)}; {hint}"
            ) from error


def _learns(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()
