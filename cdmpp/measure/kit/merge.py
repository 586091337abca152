"""Results that came back from a device -> records of a data set."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cdmpp.data.records import append_records, check_record, read_records, read_tasks, write_info, write_tasks
from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.measure import protocol
from cdmpp.measure.disturbance import Disturbance
from cdmpp.measure.kit.builder import packed_programs, read_header
from cdmpp.measure.labels import record_of
from cdmpp.measure.protocol import Visits
from cdmpp.measure.report import report
from cdmpp.platform.content import lines_of, parse_json
from cdmpp.platform.files import FAILURES_FILE, append_lines, read_entries
from cdmpp.platform.lock import writing

log = logging.getLogger(__name__)


def merge_kit(kit: Path, results: Sequence[Path], out: Path, force: bool = False) -> dict[str, Any]:
    """Append to ``out`` what ``results`` say of programs of ``kit``; ``DataError`` names what is wrong with them.

    Visits that differ as they do on a busy machine are such a fault, unless ``force``.
    """
    header = read_header(kit)
    if not results:
        raise DataError(f"no results-*.jsonl in {kit / 'results'}: run the parts on the device and copy them there")
    device, rule = header["device"], protocol.rule_of(header["kind"])
    programs = {row["record_id"]: row for row in packed_programs(kit)}
    records: dict[str, Record] = {}
    failures: dict[str, dict[str, Any]] = {}
    counts: Counter[str] = Counter()
    facts: dict[str, Any] = {}
    for where, entry in (line for path in sorted(results) for line in _lines(path)):
        if "event" in entry:
            facts = entry if entry["event"] == "start" else facts
            counts.update(checked=entry.get("programs", 0), right=entry.get("right", 0))
            continue
        key = str(entry.get("record_id", ""))
        if key not in programs:
            raise DataError(f"{where}: program {key} is not in the kit {kit}")
        if "cause" in entry:
            failures.setdefault(key, {"id": key, "task_id": programs[key]["task_id"], "device": device, **entry})
        else:
            records.setdefault(key, _record(programs[key], entry, facts, header, where))
    tasks = read_tasks(kit)
    if not force:
        Disturbance.of(list(records.values())).check("force=true", "Nothing was merged")
    with writing(out, f"merge of the kit {kit}", wait=True):
        merged = {record.record_id for record in read_records(out, device)}
        merged |= {entry["id"] for entry in read_entries(out / FAILURES_FILE, device)}
        new = [record for key, record in records.items() if key not in merged]
        failed = [entry for key, entry in failures.items() if key not in merged | set(records)]
        counts["merged before"] = len(merged & (set(records) | set(failures)))
        write_tasks(out, [tasks[key] for key in {record.task_id for record in new}])
        append_records(out, new)
        append_lines(out / FAILURES_FILE, failed)
        write_info(
            out, name=out.name, devices=[device], protocols={rule.protocol_id: rule.describe()},
            host=str(facts.get("host", "")), programs=len(read_records(out, device)),
        )  # fmt: skip
    return {"new": len(new), **counts, **report(out, device)}


def _record(
    program: dict[str, str], entry: dict[str, Any], facts: dict[str, Any], header: dict[str, Any], where: str
) -> Record:
    software = {key: facts[key] for key in ("python", "kernel") if key in facts} | facts.get("gpu", {})
    visits = Visits()
    try:
        for samples, quiet in zip(entry["visits"], entry["quiet"], strict=True):
            visits.add([float(value) for value in samples], bool(quiet), 0.0)
        record = record_of(
            visits,
            protocol.rule_of(header["kind"]),
            None,
            **{name: program[name] for name in ("record_id", "task_id", "schedule")},
            **{name: header[name] for name in ("device", "target")},
            software=json.dumps(software, sort_keys=True),
            host=str(facts.get("host", "")),
            measured_at=str(entry.get("at", "")),
        )
        check_record(record)
        return record
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"{where}: not a result: {error!r}") from error


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """("file line n", entry) of a results file. A line cut short by a kill stands before a new start: it is skipped."""
    lines = list(lines_of(path))
    for place, (number, line) in enumerate(lines, start=1):
        where = f"{path} line {number}"
        try:
            yield where, dict(parse_json(line))
        except (ValueError, TypeError) as error:
            following = lines[place][1] if place < len(lines) else b'"event": "start"'
            if b'"event": "start"' not in following:
                raise DataError(f"{where} is not JSON: {error}. Nothing was merged") from error
            log.warning("%s was cut short by a kill; its program is measured again by the next run", where)
