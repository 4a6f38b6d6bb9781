"""Attempts as Jobs of Kubernetes.

An attempt is one Job with one pod. Its name comes from the attempt, so that it is made once; it is
deleted with all that it owns when the attempt is removed or stopped, and as soon as its end is
recorded while the cluster could still run it again.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import urllib3

from core.clock import to_ns
from jobqueue.executors.abilities import refusal
from jobqueue.executors.base import (
    ATTEMPT_LABEL,
    OWNER_LABEL,
    AttemptUsage,
    ConflictError,
    ExecSession,
    ExecutorError,
    InvalidError,
    NoExecError,
    NotFoundError,
)
from jobqueue.executors.cluster import ClusterExecutor
from jobqueue.executors.kubernetes import manifests, states
from jobqueue.executors.kubernetes.client import (
    EVENTS,
    JOBS,
    POD_METRICS,
    PODS,
    SECRETS,
    ForbiddenError,
    KubernetesAPI,
    Object,
    Params,
)
from jobqueue.executors.kubernetes.cluster_reader import ClusterReader
from jobqueue.executors.kubernetes.exec import run_in_pod
from jobqueue.executors.kubernetes.logs import CHUNK_BYTES, Follower, LogReader
from jobqueue.executors.kubernetes.quantities import quantity
from jobqueue.executors.recorded import ExecutorSite, Record
from jobqueue.executors.settings import KubernetesSettings
from jobqueue.executors.spool_files import SPOOL_LIMIT_BYTES
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState
from protocol.clusters import ClusterKind, ClusterReport

log = logging.getLogger(__name__)

# How often events and workloads of Kueue are read while attempts wait, and the usage of pods.
WORDS_SECONDS = 5.0
USAGE_SECONDS = 10.0
# Streams of output; the output of further attempts is read now and then.
MAX_FOLLOWERS = 64
POLL_SECONDS = 10.0
OBSERVE_SECONDS = 3.0
# By which clocks of nodes may be behind.
SKEW_SECONDS = 300
# For the last lines of a pod that is being deleted.
DRAIN_SECONDS = 5.0
READ_SECONDS = 30.0
MAX_SESSIONS = 32
# The controller of Jobs notes the end of a pod within this time.
FINISH_SECONDS = 30.0


class KubernetesExecutor(ClusterExecutor[KubernetesSettings]):
    """Runs attempts through Kubernetes."""

    kind = ClusterKind.KUBERNETES

    def __init__(self, settings: KubernetesSettings, site: ExecutorSite) -> None:
        super().__init__(settings, site)
        self._api = KubernetesAPI(settings)
        self._cluster = ClusterReader(self._api, settings)
        self._views: dict[str, states.View] = {}
        self._failing_since: dict[str, float] = {}
        self._warnings: dict[str, str] = {}
        self._workloads: dict[str, Object] = {}
        self._words_at = float("-inf")
        self._read_at = float("-inf")
        self._followers: dict[str, Follower] = {}
        self._polled_at: dict[str, float] = {}
        self._whole: set[str] = set()
        self._usage: dict[str, AttemptUsage] = {}
        self._usage_at = float("-inf")
        self._sessions = 0

    def read_cluster(self) -> ClusterReport:
        """Return its nodes and queues."""
        return self._cluster.read()

    def close(self) -> None:
        """End the reading and the streams; Jobs continue."""
        super().close()
        followers = list(self._followers.values())
        for follower in followers:
            follower.stop()
        for follower in followers:
            follower.join(DRAIN_SECONDS)
        self._api.close()

    def observe(self) -> list[AttemptObservation]:
        """Return what the cluster shows, and end what could run a second time."""
        with self._lock:
            observed = super().observe()
            for seen in observed:
                if seen.state is ObservedState.RUNNING:
                    self._follow(seen.attempt_id)
                view = self._views.get(seen.attempt_id)
                # Its end is recorded: a kill before this line leaves it to the next call.
                if seen.state.is_final and view is not None and self._may_run_again(view, seen):
                    with suppress(ExecutorError):
                        self._copy_output(self._record(seen.attempt_id))
                    self._stop(seen.attempt_id)
            return observed

    def read_log(self, attempt_id: str, *, offset: int, limit: int) -> bytes:
        """Return output that was copied; waits for the last lines of one that has just ended."""
        record, follower = self._records.get(attempt_id), self._followers.get(attempt_id)
        if record is not None and record.outcome is not None and follower is not None:
            follower.join(DRAIN_SECONDS)
        return super().read_log(attempt_id, offset=offset, limit=limit)

    def usage(self, attempt_id: str) -> AttemptUsage | None:
        """Return the usage of a running attempt, if the cluster has a metrics server."""
        with self._lock:
            view = self._views.get(attempt_id)
            record = self._records.get(attempt_id)
            is_running = record is not None and record.outcome is None and bool(record.run)
            if view is None or not is_running:
                return None
            if time.monotonic() - self._usage_at >= USAGE_SECONDS:
                self._usage_at = time.monotonic()
                self._usage = self._read_usage()
            return self._usage.get(attempt_id)

    async def execute(self, attempt_id: str, session: ExecSession) -> int:
        """Run a command in the attempt's pod."""
        pod = self._pod_name(attempt_id)
        if not pod:
            raise NoExecError("The job has no pod now.")
        if self._sessions >= MAX_SESSIONS:
            raise NoExecError(f"{MAX_SESSIONS} commands run already; end one of them.")
        self._sessions += 1
        try:
            return await run_in_pod(self._api, pod, session)
        finally:
            self._sessions -= 1

    def remove(self, attempt_id: str) -> None:
        """Delete the attempt's Job, with its record and output."""
        with self._lock:
            if follower := self._followers.pop(attempt_id, None):
                follower.stop()
            super().remove(attempt_id)
            for forgotten in (self._views, self._failing_since, self._polled_at, self._usage):
                forgotten.pop(attempt_id, None)
            self._whole.discard(attempt_id)

    def _unsupported(self, spec: AttemptSpec) -> str:
        reason = refusal(self.name, spec)
        queue = manifests.queue_of(spec, self._settings)
        return reason or (self._cluster.queue_problem(queue) if queue else "")

    def _submit(self, spec: AttemptSpec) -> None:
        """Create the Job; with secrets it is staged, until its Secret is there."""
        body = manifests.job_of(spec, self._settings, self._site)
        name = body["metadata"]["name"]
        try:
            job = self._api.create(JOBS, body)
        except ConflictError:
            job = self._api.read(JOBS, name)
            log.info("Kubernetes has job %s already", name)
            if job["metadata"].get("deletionTimestamp"):
                raise ExecutorError(f"job {name} is still being deleted") from None
        except ForbiddenError as error:
            raise InvalidError(f"The cluster refuses the job. {error}") from error
        if not _is_staged(job):
            return
        try:
            with suppress(ConflictError):
                self._api.create(SECRETS, manifests.secret_of(spec, job))
            self._api.patch(JOBS, name, manifests.release_of(spec, self._settings))
        except (ForbiddenError, InvalidError) as error:
            self._delete_staged(job)
            raise InvalidError(f"The cluster refuses the job's secrets. {error}") from error

    def _stop(self, attempt_id: str) -> None:
        """Delete the Job once its pod is gone, which has its grace; the pod of one that is gone."""
        try:
            self._api.delete(JOBS, manifests.job_name(attempt_id), policy="Foreground")
        except NotFoundError:
            view = self._views.get(attempt_id)
            for pod in view.pods if view is not None else ():
                with suppress(NotFoundError):
                    self._api.delete(PODS, pod["metadata"]["name"])

    def _delete(self, attempt_id: str) -> None:
        with suppress(NotFoundError):
            self._api.delete(JOBS, manifests.job_name(attempt_id))

    def _delete_staged(self, job: Object) -> None:
        """Delete a Job that has never run, if it still has not."""
        metadata = job["metadata"]
        with suppress(NotFoundError, ConflictError):
            self._api.delete(JOBS, metadata["name"], version=str(metadata["resourceVersion"]))

    def _read(self) -> Mapping[str, AttemptObservation]:
        """Read the Jobs and pods of this connector: one list of each."""
        selector = f"{OWNER_LABEL}={self._site.owner}"
        jobs, pods = dict[str, Object](), defaultdict[str, list[Object]](list)
        # Pods are read first: a Job that has none then is younger than the list.
        for pod in self._api.list(PODS, labels=selector):
            pods[_attempt_of(pod)].append(pod)
        for job in self._api.list(JOBS, labels=selector):
            if _is_staged(job):
                # The agent ended before it was complete, or an answer was lost.
                self._delete_staged(job)
                continue
            jobs[_attempt_of(job)] = job
        self._read_words(jobs, pods)
        self._read_at = time.monotonic()
        self._views = {
            attempt_id: self._view(attempt_id, jobs.get(attempt_id), pods.get(attempt_id, []))
            for attempt_id in jobs.keys() | _alive(pods)
        }
        observations = {}
        for attempt_id, view in self._views.items():
            observations[attempt_id] = states.observe(attempt_id, view)
            self._note_run(attempt_id, view)
        return observations

    def _view(self, attempt_id: str, job: Object | None, pods: list[Object]) -> states.View:
        record = self._records.get(attempt_id)
        names = [str(item["metadata"]["name"]) for item in [*pods, *([job] if job else [])]]
        view = states.View(
            job=job,
            pods=pods,
            workload=self._workloads.get(str(job["metadata"].get("uid"))) if job else None,
            warning=next((self._warnings[name] for name in names if name in self._warnings), ""),
            run=record.run if record is not None else "",
        )
        now = time.monotonic()
        if not states.is_failing(view):
            self._failing_since.pop(attempt_id, None)
            return view
        since = self._failing_since.setdefault(attempt_id, now)
        return view._replace(failing_seconds=now - since)

    def _may_run_again(self, view: states.View, outcome: AttemptObservation) -> bool:
        """Return whether the cluster could yet run something of an attempt that has ended.

        The controller of Jobs sees an ordinary end a little later than this agent.
        """
        job = view.job
        if job is None or job["metadata"].get("deletionTimestamp") or has_finished(job):
            return False
        ended_seconds = (to_ns(self._site.clock()) - (outcome.finished_at_ns or 0)) / 1e9
        is_suspended = bool((job.get("spec") or {}).get("suspend"))
        uids = {str(pod["metadata"].get("uid")) for pod in view.pods}
        has_one_run = uids == {states.run_of(view)} and not is_suspended
        return not has_one_run or ended_seconds > FINISH_SECONDS

    def _note_run(self, attempt_id: str, view: states.View) -> None:
        """Record the pod in which an attempt runs: another one would be a second run."""
        run = states.run_of(view)
        record = self._record(attempt_id)
        if run != record.run and not record.run:
            record.run = run
            self._save(record)

    def _read_words(self, jobs: Mapping[str, Object], pods: Mapping[str, list[Object]]) -> None:
        """Read why attempts wait, while some do."""
        waiting = {
            attempt_id: job
            for attempt_id, job in jobs.items()
            if not (record := self._records.get(attempt_id)) or record.outcome is None
        }
        is_queued = any(
            manifests.QUEUE_LABEL in (job["metadata"].get("labels") or {})
            for job in waiting.values()
        )
        is_starting = any(_is_starting(job, pods.get(ident, ())) for ident, job in waiting.items())
        if time.monotonic() - self._words_at < WORDS_SECONDS:
            return
        self._words_at = time.monotonic()
        self._warnings = self._read_warnings() if is_starting else {}
        self._workloads = self._cluster.workloads() if is_queued else {}

    def _read_warnings(self) -> dict[str, str]:
        """Return the last warning of each object; none without the right to read events."""
        last: dict[str, tuple[str, str]] = {}
        try:
            for event in self._api.list(EVENTS, fields="type=Warning"):
                name = str((event.get("involvedObject") or {}).get("name", ""))
                at = event.get("lastTimestamp") or event.get("eventTime") or ""
                message = str(event.get("message") or event.get("reason") or "")
                # "Error: ImagePullBackOff" follows the event with the registry's words.
                is_echo = message.startswith("Error: ")
                if name not in last or (str(at) >= last[name][0] and not is_echo):
                    last[name] = (str(at), message)
        except (ForbiddenError, NotFoundError) as error:
            log.debug("events can't be read: %s", error)
        return {name: message for name, (_, message) in last.items()}

    def _read_usage(self) -> dict[str, AttemptUsage]:
        usage = {}
        try:
            selector = f"{OWNER_LABEL}={self._site.owner}"
            for item in self._api.list(POD_METRICS, labels=selector):
                containers = item.get("containers") or ()
                own = [part for part in containers if part.get("name") == manifests.CONTAINER]
                for part in own:
                    amounts = part.get("usage") or {}
                    usage[_attempt_of(item)] = AttemptUsage(
                        cpu_percent=round(100 * quantity(amounts.get("cpu", 0)), 1),
                        memory_bytes=int(quantity(amounts.get("memory", 0))),
                    )
        except ExecutorError as error:
            log.debug("usage of pods can't be read: %s", error)
        return usage

    def _pod_name(self, attempt_id: str) -> str:
        """Return the pod in which an attempt runs or has run; "" without one."""
        view = self._views.get(attempt_id)
        run = states.run_of(view) if view is not None else ""
        pods = view.pods if view is not None and run else ()
        names = [pod["metadata"]["name"] for pod in pods if pod["metadata"].get("uid") == run]
        return str(names[0]) if names else ""

    def _follow(self, attempt_id: str) -> None:
        """Keep a stream of the output of a running attempt, while there are not too many."""
        record, pod = self._record(attempt_id), self._pod_name(attempt_id)
        for ident, follower in list(self._followers.items()):
            if not follower.is_alive():
                del self._followers[ident]
        is_full = record.spool_bytes >= SPOOL_LIMIT_BYTES
        if not pod or is_full or attempt_id in self._followers:
            return
        if len(self._followers) < MAX_FOLLOWERS:
            follower = Follower(
                attempt_id, lambda follower: self._copy(record, pod, follower=follower)
            )
            self._followers[attempt_id] = follower
            follower.start()

    def _copy_output(self, record: Record) -> None:
        """Read the output of an attempt to its end, or of one without a stream as far as it is."""
        attempt_id, has_ended = record.attempt_id, record.outcome is not None
        if attempt_id in self._whole or record.spool_bytes >= SPOOL_LIMIT_BYTES:
            return
        follower = self._followers.get(attempt_id)
        if follower is not None and not has_ended:
            return
        now = time.monotonic()
        is_due = now - self._polled_at.get(attempt_id, float("-inf")) >= POLL_SECONDS
        if not has_ended and not is_due:
            return
        if now - self._read_at >= OBSERVE_SECONDS:
            self._read()  # nobody else has asked for a while
        if follower is not None:
            # It adds nothing from here on: each append looks whether it is still in charge.
            del self._followers[attempt_id]
            follower.stop()
        if pod := self._pod_name(attempt_id):
            self._polled_at[attempt_id] = now
            with suppress(NotFoundError):
                self._copy(record, pod)
        if has_ended:
            self._whole.add(attempt_id)

    def _copy(self, record: Record, pod: str, *, follower: Follower | None = None) -> bool:
        """Copy a stream of output; return whether there can be more."""
        with self._lock:
            reader = LogReader(record.read_bytes)
        path = f"{self._api.path(PODS, pod)}/log"
        now_seconds = to_ns(self._site.clock()) // 10**9
        age_seconds = now_seconds - reader.since_seconds if reader.since_seconds else 0
        params = _log_params(age_seconds, is_followed=follower is not None)
        read_seconds = READ_SECONDS if follower is None else None
        response = self._api.stream(path, params, read_seconds=read_seconds)
        try:
            if follower is not None:
                follower.watch(response)
            for data in response.stream(CHUNK_BYTES):
                if not self._take(record, reader.feed, data, follower):
                    return False
            self._take(record, lambda _: reader.end(), b"", follower)
        except urllib3.exceptions.HTTPError as error:
            raise ExecutorError(f"the stream of output was cut: {error}") from error
        finally:
            if follower is not None:
                follower.watch(None)
            response.close()
        return record.outcome is None

    def _take(
        self,
        record: Record,
        read: Callable[[bytes], bytes],
        data: bytes,
        follower: Follower | None,
    ) -> bool:
        """Append what is read of a stream; return whether more is wanted."""
        with self._lock:
            is_current = follower is None or (
                self._followers.get(record.attempt_id) is follower and not follower.is_stopping
            )
            if not is_current:
                return False
            # The cursor and the spool are saved together.
            chunk = read(data)
            return self._append_bounded(record, chunk) if chunk else True


