"""The objects that the executor of Kubernetes makes, and the files of deploy/kubernetes."""

import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from jobqueue.executors.base import ExecutorUnavailableError
from jobqueue.executors.kubernetes.client import KubernetesAPI
from jobqueue.executors.kubernetes.cluster_reader import IN_NAMESPACE, ON_CLUSTER
from jobqueue.executors.kubernetes.manifests import job_name, job_of
from jobqueue.executors.recorded import ExecutorSite
from jobqueue.executors.settings import KubernetesSettings
from protocol.attempts import AttemptSpec
from protocol.job_spec import ContainerPolicy, Mount

ROOT = Path(__file__).parents[3]
SITE = ExecutorSite(owner="01a2-owner", state_dir=Path("unused"))
# As the Pod Security Standard `baseline` lists them.
BASELINE = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
    "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip


def spec(**changes: object) -> AttemptSpec:
    fields: dict[str, object] = {
        "attempt_id": "01a2-attempt",
        "job_id": "01a2-job",
        "name": "train",
        "image": "pytorch:2",
    }
    return AttemptSpec(**{**fields, **changes})  # type: ignore[arg-type] # the caller's names


def pod(attempt: AttemptSpec, settings: KubernetesSettings | None = None) -> dict[str, object]:
    job = job_of(attempt, settings or KubernetesSettings(), SITE)
    for version in ("1.29", "1.37"):
        kubernetes_validate.validate(job, version, strict=True)
    made: dict[str, object] = job["spec"]["template"]["spec"]
    return made


def container(attempt: AttemptSpec) -> dict[str, object]:
    containers: Any = pod(attempt)["containers"]
    return dict(containers[0])


def test_requests_are_limits_of_cpus_memory_and_gpus() -> None:
    attempt = spec(cpus=1.5, memory_bytes=2**30, gpu_uuids=["requested-0", "requested-1"])
    resources = container(attempt)["resources"]
    wanted = {"cpu": "1500m", "memory": "1073741824", "nvidia.com/gpu": "2"}
    assert resources == {"requests": wanted, "limits": wanted}


def test_a_pod_goes_to_nodes_with_the_models_that_its_job_may_have() -> None:
    models = ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H200"]
    made = pod(spec(gpu_uuids=["requested-0"], gpu_models=models))
    term = {"key": "nvidia.com/gpu.product", "operator": "In", "values": models}
    required = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
    chosen = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    assert made["affinity"] == {"nodeAffinity": chosen}
    assert "affinity" not in pod(spec(gpu_uuids=["requested-0"]))


def test_kubernetes_expands_nothing_in_commands_and_variables() -> None:
    made = container(spec(command=["echo", "$(HOME) $$"], env={"PROMPT": "$(pwd)"}))
    assert made["args"] == ["echo", "$$(HOME) $$$$"]
    assert {"name": "PROMPT", "value": "$$(pwd)"} in made["env"]  # type: ignore[operator]


def test_restricted_containers_conform_to_the_standard_restricted_with_a_user() -> None:
    made = pod(spec(), KubernetesSettings(run_as_user=1000))
    assert made["securityContext"] == {
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
    }
    assert made["containers"][0]["securityContext"] == {  # type: ignore[index]
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert made["automountServiceAccountToken"] is False
    volumes = made["volumes"]
    assert all(set(item) <= {"name", "emptyDir"} for item in volumes)  # type: ignore[attr-defined]


def test_standard_containers_have_capabilities_of_the_standard_baseline_alone() -> None:
    made = container(spec(container_policy=ContainerPolicy.STANDARD.value))
    added = made["securityContext"]["capabilities"]["add"]  # type: ignore[index]
    assert set(added) <= BASELINE


def test_shared_memory_is_half_of_the_memory_unless_the_job_says_otherwise() -> None:
    assert pod(spec(memory_bytes=2**30))["volumes"] == [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(2**29)}}
    ]


def test_data_roots_are_claims_with_a_path_in_them() -> None:
    settings = KubernetesSettings(volumes={"/data": "datasets", "/data/fast": "nvme"})
    mounts = [Mount(source="/data/fast/a/b", target="/b"), Mount(source="/data", target="/all")]
    made = pod(spec(mounts=mounts), settings)
    assert made["volumes"][1:] == [  # type: ignore[index]
        {"name": "data-1", "persistentVolumeClaim": {"claimName": "nvme"}},
        {"name": "data-0", "persistentVolumeClaim": {"claimName": "datasets"}},
    ]
    assert made["containers"][0]["volumeMounts"][1:] == [  # type: ignore[index]
        {"name": "data-1", "mountPath": "/b", "readOnly": True, "subPath": "a/b"},
        {"name": "data-0", "mountPath": "/all", "readOnly": True},
    ]


def test_options_of_a_job_reach_its_pod() -> None:
    options = {
        "kubernetes.priority_class": "high",
        "kubernetes.node_selector": "pool=a, zone=b",
        "kubernetes.image_pull_secret": "registry",
        "kubernetes.service_account": "reader",
    }
    made = pod(spec(cluster_options=options), KubernetesSettings(service_accounts=["reader"]))
    assert made["priorityClassName"] == "high"
    assert made["nodeSelector"] == {"pool": "a", "zone": "b"}
    assert made["imagePullSecrets"] == [{"name": "registry"}]
    assert (made["serviceAccountName"], made["automountServiceAccountToken"]) == ("reader", True)


def test_the_deadline_of_a_pod_is_behind_the_time_limit_of_the_agent() -> None:
    made = pod(spec(time_limit_seconds=60.0, stop_grace_seconds=30))
    assert made["activeDeadlineSeconds"] == 60 + 30 + 3600
    assert made["terminationGracePeriodSeconds"] == 30


def test_names_are_labels_whatever_the_attempts_id() -> None:
    assert job_name("01a2-b") == "vedette-01a2-b"
    assert len(job_name("A" * 200)) <= 57
    assert job_name("A.b") != job_name("a.b")


def test_the_files_to_deploy_conform_to_the_schemas() -> None:
    text = (ROOT / "deploy/kubernetes/connector.yaml").read_text(encoding="utf-8")
    items = list(yaml.safe_load_all(text))
    for item in items:
        for version in ("1.27", "1.37"):
            kubernetes_validate.validate(item, version, strict=True)
    assert {"Deployment", "Role", "ClusterRole"} <= {item["kind"] for item in items}


def test_the_rights_that_are_checked_are_those_of_the_manifest() -> None:
    text = (ROOT / "deploy/kubernetes/connector.yaml").read_text(encoding="utf-8")
    for kind, rights in (("Role", IN_NAMESPACE), ("ClusterRole", ON_CLUSTER)):
        (item,) = [item for item in yaml.safe_load_all(text) if item["kind"] == kind]
        granted = {
            (group, resource, verb)
            for rule in item["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        assert granted == {
            (right.group, right.resource, verb) for right in rights for verb in right.verbs
        }


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ExecutorUnavailableError, match=r"vedette\[kubernetes\]"):
        KubernetesAPI(KubernetesSettings()).get("/version")
