"""A client of a fleet: plans jobs, starts a lane for each free server, and takes back what others left behind."""

from __future__ import annotations

import itertools
import json
import logging
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from cdmpp.errors import CdmppError, some
from cdmpp.measure import protocol, software
from cdmpp.measure.fleet.job import Job
from cdmpp.measure.fleet.lane import Lane, ServerLostError, ServerUnfitError, Share
from cdmpp.measure.fleet.queue import BEAT_S, LEASE_S, QUEUE_FILE, JobQueue
from cdmpp.measure.fleet.store import FleetStore
from cdmpp.measure.fleet.tracker import NO_SERVERS, Servers, Tracker
from cdmpp.measure.journal import Journal
from cdmpp.measure.progress import FleetProgress
from cdmpp.measure.report import report
from cdmpp.measure.settings import MeasureSettings
from cdmpp.measure.subjects import PlannedSubjects
from cdmpp.measure.worker import COMMAND
from cdmpp.platform.files import FAILURES_FILE
from cdmpp.platform.lock import writing
from cdmpp.platform.workers import Worker

log = logging.getLogger(__name__)

PATIENCE_S = 120.0
"""Jobs whose servers are all gone are left in the queue after this long."""
_POLL_S, _PAUSE_S = 0.5, 10.0
_TRIES = 3
"""A server with which no session begins is left out after so many."""


