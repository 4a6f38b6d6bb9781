"""Attempts as jobs of Ray.

The submission id of an attempt is `vedette-APPLIANCE-ATTEMPT`: Ray refuses a second job with it. A
head without external storage forgets its jobs when it restarts, while nodes run them for a while:
each record has the session to which its attempt was submitted, and an attempt of another session is
never submitted again. It ends as `node_failed` once nothing of it can run.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import closing

import msgspec

from jobqueue.executors.abilities import refusal
from jobqueue.executors.base import AttemptUsage, ConflictError, ExecutorError, NotFoundError
from jobqueue.executors.cluster import ClusterExecutor
from jobqueue.executors.ray.client import FOLLOWS_FROM, Answer, RayAPI
from jobqueue.executors.ray.following import Followers
from jobqueue.executors.ray.jobs import is_lost, observe_job, problem_of, request_of, words_of
from jobqueue.executors.ray.nodes import (
    gpu_indices_of,
    names_of,
    nodes_of,
    nodes_with,
    summaries_of,
    usage_by_driver,
    usage_of,
)
from jobqueue.executors.recorded import Ending, ExecutorSite, Record
from jobqueue.executors.settings import RaySettings
from jobqueue.executors.spool_files import SPOOL_LIMIT_BYTES
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState
from protocol.clusters import ClusterKind, ClusterReport

log = logging.getLogger(__name__)

# The list of jobs has those of all users: it takes at most a tenth of the dashboard's time.
LIST_PAUSE = 9.0
# Where following would block Ray: a log is read anew at most at this rate.
REREAD_BYTES_PER_SECOND = 2**20
REREAD_SECONDS = 5.0
# Nodes whose processes are read, for the use of the own jobs.
MAX_READ_NODES = 50
ACTOR_PREFIX = "_ray_internal_job_actor_"
OUTPUT, IS_COMPLETE = "output", "complete"
PENDING, RUNNING = "PENDING", "RUNNING"
FORGOTTEN = "The head of Ray was started again, and has forgotten its jobs."
DELETED = "The job was deleted in Ray before its end was seen."
NO_OUTPUT = "[The rest of the output is gone: Ray no longer has the job.]\n"


class RayExecutor(ClusterExecutor[RaySettings]):
    """Runs attempts through Ray."""

    kind = ClusterKind.RAY

    def __init__(self, settings: RaySettings, site: ExecutorSite) -> None:
        super().__init__(settings, site)
        self._api = RayAPI(settings)
        self._followers = Followers(settings)
        self._prefix = f"vedette-{site.owner}-"
        self._jobs: dict[str, Answer] = {}
        self._list_due = 0.0
        self._lost_at: dict[str, float] = {}
        self._reread_due: dict[str, float] = {}
        # What only reading the nodes tells.
        self._node_names: Mapping[str, str] = {}
        self._gpu_indices: Mapping[str, list[int]] = {}
        self._usage: Mapping[str, AttemptUsage] = {}

    def close(self) -> None:
        """Close the connections; jobs continue."""
        super().close()
        self._followers.close()
        self._api.close()

    def read_cluster(self) -> ClusterReport:
        """Return its nodes, and remember what they tell of jobs."""
        # The other one is used by another thread.
        with closing(RayAPI(self._settings)) as api:
            api.session_name()
            nodes = api.state("nodes")
            filters = {"filter_keys": "class_name", "filter_predicates": "="}
            actors = api.state("actors", {**filters, "filter_values": "JobSupervisor"})
            summary = api.get("/nodes", {"view": "summary"})
            status = api.get("/api/cluster_status")
            jobs = api.jobs()
            summaries = summaries_of(summary)
            own = [job for job in jobs if job["submission_id"].startswith(self._prefix)]
            drivers = {str(job["job_id"]) for job in own if job["status"] == RUNNING}
            processes = {
                node_id: api.get(f"/nodes/{node_id}")["data"]["detail"].get("workers") or []
                for node_id in nodes_with(drivers, summaries)[:MAX_READ_NODES]
            }
        names = names_of(nodes, summaries)
        self._node_names = names
        self._gpu_indices = gpu_indices_of(actors, summaries)
        self._usage = usage_by_driver(summaries, processes)
        return ClusterReport(
            kind=self.kind,
            name=self._settings.name,
            version=api.version_text,
            runs_images=self._settings.runs_images,
            refuses_secrets=not self._settings.passes_secrets,
            waiting_jobs=sum(job["status"] == PENDING for job in jobs),
            max_waiting=self._settings.max_waiting,
            nodes=nodes_of(nodes, names, summaries, usage_of(status)),
        )

    def usage(self, attempt_id: str) -> AttemptUsage | None:
        """Return what the tasks and actors of the attempt use; the driver's own use is not told."""
        job = self._jobs.get(attempt_id) or {}
        return self._usage.get(job.get("job_id") or "") if job.get("status") == RUNNING else None

    def remove(self, attempt_id: str) -> None:
        """Delete the attempt from Ray, with its record and output."""
        self._followers.leave(self._submission_id(attempt_id))
        super().remove(attempt_id)
        for states in (self._jobs, self._lost_at, self._reread_due):
            states.pop(attempt_id, None)

    def _unsupported(self, spec: AttemptSpec) -> str:
        return refusal(self.name, spec) or problem_of(spec, self._settings)

    def _submit(self, spec: AttemptSpec) -> None:
        """Submit the job; the record has its session before, in case that no answer comes."""
        record, session = self._record(spec.attempt_id), self._api.session_name()
        if record.session not in {"", session}:
            raise ExecutorError(f"{FORGOTTEN} {spec.attempt_id} is not submitted again.")
        record.session = session
        self._save(record)
        submission_id = self._submission_id(spec.attempt_id)
        self._list_due = 0.0
        try:
            self._api.submit(request_of(spec, self._site, submission_id=submission_id))
        except ConflictError:
            log.info("Ray has job %s already", submission_id)
        record.is_accepted = True

    def _stop(self, attempt_id: str) -> None:
        self._list_due = 0.0
        try:
            self._api.stop(self._submission_id(attempt_id))
        except NotFoundError:
            log.debug("job of %s is gone", attempt_id)

    def _delete(self, attempt_id: str) -> None:
        """Delete the job; Ray deletes none that has not ended, so that is listed until later."""
        status = (self._jobs.get(attempt_id) or {}).get("status")
        submission_id = self._submission_id(attempt_id)
        try:
            if status in {PENDING, RUNNING}:
                self._api.stop(submission_id)
            elif status is not None:
                self._api.delete(submission_id)
        except NotFoundError:
            log.debug("job of %s is gone", attempt_id)

    def _read(self) -> Mapping[str, AttemptObservation]:
        session = self._api.session_name()
        self._list()
        observations = {}
        for attempt_id, job in self._jobs.items():
            record = self._records.get(attempt_id)
            if record is None and job["status"] == PENDING:
                continue  # it was stopped and removed before its start, see `_delete`
            if record is not None and not (record.session == session and record.is_accepted):
                record.session, record.is_accepted = session, True
                self._save(record)
            observations[attempt_id] = self._observation(attempt_id, job)
        for attempt_id, record in self._records.items():
            is_forgotten = record.session not in {"", session}
            is_expected = record.is_accepted or is_forgotten
            if record.outcome is None and is_expected and attempt_id not in self._jobs:
                reason = FORGOTTEN if is_forgotten else DELETED
                observations[attempt_id] = self._lost(attempt_id, reason)
        return observations

    def _list(self) -> None:
        """Read the own jobs, unless that was just done."""
        began = time.monotonic()
        if began < self._list_due:
            return
        jobs = self._api.jobs()
        ended = time.monotonic()
        self._list_due = ended + LIST_PAUSE * (ended - began)
        self._jobs = {
            job["submission_id"].removeprefix(self._prefix): job
            for job in jobs
            if job["submission_id"].startswith(self._prefix)
        }

    def _observation(self, attempt_id: str, job: Answer) -> AttemptObservation:
        record = self._records.get(attempt_id)
        if job["status"] == PENDING and record is not None and record.stop_reason is not None:
            # Ray ends it when it would start, see `jobqueue.executors.ray.jobs`.
            return AttemptObservation(attempt_id=attempt_id, state=ObservedState.STOPPED)
        if is_lost(job) and (record is None or record.outcome is None):
            return self._lost(attempt_id, f"Ray says: {words_of(job)}")
        self._lost_at.pop(attempt_id, None)
        node = self._node_names.get(job.get("driver_node_id") or "", "")
        gpus = self._gpu_indices.get(ACTOR_PREFIX + str(job["submission_id"]), [])
        seen = observe_job(attempt_id, job)
        return msgspec.structs.replace(seen, node=node, gpu_indices=gpus)

    def _lost(self, attempt_id: str, words: str) -> AttemptObservation:
        """Return a failure, once nothing of the attempt can run: until then, it has not ended."""
        lost_at = self._lost_at.setdefault(attempt_id, time.monotonic())
        if time.monotonic() - lost_at < self._settings.lost_seconds:
            return AttemptObservation(
                attempt_id=attempt_id,
                state=ObservedState.STARTING,
                message=f"{words} Waiting until nothing of it can run.",
            )
        return AttemptObservation(
            attempt_id=attempt_id, state=ObservedState.FAILED, reason="node_failed", message=words
        )

    def _ending(self, record: Record, seen: AttemptObservation) -> Ending:
        """Return why it ended; a start that was never seen was after the submission."""
        job = self._jobs.get(record.attempt_id) or {}
        if record.started_at_ns is None and job.get("driver_node_id") and seen.finished_at_ns:
            record.started_at_ns = min(int(job["start_time"]) * 1_000_000, seen.finished_at_ns)
        return super()._ending(record, seen)

    def _copy_output(self, record: Record) -> None:
        """Take what followers have read; once the attempt has ended, read what they lack."""
        submission_id = self._submission_id(record.attempt_id)
        if record.read_bytes.get(IS_COMPLETE):
            return
        if (self._jobs.get(record.attempt_id) or {"status": PENDING})["status"] == PENDING:
            self._list()
        job = self._jobs.get(record.attempt_id)
        is_full = record.spool_bytes >= SPOOL_LIMIT_BYTES
        if not is_full:
            is_full = not self._add(record, self._followers.take(submission_id))
        if record.outcome is None and not is_full:
            if job is not None and job["status"] == RUNNING:
                self._follow(record, job)
            return
        self._followers.leave(submission_id)
        if job is None and record.is_accepted:
            self._note(record, NO_OUTPUT)
        elif job is not None and job.get("driver_node_id") and not is_full:
            self._read_whole(record, job)
        record.read_bytes[IS_COMPLETE] = 1
        self._save(record)

    def _follow(self, record: Record, job: Answer) -> None:
        if self._api.version >= FOLLOWS_FROM:
            skip_bytes = record.read_bytes.get(OUTPUT, 0)
            self._followers.follow(str(job["submission_id"]), skip_bytes=skip_bytes)
        elif time.monotonic() >= self._reread_due.get(record.attempt_id, 0.0):
            self._read_whole(record, job)
            pause = record.read_bytes.get(OUTPUT, 0) / REREAD_BYTES_PER_SECOND
            self._reread_due[record.attempt_id] = time.monotonic() + max(REREAD_SECONDS, pause)

    def _read_whole(self, record: Record, job: Answer) -> None:
        """Read the output from its beginning, and append what is new."""
        skip_bytes = record.read_bytes.get(OUTPUT, 0)
        for chunk in self._api.output(job):
            skipped = min(skip_bytes, len(chunk))
            skip_bytes -= skipped
            if not self._add(record, chunk[skipped:]):
                return

    def _add(self, record: Record, output: bytes) -> bool:
        """Append output; return whether there is room for more of it."""
        if not output:
            return True
        record.read_bytes[OUTPUT] = record.read_bytes.get(OUTPUT, 0) + len(output)
        return self._append_bounded(record, output)

    def _submission_id(self, attempt_id: str) -> str:
        return f"{self._prefix}{attempt_id}"
