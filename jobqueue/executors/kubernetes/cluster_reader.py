"""Reads a cluster for its report: version, rights, nodes, pods of all users, queues of Kueue.

The manifest in `deploy/kubernetes` grants the rights that the connector needs, and these alone.

Source: Kubernetes documentation, "Authorization", SelfSubjectAccessReview.
"""

import logging
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from jobqueue.executors.base import ExecutorError, NotFoundError
from jobqueue.executors.kubernetes.client import (
    ACCESS_REVIEWS,
    NODES,
    PODS,
    ForbiddenError,
    KubernetesAPI,
    Object,
    Resource,
)
from jobqueue.executors.kubernetes.nodes import is_waiting, node_of, queue_of, requested_by_node
from jobqueue.executors.settings import KubernetesSettings
from protocol.clusters import (
    MAX_CLUSTER_TEXT,
    MAX_DATA_ROOTS,
    MAX_NODES,
    MAX_QUEUES,
    ClusterKind,
    ClusterQueue,
    ClusterReport,
)

log = logging.getLogger(__name__)

# Older ones lack `podReplacementPolicy` and conditions of disruptions.
OLDEST = (1, 27)
KUEUE = "kueue.x-k8s.io"
# Pods of all namespaces are many.
PODS_SECONDS = 30.0
# How long an answer about rights, and about what is installed, holds.
RIGHTS_SECONDS, GROUP_SECONDS = 60.0, 60.0
UNENDED = "status.phase!=Succeeded,status.phase!=Failed"


class ClusterReader:
    """What a cluster is, for its report."""

    def __init__(self, api: KubernetesAPI, settings: KubernetesSettings) -> None:
        self._api = api
        self._settings = settings
        self._problem, self._problem_at = "", float("-inf")
        self._kueue, self._kueue_at = "", float("-inf")
        self._requested: dict[str, dict[str, float]] = {}
        self._waiting = 0
        self._pods_at = float("-inf")
        self.sees_all_pods = True

    def read(self) -> ClusterReport:
        """Return the cluster; its queue takes no jobs while it has a problem."""
        version = self.version()
        report = ClusterReport(
            kind=ClusterKind.KUBERNETES,
            name=self._settings.name,
            version=version,
            runs_images=True,
            needs_image=True,
            data_roots=_data_roots(self._settings),
            max_waiting=self._settings.max_waiting,
        )
        problem = version_problem(version) or self._rights_problem()
        try:
            self._read_pods()
            nodes = [
                node_of(
                    node,
                    self._requested.get(node["metadata"]["name"], {}),
                    gpu_resource=self._settings.gpu_resource,
                )
                for node in self._api.list(NODES)
            ]
            queues = self.queues()
        except ForbiddenError as error:
            nodes, queues, problem = [], [], problem or str(error)
        return msgspec.structs.replace(
            report,
            problem=problem[:MAX_CLUSTER_TEXT],
            waiting_jobs=self._waiting,
            nodes=nodes[:MAX_NODES],
            queues=queues,
        )

    def version(self) -> str:
        """Return the version of the API server, such as `v1.31.2`."""
        return str(self._api.get("/version").get("gitVersion", ""))

    def queues(self) -> list[ClusterQueue]:
        """Return the queues of Kueue in the namespace; none without Kueue, or the right to list."""
        group = self.kueue_group()
        if not group:
            return []
        try:
            queues = list(self._api.list(Resource(group, "localqueues")))
        except (ForbiddenError, NotFoundError) as error:
            log.debug("queues can't be read: %s", error)
            return []
        return [queue_of(queue, default=self._settings.queue) for queue in queues[:MAX_QUEUES]]

    def queue_problem(self, name: str) -> str:
        """Return why a job can't go to a queue, as a sentence, or ""."""
        if not self.kueue_group():
            return (
                f"The queue {name!r} is one of Kueue, which this cluster does not have. Remove "
                "kubernetes.queue."
            )
        names = [queue.name for queue in self.queues()]
        if not names or name in names:
            return ""  # without the right to list them, the cluster decides
        return (
            f"The namespace {self._api.namespace} has no queue {name!r} of Kueue. Its queues: "
            f"{', '.join(sorted(names))}."
        )

    def workloads(self) -> dict[str, Object]:
        """Return the workloads of Kueue by the uid of their Job."""
        group = self.kueue_group()
        if not group:
            return {}
        try:
            return {
                str(owner.get("uid")): workload
                for workload in self._api.list(Resource(group, "workloads"))
                for owner in workload["metadata"].get("ownerReferences") or ()
            }
        except (ForbiddenError, NotFoundError) as error:
            log.debug("workloads of Kueue can't be read: %s", error)
            return {}

    def kueue_group(self) -> str:
        """Return the group and version of Kueue's API; "" without Kueue."""
        if time.monotonic() - self._kueue_at < GROUP_SECONDS:
            return self._kueue
        try:
            answer = self._api.get(f"/apis/{KUEUE}")
        except (NotFoundError, ForbiddenError):
            answer = {}
        preferred = answer.get("preferredVersion") or {}
        self._kueue, self._kueue_at = str(preferred.get("groupVersion", "")), time.monotonic()
        return self._kueue

    def _read_pods(self) -> None:
        """Read what pods request: those of all users, else those of our namespace."""
        if time.monotonic() - self._pods_at < PODS_SECONDS:
            return
        try:
            pods = list(self._api.list(PODS, fields=UNENDED, all_namespaces=True))
            self.sees_all_pods = True
        except ForbiddenError as error:
            if self.sees_all_pods:
                log.warning("what others have allocated of the nodes is not known: %s", error)
            self.sees_all_pods = False
            pods = list(self._api.list(PODS, fields=UNENDED))
        self._requested = requested_by_node(pods, self._settings.gpu_resource)
        self._waiting = sum(is_waiting(pod) for pod in pods)
        self._pods_at = time.monotonic()

    def _rights_problem(self) -> str:
        """Return which rights are missing without which no job runs, or ""."""
        if time.monotonic() - self._problem_at < RIGHTS_SECONDS:
            return self._problem
        try:
            missing = list(missing_rights(self._api, is_required_only=True))
        except ExecutorError as error:
            return f"The rights of the connector can't be read: {error}"[:MAX_CLUSTER_TEXT]
        names = ", ".join(str(right) for right in missing)
        self._problem = f"The connector lacks rights: {names}." if missing else ""
        self._problem_at = time.monotonic()
        return self._problem


