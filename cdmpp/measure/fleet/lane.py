"""A lane measures jobs of one device on one server, window by window, until no job is left or the server is gone."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from cdmpp.data.schema import Record
from cdmpp.errors import CdmppError
from cdmpp.measure import protocol
from cdmpp.measure.build import arguments_of
from cdmpp.measure.disturbance import Disturbance
from cdmpp.measure.fleet.job import Job
from cdmpp.measure.fleet.queue import JobQueue
from cdmpp.measure.fleet.session import LOST, check_architecture
from cdmpp.measure.fleet.store import FleetStore
from cdmpp.measure.fleet.tracker import ServerOffer, Tracker
from cdmpp.measure.labels import record_of
from cdmpp.measure.plan import schedule_seed
from cdmpp.measure.protocol import Timed
from cdmpp.measure.reference_kernels import ReferenceKernels, build_reference_kernels
from cdmpp.measure.settings import MeasureSettings
from cdmpp.measure.subjects import SAMPLE_LIMIT_S, Subject
from cdmpp.measure.window import Windows
from cdmpp.measure.worker import COMMAND
from cdmpp.platform.workers import Reply, Worker
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)

RENEW_S = 300.0
"""A session is renewed between two windows once it is that old: the server would end it in the middle of one."""
OPEN_LIMIT_S = 60.0
RETURN_S = 15.0
"""A server whose session broke is back at the tracker by then, if it lives."""
BUSY_WINDOWS = 3
"""So many in a row that cannot be recorded end the use of a server."""
BREAKS = 2
"""A program that breaks its session so often, on whatever servers, is at fault itself: it is not sent to a third."""
_POLL_S = 0.5
_parsing, _counting = threading.Lock(), threading.Lock()


class ServerLostError(CdmppError):
    """The server of a lane does not come back."""


class ServerUnfitError(CdmppError):
    """The server of a lane cannot measure what it should."""


@dataclass
class Share:
    """This is what the lanes of a client have in common."""

    queue: JobQueue
    store: FleetStore
    tasks: dict[str, Task]
    builders: SimpleQueue[Worker]
    """Processes that sample and build; whoever takes one puts it back."""
    software: dict[str, str]
    """Versions here, where programs are built."""
    triple: str
    """What this machine builds for."""
    scratch: Path
    stopped: threading.Event = field(default_factory=threading.Event)
    """No new job is begun."""
    breaks: Counter[str] = field(default_factory=Counter)
    """Program -> sessions that it broke."""

    def broke(self, record_id: str) -> int:
        """Count one more session that a program broke; returns how many these are."""
        with _counting:
            self.breaks[record_id] += 1
            return self.breaks[record_id]

    @contextmanager
    def builder(self) -> Iterator[Worker]:
        """Have a builder for a moment."""
        worker = self.builders.get()
        try:
            yield worker
        finally:
            self.builders.put(worker)


class Lane(threading.Thread):
    """``error`` says why it ended: None where no job was left; ``address`` is that of its server once it has one."""

    def __init__(
        self, settings: MeasureSettings, share: Share, take: Callable[[], int], refused: Sequence[str], number: int
    ) -> None:
        """``take`` says how many jobs may be leased now; ``refused`` are addresses of servers not to use."""
        super().__init__(name=f"{settings.device} {number}", daemon=True)
        self.settings, self.share, self.take, self.refused = settings, share, take, list(refused)
        self.worker = Worker(COMMAND)
        self.address = self.host = ""
        self.error: Exception | None = None
        self.opened = threading.Event()
        """It has a server, or has given up."""
        self._jobs: dict[Job, set[str]] = {}  # -> its programs that are not done
        self._programs: dict[Job, int] = {}
        self._doubts: dict[Job, str] = {}
        self._retry: list[Subject] = []
        self._failures: list[dict[str, Any]] = []
        self._busy_windows, self._since = 0, 0.0

    def run(self) -> None:
        """Measure; what went wrong is kept in ``error``."""
        try:
            self._open()
            self.opened.set()
            self._measure()
        except Exception as error:  # noqa: BLE001 - the client decides what it means for the others
            self.error = error
        finally:
            self.opened.set()
            self.worker.stop()
            with suppress(CdmppError):  # the disk is full, and the client puts them back
                self.share.queue.release(self._jobs)

    def _open(self, address: str | None = None) -> None:
        """Hold a server, and tell what it is; with ``address`` that one."""
        self.worker.request({"op": "close_session"}, OPEN_LIMIT_S)
        last = time.monotonic() + (RETURN_S if address else 0.0)
        while (offer := self._offered(address)) is None:
            if time.monotonic() > last:
                raise ServerLostError("it is not back at the tracker" if address else "all are busy")
            time.sleep(_POLL_S)
        self.address = offer.address
        self.facts = self.worker.request({"op": "open_session", **offer._asdict()}, OPEN_LIMIT_S)
        if cause := self.facts.get("cause"):
            raise ServerLostError(f"it does not answer: {self.facts.get('message') or cause}")
        self._since = time.monotonic()
        name = ", ".join(filter(None, (self.facts.get("hostname"), self.facts.get("cpu"))))
        self.host = f"rpc:{self.settings.server_key} {self.address.rpartition(':')[0]}" + f" ({name})" * bool(name)

    def _offered(self, address: str | None) -> ServerOffer | None:
        """Return a free server, one of ``address`` where given; those that will not do are back in some seconds."""
        with suppress(CdmppError), Tracker(str(self.settings.tracker)) as tracker:  # it may be gone for a moment too
            while (offer := tracker.request(self.settings.server_key)) is not None:
                if offer.address not in self.refused and address in (None, offer.address):
                    return offer
        return None

    def _renew(self) -> None:
        """Hold the server anew, so that the time its session has begins again, unless the tracker is gone."""
        try:
            with Tracker(str(self.settings.tracker)):
                pass
        except CdmppError:
            return
        self._open(self.address)

    def _measure(self) -> None:
        try:
            check_architecture(self.facts, self.settings.target, self.share.triple)
        except CdmppError as error:
            raise ServerUnfitError(str(error)) from error
        rule, asked_s = protocol.CPU, self.settings.min_separation_s
        references = self._references()
        windows: Windows[Subject] = Windows(
            [self.worker], references, self._timing, protocol.VISIT_LIMIT_S,
            rule.min_separation_s if asked_s is None else asked_s,
        )  # fmt: skip
        while True:
            fresh = self._retry + self._leased()
            self._retry = []
            if not fresh and not windows.active:
                return
            finished = windows.measure(fresh, self._failed)
            self._keep(finished)
            if time.monotonic() - self._since > RENEW_S:
                self._renew()

    def _references(self) -> ReferenceKernels:
        """Build the reference kernels and run each once: a server that cannot is of no use."""
        folder = self.share.scratch / self.name.replace(" ", "-")
        folder.mkdir(exist_ok=True)
        with self.share.builder() as builder:
            kernels = build_reference_kernels(builder, self.settings.target, folder)
        for kernel in kernels:
            reply = self.worker.request(self._timing(kernel), protocol.VISIT_LIMIT_S)
            if "samples" not in reply:
                self._open(self.address)  # where it is gone it is not unfit
                raise ServerUnfitError(
                    f"the reference kernel {kernel.record_id} does not run there "
                    f"({reply.get('message') or reply['cause']}): is it another processor than {self.settings.device}, "
                    "or another version of TVM?"
                )
        safe = "".join(letter if letter.isalnum() else "-" for letter in f"{self.settings.device}-{self.address}")
        return ReferenceKernels(
            self.worker, self.share.store.folder / f"reference_kernels-{safe}.jsonl", self._timing, kernels
        )

    def _timing(self, item: Timed) -> dict[str, Any]:
        return item.timing_request("time_held")

    def _leased(self) -> list[Subject]:
        """Lease jobs and build their programs; jobs without any end here."""
        jobs = [] if self.share.stopped.is_set() else self.share.queue.lease(self.settings.device, self.take())
        subjects: list[Subject] = []
        if jobs:
            known = self.share.store.known(self.settings.device)
            for job in jobs:
                self._jobs[job] = set()
            for job in jobs:
                subjects += self._subjects(job, known)
            subjects = self._built(subjects)
        self._end_jobs()
        return subjects

    def _subjects(self, job: Job, known: set[str]) -> list[Subject]:
        """Programs of ``job`` without a record."""
        from cdmpp.programs.identity import record_id

        task, asked, device = self.share.tasks.get(job.task_id), job.asked, self.settings.device
        target = json.dumps(self.settings.target, sort_keys=True)
        if task is None:
            raise CdmppError(
                f"{self.share.store.folder}/tasks.parquet lacks task {job.task_id}, which is in the queue: put the "
                "file back, or delete the queue and run the same command again"
            )
        schedules = asked.get("schedules")
        if schedules is None:
            request = {"op": "sample", "target": self.settings.target, "n": asked["n"], "task": vars(task)}
            with self.share.builder() as builder:
                seed = schedule_seed(task.task_id, asked["seed"])
                reply = builder.request({**request, "seed": seed}, SAMPLE_LIMIT_S)
            if "cause" in reply:
                self.share.queue.refuse(job, f"{reply['cause']}: {reply.get('message', '')}".strip(": "))
                self._jobs.pop(job)
                return []
            schedules = reply["schedules"]
        subjects = []
        for schedule in dict.fromkeys(schedules):
            key = record_id(task.task_id, device, target, schedule)
            self._programs[job] = self._programs.get(job, 0) + 1
            if key in known:
                continue
            if not self._jobs_with(key):  # else two jobs of a task ask for it
                with _parsing:
                    arguments = arguments_of(task.workload)
                library = self.share.scratch / f"{device}-{key}.so"
                subjects.append(Subject(key, arguments, library, task=task, schedule=schedule))
            self._jobs[job].add(key)
        return subjects

    def _jobs_with(self, record_id: str) -> list[Job]:
        return [job for job, programs in self._jobs.items() if record_id in programs]

    def _built(self, subjects: Sequence[Subject]) -> list[Subject]:
        built = []
        for subject in subjects:
            request = subject.build_request(subject.task.workload, subject.schedule, self.settings.target)
            with self.share.builder() as builder:
                reply = builder.request(request, protocol.BUILD_LIMIT_S)
            if "cause" in reply:
                if reply["cause"] in ("crash", "timeout"):
                    reply["cause"] = "build " + reply["cause"]
                self._give_up(subject, reply)
            else:
                built.append(subject)
        return built

    def _failed(self, subject: Subject, reply: Reply) -> None:
        """A visit gave no time: the server may be gone, the program may have broken the session, or be bad."""
        if reply["cause"] not in (LOST, "crash", "timeout"):
            self._give_up(subject, reply)
            return
        breaks = self.share.broke(subject.record_id)
        if breaks >= BREAKS:
            said = reply.get("message", f"no answer within {protocol.VISIT_LIMIT_S:g} s")
            self._give_up(subject, {"cause": "remote crash", "message": f"{breaks} times: {said}"})
        try:
            self._open(self.address)
        except ServerLostError as error:
            self.share.store.keep([], self._failures)
            for job in self._jobs_with(subject.record_id):  # none where the program is at fault
                self.share.queue.fail(job, f"the server {self.address} went away while it was measured")
                del self._jobs[job]
            raise ServerLostError(f"it went away: {error}") from error
        if breaks < BREAKS:
            subject.visits = protocol.Visits()
            self._retry.append(subject)

    def _give_up(self, subject: Subject, reply: Reply) -> None:
        entry = {"id": subject.record_id, "task_id": subject.task.task_id, "device": self.settings.device, **reply}
        self._failures.append(entry)
        self._drop(subject)

    def _drop(self, subject: Subject) -> None:
        subject.library.unlink(missing_ok=True)
        for programs in self._jobs.values():
            programs.discard(subject.record_id)

    def _keep(self, finished: Sequence[Subject]) -> None:
        """Record the programs that are finished, unless the server was busy, and end jobs that have no others."""
        disturbance = Disturbance.of_visits([subject.visits for subject in finished])
        reasons = [] if self.settings.force else disturbance.reasons
        # A job that another client has by now is recorded all the same: the store keeps each program once.
        self.share.store.keep([] if reasons else [self._record(subject) for subject in finished], self._failures)
        self._failures = []
        for subject in finished:
            if reasons:
                doubt = f"{self.host} was busy: {'; '.join(reasons)}"
                self._doubts |= dict.fromkeys(self._jobs_with(subject.record_id), doubt)
            self._drop(subject)
        self._end_jobs()
        self._busy_windows = self._busy_windows + 1 if reasons else 0 if finished else self._busy_windows
        if reasons:
            log.warning("%s: %d programs are not recorded: %s", self.host, len(finished), "; ".join(reasons))
        if self._busy_windows == BUSY_WINDOWS:
            raise ServerUnfitError(f"it was busy in {BUSY_WINDOWS} windows in a row: {'; '.join(reasons)}")

    def _end_jobs(self) -> None:
        if self._failures:
            self.share.store.keep([], self._failures)
            self._failures = []
        ended = [job for job, programs in self._jobs.items() if not programs]
        done = {job: self._programs.get(job, 0) for job in ended if job not in self._doubts}
        if done:
            self.share.queue.finish(done)
        for job in ended:
            del self._jobs[job]
            if job in self._doubts:
                self.share.queue.fail(job, self._doubts.pop(job))

    def _record(self, subject: Subject) -> Record:
        server = {f"server_{name}": value for name, value in self.facts.items() if name in ("cpu", "llvm")}
        return record_of(
            subject.visits,
            protocol.CPU,
            record_id=subject.record_id,
            task_id=subject.task.task_id,
            device=self.settings.device,
            target=json.dumps(self.settings.target, sort_keys=True),
            schedule=subject.schedule,
            software=json.dumps({**self.share.software, **server}, sort_keys=True),
            host=self.host,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
