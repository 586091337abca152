"""The queue of a fleet on disk: jobs, who works on them, and why one was refused. It outlives every client.

SQLite with its rollback journal: the write-ahead log would be faster by some milliseconds a job, but lives in shared
memory of one machine, and clients on other machines that share the folder would damage the file.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cdmpp.errors import DataError
from cdmpp.measure.fleet.job import Job
from cdmpp.platform.process import ProcessMark

QUEUE_FILE = "queue.sqlite"
LEASE_S = 60.0
"""A client that gives no sign of life for so long has lost its jobs."""
BEAT_S = 5.0
"""Time between two signs of life."""
_VERSION, _MAGIC = 1, 0x63646D71
_BUSY_S = 60.0
_SCHEMA = """
CREATE TABLE client (name TEXT PRIMARY KEY, machine TEXT, pid INTEGER, start TEXT, beat INTEGER) WITHOUT ROWID;
CREATE TABLE job (
    id TEXT PRIMARY KEY, device TEXT NOT NULL, task_id TEXT NOT NULL, spec TEXT NOT NULL, place INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'leased', 'done', 'refused')),
    client TEXT, attempts INTEGER NOT NULL DEFAULT 0, programs INTEGER NOT NULL DEFAULT 0, reason TEXT
) WITHOUT ROWID;
CREATE INDEX next ON job (device, state, place);
CREATE INDEX task ON job (device, task_id, state);
"""
_LEASED = "state = 'leased' AND client = ?"
_AGAIN = "state = CASE WHEN attempts + 1 >= ? THEN 'refused' ELSE 'queued' END, attempts = attempts + 1, reason = ?"


@dataclass(frozen=True)
class Refused:
    """A refused job is not tried again, unless it is asked for."""

    device: str
    task_id: str
    attempts: int
    reason: str


class JobQueue:
    """One client's view of the queue in ``folder``. Threads may share it.

    A client leases jobs and gives signs of life with ``beat``. Jobs of a client that is gone go back into the queue:
    at once where its process can be seen to have ended, else when its signs of life have stopped for ``lease_s`` on
    the own clock, so that clocks of several machines need not agree.

    Raises:
        DataError: the file is damaged, of another version, or cannot be written; each message says what to do.
    """

    def __init__(self, folder: Path, attempts: int, lease_s: float = LEASE_S) -> None:
        """Open the queue, or make it; a job is refused after so many ``attempts`` in vain."""
        self.path, self.attempts, self.lease_s = Path(folder) / QUEUE_FILE, attempts, lease_s
        self.client = secrets.token_hex(6)
        self._seen: dict[str, tuple[int, float]] = {}  # client -> (last beat, own time at which it was new)
        mark = ProcessMark.own()
        with self._changing() as db:
            self._check_schema(db)
            row = (self.client, mark.machine, mark.pid, mark.start)
            db.execute("INSERT INTO client VALUES (?, ?, ?, ?, 0)", row)

    def add(self, jobs: Iterable[Job]) -> int:
        """Put ``jobs`` behind those that are there; one that is there, in whatever state, stays. Returns the new."""
        with self._changing() as db:
            (last,) = db.execute("SELECT coalesce(max(place), -1) FROM job").fetchone()
            before = db.total_changes
            db.executemany(
                "INSERT OR IGNORE INTO job (id, device, task_id, spec, place) VALUES (?, ?, ?, ?, ?)",
                ((j.job_id, j.device, j.task_id, j.spec, last + 1 + n) for n, j in enumerate(jobs)),
            )
            return db.total_changes - before

    def lease(self, device: str, most: int) -> list[Job]:
        """Take up to ``most`` queued jobs of ``device``: they are this client's until it ends, or ends them.

        A task of which another job is leased waits: the two may have programs in common.
        """
        with self._changing() as db:
            other = (
                "SELECT 1 FROM job AS o WHERE o.device = job.device AND o.task_id = job.task_id AND o.state = 'leased'"
            )
            taken = (
                f"SELECT id FROM job WHERE device = ? AND state = 'queued' AND NOT EXISTS ({other}) "
                "ORDER BY place LIMIT ?"
            )
            rows = db.execute(
                f"UPDATE job SET state = 'leased', client = ? WHERE id IN ({taken}) "
                "RETURNING place, device, task_id, spec, attempts",
                (self.client, device, most),
            ).fetchall()
        return [Job(*row[1:]) for row in sorted(rows)]

    def finish(self, programs: Mapping[Job, int]) -> None:
        """End jobs of which every program is recorded or failed: job -> number of its programs.

        Those that are this client's no more are left to whoever has them.
        """
        with self._changing() as db:
            for job, number in programs.items():
                self._end(db, job, "state = 'done', programs = ?, reason = NULL", number)

    def release(self, jobs: Iterable[Job]) -> None:
        """Put jobs back that were not to blame: they count as not begun."""
        with self._changing() as db:
            for job in jobs:
                self._end(db, job, "state = 'queued'")

    def fail(self, job: Job, reason: str) -> None:
        """Put a job back that was begun in vain; the last of ``attempts`` refuses it."""
        with self._changing() as db:
            self._end(db, job, _AGAIN, self.attempts, reason)

    def refuse(self, job: Job, reason: str) -> None:
        """End a job that cannot be done, for a reason that another attempt would meet again."""
        with self._changing() as db:
            self._end(db, job, "state = 'refused', attempts = attempts + 1, reason = ?", reason)

    def retry_refused(self, devices: Sequence[str]) -> int:
        """Put refused jobs of ``devices`` back; returns how many."""
        marks = ",".join("?" * len(devices))
        back = "UPDATE job SET state = 'queued', attempts = 0 WHERE state = 'refused'"
        with self._changing() as db:
            return db.execute(f"{back} AND device IN ({marks})", tuple(devices)).rowcount

    def beat(self) -> None:
        """Give a sign of life."""
        with self._changing() as db:
            db.execute("UPDATE client SET beat = beat + 1 WHERE name = ?", (self.client,))

    def take_back(self) -> int:
        """Put jobs of clients that are gone back into the queue; returns how many."""
        with self._open() as db:  # a look that holds up nobody, as nearly always nobody is gone
            gone = [name for name in self._holders(db) if name != self.client and self._is_gone(db, name)]
        if not gone:
            return 0
        with self._changing() as db:
            reason, back = f"its client ended, or was silent for {self.lease_s:g} s", 0
            for name in gone:
                change = f"UPDATE job SET {_AGAIN}, client = NULL WHERE {_LEASED}"
                back += db.execute(change, (self.attempts, reason, name)).rowcount
                db.execute("DELETE FROM client WHERE name = ?", (name,))
            return back

    def leave(self) -> None:
        """Put all that this client still holds back, as not begun, and sign off."""
        with self._changing() as db:
            db.execute(f"UPDATE job SET state = 'queued', client = NULL WHERE {_LEASED}", (self.client,))
            db.execute("DELETE FROM client WHERE name = ?", (self.client,))

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return device -> state -> jobs, all four states."""
        counts: dict[str, dict[str, int]] = {}
        with self._open() as db:
            for device, state, number in db.execute("SELECT device, state, count(*) FROM job GROUP BY device, state"):
                empty = dict.fromkeys(("queued", "leased", "done", "refused"), 0)
                counts.setdefault(device, empty)[state] = number
        return counts

    def programs(self, device: str) -> int:
        """Return the number of programs of the jobs of ``device`` that are done."""
        with self._open() as db:
            found = db.execute("SELECT coalesce(sum(programs), 0) FROM job WHERE device = ?", (device,))
            return int(found.fetchone()[0])

    def refused(self) -> list[Refused]:
        """List the refused jobs, in the order of the queue."""
        with self._open() as db:
            rows = db.execute(
                "SELECT device, task_id, attempts, reason FROM job WHERE state = 'refused' ORDER BY place"
            ).fetchall()
        return [Refused(*row) for row in rows]

    def _end(self, db: sqlite3.Connection, job: Job, change: str, *values: object) -> None:
        # Only the own lease ends: a client that was silent too long may come back and find its job with another.
        ended = f"UPDATE job SET {change}, client = NULL WHERE {_LEASED} AND id = ?"
        db.execute(ended, (*values, self.client, job.job_id))

    def _holders(self, db: sqlite3.Connection) -> list[str]:
        held = "SELECT DISTINCT client FROM job WHERE state = 'leased' UNION SELECT name FROM client"
        return [name for (name,) in db.execute(held)]

    def _is_gone(self, db: sqlite3.Connection, name: str) -> bool:
        row = db.execute("SELECT machine, pid, start, beat FROM client WHERE name = ?", (name,)).fetchone()
        if row is None or ProcessMark(*row[:3]).is_gone:
            return True
        beat, since = self._seen.get(name, (None, 0.0))
        now = time.monotonic()
        if beat != row[3]:
            self._seen[name] = row[3], now
            return False
        return now - since > self.lease_s

    def _check_schema(self, db: sqlite3.Connection) -> None:
        magic, version = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
        if not magic and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for statement in filter(str.strip, _SCHEMA.split(";")):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {_MAGIC}")
            db.execute(f"PRAGMA user_version = {_VERSION}")
        elif magic != _MAGIC:
            raise DataError(f"{self.path} is no queue of cdmpp: move it away, or choose another folder, out=FOLDER")
        elif version != _VERSION:
            raise DataError(
                f"{self.path} is a queue of version {version}, this cdmpp has version {_VERSION}: finish it with the "
                "cdmpp that began it, or delete it; what is recorded stays, and is not measured again"
            )
        elif (found := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(found)

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Open for one change, which happens as a whole or not at all."""
        with self._open() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.rollback()
                raise
            db.commit()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)) as db:
                yield db
        except sqlite3.OperationalError as error:
            raise DataError(
                f"cannot use the queue {self.path}: {error}. Free some space, or see to its permissions, and run the "
                "same command again: it continues where it stopped"
            ) from error
        except sqlite3.DatabaseError as error:
            said = " ".join(str(error).split())
            raise DataError(
                f"the queue {self.path} is damaged ({said}). Delete it and run the same command again: what is "
                "recorded stays, and is not measured again; only the reasons of refused jobs are lost"
            ) from error
        except OSError as error:
            raise DataError(f"cannot use the queue {self.path}: {error.strerror or error}") from error
