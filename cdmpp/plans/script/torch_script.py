"""A script for ``torchrun``: the training step of a plan in plain PyTorch, with random weights and data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import getsource

from cdmpp.errors import CdmppError
from cdmpp.network.workload import Workload
from cdmpp.plans.cut_places import WRAPPED
from cdmpp.plans.mesh import ORDER
from cdmpp.plans.placement import micro_batch_of, micro_batches_of, pipeline_of
from cdmpp.plans.plan import ACTIVATIONS, PARAMETERS, Plan
from cdmpp.plans.script.carried import clip_gradients, cut_model, divide_experts
from cdmpp.plans.script.context_code import ContextCode, context_code
from cdmpp.plans.script.expert_code import expert_lines, sharded_lines
from cdmpp.plans.script.network_code import network_code
from cdmpp.plans.script.offloaded_blocks import OffloadedBlocks
from cdmpp.plans.script.recompute_code import ATTENTION, check_recompute, recomputed_blocks
from cdmpp.plans.script.stage_code import StageCode
from cdmpp.plans.script.template import IMPORTED, IMPORTS, TEMPLATE
from cdmpp.plans.script.tensor_code import TensorCode, tensor_code
from cdmpp.plans.strategies.context import Context
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.expert import Expert
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.tensor import Tensor
from cdmpp.plans.torch_settings import optimizer_class, shared_lines
from cdmpp.steps.step_graph import RankGraph
from cdmpp.steps.transforms.offload_results import BlockResults
from cdmpp.synchrony.policies.synchronous import Synchronous

_REFUSED = "--torch: no script can be written"
_THREADS = (
    'torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))'
    "  # torchrun leaves a rank one, and the host updates"
)
_KNOWN = ("pp", "dp_replicate", "dp_shard", "ep", "cp", "tp")
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
        if plan.devices or plan.shares:
            raise CdmppError(f"{_REFUSED} of unlike devices: torchrun starts the same program on each")
        if plan.synchrony != Synchronous():
            raise CdmppError(f"{_REFUSED} of {plan.synchrony.title}: PyTorch has no such loop")
        if precision.float8 or precision.scales_loss:  # type: ignore[union-attr]
            raise CdmppError(f"{_REFUSED} of precision {precision}: give fp32, tf32, bf16 or bf16-autocast")
        if precision.sharded and not (isinstance(plan.strategy, FSDP) and plan.degrees.dp_shard > 1):  # type: ignore[union-attr]
            raise CdmppError(f"{_REFUSED} of precision {precision} without FSDP: give a plan of fsdp or hsdp, or bf16")
        check_recompute(self.workload, plan, _REFUSED)
        if ACTIVATIONS in plan.offload and plan.degrees.tp > 1:
            raise CdmppError(
                f"{_REFUSED} of activations on the host with degrees.tp, whose results are no plain tensors"
            )
        update = self.workload.update
        if update.ema or update.optimizer not in ("sgd", "adam", "adamw", "adafactor"):
            raise CdmppError(f"{_REFUSED} of the update {update}: give sgd, adam, adamw or adafactor, without averages")

    @property
    def text(self) -> str:
        """The script."""
        network = network_code(self.workload)
        plan, pipeline = self.plan, pipeline_of(self.plan)
        own = micro_batch_of(plan, self.global_batch) * micro_batches_of(plan)
        code = self._stage_code
        body = [*self._mesh(), *(self._stages(code) if code else self._model()), *self._step(code)]
        imports = (*IMPORTS, *network.imports, *(line for word, line in IMPORTED.items() if word in " ".join(body)))
        imports += (IMPORTED["checkpoint"], "import torch.overrides") if self._repeats_attention else ()
        carried = [
            getsource(one)
            for one in (cut_model, clip_gradients, divide_experts, OffloadedBlocks)
            if f"{one.__name__}(" in " ".join(body)
        ]
        imports += ("from collections.abc import Sequence", "from typing import Any") if carried else ()
        return TEMPLATE.format(
            title=", ".join(plan.changes(Plan())) or "the default on one rank",
            network=self.workload.network,
            ranks=plan.ranks,
            imports="\n".join(dict.fromkeys(sorted(imports, key=lambda line: (line.startswith("from"), line)))),
            batch=own,
            parts=micro_batches_of(plan) if pipeline else plan.gradient_accumulation_steps,
            network_text="\n\n".join((network.text, *carried)) + (ATTENTION if self._repeats_attention else ""),
            body="\n".join(f"    {line}" if line else "" for line in body),
        )

    @cached_property
    def _stage_code(self) -> StageCode | None:
        """How the model is cut into stages; None without a pipeline."""
        if (pipeline := pipeline_of(self.plan)) is None:
            return None
        return StageCode(self.workload, self.plan, pipeline, self.rank, self._keeps_inner)

    def _mesh(self) -> list[str]:
        degrees = self.plan.degrees
        names = [name for name in ORDER if getattr(degrees, name) > 1] or ["dp_replicate"]
        sizes = ", ".join(str(getattr(degrees, name)) for name in names)
        return [
            f"mesh = init_device_mesh(device.type, ({sizes},), mesh_dim_names=({', '.join(map(repr, names))},))",
            *(f"mesh[{', '.join(map(repr, one))}]._flatten({'_'.join(one)!r})" for one in [self._together()] if one),
            f"place = {self._place()}  # a replica reads examples of its own",
            "torch.manual_seed(0)",
            *(["torch.backends.cuda.matmul.allow_tf32 = True"] if self.workload.precision.tf32 else []),  # type: ignore[union-attr]
            *(self._context.settings if self._context else ()),
        ]

    def _place(self) -> str:
        degrees = self.plan.degrees
        found = ""
        for name in ("dp_replicate", "dp_shard", "ep"):
            if (size := getattr(degrees, name)) > 1:
                own = f'mesh.get_local_rank("{name}")'
                found = f"{found} * {size} + {own}" if found else own
        return found or "0"

    def _axes(self) -> str:
        """Write the mesh of the ranks that share parameters; empty where there is one."""
        beyond = [name for name in ORDER if getattr(self.plan.degrees, name) > 1]
        names = [name for name in beyond if name in self.plan.replicating]
        together = self._together()
        if together:  # ranks along cp are like others that have the parameters, or parts of them
            names = [*(name for name in names if name not in together), "_".join(together)]
        return "mesh" if names and names == beyond else f"mesh[{', '.join(map(repr, names))}]" if names else ""

    def _together(self) -> list[str]:
        """Degrees along which ranks are one axis of the mesh of the plan's strategy; empty where each is one."""
        last = "dp_shard" if isinstance(self.plan.strategy, FSDP) else "dp_replicate"
        found = [name for name in (last, "ep", "cp") if getattr(self.plan.degrees, name) > 1]
        return found if len(found) > 1 else []

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
        return None if found is None else tensor_code(self.workload, found, 'mesh["tp"]', self.plan.degrees.pp > 1)

    @cached_property
    def _experts(self) -> tuple[str, ...]:
        """Lines that divide experts; none where the plan divides none."""
        found = next((one for one in self.plan.model_parallel if isinstance(one, Expert)), None)
        return expert_lines(self.workload, self.plan, found) if found is not None and self.plan.degrees.ep > 1 else ()

    @cached_property
    def _context(self) -> ContextCode | None:
        """Lines that divide sequences; None where the plan divides none."""
        if (ranks := self.plan.degrees.cp) == 1:
            return None
        found = next((one for one in self.plan.model_parallel if isinstance(one, Context)), Context())
        return context_code(self.workload, found, ranks)

    def _model(self) -> list[str]:
        precision = self.workload.precision
        dtype = {"bfloat16": "torch.bfloat16", "float16": "torch.float16"}.get(precision.sharded or precision.weights)  # type: ignore[union-attr]
        return [
            f"model = make_model().to(device{f', {dtype}' if dtype else ''}).train()",
            *(self._tensor.lines if self._tensor else ()),
            *self._experts,
            *self._recomputed("model"),
            *self._shared(),
            *self._offloaded(),
            *self._optimizer("model.parameters()"),
        ]

    def _offloaded(self) -> list[str]:
        """Lines by which results of blocks wait on the host."""
        if ACTIVATIONS not in self.plan.offload:
            return []
        names = self._names([one.name for one in BlockResults(self.rank).blocks])
        return [f"OffloadedBlocks([model.get_submodule(name) for name in {names}])"]

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
        strategy = self.plan.strategy.in_pipeline() if self.plan.degrees.pp > 1 else self.plan.strategy
        precision, out = self.workload.precision, PARAMETERS in self.plan.offload
        lines = shared_lines(strategy, precision, axes, self._class(), out)  # type: ignore[arg-type]
        if self._experts and isinstance(strategy, FSDP):
            lines = sharded_lines(self.plan, lines)
        if any("blocks" in line for line in lines):
            names = self._names([one.name for one in self.rank.modules if not one.is_kept])
            lines = (f"blocks = [block for name, block in model.named_modules() if name in {names}]", *lines)
        return [*lines, *([_THREADS] if out else [])]

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
        if (self._tensor or self._experts) and given in (
            "fused=True",
            "foreach=True",
        ):  # one call takes only tensors of one mesh
            lines = [
                "groups = {}",
                f"for one in {parameters}:",
                "    groups.setdefault(getattr(one, 'device_mesh', None), []).append(one)",
            ]
            parameters = "[{'params': one} for one in groups.values()]"
        made = f"{self._class()}({parameters}, lr=1e-3{momentum}{f', {given}' if given else ''})"
        return [*lines, f"optimizer = {made}"]

    def _stages(self, code: StageCode) -> list[str]:
        """Lines that cut the model into stages, those of this rank in ``stages``, and make their schedule."""
        pipeline = code.pipeline
        is_wrapped = isinstance(self.plan.strategy, DDP) and not code.is_cut_by_modules
        kept = ["model.graph = one.submod.graph  # from which the stage reads what it receives"] if is_wrapped else []
        divided = self._tensor.lines if self._tensor else ()
        inside = [*divided, *self._recomputed("model"), *self._shared(), *kept, "one.submod = model"]
        changed = ["for one in stages:", "    model = one.submod", *(f"    {line}" for line in inside)]
        given = "stages" if pipeline.order.is_looped else "stages[0]"
        return [
            *code.lines(),
            *(changed if self._axes() or self._again or divided else []),
            "parameters = [*dict.fromkeys(value for one in stages for value in one.submod.parameters())]",
            *self._optimizer("parameters"),
            f"schedule = {pipeline.torch_class}({given}, n_microbatches=MICRO_BATCHES, loss_fn=loss_of)",
            "is_first, is_last = (any(getattr(one, name) for one in stages) for name in ('is_first', 'is_last'))",
        ]

    def _clipped(self, parameters: str) -> list[str]:
        """Lines that clip gradients, by ``clip_grad_norm_`` where all are of one mesh and of one stage."""
        if (clip := self.workload.update.clip_norm) is None:
            return []
        degrees = self.plan.degrees
        if degrees.tp == 1 and degrees.pp == 1:
            return [f"torch.nn.utils.clip_grad_norm_({parameters}, {clip})"]
        stages = ", group" if degrees.pp > 1 else ""
        return [f"clip_gradients([*{parameters}], {clip}{stages})"]

    def _step(self, code: StageCode | None) -> list[str]:
        head = ["for number in range(STEPS):", "    start_s = time.perf_counter()", "    optimizer.zero_grad()"]
        is_divided = self._tensor is not None and self._tensor.divides_loss
        if code:
            asked = "" if code.pipeline.return_outputs else ", return_outputs=False"
            passes = [f"schedule.step(*(inputs if is_first else ()), target=target if is_last else None{asked})"]
            if is_divided:
                passes = ["with loss_parallel():", *(f"    {line}" for line in passes)]
            if self._context:
                passes = [self._context.around, *(f"    {line}" for line in passes)]
            return [
                *head,
                "    torch.manual_seed(number * 1000 + place)",
                "    inputs, target = (move(one, device) for one in make_batch(BATCH))",
                *(f"    {line}" for line in (*passes, *code.sum_lines(), *self._clipped("parameters"))),
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
        if is_divided:
            passes = ["with loss_parallel():", *(f"    {line}" for line in passes)]
        if self._context:
            passes = [self._context.around, *(f"    {line}" for line in passes)]
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
            *(f"    {line}" for line in self._clipped("model.parameters()")),
            "    optimizer.step()",
            "    told(number, start_s, device)",
        ]
