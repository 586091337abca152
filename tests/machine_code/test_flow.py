"""Runs of blocks behind branches: constants, counters, data."""

from __future__ import annotations

import pytest

from cdmpp.machine_code.constants import Constants
from cdmpp.machine_code.flow import frequencies
from cdmpp.machine_code.ir import parse
from cdmpp.machine_code.loops import loops_of

PADDED = """
define i32 @main_compute_(ptr %a, i32 %data) {
entry:
  br label %row

row:
  %y = phi i64 [ 0, %entry ], [ %y.next, %row.end ]
  br label %column

column:
  %x = phi i64 [ 0, %row ], [ %x.next, %column.end ]
  CONDITION
  br i1 %inside, label %load, label %skip

load:
  %v = load float, ptr %a, align 4
  br label %column.end

skip:
  store float 0.0, ptr %a, align 4
  br label %column.end

column.end:
  %x.next = add i64 %x, 1
  %x.done = icmp eq i64 %x.next, 10
  br i1 %x.done, label %row.end, label %column

row.end:
  %y.next = add i64 %y, 1
  %y.done = icmp eq i64 %y.next, 20
  br i1 %y.done, label %end, label %row

end:
  ret i32 0
}
"""


def runs(condition: str) -> dict[str, float]:
    (function,) = parse(PADDED.replace("CONDITION", condition))
    constants = Constants(function)
    return frequencies(function, constants, loops_of(function, constants))


@pytest.mark.parametrize(
    ("condition", "inside", "tolerance"),
    [
        ("%inside = icmp ult i64 %x, 10", 200, 1e-9),  # always, but only known from the counter
        ("%inside = icmp ult i64 %x, 5", 100, 40),
        ("%shifted = add i64 %x, -1\n  %inside = icmp sgt i64 %shifted, 20", 0, 1e-9),
        ("%inside = icmp slt i64 %y, 5", 50, 35),
        ("%inside = icmp eq i32 %data, 5", 100, 1e-9),
    ],
)
def test_a_branch_in_a_nest(condition: str, inside: float, tolerance: float) -> None:
    found = runs(condition)
    assert found["row"] == pytest.approx(20) and found["column"] == pytest.approx(200)
    assert found["load"] == pytest.approx(inside, abs=tolerance)
    assert found["load"] + found["skip"] == pytest.approx(200)
    assert found["column.end"] == pytest.approx(200) and found["end"] == pytest.approx(1)


def test_the_same_text_gives_the_same_runs() -> None:
    assert runs("%inside = icmp ult i64 %x, 5") == runs("%inside = icmp ult i64 %x, 5")