class FleetClient:
    """It measures the devices of ``settings.devices`` into ``folder`` until the queue there has no job left for them.

    Other clients may do the same at the same time. A client that is stopped or killed costs the visits that were under
    way; the next one goes on.
    """

    def __init__(
        self, settings: MeasureSettings, folder: Path, lease_s: float = LEASE_S, patience_s: float = PATIENCE_S
    ) -> None:
        """``CdmppError`` where no tracker answers, or it knows no server of one of the keys."""
        self.settings, self.folder, self.patience_s = settings, Path(folder), patience_s
        self.members = {one.server_key: one for one in settings.fleet()}
        self.devices = sorted({one.device for one in self.members.values()})
        self.lease_s, self.beat_s = lease_s, min(BEAT_S, lease_s / 4)
        self._servers = self._look_at_tracker()
        self._check_keys()
        self._unfit: dict[str, dict[str, str]] = {key: {} for key in self.members}  # -> address -> reason
        self._pause_until = dict.fromkeys(self.members, 0.0)
        self._dumb: Counter[str] = Counter()  # address -> sessions that did not begin
        self._lanes: dict[Lane, str] = {}
        self._numbers = itertools.count(1)
        self._broken: Exception | None = None

    def run(self) -> dict[str, Any]:
        """Measure, and return a report: device -> programs, failures, spread, jobs; ``refused`` lists refused jobs.

        Raises:
            CdmppError: jobs are left because no server of their key is there any more, the queue is damaged, or the
                disk is full. What was measured is recorded.
        """
        begin = time.monotonic()
        with self._working() as share, FleetProgress(self.folder, self.devices, self.settings.progress) as progress:
            self._plan(share)
            left = self._measure(share, progress, begin)
            self._describe()
            found = self._report(share.queue)
        if left:
            raise CdmppError(left)
        return found

    @contextmanager
    def _working(self) -> Iterator[Share]:
        import tvm

        store = FleetStore(self.folder)
        queue = JobQueue(self.folder, self.settings.attempts, self.lease_s)
        builders: SimpleQueue[Worker] = SimpleQueue()
        workers = [Worker(COMMAND) for _ in range(self.settings.builders)]
        for worker in workers:
            builders.put(worker)
        ended = threading.Event()
        beating = threading.Thread(target=self._beat, args=(queue, ended), daemon=True)
        with tempfile.TemporaryDirectory(prefix="cdmpp-fleet-", ignore_cleanup_errors=True) as scratch:
            built_with = {k: v for k, v in json.loads(software.versions()).items() if k not in ("python", "kernel")}
            share = Share(
                queue, store, {}, builders, built_with, tvm.target.codegen.llvm_get_system_triple(), Path(scratch),
            )  # fmt: skip
            beating.start()
            try:
                yield share
            finally:
                share.stopped.set()
                ended.set()
                for lane in self._lanes:
                    lane.worker.kill()
                for lane in self._lanes:
                    lane.join(5.0)
                for worker in workers:
                    worker.stop()
                beating.join(5.0)
                with suppress(CdmppError):  # the disk is full: the jobs go back once this process has ended
                    queue.leave()

    def _beat(self, queue: JobQueue, ended: threading.Event) -> None:
        while not ended.wait(self.beat_s):
            try:
                queue.beat()
            except Exception as error:  # noqa: BLE001 - raised by the main thread
                self._broken = error
                return

    def _plan(self, share: Share) -> None:
        """Queue what the settings ask for and the queue does not hold; one client at a time."""
        workers = [share.builders.get()]
        try:
            with writing(self.folder, "the plan of a fleet", wait=True):
                for device in self.devices:
                    member = next(one for one in self.members.values() if one.device == device)
                    journal = Journal(self.folder, device, FAILURES_FILE)
                    target = json.dumps(member.target, sort_keys=True)
                    planned = PlannedSubjects(member, self.folder, target, journal, workers, share.scratch)
                    self.info = planned.info
                    share.tasks |= {task.task_id: task for task in planned.tasks}
                    share.queue.add(list(self._jobs(member, planned)))
        finally:
            share.builders.put(workers[0])
        if self.settings.retry_refused:
            share.queue.retry_refused(self.devices)

    def _jobs(self, member: MeasureSettings, planned: PlannedSubjects) -> Iterator[Job]:
        for task in planned.tasks:
            if (schedules := planned.given(task)) is None:
                yield Job.sampled(member.device, task.task_id, member.schedules_per_task, member.seed)
            elif schedules:
                yield Job.given(member.device, task.task_id, schedules)

    def _measure(self, share: Share, progress: FleetProgress, begin: float) -> str:
        """Go on until nothing is left to do; returns why jobs were left, in words, else an empty text."""
        limit_s, last_server = 60 * (self.settings.time_limit_min or float("inf")), time.monotonic()
        while True:
            if self._broken is not None:
                raise self._broken
            if time.monotonic() - begin > limit_s:
                share.stopped.set()
            self._end_lanes()
            share.queue.take_back()
            counts = share.queue.counts()
            lanes = [self.members[key].device for key in self._lanes.values()]
            progress.show(counts, {device: lanes.count(device) for device in self.devices})
            mine = [counts[device] for device in self.devices if device in counts]
            queued, leased = (sum(one[state] for one in mine) for state in ("queued", "leased"))
            if not self._lanes and (share.stopped.is_set() or not (queued or leased)):
                return ""
            self._servers = self._look_at_tracker(self._servers)
            waiting = [key for key in self.members if self._jobs_for(share.queue, key)]
            if not self._lanes and not waiting and not leased:
                return ""  # the budget is used up
            for key in () if share.stopped.is_set() else waiting:
                self._start_lanes(share, key)
            if self._lanes or leased or any(self._usable(key) for key in waiting):
                last_server = time.monotonic()
            elif time.monotonic() - last_server > self.patience_s:
                return self._left(waiting, queued)
            time.sleep(_POLL_S)

    def _look_at_tracker(self, last: dict[str, Servers] | None = None) -> dict[str, Servers]:
        """Return the servers of each key; with ``last`` a tracker that is gone for a moment has none free."""
        assert self.settings.tracker is not None
        try:
            with Tracker(self.settings.tracker) as tracker:
                return dict(tracker.servers())
        except CdmppError:
            if last is None:
                raise
            return {}

    def _check_keys(self) -> None:
        if missing := [key for key in self.members if key not in self._servers]:
            tracker = self.settings.tracker
            raise CdmppError(
                f"the tracker at {tracker} has no server with key {', '.join(map(repr, missing))} (keys it knows: "
                f"{', '.join(sorted(self._servers)) or 'none'}); on the device run: "
                f"python -m tvm.exec.rpc_server --tracker {tracker} --key {missing[0]}; or leave it out of devices"
            )

    def _usable(self, key: str) -> frozenset[str]:
        """Addresses of servers that are there and fit, busy ones too."""
        return self._servers.get(key, NO_SERVERS).addresses - self._unfit[key].keys()

    def _start_lanes(self, share: Share, key: str) -> None:
        servers, member = self._servers.get(key, NO_SERVERS), self.members[key]
        own = [lane for lane, name in self._lanes.items() if name == key]
        opening = sum(not lane.opened.is_set() for lane in own)
        unfit = len(servers.addresses & self._unfit[key].keys())
        room = min(servers.free - unfit - opening, (member.max_servers or servers.free) - len(own))
        if time.monotonic() < self._pause_until[key]:
            return
        for _ in range(min(room, self._jobs_for(share.queue, key) and room)):
            lane = Lane(
                member, share, lambda: self._jobs_for(share.queue, key), list(self._unfit[key]), next(self._numbers)
            )
            self._lanes[lane] = key
            lane.start()

    def _jobs_for(self, queue: JobQueue, key: str) -> int:
        """Return how many jobs a lane of ``key`` may lease now: at most a batch, its share, the rest of the budget."""
        member = self.members[key]
        jobs = queue.counts().get(member.device, {})
        per_task = member.schedules_per_task
        keys = [name for name, one in self.members.items() if one.device == member.device]
        servers = max(1, sum(len(self._usable(name)) for name in keys))
        most = min(max(1, member.batch // per_task), -(-jobs.get("queued", 0) // servers))
        if member.budget is not None:
            begun = queue.programs(member.device) + jobs.get("leased", 0) * per_task
            most = min(most, max(0, -(-(member.budget - begun) // per_task)))
        return most

    def _end_lanes(self) -> None:
        for lane in [lane for lane in self._lanes if not lane.is_alive()]:
            key = self._lanes.pop(lane)
            match lane.error:
                case None:
                    pass
                case ServerUnfitError():
                    self._leave_out(key, lane)
                case ServerLostError():
                    self._pause_until[key] = time.monotonic() + _PAUSE_S
                    if lane.host:
                        log.warning("%s: %s; its jobs go back into the queue", lane.host, lane.error)
                    elif lane.address:
                        self._dumb[lane.address] += 1
                        if self._dumb[lane.address] == _TRIES:
                            self._leave_out(key, lane)
                case error:
                    raise error

    def _leave_out(self, key: str, lane: Lane) -> None:
        self._unfit[key][lane.address] = str(lane.error)
        log.warning("the server %s (key %s) is not used: %s", lane.address, key, lane.error)

    def _left(self, keys: list[str], jobs: int) -> str:
        reasons = [f"{address}: {why}" for key in keys for address, why in self._unfit[key].items()]
        return (
            f"{jobs} jobs are left in {self.folder / QUEUE_FILE}: no server with key "
            f"{', '.join(map(repr, keys))} is at the tracker {self.settings.tracker} any more"
            + (f" that fits ({some(reasons)})" if reasons else "")
            + ". "
            "What was measured is recorded; start one and run the same command again"
        )

    def _describe(self) -> None:
        protocols = {protocol.CPU.protocol_id: protocol.CPU.describe()}
        versions = json.loads(software.versions())
        FleetStore(self.folder).describe(
            self.devices, protocols, name=self.folder.name, software=versions, host="a fleet, see its records",
            **self.info,
        )  # fmt: skip

    def _report(self, queue: JobQueue) -> dict[str, Any]:
        counts = queue.counts()
        refused = [vars(one) for one in queue.refused() if one.device in self.devices]
        if refused:
            reasons = sorted({f"{one['device']}: {one['reason']}" for one in refused})
            log.warning("%d jobs are refused (%s); retry_refused=true tries them again", len(refused), some(reasons))
        return {
            "devices": {name: {**report(self.folder, name), "jobs": counts.get(name, {})} for name in self.devices},
            "refused": refused,
        }
