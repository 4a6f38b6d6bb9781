"""The objects of an attempt: its Job, and the Secret with its secrets.

The Job makes one pod at most. The pod conforms to the Pod Security Standard `baseline`, and to
`restricted` where the containers' policy is `restricted` and `run_as_user` is set.

Source: Kubernetes API reference, Job v1 and Pod v1; "Pod Security Standards"; Kueue, "Run a Job".
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

import msgspec

from jobqueue.executors.base import ATTEMPT_LABEL, JOB_LABEL, OWNER_LABEL, InvalidError
from jobqueue.executors.confinement import CAPABILITIES
from jobqueue.executors.kubernetes.nodes import MODEL_LABEL
from jobqueue.executors.recorded import ExecutorSite, environment_of
from jobqueue.executors.settings import KubernetesSettings
from protocol.attempts import AttemptSpec
from protocol.clusters import ClusterKind, options_of, root_of
from protocol.job_spec import Mount

CONTAINER = "job"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - memory, not a file
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
NAME_ANNOTATION = "io.vedette.name"
SECRET_ANNOTATION = "io.vedette.secret"  # noqa: S105 - the name of an annotation
# On a Job whose Secret is yet to be made: it is suspended, and has never had a pod.
STAGED_ANNOTATION = "io.vedette.staged"
# For pulling the image, beyond the time limit, which the agent watches.
DEADLINE_MARGIN_SECONDS = 3600
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,53}[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")

Answer = dict[str, Any]


def job_name(attempt_id: str) -> str:
    """Return the name of an attempt's Job, by which it is made once only."""
    is_label = _DNS_LABEL.fullmatch(attempt_id) is not None
    name = attempt_id if is_label else hashlib.sha256(attempt_id.encode()).hexdigest()[:40]
    return f"vedette-{name}"


def options(spec: AttemptSpec) -> dict[str, str]:
    """Return the options of the job for Kubernetes."""
    return options_of(ClusterKind.KUBERNETES, spec.cluster_options)


def queue_of(spec: AttemptSpec, settings: KubernetesSettings) -> str:
    """Return the queue of Kueue that a job goes to; "" is none."""
    return options(spec).get("queue", "") or settings.queue


def job_of(spec: AttemptSpec, settings: KubernetesSettings, site: ExecutorSite) -> Answer:
    """Return the Job of an attempt.

    With secrets it is staged: suspended, and in no queue, until its Secret is there.

    Raises:
        InvalidError: an option or a mount can't be honored.
    """
    labels = {
        "app.kubernetes.io/managed-by": "vedette",
        OWNER_LABEL: site.owner,
        ATTEMPT_LABEL: spec.attempt_id,
        JOB_LABEL: spec.job_id,
    }
    queue, is_staged = queue_of(spec, settings), bool(spec.secrets)
    annotations = {NAME_ANNOTATION: spec.name}
    # A Secret of an earlier Job of this name may still be there to be deleted.
    secret = f"{job_name(spec.attempt_id)}-{token_hex(4)}" if is_staged else ""
    if is_staged:
        annotations |= {STAGED_ANNOTATION: "true", SECRET_ANNOTATION: secret}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(spec.attempt_id),
            "labels": labels | ({QUEUE_LABEL: queue} if queue and not is_staged else {}),
            "annotations": annotations,
        },
        "spec": {
            "suspend": bool(queue) or is_staged,
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "template": {
                "metadata": {"labels": labels, "annotations": {NAME_ANNOTATION: spec.name}},
                "spec": pod_of(spec, settings, site, secret=secret),
            },
        },
    }


def release_of(spec: AttemptSpec, settings: KubernetesSettings) -> Answer:
    """Return the patch that lets a staged Job run, or enter its queue."""
    queue = queue_of(spec, settings)
    metadata: Answer = {"annotations": {STAGED_ANNOTATION: None}}
    if queue:
        return {"metadata": {**metadata, "labels": {QUEUE_LABEL: queue}}}
    return {"metadata": metadata, "spec": {"suspend": False}}


def secret_of(spec: AttemptSpec, job: Mapping[str, Any]) -> Answer:
    """Return the Secret of an attempt, which is deleted with its Job, as the API returned that."""
    metadata = job["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": metadata["annotations"][SECRET_ANNOTATION],
            "labels": dict(metadata["labels"]),
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                }
            ],
        },
        "type": "Opaque",
        "data": {
            name: base64.b64encode(value.encode()).decode() for name, value in spec.secrets.items()
        },
    }


