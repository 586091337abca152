"""Functions that a script carries in itself: their text is written into it, and needs nothing of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def cut_model(model: Any, cuts: Sequence[str]) -> list[Any]:
    """Return the stages of a model: each but the first begins with a module that ``cuts`` names.

    Modules stay what they are, under their names. What a later stage reads is passed on from stage to stage.
    """
    import itertools

    import torch.fx

    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
            return not any(cut.startswith(f"{module_qualified_name}.") for cut in cuts)

    nodes = [*Tracer().trace(model).nodes]
    called = {node.target: place for place, node in reversed([*enumerate(nodes)]) if node.op == "call_module"}
    bounds = [0, *(called[cut] for cut in cuts), len(nodes)]
    stages = []
    for first, last in itertools.pairwise(bounds):
        graph, known, later = torch.fx.Graph(), {}, set(nodes[last:])
        own, before = set(nodes[first:last]) | later, nodes[:first]
        for node in before:
            if not own.isdisjoint(node.users):
                known[node] = graph.placeholder(node.name)
        for node in nodes[first:last]:
            known[node] = graph.node_copy(node, known.__getitem__)
        if later:
            left = tuple(known[node] for node in nodes[:last] if not later.isdisjoint(node.users))
            graph.output(left if len(left) > 1 else left[0])
        stages.append(torch.fx.GraphModule(model, graph))
    return stages


def clip_gradients(parameters: Sequence[Any], limit: float, stages: Any = None) -> None:
    """Clip gradients by one norm over all, those of several meshes too, and of all ``stages``, a process group."""
    import torch
    import torch.distributed as dist

    meshes: dict[Any, list[Any]] = {}
    for one in parameters:
        if one.grad is not None:
            meshes.setdefault(getattr(one, "device_mesh", None), []).append(one)
    norms = [torch.nn.utils.get_total_norm([one.grad for one in own]) for own in meshes.values()]
    whole = torch.stack([one.full_tensor() if hasattr(one, "full_tensor") else one for one in norms])
    total = torch.linalg.vector_norm(whole.float())
    if stages is not None:
        total = total.square()
        dist.all_reduce(total, group=stages)
        total = total.sqrt()
    for own in meshes.values():
        torch.nn.utils.clip_grads_with_norm_(own, limit, total)


def divide_experts(experts: Any, group: Any) -> None:
    """Keep the experts of a rank alone, and let tokens go to the ranks of their experts, and back, all-to-all.

    Args:
        experts: a module with ``num_experts``, parameters whose first dimension is that, and a forward of tokens
            (tokens, width), the numbers of the chosen experts and their weights (tokens, chosen), as of transformers.
        group: ranks among which they are divided.
    """
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional

    ranks, rank, whole, run = dist.get_world_size(group), dist.get_rank(group), experts.num_experts, experts.forward
    own = whole // ranks
    for name, value in list(experts.named_parameters(recurse=False)):
        part = torch.nn.Parameter(value.detach()[rank * own : (rank + 1) * own].clone())
        part.register_hook(lambda grad: grad / ranks)  # the losses of all ranks are means
        setattr(experts, name, part)
    experts.num_experts = own

    def forward(tokens: Any, chosen: Any, weights: Any) -> Any:
        order, many = chosen.flatten().argsort(stable=True), chosen.shape[-1]
        counts = torch.bincount(chosen.flatten(), minlength=whole)
        theirs = functional.wait_tensor(functional.all_to_all_single(counts, None, None, group))
        sent, received = (one.view(ranks, -1).sum(1).tolist() for one in (counts, theirs))
        rows = functional.all_to_all_single_autograd(tokens[order // many], received, sent, group)
        number = torch.arange(own, device=tokens.device).repeat(ranks).repeat_interleave(theirs)
        made = run(rows, number.unsqueeze(-1), torch.ones_like(rows[:, :1]))
        back = functional.all_to_all_single_autograd(made, sent, received, group)
        weighted = back * weights.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(tokens).index_add(0, order // many, weighted.to(tokens.dtype))

    experts.forward = forward
