from __future__ import annotations

import pytest

from cdmpp.measure import protocol
from cdmpp.measure.protocol import Visits


def visits(*minima: float, quiet: tuple[bool, ...] | None = None) -> Visits:
    result = Visits()
    for index, low in enumerate(minima):
        result.add([low * 1.1, low, low * 1.2], True if quiet is None else quiet[index], float(index))
    return result


def test_label_is_the_minimum_over_all_visits() -> None:
    seen = visits(1.02e-3, 1.0e-3)
    assert seen.label == 1.0e-3
    assert seen.median == pytest.approx(1.1e-3)
    assert seen.spread == pytest.approx(0.02)
    assert not seen.flagged


def test_two_agreeing_visits_suffice() -> None:
    assert not visits(1.0).complete
    assert visits(1.0, 1.04).complete


def test_disagreeing_visits_get_a_third_and_a_flag_if_that_does_not_help() -> None:
    assert not visits(1.0, 1.2).complete
    helped = visits(1.0, 1.2, 1.01)
    assert helped.complete and not helped.flagged
    assert helped.spread == pytest.approx(0.01)
    lost = visits(1.0, 1.2, 1.5)
    assert lost.complete and lost.flagged


def test_unquiet_visits_are_repeated_but_not_for_ever() -> None:
    assert not visits(1.0, 1.0, quiet=(False, False)).complete
    assert visits(1.0, 1.0, 1.0, quiet=(False, False, True)).complete
    assert not visits(1.0, 1.2, 1.5, quiet=(False, True, True)).complete
    assert visits(1.0, 1.2, 1.5, 1.9, quiet=(False, False, False, False)).complete


@pytest.mark.parametrize(
    ("run_s", "repeats"), [(1e-6, 30), (0.002, 12), (0.019, 6), (0.02, 3), (0.1, 2), (1.0, 2), (1.01, 0)]
)
def test_slow_programs_get_fewer_repeats(run_s: float, repeats: int) -> None:
    assert protocol.CPU.repeats_for(run_s) == repeats


def test_description_names_the_protocol() -> None:
    text = protocol.CPU.describe()
    assert text.startswith("cpu-v4: wall clock, one pinned core, TVM_NUM_THREADS=1")
    assert (
        "30 repeats of at least 1 ms (12 from 2 ms, 6 from 5 ms, 3 from 20 ms, 2 from 100 ms, none above 1 s)" in text
    )
    assert "2 pinned cores, TVM_NUM_THREADS=2" in protocol.CPU.describe(2)
    assert protocol.GPU.describe().startswith("gpu-v1: device events")