def pod_of(
    spec: AttemptSpec, settings: KubernetesSettings, site: ExecutorSite, *, secret: str
) -> Answer:
    """Return the spec of an attempt's pod."""
    chosen = options(spec)
    grace_seconds = site.grace_seconds_of(spec)
    volumes, mounts = _volumes(spec, settings)
    pod: Answer = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_security(settings),
        "containers": [_container(spec, settings, mounts) | {"env": _environment(spec, secret)}],
        "volumes": volumes,
    }
    if spec.time_limit_seconds:
        limit_seconds = spec.time_limit_seconds + grace_seconds + DEADLINE_MARGIN_SECONDS
        pod["activeDeadlineSeconds"] = round(limit_seconds)
    if account := chosen.get("service_account"):
        if account not in settings.service_accounts:
            allowed = ", ".join(settings.service_accounts) or "none"
            raise InvalidError(
                f"kubernetes.service_account = {account!r}: jobs may not use it. The connector "
                f"allows: {allowed} ([kubernetes] service_accounts)."
            )
        pod |= {"serviceAccountName": account, "automountServiceAccountToken": True}
    if name := chosen.get("priority_class"):
        pod["priorityClassName"] = name
    if text := chosen.get("node_selector"):
        pod["nodeSelector"] = node_selector(text)
    if name := chosen.get("image_pull_secret") or settings.image_pull_secret:
        pod["imagePullSecrets"] = [{"name": name}]
    if spec.gpu_uuids:
        # Nodes with GPUs often keep other pods away by a taint of this key.
        pod["tolerations"] = [{"key": settings.gpu_resource, "operator": "Exists"}]
    if spec.gpu_uuids and spec.gpu_models:
        pod["affinity"] = {"nodeAffinity": _has_models(spec.gpu_models)}
    return pod


def _has_models(models: Sequence[str]) -> Answer:
    """Return the affinity of pods to nodes with GPUs of some models."""
    term = {"key": MODEL_LABEL, "operator": "In", "values": list(models)}
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [term]}]
        }
    }


def node_selector(text: str) -> dict[str, str]:
    """Return the labels of `pool=a,zone=b`."""
    labels = {}
    for part in text.split(","):
        key, separator, value = (word.strip() for word in part.partition("="))
        if not (separator and _LABEL_KEY.fullmatch(key) and _LABEL_VALUE.fullmatch(value)):
            raise InvalidError(
                f"kubernetes.node_selector = {text!r}: expected labels such as pool=a,zone=b."
            )
        labels[key] = value
    return labels


def _container(spec: AttemptSpec, settings: KubernetesSettings, mounts: list[Answer]) -> Answer:
    resources = {
        "cpu": f"{max(1, round(spec.cpus * 1000))}m",
        "memory": str(spec.memory_bytes),
    }
    if spec.gpu_uuids:
        resources[settings.gpu_resource] = str(len(spec.gpu_uuids))
    container: Answer = {
        "name": CONTAINER,
        "image": spec.image,
        "resources": {"requests": resources, "limits": resources},
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "capabilities": _capabilities(spec),
        },
    }
    if spec.command:
        container["args"] = [_literal(word) for word in spec.command]
    if spec.working_dir:
        container["workingDir"] = spec.working_dir
    return container


def _capabilities(spec: AttemptSpec) -> Answer:
    added = list(CAPABILITIES[spec.container_policy])
    return {"drop": ["ALL"], "add": added} if added else {"drop": ["ALL"]}


def _pod_security(settings: KubernetesSettings) -> Answer:
    security: Answer = {"seccompProfile": {"type": "RuntimeDefault"}}
    if settings.run_as_user:
        user = settings.run_as_user
        security |= {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": user, "fsGroup": user}
    return security


def _environment(spec: AttemptSpec, secret: str) -> list[Answer]:
    """Return the variables; secrets are references, and win over others of their name."""
    plain = environment_of(msgspec.structs.replace(spec, secrets={}))
    return [
        *(
            {"name": name, "value": _literal(value)}
            for name, value in plain.items()
            if name not in spec.secrets
        ),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}
            for name in spec.secrets
        ),
    ]


def _volumes(spec: AttemptSpec, settings: KubernetesSettings) -> tuple[list[Answer], list[Answer]]:
    """Return volumes and their mounts: shared memory, and claims for the tenant's data roots."""
    shared_memory_bytes = spec.shared_memory_bytes or spec.memory_bytes // 2
    memory = {"medium": "Memory", "sizeLimit": str(shared_memory_bytes)}
    volumes: dict[str, Answer] = {"shm": {"name": "shm", "emptyDir": memory}}
    mounts: list[Answer] = [{"name": "shm", "mountPath": SHARED_MEMORY}]
    for mount in spec.mounts:
        claim, sub_path = _claim_of(mount, settings)
        name = f"data-{list(settings.volumes.values()).index(claim)}"
        volumes[name] = {"name": name, "persistentVolumeClaim": {"claimName": claim}}
        fields = {"name": name, "mountPath": mount.target, "readOnly": mount.is_read_only}
        mounts.append(fields | ({"subPath": sub_path} if sub_path else {}))
    return list(volumes.values()), mounts


def _claim_of(mount: Mount, settings: KubernetesSettings) -> tuple[str, str]:
    """Return the claim with the source of a mount, and the path in it."""
    root = root_of(mount.source, settings.volumes)
    if root is not None:
        return settings.volumes[root], mount.source.removeprefix(root.rstrip("/")).strip("/")
    roots = ", ".join(sorted(settings.volumes)) or "none"
    raise InvalidError(
        f"{mount.source} can't be mounted: pods get no paths of their nodes. The connector has "
        f"volumes for: {roots} ([kubernetes.volumes])."
    )


def _literal(text: str) -> str:
    """Return text in which Kubernetes expands no `$(NAME)`."""
    return text.replace("$", "$$")
