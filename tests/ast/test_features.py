"""Features are declared once: the compiled extractor, the vectors and the page in the docs follow it."""

from __future__ import annotations

import re

import pytest

from benchmarks.publish.features import PAGE, lines
from cdmpp.ast.kernel_features import KERNEL
from cdmpp.ast.layout import KERNEL_FEATURES, LEAF_FEATURES
from cdmpp.ast.leaf_features import ACCESS, CONTEXT, LOOP, OPS
from cdmpp.features import Feature, names, slog, stored
from cdmpp.machine_code.cpu.code_features import CODE_FEATURES
from cdmpp.machine_code.gpu.gpu_code_features import GPU_CODE_FEATURES
from tests.ast.quantities import quantity

FEATURES = {"leaf": LEAF_FEATURES, "kernel": KERNEL_FEATURES, "code": CODE_FEATURES, "gpu_code": GPU_CODE_FEATURES}


def test_the_compiled_extractor_fills_what_is_declared_in_its_order():
    pytest.importorskip("tvm_ffi")
    from cdmpp.ast.native import feature_names

    declared = {"OPS": OPS, "CONTEXT": CONTEXT, "ACCESS": ACCESS, "LOOP": LOOP, "KERNEL": KERNEL}
    assert feature_names() == {group: names(features) for group, features in declared.items()}


@pytest.mark.parametrize("features", FEATURES.values(), ids=list(FEATURES))
def test_every_feature_has_a_name_of_its_own_a_unit_and_a_meaning(features):
    assert len(set(names(features))) == len(features)
    for feature in features:
        assert re.fullmatch(r"[a-z0-9_]+", feature.name) and feature.unit and feature.meaning
        assert feature.plain == feature.name.endswith(("_flag", "_fraction", "_share")), feature.name


def test_the_page_lists_what_is_declared():
    assert PAGE.read_text().splitlines() == lines(), "write it again: python -m benchmarks.publish.features"


def test_quantities_are_stored_by_name():
    quantities = {name: float(place) for place, name in enumerate(reversed(names(LOOP)))}
    numbers = stored(LOOP, quantities)
    assert [quantity(f, number) for f, number in zip(LOOP, numbers, strict=True)] == pytest.approx(
        [6, 5, 4, 3, 2, 1, 0]
    )
    assert numbers[0] == slog(6.0) and numbers[1] == 5.0
    assert quantity(Feature("x", "bytes", ""), slog(-7.0)) == pytest.approx(-7.0)
    with pytest.raises(KeyError, match="depth"):
        stored(LOOP, {**quantities, "depth": 1.0})
    with pytest.raises(KeyError, match="extent"):
        stored(LOOP, {name: value for name, value in quantities.items() if name != "extent"})
