"""The same matrix products with one size doubled: they must not be much faster, and where they are was measured."""

from __future__ import annotations

import torch
from torch import Tensor

from cdmpp.operators.operator_vector import ALIGNMENTS, OPERATOR_FEATURES, OPERATOR_NAMES

_PLACES = {name: place for place, name in enumerate(OPERATOR_NAMES)}
_PLAIN = torch.tensor([feature.plain for feature in OPERATOR_FEATURES])
_SIZES = {
    "family_linear": ("matmul_rows", "matmul_inner", "matmul_cols"),
    "family_bmm": ("matmul_count", "matmul_rows", "matmul_inner", "matmul_cols"),
    "family_conv": ("images", "in_channels", "out_channels", "image"),
}
MOST_SIZES = 4
"""Sizes that a family has at most."""
_FACTORS = {
    "images": "matmul_rows",
    "in_channels": "matmul_inner",
    "out_channels": "matmul_cols",
    "image": "matmul_rows",
}
"""Size of a convolution -> that of its product, which doubles with it, or twice."""
_COMMON = ("matmul_rows", "matmul_inner", "matmul_cols")


def doubled_sizes(vectors: Tensor, choice: Tensor, times: float = 2.0) -> tuple[Tensor, Tensor]:
    """Double one size of each operator of ``vectors`` (B, *), or halve it: ``times`` 0.5.

    ``choice`` (B,) in [0, 1) chooses the size. Returns the new vectors, and (B,) True where they are such operators:
    matrix products whose alignment stays as it is, which decides about kernels, too.
    """
    least = max(ALIGNMENTS) * (1 if times > 1 else 2)
    plain = _PLAIN.to(vectors.device)
    own = vectors[:, : len(OPERATOR_NAMES)]
    values = torch.where(plain, own, (torch.exp2(own) - 1).round())
    found, is_one = values.clone(), torch.zeros(len(vectors), dtype=torch.bool, device=vectors.device)

    def column(name: str) -> Tensor:
        return found[:, _PLACES[name]]

    for family, sizes in _SIZES.items():
        chosen = (choice * len(sizes)).long()
        mine = values[:, _PLACES[family]] > 0
        for place, size in enumerate(sizes):
            here = mine & (chosen == place)
            factor = _FACTORS.get(size, size)
            if factor in ("matmul_inner", "matmul_cols"):
                here = here & (values[:, _PLACES[factor]] % least == 0)
            else:
                here = here & (values[:, _PLACES[size]] * times % 1 == 0)
            for name in {size, factor}:
                column(name)[here] *= times
            if size == "image":
                column(factor)[here] *= times
                here = here & (column(factor) % 1 == 0)
            is_one |= here
    is_one &= column("depthwise_flag") == 0
    count, (rows, inner, cols) = column("matmul_count"), (column(name) for name in _COMMON)
    factors = count * inner * cols
    image = column("images") * column("in_channels") * column("image").square()
    rest = torch.where(values[:, _PLACES["family_conv"]] > 0, image, count * rows * inner)
    column("flops").copy_(2 * count * rows * inner * cols)
    column("read_bytes").copy_(column("element_bytes") * (rest + factors + column("bias_flag") * cols))
    column("write_bytes").copy_(column("element_bytes") * count * rows * cols)
    changed = torch.where(plain, found, torch.log2(1 + found))
    return torch.cat([torch.where(is_one[:, None], changed, own), vectors[:, len(OPERATOR_NAMES) :]], dim=1), is_one
