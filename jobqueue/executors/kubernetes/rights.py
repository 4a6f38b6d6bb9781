"""The rights that the connector needs: the manifest in `deploy/kubernetes` grants these alone.

Source: Kubernetes documentation, "Authorization", SelfSubjectAccessReview.
"""

from collections.abc import Iterator
from typing import NamedTuple

from jobqueue.executors.kubernetes.client import ACCESS_REVIEWS, KubernetesAPI


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
