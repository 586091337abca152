"""Golden compact ASTs. After a wanted change ``python tests/ast/test_golden.py`` rewrites them: read the difference."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm")
sys.path.insert(0, str(Path(__file__).parent))

import programs  # noqa: E402
from quantities import quantity  # noqa: E402

from cdmpp.ast.extract import extract  # noqa: E402
from cdmpp.ast.layout import KERNEL_FEATURES, KERNEL_NAMES, LEAF_FEATURES, LEAF_NAMES  # noqa: E402
from tests.reference.extract import extract_readable  # noqa: E402

FOLDER = Path(__file__).parent / "golden"


def kernel(ast, name: str, index: int = 0) -> float:
    place = KERNEL_NAMES.index(name)
    return quantity(KERNEL_FEATURES[place], ast.kernel_features[index, place])


def leaf(ast, name: str, index: int) -> float:
    place = LEAF_NAMES.index(name)
    return quantity(LEAF_FEATURES[place], ast.leaf_features[index, place])


def render(ast) -> str:
    """Kernels and leaves in pre-order, every non-zero feature in its own unit, four significant digits."""
    size = f"{ast.n_kernel} kernels, {ast.n_leaf} leaves"
    lines = [f"{ast.target_kind} program: {size} (extractor {ast.extractor_version})"]
    for k in range(ast.n_kernel):
        lines.append(f"kernel {k}")
        lines += rendered(KERNEL_FEATURES, ast.kernel_features[k])
        for i in np.flatnonzero(ast.leaf_kernels == k):
            lines.append(f"  leaf {i} at {ast.leaf_positions[i]} (serial {ast.leaf_serial_positions[i]})")
            lines += ["  " + line for line in rendered(LEAF_FEATURES, ast.leaf_features[i])]
    return "\n".join(lines) + "\n"


def rendered(features, numbers) -> list[str]:
    return [f"  {f.name} = {quantity(f, number):.4g}" for f, number in zip(features, numbers, strict=True) if number]


@pytest.mark.parametrize("name", programs.GOLDEN)
def test_golden_text(name):
    module, target = programs.GOLDEN[name]()
    expected = (FOLDER / f"{name}.txt").read_text()
    assert render(extract_readable(module, target)) == expected
    assert render(extract(module, target)) == expected


def test_matmul_cuda_by_hand():
    ast = extract_readable(*programs.matmul_cuda())
    assert kernel(ast, "blocks") == pytest.approx(16)
    assert kernel(ast, "block_threads") == pytest.approx(64)
    assert kernel(ast, "flops") == pytest.approx(2 * 128 * 128 * 64, rel=1e-5)
    assert kernel(ast, "fma_per_thread") == pytest.approx(16 * 64, rel=1e-5)
    assert kernel(ast, "shared_bytes") == pytest.approx(2 * 32 * 8 * 4, rel=1e-5)
    assert kernel(ast, "register_elements") == pytest.approx(16, rel=1e-5)
    # Four rows of A and four columns of B a step of k serve sixteen accumulators.
    assert kernel(ast, "shared_loads_per_thread") == pytest.approx((4 + 4) * 64, rel=1e-5)
    assert kernel(ast, "global_read_bytes") == pytest.approx((128 * 64 + 64 * 128) * 4, rel=1e-5)
    assert kernel(ast, "global_write_bytes") == pytest.approx(128 * 128 * 4, rel=1e-5)
    assert kernel(ast, "refill_rounds") == pytest.approx(8, rel=1e-5)


def test_init_stores_are_leaves():
    ast = extract_readable(*programs.matmul_cpu())
    constant = [i for i in range(ast.n_leaf) if leaf(ast, "constant_store_flag", i)]
    assert len(constant) == 1 and ast.n_leaf == 2
    assert leaf(ast, "update_flag", 1) == 1


def test_matmul_cpu_by_hand():
    ast = extract_readable(*programs.matmul_cpu())
    assert leaf(ast, "vector_lanes", 1) == pytest.approx(16)
    assert leaf(ast, "parallel_extent", 1) == pytest.approx(8)
    # Eight rows by one vector of sixteen are updated independently of each other between two steps of k.
    assert leaf(ast, "accumulator_tile", 1) == pytest.approx(8 * 16)
    assert leaf(ast, "iterations", 1) == pytest.approx(64**3, rel=1e-5)
    assert leaf(ast, "store_unique_bytes", 1) == pytest.approx(64 * 64 * 4, rel=1e-5)
    assert leaf(ast, "load0_vector_contiguous_flag", 1) == 1  # B is read along its rows


def test_padding_is_a_guarded_load():
    ast = extract_readable(*programs.conv2d_bias_relu_cuda())
    update = next(i for i in range(ast.n_leaf) if leaf(ast, "update_flag", i))
    fractions = [leaf(ast, f"load{i}_guarded_fraction", update) for i in range(2)]
    # (16 * 3 - 2)^2 of (16 * 3)^2 window positions lie inside; seen through 64 sampled iterations.
    assert min(fractions) == pytest.approx((46 / 48) ** 2, abs=0.08)
    assert max(fractions) == 1


def test_several_kernels():
    ast = extract_readable(*programs.softmax_cuda())
    assert ast.n_kernel == 4
    assert sorted(set(ast.leaf_kernels.tolist())) == [0, 1, 2, 3]
    assert np.all(np.diff(ast.leaf_positions) > 0)
    assert kernel(ast, "special_per_thread", 1) == pytest.approx(1)  # one exp an element
    assert kernel(ast, "block_threads", 1) == pytest.approx(100)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for golden, make in programs.GOLDEN.items():
        (FOLDER / f"{golden}.txt").write_text(render(extract_readable(*make())))
