"""A script for ``torchrun``: the training step of a plan in plain PyTorch, with random weights and data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cdmpp.errors import CdmppError
from cdmpp.network.workload import Workload
from cdmpp.plans.cut_places import WRAPPED, CutPlaces
from cdmpp.plans.mesh import ORDER
from cdmpp.plans.placement import micro_batch_of, micro_batches_of, pipeline_of
from cdmpp.plans.plan import Plan
from cdmpp.plans.script.network_code import network_code
from cdmpp.plans.script.recompute_code import ATTENTION, check_recompute, recomputed_blocks
from cdmpp.plans.script.template import IMPORTED, IMPORTS, TEMPLATE
from cdmpp.plans.script.tensor_code import TensorCode, tensor_code
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.strategies.tensor import Tensor
from cdmpp.plans.torch_settings import optimizer_class
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.step_graph import RankGraph
from cdmpp.synchrony.policies.synchronous import Synchronous

_REFUSED = "--torch: no script can be written"
_KNOWN = ("pp", "dp_replicate", "dp_shard", "tp")
"""Degrees that a script can have."""


@dataclass(frozen=True)
class TorchScript:
    """All that a script says of a job.

    ``CdmppError``: a network, a strategy or an update that no script of PyTorch alone can have; it says which.
    """

    workload: Workload
    plan: Plan
    global_batch: int
    """Examples of all ranks in one step."""
    rank: RankGraph
    """One rank's work, whose modules are sharded, recomputed and cut."""

    def __post_init__(self) -> None:
        plan, precision = self.plan, self.workload.precision
        if others := [name for name in plan.degrees.beyond_one() if name not in _KNOWN]:
            raise CdmppError(
                f"{_REFUSED} of degrees.{others[0]}: give a file that ends in .toml, for torchtitan, or leave the "
                "strategy out"
            )
        if plan.degrees.tp > 1 and plan.degrees.pp > 1:
            raise CdmppError(
                f"{_REFUSED} of degrees.tp and degrees.pp: stages that torch cuts keep the sizes of whole layers; give "
                "a file that ends in .toml, for torchtitan"
            )
        if plan.devices or plan.shares:
            raise CdmppError(f"{_REFUSED} of unlike devices: torchrun starts the same program on each")
        if plan.synchrony != Synchronous():
            raise CdmppError(f"{_REFUSED} of {plan.synchrony.title}: PyTorch has no such loop")
        if precision.float8 or precision.scales_loss:  # type: ignore[union-attr]
            raise CdmppError(f"{_REFUSED} of precision {precision}: give fp32, tf32, bf16 or bf16-autocast")
        check_recompute(self.workload, plan, _REFUSED)
        update = self.workload.update
        if update.ema or update.optimizer not in ("sgd", "adam", "adamw", "adafactor"):
            raise CdmppError(f"{_REFUSED} of the update {update}: give sgd, adam, adamw or adafactor, without averages")
        if update.clip_norm is not None and plan.degrees.tp > 1:
            raise CdmppError(
                f"{_REFUSED} of degrees.tp with gradients that are clipped: torch.nn.utils.clip_grad_norm_ refuses "
                "tensors next to DTensors; leave --clip-norm out, or give a file that ends in .toml, for torchtitan"
            )

    @property
    def text(self) -> str:
        """The script."""
        network = network_code(self.workload)
        plan, pipeline = self.plan, pipeline_of(self.plan)
        own = micro_batch_of(plan, self.global_batch) * micro_batches_of(plan)
        body = [*self._mesh(), *(self._stages(pipeline) if pipeline else self._model()), *self._step(pipeline)]
        imports = (*IMPORTS, *network.imports, *(line for word, line in IMPORTED.items() if word in " ".join(body)))
        imports += (IMPORTED["checkpoint"], "import torch.overrides") if self._repeats_attention else ()
        return TEMPLATE.format(
            title=", ".join(plan.changes(Plan())) or "the default on one rank",
            network=self.workload.network,
            ranks=plan.ranks,
            imports="\n".join(dict.fromkeys(sorted(imports, key=lambda line: (line.startswith("from"), line)))),
            batch=own,
            parts=micro_batches_of(plan) if pipeline else plan.gradient_accumulation_steps,
            network_text=network.text + (ATTENTION if self._repeats_attention else ""),
            body="\n".join(f"    {line}" if line else "" for line in body),
        )

    def _mesh(self) -> list[str]:
        degrees = self.plan.degrees
        names = [name for name in ORDER if getattr(degrees, name) > 1] or ["dp_replicate"]
        sizes = ", ".join(str(getattr(degrees, name)) for name in names)
        return [
            f"mesh = init_device_mesh(device.type, ({sizes},), mesh_dim_names=({', '.join(map(repr, names))},))",
            f"place = {self._place()}  # a replica reads examples of its own",
            "torch.manual_seed(0)",
            *(["torch.backends.cuda.matmul.allow_tf32 = True"] if self.workload.precision.tf32 else []),  # type: ignore[union-attr]
        ]

    def _place(self) -> str:
        degrees = self.plan.degrees
        found = ""
        for name in ("dp_replicate", "dp_shard"):
            if (size := getattr(degrees, name)) > 1:
                own = f'mesh.get_local_rank("{name}")'
                found = f"{found} * {size} + {own}" if found else own
        return found or "0"

    def _axes(self) -> str:
        """Write the mesh of the ranks of the plan's strategy; empty where there is one."""
        beyond = [name for name in ORDER if getattr(self.plan.degrees, name) > 1]
        names = [name for name in beyond if name in self.plan.strategy.degrees]
        return "mesh" if names and names == beyond else f"mesh[{', '.join(map(repr, names))}]" if names else ""

    def _names(self, names: Sequence[str]) -> str:
        return f"({', '.join(repr(self._own(one)) for one in names)},)" if names else "()"

    def _own(self, name: str) -> str:
        """Name a module as the script's model has it."""
        return name if self._keeps_inner else name.removeprefix(WRAPPED)

    @property
    def _keeps_inner(self) -> bool:
        return str(self.workload.network).startswith("hf:")

    @cached_property
    def _tensor(self) -> TensorCode | None:
        """Lines that divide linear layers; None where the plan divides none."""
        found = next((one for one in self.plan.model_parallel if isinstance(one, Tensor)), None)
        return None if found is None else tensor_code(self.workload, found, 'mesh["tp"]')

    def _model(self) -> list[str]:
        precision = self.workload.precision
        dtype = {"bfloat16": "torch.bfloat16", "float16": "torch.float16"}.get(precision.weights)  # type: ignore[union-attr]
        return [
            f"model = make_model().to(device{f', {dtype}' if dtype else ''}).train()",
            *(self._tensor.lines if self._tensor else ()),
            *self._recomputed("model"),
            *self._shared(),
            *self._optimizer("model.parameters()"),
        ]

    def _recomputed(self, model: str) -> list[str]:
        if not self._again:
            return []
        return [
            f"for name, block in {model}.named_modules():",
            f"    if name in {self._names(self._again)}:",
            "        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)",
        ]

    @cached_property
    def _again(self) -> tuple[str, ...]:
        """Modules that run again."""
        return self.plan.recompute or recomputed_blocks(self.workload)

    @property
    def _repeats_attention(self) -> bool:
        return self.workload.recompute == "attention"

    def _shared(self) -> list[str]:
        """Lines by which replicas share the parameters of ``model``."""
        axes = self._axes()
        if not axes:
            return []
        lines = self.plan.strategy.torch_lines(axes, self._class())
        if any("blocks" in line for line in lines):
            names = self._names([one.name for one in self.rank.modules if not one.is_kept])
            lines = (f"blocks = [block for name, block in model.named_modules() if name in {names}]", *lines)
        return list(lines)

    def _class(self) -> str:
        return optimizer_class(self.workload.update.optimizer)

    def _optimizer(self, parameters: str) -> list[str]:
        if any(line.startswith("optimizer = ") for line in self._shared()):
            return []
        update = self.workload.update
        given = {"fused": "fused=True", "foreach": "foreach=True", "for-loop": "foreach=False"}.get(
            "fused" if self.plan.update == "fused" else update.implementation or ""
        )
        momentum = ", momentum=0.9" if update.optimizer == "sgd" else ""
        lines = []
        if self._tensor and given in ("fused=True", "foreach=True"):  # one call takes only tensors of one mesh
            lines = [
                "groups = {}",
                f"for one in {parameters}:",
                "    groups.setdefault(getattr(one, 'device_mesh', None), []).append(one)",
            ]
            parameters = "[{'params': one} for one in groups.values()]"
        made = f"{self._class()}({parameters}, lr=1e-3{momentum}{f', {given}' if given else ''})"
        return [*lines, f"optimizer = {made}"]

    def _stages(self, pipeline: Pipeline) -> list[str]:
        """Lines that cut the model into stages, those of this rank in ``stages``."""
        if not isinstance(self.plan.strategy, DDP | FSDP):
            raise CdmppError(f"{_REFUSED} of {self.plan.strategy.title} in a pipeline: give ddp or fsdp")
        if isinstance(pipeline.order, LoopedSchedule) and pipeline.order.is_in_v:
            raise CdmppError(
                f"{_REFUSED} of {pipeline.schedule}: stages that torch cuts send to another rank each, and in a V two "
                "neighbours are on one; give interleaved1f1b, or stages that your own code makes"
            )
        if self.workload.precision.name != "fp32":  # type: ignore[union-attr]
            raise CdmppError(f"{_REFUSED} of a pipeline in {self.workload.precision}: give fp32")
        count = self.plan.degrees.pp * pipeline.order.stages_per_rank
        places = pipeline.cut_places(CutPlaces(self.rank), count)
        split = ", ".join(f"{name!r}: SplitPoint.BEGINNING" for name in self._cuts(places))
        name, numbers, is_looped = pipeline.torch_class, pipeline.torch_stages, pipeline.order.is_looped
        kept = "model.graph = one.submod.graph  # from which the stage reads what it receives"
        wraps = [kept] if isinstance(self.plan.strategy, DDP) else []
        inside = [*self._recomputed("model"), *self._shared(), *wraps, "one.submod = model"]
        changed = ["for one in stages:", "    model = one.submod", *(f"    {line}" for line in inside)]
        given = "stages" if is_looped else "stages[0]"
        return [
            "model = make_model().train()",
            "(example, _) = make_batch(BATCH // MICRO_BATCHES)",
            f"pipe = pipeline(model, mb_args=example, split_spec={{{split}}})",
            'rank, ranks, group = mesh.get_local_rank("pp"), mesh["pp"].size(), mesh.get_group("pp")',
            f"stages = [pipe.build_stage(stage, device, group) for stage in {numbers}]",
            *(changed if self._axes() or self._again else []),
            "parameters = [value for one in stages for value in one.submod.parameters()]",
            *self._optimizer("parameters"),
            f"schedule = {name}({given}, n_microbatches=MICRO_BATCHES, loss_fn=loss_of)",
            "is_first, is_last = (any(getattr(one, name) for one in stages) for name in ('is_first', 'is_last'))",
        ]

    def _cuts(self, places: Sequence[int]) -> list[str]:
        """Name modules with which stages begin; ``CdmppError`` where one begins inside of all of them."""
        named: dict[int, str] = {}
        for name, place in CutPlaces(self.rank).names.items():
            is_module = name in CutPlaces(self.rank).begins
            if is_module and len(name) < len(named.get(place, name + " ")):
                named[place] = name
        if lost := [place for place in places if place not in named]:
            raise CdmppError(
                f"{_REFUSED}: a stage begins at {self.rank.ops[lost[0]].name}, with which no module begins; give cuts "
                "in a plan file, names of modules"
            )
        return [self._own(named[place]) for place in places]

    def _step(self, pipeline: Pipeline | None) -> list[str]:
        clip = self.workload.update.clip_norm
        clipped = (
            []
            if clip is None
            else [f"torch.nn.utils.clip_grad_norm_({'parameters' if pipeline else 'model.parameters()'}, {clip})"]
        )
        head = ["for number in range(STEPS):", "    start_s = time.perf_counter()", "    optimizer.zero_grad()"]
        if pipeline:
            asked = "" if pipeline.return_outputs else ", return_outputs=False"
            return [
                *head,
                "    torch.manual_seed(number * 1000 + place)",
                "    inputs, target = (move(one, device) for one in make_batch(BATCH))",
                f"    schedule.step(*(inputs if is_first else ()), target=target if is_last else None{asked})",
                *(f"    {line}" for line in clipped),
                "    optimizer.step()",
                "    told(number, start_s, device)",
            ]
        auto = self.workload.precision.autocast  # type: ignore[union-attr]
        sync = self.plan.strategy.torch_sync() if self.plan.gradient_accumulation_steps > 1 and self._axes() else ""
        forward = ["loss = loss_of(model(*inputs), target) / MICRO_BATCHES"]
        if auto:
            forward = [f"with torch.autocast(device.type, torch.{auto}):", *(f"    {line}" for line in forward)]
        if self._repeats_attention:
            forward = ["with AttentionAgain():", *(f"    {line}" for line in forward)]
        passes = [*forward, "loss.backward()"]
        if self._tensor and self._tensor.divides_loss:
            passes = ["with loss_parallel():", *(f"    {line}" for line in passes)]
        if sync.endswith(":"):
            passes = [sync, *(f"    {line}" for line in passes)]
        elif sync:
            passes = [sync, *passes]
        return [
            *head,
            "    for part in range(MICRO_BATCHES):",
            *(["        is_last = part == MICRO_BATCHES - 1"] if sync else []),
            "        torch.manual_seed((number * MICRO_BATCHES + part) * 1000 + place)",
            "        inputs, target = (move(one, device) for one in make_batch(BATCH))",
            *(f"        {line}" for line in passes),
            *(f"    {line}" for line in clipped),
            "    optimizer.step()",
            "    told(number, start_s, device)",
        ]