def _data_roots(settings: KubernetesSettings) -> list[str] | None:
    """Return the data roots with claims; None if they are too many or too long for a report."""
    roots = sorted(settings.volumes)
    is_short = all(len(root) <= MAX_CLUSTER_TEXT for root in roots)
    return roots if is_short and len(roots) <= MAX_DATA_ROOTS else None


def version_problem(version: str) -> str:
    """Return why a version is too old, or ""."""
    match = re.match(r"v?(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) >= OLDEST:
        return ""
    return f"Kubernetes {version} is too old: {OLDEST[0]}.{OLDEST[1]} or newer is needed."


class Right(NamedTuple):
    """Verbs on a kind of object.

    Attributes:
        group: of the API; "" is the core.
        resource: such as `jobs`, or `pods/log`.
        verbs: such as `list`.
        needed_for: what does not work without it.
        is_required: whether no job runs without it.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    needed_for: str
    is_required: bool = True


IN_NAMESPACE = (
    Right("batch", "jobs", ("create", "delete", "get", "list", "patch"), "jobs"),
    Right("", "pods", ("delete", "list"), "the states of jobs"),
    Right("", "secrets", ("create",), "secrets of jobs", is_required=False),
    Right("", "pods/log", ("get",), "output of jobs", is_required=False),
    Right("", "pods/exec", ("create", "get"), "commands in jobs", is_required=False),
    Right("", "events", ("list",), "why jobs wait", is_required=False),
    Right("metrics.k8s.io", "pods", ("list",), "usage of jobs", is_required=False),
    Right("kueue.x-k8s.io", "localqueues", ("list",), "queues of Kueue", is_required=False),
    Right("kueue.x-k8s.io", "workloads", ("list",), "why jobs wait in Kueue", is_required=False),
)
ON_CLUSTER = (
    Right("", "nodes", ("list",), "the nodes"),
    Right("", "pods", ("list",), "what others have allocated of the nodes", is_required=False),
)


class Missing(NamedTuple):
    """A verb that the account lacks."""

    right: Right
    verb: str
    namespace: str

    def __str__(self) -> str:
        kind = f"{self.right.resource}.{self.right.group}".rstrip(".")
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        return f"{self.verb} {kind} {where} (for {self.right.needed_for})"


def missing_rights(api: KubernetesAPI, *, is_required_only: bool = False) -> Iterator[Missing]:
    """Yield the verbs that the account of this agent lacks."""
    scopes = [(right, api.namespace) for right in IN_NAMESPACE]
    scopes += [(right, "") for right in ON_CLUSTER]
    for right, namespace in scopes:
        if is_required_only and not right.is_required:
            continue
        resource, _, subresource = right.resource.partition("/")
        for verb in right.verbs:
            attributes = {
                "group": right.group,
                "resource": resource,
                "subresource": subresource,
                "verb": verb,
                "namespace": namespace,
            }
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            }
            answer = api.create(ACCESS_REVIEWS, review)
            if not (answer.get("status") or {}).get("allowed"):
                yield Missing(right, verb, namespace)