def _log_params(age_seconds: int, *, is_followed: bool) -> Params:
    """Return the parameters for output of an age; 0 is all.

    The age is by our clock, and lines that were copied already are skipped.
    """
    params = [("container", manifests.CONTAINER), ("timestamps", "true")]
    params += [("follow", "true")] if is_followed else []
    if age_seconds:
        params.append(("sinceSeconds", str(max(1, age_seconds + SKEW_SECONDS))))
    return params


def _attempt_of(item: Object) -> str:
    return str((item["metadata"].get("labels") or {}).get(ATTEMPT_LABEL, ""))


def _is_staged(job: Object) -> bool:
    annotations = job["metadata"].get("annotations") or {}
    return bool(annotations.get(manifests.STAGED_ANNOTATION))


def _is_starting(job: Object, pods: Sequence[Object]) -> bool:
    return not states.run_of(states.View(job=job, pods=pods))


def _alive(pods: Mapping[str, list[Object]]) -> set[str]:
    """Return the attempts with pods that have not ended, whose Job may be gone."""
    ended = {"Succeeded", "Failed"}
    return {
        attempt_id
        for attempt_id, own in pods.items()
        if any((pod.get("status") or {}).get("phase") not in ended for pod in own)
    }


def has_finished(job: Object) -> bool:
    """Return whether a Job runs no more pods."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(
        item.get("type") in {"Complete", "Failed"} and item.get("status") == "True"
        for item in conditions
    )
