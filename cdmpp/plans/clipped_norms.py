"""Clipped norms: what ranks sum up for one norm over all gradients, by which these are then clipped.

``torch.nn.utils.clip_grad_norm_`` stacks the norms of its gradients and sums up that vector over the ranks of each mesh
axis along which any of them is divided, the outermost first (torch 2.13, recorded on gloo). It takes no tensors of
several meshes at once: ``--torch`` and torchtitan go from mesh to mesh. Ranks of a pipeline then sum up one number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.strategies.tensor import Tensor
from cdmpp.steps.step_graph import Gradient
from cdmpp.steps.strategy import Strategy

_ITEMS = {"float64": 8, "float32": 4}
_OTHERS = 2
"""Bytes of a norm: it has the type of its gradient."""
_NUMBER = 4


def norm_sums(
    replicas: Strategy,
    dividing: Sequence[Strategy],
    degrees: ParallelDegrees,
    gradients: Sequence[Gradient],
    sizes: Mapping[str, int],
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield bytes and degrees of each all-reduce that a norm over all gradients takes, in their order.

    Args:
        replicas: strategy of the replicas.
        dividing: strategies that divide the model.
        degrees: of the job.
        gradients: those of one rank, in the order of the model.
        sizes: ranks along each degree of the replicas.
    """
    is_megatron = any(isinstance(one, Tensor) and one.framework == "megatron" for one in dividing)
    if is_megatron:  # one number, over all ranks that divide the model
        along = tuple(name for name in ("pp", "tp") if getattr(degrees, name) > 1)
        yield from [(_NUMBER, along)] if along else []
        return
    for axes, own in _by_mesh(replicas, degrees, gradients, sizes).items():
        size = sum(_ITEMS.get(one.dtype, _OTHERS) for one in own)
        yield from ((size, along) for along in axes)
    if degrees.pp > 1:
        yield _NUMBER, ("pp",)


def _by_mesh(
    replicas: Strategy, degrees: ParallelDegrees, gradients: Sequence[Gradient], sizes: Mapping[str, int]
) -> dict[tuple[tuple[str, ...], ...], list[Gradient]]:
    """Axes of a mesh, each with the degrees along it -> the gradients that are divided among its ranks."""
    found: dict[tuple[tuple[str, ...], ...], list[Gradient]] = {}
    for one in gradients:
        if one.is_used:
            shared = {name: count for name, count in sizes.items() if name not in one.apart and count > 1}
            axes = [replicas.norms_along(shared)] if shared else []
            axes += [(name,) for name in (*one.apart, *one.meshes) if getattr(degrees, name) > 1]
            found.setdefault(tuple(filter(None, axes)), []).append(one)
    return found
