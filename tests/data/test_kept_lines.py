"""Lines of a database in a scratch file: programs in the order of their first lines, each with all its repeats."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("tvm")

from cdmpp.data.importers.kept_lines import KeptLines  # noqa: E402
from cdmpp.data.records import append_records, record_ids, record_parts  # noqa: E402
from cdmpp.errors import DataError  # noqa: E402
from cdmpp.platform.paths import cache_root  # noqa: E402
from cdmpp.programs.database import TuningLine  # noqa: E402


def line(number: int, program: int, *seconds: float) -> TuningLine:
    return TuningLine(number, program % 3, f"[[{program // 6}],[]]", seconds, f'{{"kind":"{"ab"[program // 3 % 2]}"}}')


@pytest.fixture
def drawn() -> list[TuningLine]:
    """More lines than one portion, of 900 programs that differ by workload, target or trace, some of them often."""
    draw = random.Random(0)
    programs = [draw.randrange(900) for _ in range(5_000)]
    return [line(2 * i + 1, one, *(draw.random() for _ in range(1 + i % 3))) for i, one in enumerate(programs)]


def grouped(lines: list[TuningLine]) -> list[tuple[TuningLine, list[tuple[float, ...]]]]:
    groups: dict[tuple[int, str, str], tuple[TuningLine, list[tuple[float, ...]]]] = {}
    for one in lines:
        groups.setdefault((one.workload, one.target, one.schedule), (one, []))[1].append(one.seconds)
    return list(groups.values())


def test_programs_come_with_their_repeats(drawn):
    kept = KeptLines()
    for one in drawn:
        kept.append(one)
    expected = grouped(drawn)
    assert len(kept) == len(expected) and list(kept.programs()) == expected
    assert kept.workloads == [first.workload for first, _ in expected]
    wanted = [4, 0, len(expected) - 1, 300]
    assert list(kept.programs(wanted)) == [expected[place] for place in sorted(wanted)]
    assert list(kept.programs()) == expected  # again
    assert not any((cache_root() / "scratch").iterdir())  # the file has no name
    kept.close()


@pytest.mark.parametrize("lines", [[], [line(1, 0, 1.0)], [line(1, 5, 1.0), line(2, 5, 2.0)]])
def test_few_lines(lines):
    kept = KeptLines()
    for one in lines:
        kept.append(one)
    assert list(kept.programs()) == grouped(lines) and len(kept) == len(grouped(lines)) == len(kept.workloads)
    kept.close()


def test_closes_before_anything_was_read():
    kept = KeptLines()
    kept.append(line(1, 0, 1.0))
    kept.close()


def test_ids_are_those_of_all_parts_and_a_damaged_part_is_named(tmp_path, make_record):
    assert record_ids(tmp_path) == set()
    for number in range(3):
        append_records(tmp_path, [make_record(number)])
    assert record_ids(tmp_path) == {make_record(number).record_id for number in range(3)}
    damaged = record_parts(tmp_path)[1]
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(DataError, match="part-00001"):
        record_ids(tmp_path)
