"""Plans that Alpa's authors published for their Wide-ResNets: stages of unequal numbers of GPUs, in their order.

Source: github.com/alpa-projects/alpa, ``osdi22_artifact/suite_artifact_e2e_wresnet.py`` of commit 8350d913; the plan of
64 GPUs is in ``benchmark/alpa/suite_wresnet.py`` of commit b8078a9f. Layers are the residual blocks: a stem goes with
the first one, the head with the last one.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.plans.alpa_rows import Row

AUTO, DATA, SPLIT = "auto", "data", "split"
"""How a stage uses its GPUs: as Alpa's pass decides, by examples, or by operators."""


@dataclass(frozen=True)
class Stage:
    """Layers that the same GPUs of one node run."""

    first: int
    """Number of its first layer, from 0."""
    end: int
    """One more than the number of its last layer."""
    gpus: int
    how: str = AUTO
    """``AUTO``, ``DATA`` or ``SPLIT``."""


def _stages(*parts: tuple[int, int, str]) -> tuple[Stage, ...]:
    """Put stages next to each other; each part is how many layers, how many GPUs, and how it uses them."""
    found, first = list[Stage](), 0
    for layers, gpus, how in parts:
        found.append(Stage(first, first + layers, gpus, how))
        first += layers
    return tuple(found)


_SIXTEEN = _stages(*[(1, 1, DATA)] * 16)
_PUBLISHED = {
    ("auto", 1): _stages((16, 1, AUTO)),
    ("auto", 2): _stages((16, 2, AUTO)),
    ("auto", 4): _stages((16, 4, AUTO)),
    ("auto", 8): _stages((8, 4, AUTO), (8, 4, SPLIT)),
    ("auto", 16): _stages((5, 4, DATA), (4, 4, DATA), (7, 8, AUTO)),
    ("auto", 32): _stages((5, 8, DATA), (4, 8, AUTO), (4, 8, AUTO), (3, 8, AUTO)),
    ("auto", 64): _stages(
        (4, 8, AUTO), (4, 8, SPLIT), (4, 8, AUTO), (4, 8, SPLIT),
        (4, 8, AUTO), (4, 8, AUTO), (5, 8, SPLIT), (4, 8, AUTO),
    ),
    ("inter_only", 1): _stages((16, 1, AUTO)),
    ("inter_only", 4): _stages((6, 1, DATA), (5, 1, DATA), (3, 1, DATA), (2, 1, DATA)),
    ("inter_only", 8): _stages(*((layers, 1, DATA) for layers in (3, 3, 2, 3, 2, 1, 1, 1))),
    ("inter_only", 16): _SIXTEEN,
    ("ppdp", 1): _stages((16, 1, AUTO)),
    ("ppdp", 4): _stages((8, 2, DATA), (5, 1, DATA), (3, 1, DATA)),
    ("ppdp", 8): _stages((9, 4, DATA), (2, 1, DATA), (3, 2, DATA), (2, 1, DATA)),
    ("ppdp", 16): _SIXTEEN,
}  # fmt: skip
"""Method and GPUs -> stages. A stage of a mesh of one row whose batch goes along that row divides operators."""


def published(row: Row) -> tuple[Stage, ...] | None:
    """Return the stages that ran; None where nobody published them.

    ``auto_stage`` of the ablation is ``auto`` by another name, with other numbers of micro-batches.
    """
    return _PUBLISHED.get(("auto" if row.method == "auto_stage" else row.method, row.gpus))
