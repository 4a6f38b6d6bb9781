"""Observations of attempts from their Jobs, pods, events and workloads of Kueue: pure functions.

Source: Kubernetes documentation, "Pod lifecycle", "Disruptions" (pod disruption conditions),
"Jobs"; Kueue's API reference, `WorkloadStatus`.
"""

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jobqueue.executors.kubernetes.manifests import CONTAINER, QUEUE_LABEL
from jobqueue.executors.kubernetes.quantities import time_ns
from jobqueue.executors.pull_failures import pull_failure
from jobqueue.executors.recorded import Ending
from protocol.attempts import AttemptObservation, ObservedState

Object = Mapping[str, Any]

# The kubelet tries again by itself; after this time the attempt ends.
PULL_SECONDS = 120.0
# Likewise of what an admission rule refuses, or a container that can't be made.
CREATE_SECONDS = 60.0
PULLING = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
BAD_IMAGE = frozenset({"InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
CREATING = {"CreateContainerConfigError": "invalid_job", "CreateContainerError": "start_failed"}
NOT_STARTED = frozenset({"StartError", "ContainerCannotRun", "RunContainerError"})
PREEMPTIONS = frozenset({"PreemptionByScheduler", "EvictionByEvictionAPI"})
QUOTA = "exceeded quota"
SIGNAL_BASE = 128
NO_OBJECT: Object = {}
_NO_PREEMPTION = re.compile(r" (?:no new claims to deallocate, )?preemption: ")


class View(NamedTuple):
    """What the cluster shows of an attempt.

    Attributes:
        job: None if it is gone, with pods that are being deleted.
        pods: of it.
        workload: of Kueue.
        warning: the last event of its job or pods that warns.
        run: the uid of the pod in which it ran before.
        failing_seconds: for how long it could not start, by `is_failing`.
    """

    job: Object | None
    pods: Sequence[Object] = ()
    workload: Object | None = None
    warning: str = ""
    run: str = ""
    failing_seconds: float = 0.0


def run_of(view: View) -> str:
    """Return the uid of the pod in which the attempt runs or has run; "" before that."""
    pod = _pod(view)
    if pod is None or not _container_state(pod).keys() & {"running", "terminated"}:
        return view.run
    return str(pod["metadata"].get("uid", ""))


def is_failing(view: View) -> bool:
    """Return whether the attempt can't start, as far as the cluster knows now."""
    pod = _pod(view)
    if pod is None:
        return bool(view.warning) and not view.run
    reason = _container_state(pod).get("waiting", {}).get("reason")
    return reason in PULLING or reason in CREATING


def observe(attempt_id: str, view: View) -> AttemptObservation:
    """Return the observation of an attempt."""
    pod = _pod(view)
    if pod is not None:
        return _observe_pod(attempt_id, view, pod)
    job = view.job or NO_OBJECT
    ending = _end_without_pod(view, job)
    if ending is not None:
        return ending.of(attempt_id)
    has_run = bool(view.run)
    return AttemptObservation(
        attempt_id=attempt_id,
        state=ObservedState.RUNNING if has_run else ObservedState.STARTING,
        message="Its pod is gone." if has_run else _waiting_words(view, job),
    )


class _End(NamedTuple):
    state: ObservedState
    ending: Ending
    started_at_ns: int | None = None
    finished_at_ns: int | None = None
    node: str = ""

    def of(self, attempt_id: str) -> AttemptObservation:
        return AttemptObservation(
            attempt_id=attempt_id,
            state=self.state,
            exit_code=self.ending.exit_code,
            reason=self.ending.reason,
            message=self.ending.message,
            started_at_ns=self.started_at_ns,
            finished_at_ns=self.finished_at_ns,
            node=self.node,
        )


def _failed(reason: str, message: str, exit_code: int | None = None) -> _End:
    return _End(ObservedState.FAILED, Ending(reason, message, exit_code))


def _pod(view: View) -> Object | None:
    """Return the pod of the attempt: that in which it ran, else the first one."""
    pods = sorted(view.pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
    if view.run:
        return next((pod for pod in pods if pod["metadata"].get("uid") == view.run), None)
    started = [pod for pod in pods if _container_state(pod).keys() & {"running", "terminated"}]
    return next(iter([*started, *pods]), None)


def _end_without_pod(view: View, job: Object) -> _End | None:  # noqa: PLR0911 - one end a line
    """Return how an attempt has ended whose pod is not there, or None if it has not."""
    complete, failed = _condition(job, "Complete"), _condition(job, "Failed")
    if complete is not None:
        return _End(ObservedState.SUCCEEDED, Ending("", "", 0))
    is_suspended = bool((job.get("spec") or {}).get("suspend"))
    if view.run and (view.pods or is_suspended or is_evicted(view.workload)):
        return _preempted(view)
    if failed is None:
        if is_evicted(view.workload):
            return _preempted(view)
        return _refused(view) if not view.run and not is_suspended else None
    words = _sentence(failed.get("message"))
    if failed.get("reason") == "DeadlineExceeded":
        return _failed("time_limit", f"Kubernetes ended it at its deadline: {words}")
    if view.run:
        message = f"Its pod was deleted on the cluster. Kubernetes: {words}"
        return _End(ObservedState.STOPPED, Ending("stopped_outside", message))
    return _failed("start_failed", f"Its pod could not start. Kubernetes: {words}")


def _refused(view: View) -> _End | None:
    """Return the end of a Job for which no pod can be made."""
    is_final = view.failing_seconds >= CREATE_SECONDS and QUOTA not in view.warning
    if not view.warning or not is_final:
        return None
    return _failed("invalid_job", f"Kubernetes makes no pod: {_sentence(view.warning)}")


def _preempted(view: View, exit_code: int | None = None) -> _End:
    evicted = _condition(view.workload or NO_OBJECT, "Evicted") or NO_OBJECT
    words = _sentence(evicted.get("message") or "the cluster stopped its pod to run it again later")
    return _failed("preempted_by_cluster", f"Preempted in the cluster's queue: {words}", exit_code)


def is_evicted(workload: Object | None) -> bool:
    """Return whether Kueue has taken the attempt's resources, now or before."""
    if workload is None:
        return False
    status = workload.get("status") or {}
    evictions = (status.get("schedulingStats") or {}).get("evictions")
    return bool(evictions or status.get("requeueState") or _condition(workload, "Evicted"))


def _waiting_words(view: View, job: Object) -> str:
    """Return why an attempt without a pod waits."""
    if view.workload is not None:
        for kind in ("QuotaReserved", "Admitted"):
            condition = _any_condition(view.workload, kind)
            if condition.get("status") == "False" and condition.get("message"):
                return f"Waits in Kueue: {_sentence(condition['message'])}"
    if (job.get("spec") or {}).get("suspend"):
        queue = (job["metadata"].get("labels") or {}).get(QUEUE_LABEL)
        return f"Waits in the queue {queue} of Kueue." if queue else "Its Job is suspended."
    return _waits(view.warning) if view.warning else ""


def _observe_pod(attempt_id: str, view: View, pod: Object) -> AttemptObservation:
    state, status = _container_state(pod), pod.get("status") or {}
    node = str((pod.get("spec") or {}).get("nodeName") or "")
    has_ended = "terminated" in state or status.get("phase") in {"Succeeded", "Failed"}
    if has_ended:
        return _ended(view, pod, state.get("terminated") or {})._replace(node=node).of(attempt_id)
    running = state.get("running")
    if running is not None:
        is_deleted = bool(pod["metadata"].get("deletionTimestamp"))
        ready = _any_condition(pod, "Ready")
        is_silent = ready.get("reason") == "NodeStatusUnknown"
        message = "Its pod is being deleted." if is_deleted else ""
        return AttemptObservation(
            attempt_id=attempt_id,
            state=ObservedState.RUNNING,
            message=f"The node {node} does not answer the cluster." if is_silent else message,
            started_at_ns=time_ns(running.get("startedAt")),
            node=node,
        )
    waiting = state.get("waiting") or {}
    ending = _not_started(view, pod, waiting)
    if ending is not None:
        return ending._replace(node=node).of(attempt_id)
    return AttemptObservation(
        attempt_id=attempt_id,
        state=ObservedState.STARTING,
        message=_progress(view, pod, waiting),
        node=node,
    )


def _not_started(view: View, pod: Object, waiting: Object) -> _End | None:
    """Return the end of an attempt whose container can't be made, once that is certain."""
    reason, words = str(waiting.get("reason", "")), _pull_words(view, waiting)
    image = _image(pod)
    if reason in BAD_IMAGE:
        return _failed("image_not_found", f"Image {image!r} can't be used: {_sentence(words)}")
    if reason in PULLING:
        kind = pull_failure(image, words)[0]
        if kind == "image_not_found" or view.failing_seconds >= PULL_SECONDS:
            outcome = "not found" if kind == "image_not_found" else "can't be pulled"
            return _failed(
                kind,
                f"Image {image!r} {outcome}: {_sentence(words)} If its registry requires "
                "credentials, set kubernetes.image_pull_secret.",
            )
    if reason in CREATING and view.failing_seconds >= CREATE_SECONDS:
        return _failed(CREATING[reason], f"The container can't be made: {_sentence(words)}")
    return None


def _pull_words(view: View, waiting: Object) -> str:
    """Return the words of the registry: a back-off may not repeat them, an event does."""
    words = str(waiting.get("message") or waiting.get("reason") or "")
    is_back_off = words.lower().startswith("back-off") and "rpc error" not in words
    return view.warning if is_back_off and view.warning else words


def _progress(view: View, pod: Object, waiting: Object) -> str:
    """Return what an attempt waits for that has a pod."""
    scheduled = _any_condition(pod, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("message"):
        return _waits(scheduled["message"])
    if waiting.get("reason") in PULLING:
        return f"The image can't be pulled yet: {_sentence(_pull_words(view, waiting))}"
    if waiting.get("message"):
        return _waits(waiting["message"])
    if view.warning:
        return _waits(view.warning)
    return "Its container is being made." if waiting else ""


def _ended(view: View, pod: Object, terminated: Object) -> _End:
    started_at_ns = time_ns(terminated.get("startedAt")) or None
    end = _outcome(view, pod, terminated)
    return end._replace(
        started_at_ns=started_at_ns, finished_at_ns=time_ns(terminated.get("finishedAt"))
    )


def _outcome(view: View, pod: Object, terminated: Object) -> _End:  # noqa: PLR0911 - likewise
    """Return the end by what weighs most: the cluster took the pod, the node, the command."""
    status = pod.get("status") or {}
    code = terminated.get("exitCode")
    if code == 0 and status.get("phase") != "Failed":
        return _End(ObservedState.SUCCEEDED, Ending("", "", 0))
    disruption = _condition(pod, "DisruptionTarget")
    reason, words = str(status.get("reason") or ""), _sentence(status.get("message"))
    if disruption is not None:
        words = _sentence(disruption.get("message") or words)
        if disruption.get("reason") in PREEMPTIONS:
            return _failed("preempted_by_cluster", f"Preempted in the cluster: {words}", code)
        return _failed("node_failed", f"Ended with its node: {words}", code)
    if reason == "DeadlineExceeded":
        return _failed("time_limit", f"Kubernetes ended it at its deadline: {words}", code)
    if reason == "Preempting":
        return _failed("preempted_by_cluster", f"Preempted on its node: {words}", code)
    if reason or code is None:
        message = f"Ended by its node ({reason or 'without a reason'}): {words}"
        return _failed("node_failed", message, code)
    is_suspended = bool(((view.job or NO_OBJECT).get("spec") or {}).get("suspend"))
    if code and (is_suspended or is_evicted(view.workload)):
        return _preempted(view, code)
    if code and pod["metadata"].get("deletionTimestamp"):
        message = "Its pod was deleted on the cluster, not through the portal."
        return _End(ObservedState.STOPPED, Ending("stopped_outside", message, code))
    return _by_command(pod, terminated, int(code))


def _by_command(pod: Object, terminated: Object, code: int) -> _End:
    reason, words = terminated.get("reason"), _sentence(terminated.get("message"))
    if reason == "OOMKilled":
        limit = _limits(pod).get("memory", "its memory")
        message = f"Out of memory: a process was killed above {limit} bytes. Request more memory."
        return _failed("out_of_memory", message, code)
    if reason in NOT_STARTED:
        lowered = words.lower()
        is_missing = "executable file not found" in lowered or "no such file" in lowered
        kind = "invalid_job" if is_missing else "start_failed"
        return _failed(kind, f"The container can't start: {words}", code)
    if code > SIGNAL_BASE and code - SIGNAL_BASE in signal.valid_signals():
        name = signal.Signals(code - SIGNAL_BASE).name
        return _failed("signal", f"Killed by {name}, not by the agent. See the log.", code)
    return _failed("exit_code", f"The command exited with code {code}. See the log.", code)


def _container_state(pod: Object) -> Mapping[str, Any]:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status.get("name") == CONTAINER:
            # A service mesh may add containers, whose state is not the attempt's.
            return {
                kind: state
                for kind, state in (status.get("state") or {}).items()
                if state is not None
            }
    return {}


def _container(pod: Object) -> Object:
    containers = (pod.get("spec") or {}).get("containers") or ()
    return next((item for item in containers if item.get("name") == CONTAINER), NO_OBJECT)


def _image(pod: Object) -> str:
    return str(_container(pod).get("image", ""))


def _limits(pod: Object) -> Mapping[str, str]:
    return (_container(pod).get("resources") or {}).get("limits") or {}


def _any_condition(item: Object, kind: str) -> Object:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((entry for entry in conditions if entry.get("type") == kind), NO_OBJECT)


def _condition(item: Object, kind: str) -> Object | None:
    condition = _any_condition(item, kind)
    return condition if condition.get("status") == "True" else None


def _waits(words: object) -> str:
    """Return why an attempt waits, without why preemption would not help it either."""
    text = _NO_PREEMPTION.split(str(words), maxsplit=1)[0]
    return f"Waits in Kubernetes: {_sentence(text)}"


def _sentence(words: object) -> str:
    text = " ".join(str(words or "").split()).rstrip(".")
    return f"{text[:400]}." if text else "No reason is given."
