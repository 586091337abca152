"""Rows of a source in a scratch file: programs in the order of their first rows, each with all its repeats."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from cdmpp.data.importers.kept_rows import KeptProgram, KeptRows
from cdmpp.data.importers.restored_lines import RestoredLines
from cdmpp.data.records import append_records, record_ids, record_parts
from cdmpp.errors import DataError
from cdmpp.platform.paths import cache_root

SCHEMA = pa.schema([("number", pa.int64()), ("kind", pa.string()), ("vector", pa.list_(pa.float32()))])


class Line(NamedTuple):
    number: int
    program: int
    seconds: tuple[float, ...]

    @property
    def row(self) -> dict:
        return {"number": self.number, "kind": "ab"[self.program % 2], "vector": [float(self.program)] * 3}


def line(number: int, program: int, *seconds: float) -> Line:
    return Line(number, program, seconds)


@pytest.fixture
def drawn() -> list[Line]:
    """More rows than one portion, of 900 programs, some of them often."""
    draw = random.Random(0)
    programs = [draw.randrange(900) for _ in range(5_000)]
    return [line(2 * i + 1, one, *(draw.random() for _ in range(1 + i % 3))) for i, one in enumerate(programs)]


def grouped(lines: list[Line], left_out: frozenset[int] = frozenset()) -> list[KeptProgram]:
    groups: dict[int, KeptProgram] = {}
    for place, one in enumerate(lines):
        if place not in left_out:
            group = groups.setdefault(one.program, KeptProgram(one.row, [], []))
            group.repeats.append(one.seconds)
            group.places.append(place)
    return list(groups.values())


def kept_of(lines: list[Line]) -> KeptRows:
    kept = KeptRows(SCHEMA, ["kind"])
    places = [kept.append(f"program {one.program}", one.program % 7, one.seconds, one.row) for one in lines]
    assert places == list(range(len(lines)))
    return kept


def test_programs_come_with_their_repeats(drawn):
    kept = kept_of(drawn)
    expected = grouped(drawn)
    assert len(kept) == len(expected) and list(kept.programs()) == expected
    assert kept.tasks == [drawn[one.places[0]].program % 7 for one in expected]
    wanted = [4, 0, len(expected) - 1, 300]
    assert list(kept.programs(wanted)) == [expected[place] for place in sorted(wanted)]
    assert list(kept.programs()) == expected  # again
    assert not any((cache_root() / "scratch").iterdir())  # the file has no name
    kept.close()


def test_rows_that_are_left_out_are_of_no_program(drawn):
    gone = frozenset([0, 1, 7, *range(2_500, 4_000), *(i for i, one in enumerate(drawn) if one.program == 5)])
    kept = kept_of(drawn)
    kept.leave_out(np.array(sorted(gone)))
    expected = grouped(drawn, gone)
    assert len(kept) == len(expected) < len(grouped(drawn)) and list(kept.programs()) == expected
    kept.close()


@pytest.mark.parametrize("lines", [[], [line(1, 0, 1.0)], [line(1, 5, 1.0), line(2, 5, 2.0)]])
def test_few_lines(lines):
    kept = kept_of(lines)
    assert list(kept.programs()) == grouped(lines) and len(kept) == len(grouped(lines)) == len(kept.tasks)
    kept.close()


def test_closes_before_anything_was_read():
    kept_of([line(1, 0, 1.0)]).close()


@pytest.mark.parametrize("made", [lambda: kept_of([]), lambda: RestoredLines("a source")])
def test_a_cache_that_cannot_be_written_is_told_with_what_to_set(made, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot write .*file.*CDMPP_CACHE name another folder"):
        made()


def test_ids_are_those_of_all_parts_and_a_damaged_part_is_named(tmp_path, make_record):
    assert record_ids(tmp_path) == set()
    for number in range(3):
        append_records(tmp_path, [make_record(number)])
    assert record_ids(tmp_path) == {make_record(number).record_id for number in range(3)}
    damaged = record_parts(tmp_path)[1]
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(DataError, match="part-00001"):
        record_ids(tmp_path)
