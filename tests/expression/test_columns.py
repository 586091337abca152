"""Names of columns: what is a time, in what unit, and what is a rate."""

import pytest

from cdmpp.errors import DataError, UsageError
from cdmpp.expression import RunTable
from cdmpp.expression.columns import is_rate, is_time, name_in_seconds, seconds_of

GPUS = {"gpus": [1, 2, 4, 8]}


@pytest.mark.parametrize(
    ("name", "scale", "in_seconds"),
    [
        ("step_s", 1.0, "step_s"), ("time_sec", 1.0, "time_sec"), ("seconds", 1.0, "seconds"),
        ("seconds_per_step", 1.0, "seconds_per_step"), ("s/step", 1.0, "s/step"), ("time [s]", 1.0, "time [s]"),
        ("step ms", 1e-3, "step_s"), ("stepMs", 1e-3, "step_s"), ("time (ms)", 1e-3, "time_s"),
        ("step_msec", 1e-3, "step_s"), ("ms", 1e-3, "time_s"), ("ms_per_step", 1e-3, "s_per_step"),
        ("time_per_step_ms", 1e-3, "time_per_step_s"), ("step time/ms", 1e-3, "step_time_per_s"),
        ("step_us", 1e-6, "step_s"), ("step_\u00b5s", 1e-6, "step_s"), ("step_ns", 1e-9, "step_s"),
        ("time_minutes", 60.0, "time_s"), ("run_min", 60.0, "run_s"), ("time_h", 3600.0, "time_s"),
        ("time [hours]", 3600.0, "time_s"),
    ],
)  # fmt: skip
def test_times_are_in_the_unit_of_their_name(name, scale, in_seconds):
    table = RunTable.of(GPUS | {name: [4.0, 3.0, 2.0, 1.0]}, name)
    assert is_time(name) and seconds_of(name) == scale and name_in_seconds(name) == in_seconds
    assert table.times_s.tolist() == [value * scale for value in (4.0, 3.0, 2.0, 1.0)]
    assert table.time_name == in_seconds and not table.warnings


@pytest.mark.parametrize("name", ["time", "latency", "step_time", "wall"])
def test_a_time_without_a_unit_is_said_to_be_in_seconds(name):
    table = RunTable.of(GPUS | {name: [4, 3, 2, 1]}, name)
    assert table.times_s.tolist() == [4, 3, 2, 1] and "are taken as seconds" in table.warnings[0]
    assert seconds_of(name) is None and is_time(name) == (name != "wall")


@pytest.mark.parametrize("name", ["tokens_per_s", "throughput_samples_per_s", "samples/sec", "gpus_per_node"])
def test_a_rate_is_no_time(name):
    assert is_rate(name) and not is_time(name)
    with pytest.raises(UsageError, match="is a rate by its name, no time"):
        RunTable.of(GPUS | {name: [4, 3, 2, 1]}, name)


@pytest.mark.parametrize("name", ["h", "s", "min", "hidden", "batch"])
def test_a_letter_is_no_time_unless_it_is_named(name):
    assert not is_time(name)


def test_a_time_whose_name_in_seconds_is_that_of_a_factor_is_refused():
    with pytest.raises(UsageError, match="'step_ms' in seconds is 'step_s', as another one"):
        RunTable.of({"step_s": [1, 2], "step_ms": [1, 2]}, "step_ms", ["step_s"])


@pytest.mark.parametrize("value", [1e-320, 1e-40, 1e300])
def test_numbers_out_of_range_are_refused(value):
    with pytest.raises(DataError, match="column step_s, row 2: .* is out of range: expected 1e-30 to 1e"):
        RunTable.of(GPUS | {"step_s": [1, value, 1, 1]}, "step_s")
